"""A stack of the real template with a gateway beside it."""

from collections.abc import Iterator

import pytest

from local.local_aws import LocalAws
from local.simulated_gateway import Books, GatewayServer, Troubles
from ops import fleet
from tests.pipeline.saga.town import CARS, DECLINED, SEED, Town


@pytest.fixture
def town(cloud: LocalAws) -> Iterator[Town]:
    """A stack of the template with two cars and a gateway that declines half of the rides."""
    with GatewayServer(Books(Troubles(declined=DECLINED), seed=SEED)) as gateway:
        stack = cloud.deploy_fast("town", PaymentGatewayUrl=gateway.url)
        fleet.seed(cloud.client("dynamodb"), stack.outputs["CarTableName"], CARS)
        yield Town(cloud, stack, gateway)
        cloud.delete_stack(stack.name)
