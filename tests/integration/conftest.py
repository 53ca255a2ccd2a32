"""What folders share that deploy the real template; some have an engine of their own, with other settings."""

from collections.abc import Iterator

import pytest

from local.local_aws import FAULTS, Laptop


@pytest.fixture(scope="session")
def laptop() -> Iterator[Laptop]:
    """An engine, with what `sam build` makes of the template; Lambda's retries follow soon."""
    with Laptop(retry_delays=(0.2, 0.4), preload=[FAULTS]) as started:
        started.build()
        yield started
