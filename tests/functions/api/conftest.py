"""The API of a test's own stack."""

from collections.abc import Iterator

import pytest

from local.local_aws import Laptop
from tests.functions.api.client import Api


@pytest.fixture
def api(laptop: Laptop, name: str) -> Iterator[Api]:
    """The API of a new stack."""
    yield Api(laptop, laptop.deploy_fast(name))
    laptop.delete_stack(name)
