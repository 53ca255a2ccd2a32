"""How every ride ended, and whether cars, payments and events agree about it. No I/O.

A ride ends in one of a few ways: paid, declined, without a car, cancelled. Until then it is open.
It waits for redrive while one of its events lies in a dead-letter queue or was dropped as expired.
Events, the tables of dispatch and payment, and the gateway's ledger all describe it. If they
contradict each other, the ride is broken. If it has needed something for longer than a limit, it is
overdue.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from carride.facts import STATUS_AFTER
from carride.overdue import LIMIT
from carride_idempotency import observation
from ops.audit.evidence import (
    CHANGES,
    DISPATCH,
    PAYMENT,
    AuditedConsumer,
    BookedRide,
    Evidence,
    GatewayPayment,
    Published,
    RideItem,
    grouped,
)
from ops.audit.missing import Missing, missing_at
from ops.audit.problems import Broken, Need, Overdue, Problem
from ops.audit.sentences import says
from ops.text import Row, at_most, command, counted, laid_out, row

_OVERDUE: Final = "CarRideOverdue"
"""The reconciler's event. It settles the ride."""
_COMPLETED: Final = "CarRideCompleted"
_CANCELLED: Final = "CarRideCancelled"
_ENDED: Final = frozenset({_COMPLETED, _CANCELLED, _OVERDUE})
_EMITTED: Final[Mapping[str, Mapping[str, frozenset[str]]]] = {
    DISPATCH: {
        "CarAssigned": frozenset({"assigned", "released"}),
        "CarReleased": frozenset({"released"}),
        "NoCarAvailable": frozenset({"unserved"}),
    },
    PAYMENT: {
        "PaymentAuthorized": frozenset({"authorized", "captured"}),
        "PaymentDeclined": frozenset({"declined"}),
        "PaymentCaptured": frozenset({"captured"}),
        "PaymentRefunded": frozenset({"refunded"}),
    },
}
"""What a consumer emits, and the states of a ride in which it has done so."""
_TYPES: Final = sorted(name for types in _EMITTED.values() for name in types)
_MAY_PRECEDE: Final[Mapping[str, frozenset[str]]] = {
    "declined": frozenset({"PaymentAuthorized"}),
    "refunded": frozenset({"PaymentAuthorized", "PaymentCaptured"}),
    "undo due": frozenset({"PaymentAuthorized", "PaymentCaptured"}),
}
"""What payment may have emitted, or not, before a ride reached a state. A capture can be refused
permanently after the reservation, and money can be returned before an event about it was
emitted."""
_UNPAID: Final = frozenset({"cancelled", "declined", "refunded"})
"""The final states of a payment that has brought no money."""
_EXPLAINED: Final = _UNPAID | {"captured", "undo due"}
"""The states of payment after which a driven ride waits for nothing that nobody knows of."""
_CHARGED: Final = frozenset({"authorized", "captured", "refunded"})
"""The states in which the gateway has a payment with the same status."""


