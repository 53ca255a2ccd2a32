"""The functions on tables in this process."""

import pytest

from tests.functions.world import World


@pytest.fixture
def world() -> World:
    """The functions over empty tables."""
    return World()
