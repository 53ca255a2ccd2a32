"""What must hold."""

from typing import Final

from carride_idempotency.observation import NEW, RETRIED, TAKEOVER
from carride_idempotency.record import COMPLETED, FAILED, IN_PROGRESS, QUARANTINED, Record
from tests.explorer.process import CANCELLED, Process, token

_RAN: Final = frozenset({NEW, RETRIED, TAKEOVER})


class Broken(Exception):  # noqa: N818 - a promise is broken, not the explorer
    """A step broke a promise of the protocol."""


def require(holds: bool, promise: str) -> None:
    if not holds:
        raise Broken(promise)


def require_of_write(old: Record | None, new: Record, *, effects: bool, max_attempts: int) -> None:
    """Judge a write: ``new`` replaced ``old``, with the writer's effects or without."""
    require(
        effects == (new.status == COMPLETED),
        "effects take place with the completion, and only with it",
    )
    within = new.status != IN_PROGRESS or new.attempt <= max_attempts
    require(within, "a key is run at most max_attempts times")
    if old is None:
        require(new.attempt == 1, "an absent key begins with attempt 1")
    elif old.status == QUARANTINED:
        require(new == old._replace(dead_lettered=True), "a quarantined key is never run")
    elif token(old) == token(new):
        require(old.status == IN_PROGRESS, "an owner that has finished changes nothing")
        cancelled = new.status == FAILED and CANCELLED in (new.error or "")
        counted = old.attempt - 1 if cancelled else old.attempt
        require(
            new.attempt == counted, "one run counts as one attempt, and a cancelled one as none"
        )
    elif old.status == COMPLETED:
        require(new.attempt == 1, "a new window begins with attempt 1")
    else:
        given_up = new.status == QUARANTINED and new.attempt == old.attempt >= max_attempts
        # A failure is forgotten when its window is over, even before the store deletes it.
        written_by_s = (new.expiry or 0) if new.lease_ms is None else new.lease_ms / 1000
        forgotten = (
            old.status == FAILED
            and new.attempt == 1
            and old.expiry is not None
            and old.expiry < written_by_s
        )
        require(
            given_up or forgotten or new.attempt == old.attempt + 1,
            "every run counts as an attempt",
        )


def require_of_process(process: Process) -> None:
    """Judge a process: how often it runs, with how much of its lease, and what it answers."""
    require(process.runs <= 1, "one delivery runs its handler once")
    claim = process.claim
    answer = process.answer
    if process.request.kind == "work" and claim is not None and process.machine.timeout_ms is None:
        at_ms, found = process.replies[-1]
        short = (
            found == claim and (claim.lease_ms or 0) - at_ms < process.machine.policy.lease * 500
        )
        require(not short, "a run begins with at least half of its lease")
    if process.request.kind == "end" and answer is not None:
        done = (
            answer.record
            if answer.record is not None and answer.record.status == COMPLETED
            else None
        )
        own = done is not None and done.owner == process.owner
        require(
            own or answer.outcome not in _RAN, "only the run that was committed says that it ran"
        )
        same = done is None or answer.value() == done.owner
        require(same, "every delivery is answered with the result of the committed run")
