"""What an operator's changes do to a record, and which records they refuse."""

from typing import Any, Final, NamedTuple

from carride_idempotency.operators.explaining import Explained, how_to_run_again, next_one
from carride_idempotency.protocol.decision import is_corrupt
from carride_idempotency.protocol.externals import (
    NOT_DONE,
    Answer,
    Done,
    State,
    Stored,
    known_of,
    settled,
)
from carride_idempotency.record import COMPLETED, FAILED, QUARANTINED, Record, unknown_calls

MUST_BE_SHOWN: Final = frozenset({"release", "forget"})
"""Refused on a terminal unless a plan was shown: an effect may be repeated."""
_KNOWN: Final = (State.DONE, State.NOT_DONE)
"""What an operator may have said of a call by mistake."""


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


def plan_release(seen: Record, found: Explained, *, used_up: bool = False) -> Planned:
    """Plan to let a quarantined, crashed or corrupt key run again.

    ``used_up`` says that the next delivery of a failed key would quarantine it, because its
    attempts are used up: the policy of its consumer knows that, and the record does not.
    """
    _refuse_held(found)
    can_run = seen.status == COMPLETED or (seen.status == FAILED and not used_up)
    if can_run and not is_corrupt(seen):
        raise ChangeRefusedError(
            f"{seen.key} is neither quarantined nor crashed, so there is nothing to release: "
            f"{found.says}"
        )
    then = f"{next_one(seen)} runs as attempt 1: {how_to_run_again(seen)}"
    return Planned(Change("release", found, then), seen, seen)


def plan_settle(
    seen: Record,
    found: Explained,
    answer: Done[Any] | Stored | Answer,
    call: str | None = None,
) -> Planned:
    """Plan to record what became of an external call, and to let its key run again.

    ``call`` is the call's name. None stands for the first one whose outcome is unknown. A call that
    is named may be settled again, while its operation is not completed.
    """
    _refuse_held(found)
    name = _call_to_settle(seen, found, call)
    does = "makes" if answer is NOT_DONE else "takes the result of"
    then = f"{next_one(seen)} {does} {name}: {how_to_run_again(seen)}"
    known = known_of(seen, name)
    if known.state in _KNOWN:
        then += f"; this replaces what is known of it: {known.result or known.state.value}"
    return Planned(Change("settle", found, then), seen, settled(seen, name, answer))


def _call_to_settle(seen: Record, found: Explained, call: str | None) -> str:
    """Return the name of a call whose outcome is unknown: ``call``, or the first one."""
    unknown = unknown_calls(seen)
    if call is None and unknown:
        return unknown[0]
    if call is not None and call in unknown:
        return call
    if call is not None and _may_be_settled_again(seen, call):
        return call
    which = "no external call" if call is None else f"no external call {call!r}"
    raise ChangeRefusedError(f"{seen.key} has {which} whose outcome is unknown: {found.says}")


def _may_be_settled_again(seen: Record, call: str) -> bool:
    """Return whether an operator can correct what is known of a call."""
    return seen.status in (FAILED, QUARANTINED) and known_of(seen, call).state in _KNOWN


def plan_forget(seen: Record, found: Explained) -> Planned:
    """Plan to forget a key, whatever has become of it."""
    _refuse_held(found)
    then = (
        f"{next_one(seen)} runs as if it were the first: an effect that took place can take place "
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
