"""How every ride ended, and whether cars, payments and events agree about it. No I/O.

A ride ends in one of a few ways: paid, declined, without a car, cancelled. Until then it is open.
It waits for redrive while one of its events lies in a dead-letter queue or was dropped as expired.
Events, the tables of dispatch and payment, and the gateway's ledger all describe it. If they
contradict each other, the ride is broken. If it has needed something for longer than a limit, it is
overdue.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from carride.overdue import LIMIT
from carride_idempotency import observation
from ops.audit.evidence import (
    DISPATCH,
    PAYMENT,
    DeadLettered,
    Delivered,
    Evidence,
    GatewayPayment,
    RideItem,
)
from ops.text import grouped, row

_OVERDUE: Final = "CarRideOverdue"
"""The reconciler's event. It settles the ride."""
_ENDED: Final = frozenset({"CarRideCompleted", "CarRideCancelled", _OVERDUE})
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
    problems: Mapping[str, Sequence[str]]
    """What is wrong with each broken ride."""
    overdue: Mapping[str, str]
    """Since when an overdue ride has needed something, and in which tables."""

    @property
    def sound(self) -> bool:
        """Whether no ride is broken or overdue."""
        return not self.problems and not self.overdue

    @property
    def settled(self) -> bool:
        """Whether no ride is open and no car is held."""
        return not self.endings.get(Ending.OPEN) and not self.cars_held

    def to_json(self) -> dict[str, object]:
        """Return the saga as JSON-ready values."""
        return asdict(self) | {"sound": self.sound}

    def to_text(self) -> str:
        """Return the saga as a table."""
        money = [
            row("charged", self.charged, note="rides, by the gateway's own ledger"),
            row(
                "  captured",
                self.captured,
                note=f"of them; {self.captured_amount / 100:,.2f} is kept",
            ),
            row("  refunded", self.refunded, note="of them, or released"),
        ]
        rows = [
            row("rides", sum(self.endings.values())),
            *(row(f"  {ending}", count) for ending, count in self.endings.items()),
            row("emitted", sum(self.emitted.values()), note="events of dispatch and payment"),
            *(row(f"  {name}", count) for name, count in self.emitted.items()),
            row("cars", self.cars, note=f"{self.cars_held} of them with a ride"),
            *(money if self.gateway_asked else []),
            row("reconciled", self.reconciled, note="rides that were overdue"),
            *(
                row(f"broken: {ride}", len(found), note="; ".join(found))
                for ride, found in self.problems.items()
            ),
            *(row(f"overdue: {ride}", 1, note=since) for ride, since in self.overdue.items()),
        ]
        return "\n".join(rows)


class _Ride(NamedTuple):
    """Everything that is known about one ride."""

    events: Mapping[str, frozenset[str]]
    """The ids of the published events, by type."""
    items: Mapping[str, RideItem]
    """Its items by consumer."""
    cars: Sequence[str]
    """The cars that hold it, by their own items."""
    payments: Sequence[GatewayPayment] | None
    """None if the gateway was not asked."""
    waits: frozenset[str]
    """The consumers that have not acted on an event, because it was dead-lettered or dropped."""
    is_judged: bool
    """Whether the log has all of its events: none is older than the log, and none may be in
    flight."""

    def count(self, fact_type: str) -> int:
        return len(self.events.get(fact_type, ()))

    def state(self, consumer: str) -> str | None:
        return self.items[consumer].state if consumer in self.items else None


