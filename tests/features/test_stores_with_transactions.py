"""What a store with transactions lets a consumer promise beyond that."""

from collections.abc import Iterator

import pytest
from pytest_bdd import scenarios

from idempotency.testing import ManualClock
from tests.stores.backends import Backend


@pytest.fixture(params=["memory", "moto_dynamodb"])
def backend(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[Backend]:
    """Each store with transactions in turn, empty."""
    with request.getfixturevalue(request.param)(clock) as opened:
        yield opened


scenarios("effects.feature")
