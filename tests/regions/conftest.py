"""The real template in two regions of one engine."""

from collections.abc import Iterator

import pytest

from local.local_aws import LocalAws
from local.simulated_gateway import Books, GatewayServer
from tests.regions.pair import Regions


@pytest.fixture(scope="session")
def cloud() -> Iterator[LocalAws]:
    """An engine of its own: these tests see each request, and hold back the replication."""
    with LocalAws("--retry-delays=0.2,0.4", "--plug-in=engine.outages") as started:
        started.build()
        yield started


@pytest.fixture
def regions(cloud: LocalAws) -> Iterator[Regions]:
    """Both regions, deployed as `failover deploy` does."""
    with GatewayServer(Books()) as gateway:
        deployed = Regions(cloud, gateway)
        yield deployed
        cloud.control("outages", late=[], lagging=False)
        deployed.remove()
