"""Runs one delivery under the protocol: performs each step that the decision asks for.

Deliveries share only the store, the cache and the settings: what belongs to one delivery is
immutable.
"""

import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final, NamedTuple

from carride_idempotency import dead_letters, errors, observation
from carride_idempotency.clock import Clock, epoch_ms
from carride_idempotency.dead_letters import DeadLetters
from carride_idempotency.errors import describe
from carride_idempotency.fingerprint import differ
from carride_idempotency.observation import Observers
from carride_idempotency.policy import HEARTBEATS_PER_LEASE, TIMEOUT_COVERED_BY_LEASE_MS, Policy
from carride_idempotency.protocol.claims import HeldClaim
from carride_idempotency.protocol.concurrency import Concurrency, Threads
from carride_idempotency.protocol.decision import (
    BackingOff,
    Busy,
    ClaimRequest,
    Corrupt,
    Done,
    Ending,
    Failed,
    Limits,
    Mismatch,
    Outcome,
    Quarantined,
    Run,
    Step,
    Write,
    attempt,
    conclude,
    decide,
    is_beyond_window,
    is_corrupt,
    is_forgotten,
    is_live,
    is_takeover,
    settled,
)
from carride_idempotency.protocol.delivery import (
    POSTPONED,
    Delivery,
    DeliveryAnswer,
    Reports,
    kind_of_run,
    unrecorded,
)
from carride_idempotency.protocol.letter_marks import LetterMarks
from carride_idempotency.protocol.operation import Operation
from carride_idempotency.protocol.outcomes import completed, failed
from carride_idempotency.protocol.unfinished import finished
from carride_idempotency.protocol.warm_cache import WarmCache
from carride_idempotency.record import COMPLETED, IN_PROGRESS, Record, unknown_calls
from carride_idempotency.stores import Store

if TYPE_CHECKING:
    from carride_idempotency.effects import Effect

_ROUNDS: Final = 8
"""How often a delivery may find the record changed by others before it gives up."""
_LARGEST_KEPT_EVENT: Final = 100_000
_SHORTEST_POLL_MS: Final = 50
_LONGEST_POLL_MS: Final = 500


class Started(NamedTuple):
    """A run that may begin: under a claim that we hold, or in atomic mode without one."""

    delivery: Delivery
    request: ClaimRequest
    record: Record
    operation: Operation
    outcome: str
    """What to report once it is committed: New, Retried or Takeover."""
    reruns_left: int
    """How often the work may run again after a conflict."""
    claimed: bool
    """False in atomic mode: the commit alone asks for the key."""
    renewed: bool
    """The work may outlast its lease, so heartbeats renew the claim."""


class Waiting(NamedTuple):
    """A key that another attempt holds. After a pause, `Runner.claim_again` asks for it again."""

    delivery: Delivery
    request: ClaimRequest
    pause_ms: int
    longest_ms: int
    """How long the next pause may be."""
    end_ms: int
    """When the wait ends."""


