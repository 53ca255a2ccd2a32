"""Dispatch on an in-process DynamoDB: one car to a ride, one ride to a car, and what is told of it."""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import boto3
import pytest
from moto import mock_aws

import assignments
import dispatch
import fleet
from carride.events import CarAssigned, Fact, parse_event
from dispatch import POLICY, Settings, make_handler
from idempotency import Update
from idempotency.clock import epoch_ms
from local import faults
from tests.unit.functions.saga import NOW, Life, client, create_table, event, invocation, items, outbox, told

TABLES = assignments.Tables("assignments", "cars", "outbox")


class World(NamedTuple):
    """A handler, the tables that it writes, and its dead-letter queue."""

    handler: Any
    dynamodb: Any
    sqs: Any
    settings: Settings

    def deliver(self, *events: dict[str, Any], receives: int = 1) -> list[str]:
        """Deliver events as one batch and return the ids of the messages that come again."""
        records = [
            {
                "messageId": f"message-{number}-{event['id']}",
                "body": json.dumps(event),
                "attributes": {"SentTimestamp": str(epoch_ms()), "ApproximateReceiveCount": str(receives)},
            }
            for number, event in enumerate(events)
        ]
        failures = self.handler({"Records": records}, invocation())["batchItemFailures"]
        return [failure["itemIdentifier"] for failure in failures]

    def hear(self, *facts: Fact) -> None:
        """Deliver facts one after the other."""
        for fact in facts:
            assert self.deliver(event(fact)) == []

    def park(self, *car_ids: str, sector: str = "sector_01") -> None:
        """Add free cars."""
        for car_id in car_ids:
            item = {"zone": {"S": "zone_01"}, "carID": {"S": car_id}, "sector": {"S": sector}}
            self.dynamodb.put_item(TableName="cars", Item=item)

    def cars(self) -> dict[str, str | None]:
        """Return the ride of each car."""
        return {item["carID"]: item.get("rideID") for item in items(self.dynamodb, "cars")}

    def ride(self, order_id: str = "order_01") -> dict[str, Any]:
        """Return the ride as dispatch has it."""
        (found,) = [item for item in items(self.dynamodb, "assignments") if item["orderID"] == order_id]
        return found

    def told(self) -> list[str]:
        """Return the types of the events in the outbox."""
        return [item["type"] for item in outbox(self.dynamodb)]

    def dead_letters(self) -> list[dict[str, Any]]:
        """Return what lies in the dead-letter queue."""
        answer = self.sqs.receive_message(QueueUrl=self.settings.dead_letter_queue_url, MaxNumberOfMessages=10)
        return [json.loads(message["Body"]) for message in answer.get("Messages", [])]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Dispatch over empty tables, with faults injected. One at a time: moto's transactions are not isolated."""
    monkeypatch.setattr(dispatch, "POLICY", dataclasses.replace(POLICY, concurrency=1))
    faults.install(monkeypatch.setattr)
    with mock_aws():
        dynamodb, sqs = client(), boto3.client("sqs")
        create_table(dynamodb, "idempotency", "idempotencyKey")
        create_table(dynamodb, "assignments", "orderID")
        create_table(dynamodb, "cars", "zone", "carID")
        create_table(dynamodb, "outbox", "id")
        settings = Settings(
            idempotency_store="dynamodb:idempotency",
            assignment_table="assignments",
            car_table="cars",
            outbox_table="outbox",
            dead_letter_queue_url=sqs.create_queue(QueueName="DispatchDlq")["QueueUrl"],
            aws_region="us-east-1",
        )
        yield World(make_handler(settings), dynamodb, sqs, settings)


def test_a_ride_gets_a_car_and_gives_it_back(world: World) -> None:
    """The car, the ride and what is told of them change together, at each of the two events."""
    ride = Life()
    world.park("car_01")
    world.hear(ride.accepted)
    assert world.cars() == {"car_01": "order_01"}
    assert (world.ride()["state"], world.ride()["carID"], world.told()) == ("assigned", "car_01", ["CarAssigned"])
    world.hear(ride.completed)
    assert world.cars() == {"car_01": None}
    assert (world.ride()["state"], world.told()) == ("released", ["CarAssigned", "CarReleased"])


