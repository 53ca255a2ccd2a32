"""Dispatch on an in-process DynamoDB: one car to a ride, one ride to a car, and what is told of it."""

import dataclasses
import itertools
import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import boto3
import hypothesis
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from moto import mock_aws

import assignments
import dispatch
import fleet
from carride.events import parse_event
from carride.facts import CarAssigned, Fact
from carride.items import Outbox
from dispatch import POLICY, Settings, make_handler
from idempotency import Update
from idempotency.clock import epoch_ms
from idempotency.effects import action_of
from local import faults
from tests.functions.saga import NOW, Life, client, create_table, event, event_of, invocation, items, outbox

TABLES = assignments.Tables("assignments", "cars")
OUTBOX = Outbox("outbox", "us-east-1")


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

    def clear(self, table: str) -> None:
        """Delete everything that a table holds."""
        schema = self.dynamodb.describe_table(TableName=table)["Table"]["KeySchema"]
        for item in self.dynamodb.scan(TableName=table)["Items"]:
            key = {each["AttributeName"]: item[each["AttributeName"]] for each in schema}
            self.dynamodb.delete_item(TableName=table, Key=key)

    def cars(self) -> dict[str, str | None]:
        """Return the ride of each car."""
        return {item["carID"]: item.get("rideID") for item in items(self.dynamodb, "cars")}

    def ride(self, order_id: str = "order_01") -> dict[str, Any]:
        """Return the ride as dispatch has it."""
        (found,) = [item for item in items(self.dynamodb, "assignments") if item["orderID"] == order_id]
        return found

    def emitted(self) -> list[str]:
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
    assert (world.ride()["state"], world.ride()["carID"], world.emitted()) == ("assigned", "car_01", ["CarAssigned"])
    world.hear(ride.completed)
    assert world.cars() == {"car_01": None}
    assert (world.ride()["state"], world.emitted()) == ("released", ["CarAssigned", "CarReleased"])


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


def test_every_write_by_itself_refuses_what_is_out_of_date(world: World) -> None:
    """A decision on an older ride is refused by the ride's item, and a car is not freed for a ride that has it not."""
    ride = Life()
    world.park("car_01")
    world.hear(ride.accepted)
    stale = assignments.Reader(TABLES, world.dynamodb).ride("order_01")
    world.hear(ride.completed)
    decision = fleet.decide(stale.assignment, ride.declined)
    writes = assignments.effects(TABLES, event_of(ride.declined), stale, decision, outbox=OUTBOX, now=NOW)
    updates = [action_of(write)["Update"] for write in writes if isinstance(write, Update)]
    assert len(updates) == 2
    for update in updates:
        with pytest.raises(world.dynamodb.exceptions.TransactionCanceledException):
            world.dynamodb.transact_write_items(TransactItems=[{"Update": update}])


ROWS: Final[list[dict[str, Any] | None]] = [
    None,
    {},
    {"rideID": {"S": "mine"}},
    {"rideID": {"S": "order_02"}},
    {"rideID": {"N": "1"}},
    {"rideID": {"S": "mine"}, "sector": {"N": "1"}},
]
"""What may have become of a car's row: it is gone, free, taken, or spoilt."""


@pytest.mark.parametrize("row", ROWS, ids=str)
@pytest.mark.parametrize("heard", [None, "accepted", "completed", "cancelled"])
def test_the_end_of_a_ride_takes_effect_whatever_has_become_of_its_car(
    world: World, row: dict[str, Any] | None, heard: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its car counts as released, and is free only if it was its own; another ride's car stays that ride's."""
    key = {"zone": {"S": "zone_01"}, "carID": {"S": "car_01"}}
    for end in ("completed", "cancelled", "declined", "overdue"):
        ride = Life(f"order_{end}")
        world.clear("cars")
        world.park("car_01")
        world.hear(*([getattr(ride, heard)] if heard else []))
        world.clear("cars")
        holder = {"rideID": {"S": ride.order_id}} if row and row.get("rideID") == {"S": "mine"} else {}
        if row is not None:
            world.dynamodb.put_item(TableName="cars", Item=key | {"sector": {"S": "sector_01"}} | row | holder)
        before = world.cars()
        capsys.readouterr()
        world.hear(getattr(ride, end))
        mine = heard == "accepted" and bool(holder)
        assert world.cars() == ({"car_01": None} if mine else before)
        if heard == "accepted":
            assert world.ride(ride.order_id)["state"] == "released"
            assert ('"CarNotHeld":1' in capsys.readouterr().out) == (not mine)


TEXTS: Final = ["sector_65", "sector_9", "zone_02", "sector_1\n", "car 1", "x" * 65, "sector_٣"]
VALUES: Final[list[dict[str, Any] | None]] = [
    None,
    {"N": "7"},
    {"BOOL": True},
    {"NULL": True},
    {"L": []},
    {"M": {}},
    {"B": b"x"},
    {"SS": ["a"]},
]
ORDERS: Final = itertools.count()


@given(
    spoilt=st.dictionaries(
        st.sampled_from(["zone", "carID", "sector", "extra"]),
        st.sampled_from([*VALUES, *({"S": text} for text in TEXTS)]),
        min_size=1,
    )
)
@hypothesis.settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_row_that_holds_no_car_is_skipped_and_reported(
    world: World, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, spoilt: dict[str, Any]
) -> None:
    """Rides near it get the other car, and whoever runs the fleet is told which row it is, once."""
    usable = {name: each for name, each in spoilt.items() if name in {"sector", "extra"} or (each and "S" in each)}
    row: Any = {"zone": {"S": "zone_01"}, "carID": {"S": "car_00"}, "sector": {"S": "sector_01"}} | usable
    row = {name: value for name, value in row.items() if value is not None}
    world.clear("cars")
    world.park("car_01", sector="sector_08")
    world.dynamodb.put_item(TableName="cars", Item=row)
    zone, car_id, sector = (row.get(name, {}).get("S") for name in ("zone", "carID", "sector"))
    fine = zone == "zone_01" and car_id in {"car_00", *TEXTS[:3]} and sector == "sector_01"
    skipped = not fine and zone in {"zone_01", "zone_02"}
    ride = Life(f"order_{next(ORDERS)}")
    capsys.readouterr()
    caplog.clear()
    world.hear(ride.accepted)
    printed = capsys.readouterr().out
    assert world.ride(ride.order_id)["carID"] == (car_id if fine else "car_01")
    assert printed.count('"CarRowSkipped":1') == skipped
    assert [vars(line)["rows"] for line in caplog.records if line.message == "CarRowSkipped"] == (
        [[f"{zone}/{car_id}"]] if skipped else []
    )


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
