"""One engine for all tests of this folder, with the real template built once, and a gateway beside it."""

from collections.abc import Iterator

import pytest

from local.local_aws import FAULTS, LocalAws
from local.simulated_gateway import Books, GatewayServer, Troubles
from ops import fleet
from tests.pipeline.saga.town import CARS, DECLINED, SEED, Town


@pytest.fixture(scope="session")
def cloud() -> Iterator[LocalAws]:
    """The engine, with what `sam build` makes of the template; Lambda's retries follow soon."""
    with LocalAws("--retry-delays=0.5,1.0", *FAULTS) as cloud:
        cloud.build()
        yield cloud


@pytest.fixture(scope="session")
def town(cloud: LocalAws) -> Iterator[Town]:
    """A stack of the template with two cars, which tests leave free, and a gateway that declines half of the rides."""
    with GatewayServer(Books(Troubles(declined=DECLINED), seed=SEED)) as gateway:
        stack = cloud.deploy_fast("town", PaymentGatewayUrl=gateway.url)
        fleet.seed(cloud.client("dynamodb"), stack.outputs["CarTableName"], CARS)
        yield Town(cloud, stack, gateway)
        cloud.delete_stack(stack.name)
