"""What an operator's changes do to a record, and which records they refuse.

A change is planned on the record as it was read, and written only if the record is still so.
"""

from typing import Any, NamedTuple

from carride_idempotency.clock import Clock, epoch_ms
from carride_idempotency.decision import is_corrupt, released
from carride_idempotency.externals import NOT_DONE, Answer, Done, settled
from carride_idempotency.operators.explaining import Explained
from carride_idempotency.policy import DAY
from carride_idempotency.record import IN_PROGRESS, QUARANTINED, Record, unknown_calls
from carride_idempotency.recovery import forgotten, new_owner
from carride_idempotency.stores import Store


class ChangeRefusedError(Exception):
    """Raised when a record cannot be changed as asked. The message says why, and what to do."""


class Change(NamedTuple):
    """What a release, a settlement or a forget does to a record, and its next delivery then."""

    action: str
    """``release``, ``settle`` or ``forget``."""
    record: Explained
    then: str


class Planned(NamedTuple):
    """A change, the record as it was read, and what is left of it; None if nothing is."""

    change: Change
    seen: Record
    left: Record | None


def plan_release(seen: Record, found: Explained) -> Planned:
    """Plan to let a quarantined, crashed or corrupt key run again."""
    _refuse_held(found)
    if seen.status not in (QUARANTINED, IN_PROGRESS) and not is_corrupt(seen):
        raise ChangeRefusedError(
            f"{seen.key} is neither quarantined nor crashed, so there is nothing to release: "
            f"{found.says}"
        )
    then = "the next delivery runs as attempt 1: redrive its dead letter"
    return Planned(Change("release", found, then), seen, seen)


def plan_settle(
    seen: Record, found: Explained, answer: Done[Any] | Answer, call: str | None = None
) -> Planned:
    """Plan to record what became of an external call, and to let its key run again.

    ``call`` is the call's name. None stands for the first one whose outcome is unknown.
    """
    _refuse_held(found)
    name = _call_to_settle(seen, found, call)
    does = "makes" if answer is NOT_DONE else "takes the result of"
    then = f"the next delivery {does} {name}: redrive its dead letter"
    return Planned(Change("settle", found, then), seen, settled(seen, name, answer))


def _call_to_settle(seen: Record, found: Explained, call: str | None) -> str:
    """Return the name of a call whose outcome is unknown: ``call``, or the first one."""
    unknown = unknown_calls(seen)
    if call is None and unknown:
        return unknown[0]
    if call is not None and call in unknown:
        return call
    which = "no external call" if call is None else f"no external call {call!r}"
    raise ChangeRefusedError(f"{seen.key} has {which} whose outcome is unknown: {found.says}")


def plan_forget(seen: Record, found: Explained) -> Planned:
    """Plan to forget a key, whatever has become of it."""
    _refuse_held(found)
    then = (
        "the next delivery runs as if it were the first: an effect that took place can take place "
        "again"
    )
    if seen.kept is not None:
        then += "; what its record keeps for readers is deleted"
    return Planned(Change("forget", found, then), seen, None)


def _refuse_held(found: Explained) -> None:
    if found.held:
        raise ChangeRefusedError(
            f"{found.key} is held: {found.says}; try again a minute after that"
        )


def carry_out(
    store: Store, planned: Planned, *, window: int = 30 * DAY, clock: Clock = epoch_ms
) -> bool:
    """Write what is planned; return whether the record was still as it was read.

    ``window`` says for how many seconds the record of a key that runs again is kept.
    """
    now_ms = clock()
    owner = new_owner()
    if planned.left is None:
        record = forgotten(planned.seen, owner, now_ms)
    else:
        record = released(planned.left, owner, now_ms, window)
    there = store.compare_and_swap(planned.seen, record)
    return there is not None and there.owner == owner
