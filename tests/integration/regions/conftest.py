"""The real template in two regions of one engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from local.gateway import Books, GatewayServer
from local.laptop import Laptop
from tests.integration.regions.pair import Regions

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.integration)


@pytest.fixture(scope="session")
def laptop() -> Iterator[Laptop]:
    """An engine with what `sam build` made."""
    with Laptop(retry_delays=(0.2, 0.4)) as started:
        started.build()
        yield started


@pytest.fixture
def regions(laptop: Laptop) -> Iterator[Regions]:
    """Both regions, deployed in the order that `make deploy-regions` takes, and removed in that of its undoing."""
    with GatewayServer(Books()) as gateway:
        deployed = Regions(laptop, gateway)
        yield deployed
        laptop.trouble(late=[], lagging=False)
        deployed.remove()
