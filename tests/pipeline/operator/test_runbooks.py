"""What the operator's pages show.

Each command runs on a stack of the local engine, and prints what stands there.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pytest

from local.local_aws import ROOT
from ops.audit.reading import outbox_times
from ops.verbs import VERBS
from tests.pipeline.operator.aws_cli import serving
from tests.pipeline.operator.conftest import Operator

pytestmark = pytest.mark.integration

RUNBOOKS: Final = ROOT / "ops" / "docs" / "runbooks"
OF_TWO_REGIONS: Final = "lost-region.md"
"""A page whose commands tests/regions/test_lost_region.py runs."""
ELSEWHERE: Final = {
    "CarRideHealthCheckId": "a stack in one region has no health check",
    "replay run --region": "a stack in one region has no other",
    "get-account-settings": "the engine has no limits of an account",
    "replay plan": "ops/docs/operations.md shows it",
    "fleet --free": "dispatch knows the ride of every car that is not free",
}
"""Commands that cannot be run here, by a part of their text, and why."""


def blocks() -> Iterator[Any]:
    """Yield each block of commands of each runbook, in their order, as a test's parameter."""
    for page in sorted(RUNBOOKS.glob("*.md")):
        if page.name == OF_TWO_REGIONS:
            continue
        text = page.read_text(encoding="utf-8")
        for found in re.finditer(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, found.start()) + 1
            yield pytest.param(found[1], id=f"{page.name}:{line}")


BLOCKS: Final = list(blocks())
CARRIDE: Final = "./carride "


EXAMPLES: Final = re.findall(
    r"^\$ \./carride (.*)\n((?:(?!\$ |```).*\n)*)",
    (ROOT / "ops" / "docs" / "operations.md").read_text(),
    re.MULTILINE,
)
"""Commands of ops/docs/operations.md with the lines that it shows."""


@pytest.mark.parametrize(("command", "output"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_every_example_shows_what_its_command_prints(
    operator: Operator, capsys: pytest.CaptureFixture[str], command: str, output: str
) -> None:
    """Its lines come in that order, among others.

    Words with a digit differ, and an ellipsis stands for anything.
    """
    operator.run(*shlex.split(command))
    printed = iter(capsys.readouterr().out.splitlines())
    for line in output.splitlines():
        words = (
            r"\S+" if re.search(r"\d", word) else re.escape(word).replace("…", ".*")
            for word in line.split()
        )
        pattern = re.compile(r"\s+".join(words))
        assert any(pattern.fullmatch(each.strip()) for each in printed), line


def test_the_outbox_is_republished_without_a_further_effect(
    operator: Operator, capsys: pytest.CaptureFixture[str]
) -> None:
    """Consumers recognise every event, and the command says how many the bus has accepted."""
    before = operator.pipeline.ledger()
    stack = operator.pipeline.stack
    written = outbox_times(
        operator.pipeline.cloud.client("dynamodb"), stack.outputs["OutboxTableName"]
    )
    operator.run("republish", "--since", "1d", "--yes", "--json")
    assert json.loads(capsys.readouterr().out) == {"republished": len(written), "refused": 0}
    after = operator.pipeline.ledger()
    assert (after.published, after.distinct) == (before.published + len(written), before.distinct)
    assert {name: each.effects for name, each in after.consumers.items()} == {
        name: each.effects for name, each in before.consumers.items()
    }


def test_the_environments_are_those_of_the_functions(operator: Operator) -> None:
    """`make local-env` writes them by logical id."""
    ask = operator.pipeline.cloud.client("lambda").get_function_configuration
    stack = operator.pipeline.stack
    for name, variables in stack.environments().items():
        assert variables == ask(FunctionName=stack.resources[name])["Environment"]["Variables"]
        assert variables


@pytest.fixture(scope="module")
def shell(
    operator: Operator, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Any]]:
    """Runs commands in bash, where the shell of README.md's "Before you begin" has been set up."""
    if shutil.which("jq") is None:
        pytest.skip("there is no jq on this machine, which the runbooks use: `apt install jq`")
    folder = tmp_path_factory.mktemp("runbooks")
    begin = next(block.values[0] for block in BLOCKS if "output()" in block.values[0])
    with serving(folder, operator.pipeline.cloud.client) as variables:
        environment = operator.environment | variables
        environment["PATH"] = f"{folder}:{environment['PATH']}"

        def run(commands: str) -> subprocess.CompletedProcess[str]:
            script = f"set -euo pipefail\n{begin}\n{commands}"
            return subprocess.run(
                ["/bin/bash", "-c", script],
                cwd=folder, env=environment, timeout=600, check=False,
                capture_output=True, text=True,
            )  # fmt: skip

        yield run


@pytest.fixture(scope="module")
def prepared(operator: Operator, shell: Callable[[str], Any]) -> dict[str, str]:
    """What a page's reader has at hand.

    A quarantined key, and a dead letter in the queue that README.md names.
    """
    (letter,) = (
        each
        for each in operator.pipeline.dead_letters("RideHistoryDlq")
        if each["reason"] == "QUARANTINED"
    )
    queue = operator.pipeline.stack.outputs["CarRideLogRuleDlqUrl"]
    body = (ROOT / "events" / "ride_history_live.json").read_text(encoding="utf-8")
    operator.pipeline.cloud.client("sqs").send_message(QueueUrl=queue, MessageBody=body)
    return {"dispatch#…": letter["key"], " --yes": ""}


@pytest.mark.parametrize("commands", BLOCKS)
def test_every_command_of_a_runbook_runs(
    commands: str, operator: Operator, shell: Callable[[str], Any], prepared: dict[str, str]
) -> None:
    """What `./carride` would do is only shown. Commands of `ELSEWHERE` are left out."""
    for shown, here in prepared.items():
        commands = commands.replace(shown, here)
    lines = re.findall(r"(?:.*\\\n)*.*\n", commands)
    left = [line for line in lines if not any(part in line for part in ELSEWHERE)]
    if not left:
        pytest.skip("; ".join(sorted({why for part, why in ELSEWHERE.items() if part in commands})))
    for is_carride, some in groupby(left, lambda line: line.startswith(CARRIDE)):
        if is_carride:
            for line in some:
                operator.run(*shlex.split(line.removeprefix(CARRIDE)))
        else:
            done = shell("".join(some))
            assert done.returncode == 0, done.stdout + done.stderr
            assert done.stderr == ""


@pytest.mark.parametrize("linked", [False, True])
def test_the_script_runs_from_any_folder(tmp_path: Path, linked: bool) -> None:
    """It finds the project's own Python through a symbolic link, too, and needs no variable."""
    script = ROOT / "carride"
    if linked:
        (tmp_path / "linked").symlink_to(script)
        script = tmp_path / "linked"
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
    done = subprocess.run(
        [script, "--help"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(name.partition(" ")[0] in done.stdout for name in VERBS)