def saga_of(evidence: Evidence, *, overdue_after: timedelta = LIMIT) -> Saga:
    """Compute how every ride ended that an event, a table, a car or the gateway names.

    A ride is overdue if it has needed something for longer than ``overdue_after``.
    """
    rides = _rides(evidence)
    problems = {
        order_id: tuple(found)
        for order_id, ride in rides.items()
        if (found := list(_problems(ride)))
    }
    endings = Counter(
        Ending.BROKEN if order_id in problems else _ending(ride) for order_id, ride in rides.items()
    )
    emitted = {name: sum(ride.count(name) for ride in rides.values()) for name in _TYPES}
    payments = evidence.payments or ()
    taken = [payment for payment in payments if payment.captures]
    return Saga(
        endings={ending.value: endings[ending] for ending in Ending if endings[ending]},
        emitted={name: count for name, count in emitted.items() if count},
        cars=len(evidence.cars),
        cars_held=sum(ride is not None for ride in evidence.cars.values()),
        gateway_asked=evidence.payments is not None,
        charged=len({payment.order_id for payment in payments if payment.status != "declined"}),
        captured=len({payment.order_id for payment in taken}),
        captured_amount=sum(payment.amount for payment in taken if payment.status == "captured"),
        refunded=len({payment.order_id for payment in payments if payment.refunds}),
        reconciled=sum(bool(ride.count(_OVERDUE)) for ride in rides.values()),
        problems=problems,
        overdue=dict(_overdue(evidence, overdue_after)),
    )


def _overdue(evidence: Evidence, limit: timedelta) -> Iterator[tuple[str, str]]:
    tables = [
        (each.order_id, each.open_since, f"{each.consumer} has it as {each.state}")
        for each in evidence.items
    ]
    tables += [(each.order_id, each.open_since, "it is booked") for each in evidence.bookings]
    since = grouped((order_id, (time, what)) for order_id, time, what in tables if time is not None)
    for order_id, found in sorted(since.items()):
        if evidence.at - min(found)[0] > limit:
            where = "; ".join(what for _, what in sorted(found))
            yield order_id, f"since {min(found)[0]:%Y-%m-%d %H:%M:%S %Z}: {where}"


def _rides(evidence: Evidence) -> dict[str, _Ride]:
    named = [
        (event.named, event.fact)
        for event in evidence.published
        if event.named and event.fact is not None
    ]
    events = grouped((name.order_id, (name.type, fact)) for name, fact in named)
    items = grouped((item.order_id, item) for item in evidence.items if item.consumer in _EMITTED)
    cars = grouped(
        (order_id, car) for car, order_id in evidence.cars.items() if order_id is not None
    )
    payments = grouped((payment.order_id, payment) for payment in evidence.payments or ())
    unprocessed = {consumer: _unprocessed(evidence, consumer) for consumer in _EMITTED}
    unjudged = set(_unjudged(evidence))

    def ride(order_id: str) -> _Ride:
        facts = {fact for _, fact in events.get(order_id, ())}
        of_consumers = {item.consumer: item for item in items.get(order_id, ())}
        applied = {consumer: item.facts for consumer, item in of_consumers.items()}
        return _Ride(
            {name: frozenset(ids) for name, ids in grouped(events.get(order_id, ())).items()},
            of_consumers,
            cars.get(order_id, []),
            None if evidence.payments is None else payments.get(order_id, []),
            frozenset(
                each
                for each in _EMITTED
                if facts & unprocessed[each] - applied.get(each, frozenset())
            ),
            order_id not in unjudged,
        )

    return {order_id: ride(order_id) for order_id in sorted({*events, *items, *cars, *payments})}


def _unjudged(evidence: Evidence) -> Iterator[str]:
    for item in evidence.items:
        young = any(
            evidence.is_young(effect.time) for effect in item.effects if item.consumer in _EMITTED
        )
        if (
            evidence.log_is_gone
            or young
            or any(effect.time < evidence.since for effect in item.effects)
        ):
            yield item.order_id
    for event in evidence.published:
        if event.named is not None and evidence.is_young(event.time):
            yield event.named.order_id


