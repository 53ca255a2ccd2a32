"""The pytest plugin."""

from collections.abc import Callable

import pytest

from carride_idempotency.testing import crashes


@pytest.fixture(name="crash_everywhere", scope="session")
def _crash_everywhere() -> Callable[..., int]:
    """Return `carride_idempotency.testing.crash_everywhere`."""
    return crashes.crash_everywhere
