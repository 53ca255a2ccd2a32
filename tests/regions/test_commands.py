"""The operator's own commands, run as processes, with the SAM CLI, against the local engine."""

import json
import os
import platform
import subprocess
import sys

from local.local_aws import ROOT, LocalAws
from ops.regions import configured

MACHINE = "arm64" if platform.machine().lower() in {"arm64", "aarch64"} else "x86_64"
HERE = ("--set", "Stage=local", "--set", f"Architecture={MACHINE}")


def run(cloud: LocalAws, *command: str, status: int = 0) -> str:
    """Run a module with this engine in AWS's place, and return what it printed."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    path = f"{ROOT / '.venv-sam' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env={**inherited, **cloud.environment(), "PATH": path, "SAM_CLI_TELEMETRY": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + (done.stderr if status else "")


def test_two_regions_by_command(cloud: LocalAws) -> None:
    """Deployed, replayed, failed over and back, and deleted, each as samconfig.toml says, and nothing is left."""
    pair = configured()
    assert run(cloud, "ops.regions", "deploy", "--dry-run", *HERE).count("sam deploy") == 4
    run(cloud, "ops.regions", "deploy", "--yes", *HERE)
    stacks = {
        place.role: cloud.stack(place.stack, region=place.region).outputs for place in (pair.primary, pair.secondary)
    }
    assert {role: outputs["Role"] for role, outputs in stacks.items()} == {role: role for role in stacks}
    again = run(cloud, "ops.regions", "deploy", "--dry-run", *HERE)
    assert [line.split()[1] for line in again.splitlines() if line[0].isdigit()] == ["primary", "secondary"]

    replay = ("ops", "replay", "--since", "1h", "--region", pair.primary.region, "--yes")
    replayed = json.loads(run(cloud, *replay, "--json"))
    assert replayed["replay"].startswith(f"{pair.primary.region}.")
    moved = json.loads(run(cloud, "ops", "failover", "--runs-end-in", "0s", "--archived-in", "0s", "--json", "--yes"))
    assert moved["drained"]
    assert "is fenced" in run(cloud, *replay, status=2)
    run(cloud, "ops", "unfence", "--yes")

    run(cloud, "ops.regions", "delete", "--yes")
    for place in (pair.primary, pair.secondary):
        left = cloud.client("cloudformation", region=place.region).describe_stacks()["Stacks"]
        assert [each["StackName"] for each in left if each["StackStatus"] != "DELETE_COMPLETE"] == [
            "aws-sam-cli-managed-default"
        ]