def test_what_is_told_follows_from_what_was_heard(world: World) -> None:
    """The event in the outbox is a whole one: of the ride, caused by the acceptance, with its correlation and trace."""
    ride, trace = Life(), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    world.park("car_01")
    heard = event(ride.accepted, traceparent=trace)
    world.deliver(heard)
    (item,) = outbox(world.dynamodb)
    assert item["data"]["carID"] == "car_01"
    assert (item["subject"], item["sequence"], item["traceparent"]) == ("order_01", "00000002", trace)
    assert (item["causationid"], item["correlationid"]) == (heard["detail"]["id"], heard["detail"]["correlationid"])
    parsed = parse_event({"detail": _detail(item)})
    assert isinstance(parsed.data, CarAssigned)
    assert parsed.idempotencyid != heard["detail"]["idempotencyid"]


def test_a_fact_takes_effect_once_however_often_it_comes(world: World) -> None:
    """In one batch, in the next one and after the end of the ride: one car, one event told, one effect."""
    ride = Life()
    world.park("car_01", "car_02")
    assert world.deliver(*[event(ride.accepted)] * 5) == []
    world.hear(ride.accepted, ride.completed, ride.accepted, ride.completed)
    assert set(world.cars().values()) == {None}
    assert world.told() == ["CarAssigned", "CarReleased"]
    assert world.ride()["effects"] == 2


def test_a_car_has_one_ride(world: World) -> None:
    """Ten rides and four cars: each car has one ride, each served ride one car, and the others are told of."""
    world.park(*(f"car_{number:02d}" for number in range(4)))
    assert world.deliver(*(event(Life(f"order_{number:02d}").accepted) for number in range(10))) == []
    taken = [ride for ride in world.cars().values() if ride is not None]
    assert len(set(taken)) == len(taken) == 4
    assert sorted(world.told()) == ["CarAssigned"] * 4 + ["NoCarAvailable"] * 6
    rides = items(world.dynamodb, "assignments")
    assert {ride["orderID"] for ride in rides if ride["state"] == "assigned"} == set(taken)


def test_a_decision_on_a_car_that_was_taken_meanwhile_is_made_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of free cars that is out of date costs a second look, never a second ride in a car."""
    world.park("car_01")
    read = assignments.Reader.free_cars

    def read_then_lose(self: Any, zone: str) -> Any:
        cars = read(self, zone)
        if cars:
            world.dynamodb.update_item(
                TableName="cars",
                Key={"zone": {"S": zone}, "carID": {"S": "car_01"}},
                UpdateExpression="SET rideID = :other",
                ExpressionAttributeValues={":other": {"S": "order_02"}},
            )
        return cars

    monkeypatch.setattr(assignments.Reader, "free_cars", read_then_lose)
    world.hear(Life().accepted)
    assert world.cars() == {"car_01": "order_02"}
    assert world.told() == ["NoCarAvailable"]


def test_a_decision_on_a_ride_that_has_changed_meanwhile_is_made_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ride is called off between the look and the commit: it gets no car after all."""
    ride = Life()
    world.park("car_01")
    read = assignments.Reader.ride
    overtaken = [ride.cancelled]

    def read_then_be_overtaken(self: Any, order_id: str) -> Any:
        seen = read(self, order_id)
        while overtaken:
            world.hear(overtaken.pop())
        return seen

    monkeypatch.setattr(assignments.Reader, "ride", read_then_be_overtaken)
    world.hear(ride.accepted)
    assert world.cars() == {"car_01": None}
    assert (world.ride()["state"], world.ride()["effects"], world.told()) == ("cancelled", 2, [])


def test_every_write_by_itself_refuses_what_is_out_of_date(world: World) -> None:
    """A decision on an older ride is refused by the ride's item, and a car is not freed for a ride that has it not."""
    ride = Life()
    world.park("car_01")
    world.hear(ride.accepted)
    stale = assignments.Reader(TABLES, world.dynamodb).ride("order_01")
    world.hear(ride.completed)
    decision = fleet.decide(stale.assignment, ride.declined)
    writes = assignments.effects(TABLES, told(ride.declined), stale, decision, region="us-east-1", now=NOW)
    updates = [write.action()["Update"] for write in writes if isinstance(write, Update)]
    assert len(updates) == 2
    for update in updates:
        with pytest.raises(world.dynamodb.exceptions.TransactionCanceledException):
            world.dynamodb.transact_write_items(TransactItems=[{"Update": update}])


