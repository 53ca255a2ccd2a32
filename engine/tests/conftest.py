"""One engine and one stock MiniStack for all tests of this folder.

Each test has a stack of its own.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from engine.client import LocalCloud, Stack
from engine.tests.support import ENGINE, Resource, template

type Deploy = Callable[..., Stack]


@pytest.fixture(scope="session")
def start() -> Iterator[Callable[..., LocalCloud]]:
    """Start an engine with the given options, once for each choice of them."""
    with ExitStack() as running:
        variables = {"LAMBDA_ASYNC_RETRY_BASE_SECONDS": "0.05"}  # of stock MiniStack
        yield functools.cache(
            lambda *options: running.enter_context(LocalCloud(*options, variables=variables))
        )


@pytest.fixture
def engine(start: Callable[..., LocalCloud], request: pytest.FixtureRequest) -> LocalCloud:
    """The engine, with retries that follow at once.

    Or stock MiniStack, in the canary that `needed` adds to a test.
    """
    return start(*getattr(request, "param", ENGINE))


@pytest.fixture
def deploy(engine: LocalCloud, name: str) -> Deploy:
    """Create this test's stack, or update it to have just these: ``deploy(Queue={…})``."""

    def deploy(**resources: Resource) -> Stack:
        return engine.apply(name, template(resources))

    return deploy
