"""The stores on real servers."""

import os
from collections.abc import Iterator
from typing import Final

import pytest

from idempotency.clock import Clock
from tests.idempotency.stores.backends import Backend
from tests.idempotency.stores.fixtures import *  # noqa: F403 - the stores, as fixtures

DYNAMODB: Final = [
    "engine_dynamodb",
    "local_dynamodb",
    *(["named_dynamodb"] if "DYNAMODB_ENDPOINT" in os.environ else []),
]


@pytest.fixture(params=[*DYNAMODB, "real_valkey"])
def backend(request: pytest.FixtureRequest, clock: Clock) -> Iterator[Backend]:
    """Each store in turn, empty."""
    with request.getfixturevalue(request.param)(clock) as opened:
        yield opened


@pytest.fixture(params=DYNAMODB)
def transactional(request: pytest.FixtureRequest, clock: Clock) -> Iterator[Backend]:
    """Each store with transactions in turn, empty."""
    with request.getfixturevalue(request.param)(clock) as opened:
        yield opened
