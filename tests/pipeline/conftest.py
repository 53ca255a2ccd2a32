"""Stacks that are a test's own, and an engine that forgets them."""

from collections.abc import Iterator

import pytest

from local.local_aws import LocalAws
from tests.pipeline.pipeline import Pipeline


@pytest.fixture
def pipeline(cloud: LocalAws, name: str) -> Iterator[Pipeline]:
    """A stack of the template that nobody has used."""
    yield Pipeline(cloud, cloud.deploy_fast(name))
    cloud.reset()  # which ends the functions' processes, too


@pytest.fixture
def gradual(cloud: LocalAws, name: str) -> Iterator[Pipeline]:
    """A stack whose versions take over gradually. Without a gateway, so payment's rule is off."""
    yield Pipeline(cloud, cloud.deploy_fast(name, DeploymentStrategy="Canary10Percent5Minutes"))
    cloud.reset()
