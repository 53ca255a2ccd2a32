"""The pytest plugin. Every run of pytest loads it, so it imports what a fixture needs only then."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from carride_idempotency.testing.crashes import CrashEverywhere


@pytest.fixture(name="crash_everywhere", scope="session")
def _crash_everywhere() -> "CrashEverywhere":
    """Return `carride_idempotency.testing.crash_everywhere`."""
    from carride_idempotency.testing.crashes import crash_everywhere

    return crash_everywhere
