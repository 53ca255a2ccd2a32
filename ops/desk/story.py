"""What a ride's page says: its state and why, its car, its money, who did what, what comes next.

No I/O. The state of a ride follows from its facts and from the items that consumers have of it.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import assignments
import payments
import settlement
from carride.events import SIMULATOR_SOURCE, RideEvent, parse_event
from carride.facts import PaymentDeclined
from carride.ride import OPEN, Status
from carride_idempotency import observation
from carride_idempotency.record import FAILED, IN_PROGRESS, QUARANTINED, Record
from ops.audit.evidence import COPY, DISPATCH, PAYMENT
from ops.audit.queues import json_object
from ops.desk.changes import TRIALS, Change
from ops.desk.index import CRASHED, WAITING, Fact
from ops.desk.waterfall import Delivered
from ops.desk.words import clip, money, span
from ops.text import counted

LATE_MS: Final = 30_000.0
"""A delivery without an outcome for so long is worth a sentence."""
_RUNS_LONG_MS: Final = 5_000.0
_MOST_DEEDS: Final = 60
_MOST_NEXT: Final = 8
_EMITTERS: Final[Mapping[str, str]] = {
    **{fact.__name__: DISPATCH for fact in assignments.EMITTED},
    **{fact.__name__: PAYMENT for fact in payments.EMITTED},
}
"""Who adds a fact of a type."""
_COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "CarRideCreated": ("book", "a customer"),
    "CarRideAccepted": ("accept", "staff"),
    "CarRideStarted": ("start", "staff"),
    "CarRideCompleted": ("complete", "staff"),
    "CarRideCancelled": ("cancel", "owner or staff"),
    "CarRideDestinationChanged": ("changeDestination", "staff"),
}
"""The action of the API that publishes a fact, and who may ask for it."""
_NEXT_COMMAND: Final[Mapping[Status, str]] = {
    Status.REQUESTED: "CarRideAccepted",
    Status.ACCEPTED: "CarRideStarted",
    Status.STARTED: "CarRideCompleted",
}
_MEANS: Final[Mapping[tuple[str, str], str]] = {
    (DISPATCH, "CarRideAccepted"): "assigns a car",
    (DISPATCH, "CarRideCompleted"): "releases the car",
    (DISPATCH, "CarRideCancelled"): "releases the car, if it holds one",
    (DISPATCH, "PaymentDeclined"): "releases the car",
    (DISPATCH, "CarRideOverdue"): "releases the car, if it still holds one",
    (PAYMENT, "CarAssigned"): "reserves the money",
    (PAYMENT, "CarRideCompleted"): "captures the money",
    (PAYMENT, "CarRideCancelled"): "gives the money back, if any is reserved",
    (PAYMENT, "NoCarAvailable"): "charges nothing",
    (PAYMENT, "CarRideOverdue"): "settles what it holds",
}
"""What a consumer does on a fact."""
_UNDONE: Final[Mapping[tuple[str, str], str]] = {
    (DISPATCH, "CarRideAccepted"): "has not assigned a car",
    (DISPATCH, "CarRideCompleted"): "has not released the car",
    (DISPATCH, "CarRideCancelled"): "has not released the car, if there is one",
    (DISPATCH, "PaymentDeclined"): "has not released the car",
    (PAYMENT, "CarAssigned"): "has not reserved the {price}",
    (PAYMENT, "CarRideCompleted"): "has not captured the {price}",
    (PAYMENT, "CarRideCancelled"): "has not given the money back, if any is reserved",
}
"""What a consumer that gave a fact up has not done. Others lack no more than their record of it."""
_ENDINGS: Final = (
    ("PaymentCaptured", "paid", "new", "check"),
    ("PaymentDeclined", "declined", "take", "card"),
    ("NoCarAvailable", "unserved", "take", "car"),
    ("CarRideCancelled", "cancelled", "dup", "cross"),
    ("CarRideOverdue", "settled", "take", "robot"),
    ("CarRideCompleted", "completed", "pub", "clock"),
    ("CarRideStarted", "started", "pub", "clock"),
    ("CarRideAccepted", "accepted", "pub", "clock"),
)
"""Where a ride is, by the first of these events that it has: the audit's words for its end."""
_MONEY: Final[Mapping[str, tuple[str, str, str]]] = {
    "authorized": ("reserved", "wait", "clock"),
    "captured": ("captured", "new", "check"),
    "declined": ("declined", "take", "cross"),
    "refunded": ("given back", "dup", "swap"),
    "cancelled": ("not charged", "dup", "same"),
    "undo due": ("has to be given back", "take", "warn"),
    "completed": ("due, no car heard of", "wait", "clock"),
}
"""Payment's state in a word, with its look."""


