"""The API on an in-process DynamoDB, as fixtures: test modules import them all."""

from collections.abc import Iterator

import boto3
import pytest
from moto import mock_aws

from carride.clients import dynamodb_client
from idempotency.stores.transport import botocore_transport
from tests.functions.api_world import Clients, World


@pytest.fixture(scope="module")
def clients() -> Iterator[Clients]:
    """Keep every AWS call of these tests inside this process."""
    with mock_aws():
        yield boto3.client("dynamodb"), dynamodb_client(), botocore_transport()


@pytest.fixture
def world(clients: Clients) -> Iterator[World]:
    """A process of the API over empty tables."""
    world = World(clients)
    yield world
    world.close()
