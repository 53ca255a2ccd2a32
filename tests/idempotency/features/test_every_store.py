"""The features on the stores that need nothing but this process."""

from collections.abc import Iterator

import pytest
from pytest_bdd import scenarios

from idempotency.testing import ManualClock
from tests.idempotency.features.steps import *  # noqa: F403 - step definitions are fixtures, found where they are imported
from tests.idempotency.stores.backends import Backend
from tests.idempotency.stores.fixtures import *  # noqa: F403 - the stores, as fixtures

scenarios("idempotency.feature")


@pytest.fixture(params=["memory", "moto_dynamodb", "fake_valkey", "guides_sqlite"])
def backend(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[Backend]:
    """Each store in turn, empty."""
    with request.getfixturevalue(request.param)(clock) as opened:
        yield opened
