"""One engine for all tests of this folder, with the real template built once, and a gateway beside it."""

import re
from collections.abc import Iterator

import pytest

from local.gateway import Books, GatewayServer, Troubles
from local.laptop import Laptop
from ops import fleet
from tests.integration.saga.town import Town

CARS = 2


@pytest.fixture(scope="session")
def laptop() -> Iterator[Laptop]:
    """The engine, with what `sam build` makes of the template; Lambda's retries follow soon."""
    with Laptop(retry_delays=(0.5, 1.0)) as laptop:
        laptop.build()
        yield laptop


@pytest.fixture
def town(laptop: Laptop, request: pytest.FixtureRequest) -> Iterator[Town]:
    """A stack of the template with two cars, and a gateway that declines half of the rides."""
    name = re.sub("[^A-Za-z0-9]+", "-", str(request.node.name))[:40].strip("-")
    with GatewayServer(Books(Troubles(declined=0.5), seed=1)) as gateway:
        stack = laptop.deploy_fast(name, PaymentGatewayUrl=gateway.url)
        fleet.seed(laptop.client("dynamodb"), stack.outputs["CarTableName"], CARS)
        yield Town(laptop, stack, gateway)
        laptop.delete_stack(name)
