"""A town of rides with random lives, whose events reach the real handlers in any order."""

import json
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple

import msgspec

from api.commands import AnyChange, change
from carride import ride as rides
from carride.events import SOURCE, RideEvent, parse_event
from carride.facts import FACTS, CarRideCreated, CarRideOverdue, Fact
from carride.overdue import LIMIT
from carride.ride import Ride
from carride_idempotency import BatchFailedError, BusyError, EffectConflictError
from carride_idempotency.errors import RetryableError
from carride_idempotency.stores.transport import NoAnswerError
from carride_idempotency.testing import Crash
from carride_idempotency.testing.worlds import (
    ANSWER_LOST,
    CRASH_AFTER,
    CRASH_BEFORE,
    NO_FAULT,
    OVERTAKEN,
    REQUEST_LOST,
    Fault,
)
from gateway import GatewayError, GatewayUnavailableError
from local.simulated_gateway import Books, Troubles
from payments import UnexpectedPaymentError, UnfinishedRequestError
from tests.carride.properties.bad_gateway import BadGateway, Way
from tests.carride.rides import NOW
from tests.functions.gateways import FakeGateway
from tests.functions.world import CONSUMED, World

# After which nobody needs to hear of a ride: long after its life in these tests.
EXPIRY: Final = timedelta(days=10)
_TABLES: Final = {"ride-history": "rides", "dispatch": "assignments", "payment": "payments"}
_ATTEMPTS: Final = 3
# For one consumer and fact: with them no key uses up its attempts by itself.
_MOST_FAULTS: Final = 2
_ANNOUNCED: Final = (RetryableError, EffectConflictError, GatewayUnavailableError, NoAnswerError)
"""What a handler may raise: the delivery then comes again."""
_OF_A_BAD_GATEWAY: Final = (GatewayError, UnexpectedPaymentError)
"""What payment may raise at a gateway that misbehaves, or has done so lately."""
_MISBEHAVES: Final = 0.6
"""The share of payment's deliveries during which a bad gateway misbehaves."""
_OLD_REDRIVE_S: Final = 7_200.0
"""After which an operator redrives what the gateway had not finished: longer than its bound."""
_LATE: Final = 0.03
"""The share of steps after which deliveries are late by hours."""
_LATEST_S: Final = 6 * 3600.0
_FAULTS: Final = (
    CRASH_BEFORE,
    CRASH_AFTER,
    REQUEST_LOST,
    ANSWER_LOST,
    OVERTAKEN,
    OVERTAKEN,
    OVERTAKEN,
    OVERTAKEN,
)
_AT_THE_COMMIT: Final = 0.5  # the share of faults that meet the commit, where they do most harm
_RECONCILED: Final = 0.02  # the share of steps at which the deadline passes and the reconciler runs
_MOST_STEPS: Final = 1_000
_BOOKED: Final = 0.8  # the share of rides that are booked over the API, in a hard life
_OK: Final = 200
_CONFLICT: Final = 409
_PRICES: Final = (1, 500, 1250, 2000, 10_000_000)


class Delivery(NamedTuple):
    """An event on its way to a consumer, or a tick on its way to the reconciler."""

    consumer: str
    event: Mapping[str, Any]
    attempt: int = 1

    @property
    def operation(self) -> tuple[str, str]:
        """What it asks for: the consumer and the fact."""
        return self.consumer, self.event["detail"]["idempotencyid"]