class Who(NamedTuple):
    """Whoever caused an event."""

    icon: str
    name: str
    """A consumer, the reconciler, the simulator, a caller of the API."""
    command: str
    """The action of the API; empty if it was none."""


class State(NamedTuple):
    """The sentence of state: what holds the ride, and why."""

    kind: str
    icon: str
    title: str
    text: str
    error: str
    """The newest error of whatever holds it; empty if there is none."""
    letter: Delivered | None = None
    """The dead-lettered delivery that holds it."""
    record: Record | None = None
    """The record of the delivery that holds it."""


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


class Deed(NamedTuple):
    """What somebody did."""

    time_ms: float
    icon: str
    who: str
    what: str
    more: str = ""


class Next(NamedTuple):
    """What happens next."""

    icon: str
    short: str
    """In a word or two."""
    by: str
    """Whose turn it is."""
    title: str
    text: str
    due_ms: float | None = None
    command: str = ""
    """What an operator can type."""


class Ending(NamedTuple):
    """Where a ride is, in a word with its look."""

    word: str
    kind: str
    icon: str


def ending_of(types: Collection[str | None]) -> Ending:
    """Return where a ride is that has events of these types."""
    for kind, *look in _ENDINGS:
        if kind in types:
            return Ending(*look)
    return Ending("requested", "wait", "clock")


class Expected(NamedTuple):
    """An event that is not published yet, and who is to publish it."""

    type: str
    who: str


class Known(NamedTuple):
    """What was read of a ride."""

    ride: str
    found: Sequence[tuple[Fact, Sequence[Delivered]]]
    """Its events in the order of their times, with their deliveries."""
    tables: Mapping[str, Mapping[str, Any]]
    """What `ops.records.tables_of` returns."""
    records: Mapping[str, Record]
    """By key."""
    problems: Sequence[str]
    """What the audit says is wrong with it."""
    changes: Sequence[Change]
    """What operators did about it, as far as this machine knows."""
    limit: timedelta
    """After this time the reconciler settles a ride that stands still."""
    retries_on_aws: bool
    """Whether Lambda's own delays between attempts apply."""
    now_ms: float

    @property
    def deliveries(self) -> list[Delivered]:
        """The deliveries of all events."""
        return [each for _, delivered in self.found for each in delivered]

    def record(self, each: Delivered) -> Record | None:
        """Return the record of a delivery."""
        return self.records.get(f"{each.consumer}#{each.fact.id}")


class Story(NamedTuple):
    """What the page says."""

    about: tuple[str, ...]
    begun_ms: float | None
    status: str
    state: State | None
    tiles: tuple[Tile, ...]
    deeds: tuple[Deed, ...]
    nexts: tuple[Next, ...]
    expected: tuple[Expected, ...]
    who: Mapping[str, Who]
    """Who caused each event, by its id."""
    emitters: Mapping[str, tuple[str, str]]
    """The event and the consumer that each emitted event follows from, by its id."""


# ── Facts ─────────────────────────────────────────────────────────────────────────────────────────


class Told(NamedTuple):
    """A fact with its content."""

    fact: Fact
    event: RideEvent

    @property
    def data(self) -> Any:
        """The fact itself."""
        return self.event.data


def told_in(facts: Iterable[Fact]) -> list[Told]:
    """Return the facts that honour the contract, with their content."""
    found = []
    for fact in facts:
        try:
            found.append(Told(fact, parse_event(json_object(fact.body) or {})))
        except ValueError:
            continue  # it has no ride, and so no story
    return found


