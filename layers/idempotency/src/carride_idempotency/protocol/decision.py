"""Decides what to do next about one key, by the stored record, the claim request and the time.

All functions are pure: no I/O, no clock, no randomness. Their caller performs the returned step,
and asks again with the record that it found. The life of a claim, and the words of the conditions::

    claim             now            lease_ms     + skew         expiry      + skew
    ──┼────────────────┼────────────────┼────────────┼─── … ───────┼────────────┼─────────▶ time
      │◀────────────── live: nobody else runs ─────▶ │ may be taken over
      │◀───────────────────────── remembered ─────────────────────────────────▶ │ over: forgotten

A record is judged in this order: our own token → window over → fingerprint → status.
"""

from collections.abc import Callable
from typing import Final, Literal, NamedTuple, assert_never

from carride_idempotency.fingerprint import differ
from carride_idempotency.policy import LONGEST_LEASE_MS, no_backoff
from carride_idempotency.record import (
    COMPLETED,
    FAILED,
    IN_PROGRESS,
    QUARANTINED,
    Record,
    UnknownStatus,
)

TTL_BEYOND_LEASE_S = 3600
"""The TTL of a live claim ends an hour after its lease, so that DynamoDB never deletes a claim that
still holds."""


class Limits(NamedTuple):
    """A policy in the protocol's units."""

    window_s: int
    max_attempts: int
    lease_ms: int
    margin_ms: int
    skew_ms: int
    same_delivery_takes_over: bool
    quarantines_crashes: bool = False
    backoff: Callable[[int], float] = no_backoff


class Outcome(NamedTuple):
    """How a run ended: its result, or its error."""

    status: Literal["COMPLETED", "FAILED"]
    result: str | None = None
    error: str | None = None
    """Why the run failed; for a completed run, why its result was not stored."""
    permanent: bool = False
    counted: bool = True
    """Whether a failure uses up an attempt."""


class ClaimRequest(NamedTuple):
    """Inputs to a claim."""

    key: str
    owner: str
    fingerprint: str | None
    delivery: str | None
    region: str | None
    deadline_ms: int | None
    """When the invocation is stopped; ``None`` outside Lambda."""
    renewed: bool
    """Heartbeats renew the lease: it is short, and independent of the deadline."""
    limits: Limits
    outcome: Outcome | None = None
    """Set in atomic mode, where the run comes first and no claim is written."""
    event: str | None = None
    """The raw event, kept with a failure."""
    is_undated: bool = False
    """Nothing says when the delivery was first sent, so it may come after any window."""
    quarantine_ends: bool = False
    """The sender repeats the operation by itself, so that the key need not wait for an operator."""


# ── Steps ─────────────────────────────────────────────────────────────────────────────────────────


class Write(NamedTuple):
    """Write ``record`` on its condition; then decide on what is there."""

    seen: Record | None
    """The key must still have this record; for None, it must have none."""
    record: Record


class _Judged(NamedTuple):
    """A step that holds nothing but the judged record."""

    record: Record


class Run(_Judged):
    """We hold the claim: run the handler."""


class Done(_Judged):
    """The operation is complete: answer with its stored result."""


class Failed(_Judged):
    """Our own failure is recorded: raise the error."""


class Busy(NamedTuple):
    """Another attempt holds the key for at most ``lease_left_ms``."""

    record: Record
    lease_left_ms: int


class BackingOff(NamedTuple):
    """The key failed and may not be tried again for ``wait_ms``."""

    record: Record
    wait_ms: int


class Mismatch(_Judged):
    """The key is known with another payload."""


class Quarantined(_Judged):
    """The key is quarantined: never run it, and dead-letter the event if that was not done."""


class Corrupt(_Judged):
    """The record is invalid: leave it as it is."""


type Step = Write | Run | Done | Failed | Busy | BackingOff | Mismatch | Quarantined | Corrupt
type Ending = Done | Failed | Quarantined | None
"""None: another attempt took the claim over and has not completed it, or the record was deleted."""

_FORGOTTEN: Final = (COMPLETED, FAILED, QUARANTINED)
"""The statuses that end with the record's window, if it has one."""


