"""How every ride ended, and whether cars, payments and events agree about it. No I/O.

A ride ends in one of a few ways: paid, declined, without a car, cancelled. It is open until then, and waiting for
redrive while one of its events lies in a dead-letter queue or was dropped as expired. Events, the tables of dispatch
and payment, and the gateway's own ledger all describe it. Where they contradict each other, the ride is broken. Where
it has needed something for longer than a limit, it is overdue.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from carride.overdue import LIMIT
from idempotency import observation
from ops.audit.evidence import DISPATCH, PAYMENT, Evidence, GatewayPayment, RideItem

_OVERDUE: Final = "CarRideOverdue"
"""The reconciler's event: the ride is settled by what is known of it."""
_ENDED: Final = frozenset({"CarRideCompleted", "CarRideCancelled", _OVERDUE})
_OF_DISPATCH: Final[Mapping[str, frozenset[str]]] = {
    "CarAssigned": frozenset({"assigned", "released"}),
    "CarReleased": frozenset({"released"}),
    "NoCarAvailable": frozenset({"unserved"}),
}
"""What dispatch emits, and the states of a ride in which it has done so."""
_OF_PAYMENT: Final[Mapping[str, frozenset[str]]] = {
    "PaymentAuthorized": frozenset({"authorized", "captured"}),
    "PaymentDeclined": frozenset({"declined"}),
    "PaymentCaptured": frozenset({"captured"}),
    "PaymentRefunded": frozenset({"refunded"}),
}
"""The same for payment."""
_EMITTED: Final = frozenset({*_OF_DISPATCH, *_OF_PAYMENT})
_MAY_PRECEDE: Final[Mapping[str, frozenset[str]]] = {
    "declined": frozenset({"PaymentAuthorized"}),
    "refunded": frozenset({"PaymentAuthorized", "PaymentCaptured"}),
    "undo due": frozenset({"PaymentAuthorized", "PaymentCaptured"}),
}
"""What payment may have emitted, or not, before a ride came to a state. A capture can be refused for good after the
reservation, and money can be given back before anything was emitted about it."""
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
    """The consumers' own facts by type: compensations are CarReleased and PaymentRefunded."""
    cars: int
    cars_held: int
    gateway_asked: bool
    """Without the gateway's ledger the next four are 0, and payments are compared with events only."""
    charged: int
    """Rides for which the gateway has a payment that it did not decline."""
    captured: int
    captured_amount: int
    """In cents, less what was given back."""
    refunded: int
    reconciled: int
    """Rides that needed something for too long, and were settled for it."""
    problems: Mapping[str, Sequence[str]]
    """What is wrong with each broken ride."""
    overdue: Mapping[str, str]
    """Since when a ride has needed something, and in which tables, by ride."""

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
        rows: list[tuple[str, int, str]] = [("rides", sum(self.endings.values()), "")]
        rows += [(f"  {ending}", count, "") for ending, count in self.endings.items()]
        rows.append(("emitted", sum(self.emitted.values()), "events of dispatch and payment"))
        rows += [(f"  {name}", count, "") for name, count in self.emitted.items()]
        rows.append(("cars", self.cars, f"{self.cars_held} of them with a ride"))
        if self.gateway_asked:
            rows += [
                ("charged", self.charged, "rides, by the gateway's own ledger"),
                ("  captured", self.captured, f"of them; {self.captured_amount / 100:,.2f} is kept"),
                ("  refunded", self.refunded, "of them, or released"),
            ]
        rows.append(("reconciled", self.reconciled, "rides that were overdue"))
        rows += [(f"broken: {ride}", len(problems), "; ".join(problems)) for ride, problems in self.problems.items()]
        rows += [(f"overdue: {ride}", 1, since) for ride, since in self.overdue.items()]
        width = max(len(name) for name, _, _ in rows)
        return "\n".join(f"{name:<{width}}  {count:>7,}  {note}".rstrip() for name, count, note in rows)


class _Ride(NamedTuple):
    """All that is known of one ride."""

    events: Mapping[str, frozenset[str]]
    """The ids of the published facts, by type."""
    dispatch: RideItem | None
    payment: RideItem | None
    cars: Sequence[str]
    """Which cars say that they have it."""
    charges: Sequence[GatewayPayment] | None
    """None where the gateway was not asked."""
    is_judged: bool
    """Whether the log has all of its events: none is older than the log, and none is still on its way."""
    dispatch_waits: bool
    """Whether dispatch has not acted on a fact that was dead-lettered or dropped."""
    payment_waits: bool

    def count(self, fact_type: str) -> int:
        return len(self.events.get(fact_type, ()))


