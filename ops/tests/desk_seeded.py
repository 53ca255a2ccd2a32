"""A desk over synthetic rides, to look at in a browser: `python -m ops.tests.desk_seeded`.

Rides of the last hours are put into the desk's index, and further ones follow as time passes.
Tables, queues and records are moto's, in this process: a command that a page offers finds no stack.
"""

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from itertools import batched
from random import Random
from typing import Any, Final, NamedTuple

import uvicorn
from moto import mock_aws
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.sqs.models import sqs_backends

from carride import telemetry
from carride.events import DETAIL_TYPE, ContractError, RideEvent, parse_event
from carride.facts import (
    CarAssigned,
    CarReleased,
    Fact,
    NoCarAvailable,
    PaymentAuthorized,
    PaymentCaptured,
    PaymentDeclined,
    PaymentRefunded,
)
from carride.history import EVENT_PREFIX
from carride_idempotency import marshalling, observation
from carride_idempotency.dead_letters import CONTRACT
from carride_idempotency.fingerprint import fingerprint
from carride_idempotency.record import QUARANTINED, Record
from ops.audit import Evidence, judge
from ops.audit.evidence import (
    CONSUMERS,
    DISPATCH,
    PAYMENT,
    DeadLettered,
    Effect,
    Named,
    RideItem,
)
from ops.audit.reading import delivered_in, published_in
from ops.desk.app import Desk
from ops.desk.feed import Feed
from ops.tests.desk_world import line
from ops.tests.hostile_world import hostile_stack
from ops.tests.world import put_record
from ops.text import counted
from tests.kit.rides import Life

_APART_S: Final = 4.0
"""Seconds between the beginnings of two rides at 20,000 events; fewer if there are more."""
_AHEAD_S: Final = 3_600.0
"""Rides follow for so long."""
_WHOLE: Final = 3_000
"""Of so many rides, the newest, the tables have items too."""
_SECTORS: Final = 64
_EVENTS_OF_RIDE: Final = 8
_UNSERVED: Final = 0.01
"""The share of rides that begin outside of the city, where no car waits."""
_ERRORS: Final[Mapping[str, Sequence[str]]] = {
    PAYMENT: (
        "GatewayUnavailableError: no answer in time: POST /v1/refunds was answered with 503",
        "GatewayUnavailableError: no answer in time: GET /v1/payment_intents was answered with 429",
    ),
    DISPATCH: ("StoreUnavailableError: TransactWriteItems was not answered in time (timed out)",),
}
_OUTSIDE: Final = "airport"
"""A pickup outside of the city, where no car waits: the fleet grows with the rides of the city."""


_RIDE_HISTORY: Final = "ride-history"


class Happened(NamedTuple):
    """A line of a log, at its time in milliseconds. The consumer is empty for the bus."""

    time_ms: float
    number: int
    consumer: str
    text: str
    took_ms: float = 0.0


class Letter(NamedTuple):
    """An event that a consumer has given up, and the attempt that did."""

    consumer: str
    event: RideEvent
    error: str
    delivery: str
    owner: str
    began_ms: float
    """When the first attempt claimed the key."""
    ended_ms: float


class _Fleet:
    """Cars, of which each has one ride at a time. A ride that finds none brings a further one."""

    def __init__(self) -> None:
        self._free_at: list[tuple[float, int]] = []
        self._count = 0

    def take(self, at_ms: float) -> int:
        """Return the car that has been free for the longest time."""
        if self._free_at and self._free_at[0][0] <= at_ms:
            return heappop(self._free_at)[1]
        self._count += 1
        return self._count

    def give_back(self, car: int, at_ms: float) -> None:
        """Free a car from a time on."""
        heappush(self._free_at, (at_ms, car))


