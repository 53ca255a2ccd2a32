"""A DynamoDB in this process, time that stands still, and consumers over both."""

from typing import Any

import pytest

from idempotency import DynamoDBStore
from idempotency.testing import FaultyTransport, ManualClock
from idempotency.testing.dynamodb import FakeDynamoDB
from tests.idempotency.samples import RIDES, TABLE, World


@pytest.fixture
def dynamodb() -> FakeDynamoDB:
    """Two empty tables: the records', and one that effects are written to."""
    return FakeDynamoDB({TABLE: ("idempotencyKey",), RIDES: ("id",)})


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def transport(dynamodb: FakeDynamoDB) -> FaultyTransport:
    """The way to DynamoDB, which loses and refuses what the test says."""
    return FaultyTransport(dynamodb)


@pytest.fixture
def store(transport: FaultyTransport, clock: ManualClock) -> DynamoDBStore:
    """The default store, whose pauses move the test's clock."""
    return DynamoDBStore(TABLE, transport=transport, clock=clock, sleep=clock.sleep, jitter=lambda: 0.5)


@pytest.fixture
def world(store: DynamoDBStore, clock: ManualClock, transport: FaultyTransport, dynamodb: Any) -> World:
    """Consumers over DynamoDB."""
    return World(store, clock, transport, dynamodb)
