"""Simulated rides, with everything that can go wrong before their events are consumed. Pure.

A ride depends only on the mode, the seed and its own number. So two simulations of one seed agree
on the rides that both have: a repeated or larger one only adds copies of known facts, and new
rides.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import cycle
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from carride import ride as rides
from carride.bus_entry import TOO_LARGE, BusEntry
from carride.decoding import FieldError
from carride.events import SIMULATOR_SOURCE, RideEvent, idempotency_id
from carride.facts import (
    CarRideAccepted,
    CarRideCancelled,
    CarRideCompleted,
    CarRideCreated,
    CarRideDestinationChanged,
    CarRideStarted,
    Fact,
)
from carride.simulated_faults import FAULT_EXTENSION, Fault
from carride.simulation_spec import DEFAULT_RIDES, LONGEST_LIFE, MOST_RIDES, Mode, Spec

# The city is a square of this many sectors a side, numbered by rows: sector_01 to sector_64.
BLOCKS: Final = 8

_BASE_FARE: Final = 300  # cents
_FARE_PER_SECTOR: Final = 125
_CANCELLED: Final = 0.1
# Of the driven rides: their destination, and so their price, changes on the way.
_REDIRECTED: Final = 0.1
_REASONS: Final = ("changed plans", "waited too long", "found another way")
_CUSTOMERS: Final = 400
_GROUP_SIZES: Final = (1, 1, 1, 2, 2, 3, 4)
# Positions in the order of publication; a ride begins at each whole number.
_BETWEEN_EVENTS: Final = 6.0
_COPY_WITHIN: Final = 20.0
_STEP: Final = timedelta(milliseconds=1)  # the time between the beginnings of two rides

_LATE: Final = "late"
_LATE_BY: Final = timedelta(hours=1)
_LATE_SINCE: Final = timedelta(minutes=30)
_YEARS: Final = range(2000, 9999)  # events have times before and after the present


class Kind(StrEnum):
    """The kinds of simulated entries."""

    FACT = "fact"
    COPY = "copy"  # of a fact
    MISSING_ID = "missing idempotency id"
    PARTIAL_ID = "partial idempotency id"
    UNKNOWN_TYPE = "unknown type"
    BROKEN_SHAPE = "broken shape"
    MALFORMED_DETAIL = "malformed detail"  # not JSON: the bus refuses it
    OVERSIZED = "oversized"  # larger than the bus takes


MALFORMED: Final = tuple(kind for kind in Kind if kind not in {Kind.FACT, Kind.COPY})
"""The kinds that break the contract."""


class SimulatedEntry(NamedTuple):
    """One entry to publish, and what to expect of it."""

    entry: BusEntry
    kind: Kind
    fact: str | None  # the idempotency id; None if the entry breaks the contract
    late: bool = False
    fault: Fault | None = None

    @property
    def injected(self) -> str | None:
        """What the entry tests its consumers with, as the simulator's answer names it.

        It is None for a plain fact.
        """
        if self.kind in MALFORMED:
            return "malformed"
        if self.kind is Kind.COPY:
            return Kind.COPY
        if self.late:
            return _LATE
        return self.fault


class _Slot(NamedTuple):
    """One entry's place in the order of publication."""

    position: float
    happened: float  # the position if nothing were out of order or sent twice
    kind: Kind
    number: int  # counts the facts, or the malformed events