class World:
    """The lines of all logs in the order of their times, and what the tables would hold."""

    def __init__(self, count: int, now_ms: float) -> None:
        self._random = Random(1)  # noqa: S311 - the same rides every time
        self._number = 0
        self.lines: list[Happened] = []
        self.items: dict[tuple[str, str], RideItem] = {}
        """By consumer and ride, when all is over."""
        self.states: dict[tuple[str, str], str | None] = {}
        """Of a ride at a consumer after an event, by the event's id."""
        self.letters: list[Letter] = []
        self.cars: dict[str, str] = {}
        """The car of each ride that gets one."""
        self._fleet = _Fleet()
        self._fill(count, now_ms)
        self.lines.sort()

    def _fill(self, count: int, now_ms: float) -> None:
        if count == 0:
            return
        if count == 1:
            self._ride("order_1", now_ms - 4_000, most=1)
            return
        rides = count // _EVENTS_OF_RIDE + 1
        apart_ms = 1_000 * _APART_S * min(1.0, 2_500 / rides)
        ahead = int(_AHEAD_S * 1_000 / apart_ms)
        for number in range(rides + ahead):
            begin_ms = now_ms + (number - rides) * apart_ms
            self._ride(f"order_{number + 1:05}", begin_ms + self._random.uniform(0, apart_ms))
        for number in range(6):
            self._broken(now_ms - 60_000 * (number + 2))

    def _ride(self, ride: str, begin_ms: float, most: int = _EVENTS_OF_RIDE) -> None:
        """Add what happens to a ride."""
        pick = self._random
        pickup, destination = pick.sample(range(1, _SECTORS + 1), 2)
        chance = pick.random()
        number = self._fleet.take(begin_ms)
        car = f"car_{number:03}"
        life = Life(
            ride,
            pickup=_OUTSIDE if chance < _UNSERVED else f"sector_{pickup:02}",
            destination=f"sector_{destination:02}",
            price=pick.randrange(450, 4_200, 10),
            customer=f"customer_{pick.randrange(1, 400)}",
        )
        last_ms = begin_ms
        known: dict[str, RideEvent] = {}
        story = list(_story(life, chance, car))[:most]
        if any(isinstance(fact, CarAssigned) for _, fact in story):
            self.cars[ride] = car
        types = {type(fact).__name__ for _, fact in story}
        given_up: set[tuple[str | None, str | None]] = set()
        ended: dict[tuple[str, str], float] = {}
        for wait_s, fact in story:
            name = type(fact).__name__
            cause = _cause_of(name, types)
            is_missing = cause is not None and cause not in known
            if is_missing or (given_up and cause is None):
                continue
            if (_EMITS.get(name), cause) in given_up:
                continue
            if cause is None:
                last_ms += 1_000 * wait_s * pick.uniform(0.6, 1.6)
                at_ms = last_ms
            else:
                # An event follows from the delivery that took effect, however late that was.
                at_ms = ended[_EMITS[name], cause] + pick.uniform(2, 20)
                last_ms = max(last_ms, at_ms)
            event = RideEvent.of(
                fact,
                source="acr.com.car-ride",
                time=datetime.fromtimestamp(at_ms / 1_000, UTC),
                cause=known.get(cause or ""),
            )
            known[event.type] = event
            self._publish(event, at_ms)
            if pick.random() < 0.04:
                self._publish(event, at_ms + pick.uniform(200, 4_000), copy=True)
            takers = [each.name for each in CONSUMERS if each.takes(event.type)]
            for taker in takers:
                ended_ms = self._deliver(taker, event, at_ms + pick.uniform(25, 90), types)
                if ended_ms is None:
                    given_up.add((taker, event.type))
                else:
                    ended[taker, event.type] = ended_ms
            if name in {"CarReleased", "NoCarAvailable"}:
                self._fleet.give_back(number, at_ms)

    def _publish(self, event: RideEvent, at_ms: float, *, copy: bool = False) -> None:
        content = {
            "id": _uuid(self._random),
            "source": event.source,
            "detail-type": DETAIL_TYPE,
            "detail": event.to_detail(),
        }
        self._add(at_ms, "", json.dumps(content))
        if copy:
            for each in CONSUMERS:
                if each.takes(event.type):
                    self._said(each.name, event, at_ms + 40, observation.DUPLICATE, took_ms=6)

    def _broken(self, at_ms: float) -> None:
        """Add an event without a ride, and the delivery that gives it up."""
        event_id = _uuid(self._random)
        content = {
            "id": event_id,
            "source": "acr.com.car-ride",
            "detail-type": DETAIL_TYPE,
            "detail": {"type": "CarRideCreated", "data": {"price": "a lot"}},
        }
        self._add(at_ms, "", json.dumps(content))
        told = {
            "message": telemetry.DELIVERY,
            "consumer": _RIDE_HISTORY,
            "outcome": observation.DEAD_LETTERED,
            "attempt": 0,
            "key": None,
            "delivery": _uuid(self._random),
            "event_id": event_id,
            "reason": CONTRACT,
        }
        self._add(at_ms + 80, _RIDE_HISTORY, json.dumps(told), took_ms=30)

    def _deliver(
        self, consumer: str, event: RideEvent, at_ms: float, types: Collection[str]
    ) -> float | None:
        """Add a delivery, and return when it took effect; None if it was given up.

        ``types`` are the types of the events of its ride.
        """
        chance = self._random.random()
        took = self._random.lognormvariate(3.6, 0.5)
        if consumer != _RIDE_HISTORY and chance < 0.0016:
            error = self._random.choice(_ERRORS[consumer])
            for attempt, wait_ms in ((1, 0), (2, 1_400)):
                self._said(consumer, event, at_ms + wait_ms, observation.FAILED, attempt, error)
            last_ms = at_ms + 4_200
            last = self._said(consumer, event, last_ms, observation.DEAD_LETTERED, 3, error)
            owner = f"{self._random.getrandbits(128):032x}"
            self.letters.append(Letter(consumer, event, error, last, owner, at_ms, last_ms))
            return None
        ended_ms = at_ms + took
        if consumer != _RIDE_HISTORY and chance < 0.006:
            error = _ERRORS[consumer][0]
            self._said(consumer, event, at_ms, observation.FAILED, 1, error)
            ended_ms = at_ms + 1_500
            self._said(consumer, event, ended_ms, observation.RETRIED, 2)
        elif consumer != _RIDE_HISTORY and chance < 0.009:
            ended_ms = at_ms + 6_000
            self._said(consumer, event, ended_ms, observation.TAKEOVER, 2)
            if chance < 0.0075:
                lost = observation.LOST_LEASE
                self._said(consumer, event, at_ms + 6_400, lost, 1, took_ms=6_380)
        else:
            self._said(consumer, event, ended_ms, observation.NEW, took_ms=took)
        self._take_effect(consumer, event, at_ms, types)
        return ended_ms

    def _said(
        self,
        consumer: str,
        event: RideEvent,
        at_ms: float,
        outcome: str,
        attempt: int = 1,
        reason: str | None = None,
        took_ms: float = 30,
    ) -> str:
        """Add the line of a delivery, and return the delivery's id."""
        delivery = _uuid(self._random)
        told = {
            "message": telemetry.DELIVERY,
            "consumer": consumer,
            "outcome": outcome,
            "attempt": attempt,
            "key": f"{consumer}#{event.idempotencyid}",
            "idempotencyid": event.idempotencyid,
            "correlationid": event.correlationid,
            "type": event.type,
            "delivery": delivery,
        }
        if reason is not None:
            told["reason"] = reason
        self._add(at_ms, consumer, json.dumps(told), took_ms)
        return delivery

    def _add(self, at_ms: float, consumer: str, text: str, took_ms: float = 0.0) -> None:
        self._number += 1
        self.lines.append(Happened(at_ms, self._number, consumer, text, took_ms))

    def _take_effect(
        self, consumer: str, event: RideEvent, at_ms: float, types: Collection[str]
    ) -> None:
        ride = event.subject
        emitted = [
            name
            for name in sorted(types)
            if _EMITS.get(name) == consumer and _cause_of(name, types) == event.type
        ]
        named = Named(ride, event.type, event.data.version)
        time_ = datetime.fromtimestamp(at_ms / 1_000, UTC)
        effect = Effect(event.idempotencyid, named, time_, tuple(emitted))
        known = self.items.get((consumer, ride))
        effects = (*(known.effects if known else ()), effect)
        state = known.state if known else None
        for name in emitted:
            state = _STATES[name]
        if (consumer, event.type) == (PAYMENT, "NoCarAvailable"):
            state = "cancelled"
        detail: str | int | None = self.cars.get(ride)
        if consumer == PAYMENT:
            detail = event.data.price
        self.states[consumer, event.idempotencyid] = state
        self.items[consumer, ride] = RideItem(consumer, ride, effects, len(effects), state, detail)


