"""The exceptions: one for each outcome that is not a result.

``RetryableError`` means that the same delivery may succeed later: let it reach Lambda or SQS, which
deliver again. ``PermanentError`` means that no retry can help: the record is quarantined and the
event goes to the dead-letter queue.
"""


class IdempotencyError(Exception):
    """The base of all exceptions of this package."""


class ConfigurationError(IdempotencyError, ValueError):
    """Raised while a consumer, policy or store is built from values that cannot work together."""


class RetryableError(IdempotencyError):
    """The delivery was not processed, nothing was lost, and a later delivery may succeed."""


class BusyError(RetryableError):
    """Raised while another attempt holds the key, for at most ``lease_left_ms``."""

    def __init__(self, key: str, lease_left_ms: int) -> None:
        super().__init__(
            f"{key} is being processed elsewhere; its lease ends in {lease_left_ms} ms"
        )
        self.key = key
        self.lease_left_ms = lease_left_ms


class RetryLaterError(RetryableError):
    """Raised when a failed key is delivered again before its back-off is over."""

    def __init__(self, key: str, wait_ms: int) -> None:
        super().__init__(f"{key} failed and is not tried again for {wait_ms} ms")
        self.key = key
        self.wait_ms = wait_ms


class LostLeaseError(RetryableError):
    """Raised when another attempt took the key over, and has not completed it yet."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"{key} was taken over by another attempt; nothing of this one was committed"
        )
        self.key = key


class OutOfTimeError(RetryableError):
    """Raised instead of starting work that could not be committed in the time left."""


class StoreError(RetryableError):
    """The base of a store's errors."""


class StoreUnavailableError(StoreError):
    """Raised when a write had no answer.

    It may have taken place. The next delivery finds that out from the record.
    """


class StoreRefusedError(StoreError):
    """Raised when nothing was written.

    The store denied access, called the request invalid, or throttled every try.
    """


class DeadLetterError(RetryableError):
    """Raised when the dead-letter queue did not take an event.

    Its delivery is not acknowledged then. Raise it from `DeadLetters` of your own.
    """


class BatchFailedError(RetryableError):
    """Raised when all records of a batch failed, or any of a source that cannot report one."""


class ContentionError(RetryableError):
    """Raised when other writers changed the record in each of a limited number of rounds."""


class UnfinishedWorkError(IdempotencyError, TypeError):
    """Raised when a handler has ended before its work.

    It returned an awaitable or a generator, or an effect that it has not registered; it did not
    await a call, or wait for a thread that makes one; or it calls or registers something after its
    end.
    """


class PermanentError(IdempotencyError):
    """Raise it (or a subclass) from a handler if no retry can help.

    The key is quarantined at once.
    """


class UnknownOutcomeError(PermanentError):
    """Raised when nobody can tell whether an external call was made.

    An operator has to find out and settle it.
    """

    def __init__(self, key: str, *names: str) -> None:
        super().__init__(
            f"{key}: nobody can tell whether {', '.join(names)} was done; find out, and settle it"
        )
        self.key = key


class MissingKeyError(PermanentError):
    """Raised when an event has no idempotency key, or only a part of one."""


class PayloadMismatchError(PermanentError):
    """Raised when a key that is already known arrives with another payload."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"{key} is already known with another payload: two operations share one key"
        )
        self.key = key


class QuarantinedError(PermanentError):
    """Raised for a quarantined key if no dead-letter queue takes the event."""

    def __init__(self, key: str, attempt: int, error: str | None) -> None:
        super().__init__(
            f"{key} is quarantined after attempt {attempt}: {error or 'its outcome is unknown'}"
        )
        self.key = key
        self.attempt = attempt


class BeyondWindowError(PermanentError):
    """Raised for a delivery so old that its record may be gone.

    Running it could repeat its effect.
    """


class CorruptRecordError(PermanentError):
    """Raised for a record that cannot be read: such as one with an unknown status.

    Its numbers may be damaged, too. The layer leaves it as it is, until an operator releases it.
    """


class EffectsRejectedError(PermanentError):
    """Raised for invalid effects: by ``write()``, or by the store at the commit."""


class EffectConflictError(IdempotencyError):
    """Raised when the condition of one of the handler's effects does not hold; nothing was written.

    ``index`` is the effect's position among the registered ones, ``item`` the stored item in
    DynamoDB's wire format.
    """

    def __init__(self, index: int, item: dict[str, object] | None = None) -> None:
        super().__init__(f"the condition of effect {index} does not hold")
        self.index = index
        self.item = item


class NotDoneError(IdempotencyError):
    """Raise it (or a subclass) from an external call that certainly had no effect.

    Any other error proves nothing. The call may be made again: a refusal that is to be remembered
    is a result of the call, and no error. It uses up an attempt, unless the class is a
    `RetryableError` too: ``class ThrottledError(NotDoneError, RetryableError)``.
    """


class UndecodableResultError(IdempotencyError):
    """Raised for a stored result that cannot be rebuilt.

    Its class is missing or changed, or its text is damaged.
    """


class ResultOmittedError(IdempotencyError):
    """Raised for a completed operation whose result was too large or had no stored form."""

    def __init__(self, key: str, why: str | None) -> None:
        super().__init__(
            f"{key} is completed, but its result was not stored: {why or 'the record holds none'}"
        )
        self.key = key


class KeyExpressionError(IdempotencyError, TypeError):
    """Raised when a function of a JMESPath expression got a value of the wrong type.

    The expression is at fault.
    """


_LONGEST_DESCRIPTION = 500


def describe(error: BaseException) -> str:
    """Return ``Type: text`` of an exception in at most 500 characters that every store can hold."""
    kind = type(error).__name__
    try:
        text = f"{kind}: {error}"[:_LONGEST_DESCRIPTION]
    except Exception:  # noqa: BLE001 - raised by the exception's own code
        text = f"{kind}, whose text cannot be read"
    return text.encode(errors="backslashreplace").decode()[:_LONGEST_DESCRIPTION]
