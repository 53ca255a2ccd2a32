"""The API on an in-process DynamoDB, as fixtures: test modules import them all."""

from collections.abc import Iterator

import boto3
import pytest
from moto import mock_aws

from idempotency.stores.transport import botocore_transport
from tests.functions.api_world import Connections, World


@pytest.fixture(scope="module")
def connections() -> Iterator[Connections]:
    """Keep every AWS call of these tests inside this process."""
    with mock_aws():
        yield boto3.client("dynamodb"), botocore_transport()


@pytest.fixture
def world(connections: Connections) -> Iterator[World]:
    """A process of the API over empty tables."""
    world = World(connections)
    yield world
    world.close()
