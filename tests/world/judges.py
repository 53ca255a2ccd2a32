"""Which promises of docs/guarantees.md a story broke, with the audit as one of the judges."""

import base64
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import inf
from typing import TYPE_CHECKING, Any, Final

import assignments
import payments
from carride.events import parse_event
from carride.history import EVENT_PREFIX
from carride_idempotency.clock import to_ms
from carride_idempotency.record import COMPLETED, FAILED, IN_PROGRESS, QUARANTINED
from ops.audit import Report as Audit
from ops.audit import collect_evidence, gateway_payments, judge
from tests.world.aws import stack_of
from tests.world.people import Lived
from tests.world.story import Tier

if TYPE_CHECKING:
    from tests.world.run import World

type Item = dict[str, Any]

CONSUMED: Final = {"dispatch": assignments.CONSUMED, "payment": payments.CONSUMED}
_TABLES: Final = {"dispatch": "AssignmentTable", "payment": "PaymentTable"}
_WITH_OPEN_RIDES: Final = ("BookingTable", "AssignmentTable", "PaymentTable")
_OVERDUE: Final = "CarRideOverdue"
_ASSIGNED: Final = "CarAssigned"
_DECLINED: Final = "PaymentDeclined"
_OF_PAYMENTS: Final = ("PaymentAuthorized", "PaymentCaptured", "PaymentRefunded")
_LAGS_MS: Final = 10_000
_CANCELLED: Final = "cancelled"
_CLOCKS_DIFFER: Final = timedelta(seconds=1)
_OF_TICKS: Final = "ReconcilerDlq"
"""Its letters are runs that were given up, too."""
_MAY_BE_LEFT: Final = ("carride-api#", "reconciler/settle#")
"""Begin the keys whose last attempt may have failed: of a client who has given up, of a booking
that was repeated days later, of a ride that somebody ended before the reconciler tried again."""
_MAY_BE_CUT_OFF: Final = "reconciler/settle#"
"""Begins the keys whose last attempt may have been killed, because somebody ended the ride then."""
_HARMLESS: Final = "reconciler/run#"
"""Begins the keys of runs: one that is given up is followed by the next."""


def of(world: "World") -> Iterator[str]:
    """Yield each promise that a story broke, given the world at rest, after the operator."""
    facts = Facts(world)
    for region in world.regions:
        for name, queue in region.queues.by_name.items():
            for message in queue.messages if name != _OF_TICKS else ():
                yield f"{name} still holds {message.body:.300}"
    yield from _of_records(world)
    yield from _of_effects(world, facts)
    yield from _of_cars(world)
    yield from _of_money(world, facts)
    yield from _of_open_rides(world)
    try:
        report = audited(world)
    except (KeyError, ValueError) as error:
        yield f"the audit cannot read what is there: {error!r}"
        return
    yield from _of_audit(report, world, facts)
    if world.story.tier is not Tier.HEAVY:
        yield from _of_demands(world, facts)


class Facts:
    """What was published about each ride, by type."""

    def __init__(self, world: "World") -> None:
        self.of_ride: dict[str, dict[str, list[Item]]] = defaultdict(lambda: defaultdict(list))
        self.ids: dict[str, set[str]] = defaultdict(set)
        """The ids of the facts of a type."""
        published = [event for each in world.regions for event in each.bus.published]
        for event in published:
            detail = event["detail"]
            if "attributes" in detail:
                detail = parse_event(event).to_detail()
            self.of_ride[detail["subject"]][detail["type"]].append(detail)
            self.ids[detail["type"]].add(detail["idempotencyid"])


def audited(world: "World") -> Audit:
    """Return the report of the audit."""
    ledger = gateway_payments(world.gateway.ledger())
    return judge(collect_evidence(*stack_of(world).regions(), payments=ledger))


def unpaid(world: "World", facts: Facts) -> set[str]:
    """Return the rides that were driven and that nobody pays, by the gateway's own books."""
    paid = {each["reference"] for each in world.gateway.ledger() if each["status"] == "captured"}
    published = [each.booking() for each in world.producers if each.lived.order_id]
    found = set[str]()
    for booking in [*world.table("BookingTable"), *published]:
        ride = str(booking["orderID"])
        told = facts.of_ride[ride]
        was_driven = booking["status"] == "completed" and _ASSIGNED in told
        if was_driven and "CarRideCancelled" not in told and ride not in paid:
            found.add(ride)
    return found


