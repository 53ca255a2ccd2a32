"""The API of a test's own stack."""

from collections.abc import Iterator

import pytest

from local.local_aws import LocalAws
from tests.functions.api.client import Api


@pytest.fixture
def api(cloud: LocalAws, name: str) -> Iterator[Api]:
    """The API of a new stack."""
    yield Api(cloud, cloud.deploy_fast(name))
    cloud.delete_stack(name)
