"""What goes into the protocol for one delivery, how its run ends, and what comes out."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from idempotency import observation
from idempotency.decision import Outcome
from idempotency.errors import PermanentError, ResultOmittedError, describe
from idempotency.record import COMPLETED, FAILED, Record

POSTPONED: Final = "Postponed"
"""The outcome of a delivery that runs later in the same invocation. It is not observed."""
NO_RESULT: Final = "null"
"""How the codec writes None."""


class Delivery(NamedTuple):
    """What the protocol must know about one delivery. Times are epoch milliseconds."""

    key: str
    fingerprint: str | None
    id: str | None
    """The transport's own id, by which a retry of the same delivery is recognised."""
    deadline_ms: int | None
    acknowledges: bool
    """The caller is a transport: it delivers again whatever raises, and forgets whatever does not."""
    comes_again: bool = False
    """The transport is known to deliver this again until it is acknowledged. A synchronous caller is not."""
    postpones: bool = False
    """If an earlier attempt at the key crashed, answer POSTPONED and write nothing."""
    claims: bool = False
    """Claim the key even if the policy is atomic, so that a crash is visible in the record."""
    protected: bool = True
    """The delivery has an idempotency key. Without one it runs under a key that no other delivery has."""
    dead_letters: bool = True
    """Send the event to the dead-letter queue when it is given up. Otherwise only its caller gets the error."""
    context: Any = None
    replayed: bool = False
    sent_ms: int | None = None
    expires_ms: int | None = None
    event: object = None
    labels: Mapping[str, str] = observation.NO_LABELS
    """For the observer; the protocol ignores them."""


class Answer(NamedTuple):
    """How a delivery ended."""

    outcome: str
    record: Record | None
    reason: str | None = None
    error: Exception | None = None
    """What to raise to the caller; None if the delivery can be acknowledged."""

    def value(self) -> Any:
        """Return the result of the committed run.

        Raises:
            ResultOmittedError: the run was committed without its value.
            UndecodableResultError: the stored result cannot be rebuilt.
        """
        if self.record is None or self.record.status != COMPLETED:
            return None
        if self.record.result is None:
            raise ResultOmittedError(self.record.key, self.record.error)
        if self.record.result == NO_RESULT:
            return None
        from idempotency import codec

        return codec.decode(self.record.result)


def completed(value: object, most_bytes: int) -> Outcome:
    """Return the outcome of a run that returned ``value``, without its value if that cannot be stored."""
    if value is None:
        return Outcome(COMPLETED, NO_RESULT)
    from idempotency import codec

    try:
        result = codec.encode(value)
    except codec.UnencodableResultError as unencodable:
        return Outcome(COMPLETED, error=str(unencodable))
    size = len(result.encode())
    if size > most_bytes:
        return Outcome(COMPLETED, error=f"{size} bytes are more than max_result_bytes")
    return Outcome(COMPLETED, result)


def failed(error: Exception, *, counted: bool = True) -> Outcome:
    """Return the outcome of a run that raised; ``counted`` says whether it uses up an attempt."""
    return Outcome(FAILED, error=describe(error), permanent=isinstance(error, PermanentError), counted=counted)


def unrecorded(error: Exception, why: Exception, record: Record | None) -> Answer:
    """Answer with the handler's own error, because its failure could not be recorded or dead-lettered."""
    error.add_note(f"This failure could not be recorded: {describe(why)}")
    return Answer(observation.FAILED, record, describe(error), error)


def kind_of_run(replaced: Record | None) -> str:
    """Return what to call a committed run, by the record that its claim replaced."""
    if replaced is None or replaced.status == COMPLETED:
        return observation.NEW
    return observation.RETRIED if replaced.status == FAILED else observation.TAKEOVER
