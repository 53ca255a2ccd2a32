"""The API on tables in this process; modules about other functions have a world of their own."""

import pytest

from tests.functions.api_world import World


@pytest.fixture
def world() -> World:
    """A process of the API over empty tables."""
    return World()
