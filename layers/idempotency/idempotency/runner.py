"""Drives one delivery through the protocol: performs each step that the decision asks for, and tells what became of it.

Nothing here is shared between deliveries but the store, the cache and the settings: what belongs to one delivery
travels in an immutable `Delivery`, `ClaimRequest` and `Started`.
"""

import json
import os
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from idempotency import dead_letters, observation
from idempotency.clock import Clock, epoch_ms
from idempotency.concurrency import Concurrency, Threads
from idempotency.dead_letters import DeadLetter, DeadLetters
from idempotency.decision import (
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
    differ,
    is_beyond_window,
    is_over,
    is_takeover,
    renewed,
    settled,
)
from idempotency.errors import (
    BeyondWindowError,
    BusyError,
    ConfigurationError,
    ContentionError,
    CorruptRecordError,
    EffectConflictError,
    LostLeaseError,
    OutOfTimeError,
    PayloadMismatchError,
    PermanentError,
    QuarantinedError,
    ResultOmittedError,
    RetryableError,
    RetryLaterError,
    StoreUnavailableError,
    describe,
)
from idempotency.handlers import finished
from idempotency.local_cache import WarmCache
from idempotency.observation import Observation, Observer
from idempotency.operation import Operation
from idempotency.policy import HEARTBEATS_PER_LEASE, TIMEOUT_COVERED_BY_LEASE_MS, Policy
from idempotency.record import COMPLETED, FAILED, IN_PROGRESS, Record
from idempotency.stores import Store

if TYPE_CHECKING:
    from idempotency.effects import Effect

POSTPONED: Final = "Postponed"
"""The outcome of a delivery that is run later in the same invocation. It is not observed."""
_ROUNDS: Final = 8
"""How often a delivery may find the record changed under its hands before it gives up."""
_NO_RESULT: Final = "null"
"""How the codec writes None."""
_LARGEST_KEPT_EVENT: Final = 100_000
_SHORTEST_POLL_MS: Final = 50
_LONGEST_POLL_MS: Final = 500


class Delivery(NamedTuple):
    """What the protocol must know of one delivery."""

    key: str
    fingerprint: str | None
    id: str | None
    """The transport's own id, by which a retry of the same delivery is known."""
    deadline_ms: int | None
    acknowledges: bool
    """The caller is a transport that delivers again what raises, and forgets what does not."""
    comes_again: bool = False
    """The transport is known to deliver this again unless it is acknowledged: no synchronous caller is."""
    postpones: bool = False
    """A key whose earlier attempt crashed is not run: it is answered with POSTPONED, and nothing is written."""
    claims: bool = False
    """It is claimed although the policy is atomic, so that a crash is seen in the record."""
    protected: bool = True
    """It has an idempotency key; otherwise it runs under a key that no other delivery has."""
    context: Any = None
    replayed: bool = False
    sent_ms: int | None = None
    expires_ms: int | None = None
    event: object = None
    labels: Mapping[str, str] = observation.NO_LABELS
    """For the observer: the protocol takes no notice of them."""


class Answer(NamedTuple):
    """How a delivery ended."""

    outcome: str
    record: Record | None
    reason: str | None = None
    error: Exception | None = None
    """What the caller is to be told by an exception; None where the delivery can be acknowledged."""

    def value(self) -> Any:
        """Return the result of the committed run.

        Raises:
            ResultOmittedError: the run was committed without its value.
        """
        if self.record is None or self.record.status != COMPLETED:
            return None
        if self.record.result is None:
            raise ResultOmittedError(self.record.key, self.record.error)
        if self.record.result == _NO_RESULT:
            return None
        from idempotency import codec  # noqa: PLC0415 - who returns nothing does not pay for it

        return codec.decode(self.record.result)