class Ending(StrEnum):
    """How a ride ended."""

    PAID = "paid"
    DECLINED = "declined"
    UNSERVED = "unserved"
    CANCELLED = "cancelled"
    OPEN = "open"
    WAITING = "waiting for redrive"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saga:
    """The counts, and the rides that are broken or overdue."""

    endings: Mapping[str, int]
    """Rides by how they ended."""
    emitted: Mapping[str, int]
    """Events of dispatch and payment by type. CarReleased and PaymentRefunded are compensations."""
    cars: int
    cars_held: int
    unlisted_cars: Sequence[str]
    """Free cars that dispatch cannot find, because they are not in the index of free cars."""
    gateway_asked: bool
    """Without the gateway's ledger the next four are 0, and payments are compared with events
    only."""
    charged: int
    """Rides for which the gateway has a payment that it did not decline."""
    captured: int
    captured_amount: int
    """In cents, without what was returned."""
    refunded: int
    reconciled: int
    """Rides that were overdue and were settled."""
    unpaid: Sequence[str]
    """Rides that were driven, and whose payment ended without money: it was declined, its money was
    returned, or the ride was called off as overdue before its completion was known."""
    problems: Mapping[str, Sequence[Problem]]
    """What is wrong with each broken ride."""
    overdue: Mapping[str, Overdue]
    """The rides that have needed something for too long."""

    @property
    def sound(self) -> bool:
        """Whether no ride is broken, overdue or unpaid, and dispatch can find every free car."""
        return not (self.problems or self.overdue or self.unpaid or self.unlisted_cars)

    @property
    def wrong(self) -> list[str]:
        """What is wrong, in words."""
        sentences = []
        if self.problems:
            sentences.append(f"{counted(len(self.problems), 'ride')} broken")
        if self.overdue:
            sentences.append(f"{counted(len(self.overdue), 'ride')} overdue")
        if self.unpaid:
            sentences.append(f"{counted(len(self.unpaid), 'ride')} driven, not paid")
        if self.unlisted_cars:
            cars = counted(len(self.unlisted_cars), "free car")
            sentences.append(f"{cars} outside of the index of free cars: run ./carride drive fleet")
        return sentences

    @property
    def settled(self) -> bool:
        """Whether no ride is open and no car is held."""
        return not self.endings.get(Ending.OPEN) and not self.cars_held

    def to_json(self) -> dict[str, object]:
        """Return the saga as JSON-ready values; the overdue rides in a list."""
        problems = dict[str, object]()
        for ride, found in self.problems.items():
            problems[ride] = [each.to_json() for each in found]
        overdue = [{"ride": ride, **each.to_json()} for ride, each in self.overdue.items()]
        facts = {"problems": problems, "overdue": overdue, "sound": self.sound}
        return asdict(self) | facts

    def to_text(self) -> str:
        """Return what does not add up, and the saga as a table."""
        return laid_out([*self.named(), *self.lines()])

    def named(self) -> list[str]:
        """Return a line for each ride and car that does not add up: its command, and why."""
        broken = [
            _shown(ride, f"broken: {'; '.join(map(says, problems))}")
            for ride, problems in self.problems.items()
        ]
        overdue = [_shown(ride, f"overdue {says(each)}") for ride, each in self.overdue.items()]
        unpaid = [_shown(ride, "driven, not paid") for ride in self.unpaid]
        cars = [f"  {car}  not found by dispatch" for car in self.unlisted_cars]
        return [line for lines in (broken, overdue, unpaid, cars) for line in at_most(lines)]

    def lines(self) -> list[Row]:
        """Return the saga as the rows of a report."""
        endings = ", ".join(f"{count:,} {ending}" for ending, count in self.endings.items())
        rows = [row("rides", sum(self.endings.values()), note=endings)]
        if self.cars_held:
            rows.append(row("cars", self.cars, note=f"{self.cars_held:,} of them with a ride"))
        if self.gateway_asked:
            rows.append(self._money())
        if self.reconciled:
            rows.append(row("reconciled", self.reconciled, note="rides that were overdue"))
        return rows

    def _money(self) -> Row:
        kept = f"{self.captured_amount / 100:,.2f} kept"
        note = f"rides: {self.captured:,} captured ({kept}), {self.refunded:,} refunded"
        return row("charged by the gateway", self.charged, note=note)


def _shown(ride: str, why: str) -> str:
    """Return what is wrong with a ride, after the command that shows the ride."""
    return f"  {command('ride', ride)}  {why}"


class _Ride(NamedTuple):
    """Everything that is known about one ride."""

    events: Mapping[str, Sequence[Published]]
    """The published events, by type."""
    items: Mapping[str, RideItem]
    """Its items by consumer."""
    cars: Sequence[str]
    """The cars that hold it, by their own items."""
    payments: Sequence[GatewayPayment] | None
    """None if the gateway was not asked."""
    booking: BookedRide | None
    """None if the API has not booked it."""
    waits: frozenset[str]
    """The consumers that may not have acted on an event.

    It was dead-lettered or dropped, or it may be among messages that could not be read.
    """
    is_judged: bool
    """Whether the log has all of its events: none is older than the log, and none may be in
    flight."""

    def count(self, fact_type: str) -> int:
        """Return how many facts of a type were published, without copies."""
        return len({event.fact for event in self.events.get(fact_type, ())})

    def state(self, consumer: str) -> str | None:
        return self.items[consumer].state if consumer in self.items else None

    @property
    def last_prices(self) -> set[int]:
        """The prices that the events at its end state, in cents: one, unless they disagree."""
        prices = set[int]()
        for name in (_COMPLETED, _OVERDUE):
            for event in self.events.get(name, ()):
                if event.price is not None:
                    prices.add(event.price)
        return prices


