"""A stack that an operator is called to: it has had rides, and each kind of fault."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from local.local_aws import LocalAws
from local.simulated_gateway import Books, GatewayServer
from ops import fleet, plans
from ops.cli.app import main
from ops.tests.world import HOME, World
from tests.pipeline.pipeline import Pipeline

NAME: Final = "carride"
"""As in samconfig.toml, so that commands need no `--stack`."""


class Operator:
    """An operator's shell."""

    def __init__(self, pipeline: Pipeline, folder: Path) -> None:
        self.pipeline = pipeline
        variables = {"STACK": NAME, "CARRIDE_PLANS": str(folder)}
        self.environment = os.environ | pipeline.cloud.environment() | variables

    def run(self, *command: str) -> None:
        """Run a command in this process.

        One for two regions with stacks that are none, of which one is fenced.
        """
        if command[0] == "failover":
            world = World()
            world.fenced = set() if command[1] == "deploy" else {HOME}
            if command[1] == "status":
                with pytest.raises(SystemExit, match="1"):
                    main(command, world.client)
            else:
                main(command, world.client)
        else:
            assert self.pipeline.carride(*command) == 0


@pytest.fixture(scope="module")
def operator(cloud: LocalAws, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """The operator of a stack whose work has come to rest, whose plans are kept."""
    folder = tmp_path_factory.mktemp("plans")
    with GatewayServer(Books()) as gateway, pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "PLANS", folder)
        stack = cloud.deploy_fast(NAME, PaymentGatewayUrl=gateway.url)
        fleet.seed(cloud.client("dynamodb"), stack.outputs["CarTableName"], 8)
        pipeline = Pipeline(cloud, stack)
        pipeline.simulate(rides=6, seed=2, duplicates=0.3, malformed=6, poison=1, fails=1)
        yield Operator(pipeline, folder)
    cloud.reset()
