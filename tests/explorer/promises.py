"""What must hold, said once more and in other words than the code that is to keep it.

Each function returns the promise that is broken, or None.
"""

from idempotency.errors import BusyError
from idempotency.observation import BUSY, DEAD_LETTERED, EXPIRED
from idempotency.record import COMPLETED, FAILED, IN_PROGRESS, QUARANTINED, Record
from tests.explorer.process import ADVANCE, END, GAVE_UP, INSERT, RAN, WORK, Process

ONE_EFFECT = "at most one effect is committed in a window"
ONE_EFFECT_EVER = "an event that says when it was sent takes effect once, ever"
LIVE_CLAIM = "a live claim is not taken over"
NOTHING_LOST = "no event is acknowledged that is neither done, nor dead-lettered, nor due"
REMEMBERED = "a completed key is run again only when its window is over"
BACKED_OFF = "a failed key is not run again before its back-off is over"
POISON_STAYS = "a quarantined key is forgotten only when an operator says so"
ENDS = "one undisturbed delivery brings a key to its end"
GIVEN_UP = "a key whose handler always fails ends in the dead-letter queue"
FREE_AGAIN = "a key whose window is over is free again, whatever the payload"
SELFISH = "nobody waits for himself"
AS_JUDGED = "a swap replaces what its writer has judged"
NO_STALE_WRITE = "a stale owner's write changes nothing"
FINISHED = "an owner that has finished changes nothing"
INSERTED = "an insert replaces nothing"
RELEASED = "a key that was given back is run again"


def token(record: Record) -> str:
    """Return the token of the delivery that wrote a record; that of a quarantine may have more behind it."""
    return (record.owner or "").partition("/")[0]


def broken_by_write(
    old: Record | None, kind: str, seen: Record | None, new: Record, *, effects: bool, max_attempts: int
) -> str | None:
    """Judge a write that took place.

    Args:
        old: what was under the key.
        kind: how it was written: `INSERT`, `SWAP` or `ADVANCE`.
        seen: what the writer of a swap had judged.
        new: what is under the key now.
        effects: whether the writer's effects took place with it.
        max_attempts: how many runs a key may have.
    """
    if effects != (new.status == COMPLETED):
        return "effects take place with the completion, and only with it"
    if new.status == IN_PROGRESS and new.attempt > max_attempts:
        return "a key is run at most max_attempts times"
    if old is None:
        return None if kind == INSERT and new.attempt == 1 else "an absent key begins with the insert of attempt 1"
    if kind == INSERT:
        return INSERTED
    if kind == ADVANCE:
        if token(old) != token(new):
            return NO_STALE_WRITE
        if old.status != IN_PROGRESS:
            return FINISHED
        return None if old.attempt == new.attempt else "only a claim counts as an attempt"
    if seen is None or old._replace(dead_lettered=False) != seen._replace(dead_lettered=False):
        return AS_JUDGED
    return _broken_by_swap(old, new, max_attempts)


def _broken_by_swap(old: Record, new: Record, max_attempts: int) -> str | None:
    if old.status == QUARANTINED:
        return None if new == old._replace(dead_lettered=True) else "a quarantined key is never run"
    if token(old) == token(new):
        renews = old.status == new.status == IN_PROGRESS and old.attempt == new.attempt
        return None if renews else "one run counts as one attempt"
    if old.status == COMPLETED:
        return None if new.attempt == 1 else "a new window begins with attempt 1"
    given_up = new.status == QUARANTINED and old.attempt >= max_attempts and new.attempt == old.attempt
    # A failure is forgotten when its window is over, even before the store deletes it.
    written_by_s = (new.expiry or 0) if new.lease_ms is None else new.lease_ms / 1000
    forgotten = old.status == FAILED and new.attempt == 1 and old.expiry is not None and old.expiry < written_by_s
    return None if given_up or forgotten or new.attempt == old.attempt + 1 else "every run counts as an attempt"


def broken_by_process(process: Process, now_ms: int) -> str | None:
    """Judge where a delivery stands: how often it runs, with how much of a lease, and what it answers."""
    policy, claim, request = process.kind.policy, process.claim, process.request.kind
    renewable = process.kind.timeout_ms is None
    if process.runs > 1 + policy.conflict_reruns:
        return "one delivery runs its handler once"
    if request == WORK and process.runs == 1 and claim is not None and renewable:
        half_ms = int(policy.lease * 1000) // 2
        return None if (claim.lease_ms or 0) - now_ms >= half_ms else "a run begins with at least half of its lease"
    if request != END:
        return None
    if process.observation is None:
        return "every delivery is observed once"
    found = [said for _, said in process.told if isinstance(said, Record)]
    if isinstance(process.error, BusyError) and found[-1].owner == process.owner:
        return SELFISH
    if process.answer is None:
        return None
    return _broken_by_answer(process.answer.outcome, process.answer.record, process)


def _broken_by_answer(outcome: str, record: Record | None, process: Process) -> str | None:
    own = record is not None and record.owner == process.owner
    done = record is not None and record.status == COMPLETED
    if outcome in RAN and not (own and done):
        return "only the run that was committed says that it ran"
    if outcome == BUSY:
        return SELFISH if own else None
    if done and record is not None and process.answer is not None and process.answer.value() != record.owner:
        return "every delivery is answered with the result of the committed run"
    if done or outcome in (DEAD_LETTERED, EXPIRED) or (record is not None and record.dead_lettered):
        return None
    return "what is acknowledged is done, given up, or in other hands"


def broken_by_heartbeat(process: Process, said: object, now_ms: int) -> str | None:
    """Judge what a handler was told about its claim, from what the store ``said``."""
    if said == GAVE_UP:
        return None
    mine = isinstance(said, Record) and said.owner == process.owner and said.status == IN_PROGRESS
    holds = mine and isinstance(said, Record) and said.lease_ms is not None and now_ms <= said.lease_ms
    return None if holds != process.lost else "a heartbeat says whether the claim still holds"
