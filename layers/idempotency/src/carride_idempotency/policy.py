"""Policies: a consumer's limits, times and choices, checked when they are built."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

from carride_idempotency.errors import ConfigurationError

DAY: Final = 86_400

LONGEST_LEASE_MS: Final = 900_000
"""A Lambda invocation lasts 15 minutes at most, and so does a policy's lease."""

TIMEOUT_COVERED_BY_LEASE_MS: Final = 170_000
"""Up to this timeout a lease may last as long as the invocation. Lambda's last asynchronous retry
comes three minutes after a crash. It could not take over a key whose lease was longer."""

HEARTBEATS_PER_LEASE: Final = 3
"""A lease survives two heartbeats that fail in a row."""


_NUMBERS: Final = ("lease", "margin", "clock_skew", "reserve", "wait_limit", "warm_seconds")
"""The settings that are numbers."""

_WHOLE_NUMBERS: Final = (
    "max_attempts",
    "conflict_reruns",
    "concurrency",
    "max_result_bytes",
    "warm_cache",
)


def no_backoff(attempt: int) -> float:  # noqa: ARG001 - every back-off gets the attempt
    """Allow a retry at once: Lambda itself waits between the tries of asynchronous invokes."""
    return 0.0


def _is_exception(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Exception)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Immutable settings of one consumer. Durations are in seconds.

    Attributes:
        window: how long a record is remembered, in seconds or as a `timedelta`. Must outlast every
            path by which an event can come back: EventBridge's 24 hours, Lambda's 6, a dead-letter
            queue's 14 days and the archive's retention.
        max_attempts: how often one key is run before it is quarantined: one try and Lambda's two
            retries. The maxReceiveCount of an SQS queue must be at least two more.
        outages: exceptions of other libraries that say that a service is out of order, such as
            ``ConnectionError``. They use up no attempt, as a RetryableError does: an outage is not
            the message's fault, and must not quarantine all that comes during it.
        on_crash: what happens to a key whose attempt ended without an answer. ``retry`` runs it
            again. ``quarantine`` is for work that must not be repeated: the event goes to the
            dead-letter queue as UNKNOWN, and an operator decides. A crash leaves all running
            records of a batch unknown, so run such batches with ``concurrency=1``.
        lease: how long a claim holds if no deadline bounds it, or heartbeats renew it: 3 to 900.
        margin: how long a lease outlasts the invocation's deadline: by its end the function has
            certainly stopped.
        clock_skew: how much two clocks may differ. A larger difference can overlap runs, but never
            commits twice.
        reserve: kept free before the deadline for the commit: nothing else starts inside it.
        missing_key: what happens to a message without an idempotency key. ``reject`` sends it to
            the dead-letter queue. ``run`` runs it unprotected: a duplicate runs again, and every
            such run is observed as ``Unprotected``.
        busy: what a delivery that may not be acknowledged does while another attempt holds its key.
        wait_limit: how long ``wait`` waits at the most.
        backoff: seconds until a failed key may be tried again, from the number of the attempt that
            failed.
        atomic: make no claim: one transaction writes effects and completion. The store must have
            transactions. A duplicate may run the handler, so it must have no other effects. Batches
            claim a message from its second receive on: only a record shows which message crashed
            its process.
        same_delivery_takes_over: a retried delivery may take over its own live claim. Correct only
            if all effects are in the commit.
        conflict_reruns: how often the handler runs again in the same claim after an
            EffectConflictError. Correct only if all effects are in the commit or made with
            ``operation.external``.
        concurrency: how many records of a batch run at once.
        letter_retention: how long the dead-letter queue keeps a message, in seconds: its
            MessageRetentionPeriod. Within it, a replay of a message that is at fault itself sends
            no second letter: see `letter_marks`. 0: every delivery of such a message sends one.
        keep_event: keep the raw event with a failed or quarantined record, for recovery by hand.
        max_result_bytes: a larger encoded result is completed without its value, and flagged.
        warm_cache: how many messages one process remembers that it has completed. If the transport
            delivers such a message again, under the same delivery id, that costs no round trip. All
            other deliveries ask the store: an operator may have removed the record, so that a
            replay or a redrive runs again.
        warm_seconds: for how long it remembers them.

    Raises:
        ConfigurationError: a value is out of its range, or two contradict each other.
    """

    window: int | timedelta = 30 * DAY
    max_attempts: int = 3
    outages: tuple[type[Exception], ...] = ()
    on_crash: Literal["retry", "quarantine"] = "retry"
    lease: float = 30.0
    margin: float = 1.0
    clock_skew: float = 1.0
    reserve: float = 1.0
    missing_key: Literal["reject", "run"] = "reject"
    busy: Literal["raise", "wait"] = "raise"
    wait_limit: float = 10.0
    backoff: Callable[[int], float] = no_backoff
    atomic: bool = False
    same_delivery_takes_over: bool = False
    conflict_reruns: int = 0
    concurrency: int = 10
    letter_retention: int = 0
    keep_event: bool = False
    max_result_bytes: int = 200_000
    warm_cache: int = 256
    warm_seconds: float = 300.0

    @property
    def window_s(self) -> int:
        """The window in seconds."""
        window = self.window
        return int(window.total_seconds()) if isinstance(window, timedelta) else window

    def __post_init__(self) -> None:
        self._check_kinds()
        for holds, rule in (
            (self.window_s >= 1, "window must be at least 1 second"),
            (self.max_attempts >= 1, "max_attempts must be at least 1"),
            (
                isinstance(self.letter_retention, int) and self.letter_retention >= 0,
                "letter_retention must be a whole number of seconds, or 0",
            ),
            (
                self.on_crash in ("retry", "quarantine"),
                f"on_crash must be 'retry' or 'quarantine', not {self.on_crash!r}",
            ),
            (
                self.missing_key in ("reject", "run"),
                f"missing_key must be 'reject' or 'run', not {self.missing_key!r}",
            ),
            (3.0 <= self.lease <= 900.0, "lease must be 3 to 900 seconds"),
            (
                min(self.margin, self.clock_skew, self.reserve) >= 0,
                "margin, clock_skew and reserve cannot be negative",
            ),
            (self.clock_skew < self.window_s, "clock_skew must be shorter than the window"),
            (
                self.busy in ("raise", "wait"),
                f"busy must be 'raise' or 'wait', not {self.busy!r}",
            ),
            (
                0 < self.wait_limit <= 900.0,
                "wait_limit must be more than 0 and at most 900 seconds",
            ),
            (self.conflict_reruns >= 0, "conflict_reruns cannot be negative"),
            (
                0 <= self.max_result_bytes <= 380_000,
                "max_result_bytes must be 0 to 380000: an item holds 400 KB",
            ),
            (self.concurrency >= 1, "concurrency must be at least 1"),
            (self.warm_cache >= 0, "warm_cache cannot be negative"),
            (0 <= self.warm_seconds <= 300.0, "warm_seconds must be 0 to 300"),
            (
                not (self.atomic and self.same_delivery_takes_over),
                "atomic makes no claim, so same_delivery_takes_over has nothing to take over",
            ),
            (
                self.on_crash == "retry" or not (self.atomic or self.same_delivery_takes_over),
                (
                    "on_crash='quarantine' needs a claim: "
                    "set neither atomic nor same_delivery_takes_over"
                ),
            ),
        ):
            if not holds:
                raise ConfigurationError(rule)

    def _check_kinds(self) -> None:
        """Check the types of the values; otherwise raise a ConfigurationError."""
        if isinstance(self.window, timedelta):
            if self.window.microseconds:
                raise ConfigurationError("window must be a whole number of seconds")
        elif not isinstance(self.window, int):
            raise ConfigurationError(
                f"window must be a whole number of seconds or a timedelta, not {self.window!r}"
            )
        for name in _NUMBERS:
            value = getattr(self, name)
            if not isinstance(value, int | float):
                raise ConfigurationError(f"{name} must be a number, not {value!r}")
        for name in _WHOLE_NUMBERS:
            value = getattr(self, name)
            if not isinstance(value, int):
                raise ConfigurationError(f"{name} must be a whole number, not {value!r}")
        if not callable(self.backoff):
            raise ConfigurationError(
                "backoff must be a function from the number of an attempt to seconds, such as "
                f"lambda attempt: 2.0**attempt, not {self.backoff!r}"
            )
        if not isinstance(self.outages, tuple) or not all(map(_is_exception, self.outages)):
            raise ConfigurationError(
                f"outages must be a tuple of exceptions, such as (ConnectionError,), "
                f"not {self.outages!r}"
            )
