"""What must hold. Each function returns the broken promise, or None."""

from typing import Final

from idempotency.observation import NEW, RETRIED, TAKEOVER
from idempotency.record import COMPLETED, FAILED, IN_PROGRESS, QUARANTINED, Record
from tests.idempotency.explorer.process import Process, token

ONE_EFFECT: Final = "at most one effect is committed in a window"
LIVE_CLAIM: Final = "a live claim is not taken over"
ONE_CALL: Final = "an external call is made once, and before its operation is completed"
NOTHING_LOST: Final = "no event is acknowledged that is neither done, nor dead-lettered, nor due"
POISON_STAYS: Final = "a quarantined key is never forgotten"

_RAN: Final = frozenset({NEW, RETRIED, TAKEOVER})


def broken_by_write(old: Record | None, new: Record, *, effects: bool, max_attempts: int) -> str | None:
    """Judge a write that took place: ``new`` replaced ``old``, with the writer's effects or without."""
    if effects != (new.status == COMPLETED):
        return "effects take place with the completion, and only with it"
    if new.status == IN_PROGRESS and new.attempt > max_attempts:
        return "a key is run at most max_attempts times"
    if old is None:
        return None if new.attempt == 1 else "an absent key begins with attempt 1"
    if old.status == QUARANTINED:
        return None if new == old._replace(dead_lettered=True) else "a quarantined key is never run"
    if token(old) == token(new):
        if old.status != IN_PROGRESS:
            return "an owner that has finished changes nothing"
        return None if new.attempt == old.attempt else "one run counts as one attempt"
    if old.status == COMPLETED:
        return None if new.attempt == 1 else "a new window begins with attempt 1"
    given_up = new.status == QUARANTINED and new.attempt == old.attempt >= max_attempts
    # A failure is forgotten when its window is over, even before the store deletes it.
    written_by_s = (new.expiry or 0) if new.lease_ms is None else new.lease_ms / 1000
    forgotten = old.status == FAILED and new.attempt == 1 and old.expiry is not None and old.expiry < written_by_s
    return None if given_up or forgotten or new.attempt == old.attempt + 1 else "every run counts as an attempt"


def broken_by_process(process: Process) -> str | None:
    """Judge a process: how often it runs, with how much of its lease, and what it answers."""
    if process.runs > 1:
        return "one delivery runs its handler once"
    claim, answer = process.claim, process.answer
    if process.request.kind == "work" and claim is not None and process.machine.timeout_ms is None:
        at_ms, found = process.replies[-1]
        short = found == claim and (claim.lease_ms or 0) - at_ms < process.machine.policy.lease * 500
        return "a run begins with at least half of its lease" if short else None
    if process.request.kind != "end" or answer is None:
        return None
    done = answer.record if answer.record is not None and answer.record.status == COMPLETED else None
    if answer.outcome in _RAN and (done is None or done.owner != process.owner):
        return "only the run that was committed says that it ran"
    if done is not None and answer.value() != done.owner:
        return "every delivery is answered with the result of the committed run"
    return None
