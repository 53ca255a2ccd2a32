"""Runs one delivery under the protocol: performs each step that the decision asks for, and reports how it ended.

Deliveries share only the store, the cache and the settings: what belongs to one delivery is
immutable.
"""

import json
import os
import random
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final, NamedTuple

from carride_idempotency import dead_letters, errors, observation
from carride_idempotency.clock import Clock, epoch_ms
from carride_idempotency.concurrency import Concurrency, Threads
from carride_idempotency.dead_letters import DeadLetters
from carride_idempotency.decision import (
    BackingOff,
    Busy,
    ClaimRequest,
    Corrupt,
    Done,
    Failed,
    Limits,
    Mismatch,
    Quarantined,
    Run,
    Step,
    Write,
    attempt,
    conclude,
    decide,
    differ,
    is_beyond_window,
    is_over,
    is_takeover,
    settled,
)
from carride_idempotency.delivery import (
    POSTPONED,
    Answer,
    Delivery,
    Reports,
    completed,
    failed,
    kind_of_run,
    unrecorded,
)
from carride_idempotency.errors import describe
from carride_idempotency.handlers import finished
from carride_idempotency.observation import Observer
from carride_idempotency.operation import Operation
from carride_idempotency.policy import HEARTBEATS_PER_LEASE, TIMEOUT_COVERED_BY_LEASE_MS, Policy
from carride_idempotency.record import COMPLETED, Record, unknown_calls
from carride_idempotency.stores import Store

if TYPE_CHECKING:
    from carride_idempotency.effects import Effect

_ROUNDS: Final = 8
"""How often a delivery may find the record changed by others before it gives up."""
_LARGEST_KEPT_EVENT: Final = 100_000
_LARGEST_CACHED_RESULT: Final = 4_096
"""Larger results are not kept in memory, so that the cache stays within about a megabyte."""
_SHORTEST_POLL_MS, _LONGEST_POLL_MS = 50, 500


class Started(NamedTuple):
    """A claim that we hold, with its work still to be done."""

    delivery: Delivery
    request: ClaimRequest
    record: Record
    operation: Operation
    outcome: str
    """What to report once it is committed: New, Retried or Takeover."""


class WarmCache:
    """A bounded, least-recently-used map of COMPLETED records, whose duplicates cost no round trip."""

    def __init__(self, capacity: int, longest_ms: int) -> None:
        self._capacity = capacity
        self._longest_ms = longest_ms
        self._lock = threading.Lock()
        self._records: OrderedDict[str, tuple[int, Record]] = OrderedDict()

    def get(self, key: str, now_ms: int) -> Record | None:
        """Return the completed record of ``key`` if it is fresh."""
        with self._lock:
            kept = self._records.get(key)
            if kept is None:
                return None
            since_ms, record = kept
            if not 0 <= now_ms - since_ms <= self._longest_ms:
                del self._records[key]
                return None
            self._records.move_to_end(key)
            return record

    def keep(self, record: Record, now_ms: int) -> None:
        """Keep a record that was just found COMPLETED."""
        if not self._capacity or (
            record.result is not None and len(record.result) > _LARGEST_CACHED_RESULT
        ):
            return
        with self._lock:
            self._records[record.key] = (now_ms, record)
            self._records.move_to_end(record.key)
            if len(self._records) > self._capacity:
                self._records.popitem(last=False)


