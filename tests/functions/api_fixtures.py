"""The API on tables in this process, as a fixture: test modules import it."""

import pytest

from tests.functions.api_world import World


@pytest.fixture
def world() -> World:
    """A process of the API over empty tables."""
    return World()