def who_caused(told: Told) -> Who:
    """Return who caused an event: the code that emits its type, or a caller of the API."""
    kind = type(told.data).__name__
    if kind in _EMITTERS:
        return Who("cause", _EMITTERS[kind], "")
    if told.fact.ride and COPY in told.fact.ride:
        return Who("wrench", "the desk", "")
    if kind == "CarRideOverdue" or getattr(told.data, "reason", None) == settlement.REASON:
        return Who("robot", "the reconciler", "")
    if told.event.source == SIMULATOR_SOURCE:
        return Who("robot", "the simulator", "")
    command, name = _COMMANDS.get(kind, ("", told.event.source))
    return Who("user", name, command)


def _emitters(told: Sequence[Told]) -> dict[str, tuple[str, str]]:
    """Return the cause of each event that a consumer has emitted."""
    found = {}
    for each in told:
        emitter = _EMITTERS.get(type(each.data).__name__)
        if emitter and each.event.causationid:
            found[each.fact.id] = each.event.causationid, emitter
    return found


def _latest(told: Sequence[Told]) -> Told | None:
    """Return the newest version of the ride; facts of one version have the same."""
    return max(told, key=lambda each: each.data.version, default=None)


# ── The story ─────────────────────────────────────────────────────────────────────────────────────


def story_of(known: Known) -> Story:
    """Return what the page of a ride says."""
    told = told_in(fact for fact, _ in known.found)
    latest = _latest(told)
    status = _status(known, latest)
    expected = tuple(_expected(known, told, status))
    state = _state(known, told, status)
    nexts = tuple(_nexts(known, status))[:_MOST_NEXT]
    deeds = [*_deeds(told), *_deeds_of_consumers(known), *_deeds_of_operators(known)]
    deeds.sort(key=lambda deed: deed.time_ms)
    return Story(
        about=tuple(_about(known, latest)),
        begun_ms=min((fact.time_ms for fact, _ in known.found), default=None),
        status=status,
        state=state,
        tiles=(
            _booking(known, told, latest, status),
            _car(known, told),
            _money(known, latest),
            _next_tile(nexts),
        ),
        deeds=tuple(deeds[-_MOST_DEEDS:]),
        nexts=nexts,
        expected=expected,
        who={each.fact.id: who_caused(each) for each in told},
        emitters=_emitters(told),
    )


def _status(known: Known, latest: Told | None) -> str:
    """Return the status of the ride: as it was booked, or as its newest event says."""
    booked = known.tables["BookingTable"].get("status")
    if booked is not None:
        return str(booked)
    return str(latest.data.status) if latest else "unknown"


def _about(known: Known, latest: Told | None) -> Iterator[str]:
    if latest is None:
        return
    ride = latest.data
    yield f"{ride.pickup} → {ride.destination}"
    yield counted(ride.passengers, "passenger")
    yield ride.customer_id
    owner = known.tables["BookingTable"].get("owner")
    if owner and owner != ride.customer_id:
        yield f"booked by {clip(str(owner), 60)}"


# ── The sentence of state ─────────────────────────────────────────────────────────────────────────


def _state(known: Known, told: Sequence[Told], status: str) -> State | None:
    """Return what holds the ride: the first of these that is so; None if all is well."""
    if known.problems:
        return State(
            "fail",
            "cross",
            "This ride is broken",
            f"The audit says: {'; '.join(map(_clause, known.problems))}.",
            "",
        )
    for find in (_given_up, _failing, _running, _late, _refused):
        found = find(known, told, status)
        if found is not None:
            return found
    return None


def _clause(problem: str) -> str:
    """Return what the audit says is wrong, with a subject: some problems begin with their verb."""
    return f"it {problem}" if problem.startswith(("has ", "was ")) else problem


