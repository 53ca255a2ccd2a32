"""What goes into the protocol for one delivery, how its run ends, what comes out, and who is told."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from carride_idempotency import dead_letters, observation
from carride_idempotency.dead_letters import DeadLetter, DeadLetters
from carride_idempotency.decision import Outcome
from carride_idempotency.errors import PermanentError, ResultOmittedError, describe
from carride_idempotency.observation import Observation, Observer
from carride_idempotency.operation import downstream_key
from carride_idempotency.record import COMPLETED, FAILED, Record, unknown_calls
from carride_idempotency.stores import Store

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
    """The caller is a transport: it delivers again whatever raises, and forgets whatever does
    not."""
    comes_again: bool = False
    """The transport is known to deliver this again until it is acknowledged. A synchronous caller
    is not."""
    postpones: bool = False
    """If an earlier attempt at the key crashed, answer POSTPONED and write nothing."""
    claims: bool = False
    """Claim the key even if the policy is atomic, so that a crash is visible in the record."""
    protected: bool = True
    """The delivery has an idempotency key. Without one it runs under a key that no other delivery
    has."""
    dead_letters: bool = True
    """Send the event to the dead-letter queue when it is given up. Otherwise only its caller gets
    the error."""
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
        from carride_idempotency import codec

        return codec.decode(self.record.result)


def completed(value: object, most_bytes: int) -> Outcome:
    """Return the outcome of a run that returned ``value``, without its value if that cannot be stored."""
    if value is None:
        return Outcome(COMPLETED, NO_RESULT)
    from carride_idempotency import codec

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
    return Outcome(
        FAILED, error=describe(error), permanent=isinstance(error, PermanentError), counted=counted
    )


def unrecorded(error: Exception, why: Exception, record: Record | None) -> Answer:
    """Answer with the handler's own error, because its failure could not be recorded or dead-lettered."""
    error.add_note(f"This failure could not be recorded: {describe(why)}")
    return Answer(observation.FAILED, record, describe(error), error)


def kind_of_run(replaced: Record | None) -> str:
    """Return what to call a committed run, by the record that its claim replaced."""
    if replaced is None or replaced.status == COMPLETED:
        return observation.NEW
    return observation.RETRIED if replaced.status == FAILED else observation.TAKEOVER


class Reports:
    """Reports how one consumer's deliveries end: to the observer, and to the dead-letter queue."""

    def __init__(
        self, consumer: str, store: Store, observe: Observer, dead_letters: DeadLetters | None
    ) -> None:
        self._consumer = consumer
        self._store = store
        self._observe = observe
        self._dead_letters = dead_letters

    def report(self, delivery: Delivery, answer: Answer) -> Answer:
        """Observe how a delivery ended; return the answer, or raise its error. A postponed delivery has not ended."""
        if answer.outcome == POSTPONED:
            return answer
        if self._observe is not observation.ignore:
            number = 0 if answer.record is None else answer.record.attempt
            outcome = answer.outcome
            if not delivery.protected and outcome in observation.COMMITTED:
                outcome = observation.UNPROTECTED
            self._observe(
                Observation(
                    self._consumer,
                    outcome,
                    delivery.key,
                    number,
                    delivery.id,
                    answer.reason,
                    delivery.labels,
                )
            )
        if answer.error is not None:
            raise answer.error
        return answer

    def observed[**P, T](
        self, delivery: Delivery, step: Callable[P, T | Answer], *args: P.args, **kwargs: P.kwargs
    ) -> T | Answer:
        """Perform a step of a delivery; report an answer, or the error with which the delivery ends instead."""
        try:
            ended = step(*args, **kwargs)
        except Exception as error:
            self.report(delivery, Answer(observation.FAILED, None, describe(error)))
            raise
        return self.report(delivery, ended) if isinstance(ended, Answer) else ended

    def unread(self, delivery_id: str, reason: str, outcome: str = observation.FAILED) -> None:
        """Observe a message that could not be read: it has no key."""
        self._observe(Observation(self._consumer, outcome, None, 0, delivery_id, reason))

    def reject(self, delivery_id: str, reason: str, error: Exception, event: object) -> None:
        """Send a message that is at fault itself to the dead-letter queue; without one, raise ``error``."""
        if self._dead_letters is None:
            self.unread(delivery_id, reason)
            raise error
        self._dead_letters.send(DeadLetter(reason, describe(error), self._consumer, None, 0, event))
        self.unread(delivery_id, reason, observation.DEAD_LETTERED)

    def give_up(
        self, delivery: Delivery, reason: str, error: Exception, record: Record | None
    ) -> Answer:
        """Send the event to the dead-letter queue, then flag the record, then acknowledge."""
        if self._dead_letters is None or not delivery.dead_letters:
            return Answer(observation.FAILED, record, describe(error), error)
        # The flag belongs to the record's own quarantine, not to another event that shares the key.
        poison = record if reason in (dead_letters.QUARANTINED, dead_letters.UNKNOWN) else None
        if poison is None or not poison.dead_lettered:
            number = 0 if record is None else record.attempt
            says = _message(error, poison)
            dead_letter = DeadLetter(
                reason, says, self._consumer, delivery.key, number, delivery.event
            )
            self._dead_letters.send(dead_letter)
            if poison is not None:
                self._store.compare_and_swap(
                    poison, poison._replace(dead_lettered=True), until_ms=delivery.deadline_ms
                )
        return Answer(
            observation.DEAD_LETTERED, record, reason, None if delivery.acknowledges else error
        )


def _message(error: Exception, poison: Record | None) -> str:
    """Return what a dead letter says: the error, and the external calls whose outcome is unknown."""
    if poison is None:
        return describe(error)
    calls = [
        f"{name} (downstream key {downstream_key(poison.key, name)})"
        for name in unknown_calls(poison)
    ]
    return f"{describe(error)}; unknown: {', '.join(calls)}" if calls else describe(error)
