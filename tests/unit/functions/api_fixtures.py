"""The API on an in-process DynamoDB, as fixtures: test modules import them all."""

from collections.abc import Iterator

import pytest
from moto import mock_aws

from tests.unit.functions.api_world import Clients, World


@pytest.fixture(scope="module")
def clients() -> Iterator[Clients]:
    """Keep every AWS call of these tests inside this process."""
    with mock_aws():
        yield Clients.make()


@pytest.fixture
def world(clients: Clients) -> Iterator[World]:
    """A process of the API over empty tables."""
    world = World(clients)
    yield world
    world.close()