def saga_of(evidence: Evidence, *, overdue_after: timedelta = LIMIT) -> Saga:
    """Return how every ride ended that an event, a table, a car or the gateway names.

    A ride is overdue if it has needed something for longer than ``overdue_after``.
    """
    rides = _rides(evidence)
    problems = {order_id: tuple(_problems(ride)) for order_id, ride in rides.items()}
    broken = {order_id: found for order_id, found in problems.items() if found}
    payments = evidence.payments or ()
    charged = [payment for payment in payments if payment.status != "declined"]
    captured = [payment for payment in payments if payment.captures]
    refunded = [payment for payment in payments if payment.refunds]
    unpaid = [order_id for order_id, ride in rides.items() if _is_unpaid(ride)]
    return Saga(
        endings=_endings(rides, broken),
        emitted=_emitted(rides),
        cars=len(evidence.cars),
        cars_held=sum(ride is not None for ride in evidence.cars.values()),
        unlisted_cars=sorted(evidence.unlisted_cars),
        gateway_asked=evidence.payments is not None,
        charged=_rides_of(charged),
        captured=_rides_of(captured),
        captured_amount=sum(each.amount for each in captured if each.status == "captured"),
        refunded=_rides_of(refunded),
        reconciled=sum(bool(ride.count(_OVERDUE)) for ride in rides.values()),
        unpaid=sorted(unpaid),
        problems=broken,
        overdue=dict(_overdue(evidence, overdue_after)),
    )


def _rides_of(payments: Iterable[GatewayPayment]) -> int:
    """Return how many rides these payments are for."""
    return len({payment.order_id for payment in payments})


def _endings(rides: Mapping[str, _Ride], broken: Collection[str]) -> dict[str, int]:
    """Return how many rides ended in each way."""
    counts = Counter[Ending]()
    for order_id, ride in rides.items():
        ending = Ending.BROKEN if order_id in broken else _ending(ride)
        counts[ending] += 1
    # In the order of the endings, not in that of the rides.
    return {ending.value: counts[ending] for ending in Ending if ending in counts}


def _emitted(rides: Mapping[str, _Ride]) -> dict[str, int]:
    """Return how many events dispatch and payment have emitted, by type."""
    counts = dict[str, int]()
    for name in _TYPES:
        count = sum(ride.count(name) for ride in rides.values())
        if count:
            counts[name] = count
    return counts


def _overdue(evidence: Evidence, limit: timedelta) -> Iterator[tuple[str, Overdue]]:
    """Yield each ride that has needed something for longer than a limit."""
    by_ride = grouped(_needs(evidence))
    for order_id, needs in sorted(by_ride.items()):
        overdue = Overdue.of(needs)
        if order_id not in evidence.copies and evidence.at - overdue.since > limit:
            yield order_id, overdue


def _needs(evidence: Evidence) -> Iterator[tuple[str, Need]]:
    """Yield what each table says that a ride needs."""
    for item in evidence.items:
        if item.open_since is not None:
            yield item.order_id, Need(item.open_since, item.consumer, item.state)
    for booking in evidence.bookings:
        if booking.open_since is not None:
            yield booking.order_id, Need(booking.open_since, None)


def _rides(evidence: Evidence) -> dict[str, _Ride]:
    """Return every ride that an event, a table, a car or the gateway names, by its id."""
    events = grouped(
        (event.named.order_id, event)
        for event in evidence.published
        if event.named and event.fact is not None
    )
    items = grouped((item.order_id, item) for item in evidence.items if item.consumer in _EMITTED)
    cars = grouped((ride, car) for car, ride in evidence.cars.items() if ride is not None)
    payments = grouped((payment.order_id, payment) for payment in evidence.payments or ())
    bookings = {booking.order_id: booking for booking in evidence.bookings}
    unprocessed = dict[str, set[str | None]]()
    in_flight = set[str | None]()
    for consumer in evidence.consumers:
        if consumer.name in _EMITTED:
            missing = missing_at(evidence, consumer)
            unprocessed[consumer.name] = _unprocessed(evidence, consumer, missing)
            in_flight.update(missing.in_flight)
    unjudged = set(_unjudged(evidence, in_flight))
    rides = dict[str, _Ride]()
    for order_id in sorted({*events, *items, *cars, *payments}):
        its_events = events.get(order_id, [])
        its_items = {item.consumer: item for item in items.get(order_id, ())}
        rides[order_id] = _Ride(
            events=grouped((str(event.type), event) for event in its_events),
            items=its_items,
            cars=cars.get(order_id, []),
            payments=None if evidence.payments is None else payments.get(order_id, []),
            booking=bookings.get(order_id),
            waits=frozenset(_waits(its_events, its_items, unprocessed)),
            is_judged=order_id not in unjudged,
        )
    return rides


def _waits(
    events: Sequence[Published],
    items: Mapping[str, RideItem],
    unprocessed: Mapping[str, Collection[str | None]],
) -> Iterator[str]:
    """Yield the consumers that may not have acted on one of the events of a ride."""
    facts = {event.fact for event in events}
    for consumer, waiting in unprocessed.items():
        may_be_missing = facts.intersection(waiting)
        if consumer in items:
            may_be_missing -= items[consumer].facts
        if may_be_missing:
            yield consumer