def _unprocessed(evidence: Evidence, consumer: str) -> set[str | None]:
    """Return the events that a consumer may not have acted on: dead-lettered, or dropped as expired."""
    expired = [each for each in evidence.deliveries if each.outcome == observation.EXPIRED]
    lists: tuple[Sequence[DeadLettered | Delivered], ...] = (evidence.dead_letters, expired)
    return {each.fact for found in lists for each in found if each.consumer == consumer}


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
    return (
        Ending.CANCELLED if ride.count("CarRideCancelled") or ride.count(_OVERDUE) else Ending.OPEN
    )


def _problems(ride: _Ride) -> Iterator[str]:
    """Yield what is wrong with a ride."""
    yield from _too_much(ride)
    if not ride.is_judged:
        return
    if DISPATCH not in ride.waits:
        yield from _contradictions_of_dispatch(ride)
    if PAYMENT not in ride.waits:
        yield from _contradictions_of_payment(ride)
    if not ride.waits:
        yield from _left_undone(ride)


def _too_much(ride: _Ride) -> Iterator[str]:
    """Yield what must never happen to a ride, in whatever state it is."""
    if len(ride.cars) > 1:
        yield f"has {len(ride.cars)} cars: {', '.join(ride.cars)}"
    for name in _TYPES:
        if (times := ride.count(name)) > 1:
            yield f"{name} was published {times} times"
    charged = [payment for payment in ride.payments or () if payment.status != "declined"]
    if len(charged) > 1:
        yield f"was charged {len(charged)} times"
    for payment in charged:
        if payment.captures > 1 or payment.refunds > 1:
            yield f"its payment was captured {payment.captures} and refunded {payment.refunds} times"


def _contradictions_of_dispatch(ride: _Ride) -> Iterator[str]:
    """Yield where table, fleet and events disagree about the car."""
    yield from _disagreements(ride, DISPATCH)
    state = ride.state(DISPATCH)
    holders = [ride.items[DISPATCH].detail] if state == "assigned" else []
    if list(ride.cars) != holders:
        yield f"dispatch has it as {state or 'unknown'}, but the cars that have it are {list(ride.cars)}"


def _contradictions_of_payment(ride: _Ride) -> Iterator[str]:
    """Yield where table, gateway and events disagree about the money."""
    yield from _disagreements(ride, PAYMENT)
    state = ride.state(PAYMENT)
    # The gateway may hold anything until it is undone.
    if ride.payments is None or state == "undo due":
        return
    at_gateway = [(payment.status, payment.amount) for payment in ride.payments]
    found = [each for each in at_gateway if each[0] != "declined"]
    expected = [(state, ride.items[PAYMENT].detail)] if state in _CHARGED else []
    if state == "declined":  # a reservation whose capture was refused is released
        agrees = all(status == "refunded" for status, _ in found)
    else:  # after a cancellation, a decline changes nothing
        agrees = found == expected and (found == at_gateway or state == "cancelled")
    if not agrees:
        yield f"payment has it as {expected or state or 'unknown'}, but the gateway as {at_gateway}"


def _disagreements(ride: _Ride, consumer: str) -> Iterator[str]:
    state = ride.state(consumer) or "unknown"
    for name, states in _EMITTED[consumer].items():
        published = bool(ride.count(name))
        if published != (state in states) and name not in _MAY_PRECEDE.get(state, ()):
            yield f"{consumer} has it as {state}, but {name} was published {ride.count(name)} times"


def _left_undone(ride: _Ride) -> Iterator[str]:
    """Yield what an ended ride still holds or owes."""
    ends = ride.events.keys() & _ENDED
    if not ends:
        return
    ended = f"{', '.join(sorted(ends))} was published"
    if ride.cars:
        yield f"{ended}, and it still has {', '.join(ride.cars)}"
    state = ride.state(PAYMENT)
    if state == "authorized":
        yield f"{ended}, and its money is still reserved"
    served = ride.state(DISPATCH) == "released"
    if (
        "CarRideCompleted" in ends
        and served
        and state not in {"captured", "declined", "refunded", "undo due"}
    ):
        yield f"it was driven, and its payment is {state}"
