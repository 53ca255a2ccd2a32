"""How a run ended, as the record keeps it and as the observer sees it."""

from idempotency import observation
from idempotency.decision import Outcome
from idempotency.delivery import NO_RESULT, Answer
from idempotency.errors import PermanentError, describe
from idempotency.record import COMPLETED, FAILED, Record


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
    """Answer with the work's own error, whose failure could not be recorded or dead-lettered."""
    error.add_note(f"This failure could not be recorded: {describe(why)}")
    return Answer(observation.FAILED, record, describe(error), error)


def kind_of_run(replaced: Record | None) -> str:
    """Return what to call a committed run, by the record that its claim replaced."""
    if replaced is None or replaced.status == COMPLETED:
        return observation.NEW
    return observation.RETRIED if replaced.status == FAILED else observation.TAKEOVER
