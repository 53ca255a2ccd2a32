"""What a store with transactions lets a consumer promise beyond that, on real servers."""

import pytest
from pytest_bdd import scenarios

from tests.features.steps import *  # noqa: F403 - step definitions are fixtures, found where they are imported
from tests.stores.backends import Backend


@pytest.fixture
def backend(transactional: Backend) -> Backend:
    """Each store with transactions in turn, empty."""
    return transactional


scenarios("../../features/effects.feature")