class Runner:
    """The protocol over one store, for one consumer."""

    def __init__(
        self,
        consumer: str,
        store: Store,
        policy: Policy,
        *,
        dead_letters: DeadLetters | None = None,
        observe: Observers = observation.ignore,
        region: str | None = None,
        clock: Clock = epoch_ms,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
        concurrency: Concurrency | None = None,
        new_owner: Callable[[], str] = lambda: os.urandom(16).hex(),
    ) -> None:
        self.consumer = consumer
        self.policy = policy
        self.clock = clock
        self.concurrency = concurrency or Threads()
        self._store = store
        self._region = region or os.environ.get("AWS_REGION")
        marks = LetterMarks(
            consumer,
            self._region,
            store,
            retention_s=policy.letter_retention,
            skew_ms=int(policy.clock_skew * 1000),
            clock=clock,
        )
        self.reports = Reports(consumer, store, observe, dead_letters, marks, clock=clock)
        self.sleep = sleep
        self._jitter = jitter
        self._new_owner = new_owner
        self._cache = WarmCache(policy.warm_cache, int(policy.warm_seconds * 1000))
        self._reserve_ms = int(policy.reserve * 1000)
        self._limits = Limits(
            window_s=policy.window_s,
            max_attempts=policy.max_attempts,
            lease_ms=int(policy.lease * 1000),
            margin_ms=int(policy.margin * 1000),
            skew_ms=int(policy.clock_skew * 1000),
            same_delivery_takes_over=policy.same_delivery_takes_over,
            quarantines_crashes=policy.on_crash == "quarantine",
            backoff=policy.backoff,
        )

    # ── Whole deliveries ──────────────────────────────────────────────────────────────────────────

    def run_delivery(
        self, delivery: Delivery, work: Callable[[Operation], object]
    ) -> DeliveryAnswer:
        """Run ``work`` once for the delivery's key, and report how the delivery ended.

        Return its answer, or raise its error.
        """
        try:
            begun = self.begin(delivery)
            while isinstance(begun, Started):
                begun = self._run(begun, work)
        except Exception as error:
            self.reports.raised(delivery, error)
            raise
        return self.reports.report(delivery, begun)

    def _run(
        self, started: Started, work: Callable[[Operation], object]
    ) -> Started | DeliveryAnswer:
        """Run ``work``, and end the run; after a conflict, return the next one."""
        try:
            if started.renewed:
                with self.heartbeat(started):
                    value = finished(work(started.operation))
            else:
                value = finished(work(started.operation))
        except Exception as error:  # noqa: BLE001 - recorded, then raised with the answer
            return self.end_failed(started, error)
        return self.end(started, value)

    def end(self, started: Started, value: object) -> Started | DeliveryAnswer:
        """End a run that returned ``value``: commit it, or start it again after a conflict."""
        if not started.claimed:
            return self._end_atomic(started, value)
        try:
            return self.finish(started, value, reruns=started.reruns_left > 0)
        except errors.EffectConflictError:
            return self._again(started)

    def end_failed(self, started: Started, error: Exception) -> DeliveryAnswer:
        """End a run that raised: record its failure."""
        open_calls = started.operation._held.end()
        if open_calls:
            return unrecorded(error, _left_open(started, open_calls), started.record)
        counted = self.uses_up_an_attempt(error)
        if started.claimed:
            return self.fail(started, error, counted=counted)
        return self._fail_atomic(started.delivery, started.request, error, counted=counted)

    def _end_atomic(self, started: Started, value: object) -> Started | DeliveryAnswer:
        delivery = started.delivery
        request = started.request
        operation = started.operation
        operation._held.end()
        try:
            _require_awaited(operation._held)
            outcome = self._completed(operation, value)
        except Exception as error:  # noqa: BLE001 - recorded, then raised with the answer
            return self.end_failed(started, error)
        ready = request._replace(outcome=outcome)
        try:
            step, seen = self._write(delivery, ready, delivery.deadline_ms, operation._effects)
        except errors.EffectConflictError as conflict:
            if not started.reruns_left or self.left_ms(delivery.deadline_ms) <= 0:
                return self._fail_atomic(delivery, request, conflict)
            return self._unclaimed(delivery, request, started.reruns_left - 1)
        except (errors.StoreUnavailableError, errors.ContentionError):
            raise  # the commit may have taken place: the record decides at the next delivery
        except Exception as refused:  # noqa: BLE001 - nothing was written: recorded, then raised
            return self._fail_atomic(delivery, request, refused)
        return self._answer(step, seen, delivery, ready, None)

    def _fail_atomic(
        self, delivery: Delivery, request: ClaimRequest, error: Exception, *, counted: bool = True
    ) -> DeliveryAnswer:
        """Record the failure of an atomic run, and answer with its error.

        The answer has the run's own error even if the failure cannot be recorded.
        """
        request = request._replace(outcome=failed(error, counted=counted))
        try:
            step, seen = self._write(delivery, request, delivery.deadline_ms)
            return self._answer(step, seen, delivery, request, error)
        except Exception as why:  # noqa: BLE001 - the work's own error must reach the caller
            return unrecorded(error, why, None)

    # ── The phases of a claimed run ───────────────────────────────────────────────────────────────

    def begin(self, delivery: Delivery) -> Started | DeliveryAnswer:
        """Claim the delivery's key, or answer if there is nothing to run; wait for it by policy."""
        begun = self.claim_key(delivery)
        while isinstance(begun, Waiting):
            self.sleep(begun.pause_ms / 1000)
            begun = self.claim_again(begun)
        return begun

    def claim_key(self, delivery: Delivery) -> Started | Waiting | DeliveryAnswer:
        """Claim the delivery's key, or say how long to wait for it, or answer."""
        known = self._answer_without_claim(delivery)
        if known is not None:
            return known
        request = self._claim_request(delivery)
        if self.policy.atomic and not delivery.claims:
            return self._unclaimed(delivery, request, self.policy.conflict_reruns)
        until_ms = self.reserve_begins_ms(delivery.deadline_ms)
        step, seen = self._write(delivery, request, until_ms)
        if isinstance(step, Busy) and self._waits(step, delivery):
            limit_ms = self.clock() + int(self.policy.wait_limit * 1000)
            end_ms = limit_ms if until_ms is None else min(limit_ms, until_ms)
            waiting = Waiting(
                delivery, request, pause_ms=0, longest_ms=_SHORTEST_POLL_MS, end_ms=end_ms
            )
            return self._wait_longer(waiting, step, seen)
        return self._begun(delivery, request, step, seen)

    def claim_again(self, waiting: Waiting) -> Started | Waiting | DeliveryAnswer:
        """Ask again for a key after a pause: it may be free, completed, or still held."""
        delivery = waiting.delivery
        request = waiting.request
        until_ms = self.reserve_begins_ms(delivery.deadline_ms)
        found = self._store.read(request.key, until_ms=until_ms)
        step, seen = self._write(delivery, request, until_ms, found=found)
        if isinstance(step, Busy):
            return self._wait_longer(waiting, step, seen)
        return self._begun(delivery, request, step, seen)

    def _wait_longer(
        self, waiting: Waiting, busy: Busy, seen: Record | None
    ) -> Started | Waiting | DeliveryAnswer:
        """Return the next pause, which may be longer than the one before; answer if time is up."""
        part = 0.5 + self._jitter() / 2
        pause_ms = min(busy.lease_left_ms, int(waiting.longest_ms * part))
        next_look_ms = self.clock() + pause_ms
        if next_look_ms > waiting.end_ms:
            return self._begun(waiting.delivery, waiting.request, busy, seen)
        longest_ms = min(2 * waiting.longest_ms, _LONGEST_POLL_MS)
        return waiting._replace(pause_ms=pause_ms, longest_ms=longest_ms)

    def _begun(
        self, delivery: Delivery, request: ClaimRequest, step: Step, seen: Record | None
    ) -> Started | DeliveryAnswer:
        if isinstance(step, Write):
            return DeliveryAnswer(POSTPONED, step.seen)
        if not isinstance(step, Run):
            return self._answer(step, seen, delivery, request, None)
        kind = kind_of_run(seen)
        first = kind == observation.NEW
        return Started(
            delivery,
            request,
            step.record,
            self._operation(step.record, request, delivery, claimed=True, first=first),
            outcome=kind,
            reruns_left=self.policy.conflict_reruns,
            claimed=True,
            renewed=request.renewed,
        )

    def _unclaimed(self, delivery: Delivery, request: ClaimRequest, reruns_left: int) -> Started:
        """Return a run in atomic mode, which makes no claim."""
        unclaimed = attempt(request, self.clock())
        return Started(
            delivery,
            request,
            unclaimed,
            self._operation(unclaimed, request, delivery, claimed=False, first=True),
            outcome=observation.NEW,
            reruns_left=reruns_left,
            claimed=False,
            renewed=False,
        )

    def crashed(self, delivery: Delivery) -> Record | None:
        """Return the claim of an earlier attempt that crashed, if there is one; write nothing."""
        found = self._store.read(delivery.key, until_ms=delivery.deadline_ms)
        if found is None or found.status != IN_PROGRESS or is_corrupt(found):
            return None
        return None if is_live(found, self._limits, self.clock()) else found

    def heartbeat(self, started: Started) -> AbstractContextManager[object]:
        """Renew the claim while the context lasts, if the work may outlast its lease."""
        if not started.renewed:
            return nullcontext()
        interval_s = self.policy.lease / HEARTBEATS_PER_LEASE
        return self.concurrency.repeat(started.operation._held.renew, interval_s)

    def finish(self, started: Started, value: object, *, reruns: bool = False) -> DeliveryAnswer:
        """Complete the claim together with the registered effects; record a refusal as a failure.

        With ``reruns``, raise a conflict while time is left: the work runs again.
        """
        delivery = started.delivery
        operation = started.operation
        held = operation._held
        open_calls = held.end()
        if open_calls:
            why = _left_open(started, open_calls)
            return DeliveryAnswer(observation.FAILED, started.record, describe(why), why)
        unknown = unknown_calls(held.record)
        if unknown:
            return self.fail(started, errors.UnknownOutcomeError(delivery.key, *unknown))
        try:
            _require_awaited(held)
            outcome = self._completed(operation, value)
            record = settled(started.record, outcome, started.request, self.clock())
            found = self._store.update_if_owner(
                record, operation._effects, until_ms=delivery.deadline_ms
            )
        except errors.StoreUnavailableError:
            raise  # the commit may have taken place: the record decides at the next delivery
        except errors.EffectConflictError as conflict:
            if reruns and self.left_ms(delivery.deadline_ms) > 0:
                raise
            return self.fail(started, conflict)
        except Exception as refused:  # noqa: BLE001 - nothing was written: recorded, then raised
            return self.fail(started, refused)
        return self._finished(started, conclude(found, started.request))

    def _completed(self, operation: Operation, value: object) -> Outcome:
        """Return the outcome of a run, without a result that does not fit beside what is kept."""
        most_bytes = self.policy.max_result_bytes
        effects = operation._effects
        if value is None or not effects:
            return completed(value, most_bytes)
        from carride_idempotency.effects import room_for_result

        record = operation._held.record
        return completed(value, room_for_result(record, effects, most_bytes, self._store))

    def _finished(self, started: Started, ending: Ending) -> DeliveryAnswer:
        """Answer a run whose commit was answered with ``ending``."""
        if not isinstance(ending, Done):
            lost = errors.LostLeaseError(started.delivery.key)
            return DeliveryAnswer(observation.LOST_LEASE, started.record, "taken over", lost)
        if ending.record.owner == started.request.owner:
            return self._committed(started.delivery, ending.record, started.outcome)
        return DeliveryAnswer(observation.LOST_LEASE, ending.record, "completed elsewhere")

    def fail(self, started: Started, error: Exception, *, counted: bool = True) -> DeliveryAnswer:
        """Record the failure of a claim.

        The answer has the error, unless the event needs no further delivery.
        """
        delivery = started.delivery
        request = started.request
        claim = started.operation._held.record  # with what it knows of external calls
        try:
            record = settled(claim, failed(error, counted=counted), request, self.clock())
            found = self._store.update_if_owner(record, until_ms=delivery.deadline_ms)
            ending = conclude(found, request)
            if isinstance(ending, Done):  # the attempt that took over has completed it
                return DeliveryAnswer(observation.LOST_LEASE, ending.record, describe(error))
            if isinstance(ending, Quarantined):
                return self.reports.give_up(delivery, _reason(ending.record), error, ending.record)
        except Exception as why:  # noqa: BLE001 - the work's own error must reach the caller
            return unrecorded(error, why, claim)
        return DeliveryAnswer(observation.FAILED, record, describe(error), error)

    def _again(self, started: Started) -> Started:
        """Return the claim for another run of the handler, with what it knows of external calls."""
        held = started.operation._held
        operation = self._operation(
            held.record, started.request, started.delivery, claimed=True, first=held.is_first
        )
        return started._replace(operation=operation, reruns_left=started.reruns_left - 1)

    # ── Steps ─────────────────────────────────────────────────────────────────────────────────────

    def _answer_without_claim(self, delivery: Delivery) -> DeliveryAnswer | None:
        """Answer what is too old, expired, or completed a moment ago; None asks for a claim."""
        now_ms = self.clock()
        if self._is_too_old(delivery, now_ms):
            error = errors.BeyondWindowError(
                f"{delivery.key} was sent more than {self._limits.window_s} s ago"
            )
            return self.reports.give_up(delivery, dead_letters.BEYOND_WINDOW, error, None)
        warm = self._completed_here(delivery, now_ms)
        if warm is not None:
            return DeliveryAnswer(observation.DUPLICATE, warm, "warm")
        if self.left_ms(delivery.deadline_ms, now_ms) <= 0:
            raise errors.OutOfTimeError(
                f"less than {self.policy.reserve} s are left for {delivery.key}"
            )
        if self._has_expired(delivery, now_ms):
            return DeliveryAnswer(observation.EXPIRED, None)
        return None

    def _is_too_old(self, delivery: Delivery, now_ms: int) -> bool:
        """Return whether the event's window may end before the invocation does.

        Raises:
            ConfigurationError: the window is shorter than an invocation may last.
        """
        if delivery.sent_ms is None:
            return False
        end_ms = delivery.deadline_ms or now_ms
        if not is_beyond_window(delivery.sent_ms, end_ms, self._limits):
            return False
        if self._limits.window_s * 1000 <= end_ms - now_ms:
            raise errors.ConfigurationError(
                f"{self.consumer}: a window of {self._limits.window_s} s is shorter than the "
                "invocation may last: set a longer Policy.window, or a shorter timeout"
            )
        return True

    def _completed_here(self, delivery: Delivery, now_ms: int) -> Record | None:
        """Return the record that this very delivery completed in this process a moment ago."""
        if delivery.id is None or not delivery.remembered:
            return None
        record = self._cache.get(delivery.key, delivery.id, now_ms)
        if record is None or is_forgotten(record, now_ms - self._limits.skew_ms):
            return None
        if differ(record.fingerprint, delivery.fingerprint):
            return None
        return record

    def _committed(self, delivery: Delivery, record: Record, outcome: str) -> DeliveryAnswer:
        """Answer a delivery that was committed, and remember it."""
        if delivery.id is not None and delivery.remembered:
            self._cache.keep(record, delivery.id, self.clock())
        return DeliveryAnswer(outcome, record)

    def _has_expired(self, delivery: Delivery, now_ms: int) -> bool:
        """Return whether the event is past its expiry time, and no attempt at it has begun."""
        if delivery.expires_ms is None or delivery.expires_ms + self._limits.skew_ms >= now_ms:
            return False
        return self._store.read(delivery.key, until_ms=delivery.deadline_ms) is None

    def reserve_begins_ms(self, deadline_ms: int | None) -> int | None:
        """Return when the reserve before a deadline begins; None without a deadline."""
        return None if deadline_ms is None else deadline_ms - self._reserve_ms

    def left_ms(self, deadline_ms: int | None, now_ms: int | None = None) -> int:
        """Return how much time is left for work, without the reserve for the commit.

        ``now_ms`` is by default what the clock says.
        """
        if deadline_ms is None:
            return sys.maxsize
        return deadline_ms - self._reserve_ms - (now_ms or self.clock())

    def _claim_request(self, delivery: Delivery) -> ClaimRequest:
        deadline_ms = delivery.deadline_ms
        return ClaimRequest(
            key=delivery.key,
            owner=self._new_owner(),
            fingerprint=delivery.fingerprint,
            delivery=delivery.id if delivery.comes_again else None,
            region=self._region,
            deadline_ms=deadline_ms,
            renewed=self._needs_heartbeats(deadline_ms),
            limits=self._limits,
            event=_keepable(delivery.event) if self.policy.keep_event else None,
            is_undated=delivery.sent_ms is None,
            quarantine_ends=delivery.repeats,
        )

    def _needs_heartbeats(self, deadline_ms: int | None) -> bool:
        if deadline_ms is None:
            return True
        return deadline_ms - self.clock() > TIMEOUT_COVERED_BY_LEASE_MS

    def _write(
        self,
        delivery: Delivery,
        request: ClaimRequest,
        until_ms: int | None,
        effects: Sequence["Effect"] = (),
        found: Record | None = None,
    ) -> tuple[Step, Record | None]:
        """Decide on what was found, and perform the decision while it is a write.

        Return the first decision that is not a write, and the record that the last write replaced.
        If the delivery postpones takeovers, a takeover is returned, and not performed.
        """
        seen: Record | None = None
        for _ in range(_ROUNDS):
            step = decide(found, request, self.clock())
            if not isinstance(step, Write) or (delivery.postpones and is_takeover(step, request)):
                return step, seen
            seen, record = step
            joined = effects if record.status == COMPLETED else ()
            if seen is None:
                found = self._store.put_if_absent(record, joined, until_ms=until_ms)
            else:
                found = self._store.compare_and_swap(seen, record, joined, until_ms=until_ms)
        raise errors.ContentionError(
            f"{request.key} was changed by others in each of {_ROUNDS} rounds"
        )

    def _waits(self, busy: Busy, delivery: Delivery) -> bool:
        return self.policy.busy == "wait" and not self._may_acknowledge(busy.record, delivery)

    def _answer(
        self,
        step: Step,
        seen: Record | None,
        delivery: Delivery,
        request: ClaimRequest,
        error: Exception | None,
    ) -> DeliveryAnswer:
        """Answer a step that needs no run; ``error`` is what an atomic run raised."""
        key = delivery.key
        why: Exception
        match step:
            case Done(record):
                if record.owner == request.owner:
                    return self._committed(delivery, record, kind_of_run(seen))
                return DeliveryAnswer(observation.DUPLICATE, record)
            case Busy():
                return self._answer_busy(step, delivery)
            case Quarantined(record):
                why = error or errors.QuarantinedError(key, record.attempt, record.error)
                return self.reports.give_up(delivery, _reason(record), why, record)
            case Mismatch(record):
                why = errors.PayloadMismatchError(key)
                return self.reports.give_up(delivery, dead_letters.PAYLOAD_MISMATCH, why, record)
            case Corrupt(record):
                stored = f"status {str(record.status)!r}, lease {record.lease_ms!r}"
                why = errors.CorruptRecordError(f"{key} has {stored}")
                return self.reports.give_up(delivery, dead_letters.CORRUPT_RECORD, why, record)
            case BackingOff(record, wait_ms):
                why = errors.RetryLaterError(key, wait_ms)
                return DeliveryAnswer(observation.FAILED, record, describe(why), why)
            case Failed(record) if error is not None:
                return DeliveryAnswer(observation.FAILED, record, describe(error), error)
        raise errors.ContentionError(f"{key} met {type(step).__name__}, which cannot happen here")

    def _answer_busy(self, busy: Busy, delivery: Delivery) -> DeliveryAnswer:
        if self._may_acknowledge(busy.record, delivery):
            return DeliveryAnswer(observation.BUSY, busy.record)
        error = errors.BusyError(delivery.key, busy.lease_left_ms)
        return DeliveryAnswer(observation.BUSY, busy.record, describe(error), error)

    def _may_acknowledge(self, holder: Record, delivery: Delivery) -> bool:
        """Return whether a busy delivery can be dropped, because the holder's delivery comes again.

        Acknowledge only the delivery with the larger id: otherwise both could be dropped. A holder
        on its last attempt may have no delivery left.
        """
        return (
            delivery.acknowledges
            and not delivery.replayed
            and delivery.id is not None
            and holder.delivery is not None
            and holder.delivery < delivery.id
            and holder.region is not None
            and holder.region == self._region
            and holder.attempt < self._limits.max_attempts
        )

    def uses_up_an_attempt(self, error: Exception) -> bool:
        """Return whether a failure may be the message's fault, and not that of a service."""
        return not isinstance(error, (errors.RetryableError, *self.policy.outages))

    def _operation(
        self,
        record: Record,
        request: ClaimRequest,
        delivery: Delivery,
        *,
        claimed: bool,
        first: bool,
    ) -> Operation:
        held = HeldClaim(record, request, self._store, self.clock, claimed=claimed, first=first)
        return Operation(held, self._store, delivery.context, delivery.message)