class Simulation:
    """The entries of a simulation, which follow from its spec and its present.

    Its last event has just happened at the present.

    Raises:
        FieldError: the spec has two ends or none, or asks for more late and faulty facts than there
            are, or the year is impossible.
    """

    def __init__(self, spec: Spec, time: datetime) -> None:
        if time.year not in _YEARS:
            raise FieldError("time", f"the year must be from {_YEARS[0]} to {_YEARS[-1]}")
        self._spec = spec
        self._time = time
        self._lives = _lives(spec)
        self._facts = [
            (ride, step) for ride, facts in enumerate(self._lives) for step in range(len(facts))
        ]
        self._marks = self._choose_marks()
        self._slots = self._arrange()

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._slots)

    def entries(self, first: int = 0) -> Iterator[SimulatedEntry]:
        """Yield the entries in the order of publication, from the index ``first`` on."""
        envelopes = _chance(self._spec.seed, "envelopes")
        for index, slot in enumerate(self._slots):
            older = envelopes.random() < self._spec.older
            if index >= first:
                yield self._entry(slot, older=older)

    def _choose_marks(self) -> dict[int, str]:
        """Return the marks of the facts that are late or ask for a fault, by the fact's number."""
        spec = self._spec
        wanted = (
            ("late", _LATE, spec.late),
            ("crashes", Fault.CRASH, spec.crashes),
            ("fails", Fault.FAIL, spec.fails),
            ("poison", Fault.POISON, spec.poison),
            ("slow", Fault.SLOW, spec.slow),
        )
        free = list(range(len(self._facts)))
        _chance(spec.seed, "marks").shuffle(free)
        marks: dict[int, str] = {}
        for field, mark, asked in wanted:
            amount = _amount(asked, len(self._facts))
            if amount > len(free):
                having = f"{len(self._lives)} rides have {len(self._facts)} facts"
                raise FieldError(field, f"{amount} are too many: {having}")
            marks |= dict.fromkeys(free[:amount], mark)
            del free[:amount]
        return marks

    def _arrange(self) -> list[_Slot]:
        """Return the order of publication: rides overlap, events overtake others, copies follow."""
        spec = self._spec
        rides = len(self._lives)
        chance = _chance(spec.seed, "order")
        happened = {}
        for ride, step in self._facts:
            happened[ride, step] = ride + step * _BETWEEN_EVENTS + chance.random()
        published = dict(happened)
        for ride in chance.sample(range(rides), round(spec.out_of_order * rides)):
            overtaker = chance.randrange(1, len(self._lives[ride]))
            published[ride, overtaker] = happened[ride, overtaker - 1] - chance.random()
        slots = [
            _Slot(published[fact], happened[fact], Kind.FACT, number)
            for number, fact in enumerate(self._facts)
        ]
        for slot in chance.sample(slots, round(spec.duplicates * len(slots))):
            later = slot.position + chance.uniform(0, _COPY_WITHIN)
            slots.append(slot._replace(position=later, kind=Kind.COPY))
        malformed = _amount(spec.malformed, len(self._facts))
        for number, kind in zip(range(malformed), cycle(MALFORMED), strict=False):
            position = chance.uniform(0, rides)
            slots.append(_Slot(position, position, kind, number))
        return sorted(slots)

    def _entry(self, slot: _Slot, *, older: bool) -> SimulatedEntry:
        end = len(self._lives) + LONGEST_LIFE * _BETWEEN_EVENTS
        time = self._time - (end - slot.happened) * _STEP
        if slot.kind in MALFORMED:
            return self._malformed(slot, time)
        ride, step = self._facts[slot.number]
        facts = self._lives[ride][: step + 1]
        mark = self._marks.get(slot.number)
        is_late = mark == _LATE
        if is_late:
            event = to_event(facts, time - _LATE_BY, expirytime=self._time - _LATE_SINCE)
        else:
            asked = {FAULT_EXTENSION: mark} if mark else {}
            event = to_event(facts, time, extensions=asked)
        entry = BusEntry.of(event)
        if older and mark is None:  # the older envelope has no place for a mark
            entry = replace(entry, detail=_json(older_envelope(event)))
        fault = None
        if mark is not None and not is_late:
            fault = Fault(str(mark))
        return SimulatedEntry(entry, slot.kind, event.idempotencyid, is_late, fault)

    def _malformed(self, slot: _Slot, time: datetime) -> SimulatedEntry:
        """Return the entry of an event that breaks the contract."""
        facts = life(self._spec.seed, f"bad_{slot.number:05d}")
        event = to_event(facts[:1], time)
        return SimulatedEntry(broken(event, slot.kind), slot.kind, None)


def _lives(spec: Spec) -> list[list[Fact]]:
    """Return the facts of each ride, for ``rides`` rides or as many as fill the duration."""
    spec.check_end()
    if spec.duration is None or spec.rate is None:
        rides = DEFAULT_RIDES if spec.rides is None else spec.rides
        return [_life(spec, number) for number in range(rides)]
    wanted = spec.duration * spec.rate
    lives: list[list[Fact]] = []
    facts = 0
    while not lives or _entries(spec, facts) < wanted:
        if len(lives) == MOST_RIDES:
            raise FieldError("duration", f"takes more than {MOST_RIDES:,} rides at this rate")
        lives.append(_life(spec, len(lives)))
        facts += len(lives[-1])
    return lives


def _life(spec: Spec, number: int) -> list[Fact]:
    """Return the facts of the ride of this number, counted from 0."""
    if spec.mode is Mode.PREDEFINED:
        return predefined(spec.seed, number)
    return life(spec.seed, f"{number:05d}")


def _entries(spec: Spec, facts: int) -> int:
    """Return how many entries so many facts make, with their copies and the malformed events."""
    return facts + round(spec.duplicates * facts) + _amount(spec.malformed, facts)


def _amount(asked: float, facts: int) -> int:
    return asked if isinstance(asked, int) else round(asked * facts)


def life(seed: int, name: str) -> list[Fact]:
    """Return the facts of one ride, which is completed, redirected and completed, or cancelled."""
    chance = _chance(seed, name)
    pickup, destination = chance.sample(range(BLOCKS * BLOCKS), 2)
    customer = f"customer_{chance.randrange(1, _CUSTOMERS):03d}"
    passengers = chance.choice(_GROUP_SIZES)
    story: _Story = _DRIVEN
    if chance.random() < _CANCELLED:
        story = ("accept", chance.choice(_REASONS))
    elif chance.random() < _REDIRECTED:
        places = [place for place in range(BLOCKS * BLOCKS) if place not in {pickup, destination}]
        story = ("accept", "start", chance.choice(places), "complete")
    script = Script(customer, pickup, destination, passengers, story)
    return _happened(f"order_{seed}_{name}", script)


