"""The ride history on an in-process DynamoDB: an event's effect on a ride's item, and what the item says."""

import json
import os
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Never

import boto3
import pytest
from moto import mock_aws

import timeline
from carride import ride as rides
from carride.events import CarRideAccepted, CarRideCompleted, CarRideCreated, CarRideStarted, Fact, RideEvent
from carride.settings import SettingsError, from_environment
from idempotency import marshalling
from idempotency.clock import epoch_ms
from idempotency.testing import Invocation
from local import faults
from ride_history import Settings, make_handler

BOOKED_AT = datetime(2026, 11, 21, 8, tzinfo=UTC)


def facts() -> list[Fact]:
    """Return what happens to a ride from the request to the end, in order."""
    requested = rides.request(
        order_id="order_01",
        customer_id="customer_a",
        pickup="sector_01",
        destination="sector_03",
        passengers=2,
        price=1250,
    )
    accepted = rides.accept(requested)
    started = rides.start(accepted)
    completed = rides.complete(started)
    return [
        CarRideCreated.of(requested),
        CarRideAccepted.of(accepted),
        CarRideStarted.of(started),
        CarRideCompleted.of(completed),
    ]


def event(fact: Fact, **attributes: Any) -> dict[str, Any]:
    """Return the EventBridge event that tells a fact."""
    told = RideEvent.of(fact, source="acr.com.car-ride", time=BOOKED_AT, **attributes)
    return {
        "version": "0",
        "account": "123456789012",
        "region": "us-east-1",
        "resources": [],
        "id": f"event-{fact.version}",
        "source": "acr.com.car-ride",
        "detail-type": "CarRideEvent",
        "time": datetime.now(UTC).isoformat(),
        "detail": told.to_detail(),
    }


class World(NamedTuple):
    """A handler and what it writes to."""

    handler: Any
    dynamodb: Any
    sqs: Any
    settings: Settings

    def deliver(self, *events: dict[str, Any]) -> list[str]:
        """Deliver events one after the other and return their outcomes."""
        return [self.handler(event, Invocation(epoch_ms, request_id=event["id"]))["outcome"] for event in events]

    def history(self) -> timeline.History:
        """Return the history of the ride."""
        answer = self.dynamodb.get_item(TableName=self.settings.ride_table, Key={"orderID": {"S": "order_01"}})
        return timeline.history(marshalling.values(answer["Item"]))

    def records(self) -> list[dict[str, Any]]:
        """Return the idempotency records."""
        return [marshalling.values(item) for item in self.dynamodb.scan(TableName="Idempotency")["Items"]]

    def dead_letters(self) -> list[dict[str, Any]]:
        """Return what lies in the dead-letter queue."""
        answer = self.sqs.receive_message(QueueUrl=self.settings.dead_letter_queue_url, MaxNumberOfMessages=10)
        return [json.loads(message["Body"]) for message in answer.get("Messages", [])]


@pytest.fixture
def world() -> Iterator[World]:
    """A handler over empty tables and an empty queue."""
    with mock_aws():
        dynamodb, sqs = boto3.client("dynamodb"), boto3.client("sqs")
        for table, key in (("Idempotency", "idempotencyKey"), ("Rides", "orderID")):
            dynamodb.create_table(
                TableName=table,
                KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
                BillingMode="PAY_PER_REQUEST",
            )
        url = sqs.create_queue(QueueName="RideHistoryDlq")["QueueUrl"]
        settings = Settings(idempotency_store="dynamodb:Idempotency", ride_table="Rides", dead_letter_queue_url=url)
        yield World(make_handler(settings), dynamodb, sqs, settings)


