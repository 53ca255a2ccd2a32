"""How a run ended, as its record keeps it: the result of the handler, or its error."""

from carride_idempotency.errors import PermanentError, describe
from carride_idempotency.protocol.decision import Outcome
from carride_idempotency.record import COMPLETED, FAILED, NO_RESULT


def completed(value: object, most_bytes: int) -> Outcome:
    """Return the outcome of a run that returned ``value``: without it, if it cannot be stored."""
    if value is None:
        return Outcome(COMPLETED, NO_RESULT)
    from carride_idempotency.stores import codec

    try:
        result = codec.encode(value)
    except codec.UnencodableResultError as unencodable:
        return Outcome(COMPLETED, error=str(unencodable))
    size = len(result.encode())
    if size > most_bytes:
        return Outcome(COMPLETED, error=f"{size:,} bytes are more than the {most_bytes:,} that fit")
    return Outcome(COMPLETED, result)


def failed(error: Exception, *, counted: bool = True) -> Outcome:
    """Return the outcome of a run that raised; ``counted`` says whether it uses up an attempt."""
    is_permanent = isinstance(error, PermanentError)
    return Outcome(FAILED, error=describe(error), permanent=is_permanent, counted=counted)
