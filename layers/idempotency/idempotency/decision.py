"""What to do next about one key: pure functions of the record in the way, the claimant and the time.

No I/O, no clock, no randomness: whoever drives them (a consumer, or the explorer in the tests) performs the returned
step and asks again with what it found. The life of a claim, and the conditions that speak of it::

      claim               now              lease_ms      + skew            expiry       + skew
    ────┼──────────────────┼──────────────────┼─────────────┼──── … ─────────┼─────────────┼──────▶ time
        │◀──────────────── live: nobody else runs ────────▶ │ may be taken over
        │◀─────────────────────────── remembered ───────────────────────────────────────▶ │ over: forgotten

The order in which a record is judged: our own token → window over → fingerprint → status.
"""

from collections.abc import Callable
from typing import NamedTuple

from idempotency.policy import no_backoff
from idempotency.record import COMPLETED, FAILED, IN_PROGRESS, QUARANTINED, STATUSES, Record

LONGEST_LEASE_MS = 900_000
"""A Lambda invocation lasts 15 minutes at most, and so does a policy's lease."""

TTL_BEYOND_LEASE_S = 3600
"""The TTL of a live claim ends an hour after its lease, so that DynamoDB never deletes a claim that still holds."""


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
    """What an atomic run has ready before it asks: its result, or its error."""

    status: str
    result: str | None = None
    error: str | None = None
    """Why it failed; or, for a completed run, why its result is not there."""
    permanent: bool = False
    counted: bool = True
    """Whether a failure uses up an attempt."""


class ClaimRequest(NamedTuple):
    """One delivery's wish to have one operation done."""

    key: str
    owner: str
    fingerprint: str | None
    delivery: str | None
    region: str | None
    deadline_ms: int | None
    """When the invocation is stopped; ``None`` outside Lambda."""
    renewed: bool
    """Heartbeats renew the lease, so that it is short and follows the clock instead of the deadline."""
    limits: Limits
    outcome: Outcome | None = None
    """Set in atomic mode, where the run comes first and a claim is never written."""
    event: str | None = None
    """The raw event, kept with a failure."""


# ── Steps ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Write(NamedTuple):
    """Write ``record`` if the key is absent (``seen`` is None) or still as ``seen``; then decide on what is there."""

    seen: Record | None
    record: Record


class _Judged(NamedTuple):
    """A step that holds the record which was judged, and nothing else."""

    record: Record


class Run(_Judged):
    """The claim is ours: run the handler."""

    __slots__ = ()


class Done(_Judged):
    """The operation is complete: answer with its stored result."""

    __slots__ = ()


class Failed(_Judged):
    """Our own failure is recorded: raise the error."""

    __slots__ = ()


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

    __slots__ = ()


class Quarantined(_Judged):
    """The key is quarantined: hand the event to the dead-letter queue unless that was done, and never run it."""

    __slots__ = ()


class Corrupt(_Judged):
    """The record makes no sense: touch nothing."""

    __slots__ = ()


class Lost(NamedTuple):
    """Our claim was taken from us and its new holder has not completed; ``record`` is None where it is gone."""

    record: Record | None


type Step = Write | Run | Done | Failed | Busy | BackingOff | Mismatch | Quarantined | Corrupt
type Ending = Done | Failed | Quarantined | Lost


# ── Records ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def lease_until(me: ClaimRequest, now_ms: int) -> int:
    """Until when a claim or heartbeat made now holds: never longer than the invocation can last, plus the margin."""
    limits = me.limits
    if me.deadline_ms is None:
        return now_ms + limits.lease_ms
    end = me.deadline_ms + limits.margin_ms
    return min(now_ms + limits.lease_ms, end) if me.renewed else end


def attempt(me: ClaimRequest, now_ms: int, seen: Record | None = None) -> Record:
    """The record that this claimant's next attempt writes: a claim, or in atomic mode the finished outcome."""
    number = 1 if seen is None else seen.attempt + 1
    created_ms = now_ms if seen is None else seen.created_ms
    outcome = me.outcome
    if outcome is None:
        lease_ms = lease_until(me, now_ms)
        return Record(
            me.key,
            IN_PROGRESS,
            me.owner,
            number,
            lease_ms,
            _claim_expiry(me, lease_ms, now_ms),
            me.fingerprint,
            me.delivery,
            me.region,
            created_ms,
            now_ms,
        )
    draft = Record(
        me.key,
        IN_PROGRESS,
        me.owner,
        number,
        None,
        None,
        me.fingerprint,
        me.delivery,
        me.region,
        created_ms,
        now_ms,
    )
    return settled(draft, outcome, me, now_ms)


