"""The pytest plugin. Every run of pytest loads it, so it imports what a fixture needs only then."""

from collections.abc import Callable

import pytest


@pytest.fixture(name="crash_everywhere", scope="session")
def _crash_everywhere() -> Callable[..., int]:
    """Return `carride_idempotency.testing.crash_everywhere`."""
    from carride_idempotency.testing.crashes import crash_everywhere

    return crash_everywhere
