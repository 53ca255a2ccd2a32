"""How every ride ended, and whether cars, charges and events agree about it. No I/O.

A ride ends in one of a few ways: paid, declined, without a car, cancelled. It is open while nothing has ended it, and
held back while one of its events lies in a dead-letter queue or has expired. Three witnesses tell of it: the events on
the bus, the tables of dispatch and payment, and the gateway's own ledger. Where they contradict each other, the ride is
broken.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final, NamedTuple

DISPATCH: Final = "dispatch"
PAYMENT: Final = "payment"

_OVERDUE: Final = "CarRideOverdue"
_ENDED: Final = frozenset({"CarRideCompleted", "CarRideCancelled", _OVERDUE})
_OF_DISPATCH: Final[Mapping[str, frozenset[str]]] = {
    "CarAssigned": frozenset({"assigned", "released"}),
    "CarReleased": frozenset({"released"}),
    "NoCarAvailable": frozenset({"unserved"}),
}
"""What dispatch tells, and the states of a ride in which it has told it."""
_OF_PAYMENT: Final[Mapping[str, frozenset[str]]] = {
    "PaymentAuthorized": frozenset({"authorized", "captured"}),
    "PaymentDeclined": frozenset({"declined"}),
    "PaymentCaptured": frozenset({"captured"}),
    "PaymentRefunded": frozenset({"refunded"}),
}
"""The same for payment."""
_TOLD: Final = frozenset({*_OF_DISPATCH, *_OF_PAYMENT})
_CHARGED: Final = frozenset({"authorized", "captured", "refunded", "declined"})


class Fact(NamedTuple):
    """One fact that is on the bus, however many copies of it there are."""

    order_id: str
    type: str
    id: str
    """Its idempotency id."""


class Item(NamedTuple):
    """A ride in the table of a consumer."""

    state: str
    facts: frozenset[str]
    """The ids of the facts that were acted on."""
    detail: str | int | None = None
    """The car, or the amount in cents."""


class Charge(NamedTuple):
    """A payment in the gateway's ledger."""

    order_id: str
    status: str
    amount: int
    """In cents."""
    captures: int
    """How often money was taken."""
    refunds: int
    """How often it was given back, or released."""


class Evidence(NamedTuple):
    """Everything that the witnesses have to say."""

    facts: Sequence[Fact]
    items: Mapping[str, Mapping[str, Item]]
    """The tables of dispatch and payment: rides by order id, by the consumer's name."""
    excused: Mapping[str, frozenset[str]]
    """The ids of the facts that lie in a dead-letter queue of a consumer, or that it has dropped as expired."""
    cars: Mapping[str, str | None]
    """The ride of each car, by the car's id."""
    charges: Sequence[Charge]


class Ending(StrEnum):
    """How a ride ended."""

    PAID = "paid"
    DECLINED = "declined"
    UNSERVED = "unserved"
    CANCELLED = "cancelled"
    OPEN = "open"
    HELD_BACK = "held back"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saga:
    """The counts, and the rides that are broken."""

    endings: Mapping[str, int]
    """Rides by how they ended."""
    told: Mapping[str, int]
    """The consumers' own facts by type: compensations are CarReleased and PaymentRefunded."""
    cars: int
    cars_held: int
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

    @property
    def sound(self) -> bool:
        """Whether no ride is broken."""
        return not self.problems

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
        rows.append(("told", sum(self.told.values()), "facts of dispatch and payment"))
        rows += [(f"  {name}", count, "") for name, count in self.told.items()]
        rows += [
            ("cars", self.cars, f"{self.cars_held} of them with a ride"),
            ("charged", self.charged, "rides, by the gateway's own ledger"),
            ("  captured", self.captured, f"of them; {self.captured_amount / 100:,.2f} is kept"),
            ("  refunded", self.refunded, "of them, or released"),
            ("reconciled", self.reconciled, "rides that were overdue"),
        ]
        rows += [(f"broken: {ride}", len(problems), "; ".join(problems)) for ride, problems in self.problems.items()]
        width = max(len(name) for name, _, _ in rows)
        return "\n".join(f"{name:<{width}}  {count:>7,}  {note}".rstrip() for name, count, note in rows)


class _Ride(NamedTuple):
    """All that is known of one ride."""

    facts: Sequence[Fact]
    dispatch: Item | None
    payment: Item | None
    cars: Sequence[str]
    """Which cars say that they have it."""
    charges: Sequence[Charge]
    dispatch_held: bool
    """Whether dispatch has not acted on a fact that lies elsewhere."""
    payment_held: bool

    def count(self, fact_type: str) -> int:
        return sum(fact.type == fact_type for fact in self.facts)


def check(evidence: Evidence) -> Saga:
    """Compute how every ride ended.

    A ride is known by its facts on the bus, and by whatever a table, a car or the gateway holds of it.
    """
    rides = _rides(evidence)
    problems = {order_id: tuple(found) for order_id, ride in rides.items() if (found := list(_problems(ride)))}
    endings = Counter(Ending.BROKEN if order_id in problems else _ending(ride) for order_id, ride in rides.items())
    told = Counter(fact.type for fact in evidence.facts if fact.type in _TOLD)
    taken = [charge for charge in evidence.charges if charge.captures]
    return Saga(
        endings={ending.value: endings[ending] for ending in Ending if endings[ending]},
        told=dict(sorted(told.items())),
        cars=len(evidence.cars),
        cars_held=sum(ride is not None for ride in evidence.cars.values()),
        charged=len({charge.order_id for charge in evidence.charges if charge.status != "declined"}),
        captured=len({charge.order_id for charge in taken}),
        captured_amount=sum(charge.amount for charge in taken if charge.status == "captured"),
        refunded=len({charge.order_id for charge in evidence.charges if charge.refunds}),
        reconciled=sum(bool(ride.count(_OVERDUE)) for ride in rides.values()),
        problems=problems,
    )


