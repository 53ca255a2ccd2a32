"""A stack that is a test's own, and an engine that forgets it."""

from collections.abc import Iterator

import pytest

from local.local_aws import Laptop
from tests.pipeline.pipeline import Pipeline


@pytest.fixture
def pipeline(laptop: Laptop, name: str) -> Iterator[Pipeline]:
    """A stack of the template that nobody has used."""
    yield Pipeline(laptop, laptop.deploy_fast(name))
    laptop.reset()  # which ends the functions' processes, too