def check(evidence: Evidence, *, overdue_after: timedelta = LIMIT) -> Saga:
    """Compute how every ride ended.

    A ride is known by its published facts, and by whatever a table, a car or the gateway holds of it.

    Args:
        evidence: of the stack.
        overdue_after: how long a ride may need something.
    """
    rides = _rides(evidence)
    problems = {order_id: tuple(found) for order_id, ride in rides.items() if (found := list(_problems(ride)))}
    endings = Counter(Ending.BROKEN if order_id in problems else _ending(ride) for order_id, ride in rides.items())
    charges = evidence.payments or ()
    taken = [charge for charge in charges if charge.captures]
    return Saga(
        endings={ending.value: endings[ending] for ending in Ending if endings[ending]},
        emitted={
            name: count
            for name in sorted(_EMITTED)
            if (count := sum(map(_Ride.count, rides.values(), [name] * len(rides))))
        },
        cars=len(evidence.cars),
        cars_held=sum(ride is not None for ride in evidence.cars.values()),
        gateway_asked=evidence.payments is not None,
        charged=len({charge.order_id for charge in charges if charge.status != "declined"}),
        captured=len({charge.order_id for charge in taken}),
        captured_amount=sum(charge.amount for charge in taken if charge.status == "captured"),
        refunded=len({charge.order_id for charge in charges if charge.refunds}),
        reconciled=sum(bool(ride.count(_OVERDUE)) for ride in rides.values()),
        problems=problems,
        overdue=dict(_overdue(evidence, overdue_after)),
    )


def _overdue(evidence: Evidence, limit: timedelta) -> Iterator[tuple[str, str]]:
    since: dict[str, list[tuple[datetime, str]]] = {}
    for item in evidence.items:
        if item.open_since is not None:
            since.setdefault(item.order_id, []).append((item.open_since, f"{item.consumer} has it as {item.state}"))
    for ride in evidence.bookings:
        if ride.open_since is not None:
            since.setdefault(ride.order_id, []).append((ride.open_since, "it is booked"))
    for order_id, found in sorted(since.items()):
        if evidence.at - min(found)[0] > limit:
            yield (
                order_id,
                f"since {min(found)[0]:%Y-%m-%d %H:%M:%S %Z}: {'; '.join(what for _, what in sorted(found))}",
            )


# ── One ride ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _rides(evidence: Evidence) -> dict[str, _Ride]:
    events: dict[str, dict[str, frozenset[str]]] = {}
    for event in evidence.published:
        if event.named is not None and event.fact is not None:
            of_ride = events.setdefault(event.named.order_id, {})
            of_ride[event.named.type] = of_ride.get(event.named.type, frozenset()) | {event.fact}
    cars: dict[str, list[str]] = {}
    for car, order_id in evidence.cars.items():
        if order_id is not None:
            cars.setdefault(order_id, []).append(car)
    charges: dict[str, list[GatewayPayment]] = {}
    for charge in evidence.payments or ():
        charges.setdefault(charge.order_id, []).append(charge)
    dispatch, payment = evidence.of(DISPATCH), evidence.of(PAYMENT)
    unprocessed = {name: _unprocessed(evidence, name) for name in (DISPATCH, PAYMENT)}

    unjudged = set(_unjudged(evidence))

    def waits(consumer: str, order_id: str, item: RideItem | None) -> bool:
        facts = frozenset[str]().union(*events.get(order_id, {}).values())
        return bool(facts & unprocessed[consumer] - (frozenset() if item is None else item.facts))

    return {
        order_id: _Ride(
            events.get(order_id, {}),
            dispatch.get(order_id),
            payment.get(order_id),
            cars.get(order_id, []),
            None if evidence.payments is None else charges.get(order_id, []),
            order_id not in unjudged,
            waits(DISPATCH, order_id, dispatch.get(order_id)),
            waits(PAYMENT, order_id, payment.get(order_id)),
        )
        for order_id in sorted({*events, *cars, *charges, *dispatch, *payment})
    }


def _unjudged(evidence: Evidence) -> Iterator[str]:
    for item in evidence.items:
        young = any(evidence.is_young(effect.time) for effect in item.effects if item.consumer in (DISPATCH, PAYMENT))
        if evidence.log_is_gone or young or any(effect.time < evidence.since for effect in item.effects):
            yield item.order_id
    for event in evidence.published:
        if event.named is not None and evidence.is_young(event.time):
            yield event.named.order_id


def _unprocessed(evidence: Evidence, consumer: str) -> frozenset[str]:
    """Return the facts that a consumer may not have acted on: they were dead-lettered, or dropped as expired."""
    letters = {letter.fact for letter in evidence.dead_letters if letter.consumer == consumer}
    dropped = {
        each.fact for each in evidence.deliveries if each.consumer == consumer and each.outcome == observation.EXPIRED
    }
    return frozenset(fact for fact in letters | dropped if fact is not None)


