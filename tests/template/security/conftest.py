"""One run of the whole pipeline down every path."""

from collections.abc import Iterator

import pytest

from local.local_aws import FAULTS, Laptop
from local.simulated_gateway import Books, GatewayServer, Troubles
from ops import fleet
from tests.pipeline.saga.town import CARS, DECLINED, SEED, Town
from tests.template.security.run import go_down_every_path


@pytest.fixture(scope="session")
def town() -> Iterator[Town]:
    """Return a stack, on an engine of its own, that has gone down every path."""
    troubles = Troubles(declined=DECLINED)
    with (
        GatewayServer(Books(troubles, seed=SEED)) as gateway,
        Laptop(retry_delays=(0.02, 0.02), preload=[FAULTS]) as laptop,
    ):
        laptop.build()
        stack = laptop.deploy_fast("every-path", PaymentGatewayUrl=gateway.url)
        fleet.seed(laptop.client("dynamodb"), stack.outputs["CarTableName"], CARS)
        town = Town(laptop, stack, gateway)
        go_down_every_path(town)
        yield town