# ── One ride ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _rides(evidence: Evidence) -> dict[str, _Ride]:
    facts: dict[str, list[Fact]] = {}
    for fact in evidence.facts:
        facts.setdefault(fact.order_id, []).append(fact)
    cars: dict[str, list[str]] = {}
    for car, order_id in evidence.cars.items():
        if order_id is not None:
            cars.setdefault(order_id, []).append(car)
    charges: dict[str, list[Charge]] = {}
    for charge in evidence.charges:
        charges.setdefault(charge.order_id, []).append(charge)
    dispatch, payment = evidence.items[DISPATCH], evidence.items[PAYMENT]
    return {
        order_id: _Ride(
            facts.get(order_id, []),
            dispatch.get(order_id),
            payment.get(order_id),
            cars.get(order_id, []),
            charges.get(order_id, []),
            _held(evidence, DISPATCH, facts.get(order_id, []), dispatch.get(order_id)),
            _held(evidence, PAYMENT, facts.get(order_id, []), payment.get(order_id)),
        )
        for order_id in sorted({*facts, *cars, *charges, *dispatch, *payment})
    }


def _held(evidence: Evidence, consumer: str, facts: Sequence[Fact], item: Item | None) -> bool:
    acted = frozenset[str]() if item is None else item.facts
    return any(fact.id in evidence.excused[consumer] and fact.id not in acted for fact in facts)


def _ending(ride: _Ride) -> Ending:
    if (ride.dispatch_held or ride.payment_held) and not ride.count(_OVERDUE):
        return Ending.HELD_BACK
    match ride.payment, ride.dispatch:
        case Item(state="captured"), _:
            return Ending.PAID
        case Item(state="declined"), _:
            return Ending.DECLINED
        case _, Item(state="unserved"):
            return Ending.UNSERVED
    return Ending.CANCELLED if ride.count("CarRideCancelled") or ride.count(_OVERDUE) else Ending.OPEN


def _problems(ride: _Ride) -> Iterator[str]:
    """Yield what is wrong with a ride."""
    yield from _too_much(ride)
    if not ride.dispatch_held:
        yield from _contradictions_of_dispatch(ride)
    if not ride.payment_held:
        yield from _contradictions_of_payment(ride)
    if not ride.dispatch_held and not ride.payment_held:
        yield from _left_undone(ride)


def _too_much(ride: _Ride) -> Iterator[str]:
    """What may never be, whatever else has happened to the ride."""
    if len(ride.cars) > 1:
        yield f"has {len(ride.cars)} cars: {', '.join(ride.cars)}"
    for name in _TOLD:
        if (times := ride.count(name)) > 1:
            yield f"{name} was told {times} times"
    charged = [charge for charge in ride.charges if charge.status != "declined"]
    if len(charged) > 1:
        yield f"was charged {len(charged)} times"
    for charge in charged:
        if charge.captures > 1 or charge.refunds > 1:
            yield f"its charge was captured {charge.captures} and refunded {charge.refunds} times"


def _contradictions_of_dispatch(ride: _Ride) -> Iterator[str]:
    """Where table, fleet and events do not agree about the car."""
    state = "unknown" if ride.dispatch is None else ride.dispatch.state
    for name, states in _OF_DISPATCH.items():
        if bool(ride.count(name)) != (state in states):
            yield f"dispatch has it as {state}, but {name} was told {ride.count(name)} times"
    holders = [ride.dispatch.detail] if ride.dispatch is not None and state == "assigned" else []
    if list(ride.cars) != holders:
        yield f"dispatch has it as {state}, but the cars that have it are {list(ride.cars)}"


def _contradictions_of_payment(ride: _Ride) -> Iterator[str]:
    """Where table, gateway and events do not agree about the money."""
    state = "unknown" if ride.payment is None else ride.payment.state
    for name, states in _OF_PAYMENT.items():
        if state == "refunded" and name != "PaymentRefunded":
            continue  # it may have been reserved and captured before, or given back before that was ever told
        if bool(ride.count(name)) != (state in states):
            yield f"payment has it as {state}, but {name} was told {ride.count(name)} times"
    at_gateway = [(charge.status, charge.amount) for charge in ride.charges]
    if state == "cancelled":  # overtaken by the cancellation, a refusal changes nothing
        at_gateway = [(status, amount) for status, amount in at_gateway if status != "declined"]
    in_table = [(state, ride.payment.detail)] if ride.payment is not None and state in _CHARGED else []
    if at_gateway != in_table:
        yield f"payment has it as {in_table}, but the gateway as {at_gateway}"


def _left_undone(ride: _Ride) -> Iterator[str]:
    """What a ride that has ended still has."""
    heard = {fact.type for fact in ride.facts} & _ENDED
    if not heard:
        return
    if ride.cars:
        yield f"{', '.join(heard)} is told, and it still has {', '.join(ride.cars)}"
    state = None if ride.payment is None else ride.payment.state
    if state == "authorized":
        yield f"{', '.join(heard)} is told, and its money is still reserved"
    served = ride.dispatch is not None and ride.dispatch.state == "released"
    if "CarRideCompleted" in heard and served and state not in {"captured", "declined"}:
        yield f"it was driven, and its payment is {state}"
