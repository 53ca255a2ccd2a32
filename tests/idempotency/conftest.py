"""A DynamoDB in this process, time that stands still, and consumers over both."""

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

from idempotency import DynamoDBStore, MemoryStore
from idempotency.stores.transport import botocore_transport
from idempotency.testing import DeadLetterBox, FaultyTransport, ManualClock
from tests.idempotency.samples import RIDES, TABLE, DynamoDBWorld, World, create_tables


@pytest.fixture(scope="module")
def aws() -> Iterator[None]:
    """Keep every AWS call of these tests inside this process."""
    with mock_aws():
        yield


@pytest.fixture(scope="module")
def client(aws: None) -> Any:
    """One client for a module: making one takes longer than most tests."""
    return boto3.client("dynamodb")


@pytest.fixture(scope="module")
def way(aws: None) -> Any:
    """One way to DynamoDB for a module, for the same reason."""
    return botocore_transport()


@pytest.fixture
def dynamodb(client: Any) -> Iterator[Any]:
    """Two empty tables: the records', and one that effects are written to."""
    create_tables(client, {TABLE: "idempotencyKey", RIDES: "id"})
    yield client
    for table in (TABLE, RIDES):
        client.delete_table(TableName=table)


@pytest.fixture
def clock() -> ManualClock:
    """Time that the test moves."""
    return ManualClock()


@pytest.fixture
def transport(dynamodb: Any, way: Any) -> FaultyTransport:
    """The way to DynamoDB, which loses and refuses what the test says."""
    return FaultyTransport(way)


@pytest.fixture
def store(transport: FaultyTransport, clock: ManualClock) -> DynamoDBStore:
    """The default store, whose pauses move the test's clock."""
    return DynamoDBStore(TABLE, transport=transport, clock=clock, sleep=clock.sleep, jitter=lambda: 0.5)


@pytest.fixture
def world(store: DynamoDBStore, clock: ManualClock, transport: FaultyTransport, dynamodb: Any) -> DynamoDBWorld:
    """Consumers over DynamoDB."""
    return DynamoDBWorld(store, clock, DeadLetterBox(), transport, dynamodb)


@pytest.fixture
def local(clock: ManualClock) -> World:
    """Consumers over memory, whose effects are forgotten."""
    return World(MemoryStore(clock=clock, apply=lambda effects: None), clock, DeadLetterBox())
