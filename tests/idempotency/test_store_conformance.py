"""The conformance suite on the stores that need nothing but this process."""

from collections.abc import Iterator

import pytest

from idempotency.clock import Clock
from tests.idempotency.stores.backends import Backend
from tests.idempotency.stores.fixtures import *  # noqa: F403 - the stores, as fixtures
from tests.idempotency.stores.test_conformance import *  # noqa: F403 - the suite itself, run on this module's fixtures


@pytest.fixture(params=["memory", "moto_dynamodb", "fake_valkey", "fake_redis", "guides_sqlite"])
def backend(request: pytest.FixtureRequest, clock: Clock) -> Iterator[Backend]:
    """Each store in turn, empty."""
    with request.getfixturevalue(request.param)(clock) as opened:
        yield opened


@pytest.fixture(params=["memory", "moto_dynamodb"])
def transactional(request: pytest.FixtureRequest, clock: Clock) -> Iterator[Backend]:
    """Each store with transactions in turn, empty."""
    with request.getfixturevalue(request.param)(clock) as opened:
        yield opened