def _cause_of(name: str, types: Collection[str]) -> str | None:
    """Return the type of the event that one follows from, in a ride that has events of types."""
    if name == "CarReleased":
        for ending in ("PaymentDeclined", "CarRideCancelled"):
            if ending in types:
                return ending
    return _CAUSES.get(name)


_CAUSES: Final = {
    "CarAssigned": "CarRideAccepted",
    "NoCarAvailable": "CarRideAccepted",
    "PaymentAuthorized": "CarAssigned",
    "PaymentDeclined": "CarAssigned",
    "CarReleased": "CarRideCompleted",
    "PaymentCaptured": "CarRideCompleted",
    "PaymentRefunded": "CarRideCancelled",
}
_EMITS: Final = {
    "CarAssigned": DISPATCH,
    "CarReleased": DISPATCH,
    "NoCarAvailable": DISPATCH,
    "PaymentDeclined": PAYMENT,
    "PaymentAuthorized": PAYMENT,
    "PaymentCaptured": PAYMENT,
    "PaymentRefunded": PAYMENT,
}
_STATES: Final = {
    "CarAssigned": "assigned",
    "NoCarAvailable": "unserved",
    "CarReleased": "released",
    "PaymentAuthorized": "authorized",
    "PaymentDeclined": "declined",
    "PaymentCaptured": "captured",
    "PaymentRefunded": "refunded",
}
"""The state of a ride at the consumer that has emitted an event."""


