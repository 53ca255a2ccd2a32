"""One engine for all tests of this folder, with the real template built once; each test has a stack of its own."""

import re
from collections.abc import Iterator

import pytest

from local.laptop import Laptop
from tests.integration.pipeline.pipeline import Pipeline


@pytest.fixture(scope="session")
def laptop() -> Iterator[Laptop]:
    """The engine, with what `sam build` makes of the template; Lambda's retries follow soon."""
    with Laptop(retry_delays=(0.2, 0.4)) as laptop:
        laptop.build()
        yield laptop


@pytest.fixture
def pipeline(laptop: Laptop, request: pytest.FixtureRequest) -> Iterator[Pipeline]:
    """A stack of the template that nobody has used."""
    name = re.sub("[^A-Za-z0-9]+", "-", str(request.node.name))[:40].strip("-")
    yield Pipeline(laptop, laptop.deploy_fast(name))
    laptop.reset()  # which ends the functions' processes, too