def _of_audit(report: Audit, world: "World", facts: Facts) -> Iterator[str]:
    expected = unpaid(world, facts)
    named = set(report.saga.unpaid)
    if named != expected:
        yield f"the audit says that nobody pays {sorted(named)}, and so it is: {sorted(expected)}"
    report = report._replace(saga=replace(report.saga, unpaid=()))
    waits = sum(len(each.queues.by_name[_OF_TICKS].messages) for each in world.regions)
    if report.status or report.ledger.waiting != waits or report.ledger.in_flight:
        yield f"the audit says {report.verdict}: {report.to_text()}"


def _of_records(world: "World") -> Iterator[str]:
    """Each key that a delivery has begun is completed."""
    for table in ("IdempotencyTable", "RideHistoryTable"):
        for record in world.table(table):
            key = str(record["idempotencyKey"])
            status = record.get("status")
            may_be_left = world.story.days or world.story.tier is Tier.HEAVY
            if may_be_left and status == FAILED and key.startswith(_MAY_BE_LEFT):
                continue
            if may_be_left and status == IN_PROGRESS and key.startswith(_MAY_BE_CUT_OFF):
                continue
            if status != COMPLETED and not key.startswith(_HARMLESS):
                yield f"the record {key} stays {status}"


def _of_effects(world: "World", facts: Facts) -> Iterator[str]:
    """Each published fact took effect once at each consumer of its type; nothing else did."""
    for consumer, consumed in CONSUMED.items():
        wanted = set[str]().union(*(facts.ids[kind.__name__] for kind in consumed))
        found: Counter[str] = Counter()
        for item in world.table(_TABLES[consumer]):
            entries = [name for name in item if name.startswith(EVENT_PREFIX)]
            found.update(name.removeprefix(EVENT_PREFIX) for name in entries)
            effects = item.get("effects", 0)
            if effects != len(entries):
                yield f"{consumer}: {item['orderID']} has {effects} effects: {entries}"
        yield from _compared(consumer, wanted, found)
    kept = [record for record in world.table("RideHistoryTable") if "entry" in record]
    heard = Counter(str(record["idempotencyKey"]).partition("#")[2] for record in kept)
    yield from _compared("ride-history", set[str]().union(*facts.ids.values()), heard)
    committed = {str(item["idempotencyid"]) for item in world.table("OutboxTable")}
    published = set[str]().union(*facts.ids.values())
    for name in sorted(committed - published):
        yield f"{name} was committed, and never published"


def _compared(consumer: str, wanted: set[str], found: Counter[str]) -> Iterator[str]:
    for name in sorted(wanted - found.keys()):
        yield f"{consumer} lost {name}"
    for name in sorted(found.keys() - wanted):
        yield f"{consumer} heard of {name}, which was not for it"
    for name, times in found.items():
        if times > 1:
            yield f"{name} took effect {times} times at {consumer}"


def _of_cars(world: "World") -> Iterator[str]:
    """A car has a ride, and the ride the car; in the end no ride holds any."""
    for car in world.table("CarTable"):
        if "rideID" in car:
            yield f"{car['carID']} is still held by {car['rideID']}"
    for item in world.table("AssignmentTable"):
        if item.get("state") == assignments.State.ASSIGNED:
            yield f"{item['orderID']} still has {item.get('carID')}"


def _of_open_rides(world: "World") -> Iterator[str]:
    for table in _WITH_OPEN_RIDES:
        for item in world.table(table):
            if "openShard" in item and "openSince" not in item:
                yield f"{item['orderID']} has ended, and is set aside in {table}"
            if "openSince" in item:
                state = item.get("state") or item.get("status")
                yield f"{item['orderID']} is still open in {table}, as {state}"


# ── Money ─────────────────────────────────────────────────────────────────────────────────────────