def settled(claim: Record, outcome: Outcome, me: ClaimRequest, now_ms: int) -> Record:
    """The record that ends ``claim`` with ``outcome``: COMPLETED, FAILED, or QUARANTINED when no attempt is left."""
    limits = me.limits
    if outcome.status == COMPLETED:
        return Record(
            key=claim.key,
            status=COMPLETED,
            owner=claim.owner,
            attempt=claim.attempt,
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
    if outcome.permanent or (outcome.counted and claim.attempt >= limits.max_attempts):
        return quarantined(claim, me, now_ms, outcome.error)
    wait_s = limits.backoff(claim.attempt)
    return claim._replace(
        status=FAILED,
        attempt=claim.attempt if outcome.counted else claim.attempt - 1,
        lease_ms=None,
        expiry=now_ms // 1000 + limits.window_s,
        updated_ms=now_ms,
        error=outcome.error,
        retry_ms=now_ms + int(wait_s * 1000) if wait_s > 0 else None,
        event=me.event,
    )


def quarantined(seen: Record, me: ClaimRequest, now_ms: int, error: str | None) -> Record:
    """``seen`` made poison: it keeps its attempt and has no expiry. Without an ``error`` its outcome is unknown.

    The token that another's record gets is no claim's: a mark that comes late, after an operator's release, cannot fall
    on what this delivery writes under its own token then.
    """
    return seen._replace(
        status=QUARANTINED,
        owner=me.owner if seen.owner == me.owner else f"{me.owner}/{now_ms}",
        lease_ms=None,
        expiry=None,
        updated_ms=now_ms,
        error=error,
        retry_ms=None,
        dead_lettered=False,
        event=me.event,
    )


def renewed(claim: Record, me: ClaimRequest, now_ms: int) -> Record:
    """``claim`` with its lease and TTL moved on: what a heartbeat writes."""
    lease_ms = lease_until(me, now_ms)
    return claim._replace(lease_ms=lease_ms, expiry=_claim_expiry(me, lease_ms, now_ms), updated_ms=now_ms)


def released(seen: Record, owner: str, now_ms: int, window_s: int) -> Record:
    """``seen``, a quarantined or corrupt record, as an operator gives it back: its next delivery is attempt 1."""
    return seen._replace(
        status=FAILED,
        owner=owner,
        attempt=0,
        lease_ms=None,
        expiry=now_ms // 1000 + window_s,
        updated_ms=now_ms,
        retry_ms=None,
        dead_lettered=False,
    )


def _claim_expiry(me: ClaimRequest, lease_ms: int, now_ms: int) -> int:
    return max(now_ms // 1000 + me.limits.window_s, lease_ms // 1000 + TTL_BEYOND_LEASE_S)


# ── Decisions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def decide(found: Record, me: ClaimRequest, now_ms: int) -> Step:
    """Judge the record found under our key, which may be the one that we have just written."""
    if found.owner == me.owner:
        return _decide_own(found, me, now_ms)
    status = found.status
    if status in (COMPLETED, FAILED) and is_over(found, me.limits, now_ms):
        return Write(found, attempt(me, now_ms, found._replace(attempt=0, created_ms=now_ms)))
    if differ(found.fingerprint, me.fingerprint):
        return Mismatch(found)
    if status == COMPLETED:
        return Done(found)
    if status == IN_PROGRESS:
        return _decide_in_progress(found, me, now_ms)
    if status == FAILED:
        return _decide_failed(found, me, now_ms)
    if status == QUARANTINED:
        return Quarantined(found)
    return Corrupt(found)


def _decide_own(found: Record, me: ClaimRequest, now_ms: int) -> Step:
    status = found.status
    if status == IN_PROGRESS:
        if found.lease_ms is None:
            return Corrupt(found)
        # An answer that came late left less of the lease than a claim is worth. Under a deadline nothing is missing,
        # because the lease ends with the invocation whenever it was written.
        if found.lease_ms + me.limits.lease_ms // 2 < lease_until(me, now_ms):
            return Write(found, renewed(found, me, now_ms))
        return Run(found)
    if status == COMPLETED:
        return Done(found)
    if status == FAILED:
        return Failed(found)
    if status == QUARANTINED:
        return Quarantined(found)
    return Corrupt(found)


def _decide_in_progress(found: Record, me: ClaimRequest, now_ms: int) -> Step:
    if found.lease_ms is None:
        return Corrupt(found)
    limits = me.limits
    if is_live(found, limits, now_ms) and not _is_our_delivery_again(found, me):
        return Busy(found, found.lease_ms + limits.skew_ms - now_ms + 1)
    if me.outcome is not None and me.outcome.status == COMPLETED:
        return Write(found, attempt(me, now_ms, found))  # the effects are ready, so no attempt can be wasted
    if limits.quarantines_crashes:
        return Write(found, quarantined(found, me, now_ms, None))
    if found.attempt >= limits.max_attempts:
        return Write(found, quarantined(found, me, now_ms, found.error or "no attempt lived to give an answer"))
    return Write(found, attempt(me, now_ms, found))


def _decide_failed(found: Record, me: ClaimRequest, now_ms: int) -> Step:
    if found.attempt >= me.limits.max_attempts:
        return Write(found, quarantined(found, me, now_ms, found.error))
    if found.retry_ms is not None and now_ms < found.retry_ms:
        return BackingOff(found, found.retry_ms - now_ms)
    return Write(found, attempt(me, now_ms, found))


def conclude(found: Record | None, me: ClaimRequest) -> Ending:
    """Judge what refused our commit, failure or heartbeat: after a run nothing may be run, failed or undone again."""
    if found is None:
        return Lost(None)
    if found.status == COMPLETED:
        return Done(found)  # ours, where the answer to an earlier try was lost; or the committed result of whoever won
    if found.owner != me.owner:
        return Lost(found)
    if found.status == FAILED:
        return Failed(found)
    if found.status == QUARANTINED:
        return Quarantined(found)
    return Lost(found)


def is_live(record: Record, limits: Limits, now_ms: int) -> bool:
    """Whether a claim still holds, by the slowest clock that is allowed.

    A lease that ends later than any lease can was written by a clock that is wrong, and is not believed: a clock that
    runs a day ahead would otherwise hold its keys for a day.
    """
    if record.lease_ms is None:
        return False
    return (
        now_ms <= record.lease_ms + limits.skew_ms <= now_ms + LONGEST_LEASE_MS + limits.margin_ms + 2 * limits.skew_ms
    )


def is_corrupt(record: Record) -> bool:
    """Whether the record makes no sense: an unknown status, or a claim without a lease."""
    return record.status not in STATUSES or (record.status == IN_PROGRESS and record.lease_ms is None)


def is_takeover(step: object, me: ClaimRequest) -> bool:
    """Whether ``step`` would run a key of which an earlier attempt ended without an answer."""
    return (
        isinstance(step, Write)
        and step.seen is not None
        and step.seen.status == IN_PROGRESS
        and step.seen.owner != me.owner
        and step.record.status == IN_PROGRESS
    )


def is_over(record: Record, limits: Limits, now_ms: int) -> bool:
    """Whether the window has ended, though DynamoDB has not deleted the record yet: that takes it up to two days."""
    return record.expiry is not None and record.expiry * 1000 + limits.skew_ms < now_ms


def is_beyond_window(sent_ms: int, end_ms: int, limits: Limits) -> bool:
    """Whether the record of something sent then may be forgotten before an invocation is over that ends at ``end_ms``.

    The whole invocation has to fit, since it can be slow; both clocks may be wrong; and an expiry is in whole seconds.
    """
    return sent_ms + limits.window_s * 1000 < end_ms + 2 * limits.skew_ms + 1000


def differ(stored: str | None, ours: str | None) -> bool:
    """Whether two fingerprints speak of different payloads; those of different versions cannot be compared."""
    if stored is None or ours is None or stored == ours:
        return False
    return stored.partition(":")[0] == ours.partition(":")[0]


def _is_our_delivery_again(found: Record, me: ClaimRequest) -> bool:
    return (
        me.limits.same_delivery_takes_over
        and me.delivery is not None
        and found.delivery == me.delivery
        and found.region == me.region
    )