def _given_up(known: Known, told: Sequence[Told], status: str) -> State | None:
    """Return the state of a ride with a dead letter."""
    letters = [each for each in known.deliveries if each.has_letter]
    if not letters:
        return None
    first = letters[-1]
    kind = first.fact.type or "an event"
    record = known.record(first)
    total = sum(each.letters for each in letters)
    if _is_settled(known):
        title = f"Settled, with {counted(total, 'dead letter')} left"
        sentences = [*_settled(known, told, first)]
    else:
        title = f"{status.capitalize()}, and {first.consumer} gave up {kind}"
        sentences = [*_undone(told, first)]
    sentences += [_where(first, record), *_others(letters[:-1])]
    return State(
        "dead",
        "mail",
        title,
        " ".join(sentences),
        _error(first, record),
        letter=first,
        record=record,
    )


def _undone(told: Sequence[Told], each: Delivered) -> Iterator[str]:
    """Yield what a consumer that gave an event up has not done."""
    latest = _latest(told)
    kind = each.fact.type or ""
    undone = _UNDONE.get((each.consumer, kind))
    if undone is None or latest is None:
        return
    price = _price(latest.data)
    what = undone.format(price=price)
    yield f"{each.consumer} {what}."


def _where(each: Delivered, record: Record | None) -> str:
    """Return where the letters of a delivery wait, and whether anything runs by itself."""
    waits = f"{each.consumer}'s letter waits in {each.letter_queue}"
    if each.letters > 1:
        waits = f"{each.letters} letters wait in {each.letter_queue}: copies of one event"
    if record is not None and record.status == QUARANTINED:
        waits += "; its key is quarantined, so no delivery runs by itself"
    return f"{waits}."


def _others(letters: Sequence[Delivered]) -> Iterator[str]:
    """Yield which other letters of the ride there are, if there are any."""
    by_queue = Counter[str]()
    for each in letters:
        by_queue[str(each.letter_queue)] += each.letters
    if by_queue:
        where = _joined([f"{count} in {queue}" for queue, count in by_queue.items()])
        yield f"The ride has {counted(by_queue.total(), 'more letter')}: {where}."


def _settled(known: Known, told: Sequence[Told], letter: Delivered) -> Iterator[str]:
    """Yield how a ride was settled whose consumers have given up an event."""
    kind = letter.fact.type
    given_up = [
        each.consumer for each in known.deliveries if each.has_letter and each.fact is letter.fact
    ]
    yield f"{kind} was published, and {_joined(given_up)} gave it up."
    overdue = next(each for each in told if each.fact.type == "CarRideOverdue")
    settled = f"The reconciler then settled the ride as {overdue.data.outcome}"
    paid = known.tables["PaymentTable"]
    is_captured = paid.get("state") == "captured" and isinstance(paid.get("amount"), int)
    if not is_captured:
        yield f"{settled}."
        return
    amount = money(paid["amount"], str(paid.get("currency", "")))
    if overdue.data.outcome == "completed":
        yield f"{settled}, and {amount} is captured."
    else:
        yield (
            f"{settled}. {amount} is captured all the same: the gateway had done that before "
            "payment's attempt failed, and such a capture stays."
        )


def _joined(parts: Sequence[str]) -> str:
    """Return parts of a sentence with commas, and ``and`` before the last one."""
    *others, last = parts
    return f"{', '.join(others)} and {last}" if others else last


def _refused(known: Known, told: Sequence[Told], status: str) -> State | None:
    """Return the state of a ride whose money was declined, or for which no car was free."""
    if status == Status.CANCELLED or _is_settled(known):
        return None
    refusals = [each for each in told if each.fact.type in ("PaymentDeclined", "NoCarAvailable")]
    if not refusals:
        return None
    refusal = refusals[-1].data
    if isinstance(refusal, PaymentDeclined):
        title = f"Payment declined: {clip(refusal.reason, 100)}"
        is_free = known.tables["AssignmentTable"].get("state") == "released"
        has_car = "The car is released. " if is_free else ""
        if status == Status.COMPLETED:
            return State("take", "card", title, "The ride was driven, and nobody pays for it.", "")
        text = f"{has_car}Staff can cancel the ride; if it is driven, nobody pays for it."
        return State("take", "card", title, text, "")
    why = f": {clip(refusal.reason, 100)}" if refusal.reason else ""
    text = "dispatch does not look again. Staff can cancel the ride, and nothing is charged."
    if status == Status.COMPLETED:
        text = "The ride is completed without a car of the fleet, and nothing is charged."
    return State("take", "car", f"No car was free{why}", text, "")