def _left_open(started: Started, open_calls: Sequence[str]) -> errors.UnfinishedWorkError:
    """Return the error of a run that ends while threads of its own make external calls.

    Its claim stays as it is: until the lease ends, no other attempt makes these calls.
    """
    return errors.UnfinishedWorkError(
        f"{started.delivery.key}: external calls are under way in threads or tasks that the "
        f"handler has not waited for: {', '.join(open_calls)}. No other attempt runs before the "
        "lease ends. Wait for them before the handler returns, or inside the `with` block"
    )


def _require_awaited(held: HeldClaim) -> None:
    """Require that a run has awaited each external call that it has asked for.

    Raises:
        UnfinishedWorkError: it has not.
    """
    if held.promised_calls:
        names = ", ".join(sorted(held.promised_calls))
        raise errors.UnfinishedWorkError(
            f"{held.record.key}: external calls were not awaited, and not made: {names}. Write "
            "`await operation.external(...)`"
        )


def _keepable(event: object) -> str | None:
    text = json.dumps(event, separators=(",", ":"), default=str)
    return text if len(text.encode()) <= _LARGEST_KEPT_EVENT else None


def _reason(record: Record) -> str:
    """Return the dead letter's code for a quarantined record."""
    if record.error is None or unknown_calls(record):
        return dead_letters.UNKNOWN
    return dead_letters.QUARANTINED
