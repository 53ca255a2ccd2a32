"""A stack that an operator is called to: it has had rides, and each kind of fault."""

import os
from collections.abc import Iterator
from typing import Final

import pytest

from local.local_aws import LocalAws
from local.simulated_gateway import Books, GatewayServer
from ops import fleet
from ops.cli.app import main
from tests.pipeline.pipeline import Pipeline

NAME: Final = "carride"
"""As in samconfig.toml, so that commands need no `--stack`."""


class Operator:
    """An operator's shell."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.environment = os.environ | pipeline.cloud.environment() | {"STACK": NAME}

    def run(self, *command: str) -> None:
        """Run a command in this process."""
        cloud = self.pipeline.cloud
        main(
            [*command, "--stack", NAME, "--region", cloud.region],
            lambda service, region: cloud.client(service, region=region),
        )


@pytest.fixture(scope="module")
def operator(cloud: LocalAws) -> Iterator[Operator]:
    """The operator of a stack whose work has come to rest."""
    with GatewayServer(Books()) as gateway:
        stack = cloud.deploy_fast(NAME, PaymentGatewayUrl=gateway.url)
        fleet.seed(cloud.client("dynamodb"), stack.outputs["CarTableName"], 8)
        pipeline = Pipeline(cloud, stack)
        pipeline.simulate(rides=6, seed=2, duplicates=0.3, malformed=6, poison=1, fails=1)
        yield Operator(pipeline)
    cloud.reset()
