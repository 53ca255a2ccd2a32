"""The stores on real servers."""

from collections.abc import Iterator

import pytest

from idempotency.clock import Clock
from tests.stores.backends import Backend
from tests.stores.fixtures import *  # noqa: F403 - the stores, as fixtures


@pytest.fixture(params=["engine_dynamodb", "real_valkey"])
def backend(request: pytest.FixtureRequest, clock: Clock) -> Iterator[Backend]:
    """Each store in turn, empty."""
    with request.getfixturevalue(request.param)(clock) as opened:
        yield opened


@pytest.fixture(params=["engine_dynamodb"])
def transactional(request: pytest.FixtureRequest, clock: Clock) -> Iterator[Backend]:
    """Each store with transactions in turn, empty."""
    with request.getfixturevalue(request.param)(clock) as opened:
        yield opened
