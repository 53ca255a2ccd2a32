"""What comes next for a ride: by operators, callers, retries and the reconciler. No I/O."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from carride.ride import OPEN, Status
from carride_idempotency import observation
from carride_idempotency.record import FAILED, IN_PROGRESS
from ops.audit.evidence import DISPATCH, PAYMENT
from ops.desk.deliveries import Delivered
from ops.desk.endings import ending_of
from ops.desk.facts import WAITING
from ops.desk.story_known import (
    COMMANDS,
    NEXT_COMMAND,
    SETTLEMENT,
    Known,
    Told,
    is_settled,
)
from ops.text import counted


class Next(NamedTuple):
    """What happens next."""

    short: str
    """In a word or two."""
    by: str
    """Whose turn it is."""
    due_ms: float | None = None


class Expected(NamedTuple):
    """An event that is not published yet, and who is to publish it."""

    type: str
    who: str


def expected_of(known: Known, told: Sequence[Told], status: str) -> Iterator[Expected]:
    """Yield the events that are to be published next, by consumers first."""
    types = {each.fact.type for each in told}
    if SETTLEMENT in types or not told:
        return
    car = known.tables["AssignmentTable"].get("state")
    paid = known.tables["PaymentTable"].get("state")
    if "CarRideAccepted" in types and car is None and status != "cancelled":
        yield Expected("CarAssigned", DISPATCH)
    if "CarAssigned" in types and paid in (None, "completed"):
        yield Expected("PaymentAuthorized", PAYMENT)
    ended = status in ("completed", "cancelled")
    if ended and car == "assigned":
        yield Expected("CarReleased", DISPATCH)
    if status == "completed" and paid == "authorized":
        yield Expected("PaymentCaptured", PAYMENT)
    if status == "cancelled" and paid in ("authorized", "undo due"):
        yield Expected("PaymentRefunded", PAYMENT)
    kind = NEXT_COMMAND.get(Status(status)) if status in set(Status) else None
    if kind is not None:
        if _word_of(known) in _STUCK:
            yield Expected("CarRideCancelled", "staff")
        yield Expected(kind, COMMANDS[kind][1])


def nexts_of(known: Known, status: str) -> Iterator[Next]:
    """Yield what happens next: what an operator or a caller can do, and what happens by itself."""
    letters = [each for each in known.deliveries if each.has_letter]
    if letters:
        yield _after_redrive(known, letters)
    for each in known.deliveries:
        yield from _after_retry(known, each)
    if status in set(OPEN) and not is_settled(known):
        yield _after_command(known, status)
    else:
        for each in known.deliveries:
            yield from _after_delivery(known, each)
    yield from _after_reconciler(known)


def _after_redrive(known: Known, letters: Sequence[Delivered]) -> Next:
    """Return that an operator decides about a ride's dead letters."""
    total = counted(sum(each.letters for each in letters), "dead letter")
    if any(known.has_failed_again(each) for each in letters):
        return Next("mend the cause", f"then redrive {total}")
    return Next("a redrive", f"your decision, {total}")


def _after_retry(known: Known, each: Delivered) -> Iterator[Next]:
    record = known.record(each)
    if record is None or each.has_letter or each.outcome in observation.COMMITTED:
        return
    if record.status == FAILED:
        yield Next("a retry", f"of {each.consumer}, by itself", each.retry_due_ms)
    if record.status == IN_PROGRESS and record.lease_ms is not None:
        yield Next("a lease ends", f"at {each.consumer}", float(record.lease_ms))


def _after_delivery(known: Known, each: Delivered) -> Iterator[Next]:
    """Yield that a consumer processes an event whose delivery is on its way."""
    if each.outcome == WAITING and not each.has_letter and known.record(each) is None:
        yield Next("a delivery", f"of {each.fact.type} to {each.consumer}")


def _after_command(known: Known, status: str) -> Next:
    command, who = COMMANDS[NEXT_COMMAND[Status(status)]]
    word = _word_of(known)
    if word in _STUCK:
        return Next("staff decides", _STUCK[word])
    return Next(f"{who} {command}s it", "nobody knows when")


def _word_of(known: Known) -> str:
    """Return where the ride is, in a word."""
    return ending_of([fact.type for fact, _ in known.found]).word


_STUCK: Final[Mapping[str, str]] = {
    "declined": "cancel it, or drive it unpaid",
    "unserved": "cancel it: it gets no car",
}
"""What staff can do about a ride that goes on without money or a car."""


def _after_reconciler(known: Known) -> Iterator[Next]:
    """Yield what the reconciler will do with a ride that stands still."""
    due = _overdue_at(known)
    if due is None:
        return
    # Payment may have heard of a completion of which the reconciler had not.
    is_open_again = known.tables["PaymentTable"].get("state") == "completed"
    if is_settled(known) and not is_open_again:
        return
    yield Next("the reconciler", "settles it, by itself", due)


def _overdue_at(known: Known) -> float | None:
    """Return from when on the reconciler, which runs every five minutes, settles the ride."""
    booking = known.tables["BookingTable"]
    since = [booking.get("changedAt")]
    if since == [None]:
        since = [item.get("openSince") for item in known.tables.values()]
    times = [datetime.fromisoformat(text) for text in since if isinstance(text, str)]
    if not times:
        return None
    return (min(times) + known.limit).timestamp() * 1000