def _of_money(world: "World", facts: Facts) -> Iterator[str]:
    """Each ride is charged at most once, and what its last price says; nothing stays reserved."""
    ledger: dict[str, list[Item]] = defaultdict(list)
    for charge in world.gateway.ledger():
        ledger[charge["reference"]].append(charge)
    published = [each.booking() for each in world.producers if each.lived.order_id]
    for booking in [*world.table("BookingTable"), *published]:
        ride = str(booking["orderID"])
        charges = ledger.pop(ride, [])
        if len(charges) > 1:
            yield f"{ride} has {len(charges)} payments: {charges}"
        for problem in _of_ride(booking, charges, facts.of_ride[ride], world):
            yield f"{ride}, {booking['status']}: {problem}; {json.dumps(charges)}"
    for ride in ledger:
        yield f"{ride} was charged and never booked"


def _of_ride(
    booking: Item, charges: Sequence[Item], told: Mapping[str, list[Item]], world: "World"
) -> Iterator[str]:
    status = charges[0]["status"] if charges else None
    captures = [amount for charge in charges for amount in charge["captures"]]
    refunds = [amount for charge in charges for amount in charge["refunds"]]
    may_be_unpaid = world.gateway.may_be_unpaid(str(booking["customerID"]), str(booking["orderID"]))
    if _DECLINED in told and not may_be_unpaid:
        yield "it was declined, and the gateway has refused nothing"
    if len(captures) > 1:
        yield f"money was taken {len(captures)} times"
    if status in {"authorized", "pending"}:
        yield "its money is still reserved"
    if refunds and status != "refunded":
        yield "it was refunded, and is not"
    yield from _of_told_payments(charges, told)
    if booking["status"] == "completed":
        yield from _of_driven_ride(booking, charges, told, world)
    elif status == "captured":
        yield "it was not driven, and was paid"
    if ("PaymentCaptured" in told) != bool(captures) and "CarRideCancelled" not in told:
        yield f"PaymentCaptured was published {len(told.get('PaymentCaptured', ()))} times"


def _of_told_payments(charges: Sequence[Item], told: Mapping[str, list[Item]]) -> Iterator[str]:
    """What was published names the gateway's payment of the ride, and a price that it had."""
    ids = {charge["id"] for charge in charges}
    prices = set[int]()
    for found in told.values():
        prices.update(json.loads(_data(each))["price"] for each in found)
    for name in _OF_PAYMENTS:
        for fact in told.get(name, ()):
            data = json.loads(_data(fact))
            if data["paymentID"] not in ids or data["amount"] not in prices:
                yield f"{name} is about {data['amount']} of {data['paymentID']}"


def _of_driven_ride(
    booking: Item, charges: Sequence[Item], told: Mapping[str, list[Item]], world: "World"
) -> Iterator[str]:
    ride = str(booking["orderID"])
    overdue = told.get(_OVERDUE, ())
    outcomes = {json.loads(_data(each))["outcome"] for each in overdue}
    served = _ASSIGNED in told
    is_refused = world.gateway.may_be_unpaid(str(booking["customerID"]), ride)
    is_due = served and _DECLINED not in told and not is_refused and outcomes != {_CANCELLED}
    if _CANCELLED in outcomes:
        is_booked = "version" in booking
        if is_booked and not _was_heard_of(ride, overdue, world):
            yield "it was driven, and called off before dispatch had heard of it"
        if not is_booked and _was_known(told, world):
            yield "it was called off, and the history knew that it was driven"
    yield from _of_price(booking, charges, is_due=is_due, world=world)
    if not served and any(charge["captures"] for charge in charges):
        yield "it had no car, and was paid"


def _was_heard_of(order_id: str, overdue: Sequence[Item], world: "World") -> bool:
    """Return whether dispatch had heard of a ride before it was settled as overdue."""
    settled = {f"reconciler/settle#{each['idempotencyid']}" for each in overdue}
    records: list[Item] = world.table("IdempotencyTable")
    items: list[Item] = world.table("AssignmentTable")
    began_ms = [each["createdAt"] for each in records if each["idempotencyKey"] in settled]
    heard = [
        datetime.fromisoformat(item[name]["time"])
        for item in items
        if item["orderID"] == order_id
        for name in item
        if name.startswith(EVENT_PREFIX)
    ]
    if not began_ms or not heard:
        return not began_ms
    began = datetime.fromtimestamp(min(began_ms) / 1000, UTC)
    return min(heard) < began + _CLOCKS_DIFFER