def _failing(known: Known, _told: Sequence[Told], _status: str) -> State | None:
    """Return the state of a ride with an attempt that failed and comes again."""
    for each in reversed(known.deliveries):
        record = known.record(each)
        if record is None or record.status != FAILED or each.outcome in observation.COMMITTED:
            continue
        failed = counted(record.attempt, "time")
        return State(
            "take",
            "retry",
            f"{each.consumer} failed {failed} on {each.fact.type}",
            f"It is tried again {_when_again(known, each)}. Nothing is lost.",
            _error(each, record),
            record=record,
        )
    return None


def _running(known: Known, _told: Sequence[Told], _status: str) -> State | None:
    """Return the state of a ride with an attempt that runs for long, or has crashed."""
    for each in reversed(known.deliveries):
        record = known.record(each)
        if record is None or record.status != IN_PROGRESS:
            continue
        held_ms = known.now_ms - record.updated_ms
        if record.lease_ms is not None and record.lease_ms < known.now_ms:
            return State(
                "take",
                "swap",
                f"{each.consumer} has crashed on {each.fact.type}",
                f"Its lease ended {span(known.now_ms - record.lease_ms)} ago. "
                "The next delivery takes over.",
                "",
                record=record,
            )
        if held_ms >= _RUNS_LONG_MS:
            left = "" if record.lease_ms is None else _lease(record.lease_ms - known.now_ms)
            return State(
                "wait",
                "clock",
                f"{each.consumer} has been at {each.fact.type} for {span(held_ms)}",
                f"Attempt {record.attempt} holds the key.{left}",
                "",
                record=record,
            )
    return None


def _lease(left_ms: float) -> str:
    return (
        f" Its lease ends in {span(left_ms)}, unless it renews it; then another delivery may take "
        "over."
    )


def _late(known: Known, _told: Sequence[Told], _status: str) -> State | None:
    """Return the state of a ride with an event that no consumer has got for long."""
    for fact, delivered in known.found:
        late = [each.consumer for each in delivered if each.outcome == WAITING]
        if late and known.now_ms - fact.time_ms >= LATE_MS:
            return State(
                "wait",
                "clock",
                f"{', '.join(late)} has not heard of {fact.type}",
                f"It was published {span(known.now_ms - fact.time_ms)} ago. A delivery may wait in "
                "a queue, or an attempt has crashed without a word: the transport tries again.",
                "",
            )
    return None


def _error(each: Delivered, record: Record | None) -> str:
    """Return the newest error of a delivery."""
    if record is not None and record.error:
        return record.error
    reasons = [run.reason for run in each.counting if run.reason]
    letter = each.fact.letters.get(each.consumer)
    if reasons:
        return reasons[-1]
    return letter.reason if letter is not None else ""


def _when_again(known: Known, each: Delivered) -> str:
    if each.retry_due_ms is not None and each.retry_due_ms > known.now_ms:
        return f"in about {span(each.retry_due_ms - known.now_ms)}"
    if each.retry_due_ms is not None:
        return "now"
    return "within seconds on this machine" if not known.retries_on_aws else "by its transport"


def _is_settled(known: Known) -> bool:
    return any(fact.type == "CarRideOverdue" for fact, _ in known.found)


# ── Tiles ─────────────────────────────────────────────────────────────────────────────────────────