class Runner:
    """The protocol over one store, for one consumer."""

    def __init__(
        self,
        consumer: str,
        store: Store,
        policy: Policy,
        *,
        dead_letters: DeadLetters | None = None,
        observe: Observer = observation.ignore,
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
        self.reports = Reports(consumer, store, observe, dead_letters)
        self._region = region or os.environ.get("AWS_REGION")
        self._sleep = sleep
        self._jitter = jitter
        self._new_owner = new_owner
        self._cache = WarmCache(policy.warm_cache, int(policy.warm_seconds * 1000))
        self._reserve_ms = int(policy.reserve * 1000)
        self._limits = Limits(
            window_s=policy.window,
            max_attempts=policy.max_attempts,
            lease_ms=int(policy.lease * 1000),
            margin_ms=int(policy.margin * 1000),
            skew_ms=int(policy.clock_skew * 1000),
            same_delivery_takes_over=policy.same_delivery_takes_over,
            quarantines_crashes=policy.on_crash == "quarantine",
            backoff=policy.backoff,
        )

    # ── Whole deliveries ──────────────────────────────────────────────────────────────────────────

    def run(self, delivery: Delivery, work: Callable[[Operation], object]) -> Answer:
        """Run ``work`` once for the delivery's key, report how the delivery ended, and answer or raise."""
        is_atomic = self.policy.atomic and not delivery.claims
        return self.reports.observed(
            delivery, self._run_atomic if is_atomic else self._run_claimed, delivery, work
        )

    def _run_claimed(self, delivery: Delivery, work: Callable[[Operation], object]) -> Answer:
        started = self.begin(delivery)
        if isinstance(started, Answer):
            return started
        reruns_left = self.policy.conflict_reruns
        while True:
            try:
                with self.heartbeat(started):
                    value = finished(work(started.operation))
            except Exception as error:  # noqa: BLE001 - recorded, then raised with the answer
                return self.fail(
                    started, error, counted=not isinstance(error, errors.RetryableError)
                )
            try:
                return self.finish(started, value, reruns=reruns_left > 0)
            except errors.EffectConflictError:
                reruns_left -= 1
            claim, first = started.operation._claim, started.operation._first
            started = started._replace(
                operation=self._operation(claim, started.request, delivery, first=first)
            )

    def _run_atomic(self, delivery: Delivery, work: Callable[[Operation], object]) -> Answer:
        known = self._answer_without_claim(delivery)
        if known is not None:
            return known
        request = self._claim_request(delivery)
        reruns_left = self.policy.conflict_reruns
        while True:
            operation = self._operation(
                attempt(request, self.clock()), request, delivery, claimed=False
            )
            try:
                outcome = completed(finished(work(operation)), self.policy.max_result_bytes)
            except Exception as error:  # noqa: BLE001 - recorded, then raised with the answer
                return self._fail_atomic(
                    delivery, request, error, counted=not isinstance(error, errors.RetryableError)
                )
            ready = request._replace(outcome=outcome)
            try:
                step, seen = self._write(delivery, ready, delivery.deadline_ms, operation._effects)
            except errors.EffectConflictError as conflict:
                if not reruns_left or self.left_ms(delivery.deadline_ms) <= 0:
                    return self._fail_atomic(delivery, request, conflict)
            except (errors.StoreUnavailableError, errors.ContentionError):
                raise  # the commit may have taken place: the record decides at the next delivery
            except Exception as refused:  # noqa: BLE001 - nothing was written: recorded, then raised with the answer
                return self._fail_atomic(delivery, request, refused)
            else:
                return self._answer(step, seen, delivery, ready, None)
            reruns_left -= 1

    def _fail_atomic(
        self, delivery: Delivery, request: ClaimRequest, error: Exception, *, counted: bool = True
    ) -> Answer:
        """Record the failure of an atomic run; if that fails too, answer with the run's own error."""
        request = request._replace(outcome=failed(error, counted=counted))
        try:
            step, seen = self._write(delivery, request, delivery.deadline_ms)
            return self._answer(step, seen, delivery, request, error)
        except Exception as why:  # noqa: BLE001 - the work's own error must reach the caller
            return unrecorded(error, why, None)

    # ── The phases of a claimed run ───────────────────────────────────────────────────────────────

    def begin(self, delivery: Delivery) -> Started | Answer:
        """Claim the delivery's key, or answer if there is nothing to run."""
        known = self._answer_without_claim(delivery)
        if known is not None:
            return known
        request = self._claim_request(delivery)
        until_ms = None if delivery.deadline_ms is None else delivery.deadline_ms - self._reserve_ms
        step, seen = self._write(delivery, request, until_ms)
        if (
            isinstance(step, Busy)
            and self.policy.busy == "wait"
            and not self._may_acknowledge(step.record, delivery)
        ):
            step, seen = self._wait(step, delivery, request, until_ms)
        if isinstance(step, Write):
            return Answer(POSTPONED, step.seen)
        if isinstance(step, Run):
            record = step.record
            kind = kind_of_run(seen)
            operation = self._operation(record, request, delivery, first=kind == observation.NEW)
            return Started(delivery, request, record, operation, kind)
        return self._answer(step, seen, delivery, request, None)

    def heartbeat(self, started: Started) -> AbstractContextManager[object]:
        """Renew the claim for as long as the context lasts, if its lease is shorter than the work may be."""
        if not started.request.renewed:
            return nullcontext()
        return self.concurrency.repeat(
            started.operation.heartbeat, self.policy.lease / HEARTBEATS_PER_LEASE
        )

    def finish(self, started: Started, value: object, *, reruns: bool = False) -> Answer:
        """Complete the claim together with the registered effects; record a refusal as a failure.

        With ``reruns``, raise a conflict while time is left.
        """
        delivery, request, claim, operation, outcome = started
        if unknown := unknown_calls(operation._claim):
            return self.fail(started, errors.UnknownOutcomeError(delivery.key, *unknown))
        try:
            record = settled(
                claim, completed(value, self.policy.max_result_bytes), request, self.clock()
            )
            found = self._store.update_if_owner(
                record, operation._effects, until_ms=delivery.deadline_ms
            )
        except errors.StoreUnavailableError:
            raise  # the commit may have taken place: the record decides at the next delivery
        except Exception as refused:  # nothing was written: recorded, then raised with the answer
            is_conflict = isinstance(refused, errors.EffectConflictError)
            if reruns and is_conflict and self.left_ms(delivery.deadline_ms) > 0:
                raise
            return self.fail(started, refused)
        ending = conclude(found, request)
        if not isinstance(ending, Done):
            return Answer(
                observation.LOST_LEASE, claim, "taken over", errors.LostLeaseError(delivery.key)
            )
        self._cache.keep(ending.record, self.clock())
        if ending.record.owner == request.owner:
            return Answer(outcome, ending.record)
        return Answer(observation.LOST_LEASE, ending.record, "completed elsewhere")

    def fail(self, started: Started, error: Exception, *, counted: bool = True) -> Answer:
        """Record the failure of a claim; the answer has the error, unless the event needs no further delivery."""
        delivery, request = started.delivery, started.request
        claim = started.operation._claim  # with what it knows of external calls
        try:
            record = settled(claim, failed(error, counted=counted), request, self.clock())
            ending = conclude(
                self._store.update_if_owner(record, until_ms=delivery.deadline_ms), request
            )
            if isinstance(ending, Done):  # the attempt that took over has completed it
                return Answer(observation.LOST_LEASE, ending.record, describe(error))
            if isinstance(ending, Quarantined):
                return self.reports.give_up(delivery, _reason(ending.record), error, ending.record)
        except Exception as why:  # noqa: BLE001 - the work's own error must reach the caller
            return unrecorded(error, why, claim)
        return Answer(observation.FAILED, record, describe(error), error)

    # ── Steps ─────────────────────────────────────────────────────────────────────────────────────

    def _answer_without_claim(self, delivery: Delivery) -> Answer | None:
        """Answer what is too old, expired, or completed a moment ago; None means that a claim has to be made."""
        now_ms, limits = self.clock(), self._limits
        if delivery.sent_ms is not None and is_beyond_window(
            delivery.sent_ms, delivery.deadline_ms or now_ms, limits
        ):
            too_old = errors.BeyondWindowError(
                f"{delivery.key} was sent more than {limits.window_s} s ago"
            )
            if (
                delivery.deadline_ms is not None
                and limits.window_s * 1000 <= delivery.deadline_ms - now_ms
            ):
                short = f"{self.consumer}: a window of {limits.window_s} s is shorter than the invocation may last"
                raise errors.ConfigurationError(short)
            return self.reports.give_up(delivery, dead_letters.BEYOND_WINDOW, too_old, None)
        cached = self._cache.get(delivery.key, now_ms)
        if cached is not None and not is_over(cached, limits, now_ms):
            if differ(cached.fingerprint, delivery.fingerprint):
                mismatch = errors.PayloadMismatchError(delivery.key)
                return self.reports.give_up(
                    delivery, dead_letters.PAYLOAD_MISMATCH, mismatch, cached
                )
            return Answer(observation.DUPLICATE, cached, "warm")
        if self.left_ms(delivery.deadline_ms, now_ms) <= 0:
            raise errors.OutOfTimeError(
                f"less than {self.policy.reserve} s are left for {delivery.key}"
            )
        is_expired = (
            delivery.expires_ms is not None and delivery.expires_ms + limits.skew_ms < now_ms
        )
        if is_expired and self._store.read(delivery.key, until_ms=delivery.deadline_ms) is None:
            return Answer(observation.EXPIRED, None)
        return None

    def left_ms(self, deadline_ms: int | None, now_ms: int | None = None) -> int:
        """Return how much time is left for work, by default from now on. The reserve is kept for the commit."""
        return (
            sys.maxsize
            if deadline_ms is None
            else deadline_ms - self._reserve_ms - (now_ms or self.clock())
        )

    def _claim_request(self, delivery: Delivery) -> ClaimRequest:
        deadline_ms = delivery.deadline_ms
        return ClaimRequest(
            key=delivery.key,
            owner=self._new_owner(),
            fingerprint=delivery.fingerprint,
            delivery=delivery.id if delivery.comes_again else None,
            region=self._region,
            deadline_ms=deadline_ms,
            renewed=deadline_ms is None or deadline_ms - self.clock() > TIMEOUT_COVERED_BY_LEASE_MS,
            limits=self._limits,
            event=_keepable(delivery.event) if self.policy.keep_event else None,
        )

    def _write(
        self,
        delivery: Delivery,
        request: ClaimRequest,
        until_ms: int | None,
        effects: Sequence["Effect"] = (),
        found: Record | None = None,
    ) -> tuple[Step, Record | None]:
        """Perform writes, beginning with what was found, until the decision is another step.

        Return it with the record that the last write replaced; or a takeover, unperformed, if the
        delivery postpones.
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

    def _wait(
        self, step: Step, delivery: Delivery, request: ClaimRequest, until_ms: int | None
    ) -> tuple[Step, Record | None]:
        """Ask again, at growing intervals, until the key is free, its result is there, or the limit is reached."""
        seen: Record | None = None
        limit_ms = self.clock() + int(self.policy.wait_limit * 1000)
        end_ms = limit_ms if until_ms is None else min(limit_ms, until_ms)
        longest_ms = _SHORTEST_POLL_MS
        while isinstance(step, Busy):
            pause_ms = min(step.lease_left_ms, int(longest_ms * (0.5 + self._jitter() / 2)))
            longest_ms = min(2 * longest_ms, _LONGEST_POLL_MS)
            if self.clock() + pause_ms > end_ms:
                break
            self._sleep(pause_ms / 1000)
            found = self._store.read(request.key, until_ms=until_ms)
            step, seen = self._write(delivery, request, until_ms, found=found)
        return step, seen

    def _answer(
        self,
        step: Step,
        seen: Record | None,
        delivery: Delivery,
        request: ClaimRequest,
        error: Exception | None,
    ) -> Answer:
        """Answer a step that needs no run; ``error`` is what an atomic run raised."""
        why: Exception
        match step:
            case Done(record):
                self._cache.keep(record, self.clock())
                is_ours = record.owner == request.owner
                return Answer(kind_of_run(seen) if is_ours else observation.DUPLICATE, record)
            case Busy(record, lease_left_ms):
                if self._may_acknowledge(record, delivery):
                    return Answer(observation.BUSY, record)
                busy = errors.BusyError(delivery.key, lease_left_ms)
                return Answer(observation.BUSY, record, describe(busy), busy)
            case Quarantined(record):
                if record.dead_lettered and delivery.acknowledges:
                    return Answer(observation.QUARANTINED, record)
                why = error or errors.QuarantinedError(delivery.key, record.attempt, record.error)
                return self.reports.give_up(delivery, _reason(record), why, record)
            case Mismatch(record):
                why = errors.PayloadMismatchError(delivery.key)
                return self.reports.give_up(delivery, dead_letters.PAYLOAD_MISMATCH, why, record)
            case Corrupt(record):
                why = errors.CorruptRecordError(
                    f"{delivery.key} has status {record.status!r}, lease {record.lease_ms!r}"
                )
                return self.reports.give_up(delivery, dead_letters.CORRUPT_RECORD, why, record)
            case BackingOff(record, wait_ms):
                why = errors.RetryLaterError(delivery.key, wait_ms)
            case Failed(record) if error is not None:
                why = error
            case _:
                raise errors.ContentionError(
                    f"{delivery.key} met {type(step).__name__}, which cannot happen here"
                )
        return Answer(observation.FAILED, record, describe(why), why)

    def _may_acknowledge(self, holder: Record, delivery: Delivery) -> bool:
        """Return whether a busy delivery can be dropped, because the holder's delivery comes again.

        Acknowledge only the delivery with the larger id: otherwise both could be dropped.
        """
        return (
            delivery.acknowledges
            and not delivery.replayed
            and delivery.id is not None
            and holder.delivery is not None
            and holder.delivery < delivery.id
            and holder.region is not None
            and holder.region == self._region
        )

    def _operation(
        self,
        record: Record,
        request: ClaimRequest,
        delivery: Delivery,
        *,
        claimed: bool = True,
        first: bool = True,
    ) -> Operation:
        context = delivery.context
        return Operation(
            record, request, self._store, self.clock, claimed=claimed, first=first, context=context
        )


def _keepable(event: object) -> str | None:
    text = json.dumps(event, separators=(",", ":"), default=str)
    return text if len(text.encode()) <= _LARGEST_KEPT_EVENT else None


def _reason(record: Record) -> str:
    return (
        dead_letters.UNKNOWN
        if record.error is None or unknown_calls(record)
        else dead_letters.QUARANTINED
    )
