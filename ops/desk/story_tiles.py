"""The tiles of a ride's page: where it is, its car, its money, what is next. No I/O."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ops.audit.evidence import DISPATCH
from ops.desk.endings import ending_of
from ops.desk.story_known import COMMANDS, Known, Settled, Told, settled_in, who_caused
from ops.desk.story_nexts import Next
from ops.desk.words import money
from ops.text import span

_MONEY: Final[Mapping[str, tuple[str, str, str]]] = {
    "authorized": ("reserved", "wait", "clock"),
    "captured": ("captured", "new", "check"),
    "declined": ("declined", "take", "cross"),
    "refunded": ("given back", "dup", "swap"),
    "cancelled": ("nothing charged", "dup", "same"),
    "undo due": ("has to be given back", "take", "warn"),
    "completed": ("due, no car heard of", "wait", "clock"),
    "unknown": ("perhaps reserved", "take", "warn"),
}
"""Payment's state in a word, with its look."""


_SETTLED: Final = "settled"


class Tile(NamedTuple):
    """One of the four things that one looks at first."""

    icon: str
    label: str
    value: str
    detail: str
    id: str = ""
    """An id that belongs to the detail."""
    chip: tuple[str, str, str] | None = None
    """Word, kind and icon."""
    time_ms: float | None = None
    """When it came to be so."""


def booking_tile(known: Known, told: Sequence[Told], latest: Told | None, status: str) -> Tile:
    """Return where the ride is, and who has brought it there."""
    if latest is None:
        return Tile("user", "Booking", status, "no event of it is known")
    changes = [each for each in told if each.data.version == latest.data.version]
    change = next((each for each in changes if type(each.data).__name__ in COMMANDS), latest)
    who = who_caused(change)
    word = ending_of([fact.type for fact, _ in known.found]).word
    settled = settled_in(told)
    if settled is not None:
        return _settled_tile(word, settled)
    booked = "" if word == status else f"{status}, "
    return Tile(
        "user",
        "Ride",
        word,
        f"{booked}version {latest.data.version}, by {who.name},",
        time_ms=change.fact.time_ms,
    )


def _settled_tile(word: str, settled: Settled) -> Tile:
    """Return as what a ride was settled, and that it was completed all the same."""
    detail = f"settled as {settled.outcome} by the reconciler,"
    if word == _SETTLED:
        detail = f"as {settled.outcome}, by the reconciler,"
    if settled.completed is None:
        return Tile("user", "Ride", word, detail, time_ms=settled.time_ms)
    when = "afterwards" if settled.is_completed_later else "before"
    who = who_caused(settled.completed)
    return Tile(
        "user",
        "Ride",
        word,
        f"{detail} and completed {when}, by {who.name},",
        time_ms=settled.completed.fact.time_ms,
    )


def car_tile(known: Known, told: Sequence[Told]) -> Tile:
    """Return which car the ride has, or why it has none."""
    item = known.tables["AssignmentTable"]
    state = item.get("state")
    car = str(item.get("carID", ""))
    if state == "assigned":
        since = _time_of(told, "CarAssigned")
        return Tile("car", "Car", "assigned", "held since", id=car, time_ms=since)
    if state == "released":
        held = _held(told)
        return Tile("car", "Car", "released", f"held for {held}" if held else "free again", id=car)
    if state == "unserved":
        return Tile("car", "Car", "none", "dispatch does not look again", chip=_LOOK_NO_CAR)
    if state == "cancelled":
        return Tile("car", "Car", "none", "called off before it got one")
    return Tile("car", "Car", "none yet", _why_no_car(known, state))


def _why_no_car(known: Known, state: object) -> str:
    """Return why a ride has no car so far."""
    if state == "completed":
        return "dispatch waits for the acceptance"
    for each in known.deliveries:
        if (each.consumer, each.fact.type) == (DISPATCH, "CarRideAccepted"):
            if each.has_letter:
                return "dispatch gave up CarRideAccepted"
            return "dispatch has not processed CarRideAccepted yet"
    return "dispatch looks for one once the ride is accepted"


_LOOK_NO_CAR: Final = ("unserved", "take", "car")


def _time_of(told: Sequence[Told], kind: str) -> float | None:
    return next((each.fact.time_ms for each in told if each.fact.type == kind), None)


def _held(told: Sequence[Told]) -> str | None:
    """Return how long the ride had its car."""
    begin = _time_of(told, "CarAssigned")
    end = _time_of(told, "CarReleased")
    if begin is None or end is None:
        return None
    return span(end - begin)


def money_tile(known: Known, latest: Told | None) -> Tile:
    """Return what is reserved or paid."""
    item = known.tables["PaymentTable"]
    state = item.get("state")
    price = None
    if latest is not None:
        price = money(latest.data.price, latest.data.currency)
    if state is None:
        chip = ("not reserved", "wait", "clock")
        return Tile("card", "Money", price or "unknown", "", chip=chip)
    amount = price or "unknown"
    if isinstance(item.get("amount"), int):
        amount = money(item["amount"], str(item.get("currency", "")))
    chip = _MONEY.get(str(state), (str(state), "wait", "clock"))
    if state == "cancelled":
        # An amount beside "nothing charged" would read as if it were owed.
        why = f"the price was {price}" if price else "payment"
        return Tile("card", "Money", "none", why, chip=chip)
    detail = f"price {price}" if price and price != amount else "payment"
    return Tile("card", "Money", amount, detail, id=str(item.get("paymentID", "")), chip=chip)


def next_tile(nexts: Sequence[Next]) -> Tile:
    """Return what happens next, and whose turn it is."""
    if not nexts:
        return Tile("clock", "Next", "nothing", "the ride has ended, and nothing is due")
    first = nexts[0]
    if first.due_ms is None:
        return Tile("clock", "Next", first.short, first.by)
    return Tile("clock", "Next", "", first.short, time_ms=first.due_ms)