def _booking(known: Known, told: Sequence[Told], latest: Told | None, status: str) -> Tile:
    if latest is None:
        return Tile("user", "Booking", status, "no event of it is known")
    changes = [each for each in told if each.data.version == latest.data.version]
    change = next((each for each in changes if type(each.data).__name__ in _COMMANDS), latest)
    who = who_caused(change)
    word = ending_of([fact.type for fact, _ in known.found]).word
    booked = "" if word == status else f"{status}, "
    return Tile(
        "user",
        "Ride",
        word,
        f"{booked}version {latest.data.version}, by {who.name},",
        time_ms=change.fact.time_ms,
    )


def _car(known: Known, told: Sequence[Told]) -> Tile:
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
        return Tile(
            "car", "Car", "none was free", "dispatch does not look again", chip=_LOOK_NO_CAR
        )
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


def _money(known: Known, latest: Told | None) -> Tile:
    item = known.tables["PaymentTable"]
    state = item.get("state")
    price = None
    if latest is not None:
        price = money(latest.data.price, latest.data.currency)
    if state is None:
        detail = "payment reserves it once the ride has a car"
        return Tile(
            "card", "Money", price or "unknown", detail, chip=("not reserved", "wait", "clock")
        )
    amount = price or "unknown"
    if isinstance(item.get("amount"), int):
        amount = money(item["amount"], str(item.get("currency", "")))
    chip = _MONEY.get(str(state), (str(state), "wait", "clock"))
    detail = f"price {price}" if price and price != amount else "payment"
    return Tile("card", "Money", amount, detail, id=str(item.get("paymentID", "")), chip=chip)


def _next_tile(nexts: Sequence[Next]) -> Tile:
    if not nexts:
        return Tile("clock", "Next", "nothing", "the ride has ended, and nothing is due")
    first = nexts[0]
    if first.due_ms is None:
        return Tile("clock", "Next", first.short, first.by)
    return Tile("clock", "Next", "", first.short, time_ms=first.due_ms)


# ── What comes next ───────────────────────────────────────────────────────────────────────────────


def _expected(known: Known, told: Sequence[Told], status: str) -> Iterator[Expected]:
    """Yield the events that are to be published next, by consumers first."""
    types = {each.fact.type for each in told}
    if "CarRideOverdue" in types or not told:
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
    kind = _NEXT_COMMAND.get(Status(status)) if status in set(Status) else None
    if kind is not None:
        yield Expected(kind, _COMMANDS[kind][1])


def _nexts(known: Known, status: str) -> Iterator[Next]:
    """Yield what happens next: what an operator or a caller can do, and what happens by itself."""
    letters = [each for each in known.deliveries if each.has_letter]
    if letters:
        yield _after_redrive(known, letters)
    for each in known.deliveries:
        yield from _after_retry(known, each)
    if status in set(OPEN):
        yield _after_command(known, status)
    yield from _after_reconciler(known, status)


def _after_redrive(known: Known, letters: Sequence[Delivered]) -> Next:
    """Return what a redrive of a ride's dead letters does."""
    by_type: dict[str, list[str]] = {}
    for each in letters:
        by_type.setdefault(each.fact.type or "an event", []).append(each.consumer)
    names = _joined([f"{kind} at {_joined(names)}" for kind, names in by_type.items()])
    is_quarantined = any(
        record is not None and record.status == QUARANTINED for record in map(known.record, letters)
    )
    frees = ""
    if is_quarantined:
        frees = (
            "Each key is released first. " if len(letters) > 1 else "Its key is released first. "
        )
    if _is_settled(known):
        does = "The ride is settled: car and money stay as they are."
    else:
        comes_back = "If it fails again, the letter comes back."
        if len(letters) > 1:
            comes_back = "Whatever fails again comes back as a letter."
        does = f"{' '.join(dict.fromkeys(map(_does, letters)))} {comes_back}"
    total = sum(each.letters for each in letters)
    return Next(
        "wrench",
        "a redrive",
        f"your decision, {counted(total, 'dead letter')}",
        f"if you redrive {names}",
        f"{frees}{does}",
    )


def _does(each: Delivered) -> str:
    """Return what a consumer does with an event, as a sentence."""
    does = _MEANS.get((each.consumer, each.fact.type or ""), f"processes {each.fact.type}")
    return f"{each.consumer} {does}."


