import pytest

from tests.functions.world import World


@pytest.fixture
def world() -> World:
    """The functions over empty tables."""
    return World()
