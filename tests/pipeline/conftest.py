"""A stack that is a test's own, and an engine that forgets it."""

from collections.abc import Iterator

import pytest

from local.local_aws import LocalAws
from tests.pipeline.pipeline import Pipeline


@pytest.fixture
def pipeline(cloud: LocalAws, name: str) -> Iterator[Pipeline]:
    """A stack of the template that nobody has used."""
    yield Pipeline(cloud, cloud.deploy_fast(name))
    cloud.reset()  # which ends the functions' processes, too
