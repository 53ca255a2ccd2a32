"""What folders share that deploy the real template; some have an engine of their own, with other settings."""

import hashlib
import re
from collections.abc import Iterator
from typing import Final

import pytest

from local.local_aws import Laptop

_LONGEST: Final = 32


@pytest.fixture(scope="session")
def laptop() -> Iterator[Laptop]:
    """An engine, with what `sam build` makes of the template; Lambda's retries follow soon."""
    with Laptop(retry_delays=(0.2, 0.4)) as started:
        started.build()
        yield started


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A stack name of this test's own, short enough for the names that are derived from it."""
    test = str(request.node.name)
    readable = re.sub("[^A-Za-z0-9]+", "-", test)[:_LONGEST].strip("-")
    return f"{readable}-{hashlib.blake2b(test.encode(), digest_size=3).hexdigest()}"