# ── Records ───────────────────────────────────────────────────────────────────────────────────────


def lease_until(request: ClaimRequest, now_ms: int) -> int:
    """Return when a claim or heartbeat made now ends: at most the margin after the deadline."""
    limits = request.limits
    if request.deadline_ms is None:
        return now_ms + limits.lease_ms
    end_ms = request.deadline_ms + limits.margin_ms
    if not request.renewed:
        return end_ms
    return min(now_ms + limits.lease_ms, end_ms)


def attempt(request: ClaimRequest, now_ms: int, seen: Record | None = None) -> Record:
    """Return the record that the next attempt writes: a claim, or in atomic mode the outcome."""
    number = 1
    created_ms = now_ms
    externals = None
    kept = None
    if seen is not None:
        number = seen.attempt + 1
        created_ms = seen.created_ms
        externals = seen.externals
        kept = seen.kept
    lease_ms = None
    claim_expiry = None
    if request.outcome is None:
        lease_ms = lease_until(request, now_ms)
        claim_expiry = _claim_expiry(seen, request, lease_ms, now_ms)
    claim = Record(
        request.key,
        IN_PROGRESS,
        request.owner,
        number,
        lease_ms,
        claim_expiry,
        request.fingerprint,
        request.delivery,
        request.region,
        created_ms,
        now_ms,
        externals=externals,
        kept=kept,
    )
    if request.outcome is None:
        return claim
    return settled(claim, request.outcome, request, now_ms)


def settled(claim: Record, outcome: Outcome, request: ClaimRequest, now_ms: int) -> Record:
    """Return the record that ends ``claim``.

    It is COMPLETED, FAILED, or QUARANTINED if no attempt is left.
    """
    limits = request.limits
    if outcome.status == COMPLETED:
        return _completed(claim, outcome, limits, now_ms)
    no_attempt_left = outcome.counted and claim.attempt >= limits.max_attempts
    if outcome.permanent or no_attempt_left:
        return quarantined(claim, request, now_ms, outcome.error)
    return _failed(claim, outcome, request, now_ms)


def _completed(claim: Record, outcome: Outcome, limits: Limits, now_ms: int) -> Record:
    return Record(  # in a third of the time of `_replace`
        claim.key,
        COMPLETED,
        claim.owner,
        claim.attempt,
        lease_ms=None,
        expiry=now_ms // 1000 + limits.window_s,
        fingerprint=claim.fingerprint,
        delivery=claim.delivery,
        region=claim.region,
        created_ms=claim.created_ms,
        updated_ms=now_ms,
        result=outcome.result,
        error=outcome.error,
    )


def _failed(claim: Record, outcome: Outcome, request: ClaimRequest, now_ms: int) -> Record:
    wait_ms = int(request.limits.backoff(claim.attempt) * 1000)
    return claim._replace(
        status=FAILED,
        attempt=claim.attempt if outcome.counted else claim.attempt - 1,
        lease_ms=None,
        expiry=_expiry(claim, now_ms, request.limits.window_s),
        updated_ms=now_ms,
        error=outcome.error,
        retry_ms=now_ms + wait_ms if wait_ms > 0 else None,
        event=request.event,
    )


def quarantined(seen: Record, request: ClaimRequest, now_ms: int, error: str | None) -> Record:
    """Return ``seen`` quarantined, with its attempt.

    No ``error`` means an unknown outcome. The record does not expire, because an operator has to
    release it. It does expire if the sender can repeat the operation (``quarantine_ends``), and the
    outcome is known.

    The quarantine of another attempt's claim gets a token that no claim has. Otherwise a late mark
    ``dead_lettered`` could change what this delivery writes after an operator's release.
    """
    is_own = seen.owner == request.owner
    expiry = None
    if request.quarantine_ends and error is not None:
        expiry = _expiry(seen, now_ms, request.limits.window_s)
    return seen._replace(
        status=QUARANTINED,
        owner=request.owner if is_own else f"{request.owner}/{now_ms}",
        lease_ms=None,
        expiry=expiry,
        updated_ms=now_ms,
        error=error,
        retry_ms=None,
        dead_lettered=False,
        event=request.event,
    )


