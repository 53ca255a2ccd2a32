"""The protocol with one rule taken out, and what the explorer is to find then.

Each mutation replaces one real function by itself without a condition, in every module that calls it.
"""

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any, Final, NamedTuple, Protocol

from idempotency import dead_letters, decision, runner, stores
from idempotency.decision import Claimant, Done, Ending, Later, Lost, Mismatch, Run, Step, Write
from idempotency.observation import LOST_LEASE
from idempotency.record import COMPLETED, FAILED, IN_PROGRESS, QUARANTINED, Record
from idempotency.runner import Answer, Delivery, Runner
from tests.explorer import promises
from tests.explorer.scenarios import SCENARIOS, machine
from tests.explorer.world import Scenario


class Patch(Protocol):
    """What sets attributes and puts them back: pytest's monkeypatch."""

    def setattr(self, target: object, name: str, value: object, /) -> None:
        """Set ``target.name`` for as long as the test lasts."""
        ...


class Mutation(NamedTuple):
    """One rule taken out."""

    name: str
    scenario: Scenario
    """Where it shows."""
    promise: str
    """What breaks first."""
    without: Callable[[Any], Any]
    """Takes the real function, and returns it without the rule."""
    where: tuple[tuple[ModuleType | type, str], ...]
    """Where the function is looked up."""

    def apply(self, patch: Patch) -> None:
        """Take the rule out."""
        target, name = self.where[0]
        mutant = self.without(getattr(target, name))
        for target, name in self.where:
            patch.setattr(target, name, mutant)


def _world(name: str, **changes: Any) -> Scenario:
    return replace(next(scenario for scenario in SCENARIOS if scenario.name == name), **changes)


def _of_decision(name: str) -> tuple[tuple[ModuleType | type, str], ...]:
    return tuple((module, name) for module in (decision, runner) if hasattr(module, name))


def _judged_as_anothers(found: Record, me: Claimant, now_ms: int) -> Step:
    if found.status == IN_PROGRESS:
        return decision._decide_in_progress(found, me, now_ms)  # noqa: SLF001 - what a decision without the rule does
    if found.status == FAILED:
        return decision._decide_failed(found, me, now_ms)  # noqa: SLF001 - as above
    return Done(found)


# ── Conditions of the store ───────────────────────────────────────────────────────────────────────────────────────────


def _insert_over_claims(real: Any) -> Any:
    return lambda found: real(found) or found.status == IN_PROGRESS


def _swap_without_lease(real: Any) -> Any:
    return lambda found, seen: real(found and found._replace(lease_ms=seen.lease_ms), seen)


def _swap_completed_anyway(real: Any) -> Any:
    return lambda found, seen: real(found, seen) or (found is not None and seen.status == COMPLETED)


def _advance_without_status(real: Any) -> Any:
    return lambda found, record: real(found and found._replace(status=IN_PROGRESS), record)


def _advance_without_owner(real: Any) -> Any:
    return lambda found, record: real(found and found._replace(owner=record.owner), record)


def _advance_without_lease(real: Any) -> Any:
    return lambda found, record: real(found and found._replace(lease_ms=0), record)


# ── Decisions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _own_insert_unknown(real: Any) -> Any:
    return lambda found, me, now_ms: (_judged_as_anothers if found.attempt == 1 else real)(found, me, now_ms)


def _own_swap_unknown(real: Any) -> Any:
    return lambda found, me, now_ms: (_judged_as_anothers if found.attempt > 1 else real)(found, me, now_ms)


def _late_answer_runs(real: Any) -> Any:
    return lambda found, me, now_ms: Run(found) if found.status == IN_PROGRESS else real(found, me, now_ms)


def _expiry_inside_lease(real: Any) -> Any:
    return lambda me, lease_ms, now_ms: lease_ms // 1000 - 3