class Town(World):
    """The handlers, everything around them, and what is on its way.

    Args:
        chance: decides about everything.
        troubles: of the gateway.
        keys_s: seconds for which it knows a key.
        lost: the share of events that dispatch and payment never get; the reconciler runs, and
            settles their rides. None: none gets lost, and the reconciler does not run.
        hard: the rides are booked over the API, deliveries are late by hours, and the gateway
            misbehaves in every `Way`.
    """

    def __init__(
        self,
        chance: Random,
        troubles: Troubles,
        *,
        keys_s: float,
        lost: float | None = None,
        hard: bool = False,
    ) -> None:
        self.books = Books(troubles, keys_s=keys_s, pending_s=30, clock=lambda: self.clock() / 1000)
        super().__init__(FakeGateway(self.books))
        assert isinstance(self.gateway, FakeGateway)
        self._hard = hard
        self.bad = BadGateway(self.gateway, chance, lambda: self.clock() / 1000)
        self.ways: Counter[Way] = Counter()
        self.gateway.sent = self.external(
            "gateway",
            self.bad.answer,
            key=lambda *request: request[2],
            lost=GatewayUnavailableError,
        )
        self._forgetful = keys_s < math.inf or troubles.forgotten > 0
        self._chance = chance
        self._faulty = True
        self._reconciles = lost is not None
        self._share_lost = lost or 0.0
        self.lost: set[tuple[str, str]] = set()
        self.published: dict[str, RideEvent] = {}
        self.again: list[RideEvent] = []
        self.shared: list[str] = []
        self.steps = 0
        self.waiting: list[Delivery] = []
        self.faults: Counter[tuple[str, str]] = Counter()
        self.unfinished: set[tuple[str, str]] = set()
        self._numbers = iter(range(1_000_000))

    # ── The bus ───────────────────────────────────────────────────────────────────────────────────

    def happen(self, fact: Fact) -> None:
        """Have the API publish a fact."""
        event = RideEvent.of(fact, source=SOURCE, time=self.now(), expirytime=NOW + EXPIRY)
        self.put_on_the_bus(event.to_detail())

    def put_on_the_bus(self, detail: Mapping[str, Any]) -> None:
        """Have an event on its way to its consumers, once or twice, or to some of them never."""
        event = parse_event({"detail": detail})
        self.again += [event] if event.idempotencyid in self.published else []
        self.published[event.idempotencyid] = event
        compensates = isinstance(event.data, CarRideOverdue)
        for consumer in ("dispatch", "payment"):
            if not compensates and self._share_lost and self._chance.random() < self._share_lost:
                self.lost.add((consumer, event.idempotencyid))
        self._send(detail, copies=self._chance.choice((1, 1, 2)))

    def _send(self, detail: Mapping[str, Any], *, copies: int = 1) -> None:
        for consumer, consumed in CONSUMED.items():
            if (
                FACTS[detail["type"]] in consumed
                and (consumer, detail["idempotencyid"]) not in self.lost
            ):
                for _ in range(copies):
                    self._deliver_to(consumer, detail)

    def _deliver_to(self, consumer: str, detail: Mapping[str, Any]) -> None:
        """Have an event on its way to a consumer."""
        name = f"delivery-{next(self._numbers)}"
        self.waiting.append(Delivery(consumer, {"id": name, "source": SOURCE, "detail": detail}))

    # ── Deliveries ────────────────────────────────────────────────────────────────────────────────

    def step(self, place: int | None = None) -> None:
        """Have one of the deliveries that wait arrive: the one at a place, or whichever."""
        self.steps += 1
        assert self.steps < _MOST_STEPS, "it never gets quiet"
        delivery = self.waiting.pop(
            self._chance.randrange(len(self.waiting)) if place is None else place
        )
        fault = self._fault(delivery)
        self._choose_a_way(delivery)
        try:
            self.deliver(delivery.consumer, delivery.event, attempt=delivery.attempt, fault=fault)
        except Crash:
            self._retry(delivery)
        except Exception as error:
            reason = error.__cause__ if isinstance(error, BatchFailedError) else error
            pending = isinstance(reason, GatewayUnavailableError) and self.books.met["pending"]
            excused = self._met() or pending or isinstance(reason, BusyError)
            is_announced = isinstance(reason, _ANNOUNCED)
            at_a_bad_gateway = self._hard and isinstance(reason, _OF_A_BAD_GATEWAY)
            # Another run may be asking for the money, whatever the gateway is like.
            is_unfinished = isinstance(reason, UnfinishedRequestError)
            if is_unfinished:
                self.unfinished.add(delivery.operation)
            if not is_unfinished and not at_a_bad_gateway and not (excused and is_announced):
                raise
            self._retry(delivery)
        if self._met() and fault.kind != OVERTAKEN:
            self.faults[delivery.operation] += 1
        self.shared += self._shared_cars()
        for letter in self.given_up():
            self._redrive(letter)

    def _choose_a_way(self, delivery: Delivery) -> None:
        """Have the gateway misbehave during some deliveries, as often as they meet faults."""
        if self.bad.met and self.bad.way is not None:
            self.ways[self.bad.way] += 1
        misbehaves = (
            self._hard
            and self._faulty
            and delivery.consumer == "payment"
            and delivery.attempt == 1
            and self._chance.random() < _MISBEHAVES
        )
        self.bad.choose(self._chance.choice([*Way]) if misbehaves else None)

    def _retry(self, delivery: Delivery) -> None:
        """Deliver again a minute later.

        From the dead-letter queue when the transport's attempts are used up.
        """
        self.clock.advance(60)
        if delivery.attempt < _ATTEMPTS or delivery.consumer == "dispatch":
            self.waiting.append(delivery._replace(attempt=delivery.attempt + 1))
        else:
            self._again(delivery)

    def _redrive(self, letter: Any) -> None:
        """Have the operator release the key of a dead-lettered event and deliver it again."""
        assert letter.key is not None, f"{letter.reason}: {letter.message}"
        event = json.loads(letter.event["body"]) if "body" in letter.event else letter.event
        delivery = Delivery(letter.consumer, event)
        assert letter.reason == "QUARANTINED", letter
        excuses = (
            self.faults[delivery.operation],
            self.books.met["pending"],
            delivery.operation in self.unfinished,
            self._hard,
        )
        assert any(excuses), f"{letter.key} needed no attempt"
        table = "history" if letter.consumer == "ride-history" else "idempotency"
        self.dynamodb.delete({"TableName": table, "Key": {"idempotencyKey": {"S": letter.key}}})
        self._again(delivery)

    def _again(self, delivery: Delivery) -> None:
        if self._hard or delivery.operation in self.unfinished:
            self.clock.advance(_OLD_REDRIVE_S)
        event = dict(delivery.event) | {"id": f"delivery-{next(self._numbers)}"}
        self.waiting.append(Delivery(delivery.consumer, event))

    def _fault(self, delivery: Delivery) -> Fault:
        """Choose a fault of a delivery, or none."""
        if (
            not self._faulty
            or self.faults[delivery.operation] >= _MOST_FAULTS
            or self._chance.random() < 0.5
        ):
            return NO_FAULT
        at = self._chance.randrange(1, 7)
        at_the_commit = self._chance.random() < _AT_THE_COMMIT
        kind = self._chance.choice(_FAULTS)
        # Of two runs at once, a gateway without a memory for keys recognises neither.
        spared = "gateway" if self._forgetful and kind == OVERTAKEN else "nothing"

        def meets(number: int, what: str) -> bool:
            if at_the_commit:
                return what.startswith("TransactWriteItems")
            return number >= at and not what.startswith(spared)

        return Fault(kind, meets, partial(self._overtake, delivery))

    def _met(self) -> bool:
        """Whether the last invocation met its fault."""
        return self.last is not None and self.last.met

    def _overtake(self, delivery: Delivery) -> None:
        """Have deliveries arrive while another one is worked on.

        Of the same ride, or of other rides' like facts.

        The reconciler works on any ride, so any delivery may overtake it.
        """
        alike = self._chance.choice(("subject", "type"))
        for _ in range(self._chance.choice((1, 1, 2))):
            rivals = [
                place
                for place, other in enumerate(self.waiting)
                if delivery.consumer == "reconciler"
                or (other.consumer, other.event["detail"][alike])
                == (delivery.consumer, delivery.event["detail"][alike])
            ]
            if rivals:
                self.step(self._chance.choice(rivals))

    # ── The lives of rides ────────────────────────────────────────────────────────────────────────

    def live(self, number: int) -> None:
        """Have rides begin, live and be delivered, until nothing is left to happen."""
        lives = [self._life_of(each) for each in range(number)]
        while lives or self.waiting:
            if self._hard and self._chance.random() < _LATE:
                self.clock.advance(self._chance.uniform(0, _LATEST_S))
            if self._reconciles and self._chance.random() < _RECONCILED:
                self.run_reconciler()
            elif lives and (not self.waiting or self._chance.random() < 0.85):
                life = self._chance.choice(lives)
                if not next(life, False):
                    lives.remove(life)
            else:
                self.step()

    def settle(self) -> None:
        """Run the reconciler until every ride is settled: the next run finds nothing more to do.

        A driven ride of which dispatch has heard nothing stays overdue, until dispatch catches up.
        """
        if self._reconciles:
            self._faulty = False
            self.run_reconciler()
            self.drain()
            self._catch_up()
            self.run_reconciler()
            self.drain()
            assert self.run_reconciler() == {"reconciled": 0, "overdue": 0}
            assert self.open() == set(), "a ride is overdue"

    def _catch_up(self) -> None:
        """Have dispatch get what it lost of the rides of which it has heard nothing."""
        self._share_lost = 0.0
        served = {item["orderID"] for item in self.items("assignments")}
        unheard = self.open() - served
        for event in list(self.published.values()):
            key = ("dispatch", event.idempotencyid)
            if key in self.lost and event.subject in unheard:
                self.lost.remove(key)
                if type(event.data) not in CONSUMED["dispatch"]:
                    continue
                self._deliver_to("dispatch", event.to_detail())
        self.drain()

    def run_reconciler(self) -> dict[str, int]:
        """Let the clock pass each open ride's deadline, and let one run of the reconciler end.

        The ride history is up to date by then. Whatever else is under way stays so.
        """
        while histories := [
            place for place, each in enumerate(self.waiting) if each.consumer == "ride-history"
        ]:
            self.step(histories[0])
        self.clock.advance(LIMIT.total_seconds())
        self.bad.finish_late()
        while True:
            self.clock.advance(60)
            tick = Delivery(
                "reconciler",
                {"detail": {"idempotencyid": self.now().isoformat(), "subject": "", "type": ""}},
            )
            try:
                return self.tick(fault=self._fault(tick))
            except (Crash, *_ANNOUNCED, ExceptionGroup):
                assert self._met()

    def drain(self) -> None:
        """Have every delivery arrive."""
        while self.waiting:
            self.step()

    def _life_of(self, number: int) -> Iterator[bool]:
        """Have a ride live, a step at a time: booked over the API, or published by a producer."""
        if self._hard and self._chance.random() < _BOOKED:
            yield from self._booked_life(number)
            return
        for fact in self._life(f"order_{number}"):
            self.happen(fact)
            yield True

    def _booked_life(self, number: int) -> Iterator[bool]:
        """Book a ride and change it, over the API, until it refuses: the reconciler ended the ride.

        Some requests come twice, under one key.
        """
        price = self._chance.choice(_PRICES)
        pickup = f"sector_0{self._chance.randrange(1, 9)}"
        asked: dict[str, Any] = {"price": price, "pickup": pickup, "destination": "sector_64"}
        ride = self.book(key=f"booking-{number}", **asked).body
        yield True
        for step in self._steps():
            added = self._added(step, ride["destination"])
            for _ in range(self._chance.choice((1, 1, 2))):
                answer = self.change(ride["orderID"], step, ride["version"], **added)
            if answer.status != _OK:
                assert answer.body["status"] == _CONFLICT
                return
            ride = answer.body
            yield True

    def _steps(self) -> list[str]:
        """Choose what happens to a ride."""
        chance = self._chance
        steps = ["accept", "start", "complete"]
        for _ in range(chance.choice((0, 0, 1, 2))):
            steps.insert(chance.randrange(len(steps)), "changeDestination")
        if chance.random() < 0.5:
            steps[chance.randrange(len(steps)) :] = ["cancel"] * chance.choice((0, 1, 1))
        return steps

    def _added(self, step: str, destination: str) -> dict[str, Any]:
        """Return what a step's request holds besides its action and version."""
        price = self._chance.choice(_PRICES)
        elsewhere = "sector_63" if destination == "sector_64" else "sector_64"
        added: dict[str, dict[str, Any]] = {
            "cancel": {"reason": "changed plans"},
            "changeDestination": {"destination": elsewhere, "price": price},
        }
        return added.get(step, {})

    def _life(self, order_id: str) -> Iterator[Fact]:
        chance = self._chance
        ride = rides.request(
            order_id=order_id,
            customer_id="customer_a",
            pickup=f"sector_0{chance.randrange(1, 9)}",
            destination="sector_64",
            passengers=1,
            price=chance.choice(_PRICES),
        )
        yield CarRideCreated.of(ride)
        for step in self._steps():
            ride = fact = self._next(step, ride)
            yield fact

    def _next(self, step: str, ride: Ride) -> Fact:
        added = self._added(step, ride.destination)
        command = {"action": step, "version": ride.version} | added
        return change(msgspec.convert(command, AnyChange), ride)[1]

    # ── What has to be ────────────────────────────────────────────────────────────────────────────

    def replay(self) -> None:
        """Deliver everything once more, now and after it has expired: nothing may change."""
        before = self._state()
        self._faulty = False
        for days in (0, EXPIRY.days + 1):
            self.clock.advance(days * 86_400)
            for event in self.published.values():
                self._send(event.to_detail())
            self.drain()
        assert self._state() == before

    def _state(self) -> Any:
        tables = {
            table: [*self.items(table)]
            for table in ("rides", "assignments", "payments", "cars", "outbox")
        }
        return json.dumps([tables, self.gateway.ledger()], default=str, sort_keys=True)

    def check(self) -> None:
        """Fail unless every ride is as its facts say, everywhere."""
        assert self.again == [], "facts were published twice"
        for consumer, consumed in CONSUMED.items():
            self._check_effects(consumer, consumed)
        assert self.shared == [], "a car has one ride, and a ride one car"
        for ride in {event.subject for event in self.published.values()}:
            events = [event for event in self.published.values() if event.subject == ride]
            facts = {event.type: event.data for event in events}
            lost = {
                (consumer, event.type)
                for event in events
                for consumer in CONSUMED
                if (consumer, event.idempotencyid) in self.lost
            }
            overdue = {
                event.data.outcome for event in events if isinstance(event.data, CarRideOverdue)
            }
            self._check_dispatch(facts, lost)
            self._check_money(ride, facts, lost, overdue)

    def _check_effects(self, consumer: str, consumed: Collection[type]) -> None:
        """Each fact took effect once."""
        heard = {
            name
            for name, event in self.published.items()
            if type(event.data) in consumed and (consumer, name) not in self.lost
        }
        found = []
        for item in self.items(_TABLES[consumer]):
            entries = [name.removeprefix("event#") for name in item if name.startswith("event#")]
            assert item["effects"] == len(entries), (
                f"{consumer}: {item['orderID']} has {item['effects']} effects"
            )
            found += entries
        assert sorted(found) == sorted(heard), f"{consumer} did not hear each fact once"

    def _shared_cars(self) -> list[str]:
        """Return each car that a ride holds by its own account only, or the car's.

        At no moment is there one.
        """
        taken = {
            (car["carID"]["S"], car["rideID"]["S"])
            for car in self.dynamodb.all("cars")
            if "rideID" in car
        }
        served = [
            ride for ride in self.dynamodb.all("assignments") if ride["state"]["S"] == "assigned"
        ]
        return [
            car
            for car, _ in taken ^ {(ride["carID"]["S"], ride["orderID"]["S"]) for ride in served}
        ]

    def _check_dispatch(self, facts: Mapping[str, Fact], lost: Collection[tuple[str, str]]) -> None:
        """A ride that was accepted has one answer, and its car is free again when it is over."""
        over = facts.keys() & {
            "CarRideCompleted",
            "CarRideCancelled",
            "PaymentDeclined",
            "CarRideOverdue",
        }
        answers = facts.keys() & {"CarAssigned", "NoCarAvailable"}
        if (
            "CarRideAccepted" in facts
            and not lost
            and not facts.keys() & {"CarRideCancelled", "CarRideOverdue"}
        ):
            assert len(answers) == 1
        assert len(answers) <= ("CarRideAccepted" in facts)
        assert ("CarReleased" in facts) == (
            "CarAssigned" in facts and bool(over or self._reconciles)
        )

    def _check_money(
        self,
        ride: str,
        facts: Mapping[str, Fact],
        lost: Collection[tuple[str, str]],
        overdue: Collection[str],
    ) -> None:
        """A ride is charged once, as its events say; when it is over, nothing is left reserved."""
        charges = [charge for charge in self.gateway.ledger() if charge["reference"] == ride]
        assert len(charges) <= 1, f"{ride} is charged {len(charges)} times"
        charge = charges[0] if charges else {"status": None, "captures": [], "amount": None}
        status = charge["status"]
        declined = "PaymentDeclined" in facts
        cancelled = "CarRideCancelled" in facts
        assert len(charge["captures"]) <= 1, charge
        if overdue == {"completed"}:
            assert declined or status == "captured", (ride, charge)
        elif overdue or lost:
            assert status in {None, "declined", "refunded", "captured"}, (ride, charge)
            assert status != "captured" or "CarRideCompleted" in facts, (ride, charge)
        elif "CarAssigned" not in facts or cancelled or declined:
            assert status in {None, "declined", "refunded"}, (ride, charge)
        elif "CarRideCompleted" in facts:
            assert (status, len(charge["captures"])) == ("captured", 1), (ride, charge)
            assert charge["amount"] <= facts["CarRideCompleted"].price
            assert charge["amount"] == facts["CarRideCompleted"].price or self.books.met["capped"]
        else:
            assert status == "authorized", (ride, charge)
        assert ("PaymentCaptured" in facts) == bool(charge["captures"]) or cancelled
        assert "PaymentRefunded" not in facts or status == "refunded"
        assert not declined or "CarAssigned" in facts
        for item in self.items("payments"):
            if item["orderID"] == ride and "amount" in item and status is not None:
                # A ride that was called off before its refusal was heard of has nothing to give
                # back.
                called_off = {"cancelled"} if status == "declined" else set()
                assert item["state"] in {status, "declined", *called_off}, (item, charge)
                if item["state"] == "captured" and "CarRideCompleted" in facts:
                    is_less = charge["amount"] < facts["CarRideCompleted"].price
                    assert item.get("raiseRefused", False) == is_less, (item, charge)
