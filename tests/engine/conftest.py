"""One engine and one stock MiniStack for all tests of this folder; each test has a stack of its own."""

from collections.abc import Iterator

import pytest

from local.local_aws import Laptop, Stack
from tests.engine.support import Resource, StockMiniStack, template


@pytest.fixture(scope="session")
def engine() -> Iterator[Laptop]:
    """The engine, with retries that follow at once."""
    with Laptop(retry_delays=(0.05, 0.1), plug_ins=["tests.engine.outages"]) as laptop:
        yield laptop


@pytest.fixture(scope="session")
def stock() -> Iterator[Laptop]:
    """MiniStack as it is published."""
    with StockMiniStack() as laptop:
        yield laptop


class Deploy:
    """Deploys resources as one stack."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, laptop: Laptop, **resources: Resource) -> Stack:
        """Create the stack, or update it to hold just these resources."""
        return laptop.deploy_fast(self._name, template(resources))


@pytest.fixture
def deploy(name: str) -> Deploy:
    """Deploys resources as this test's stack: ``deploy(engine, Queue={…})``."""
    return Deploy(name)