def _unprocessed(
    evidence: Evidence, consumer: AuditedConsumer, missing: Missing
) -> set[str | None]:
    """Return the events that a consumer may not have acted on.

    They were dead-lettered or dropped as expired, or may be among messages that could not be read.
    """
    unprocessed = set[str | None](missing.undecided)
    for letter in evidence.dead_letters:
        if letter.consumer == consumer.name:
            unprocessed.add(letter.fact)
    for delivery in evidence.deliveries:
        if delivery.consumer == consumer.name and delivery.outcome == observation.EXPIRED:
            unprocessed.add(delivery.fact)
    return unprocessed


def _unjudged(evidence: Evidence, in_flight: Collection[str | None]) -> Iterator[str]:
    """Yield the rides of which the log need not have every event, or that are only copies.

    A ride with an event in flight is not judged, either: an old event may have been redriven.
    """
    yield from evidence.copies
    logged = {event.fact for event in evidence.published}
    for item in evidence.items:
        is_saga = item.consumer in _EMITTED
        young = is_saga and any(evidence.is_young(effect.time) for effect in item.effects)
        # What the log has is not older than the log, whatever its time.
        old = any(
            effect.time < evidence.since and effect.fact not in logged for effect in item.effects
        )
        if evidence.log_is_gone or young or old:
            yield item.order_id
    for event in evidence.published:
        is_unsettled = evidence.is_young(event.time) or event.fact in in_flight
        if event.named is not None and is_unsettled:
            yield event.named.order_id


def _ending(ride: _Ride) -> Ending:
    if ride.waits and not ride.count(_OVERDUE):
        return Ending.WAITING
    match ride.state(PAYMENT), ride.state(DISPATCH):
        case "captured", _:
            return Ending.PAID
        case "declined", _:
            return Ending.DECLINED
        case "undo due", _:
            return Ending.OPEN
        case _, "unserved":
            return Ending.UNSERVED
        case "refunded" | "cancelled", "released" | "cancelled" | None:
            return Ending.CANCELLED  # also if a compensation ended it without a cancellation
    if ride.count(_CANCELLED) or ride.count(_OVERDUE):
        return Ending.CANCELLED
    return Ending.OPEN


def _problems(ride: _Ride) -> Iterator[Problem]:
    """Yield what is wrong with a ride."""
    yield from _too_much(ride)
    if not ride.is_judged:
        return
    yield from _contradictions_of_booking(ride)
    if DISPATCH not in ride.waits:
        yield from _contradictions_of_dispatch(ride)
    if PAYMENT not in ride.waits:
        yield from _contradictions_of_payment(ride)
        yield from _wrong_captures(ride)
    if not ride.waits:
        yield from _left_undone(ride)


def _too_much(ride: _Ride) -> Iterator[Problem]:
    """Yield what must never happen to a ride, in whatever state it is."""
    if len(ride.cars) > 1:
        yield Problem(Broken.MANY_CARS, cars=tuple(ride.cars))
    for name in _TYPES:
        times = ride.count(name)
        if times > 1:
            yield Problem(Broken.PUBLISHED_AGAIN, types=(name,), times=times)
    charged = [payment for payment in ride.payments or () if payment.status != "declined"]
    if len(charged) > 1:
        yield Problem(Broken.CHARGED_AGAIN, times=len(charged))
    for payment in charged:
        if payment.captures > 1 or payment.refunds > 1:
            yield Problem(Broken.CAPTURED_AGAIN, payments=(payment,))


def _contradictions_of_booking(ride: _Ride) -> Iterator[Problem]:
    """Yield where the API's table and the ride's latest change disagree.

    A booking with a newer version has an event that was never published: the ledger names it.
    """
    changes = [event for name in CHANGES for event in ride.events.get(name, ())]
    versions = {
        event.named.version: event for event in changes if event.named and not event.adopted
    }
    booking = ride.booking
    if booking is None or not versions:
        return
    version = max(versions)
    latest = versions[version]
    if booking.version < version:
        yield Problem(Broken.BOOKING_VERSION, has=booking.version, stated=version)
    if booking.version != version:
        return
    status = STATUS_AFTER.get(str(latest.type))
    if None not in (status, booking.status) and booking.status != status:
        yield Problem(Broken.BOOKING_STATUS, has=booking.status, stated=latest.type)
    if None not in (latest.price, booking.price) and booking.price != latest.price:
        yield Problem(Broken.BOOKING_PRICE, has=booking.price, stated=latest.price)