def _ending(ride: _Ride) -> Ending:
    if (ride.dispatch_waits or ride.payment_waits) and not ride.count(_OVERDUE):
        return Ending.WAITING
    state = None if ride.payment is None else ride.payment.state
    match state, ride.dispatch:
        case "captured", _:
            return Ending.PAID
        case "declined", _:
            return Ending.DECLINED
        case "undo due", _:
            return Ending.OPEN
        case _, RideItem(state="unserved"):
            return Ending.UNSERVED
        case "refunded" | "cancelled", RideItem(state="released" | "cancelled") | None:
            return Ending.CANCELLED  # also where a compensation ended it without a cancellation
    return Ending.CANCELLED if ride.count("CarRideCancelled") or ride.count(_OVERDUE) else Ending.OPEN


def _problems(ride: _Ride) -> Iterator[str]:
    """Yield what is wrong with a ride."""
    yield from _too_much(ride)
    if not ride.is_judged:
        return
    if not ride.dispatch_waits:
        yield from _contradictions_of_dispatch(ride)
    if not ride.payment_waits:
        yield from _contradictions_of_payment(ride)
    if not ride.dispatch_waits and not ride.payment_waits:
        yield from _left_undone(ride)


def _too_much(ride: _Ride) -> Iterator[str]:
    """Yield what may never be, whatever else has happened to the ride."""
    if len(ride.cars) > 1:
        yield f"has {len(ride.cars)} cars: {', '.join(ride.cars)}"
    for name in sorted(_EMITTED):
        if (times := ride.count(name)) > 1:
            yield f"{name} was published {times} times"
    charged = [charge for charge in ride.charges or () if charge.status != "declined"]
    if len(charged) > 1:
        yield f"was charged {len(charged)} times"
    for charge in charged:
        if charge.captures > 1 or charge.refunds > 1:
            yield f"its payment was captured {charge.captures} and refunded {charge.refunds} times"


def _contradictions_of_dispatch(ride: _Ride) -> Iterator[str]:
    """Yield where table, fleet and events disagree about the car."""
    state = "unknown" if ride.dispatch is None else str(ride.dispatch.state)
    yield from _disagreements(ride, DISPATCH, state, _OF_DISPATCH)
    holders = [ride.dispatch.detail] if ride.dispatch is not None and state == "assigned" else []
    if list(ride.cars) != holders:
        yield f"dispatch has it as {state}, but the cars that have it are {list(ride.cars)}"


def _contradictions_of_payment(ride: _Ride) -> Iterator[str]:
    """Yield where table, gateway and events disagree about the money."""
    state = "unknown" if ride.payment is None else str(ride.payment.state)
    yield from _disagreements(ride, PAYMENT, state, _OF_PAYMENT)
    if ride.charges is None or state == "undo due":  # the gateway may hold anything until it is undone
        return
    at_gateway = [(charge.status, charge.amount) for charge in ride.charges]
    found = [each for each in at_gateway if each[0] != "declined"]
    expected = [] if ride.payment is None or state not in _CHARGED else [(state, ride.payment.detail)]
    if state == "declined":  # a reservation whose capture was refused is released
        agrees = all(status == "refunded" for status, _ in found)
    else:  # where a cancellation came first, a decline changes nothing
        agrees = found == expected and (found == at_gateway or state == "cancelled")
    if not agrees:
        yield f"payment has it as {expected or state}, but the gateway as {at_gateway}"


def _disagreements(ride: _Ride, consumer: str, state: str, emits: Mapping[str, frozenset[str]]) -> Iterator[str]:
    for name, states in emits.items():
        published = bool(ride.count(name))
        if published != (state in states) and name not in _MAY_PRECEDE.get(state, ()):
            yield f"{consumer} has it as {state}, but {name} was published {ride.count(name)} times"


def _left_undone(ride: _Ride) -> Iterator[str]:
    """Yield what a ride that has ended still has."""
    heard = ride.events.keys() & _ENDED
    if not heard:
        return
    ended = f"{', '.join(sorted(heard))} was published"
    if ride.cars:
        yield f"{ended}, and it still has {', '.join(ride.cars)}"
    state = None if ride.payment is None else ride.payment.state
    if state == "authorized":
        yield f"{ended}, and its money is still reserved"
    served = ride.dispatch is not None and ride.dispatch.state == "released"
    if "CarRideCompleted" in heard and served and state not in {"captured", "declined", "refunded", "undo due"}:
        yield f"it was driven, and its payment is {state}"