def _was_known(told: Mapping[str, list[Item]], world: "World") -> bool:
    """Return whether a ride had a car, and was in the history as driven, before it was called off.

    Both were so for some seconds: reads of the history lag.
    """
    records: list[Item] = [*world.table("IdempotencyTable"), *world.table("RideHistoryTable")]
    made_ms = {each["idempotencyKey"]: each.get("createdAt", inf) for each in records}
    settled_ms = min(
        made_ms.get(f"reconciler/settle#{each['idempotencyid']}", inf) for each in told[_OVERDUE]
    )
    driven_ms = min(
        made_ms.get(f"ride-history#{each['idempotencyid']}", inf)
        for each in told["CarRideCompleted"]
    )
    served_ms = [to_ms(datetime.fromisoformat(each["time"])) for each in told.get(_ASSIGNED, ())]
    latest_ms: float = max(driven_ms, min(served_ms, default=inf))
    return bool(latest_ms + _LAGS_MS < settled_ms < inf)


def _of_price(
    booking: Item, charges: Sequence[Item], *, is_due: bool, world: "World"
) -> Iterator[str]:
    """A driven ride costs its last price, or what could be reserved of it."""
    if not charges or charges[0]["status"] != "captured":
        if is_due:
            yield "it was driven, and nobody paid"
        return
    taken = charges[0]["amount"]
    price = booking["price"]
    if taken > price:
        yield f"more than its price of {price} was taken"
    may_be_less = world.gateway.may_be_less(str(booking["customerID"]), str(booking["orderID"]))
    if taken < price and not may_be_less:
        yield f"less than its price of {price} was taken"


def _data(detail: Item) -> str:
    if "data" in detail:
        return json.dumps(detail["data"])
    return base64.b64decode(detail["data_base64"]).decode()


# ── Calm and light stories ────────────────────────────────────────────────────────────────────────


def _of_demands(world: "World", facts: Facts) -> Iterator[str]:
    """With few faults nothing needs an operator, and each ride goes as it was meant."""
    for name, queue in world.queues.by_name.items():
        if name.endswith("Dlq") and queue.sent:
            yield f"{name} got {queue.sent} messages"
    for table in ("IdempotencyTable", "RideHistoryTable"):
        for record in world.table(table):
            if record.get("status") == QUARANTINED:
                yield f"{record['idempotencyKey']} is quarantined"
    for lived in world.lived:
        for problem in _of_life(lived, facts.of_ride[lived.order_id], world):
            yield f"ride {lived.life.number}, {lived.order_id}: {problem}"


def _of_life(lived: Lived, told: Mapping[str, list[Item]], world: "World") -> Iterator[str]:
    """A ride goes as its customer and the staff meant it to."""
    if lived.refused:
        yield f"the API refused: {lived.refused}"
        return
    # A run of payment that is killed inside a request leaves the reconciler a duty to look again.
    facts = {each["idempotencyid"] for found in told.values() for each in found}
    was_cut_off = lived.status == "cancelled" and world.cloud.has_met("PaymentFunction", facts)
    if _OVERDUE in told and not lived.life.is_abandoned and not was_cut_off:
        yield "it was settled as overdue"
    accepted = "CarRideAccepted" in told
    may_be_unserved = world.story.cars < len(world.story.lives) + len(world.story.published)
    called_off = lived.status == "cancelled" or lived.life.is_abandoned
    unserved = "NoCarAvailable" in told
    if accepted and not called_off and unserved and not may_be_unserved:
        yield "it got no car, and there were enough"
    if accepted and not called_off and not unserved and "CarAssigned" not in told:
        yield "dispatch did not answer"
    last = lived.life.steps[-1].action if lived.life.steps else ""
    wanted = {"complete": "completed", "cancel": "cancelled"}.get(last)
    if wanted is not None and lived.status != wanted:
        yield f"it should be {wanted} and is {lived.status}"
    customer = f"customer_{lived.life.number}"
    may_be_declined = world.gateway.may_be_unpaid(customer, lived.order_id)
    is_paid = "PaymentCaptured" in told or may_be_declined
    if wanted == "completed" and not unserved and not is_paid:
        yield "it was driven, and PaymentCaptured was never published"