def _after_retry(known: Known, each: Delivered) -> Iterator[Next]:
    record = known.record(each)
    if record is None or each.has_letter or each.outcome in observation.COMMITTED:
        return
    if record.status == FAILED:
        yield Next(
            "retry",
            "a retry",
            f"of {each.consumer}, by itself",
            f"{each.consumer} tries {each.fact.type} again",
            f"After {counted(record.attempt, 'failure')}. If it succeeds: {_does(each)}",
            each.retry_due_ms,
        )
    if record.status == IN_PROGRESS and record.lease_ms is not None:
        yield Next(
            "swap",
            "a lease ends",
            f"at {each.consumer}",
            f"{each.consumer}'s lease on {each.fact.type} ends",
            "Unless the attempt commits or renews it before. Another delivery then takes over.",
            float(record.lease_ms),
        )


def _after_command(known: Known, status: str) -> Next:
    kind = _NEXT_COMMAND[Status(status)]
    command, who = _COMMANDS[kind]
    word = ending_of([fact.type for fact, _ in known.found]).word
    if word in _STUCK:
        return Next(
            "user",
            "staff decides",
            _STUCK[word],
            f"when staff cancels it, or {command}s it",
            f"CarRideCancelled is published then, or {kind}.",
            command=f"./carride cancel {known.ride} --yes",
        )
    return Next(
        "user",
        f"{who} {command}s it",
        "nobody knows when",
        f"when {who} {command}s it",
        f"{kind} is published then.",
        command=f"./carride {command} {known.ride} --yes",
    )


_STUCK: Final[Mapping[str, str]] = {
    "declined": "cancel it, or drive it unpaid",
    "unserved": "cancel it: it gets no car",
}
"""What staff can do about a ride that goes on without money or a car."""


def _after_reconciler(known: Known, status: str) -> Iterator[Next]:
    """Yield what the reconciler will do with a ride that stands still."""
    due = _overdue_at(known)
    if due is None or _is_settled(known):
        return
    hours = span(known.limit / timedelta(milliseconds=1))
    if status in set(OPEN):
        text = f"It cancels a ride to which nothing happens for {hours}: car and money are freed."
    else:
        text = (
            f"It settles a ride that still needs something after {hours}: payment and dispatch "
            "settle what they hold. Letters stay in their queues."
        )
    title = "if nothing happens, the reconciler acts"
    yield Next("robot", "the reconciler", "by itself", title, text, due)


def _overdue_at(known: Known) -> float | None:
    """Return from when on the reconciler, which runs every five minutes, settles the ride."""
    booking = known.tables["BookingTable"]
    since = [booking.get("changedAt", booking.get("openSince"))]
    if since == [None]:
        since = [item.get("openSince") for item in known.tables.values()]
    times = [datetime.fromisoformat(text) for text in since if isinstance(text, str)]
    if not times:
        return None
    return (min(times) + known.limit).timestamp() * 1000


# ── Who did what ──────────────────────────────────────────────────────────────────────────────────


def _deeds(told: Sequence[Told]) -> Iterator[Deed]:
    """Yield what each fact says that somebody did."""
    for each in told:
        who = who_caused(each)
        what, more = _did(each.data)
        icon = "user" if who.command else _DEED_ICONS.get(who.name, who.icon)
        yield Deed(each.fact.time_ms, icon, who.name, what, clip(more))


_DEED_ICONS: Final[Mapping[str, str]] = {DISPATCH: "car", PAYMENT: "card"}


def _did(data: Any) -> tuple[str, str]:
    """Return what a fact says that was done, and its details."""
    kind = type(data).__name__
    if kind in _DID:
        return _DID[kind](data)
    return f"{kind.removeprefix('CarRide').lower()} it", ""


def _price(data: Any) -> str:
    return money(data.price, data.currency)


def _amount(data: Any) -> str:
    return money(data.amount, data.currency)


