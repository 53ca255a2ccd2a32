"""The operator's own commands, run as processes, with the SAM CLI, against the local engine."""

import json
import os
import platform
import subprocess
import sys

from local.local_aws import ROOT, Laptop
from ops.regions import configured

MACHINE = "arm64" if platform.machine().lower() in {"arm64", "aarch64"} else "x86_64"
HERE = ("--set", "Stage=local", "--set", f"Architecture={MACHINE}")


def run(laptop: Laptop, *command: str, status: int = 0) -> str:
    """Run a module with this engine in AWS's place, and return what it printed."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    path = f"{ROOT / '.venv-sam' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env={**inherited, **laptop.environment(), "PATH": path, "SAM_CLI_TELEMETRY": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + (done.stderr if status else "")


def test_two_regions_by_command(laptop: Laptop) -> None:
    """Deployed, replayed, failed over and back, and deleted, each as samconfig.toml says, and nothing is left."""
    pair = configured()
    assert run(laptop, "ops.regions", "deploy", "--dry-run", *HERE).count("sam deploy") == 4
    run(laptop, "ops.regions", "deploy", "--yes", *HERE)
    stacks = {
        place.role: laptop.stack(place.stack, region=place.region).outputs for place in (pair.primary, pair.secondary)
    }
    assert {role: outputs["Role"] for role, outputs in stacks.items()} == {role: role for role in stacks}
    again = run(laptop, "ops.regions", "deploy", "--dry-run", *HERE)
    assert [line.split()[1] for line in again.splitlines() if line[0].isdigit()] == ["primary", "secondary"]

    replay = ("ops", "replay", "--since", "1h", "--region", pair.primary.region, "--yes")
    replayed = json.loads(run(laptop, *replay, "--json"))
    assert replayed["replay"].startswith(f"{pair.primary.region}.")
    moved = json.loads(run(laptop, "ops", "failover", "--runs-end-in", "0s", "--archived-in", "0s", "--json", "--yes"))
    assert moved["drained"]
    assert "is fenced" in run(laptop, *replay, status=2)
    run(laptop, "ops", "unfence", "--yes")

    run(laptop, "ops.regions", "delete", "--yes")
    for place in (pair.primary, pair.secondary):
        left = laptop.client("cloudformation", region=place.region).describe_stacks()["Stacks"]
        assert [each["StackName"] for each in left if each["StackStatus"] != "DELETE_COMPLETE"] == [
            "aws-sam-cli-managed-default"
        ]