def test_a_car_that_was_had_and_given_back_in_one_step_was_free(world: World) -> None:
    """A ride whose end was heard of first cannot have had a car that another ride has."""
    ride = Life()
    world.park("car_01")
    world.hear(ride.completed)
    seen = assignments.Reader(TABLES, world.dynamodb).ride("order_01")
    decision = fleet.decide(seen.assignment, ride.accepted, fleet.Car("car_01", "sector_01"))
    writes = assignments.effects(TABLES, told(ride.accepted), seen, decision, region="us-east-1", now=NOW)
    world.hear(Life("order_02").accepted)
    with pytest.raises(world.dynamodb.exceptions.TransactionCanceledException):
        world.dynamodb.transact_write_items(TransactItems=[write.action() for write in writes])


def test_a_ride_that_was_called_off_first_gets_no_car(world: World) -> None:
    """The cancellation is remembered, so the acceptance that it has overtaken takes nothing."""
    ride = Life()
    world.park("car_01")
    world.hear(ride.cancelled, ride.accepted)
    assert world.cars() == {"car_01": None}
    assert (world.ride()["state"], world.told()) == ("cancelled", [])


def test_a_ride_that_was_completed_first_has_had_a_car(world: World) -> None:
    """Both facts are told in one step, and the car is free afterwards."""
    ride = Life()
    world.park("car_01")
    world.hear(ride.completed, ride.accepted)
    assert world.cars() == {"car_01": None}
    assert (world.ride()["state"], world.told()) == ("released", ["CarAssigned", "CarReleased"])


def test_a_declined_payment_frees_the_car(world: World) -> None:
    """The ride cannot be paid for: its car goes to the next one."""
    ride, next_one = Life(), Life("order_02")
    world.park("car_01")
    world.hear(ride.accepted, ride.declined, next_one.accepted)
    assert world.cars() == {"car_01": "order_02"}
    assert "CarReleased" in world.told()


def test_poison_is_alone_in_its_batch(world: World) -> None:
    """An event that fails every time is dead-lettered with its reason and attempt; its neighbours are not held up."""
    poison, fine = Life("order_02"), Life()
    world.park("car_01")
    bad = event(poison.accepted, extensions={"simulatedfault": "poison"})
    for receives in range(1, POLICY.max_attempts):
        assert world.deliver(event(fine.accepted), bad, receives=receives) == [f"message-1-{bad['id']}"]
    assert world.deliver(event(fine.accepted), bad, receives=POLICY.max_attempts) == []
    (letter,) = world.dead_letters()
    assert (letter["reason"], letter["consumer"], letter["attempt"]) == ("QUARANTINED", "dispatch", 3)
    assert json.loads(letter["event"]["body"]) == bad
    assert world.cars() == {"car_01": "order_01"}
    assert world.deliver(bad) == []
    assert world.dead_letters() == []


def test_an_event_that_breaks_the_contract_is_dead_lettered_at_once(world: World) -> None:
    """It is never retried, and its neighbours take effect."""
    broken, ride = event(Life("order_02").accepted), Life()
    broken["detail"]["data"]["passengers"] = "two"
    world.park("car_01")
    assert world.deliver(broken, event(ride.accepted)) == []
    (letter,) = world.dead_letters()
    assert letter["reason"] == "CONTRACT"
    assert "passengers" in letter["message"]
    assert world.cars() == {"car_01": "order_01"}


def _detail(item: Any) -> dict[str, Any]:
    """Return the detail that the pipe makes of an item of the outbox."""
    names = ("id", "source", "type", "subject", "time", "idempotencyid", "sequence", "correlationid", "causationid")
    return {"specversion": "1.0"} | {name: item[name] for name in names} | {"data": item["data"]}
