"""What a saboteur does while a story is lived: each function taps what is on its way.

A tap plants one wrong thing at a moment that suits it, if there is one.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import msgspec

from carride.events import DETAIL_TYPE, SOURCE, RideEvent
from carride.facts import CarReleased, CarRideCancelled
from carride.history import EVENT_PREFIX
from carride.ride import Ride, Status
from carride_idempotency import marshalling
from carride_idempotency.record import COMPLETED
from ops.audit.queues import dead_letter
from ops.dead_letters import READERS
from tests.world.queues import Message
from tests.world.sabotage.hand import (
    BOOKINGS,
    OUTBOX,
    RECORDS,
    TABLES,
    Hand,
    Item,
    entries,
    fact_of,
    lines,
)

_LATER_S: Final = 400.0
"""When no process remembers a key any more."""

# ── Events on their way ───────────────────────────────────────────────────────────────────────────


def lost_in_the_pipe(hand: Hand) -> None:
    """Delete an item of the outbox from the stream."""

    def written(real: Any, table: str, before: Any, after: Any) -> None:
        if table == hand.name_of(OUTBOX) and before is None and after and hand.takes():
            hand.planted(after["idempotencyid"]["S"], "outbox: lost")
            return
        real(table, before, after)

    hand.tap(hand.world.cloud.dynamodb, "written", written)


def changed_in_the_pipe(hand: Hand) -> None:
    """Have the bus get another price than was committed."""

    def put(real: Any, detail: Item, *rest: Any) -> None:
        fact = detail["idempotencyid"]
        if detail["type"] == "CarRideCompleted" and hand.takes(fact):
            victims[fact] = _with_another_price(detail)
            hand.planted(detail["subject"], "its booking has the price")
        real(victims.get(fact, detail), *rest)

    victims: dict[str, Item] = {}
    hand.tap(hand.world.bus, "put", put)


def _with_another_price(detail: Mapping[str, Any]) -> Item:
    """Return an event whose ride has another price, within the contract."""
    data = json.loads(base64.b64decode(detail["data_base64"]))
    data["price"] += 1 if data["price"] == 1 else -1
    return {**detail, "data_base64": base64.b64encode(json.dumps(data).encode()).decode()}


def lost_on_the_way(hand: Hand) -> None:
    """Lose every copy of an event between the bus and the ride history."""

    def send(real: Any, event: Item, name: str) -> None:
        fact = event["detail"]["idempotencyid"]
        if hand.takes(fact):
            victims.append(fact)
            hand.planted(fact, "ride-history: lost")
        if fact not in victims:
            real(event, name)

    victims: list[str] = []
    hand.tap(hand.world.functions["RideHistoryFunction"], "send", send)


def second_end(hand: Hand) -> None:
    """Publish a cancellation of a completed ride, as the same version."""

    def put(real: Any, detail: Item, *rest: Any) -> None:
        real(detail, *rest)
        if detail["type"] == "CarRideCompleted" and hand.takes():
            ride = msgspec.structs.replace(_ride_in(detail), status=Status.CANCELLED)
            fact = CarRideCancelled.of(ride, reason="planted")
            _publish(hand, real, fact)
            hand.planted(f"{ride.order_id}/{ride.version}", "two facts")

    hand.tap(hand.world.bus, "put", put)


def second_release(hand: Hand) -> None:
    """Publish once more that a car is free, about a later version of the ride."""

    def put(real: Any, detail: Item, *rest: Any) -> None:
        real(detail, *rest)
        if detail["type"] == "CarReleased" and hand.takes():
            data = json.loads(base64.b64decode(detail["data_base64"]))
            fact = msgspec.convert(data | {"version": data["version"] + 9}, CarReleased)
            _publish(hand, real, fact)
            hand.planted(fact.order_id, "CarReleased was published 2 times")

    hand.tap(hand.world.bus, "put", put)


def returned_by_hand(hand: Hand) -> None:
    """Have somebody give the reserved money back at the gateway, before the ride is driven."""

    def put(real: Any, detail: Item, *rest: Any) -> None:
        real(detail, *rest)
        if detail["type"] != "PaymentAuthorized":
            return
        charge = hand.charge(detail["subject"])
        if charge.status == "requires_capture" and hand.takes():
            charge.status = "canceled"
            charge.refunds = [charge.amount]
            hand.planted(detail["subject"], "driven, not paid")

    hand.tap(hand.world.bus, "put", put)


def _ride_in(detail: Mapping[str, Any]) -> Ride:
    return msgspec.convert(json.loads(base64.b64decode(detail["data_base64"])), Ride)


def _publish(hand: Hand, put: Any, fact: Any) -> None:
    now = datetime.fromtimestamp(hand.world.cloud.simulation.now_ms / 1000, UTC)
    event = RideEvent.of(fact, source=SOURCE, time=now)
    put(event.to_detail(), SOURCE, DETAIL_TYPE, now.isoformat())


def lost_letters(hand: Hand) -> None:
    """Delete the letters about an event before the operator comes."""

    def between() -> None:
        found = sorted(_unheard(hand))
        chosen = hand.one(found)
        if chosen is None:
            return
        consumer, fact = chosen
        for name, reader in READERS.items():
            if reader.name == consumer:
                queue = hand.world.queues.by_name[name]
                queue.messages = [each for each in queue.messages if _told_in(each) != fact]
        hand.planted(fact, f"{consumer}: lost")

    hand.between = between


def _unheard(hand: Hand) -> Iterator[tuple[str, str]]:
    """Yield the consumers and facts of letters about events that have not taken effect."""
    published = set(hand.facts())
    applied = {
        (consumer, name.removeprefix(EVENT_PREFIX))
        for consumer, table in TABLES.items()
        for item in hand.items(table)
        for name in entries(item)
    } | {("ride-history", fact_of(record)) for record in lines(hand)}
    for name, reader in READERS.items():
        for message in hand.world.queues.by_name[name].messages:
            fact = _told_in(message)
            if fact in published and (reader.name, fact) not in applied:
                yield reader.name, fact


def _told_in(message: Message) -> str:
    """Return the fact of a letter's event; empty if it has none."""
    sent = {"Body": message.body, "MessageAttributes": dict(message.attributes)}
    return dead_letter("", None, sent).fact or ""


