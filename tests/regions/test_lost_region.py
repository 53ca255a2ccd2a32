"""A primary that is lost for good: the commands of the runbook give its tables to the secondary."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from local.local_aws import ROOT
from ops.audit import audit
from ops.stack import StackRef
from tests.pipeline.operator.aws_cli import block, serving
from tests.regions.pair import AWAY, HOME, NAME, Regions, unreachable

pytestmark = [pytest.mark.integration, pytest.mark.thorough]

RIDES: Final = 2
TABLE: Final = "AWS::DynamoDB::GlobalTable"
RUNBOOKS: Final = ROOT / "ops" / "docs" / "runbooks"
PAGE: Final = (RUNBOOKS / "lost-region.md").read_text(encoding="utf-8")
BEGIN: Final = block((RUNBOOKS / "README.md").read_text(encoding="utf-8"), "output()")
HERE: Final = {"STACK=carride": f"STACK={NAME}", "us-east-1": AWAY, "us-west-2": HOME}
"""What the reader of the page replaces."""
ASK: Final = "--region us-west-2"
MANAGED: Final = "aws-sam-cli-managed-default"
"""The stack in which the SAM CLI keeps its bucket."""


class Shell:
    """Runs blocks of the page, as its reader does, until the primary's region is lost and after."""

    def __init__(self, regions: Regions, folder: Path) -> None:
        self.regions = regions
        self.folder = folder
        self.environment: dict[str, str] = {}
        self.lost = False

    def client(self, service: str, region: str = AWAY) -> Any:
        if self.lost and region == HOME:
            return unreachable(service, region)
        return self.regions.client(service, region)

    def run(self, containing: str) -> subprocess.CompletedProcess[str]:
        """Run the block that has a text."""
        script = "\n".join(["set -euo pipefail", BEGIN, block(PAGE, containing)])
        for shown, here in HERE.items():
            script = script.replace(shown, here)
        return subprocess.run(
            ["/bin/bash", "-c", script],
            cwd=self.folder, env=self.environment, timeout=600, check=False,
            capture_output=True, text=True,
        )  # fmt: skip

    def do(self, containing: str) -> str:
        """Run the block that has a text, and return what it printed."""
        done = self.run(containing)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def shell(regions: Regions, tmp_path: Path) -> Iterator[Shell]:
    """A shell of the page, in an account with the SAM CLI's bucket."""
    if shutil.which("jq") is None:
        pytest.skip("there is no jq on this machine, which the page uses: `apt install jq`")
    managed = {
        "Resources": {"Handle": {"Type": "AWS::CloudFormation::WaitConditionHandle"}},
        "Outputs": {"SourceBucket": {"Value": f"local-artifacts-{AWAY}"}},
    }
    cloudformation = regions.client("cloudformation", AWAY)
    cloudformation.create_stack(StackName=MANAGED, TemplateBody=json.dumps(managed))
    folder = tmp_path / "commands"
    folder.mkdir()
    made = Shell(regions, tmp_path)
    with serving(folder, made.client) as variables:
        made.environment = os.environ | regions.cloud.environment() | variables
        made.environment |= {"PATH": f"{folder}:{os.environ['PATH']}", "AWS_REGION": AWAY}
        yield made
    regions.cloud.delete_stack(MANAGED, region=AWAY)


def test_the_secondary_gets_the_tables_of_a_lost_primary(regions: Regions, shell: Shell) -> None:
    """The page's commands import the tables with their items, and make the stack standalone."""
    regions.book(regions.primary, RIDES)
    regions.settle()
    before = dict(regions.cloud.stack(NAME, region=AWAY).resources)
    owned = dict(regions.primary.named(TABLE))
    assert shell.do("output PeerRegion").split() == ["secondary", HOME]
    assert "COMPLETE" in shell.do(ASK), "it lives: the page says to stop"
    shell.lost = True
    asked = shell.run(ASK)
    assert asked.returncode != 0
    assert "EndpointConnectionError" in asked.stderr

    assert "keeps its replica" not in shell.do("--replica-updates")
    shell.do("change-set-create-complete")
    shell.do("delete-change-set")
    shell.do("change-set-create-complete")
    shown = shell.do("Changes[].ResourceChange").splitlines()
    assert sorted(shown) == sorted([*owned, *(f"Import\t{name}" for name in owned)])
    shell.do("execute-change-set")
    assert regions.cloud.stack(NAME, region=AWAY).resources == {**before, **owned}

    shell.do("update-stack")
    assert regions.cloud.stack(NAME, region=AWAY).outputs["Role"] == "standalone"
    after = regions.cloud.stack(NAME, region=AWAY).resources
    assert {name: after[name] for name in (*owned, "OutboxPipe")} == {
        **owned,
        "OutboxPipe": before["OutboxPipe"],
    }
    assert shell.do("StackStatusReason")
    regions.book(regions.secondary, RIDES)
    regions.settle()
    assert audit(StackRef(NAME, AWAY, regions.client)).ledger.balanced
