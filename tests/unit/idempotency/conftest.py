"""A DynamoDB in this process, time that stands still, and consumers over both."""

from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

from idempotency import Consumer, DynamoDBStore, Observation, Policy
from idempotency.stores.transport import botocore_transport
from idempotency.testing import DeadLetterBox, FaultyTransport, Invocation, ManualClock

TABLE = "Idempotency"
RIDES = "Rides"


@pytest.fixture(scope="module", autouse=True)
def aws() -> Iterator[None]:
    """Keep every AWS call of these tests inside this process."""
    with mock_aws():
        yield


@pytest.fixture(scope="module")
def client(aws: None) -> Any:
    """One client for a module: making one takes longer than most tests."""
    return boto3.client("dynamodb")


@pytest.fixture
def dynamodb(client: Any) -> Iterator[Any]:
    """Two empty tables: the records', and one that effects are written to."""
    for table, key in ((TABLE, "idempotencyKey"), (RIDES, "id")):
        client.create_table(
            TableName=table,
            KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
    yield client
    for table in (TABLE, RIDES):
        client.delete_table(TableName=table)


@pytest.fixture
def clock() -> ManualClock:
    """Time that the test moves."""
    return ManualClock()


@pytest.fixture
def transport(dynamodb: Any) -> FaultyTransport:
    """The way to DynamoDB, which loses and refuses what the test says."""
    return FaultyTransport(botocore_transport())


@pytest.fixture
def store(transport: FaultyTransport, clock: ManualClock) -> DynamoDBStore:
    """The default store, whose pauses move the test's clock."""
    return DynamoDBStore(TABLE, transport=transport, clock=clock, sleep=clock.sleep, jitter=lambda: 0.5)


@pytest.fixture
def box() -> DeadLetterBox:
    """A dead-letter queue."""
    return DeadLetterBox()


@pytest.fixture
def seen() -> list[Observation]:
    """What was observed."""
    return []


type MakeConsumer = Callable[..., Consumer]


@pytest.fixture
def consumer(store: DynamoDBStore, clock: ManualClock, box: DeadLetterBox, seen: list[Observation]) -> MakeConsumer:
    """Make a consumer of EventBridge events; keyword arguments are those of its policy."""

    def make(name: str = "history", *, region: str = "eu-west-1", **policy: Any) -> Consumer:
        return Consumer(
            name,
            store,
            key="detail.idempotencyid",
            policy=Policy(**({"warm_cache": 0} | policy)),
            dead_letters=box,
            observe=seen.append,
            region=region,
            clock=clock,
            sleep=clock.sleep,
            jitter=lambda: 0.5,
        )

    return make


@pytest.fixture
def invocation(clock: ManualClock) -> Callable[..., Invocation]:
    """Make the context of an invocation."""

    def make(request_id: str = "request-1", timeout_s: float = 30.0) -> Invocation:
        return Invocation(clock, request_id=request_id, timeout_s=timeout_s)

    return make
