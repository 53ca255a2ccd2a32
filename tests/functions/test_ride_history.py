"""The ride history on an in-process DynamoDB: an event's effect on a ride's item, and what the item says."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import boto3
import pytest
from moto import mock_aws

import timeline
from carride.events import RideEvent
from carride.history import timeline_of
from carride.settings import SettingsError, from_environment
from idempotency import marshalling
from idempotency.clock import epoch_ms
from idempotency.effects import action_of
from idempotency.testing import Invocation
from ride_history import Settings, make_handler
from tests.carride.rides import NOW, every_fact
from tests.carride.rides import event as event_of

type Fail = Callable[[*tuple[BaseException, ...]], None]

EVENTS = [event_of(fact) for fact in every_fact()[:4]]
"""A ride from its request to its end, in order."""


def event(ride_event: RideEvent) -> dict[str, Any]:
    """Return the EventBridge event that carries an event."""
    envelope = {"version": "0", "account": "123456789012", "region": "us-east-1", "detail-type": "CarRideEvent"}
    names = {"id": f"event-{ride_event.sequence}", "source": ride_event.source, "resources": []}
    return envelope | names | {"time": datetime.now(UTC).isoformat(), "detail": ride_event.to_detail()}


class World(NamedTuple):
    """A handler and what it writes to."""

    handler: Any
    dynamodb: Any
    sqs: Any
    settings: Settings

    def deliver(self, *events: dict[str, Any]) -> list[str]:
        """Deliver events one after the other and return their outcomes."""
        return [self.handler(event, Invocation(epoch_ms, request_id=event["id"]))["outcome"] for event in events]

    def items(self, table: str) -> list[dict[str, Any]]:
        """Return what is in a table."""
        return [marshalling.values(item) for item in self.dynamodb.scan(TableName=table)["Items"]]

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


def test_an_effect_that_took_place_twice_shows(world: World) -> None:
    """The item counts two effects and has one entry, by which the ledger notices."""
    world.deliver(event(EVENTS[1]), event(EVENTS[0]))
    world.dynamodb.transact_write_items(TransactItems=[action_of(timeline.effect("Rides", EVENTS[0]))])
    [item] = world.items("Rides")
    assert [entry.type for entry in timeline_of(item)] == [EVENTS[0].type, EVENTS[1].type]
    assert item["effects"] == 3


def test_an_event_that_breaks_the_contract_is_dead_lettered_at_once(world: World) -> None:
    """The queue gets the event as it came, with the reason; nothing is retried and nothing takes effect."""
    broken = event(EVENTS[0])
    del broken["detail"]["idempotencyid"]
    assert world.deliver(broken) == ["DeadLettered"]
    (message,) = world.dead_letters()
    assert (message["reason"], message["event"]) == ("CONTRACT", broken)
    assert "idempotencyid" in message["message"]
    assert world.items("Rides") == []


def test_an_event_past_its_expiry_is_dropped(world: World) -> None:
    """It has no effect, is no dead letter, and is counted as expired."""
    assert world.deliver(event(event_of(every_fact()[0], expirytime=NOW))) == ["Expired"]
    assert world.dead_letters() == world.items("Rides") == []


def test_another_payload_under_a_known_id_is_dead_lettered(world: World) -> None:
    """Two facts that share an id are a mistake of the producer, and the second never overwrites the first."""
    first, second = event(EVENTS[0]), event(EVENTS[0])
    second["detail"]["data"]["price"] = 1
    assert world.deliver(first, second) == ["New", "DeadLettered"]
    assert [message["reason"] for message in world.dead_letters()] == ["PAYLOAD_MISMATCH"]
    assert timeline_of(world.items("Rides")[0])[0].data["price"] == EVENTS[0].data.price


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Fail:
    """Have the next runs of the handler raise, one after the other, when they write."""
    effect = timeline.effect
    pending: list[BaseException] = []

    def failing(table: str, ride_event: RideEvent) -> Any:
        if pending:
            raise pending.pop()
        return effect(table, ride_event)

    monkeypatch.setattr(timeline, "effect", failing)
    return lambda *errors: pending.extend(errors)


def test_a_killed_run_leaves_nothing_and_the_next_one_is_the_first(world: World, fail: Fail) -> None:
    """No claim has to run out: the same delivery and its copies succeed at once, and one of them takes effect."""
    fail(SystemExit())
    deadly = event(EVENTS[0])
    with pytest.raises(SystemExit):
        world.deliver(deadly)
    assert world.items("Idempotency") == []
    assert world.deliver(deadly, deadly, deadly | {"id": "copy"}) == ["New", "Duplicate", "Duplicate"]
    assert world.items("Rides")[0]["effects"] == 1


@pytest.mark.parametrize(
    ("failures", "outcomes", "letters"),
    [(2, ["Retried", "Duplicate"], []), (3, ["DeadLettered", "Quarantined"], [("QUARANTINED", 3)])],
)
def test_a_failed_run_is_retried_until_its_attempts_are_used_up(
    world: World, fail: Fail, failures: int, outcomes: list[str], letters: list[tuple[str, int]]
) -> None:
    """Two failures are mended by a retry; after the third the event is dead-lettered, and never takes effect."""
    fail(*[OSError("no reason")] * failures)
    for _ in range(2):
        with pytest.raises(OSError, match="no reason"):
            world.deliver(event(EVENTS[0]))
    assert world.deliver(event(EVENTS[0]), event(EVENTS[0])) == outcomes
    assert [(message["reason"], message["attempt"]) for message in world.dead_letters()] == letters
    assert len(world.items("Rides")) == (failures < 3)


def test_a_missing_variable_names_itself() -> None:
    """A function without its settings says which one is missing and where it belongs."""
    with pytest.raises(SettingsError, match=r"RIDE_TABLE.*template\.yaml"):
        from_environment(Settings, {"IDEMPOTENCY_STORE": "dynamodb:t", "DEAD_LETTER_QUEUE_URL": "u"})