def predefined(seed: int, number: int) -> list[Fact]:
    """Return the facts of the predefined ride of this number, counted from 0."""
    return _happened(f"order_{seed}_predefined_{number:05d}", PREDEFINED[number % len(PREDEFINED)])


def _happened(order_id: str, script: "Script") -> list[Fact]:
    ride = rides.request(
        order_id=order_id,
        customer_id=script.customer_id,
        pickup=sector(script.pickup),
        destination=sector(script.destination),
        passengers=script.passengers,
        price=fare(script.pickup, script.destination),
    )
    facts: list[Fact] = [CarRideCreated.of(ride)]
    for step in script.story:
        ride = facts[-1]
        match step:
            case "accept":
                facts.append(CarRideAccepted.of(rides.accept(ride)))
            case "start":
                facts.append(CarRideStarted.of(rides.start(ride)))
            case "complete":
                facts.append(CarRideCompleted.of(rides.complete(ride)))
            case str(reason):
                facts.append(CarRideCancelled.of(rides.cancel(ride), reason=reason))
            case place:
                changed = rides.change_destination(ride, sector(place), fare(script.pickup, place))
                before = {"previous_destination": ride.destination, "previous_price": ride.price}
                facts.append(CarRideDestinationChanged.of(changed, **before))
    return facts


def sector(number: int) -> str:
    """Return the name of a sector, whose number counts from 0."""
    return f"sector_{number + 1:02d}"


def fare(pickup: int, destination: int) -> int:
    """Return the price of a ride in cents. Cars drive along the grid."""
    row, column = divmod(pickup, BLOCKS)
    to_row, to_column = divmod(destination, BLOCKS)
    distance = abs(row - to_row) + abs(column - to_column)
    return _BASE_FARE + _FARE_PER_SECTOR * distance


type _Story = tuple[str | int, ...]
"""The changes after the booking: accept, start, complete, the reason of a cancellation, or the new
destination."""


class Script(NamedTuple):
    """Everything that happens to a ride. Sectors are numbers, counted from 0."""

    customer_id: str
    pickup: int
    destination: int
    passengers: int
    story: _Story


_DRIVEN: Final = ("accept", "start", "complete")

PREDEFINED: Final = (
    Script("customer_a", 0, 2, 2, _DRIVEN),  # the ride of the sample events
    Script("customer_b", 0, BLOCKS * BLOCKS - 1, 4, _DRIVEN),  # across the whole city
    Script("customer_c", 9, 29, 1, ("accept", "waited too long")),
    Script("customer_d", 17, 18, 1, ("changed plans",)),  # before anybody accepted it
    Script("customer_e", 40, 44, 3, ("accept", "start", 47, "complete")),
)
"""The rides of the predefined mode, one for each way a ride can go."""


def to_event(
    facts: Sequence[Fact],
    time: datetime,
    *,
    expirytime: datetime | None = None,
    extensions: Mapping[str, str] | None = None,
) -> RideEvent:
    """Return the event of the last fact, caused by the fact before it."""
    *earlier, fact = facts
    trace = _chance(0, fact.order_id)
    event = RideEvent.of(
        fact,
        source=SIMULATOR_SOURCE,
        time=time,
        traceparent=f"00-{trace.getrandbits(128):032x}-{trace.getrandbits(64):016x}-01",
        expirytime=expirytime,
        extensions=extensions,
    )
    if not earlier:
        return event
    cause = earlier[-1]
    cause_id = idempotency_id(cause.order_id, type(cause).__name__, cause.version)
    return replace(event, causationid=cause_id)


def older_envelope(event: RideEvent) -> dict[str, Any]:
    """Return an event's detail in the envelope that producers wrote before CloudEvents."""
    return {
        "attributes": {
            "type": event.type,
            "source": event.source,
            "idempotencyId": event.idempotencyid,
            "eventTime": event.time.isoformat(),
            "eventCount": event.data.version,
        },
        "data": {name: value for name, value in event.payload.items() if name != "version"},
    }


def broken(event: RideEvent, kind: Kind) -> BusEntry:
    """Return the entry of an event that breaks the contract in one way."""
    entry = BusEntry.of(event)
    if kind is Kind.MALFORMED_DETAIL:
        return replace(entry, detail=entry.detail[:-1])
    detail = event.to_detail()
    match kind:
        case Kind.MISSING_ID:
            del detail["idempotencyid"]
        case Kind.PARTIAL_ID:
            detail["idempotencyid"] = event.idempotencyid[: len(event.idempotencyid) // 2]
        case Kind.UNKNOWN_TYPE:
            detail["type"] = "CarRideTeleported"
        case Kind.BROKEN_SHAPE:
            detail["data"]["passengers"] = "two"
        case Kind.OVERSIZED:
            detail["data"]["note"] = "x" * TOO_LARGE
    return replace(entry, detail=_json(detail))


def _json(detail: Mapping[str, Any]) -> str:
    return msgspec.json.encode(detail).decode()


def _chance(seed: int, purpose: str) -> random.Random:
    return random.Random(f"{seed}/{purpose}")  # noqa: S311 - a simulation, not a secret