class Started(NamedTuple):
    """A claim that is ours, with its work still to be done."""

    delivery: Delivery
    me: ClaimRequest
    record: Record
    operation: Operation
    outcome: str
    """What to call it once it is committed: New, Retried or Takeover."""


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
        self._store = store
        self._dead_letters = dead_letters
        self._observe = observe
        self._region = region or os.environ.get("AWS_REGION")
        self._sleep = sleep
        self._jitter = jitter
        self.concurrency = concurrency or Threads()
        self.new_owner = new_owner
        self._warm = WarmCache(policy.warm_cache, int(policy.warm_seconds * 1000))
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

    # ── The whole of one delivery ─────────────────────────────────────────────────────────────────────────────────────

    def run(self, delivery: Delivery, work: Callable[[Operation], object]) -> Answer:
        """Have ``work`` done once for the delivery's key, and answer with what became of it.

        Raises:
            RetryableError: not now; a later delivery may succeed.
            PermanentError: never, and no dead-letter queue has taken the event.
            Exception: what ``work`` raised.
        """
        run = self._run_atomic if self.policy.atomic and not delivery.claims else self._run_claimed
        return self.told(delivery, run, delivery, work)

    def told[**P, T: Answer | Started](
        self, delivery: Delivery, phase: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Observe how a delivery ended, if this phase ended it, and raise where that is what its caller is to know."""
        try:
            end = phase(*args, **kwargs)
        except Exception as error:
            self._tell(delivery, Answer(observation.FAILED, None, describe(error)))
            raise
        if isinstance(end, Answer) and end.outcome != POSTPONED:
            self._tell(delivery, end)
            if end.error is not None:
                raise end.error
        return end

    def _tell(self, delivery: Delivery, answer: Answer) -> None:
        if self._observe is observation.ignore:
            return
        number = 0 if answer.record is None else answer.record.attempt
        outcome = answer.outcome
        if not delivery.protected and outcome in observation.COMMITTED:
            outcome = observation.UNPROTECTED
        self._observe(
            Observation(self.consumer, outcome, delivery.key, number, delivery.id, answer.reason, delivery.labels)
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
            except Exception as error:  # noqa: BLE001 - recorded, and raised again when it is told
                return self.fail(started, error, counted=not isinstance(error, RetryableError))
            try:
                return self.commit(started, value)
            except EffectConflictError as conflict:
                if not reruns_left or not self.has_time(delivery.deadline_ms):
                    return self.fail(started, conflict)
            except StoreUnavailableError:
                raise  # whether it was committed is unknown, so the record must decide
            except Exception as refused:  # noqa: BLE001 - nothing was written: recorded, and raised again as above
                return self.fail(started, refused)
            reruns_left -= 1
            started = started._replace(operation=self._operation(started.record, started.me, delivery))

    def _run_atomic(self, delivery: Delivery, work: Callable[[Operation], object]) -> Answer:
        known = self._known(delivery)
        if known is not None:
            return known
        me = self._claimant(delivery)
        reruns_left = self.policy.conflict_reruns
        while True:
            operation = self._operation(attempt(me, self.clock()), me, delivery, claimed=False)
            try:
                outcome = self._completed(finished(work(operation)))
            except Exception as error:  # noqa: BLE001 - recorded, and raised again when the record has been judged
                return self._finish_failed(delivery, me, error, counted=not isinstance(error, RetryableError))
            ready = me._replace(outcome=outcome)
            effects = operation._effects  # noqa: SLF001 - the runner is the operation's maker
            try:
                step, seen = self._drive(
                    Write(None, attempt(ready, self.clock())), ready, delivery.deadline_ms, effects
                )
            except EffectConflictError as conflict:
                if not reruns_left or not self.has_time(delivery.deadline_ms):
                    return self._finish_failed(delivery, me, conflict)
            except (StoreUnavailableError, ContentionError):
                raise  # whether it was committed is unknown, so the record must decide
            except Exception as refused:  # noqa: BLE001 - nothing was written: recorded, and raised again as above
                return self._finish_failed(delivery, me, refused)
            else:
                return self._answer(step, seen, delivery, ready, None)
            reruns_left -= 1

    def _finish_failed(self, delivery: Delivery, me: ClaimRequest, error: Exception, *, counted: bool = True) -> Answer:
        """Record the failure of an atomic run; where that fails too, the run's own error is the one that is raised."""
        me = me._replace(outcome=_failed(error, counted=counted))
        try:
            step, seen = self._drive(Write(None, attempt(me, self.clock())), me, delivery.deadline_ms)
            return self._answer(step, seen, delivery, me, error)
        except Exception as unrecorded:  # noqa: BLE001 - no failure of ours hides the handler's
            return _unrecorded(error, unrecorded, None)

    # ── The phases of a claimed run ───────────────────────────────────────────────────────────────────────────────────

    def begin(self, delivery: Delivery) -> Started | Answer:
        """Claim the delivery's key, or answer where there is nothing to do."""
        known = self._known(delivery)
        if known is not None:
            return known
        me = self._claimant(delivery)
        until_ms = None if delivery.deadline_ms is None else delivery.deadline_ms - self._reserve_ms
        drive = partial(self._drive, me=me, until_ms=until_ms, postpones=delivery.postpones)
        step, seen = drive(Write(None, attempt(me, self.clock())))
        if isinstance(step, Busy) and self.policy.busy == "wait" and not self._may_acknowledge(step.record, delivery):
            step, seen = self._wait(step, me, until_ms, drive)
        if isinstance(step, Write):
            return Answer(POSTPONED, step.seen)
        if isinstance(step, Run):
            return Started(delivery, me, step.record, self._operation(step.record, me, delivery), _kind_of_run(seen))
        return self._answer(step, seen, delivery, me, None)

    def heartbeat(self, started: Started) -> AbstractContextManager[object]:
        """Keep the claim alive for as long as the context lasts, if its lease is shorter than the work may be."""
        if not started.me.renewed:
            return nullcontext()
        return self.concurrency.repeat(started.operation.heartbeat, self.policy.lease / HEARTBEATS_PER_LEASE)

    def finish(self, started: Started, value: object) -> Answer:
        """Commit, or fail where the effects are refused: for work that cannot be run again."""
        try:
            return self.commit(started, finished(value))
        except StoreUnavailableError:
            raise
        except Exception as refused:  # noqa: BLE001 - nothing was written: recorded, and raised when it is told
            return self.fail(started, refused)

    def commit(self, started: Started, value: object) -> Answer:
        """Complete the claim together with the registered effects; or, over a store that cannot, just after them.

        Raises:
            StoreUnavailableError: whether it was written is not known; the record decides at the next delivery.
            Exception: nothing was written, and the claim still holds: EffectConflictError, EffectsRejectedError,
                StoreRefusedError, OutOfTimeError where the lease is too short for the effects.
        """
        delivery, me, claim, operation, outcome = started
        effects: Sequence[Effect] = operation._effects  # noqa: SLF001 - as above
        ending: Ending | None = None
        if effects and not self._store.transactional:
            ending, effects = self._write_effects(started, effects), ()
        if ending is None:
            record = settled(claim, self._completed(value), me, self.clock())
            ending = conclude(self._store.update_if_owner(record, effects, until_ms=delivery.deadline_ms), me)
        if not isinstance(ending, Done):
            return Answer(observation.LOST_LEASE, claim, "taken over", LostLeaseError(delivery.key))
        self._warm.keep(ending.record, self.clock())
        won = ending.record.owner == me.owner
        return Answer(outcome if won else observation.LOST_LEASE, ending.record, None if won else "completed elsewhere")

    def _write_effects(self, started: Started, effects: "Sequence[Effect]") -> Ending | None:
        """Commit the effects by themselves, under a claim that was renewed just before; or return why nothing was.

        Until the lease is over nobody else runs this operation, so a request that is answered in time is not overtaken.
        What cannot be excluded is a crash after it: then the operation is run again, and its marks tell.
        """
        delivery, me, claim, *_ = started
        writer = self._store.effect_writer
        if writer is None:
            raise ConfigurationError(f"{delivery.key}: the store has nothing to write effects with")
        held = renewed(claim, me, self.clock())
        found = self._store.update_if_owner(held, until_ms=delivery.deadline_ms)
        if found is None or found.owner != me.owner or found.status != IN_PROGRESS or found.lease_ms is None:
            return conclude(found, me)
        left_ms = found.lease_ms + self._limits.skew_ms - self.clock()
        if left_ms < writer.longest_try_s * 1000:
            raise OutOfTimeError(
                f"the lease of {delivery.key} ends in {left_ms} ms, which is too short for its effects"
            )
        until_ms = found.lease_ms if delivery.deadline_ms is None else min(found.lease_ms, delivery.deadline_ms)
        writer.write(effects, until_ms=until_ms)
        return None

    def fail(self, started: Started, error: Exception, *, counted: bool = True) -> Answer:
        """Record the failure of a claim; the answer has the error, unless the event needs no further delivery."""
        delivery, me, claim, _, _ = started
        try:
            record = settled(claim, _failed(error, counted=counted), me, self.clock())
            ending = conclude(self._store.update_if_owner(record, until_ms=delivery.deadline_ms), me)
            if isinstance(ending, Done):  # whoever took over has done it
                return Answer(observation.LOST_LEASE, ending.record, describe(error))
            if isinstance(ending, Quarantined):
                return self._give_up(delivery, dead_letters.QUARANTINED, error, ending.record)
        except Exception as unrecorded:  # noqa: BLE001 - no failure of ours hides the handler's
            return _unrecorded(error, unrecorded, claim)
        return Answer(observation.FAILED, record, describe(error), error)

    # ── Steps ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _known(self, delivery: Delivery) -> Answer | None:
        """Answer what needs no claim: too old, seen a moment ago, expired; or refuse for want of time."""
        now_ms = self.clock()
        limits = self._limits
        if delivery.sent_ms is not None and is_beyond_window(delivery.sent_ms, delivery.deadline_ms or now_ms, limits):
            too_old = BeyondWindowError(f"{delivery.key} was sent before the window of {limits.window_s} s began")
            if delivery.deadline_ms is not None and limits.window_s * 1000 <= delivery.deadline_ms - now_ms:
                raise ConfigurationError(
                    f"{self.consumer}: a window of {limits.window_s} s is shorter than the invocation may last"
                )
            return self._give_up(delivery, dead_letters.BEYOND_WINDOW, too_old, None)
        warm = self._warm.get(delivery.key, now_ms)
        if warm is not None and not is_over(warm, limits, now_ms):
            if differ(warm.fingerprint, delivery.fingerprint):
                mismatch = PayloadMismatchError(delivery.key)
                return self._give_up(delivery, dead_letters.PAYLOAD_MISMATCH, mismatch, warm)
            return Answer(observation.DUPLICATE, warm, "warm")
        if not self.has_time(delivery.deadline_ms, now_ms):
            raise OutOfTimeError(f"less than {self.policy.reserve} s are left for {delivery.key}")
        if delivery.expires_ms is not None and delivery.expires_ms + limits.skew_ms < now_ms:
            found = self._store.read(delivery.key, until_ms=delivery.deadline_ms)
            if found is None:
                return Answer(observation.EXPIRED, None)
        return None

    def left_ms(self, deadline_ms: int | None) -> int:
        """Return how much time is left for work, outside the reserve that is kept for the commit."""
        return sys.maxsize if deadline_ms is None else deadline_ms - self._reserve_ms - self.clock()

    def has_time(self, deadline_ms: int | None, now_ms: int | None = None) -> bool:
        """Whether something may still be started: nothing is, inside the reserve that is kept for the commit."""
        return deadline_ms is None or deadline_ms - (now_ms or self.clock()) > self._reserve_ms

    def _claimant(self, delivery: Delivery) -> ClaimRequest:
        deadline_ms = delivery.deadline_ms
        return ClaimRequest(
            key=delivery.key,
            owner=self.new_owner(),
            fingerprint=delivery.fingerprint,
            delivery=delivery.id if delivery.comes_again else None,
            region=self._region,
            deadline_ms=deadline_ms,
            renewed=deadline_ms is None or deadline_ms - self.clock() > TIMEOUT_COVERED_BY_LEASE_MS,
            limits=self._limits,
            event=_keepable(delivery.event) if self.policy.keep_event else None,
        )

    def _drive(
        self,
        step: Step,
        me: ClaimRequest,
        until_ms: int | None,
        effects: Sequence["Effect"] = (),
        *,
        postpones: bool = False,
    ) -> tuple[Step, Record | None]:
        """Perform writes until the decision is another step; return it with the record that the last write replaced.

        With ``postpones`` a takeover is not performed but returned.
        """
        seen: Record | None = None
        for _ in range(_ROUNDS):
            if not isinstance(step, Write) or (postpones and is_takeover(step, me)):
                return step, seen
            seen, record = step
            joined = effects if record.status == COMPLETED else ()
            if seen is None:
                found: Record | None = self._store.put_if_absent(record, joined, until_ms=until_ms)
            else:
                found = self._store.compare_and_swap(seen, record, joined, until_ms=until_ms)
            now_ms = self.clock()
            step = Write(None, attempt(me, now_ms)) if found is None else decide(found, me, now_ms)
        raise ContentionError(f"{me.key} was changed by others in each of {_ROUNDS} rounds")

    def _wait(
        self, step: Step, me: ClaimRequest, until_ms: int | None, drive: Callable[[Step], tuple[Step, Record | None]]
    ) -> tuple[Step, Record | None]:
        """Ask again, in growing steps, until the key is free, its result is there, or the limit is reached."""
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
            found = self._store.read(me.key, until_ms=until_ms)
            now_ms = self.clock()
            step = Write(None, attempt(me, now_ms)) if found is None else decide(found, me, now_ms)
            step, seen = drive(step)
        return step, seen

    def _answer(
        self, step: Step, seen: Record | None, delivery: Delivery, me: ClaimRequest, error: Exception | None
    ) -> Answer:
        """Answer a step that needs no run; ``error`` is what an atomic run has raised."""
        match step:
            case Done(record):
                self._warm.keep(record, self.clock())
                ours = record.owner == me.owner
                return Answer(_kind_of_run(seen) if ours else observation.DUPLICATE, record)
            case Busy(record, lease_left_ms):
                if self._may_acknowledge(record, delivery):
                    return Answer(observation.BUSY, record)
                busy = BusyError(delivery.key, lease_left_ms)
                return Answer(observation.BUSY, record, describe(busy), busy)
            case Quarantined(record):
                if record.dead_lettered and delivery.acknowledges:
                    return Answer(observation.QUARANTINED, record)
                poison = error or QuarantinedError(delivery.key, record.attempt, record.error)
                reason = dead_letters.UNKNOWN if record.error is None else dead_letters.QUARANTINED
                return self._give_up(delivery, reason, poison, record)
            case Mismatch(record):
                mismatch = PayloadMismatchError(delivery.key)
                return self._give_up(delivery, dead_letters.PAYLOAD_MISMATCH, mismatch, record)
            case BackingOff(record, wait_ms):
                why: Exception = RetryLaterError(delivery.key, wait_ms)
            case Corrupt(record):
                corrupt = CorruptRecordError(f"{delivery.key} has status {record.status!r}, lease {record.lease_ms!r}")
                return self._give_up(delivery, dead_letters.CORRUPT_RECORD, corrupt, record)
            case Failed(record) if error is not None:
                why = error
            case _:
                raise ContentionError(f"{delivery.key} met {type(step).__name__}, which no delivery can meet here")
        return Answer(observation.FAILED, record, describe(why), why)

    def _may_acknowledge(self, holder: Record, delivery: Delivery) -> bool:
        """Whether a busy delivery may be forgotten, because the holder's own delivery still stands for the event.

        Only in one direction: to a delivery whose id comes first. If two could be forgotten because of each other (one
        of them is delivered twice, or its write comes late), nobody might be left. The first of all is never forgotten.
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

    def _give_up(self, delivery: Delivery, reason: str, error: Exception, record: Record | None) -> Answer:
        """Hand the event to the dead-letter queue, then mark the record, then acknowledge."""
        if self._dead_letters is None:
            return Answer(observation.FAILED, record, describe(error), error)
        # A record is marked for the letter of its own quarantine, not for that of another event which shares its key.
        poison = record if reason in (dead_letters.QUARANTINED, dead_letters.UNKNOWN) else None
        if poison is None or not poison.dead_lettered:
            number = 0 if record is None else record.attempt
            letter = DeadLetter(reason, describe(error), self.consumer, delivery.key, number, delivery.event)
            self._dead_letters.send(letter)
            if poison is not None:
                self._store.compare_and_swap(poison, poison._replace(dead_lettered=True), until_ms=delivery.deadline_ms)
        return Answer(observation.DEAD_LETTERED, record, reason, None if delivery.acknowledges else error)

    # ── Parts ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _operation(self, record: Record, me: ClaimRequest, delivery: Delivery, *, claimed: bool = True) -> Operation:
        def renew() -> int | None:
            beat = renewed(record, me, self.clock())
            found = self._store.update_if_owner(beat, until_ms=beat.updated_ms)  # one try: the next beat is the retry
            holds = found is not None and found.owner == me.owner and found.status == IN_PROGRESS
            return beat.lease_ms if holds else None

        return Operation(
            record,
            me.deadline_ms,
            takes_effects=self._store.transactional or self._store.effect_writer is not None,
            clock=self.clock,
            renew=renew if claimed else None,
            context=delivery.context,
        )

    def _completed(self, value: object) -> Outcome:
        if value is None:
            return Outcome(COMPLETED, _NO_RESULT)
        from idempotency import codec  # noqa: PLC0415 - as above

        try:
            result = codec.encode(value)
        except codec.UnencodableResultError as unencodable:
            return Outcome(COMPLETED, error=str(unencodable))
        size = len(result.encode())
        if size > self.policy.max_result_bytes:
            return Outcome(COMPLETED, error=f"{size} bytes are more than max_result_bytes")
        return Outcome(COMPLETED, result)


def _kind_of_run(replaced: Record | None) -> str:
    if replaced is None or replaced.status == COMPLETED:
        return observation.NEW
    return observation.RETRIED if replaced.status == FAILED else observation.TAKEOVER


def _failed(error: Exception, *, counted: bool = True) -> Outcome:
    return Outcome(FAILED, error=describe(error), permanent=isinstance(error, PermanentError), counted=counted)


def _unrecorded(error: Exception, unrecorded: Exception, record: Record | None) -> Answer:
    """Answer with the handler's own error where its failure could not be recorded or dead-lettered."""
    error.add_note(f"This failure could not be recorded: {describe(unrecorded)}")
    return Answer(observation.FAILED, record, describe(error), error)


def _keepable(event: object) -> str | None:
    text = json.dumps(event, separators=(",", ":"), default=str)
    return text if len(text.encode()) <= _LARGEST_KEPT_EVENT else None