def _story(life: Life, chance: float, car: str) -> Iterator[tuple[float, Fact]]:
    """Yield what happens to a ride, each with the seconds since what was before."""
    paid = {"payment_id": _payment(life.order_id), "amount": life.created.price}
    yield 0.0, life.created
    yield 5.0, life.accepted
    if chance < _UNSERVED:
        yield 0.3, NoCarAvailable.of(life.accepted, reason=f"{_OUTSIDE} is outside of the city")
        return
    yield 0.3, CarAssigned.of(life.accepted, car_id=car)
    if chance < 0.05:
        yield (
            0.3,
            PaymentDeclined.of(
                life.accepted, amount=life.created.price, reason="insufficient funds"
            ),
        )
        yield 0.3, CarReleased.of(life.accepted, car_id=car)
        return
    yield 0.3, PaymentAuthorized.of(life.accepted, **paid)
    if chance < 0.06:
        return  # it stands still
    if chance < 0.08:
        yield 20.0, life.cancelled
        yield 0.3, CarReleased.of(life.cancelled, car_id=car)
        yield 0.2, PaymentRefunded.of(life.cancelled, **paid)
        return
    yield 45.0, life.started
    yield 240.0, life.completed
    yield 0.3, CarReleased.of(life.completed, car_id=car)
    yield 0.2, PaymentCaptured.of(life.completed, **paid)


def _payment(ride: str) -> str:
    """Return the id that the simulated gateway would give the payment of a ride."""
    return f"pay_{ride.removeprefix('order_'):0>6}"


def _uuid(random: Random) -> str:
    text = f"{random.getrandbits(128):032x}"
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-8{text[17:20]}-{text[20:]}"


# ── The desk ──────────────────────────────────────────────────────────────────────────────────────