def renewed(claim: Record, request: ClaimRequest, now_ms: int) -> Record:
    """Return ``claim`` with a later lease and TTL, as a heartbeat writes it."""
    lease_ms = lease_until(request, now_ms)
    return claim._replace(
        lease_ms=lease_ms, expiry=_claim_expiry(claim, request, lease_ms, now_ms), updated_ms=now_ms
    )


def intended(claim: Record, request: ClaimRequest, now_ms: int) -> Record:
    """Return ``claim`` as it is written before an external call.

    A heartbeat that was sent before it is refused.
    """
    beat = renewed(claim, request, now_ms)
    return beat._replace(lease_ms=max(beat.lease_ms or 0, (claim.lease_ms or 0) + 1))


def released(seen: Record, owner: str, now_ms: int, window_s: int) -> Record:
    """Return a quarantined or corrupt record released by an operator.

    Its next delivery is attempt 1. What a damaged record keeps for its readers stays, and for good.
    """
    seen = seen._replace(kept=seen.kept if is_corrupt(seen) else None)
    return seen._replace(
        status=FAILED,
        owner=owner,
        attempt=0,
        lease_ms=None,
        expiry=_expiry(seen, now_ms, window_s),
        updated_ms=now_ms,
        retry_ms=None,
        dead_lettered=False,
        revision=None,
    )


def _expiry(record: Record, now_ms: int, window_s: int) -> int | None:
    """Return when a record ends that is not completed."""
    return None if record.must_outlast_its_window else now_ms // 1000 + window_s


