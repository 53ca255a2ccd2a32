"""The real template in two regions of one engine."""

from collections.abc import Iterator

import pytest

from local.local_aws import LocalAws
from local.simulated_gateway import Books, GatewayServer
from tests.engine.support import outage
from tests.regions.pair import Regions


@pytest.fixture(scope="session")
def cloud() -> Iterator[LocalAws]:
    """An engine of its own: these tests ask what it was asked, and hold back what its regions tell each other."""
    with LocalAws("--retry-delays=0.2,0.4", "--plug-in=tests.engine.outages") as started:
        started.build()
        yield started


@pytest.fixture
def regions(cloud: LocalAws) -> Iterator[Regions]:
    """Both regions, deployed in the order that `make deploy-regions` takes, and removed in that of its undoing."""
    with GatewayServer(Books()) as gateway:
        deployed = Regions(cloud, gateway)
        yield deployed
        outage(cloud, late=[], lagging=False)
        deployed.remove()
