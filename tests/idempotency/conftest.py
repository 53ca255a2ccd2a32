"""Time that stands still, and consumers over DynamoDB in this process."""

import pytest

from carride_idempotency.testing import ManualClock
from tests.idempotency.samples import World


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def world() -> World:
    return World()