def _claim_expiry(
    known: Record | None, request: ClaimRequest, lease_ms: int, now_ms: int
) -> int | None:
    """Return when a claim is forgotten. ``known`` is the record that it replaces.

    A claim that a crash leaves behind must be remembered while its delivery may come again: the
    attempt may have called other systems.
    """
    if request.is_undated or (known is not None and known.must_outlast_its_window):
        return None
    return max(now_ms // 1000 + request.limits.window_s, lease_ms // 1000 + TTL_BEYOND_LEASE_S)


# ── Decisions ─────────────────────────────────────────────────────────────────────────────────────


def decide(found: Record | None, request: ClaimRequest, now_ms: int) -> Step:
    """Decide on the record found under the key, which may be our own."""
    if found is None:
        return Write(None, attempt(request, now_ms))
    if found.owner == request.owner:
        return _decide_own(found, request, now_ms)
    status = found.status
    if is_forgotten(found, now_ms - request.limits.skew_ms):
        return Write(found, attempt(request, now_ms, found._replace(attempt=0, created_ms=now_ms)))
    if differ(found.fingerprint, request.fingerprint):
        return Mismatch(found)
    if status == COMPLETED:
        return Done(found)
    if status == IN_PROGRESS:
        return _decide_in_progress(found, request, now_ms)
    if status == FAILED:
        return _decide_failed(found, request, now_ms)
    if status == QUARANTINED:
        return Quarantined(found)
    if isinstance(status, UnknownStatus):
        return Corrupt(found)
    assert_never(status)


def _decide_own(found: Record, request: ClaimRequest, now_ms: int) -> Step:
    end = _ending_of(found)
    if end is not None:
        return end
    if found.lease_ms is None or is_corrupt(found):
        return Corrupt(found)
    # Less than half of the lease is left, because the answer to the claim came late: renew it. A
    # lease that follows the deadline never gets here, because a renewed one would end no later.
    if found.lease_ms + request.limits.lease_ms // 2 < lease_until(request, now_ms):
        return Write(found, renewed(found, request, now_ms))
    return Run(found)


def _decide_in_progress(found: Record, request: ClaimRequest, now_ms: int) -> Step:
    if found.lease_ms is None:
        return Corrupt(found)
    limits = request.limits
    if is_live(found, limits, now_ms) and not _is_our_delivery_again(found, request):
        return Busy(found, found.lease_ms + limits.skew_ms - now_ms + 1)
    if request.outcome is not None and request.outcome.status == COMPLETED:
        # The effects are ready, so no attempt can be wasted.
        return Write(found, attempt(request, now_ms, found))
    if limits.quarantines_crashes:
        return Write(found, quarantined(found, request, now_ms, None))
    if found.attempt >= limits.max_attempts:
        error = found.error or "every attempt ended without an answer"
        return Write(found, quarantined(found, request, now_ms, error))
    return Write(found, attempt(request, now_ms, found))


def _decide_failed(found: Record, request: ClaimRequest, now_ms: int) -> Step:
    if found.attempt >= request.limits.max_attempts:
        given_up = quarantined(found, request, now_ms, found.error)
        return Write(found, given_up)
    if found.retry_ms is not None and now_ms < found.retry_ms:
        wait_ms = found.retry_ms - now_ms
        return BackingOff(found, wait_ms)
    next_attempt = attempt(request, now_ms, found)
    return Write(found, next_attempt)


def conclude(found: Record | None, request: ClaimRequest) -> Ending:
    """Decide on the answer to our commit or failure.

    After a run, nothing may be run, failed or undone again.
    """
    if found is not None and found.status == COMPLETED:
        return Done(found)  # ours, if the answer to an earlier try was lost; otherwise the winner's
    if found is None or found.owner != request.owner:
        return None
    return _ending_of(found)


def _ending_of(own: Record) -> Ending:
    """Return how a record of our own has ended; None for a claim, and for an unknown status."""
    status = own.status
    if status == COMPLETED:
        return Done(own)
    if status == FAILED:
        return Failed(own)
    if status == QUARANTINED:
        return Quarantined(own)
    if status == IN_PROGRESS or isinstance(status, UnknownStatus):
        return None
    assert_never(status)


def is_live(record: Record, limits: Limits, now_ms: int) -> bool:
    """Return whether a claim still holds, by the slowest allowed clock.

    A lease that ends later than any lease can was written by a wrong clock, and does not count.
    """
    if record.lease_ms is None:
        return False
    end_ms = record.lease_ms + limits.skew_ms
    latest_end_ms = now_ms + LONGEST_LEASE_MS + limits.margin_ms + 2 * limits.skew_ms
    return now_ms <= end_ms <= latest_end_ms


def is_corrupt(record: Record) -> bool:
    """Return whether the record is invalid: an unknown status, or a claim without a lease."""
    if isinstance(record.status, UnknownStatus):
        return True
    return record.status == IN_PROGRESS and record.lease_ms is None


def has_crashed(record: Record, now_ms: int) -> bool:
    """Return whether a claim's lease ended without an answer.

    A minute is left for clocks that differ.
    """
    return (
        record.status == IN_PROGRESS
        and record.lease_ms is not None
        and record.lease_ms + 60_000 < now_ms
    )


def is_takeover(step: object, request: ClaimRequest) -> bool:
    """Return whether ``step`` would run a key whose earlier attempt ended without an answer."""
    return (
        isinstance(step, Write)
        and step.seen is not None
        and step.seen.status == IN_PROGRESS
        and step.seen.owner != request.owner
        and step.record.status == IN_PROGRESS
    )


def is_forgotten(record: Record, now_ms: int) -> bool:
    """Return whether the window of a record has ended, so that its key runs as if it were new.

    DynamoDB deletes the record up to two days later. A claim and a corrupt record are not
    forgotten.
    """
    if record.status not in _FORGOTTEN or record.expiry is None:
        return False
    return record.expiry * 1000 < now_ms


def is_beyond_window(sent_ms: int, end_ms: int, limits: Limits) -> bool:
    """Return whether a message's record may be deleted before the invocation ends at ``end_ms``.

    The whole invocation must fit into the window, both clocks may be wrong, and an expiry is in
    whole seconds.
    """
    return sent_ms + limits.window_s * 1000 < end_ms + 2 * limits.skew_ms + 1000


def _is_our_delivery_again(found: Record, request: ClaimRequest) -> bool:
    return (
        request.limits.same_delivery_takes_over
        and request.delivery is not None
        and found.delivery == request.delivery
        and found.region == request.region
    )