def _over_before_live(real: Any) -> Any:
    def decide(found: Record, me: Claimant, now_ms: int) -> Step:
        if found.status == IN_PROGRESS and found.owner != me.owner:
            claimed_ms = (found.lease_ms or 0) - me.limits.lease_ms
            forgotten = found._replace(expiry=claimed_ms // 1000 + me.limits.window_s)
            if decision.is_over(forgotten, me.limits, now_ms):
                return Write(found, decision.attempt(me, now_ms, found))
        step: Step = real(found, me, now_ms)
        return step

    return decide


def _fingerprint_before_over(real: Any) -> Any:
    def decide(found: Record, me: Claimant, now_ms: int) -> Step:
        if decision.differ(found.fingerprint, me.fingerprint):
            return Mismatch(found)
        step: Step = real(found, me, now_ms)
        return step

    return decide


def _poison_runs(real: Any) -> Any:
    def decide(found: Record, me: Claimant, now_ms: int) -> Step:
        if found.status == QUARANTINED:
            return Write(found, decision.attempt(me, now_ms, found))
        step: Step = real(found, me, now_ms)
        return step

    return decide


def _skew_ignored(real: Any) -> Any:
    return lambda record, limits, now_ms: real(record, limits._replace(skew_ms=0), now_ms)


def _atomic_ignores_claims(real: Any) -> Any:
    def decide(found: Record, me: Claimant, now_ms: int) -> Step:
        if me.outcome is not None:
            return Write(found, decision.attempt(me, now_ms, found))
        step: Step = real(found, me, now_ms)
        return step

    return decide


def _takeover_without_limit(real: Any) -> Any:
    return lambda found, me, now_ms: real(found, me._replace(limits=me.limits._replace(max_attempts=99)), now_ms)


def _takeover_not_counted(real: Any) -> Any:
    def attempt(me: Claimant, now_ms: int, seen: Record | None = None) -> Record:
        if seen is not None and seen.status == IN_PROGRESS:
            seen = seen._replace(attempt=seen.attempt - 1)
        record: Record = real(me, now_ms, seen)
        return record

    return attempt


def _back_off_ignored(real: Any) -> Any:
    def decide(found: Record, me: Claimant, now_ms: int) -> Step:
        step: Step = real(found, me, now_ms)
        return Write(found, decision.attempt(me, now_ms, found)) if isinstance(step, Later) else step

    return decide


def _marked_before_sent(real: Any) -> Any:
    return lambda seen, me, now_ms, error: real(seen, me, now_ms, error)._replace(dead_lettered=True)


def _poison_with_expiry(real: Any) -> Any:
    return lambda seen, me, now_ms, error: real(seen, me, now_ms, error)._replace(expiry=now_ms // 1000 + 1)


def _poison_under_claims_token(real: Any) -> Any:
    return lambda seen, me, now_ms, error: real(seen, me, now_ms, error)._replace(owner=me.owner)


def _released_with_its_attempts(real: Any) -> Any:
    return lambda seen, owner, now_ms, window_s: real(seen, owner, now_ms, window_s)._replace(attempt=seen.attempt)


def _lost_is_done(real: Any) -> Any:
    def conclude(found: Record | None, me: Claimant) -> Ending:
        ending: Ending = real(found, me)
        return Done(ending.record) if isinstance(ending, Lost) and ending.record is not None else ending

    return conclude


def _age_without_deadline(real: Any) -> Any:
    return lambda sent_ms, end_ms, limits: sent_ms + limits.window_s * 1000 - limits.skew_ms < end_ms - 10_000


# ── The runner ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _lost_runs_again(real: Any) -> Any:
    def run_claimed(self: Runner, delivery: Delivery, work: Any) -> Answer:
        answer: Answer = real(self, delivery, work)
        if answer.outcome == LOST_LEASE:
            answer = real(self, delivery, work)
        return answer

    return run_claimed


def _busy_with_own_delivery(real: Any) -> Any:
    return lambda self, holder, delivery: real(self, holder, delivery) or holder.delivery == delivery.id


def _busy_both_ways(real: Any) -> Any:
    return lambda self, holder, delivery: holder.delivery != delivery.id


def _mismatch_marks(real: Any) -> Any:
    def give_up(self: Runner, delivery: Delivery, reason: str, error: Exception, record: Record | None) -> Answer:
        if record is not None and record.status == QUARANTINED:
            reason = dead_letters.QUARANTINED
        answer: Answer = real(self, delivery, reason, error, record)
        return answer

    return give_up


MUTATIONS: Final = (
    Mutation(
        "a claim does not refuse another",
        _world("claims", unjudged=frozenset({promises.INSERTED})),
        promises.LIVE_CLAIM,
        _insert_over_claims,
        ((stores, "may_insert"),),
    ),
    Mutation(
        "a takeover does not compare the lease",
        _world("heartbeats", unjudged=frozenset({promises.AS_JUDGED})),
        promises.LIVE_CLAIM,
        _swap_without_lease,
        ((stores, "may_swap"),),
    ),
    Mutation(
        "an ended window is replaced unseen",
        _world("window"),
        promises.LIVE_CLAIM,
        _swap_completed_anyway,
        ((stores, "may_swap"),),
    ),
    Mutation(
        "commit and failure do not compare the status",
        _world("claims"),
        promises.FINISHED,
        _advance_without_status,
        ((stores, "may_advance"),),
    ),
    Mutation(
        "commit and failure do not compare the owner",
        _world("claims"),
        promises.NO_STALE_WRITE,
        _advance_without_owner,
        ((stores, "may_advance"),),
    ),
    Mutation(
        "a late heartbeat shortens the lease",
        _world("heartbeats"),
        promises.LIVE_CLAIM,
        _advance_without_lease,
        ((stores, "may_advance"),),
    ),
    Mutation(
        "a token does not know its own insert",
        _world("claims"),
        promises.SELFISH,
        _own_insert_unknown,
        _of_decision("_decide_own"),
    ),
    Mutation(
        "a token does not know its own swap",
        _world("claims"),
        promises.ENDS,
        _own_swap_unknown,
        _of_decision("_decide_own"),
    ),
    Mutation(
        "a claim whose answer came late is run as it is",
        _world("claims"),
        "a run begins with at least half of its lease",
        _late_answer_runs,
        _of_decision("_decide_own"),
    ),
    Mutation(
        "the TTL ends inside the lease",
        _world("claims"),
        promises.LIVE_CLAIM,
        _expiry_inside_lease,
        _of_decision("_claim_expiry"),
    ),
    Mutation(
        "an ended window overrides a live lease",
        _world("claims", kinds=(machine(window=2),)),
        promises.LIVE_CLAIM,
        _over_before_live,
        _of_decision("decide"),
    ),
    Mutation(
        "the payload is compared before the window",
        _world("window-mixed"),
        promises.FREE_AGAIN,
        _fingerprint_before_over,
        _of_decision("decide"),
    ),
    Mutation(
        "a quarantined key is run again",
        _world("quarantine"),
        "a key is run at most max_attempts times",
        _poison_runs,
        _of_decision("decide"),
    ),
    Mutation(
        "the skew of clocks is ignored",
        _world("skew", times_ms=(0, 5_500)),
        promises.LIVE_CLAIM,
        _skew_ignored,
        _of_decision("is_live"),
    ),
    Mutation(
        "an atomic commit does not wait for a claim",
        _world("mixed"),
        promises.LIVE_CLAIM,
        _atomic_ignores_claims,
        _of_decision("_decide_in_progress"),
    ),
    Mutation(
        "takeovers have no limit",
        _world("claims"),
        "a key is run at most max_attempts times",
        _takeover_without_limit,
        _of_decision("_decide_in_progress"),
    ),
    Mutation(
        "a takeover does not count as an attempt",
        _world("claims"),
        "every run counts as an attempt",
        _takeover_not_counted,
        _of_decision("attempt"),
    ),
    Mutation(
        "the back-off is ignored",
        _world("back-off", tries=2),
        promises.BACKED_OFF,
        _back_off_ignored,
        _of_decision("_decide_failed"),
    ),
    Mutation(
        "the mark comes before the dead letter",
        _world("quarantine"),
        promises.NOTHING_LOST,
        _marked_before_sent,
        _of_decision("quarantined"),
    ),
    Mutation(
        "a quarantined key expires",
        _world("quarantine"),
        promises.POISON_STAYS,
        _poison_with_expiry,
        _of_decision("quarantined"),
    ),
    Mutation(
        "a quarantine bears the token of a later claim",
        _world("quarantine", handler=("raises",)),
        promises.AS_JUDGED,
        _poison_under_claims_token,
        _of_decision("quarantined"),
    ),
    Mutation(
        "a released key keeps its attempts",
        _world("quarantine"),
        promises.RELEASED,
        _released_with_its_attempts,
        _of_decision("released"),
    ),
    Mutation(
        "a lost lease is acknowledged",
        _world("claims"),
        "what is acknowledged is done, given up, or in other hands",
        _lost_is_done,
        _of_decision("conclude"),
    ),
    Mutation(
        "a lost lease is run again",
        _world("claims", kinds=(machine(max_attempts=3),)),
        "one delivery runs its handler once",
        _lost_runs_again,
        ((Runner, "_run_claimed"),),
    ),
    Mutation(
        "the age of an event ignores how long its run may last",
        _world("old-events"),
        promises.ONE_EFFECT_EVER,
        _age_without_deadline,
        ((runner, "is_beyond_window"),),
    ),
    Mutation(
        "busy is acknowledged for the holder's own delivery",
        _world("claims"),
        promises.NOTHING_LOST,
        _busy_with_own_delivery,
        ((Runner, "_may_acknowledge"),),
    ),
    Mutation(
        "two deliveries are acknowledged because of each other, by two clocks",
        _world("skew"),
        promises.NOTHING_LOST,
        _busy_both_ways,
        ((Runner, "_may_acknowledge"),),
    ),
    Mutation(
        "two deliveries are acknowledged because of each other, one of them running twice",
        _world("copies"),
        promises.NOTHING_LOST,
        _busy_both_ways,
        ((Runner, "_may_acknowledge"),),
    ),
    Mutation(
        "another payload's dead letter marks the quarantine",
        _world("payloads"),
        promises.NOTHING_LOST,
        _mismatch_marks,
        ((Runner, "_give_up"),),
    ),
)
