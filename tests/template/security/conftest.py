"""One run of the whole pipeline, down every path that it has, and what it left behind."""

from collections.abc import Iterator

import pytest

from local.local_aws import FAULTS, LocalAws
from local.simulated_gateway import Books, GatewayServer, Troubles
from ops import fleet
from tests.pipeline.saga.town import CARS, DECLINED, SEED, Town
from tests.template.security.run import go_down_every_path


@pytest.fixture(scope="session")
def town() -> Iterator[Town]:
    """A stack on an engine of its own, in which everything has happened that can."""
    troubles = Troubles(declined=DECLINED)
    with (
        GatewayServer(Books(troubles, seed=SEED)) as gateway,
        LocalAws("--retry-delays=0.02,0.02", FAULTS) as cloud,
    ):
        cloud.build()
        stack = cloud.deploy_fast("every-path", PaymentGatewayUrl=gateway.url)
        fleet.seed(cloud.client("dynamodb"), stack.outputs["CarTableName"], CARS)
        town = Town(cloud, stack, gateway)
        go_down_every_path(town)
        yield town