class Seeded:
    """A desk whose feed is written by a world instead of being polled."""

    def __init__(self, count: int, host: str) -> None:
        self.stack = hostile_stack((), "nobody")
        # No event is a replayed one.
        self.stack.client("events").list_replays = lambda **_: {"Replays": []}
        self.desk = Desk(Feed(self.stack), host)
        vars(self.desk)["overdue_limit"] = timedelta(hours=6)
        vars(self.desk)["where"] = "in this process, synthetic"
        self._letters_until_ms = 0.0
        now_ms = time.time() * 1_000
        self._world = World(count, now_ms)
        self._lines = iter(self._world.lines)
        self._next = next(self._lines, None)
        self._published: list[Any] = []
        self._delivered: list[Any] = []
        self._is_stopping = threading.Event()
        self.advance(now_ms)
        self._send_letters(now_ms)
        self._send_broken()
        newest = [*self.desk.feed.index.rides][-_WHOLE:]
        self._store([*newest, *(each.event.subject for each in self._world.letters)])
        self.audit()
        feed = self.desk.feed
        feed._count_queues()  # noqa: SLF001 - as the thread does that this feed has not started

    def advance(self, until_ms: float) -> list[str]:
        """Add the lines up to a time, and return the rides of the events among them."""
        feed = self.desk.feed
        rides = []
        with feed.lock:
            while self._next is not None and self._next.time_ms <= until_ms:
                rides.append(self._read(self._next))
                self._next = next(self._lines, None)
            feed.answered_at = time.time()
        return [ride for ride in rides if ride]

    def _read(self, happened: Happened) -> str | None:
        index = self.desk.feed.index
        text = line(happened.text, happened.time_ms, happened.consumer)
        if not happened.consumer:
            index.add_published(text)
            published = published_in(text)
            self._published.append(published)
            return published.named.order_id if published and published.named else None
        stream = happened.consumer
        index.add_line(line("START RequestId: 1", happened.time_ms - happened.took_ms, stream))
        index.add_line(text)
        report = f"REPORT RequestId: 1 Duration: {happened.took_ms:.2f} ms"
        index.add_line(line(report, happened.time_ms, stream))
        found = delivered_in(text)
        if found is not None:
            self._delivered.append(found)
        return None if found is None else found.ride

    def _send_letters(self, until_ms: float) -> bool:
        """Put letters into their queues that came since the last call, with their keys' records.

        Return whether there were any.
        """
        resources = {each.name: each.resources for each in CONSUMERS}
        since_ms = self._letters_until_ms
        self._letters_until_ms = until_ms
        new = [each for each in self._world.letters if since_ms < each.ended_ms <= until_ms]
        for letter in new:
            consumer = letter.consumer
            event = letter.event
            envelope = {
                "version": "0",
                "id": event.id,
                "source": event.source,
                "detail-type": DETAIL_TYPE,
                "time": event.time.isoformat(),
                "detail": event.to_detail(),
            }
            said = {"reason": "QUARANTINED", "consumer": consumer, "message": letter.error}
            body = json.dumps(said | {"event": envelope})
            url = self.stack.outputs[f"{resources[consumer]}DlqUrl"]
            self._send(url, body, letter.ended_ms)
            put_record(self.stack, _record(letter))
        return bool(new)

    def _send_broken(self) -> None:
        """Put the letters of events that break the contract into their queue."""
        for published in self._published:
            if published is not None and published.fact is None:
                fact = self.desk.feed.index.facts[published.event_id]
                said = {"reason": CONTRACT, "consumer": _RIDE_HISTORY}
                said["message"] = _broken_by(fact.body)
                body = json.dumps(said | {"event": json.loads(fact.body)})
                url = self.stack.outputs["RideHistoryDlqUrl"]
                self._send(url, body, fact.time_ms + 80)

    def _send(self, url: str, body: str, at_ms: float) -> None:
        """Put a letter into a queue as if it were sent at a time."""
        self.stack.client("sqs").send_message(QueueUrl=url, MessageBody=body)
        queue = sqs_backends[DEFAULT_ACCOUNT_ID]["us-east-1"].queues[url.rpartition("/")[2]]
        message: Any = queue._messages[-1]  # noqa: SLF001 - SQS has no such option
        message.sent_timestamp = int(at_ms)

    def _store(self, rides: Iterable[str]) -> None:
        """Put rides into the tables."""
        index = self.desk.feed.index
        dynamodb = self.stack.client("dynamodb")
        requests = []
        for ride in dict.fromkeys(rides):
            for table, item in _items(self._world, index.of_ride(ride), ride):
                name = self.stack.outputs[f"{table}Name"]
                requests.append((name, {"PutRequest": {"Item": item}}))
        for some in batched(requests, 25, strict=False):
            asked: dict[str, list[Any]] = {}
            for name, request in some:
                asked.setdefault(name, []).append(request)
            dynamodb.batch_write_item(RequestItems=asked)

    def audit(self) -> None:
        """Judge what has happened so far."""
        letters = []
        resources = {each.name: each.resources for each in CONSUMERS}
        known = {each.fact for each in self._published if each is not None}
        for each in self._world.letters:
            event = each.event
            consumer = each.consumer
            if each.ended_ms <= self._letters_until_ms:
                queue = f"{resources[consumer]}Dlq"
                letters.append(
                    DeadLettered(queue, "QUARANTINED", consumer, event.id, event.idempotencyid)
                )
        for published in self._published:
            if published is not None and published.fact is None:
                name = published.event_id
                letter = DeadLettered("RideHistoryDlq", CONTRACT, _RIDE_HISTORY, name, None)
                letters += [letter]
        at = datetime.now(UTC)
        items = []
        for item in self._world.items.values():
            effects = tuple(each for each in item.effects if each.fact in known)
            if effects:
                state = self._world.states.get((item.consumer, effects[-1].fact))
                items.append(item._replace(effects=effects, total=len(effects), state=state))
        cars = {}
        for item in items:
            if item.consumer == DISPATCH and item.state == "assigned":
                cars[str(item.detail)] = item.order_id
        evidence = Evidence(
            cars=cars,
            consumers=self.desk.feed.consumers,
            published=[each for each in self._published if each is not None],
            deliveries=self._delivered,
            dead_letters=letters,
            items=items,
            at=at,
            grace=timedelta(minutes=20),
        )
        report = judge(evidence)
        feed = self.desk.feed
        with feed.lock:
            feed.index.add_letters(letters)
            feed.report = report
            feed.audited_at = time.time()

    def live(self) -> None:
        """Add lines as time passes, and audit when somebody asks, until `stop`."""
        feed = self.desk.feed
        while not self._is_stopping.wait(0.5):
            now_ms = time.time() * 1_000
            self._store(self.advance(now_ms))
            if self._send_letters(now_ms):
                feed._count_queues()  # noqa: SLF001 - as the thread does that has not started
            if feed.audit_wanted.is_set():
                feed.audit_wanted.clear()
                self.audit()

    def stop(self) -> None:
        """End `live`."""
        self._is_stopping.set()


