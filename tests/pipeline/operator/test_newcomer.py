"""A newcomer deploys, invokes, replays, upgrades, rolls back and removes, with README's commands.

The stage is `dev`, as on an account: the engine allows a function what its role allows, and the API
knows its callers by their signatures.
"""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from local.local_aws import LocalAws
from tools.transformed import ROOT

pytestmark = pytest.mark.peer  # it builds and deploys five times, which takes three minutes

REGION: Final = "us-west-2"
"""README's."""
README: Final = (ROOT / "README.md").read_text(encoding="utf-8")
UPGRADE: Final = (ROOT / "docs" / "on-an-account.md").read_text(encoding="utf-8")
ARCHITECTURE: Final = {"aarch64": "arm64", "arm64": "arm64"}.get(platform.machine(), "x86_64")
# The copy's environments are those of this checkout, and are not installed again.
MAKE: Final = "make " + " ".join(f"-o .venv-{name}/.synced" for name in ("dev", "engine", "sam"))
BROKEN: Final = """
  Broken: # the engine cannot make it
    Type: AWS::Backup::BackupPlan
    DependsOn: RideHistoryFunction

Outputs:
"""


def block(text: str, first: str) -> str:
    """Return the block of commands that begins like this."""
    (found,) = re.findall(rf"```(?:sh)?\n({re.escape(first)}.*?)```", text, re.DOTALL)
    return str(found).replace("make ", f"{MAKE} ")


class Newcomer:
    """A checkout of its own, a shell in it, and an engine in place of AWS."""

    def __init__(self, folder: Path, cloud: LocalAws) -> None:
        self.folder = folder
        self.cloud = cloud

    def types(self, commands: str, *, fails: bool = False) -> str:
        """Type commands, and say yes to whatever asks.

        Return what they print; with ``fails``, they have to fail, and the errors are returned too.
        """
        environment = {
            **{name: text for name, text in os.environ.items() if not name.startswith("AWS_")},
            **self.cloud.environment(),
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "SAM_CLI_TELEMETRY": "0",
            "PATH": f"{self.folder / '.venv-sam' / 'bin'}{os.pathsep}{os.environ['PATH']}",
        }
        done = subprocess.run(
            ["/bin/bash", "-euo", "pipefail", "-c", commands],
            cwd=self.folder,
            env=environment,
            input="y\n" * 20,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stdout + done.stderr if fails else done.stdout

    def code(self) -> str:
        """Return the hash of the ride history's deployed code."""
        stack = self.cloud.stack("carride", region=REGION)
        function = stack.resources["RideHistoryFunction"]
        found = self.cloud.client("lambda", REGION).get_function(FunctionName=function)
        return str(found["Configuration"]["CodeSha256"])

    def rides(self) -> str:
        """Book, drive and pay a ride as README does; return its id."""
        book, *steps, look = block(README, "./carride drive book").strip().splitlines()
        booked = book.partition("#")[0].strip()
        ride = self.types(f"{booked} --json | jq -r .orderID").strip().splitlines()[-1]
        self.types("\n".join(steps).replace("ORDER", ride))
        self.cloud.wait_until_quiet()
        assert f"{ride} is paid" in self.types(look.replace("ORDER", ride))
        return ride

    def replays(self) -> str:
        """Replay as README does; return what the commands print."""
        printed = self.types(block(README, "./carride replay plan"))
        self.cloud.wait_until_quiet()
        return printed

    def events_taken(self) -> int:
        """Return how many events took effect at the ride history."""
        stack = self.cloud.stack("carride", region=REGION)
        table = stack.outputs["RideHistoryTableName"]
        found = self.cloud.client("dynamodb", REGION).scan(TableName=table, Select="COUNT")
        return int(found["Count"])


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Newcomer]:
    """A checkout for this machine's processor."""
    if shutil.which("jq") is None:
        pytest.skip("jq is missing")
    folder = tmp_path_factory.mktemp("newcomer") / "carride"
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").replace("/\n", "\n").split()
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".git", *ignored))
    for environment in ROOT.glob(".venv-*"):
        (folder / environment.name).symlink_to(environment)
    settings = folder / "samconfig.toml"
    text = settings.read_text(encoding="utf-8")
    settings.write_text(text.replace("Architecture=arm64", f"Architecture={ARCHITECTURE}"))
    with LocalAws("--retry-delays=0.05,0.1") as cloud:
        yield Newcomer(folder, cloud)


def test_a_function_is_invoked_on_this_machine_alone(newcomer: Newcomer) -> None:
    """README's command has all that it needs, and the event takes effect."""
    (command,) = re.findall(r"`make (invoke FUNCTION=[^`]+)`", README)
    assert '"outcome": "New"' in newcomer.types(f"{MAKE} {command}")


def test_the_application_is_deployed_upgraded_rolled_back_and_removed(newcomer: Newcomer) -> None:
    """In each version a ride is booked, driven and paid, and an earlier one stays paid.

    Its events are replayed and take no second effect.
    """
    newcomer.types(block(README, "export AWS_REGION"))
    first = newcomer.rides()
    taken = newcomer.events_taken()
    assert f"ride-history {taken} recognised" in newcomer.replays()
    assert newcomer.events_taken() == taken > 0
    first_code = newcomer.code()
    upgrade = block(UPGRADE, "make build && sam deploy").splitlines()[0]

    # An upgrade, whose new code runs.
    handler = newcomer.folder / "functions" / "ride_history" / "ride_history.py"
    previous = handler.read_text(encoding="utf-8")
    handler.write_text(f"{previous}\nprint('the new version')\n", encoding="utf-8")
    newcomer.types(upgrade)
    second = newcomer.rides()
    assert newcomer.code() != first_code

    # A deployment that fails is rolled back by CloudFormation, and the stack serves rides.
    template = newcomer.folder / "template.yaml"
    sound = template.read_text(encoding="utf-8")
    template.write_text(sound.replace("\nOutputs:\n", BROKEN), encoding="utf-8")
    assert "ROLLBACK" in newcomer.types(upgrade, fails=True)
    template.write_text(sound, encoding="utf-8")
    newcomer.rides()

    # The previous version is deployed again.
    handler.write_text(previous, encoding="utf-8")
    newcomer.types(upgrade)
    newcomer.rides()
    assert newcomer.code() == first_code
    for ride in (first, second):
        assert f"{ride} is paid" in newcomer.types(f"./carride ride {ride}")

    # `sam delete` does the same, and empties the bucket, whose URLs it expects to be AWS's own.
    newcomer.cloud.delete_stack("carride", region=REGION)
    dynamodb = newcomer.cloud.client("dynamodb", REGION)
    sqs = newcomer.cloud.client("sqs", REGION)
    functions = newcomer.cloud.client("lambda", REGION)
    assert dynamodb.list_tables()["TableNames"] == []
    assert sqs.list_queues().get("QueueUrls", []) == []
    assert functions.list_functions()["Functions"] == []