_DID: Final[Mapping[str, Callable[[Any], tuple[str, str]]]] = {
    "CarRideCreated": lambda ride: (
        "booked it",
        f"{ride.pickup} → {ride.destination}, {_price(ride)}",
    ),
    "CarRideDestinationChanged": lambda ride: (
        "changed where it goes",
        f"{ride.previous_destination} → {ride.destination}, {_price(ride)}",
    ),
    "CarRideCancelled": lambda ride: ("cancelled it", ride.reason),
    "CarAssigned": lambda ride: (f"assigned {ride.car_id}", ""),
    "CarReleased": lambda ride: (f"released {ride.car_id}", ""),
    "NoCarAvailable": lambda ride: ("found no car", ride.reason or ""),
    "PaymentAuthorized": lambda ride: (f"reserved {_amount(ride)}", ride.payment_id),
    "PaymentDeclined": lambda ride: (f"could not reserve {_amount(ride)}", ride.reason),
    "PaymentCaptured": lambda ride: (f"captured {_amount(ride)}", ride.payment_id),
    "PaymentRefunded": lambda ride: (f"gave {_amount(ride)} back", ride.payment_id),
    "CarRideOverdue": lambda ride: (f"settled it as {ride.outcome}", ""),
}
"""What somebody did, and its details, by the type of the fact that says so."""


def _deeds_of_consumers(known: Known) -> Iterator[Deed]:
    """Yield what consumers did that is no event: takeovers, fenced writes, what was given up."""
    for each in known.deliveries:
        for run in each.counting:
            what = _UNUSUAL.get(run.outcome)
            if what is not None:
                did = what[0].format(each.fact.type)
                if run.outcome == observation.TAKEOVER:
                    did += _taken_from(each)
                yield Deed(run.ended_ms, what[1], each.consumer, did)
        replays = [copy for copy in each.fact.copies if copy.replayed]
        if replays and each is next(iter(known.deliveries), None):
            yield Deed(
                replays[-1].time_ms, "replay", "a replay", f"delivered {each.fact.type} again"
            )


_UNUSUAL: Final[Mapping[str, tuple[str, str]]] = {
    observation.TAKEOVER: ("took {} over", "swap"),
    observation.LOST_LEASE: ("came late with {}: its write was fenced off", "shield"),
    observation.FAILED: ("failed on {}", "cross"),
    observation.DEAD_LETTERED: ("gave {} up, and put it into its dead-letter queue", "mail"),
    observation.EXPIRED: ("dropped {}: its expiry time had passed", "clock"),
}
"""What an outcome says that a consumer did, with an icon."""


def _taken_from(each: Delivered) -> str:
    """Return from which attempt a delivery has taken an event over."""
    outcomes = {run.outcome for run in each.counting}
    if observation.LOST_LEASE in outcomes:
        return " from an attempt that had stalled past its lease"
    if CRASHED in outcomes:
        return " from an attempt that had crashed"
    return " from an attempt that had not ended"


def _deeds_of_operators(known: Known) -> Iterator[Deed]:
    """Yield what operators did, by the log of changes."""
    types = {fact.id: fact.type for fact, _ in known.found}
    for change in known.changes:
        plan = f"plan {change.plan}" if change.plan else ""
        parts = [plan, f"it failed: {change.error}" if change.error else ""]
        more = "; ".join(filter(None, parts))
        if change.verb == "release" and change.key:
            what = _named_key(change.key, types)
            yield Deed(change.time_ms, "wrench", "an operator", f"released the key of {what}", more)
            continue
        sent = [each for each in change.sent if each.key.partition("#")[2] in types]
        for each in sent:
            did = f"redrove {_named_key(each.key, types)}"
            frees = "its key was released" if each.releases else ""
            told = "; ".join(filter(None, [more, frees, TRIALS.get(each.trial, "")]))
            yield Deed(change.time_ms, "wrench", "an operator", did, told)
        if not sent:
            yield Deed(change.time_ms, "wrench", "an operator", f"ran {change.words}", more)


def _named_key(key: str, types: Mapping[str, str | None]) -> str:
    """Return a key as its event and its consumer."""
    consumer, _, name = key.partition("#")
    return f"{types.get(name) or name} at {consumer}"