def _broken_by(body: str) -> str:
    """Return what a consumer says of an event that breaks the contract."""
    try:
        parse_event(json.loads(body))
    except ContractError as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("it keeps the contract")


def _record(letter: Letter) -> Record:
    """Return the record of a key that was given up."""
    return Record(
        key=f"{letter.consumer}#{letter.event.idempotencyid}",
        status=QUARANTINED,
        owner=letter.owner,
        attempt=3,
        lease_ms=None,
        expiry=None,
        fingerprint=fingerprint(letter.event.payload),
        delivery=letter.delivery,
        region="us-east-1",
        created_ms=int(letter.began_ms),
        updated_ms=int(letter.ended_ms),
        error=letter.error,
        dead_lettered=True,
    )


def _items(world: World, facts: Sequence[Any], ride: str) -> Iterator[tuple[str, Any]]:
    """Yield the items of a ride as its facts leave them, each with its table."""
    if not facts:
        return
    newest = facts[-1]
    data = json.loads(newest.body)["detail"]["data"]
    at = datetime.fromtimestamp(newest.time_ms / 1_000, UTC).isoformat()
    booking = {"orderID": ride, "status": str(data["status"]), "version": newest.version}
    booking["owner"] = str(data["customerID"])
    if data["status"] not in ("completed", "cancelled"):
        booking["changedAt"] = at
    yield "BookingTable", marshalling.item(booking)
    known = {fact.id for fact in facts}
    for table, consumer in (("AssignmentTable", DISPATCH), ("PaymentTable", PAYMENT)):
        whole = world.items.get((consumer, ride))
        effects = [each for each in whole.effects if each.fact in known] if whole else []
        if not effects:
            continue
        state = world.states[consumer, effects[-1].fact]
        item = {"orderID": ride, "state": state, "effects": len(effects), **_entries(effects)}
        if consumer == DISPATCH:
            if ride in world.cars:
                item["carID"] = world.cars[ride]
        else:
            item["amount"] = data["price"]
            item["currency"] = str(data["currency"])
            if state != "cancelled":
                item["paymentID"] = _payment(ride)
        yield table, marshalling.item(item)


def _entries(effects: Iterable[Effect]) -> dict[str, Any]:
    """Return what an item remembers of the events that took effect."""
    found = dict[str, Any]()
    for each in effects:
        assert each.named is not None
        assert each.time is not None
        found[EVENT_PREFIX + each.fact] = {
            "type": each.named.type,
            "sequence": each.named.version,
            "time": each.time.isoformat(),
            "emitted": [*each.emitted],
        }
    return found


@contextmanager
def serving(count: int, port: int) -> Iterator[str]:
    """Serve a desk over so many events for the time of the ``with`` block; yield its URL."""
    with ExitStack() as running:
        running.enter_context(mock_aws())
        host = f"127.0.0.1:{port}"
        seeded = Seeded(count, host)
        settings = uvicorn.Config(
            seeded.desk.app, host="127.0.0.1", port=port, log_level="warning", lifespan="off"
        )
        server = uvicorn.Server(settings)
        threads = [threading.Thread(target=server.run), threading.Thread(target=seeded.live)]
        for thread in threads:
            thread.start()
        try:
            yield f"http://{host}/"
        finally:
            seeded.stop()
            server.should_exit = True
            for thread in threads:
                thread.join()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m ops.tests.desk_seeded", description=__doc__)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--port", type=int, default=8_780)
    asked = parser.parse_args(arguments)
    with serving(asked.events, asked.port) as url:
        print(f"{counted(asked.events, 'event')}: {url} until Ctrl-C", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return 0
    return 0


if __name__ == "__main__":
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "test")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "test")
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    sys.exit(main())
