"""The consumers with records in Valkey: a process that dies between the effects and the record changes nothing."""

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import boto3
import fakeredis
import pytest
from moto import mock_aws

import dispatch
import payment
import ride_history
from carride.events import Fact
from idempotency import Consumer
from idempotency.clock import epoch_ms
from idempotency.stores.dynamodb_effects import DynamoDBEffects
from tests.unit.functions.gateways import FakeGateway, KilledError
from tests.unit.functions.saga import Life, client, create_table, event, invocation, items, outbox

STORE = "valkey://127.0.0.1:6379"
RIDE = Life()
TABLES = {
    "rides": ("orderID",),
    "assignments": ("orderID",),
    "cars": ("zone", "carID"),
    "payments": ("orderID",),
    "outbox": ("id",),
}


class World(NamedTuple):
    """What each consumer's handler is given, and what it writes to."""

    dynamodb: Any
    gateway: FakeGateway
    kill_after_effects: Callable[[], None]

    def snapshot(self) -> Mapping[str, Any]:
        """Return everything that effects leave behind."""
        tables = {name: items(self.dynamodb, name) for name in TABLES if name != "outbox"}
        return tables | {"outbox": outbox(self.dynamodb), "gateway": self.gateway.ledger()}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Empty tables, a server in this process, and a process that can be killed when its effects are written."""
    server: Any = fakeredis.FakeValkey(socket_timeout=1)
    monkeypatch.setattr("idempotency.stores.valkey.connect", lambda *args, **kwargs: server)
    write, doomed = DynamoDBEffects.write, [False]

    def write_and_die(self: DynamoDBEffects, *args: Any, **kwargs: Any) -> None:
        write(self, *args, **kwargs)
        if doomed[0]:
            doomed[0] = False
            raise KilledError

    monkeypatch.setattr(DynamoDBEffects, "write", write_and_die)

    def fail_over(seconds: float) -> None:
        """Payment waits for the lease of the dead; here it meets a failover instead, which forgets the claim."""
        server.flushall()

    monkeypatch.setattr(payment, "Consumer", functools.partial(Consumer, sleep=fail_over))
    with mock_aws():
        dynamodb = client()
        for table, key in TABLES.items():
            create_table(dynamodb, table, *key)
        car = {"zone": {"S": "zone_01"}, "carID": {"S": "car_01"}, "sector": {"S": "sector_01"}}
        dynamodb.put_item(TableName="cars", Item=car)
        boto3.client("sqs").create_queue(QueueName="Dlq")
        yield World(dynamodb, FakeGateway(forgotten=0.0), lambda: doomed.__setitem__(0, True))
    server.close()


def dlq() -> str:
    """Return the URL of the dead-letter queue."""
    url: str = boto3.client("sqs").get_queue_url(QueueName="Dlq")["QueueUrl"]
    return url


def keep_history(world: World) -> Callable[[dict[str, Any]], object]:
    """Return how the ride history is delivered an event."""
    settings = ride_history.Settings(idempotency_store=STORE, ride_table="rides", dead_letter_queue_url=dlq())
    handler = ride_history.make_handler(settings)
    return lambda message: handler(message, invocation())


def assign_cars(world: World) -> Callable[[dict[str, Any]], object]:
    """Return how dispatch is delivered an event."""
    settings = dispatch.Settings(
        idempotency_store=STORE,
        assignment_table="assignments",
        car_table="cars",
        outbox_table="outbox",
        dead_letter_queue_url=dlq(),
        aws_region="us-east-1",
    )
    handler = dispatch.make_handler(settings)

    def deliver(message: dict[str, Any]) -> object:
        attributes = {"SentTimestamp": str(epoch_ms()), "ApproximateReceiveCount": "1"}
        record = {"messageId": message["id"], "body": json.dumps(message), "attributes": attributes}
        assert handler({"Records": [record]}, invocation()) == {"batchItemFailures": []}
        return None

    return deliver


def take_payments(world: World) -> Callable[[dict[str, Any]], object]:
    """Return how payment is delivered an event."""
    settings = payment.Settings(
        idempotency_store=STORE,
        payment_table="payments",
        outbox_table="outbox",
        payment_gateway_url="http://127.0.0.1:9",
        dead_letter_queue_url=dlq(),
        aws_region="us-east-1",
    )
    handler = payment.make_handler(settings, world.gateway)
    return lambda message: handler(message, invocation())


CASES = [
    *((keep_history, fact) for fact in (RIDE.accepted, RIDE.completed)),
    *((assign_cars, fact) for fact in (RIDE.accepted, RIDE.completed)),
    *((take_payments, fact) for fact in (RIDE.assigned, RIDE.completed, RIDE.cancelled)),
]
BEFORE = {
    RIDE.completed: (RIDE.accepted, RIDE.assigned),
    RIDE.cancelled: (RIDE.assigned,),
}


@pytest.mark.parametrize(
    ("consumer", "fact"), CASES, ids=[f"{consumer.__name__}-{type(fact).__name__}" for consumer, fact in CASES]
)
def test_a_death_between_effects_and_record_repeats_no_effect(
    world: World, consumer: Callable[[World], Callable[[dict[str, Any]], object]], fact: Fact
) -> None:
    """The next delivery runs again, writes nothing, charges nothing, tells nothing, and completes the record."""
    deliver = consumer(world)
    for earlier in BEFORE.get(fact, ()):
        if consumer is not take_payments or earlier is RIDE.assigned:
            deliver(event(earlier))
    message = event(fact)
    world.kill_after_effects()
    with pytest.raises(KilledError):
        deliver(message)
    effects = world.snapshot()
    deliver(message)
    deliver(message)
    assert world.snapshot() == effects
    for table in ("rides", "assignments", "payments"):
        for item in effects[table]:
            assert item["effects"] == sum(name.startswith("event#") for name in item)