# ── Commits ───────────────────────────────────────────────────────────────────────────────────────


def _on_commits(hand: Hand, changed: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
    """Have every transaction write something else."""

    def commit(real: Any, writes: Sequence[Any]) -> None:
        real(changed(writes))

    hand.tap(hand.world.cloud.dynamodb, "_commit", commit)


def _completed_in(hand: Hand, consumer: str, writes: Sequence[Any]) -> str:
    """Return the fact that a consumer completes together with an effect; empty if none."""
    tables = {write.table for write in writes}
    if not {hand.name_of(RECORDS), hand.name_of(TABLES[consumer])} <= tables:
        return ""
    for write in writes:
        if write.table == hand.name_of(RECORDS) and write.after:
            record = marshalling.values(write.after)
            name, _, fact = str(record["idempotencyKey"]).partition("#")
            if name == consumer and record["status"] == COMPLETED:
                return str(fact)
    return ""


def record_without_its_effect(hand: Hand) -> None:
    """Have dispatch complete a key without the effect."""

    def changed(writes: Sequence[Any]) -> Sequence[Any]:
        fact = _completed_in(hand, "dispatch", writes)
        if not fact or not hand.takes():
            return writes
        hand.planted(fact, "dispatch: lost")
        return [write for write in writes if write.table == hand.name_of(RECORDS)]

    _on_commits(hand, changed)


def booking_without_its_event(hand: Hand) -> None:
    """Lose the outbox's item of a transaction that writes a booking."""

    def changed(writes: Sequence[Any]) -> Sequence[Any]:
        outbox = [each for each in writes if each.table == hand.name_of(OUTBOX) and each.after]
        is_booking = any(each.table == hand.name_of(BOOKINGS) for each in writes)
        if not outbox or not is_booking or not hand.takes():
            return writes
        lost = outbox[0].after
        about = f"{lost['subject']['S']} version {int(lost['sequence']['S'])}"
        hand.planted(about, "outbox: lost")
        return [each for each in writes if each not in outbox]

    _on_commits(hand, changed)


def forgotten_key(hand: Hand) -> None:
    """Lose a record of payment within its window, and then deliver its event once more."""

    def changed(writes: Sequence[Any]) -> Sequence[Any]:
        fact = _completed_in(hand, "payment", writes)
        if fact and hand.takes():
            (write,) = [each for each in writes if each.table == hand.name_of(TABLES["payment"])]
            hand.planted(write.after["orderID"]["S"], "payment: doubled")
            hand.world.cloud.simulation.after(_LATER_S, partial(again, fact))
        return writes

    def again(fact: str) -> None:
        hand.delete(RECORDS, {"idempotencyKey": f"payment#{fact}"})
        event = next(
            each for each in hand.world.bus.published if each["detail"]["idempotencyid"] == fact
        )
        hand.world.functions["PaymentFunction"].send(event, f"again {fact}")

    _on_commits(hand, changed)