@pytest.fixture
def laptop(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """The same with faults injected."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    faults.install(monkeypatch.setattr)
    return world._replace(handler=make_handler(world.settings))


class KilledError(BaseException):
    """What a killed process looks like to the code that it was running."""


def test_a_missing_event_shows_until_it_comes_and_leaves_the_state_as_it_is(world: World) -> None:
    """Without its second event a ride has the state of its third, and says what is missing until it is there."""
    created, accepted, started, _ = facts()
    world.deliver(event(started), event(created))
    assert (world.history().status, world.history().missing) == ("started", (2,))
    world.deliver(event(accepted))
    assert (world.history().status, world.history().missing) == ("started", ())


def test_a_doubled_effect_would_show() -> None:
    """Applied twice, an event counts two effects and stays one entry: that is what the ledger looks for."""
    told = RideEvent.of(facts()[0], source="acr.com.car-ride", time=BOOKED_AT)
    item: dict[str, Any] = {"orderID": "order_01", "effects": 0}
    for _ in range(2):
        apply(timeline.effect("Rides", told), item)
    history = timeline.history(item)
    assert (history.effects, len(history.entries)) == (2, 1)


def test_an_event_that_breaks_the_contract_is_dead_lettered_at_once(world: World) -> None:
    """The queue gets the event as it came, with the reason; nothing is retried and nothing takes effect."""
    broken = event(facts()[0])
    del broken["detail"]["idempotencyid"]
    assert world.deliver(broken) == ["DeadLettered"]
    (letter,) = world.dead_letters()
    assert (letter["reason"], letter["event"]) == ("CONTRACT", broken)
    assert "idempotencyid" in letter["message"]
    assert world.dynamodb.scan(TableName="Rides")["Count"] == 0


def test_an_event_past_its_expiry_is_dropped(world: World) -> None:
    """Nobody wants it any more: no effect, no dead letter, and it is counted as expired."""
    assert world.deliver(event(facts()[0], expirytime=BOOKED_AT)) == ["Expired"]
    assert world.dead_letters() == []
    assert world.dynamodb.scan(TableName="Rides")["Count"] == 0


def test_another_payload_under_a_known_id_is_dead_lettered(world: World) -> None:
    """Two facts that share an id are a mistake of the producer, and the second never overwrites the first."""
    first, second = event(facts()[0]), event(facts()[0])
    second["detail"]["data"]["price"] = 1
    assert world.deliver(first, second) == ["New", "DeadLettered"]
    assert [letter["reason"] for letter in world.dead_letters()] == ["PAYLOAD_MISMATCH"]
    assert world.history().entries[0].fact["price"] == 1250


def test_an_event_cannot_make_a_deployed_consumer_fail(world: World) -> None:
    """An event that asks for a fault is an event like any other."""
    assert world.deliver(event(facts()[0], extensions={"simulatedfault": "poison"})) == ["New"]


def test_a_killed_run_leaves_nothing_and_the_next_one_is_the_first(
    laptop: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No claim has to run out: the same delivery and its copies go through at once, and one of them takes effect."""

    def die(code: int) -> Never:
        raise KilledError

    monkeypatch.setattr(os, "_exit", die)
    deadly = event(facts()[0], extensions={"simulatedfault": "crash"})
    with pytest.raises(KilledError):
        laptop.deliver(deadly)
    assert laptop.records() == []
    assert laptop.deliver(deadly, deadly, deadly | {"id": "copy"}) == ["New", "Duplicate", "Duplicate"]
    assert laptop.history().effects == 1


def test_a_failed_run_is_retried(laptop: World) -> None:
    """The retry commits over the record of the failure."""
    failing = event(facts()[0], extensions={"simulatedfault": "fail"})
    with pytest.raises(faults.SimulatedFaultError):
        laptop.deliver(failing)
    assert laptop.deliver(failing, failing) == ["Retried", "Duplicate"]
    assert laptop.history().effects == 1


def test_poison_ends_in_the_queue_and_never_takes_effect(laptop: World) -> None:
    """Three runs fail, then the event is dead-lettered; it has no effect until it is released."""
    poison = event(facts()[0], extensions={"simulatedfault": "poison"})
    for _ in range(2):
        with pytest.raises(faults.SimulatedFaultError):
            laptop.deliver(poison)
    assert laptop.deliver(poison, poison) == ["DeadLettered", "Quarantined"]
    assert [(letter["reason"], letter["attempt"]) for letter in laptop.dead_letters()] == [("QUARANTINED", 3)]
    assert laptop.dynamodb.scan(TableName="Rides")["Count"] == 0


def test_a_missing_variable_names_itself() -> None:
    """A function without its settings says which one and where it belongs."""
    with pytest.raises(SettingsError, match=r"RIDE_TABLE.*template\.yaml"):
        from_environment(Settings, {"IDEMPOTENCY_STORE": "dynamodb:t", "DEAD_LETTER_QUEUE_URL": "u"})


def apply(update: Any, item: dict[str, Any]) -> None:
    """Do to an item what DynamoDB does with the update."""
    assert update.expression == "SET #entry = :entry ADD effects :one"
    item[update.names["#entry"]] = update.values[":entry"]
    item["effects"] += update.values[":one"]