def _contradictions_of_dispatch(ride: _Ride) -> Iterator[Problem]:
    """Yield where table, fleet and events disagree about the car."""
    yield from _disagreements(ride, DISPATCH)
    state = ride.state(DISPATCH)
    holders = [ride.items[DISPATCH].detail] if state == "assigned" else []
    if list(ride.cars) != holders:
        yield Problem(Broken.OTHER_CARS, DISPATCH, state, cars=tuple(ride.cars))


def _contradictions_of_payment(ride: _Ride) -> Iterator[Problem]:
    """Yield where table, gateway and events disagree about the money."""
    yield from _disagreements(ride, PAYMENT)
    state = ride.state(PAYMENT)
    # The gateway may hold anything until it is undone.
    if ride.payments is None or state == "undo due":
        return
    at_gateway = [(payment.status, payment.amount) for payment in ride.payments]
    expected = [(state, ride.items[PAYMENT].detail)] if state in _CHARGED else []
    if not _agrees(state, expected, at_gateway):
        amount = ride.items[PAYMENT].detail if expected else None
        there = tuple(ride.payments)
        yield Problem(Broken.OTHER_PAYMENTS, PAYMENT, state, payments=there, has=amount)
    if state == "captured" and any(payment.refunds for payment in ride.payments):
        yield Problem(Broken.MONEY_RETURNED, PAYMENT, state, payments=tuple(ride.payments))


def _agrees(
    state: str | None,
    expected: Sequence[tuple[str | None, object]],
    at_gateway: Sequence[tuple[str, int]],
) -> bool:
    """Return whether the gateway has what payment's state says."""
    charged = [each for each in at_gateway if each[0] != "declined"]
    if state == "declined":  # a reservation whose capture was refused is released
        return all(status == "refunded" for status, _ in charged)
    if state == "cancelled":  # after a cancellation, a decline changes nothing
        return charged == expected
    return at_gateway == expected


def _wrong_captures(ride: _Ride) -> Iterator[Problem]:
    """Yield where money was captured that the customer does not owe, or less than owed.

    Less than the last price is captured only if the gateway refused to reserve more, which payment
    records.
    """
    if ride.state(PAYMENT) != "captured":
        return
    if ride.count(_CANCELLED):
        yield Problem(Broken.CANCELLED_AND_CAPTURED, types=(_CANCELLED,))
    item = ride.items[PAYMENT]
    if not ride.last_prices or not isinstance(item.detail, int):
        return
    highest = max(ride.last_prices)
    if item.detail > highest:
        yield Problem(Broken.CAPTURED_TOO_MUCH, has=item.detail, stated=highest)
    lowest = min(ride.last_prices)
    if item.detail < lowest and not item.raise_refused:
        yield Problem(Broken.CAPTURED_TOO_LITTLE, has=item.detail, stated=lowest)


def _disagreements(ride: _Ride, consumer: str) -> Iterator[Problem]:
    """Yield the events that a consumer's state requires or rules out, and the log does not."""
    state = ride.state(consumer) or "unknown"
    may_precede = _MAY_PRECEDE.get(state, frozenset())
    for name, states in _EMITTED[consumer].items():
        times = ride.count(name)
        agrees = (times > 0) == (state in states)
        if not agrees and name not in may_precede:
            yield Problem(Broken.OTHER_EVENTS, consumer, state, types=(name,), times=times)


def _left_undone(ride: _Ride) -> Iterator[Problem]:
    """Yield what an ended ride still holds or owes."""
    ends = tuple(sorted(ride.events.keys() & _ENDED))
    if not ends:
        return
    if ride.cars:
        yield Problem(Broken.CAR_KEPT, types=ends, cars=tuple(ride.cars))
    state = ride.state(PAYMENT)
    if state == "authorized":
        yield Problem(Broken.MONEY_RESERVED, types=ends)
    if _was_driven(ride) and state not in _EXPLAINED:
        yield Problem(Broken.DRIVEN_UNPAID, PAYMENT, state)


def _was_driven(ride: _Ride) -> bool:
    """Return whether the ride was completed and had a car."""
    return _COMPLETED in ride.events and ride.state(DISPATCH) == "released"


def _is_unpaid(ride: _Ride) -> bool:
    """Return whether the ride was driven, and nothing that is known of will bring its price."""
    if ride.waits or not ride.is_judged:
        return False
    was_driven = _was_driven(ride) and not ride.count(_CANCELLED)
    return was_driven and ride.state(PAYMENT) in _UNPAID
