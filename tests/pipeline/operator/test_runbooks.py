"""Each command that a runbook shows runs, as it stands there, on a stack of the local engine."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from local.local_aws import ROOT
from tests.pipeline.operator.aws_cli import serving
from tests.pipeline.operator.conftest import Operator

RUNBOOKS: Final = ROOT / "docs" / "runbooks"
ELSEWHERE: Final = {
    "kms ": "the local stack has no key of its own",
    "CarRideHealthCheckId": "a stack in one region has no health check",
    "failover ": "two regions: tests/regions/test_commands.py runs it",
    "unfence": "two regions: as above",
    "--region us-east-1": "two regions: as above",
    "get-account-settings": "the engine has no limits of an account",
}
"""Commands that cannot be run here, by a part of their text, and why."""


def blocks() -> Iterator[Any]:
    """Yield each block of commands of each runbook, in their order, as a test's parameter."""
    for page in sorted(RUNBOOKS.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        for found in re.finditer(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, found.start()) + 1
            yield pytest.param(found[1], id=f"{page.name}:{line}")


BLOCKS: Final = list(blocks())


@pytest.fixture(scope="module")
def shell(operator: Operator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Any]]:
    """Runs commands in bash, where the shell of README.md's "Before you begin" has been set up."""
    if shutil.which("jq") is None:
        pytest.skip("there is no jq on this machine, which the runbooks use: `apt install jq`")
    folder = tmp_path_factory.mktemp("runbooks")
    (folder / "carride").symlink_to(ROOT / "carride")
    begin = next(block.values[0] for block in BLOCKS if "output()" in block.values[0])
    with serving(folder, operator.pipeline.cloud.client) as variables:
        environment = operator.environment | variables
        environment["PATH"] = f"{folder}:{environment['PATH']}"

        def run(commands: str) -> subprocess.CompletedProcess[str]:
            script = f"set -euo pipefail\n{begin}\n{commands}"
            return subprocess.run(
                ["/bin/bash", "-c", script],
                cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip

        yield run


@pytest.fixture(scope="module")
def prepared(operator: Operator, shell: Callable[[str], Any]) -> dict[str, str]:
    """What a page's reader has at hand: a quarantined key, and a dead letter in the queue that README.md names."""
    (letter,) = (each for each in operator.pipeline.dead_letters("RideHistoryDlq") if each["reason"] == "QUARANTINED")
    queue = operator.pipeline.stack.outputs["CarRideLogRuleDlqUrl"]
    body = (ROOT / "events" / "ride_history_live.json").read_text(encoding="utf-8")
    operator.pipeline.cloud.client("sqs").send_message(QueueUrl=queue, MessageBody=body)
    return {"dispatch#…": letter["key"], " --yes": ""}


@pytest.mark.parametrize("commands", BLOCKS)
def test_every_command_of_a_runbook_runs(
    commands: str, shell: Callable[[str], Any], prepared: dict[str, str], request: pytest.FixtureRequest
) -> None:
    """What `./carride` would do is only shown. Commands of `ELSEWHERE` are left out."""
    lines = re.findall(r"(?:.*\\\n)*.*\n", commands)
    reasons = {why for line in lines for part, why in ELSEWHERE.items() if part in line}
    commands = "".join(line for line in lines if not any(part in line for part in ELSEWHERE))
    if not commands.strip():
        pytest.skip("; ".join(sorted(reasons)))
    for shown, here in prepared.items():
        commands = commands.replace(shown, here)
    done = shell(commands)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
