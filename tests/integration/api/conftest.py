"""One engine for all tests of this folder, with the real template; each test has a stack of its own."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.laptop import Laptop
from tests.integration.api.client import Api

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.integration)


@pytest.fixture(scope="session")
def laptop() -> Iterator[Laptop]:
    """The engine, with what `sam build` makes of the template; retries follow soon."""
    with Laptop(retry_delays=(0.2, 0.4)) as laptop:
        laptop.build()
        yield laptop


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A stack name of this test's own."""
    return re.sub("[^A-Za-z0-9]+", "-", str(request.node.name))[:40].strip("-")


@pytest.fixture
def api(laptop: Laptop, name: str) -> Iterator[Api]:
    """The API of a stack that nobody has used."""
    yield Api(laptop, laptop.deploy_fast(name))
    laptop.delete_stack(name)
