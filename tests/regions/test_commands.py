"""The operator's commands, run as processes, with the SAM CLI, against the local engine."""

import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping

import pytest

from local.local_aws import ROOT, LocalAws
from ops.regions import configured
from ops.stack import StackRef
from tests.pipeline.operator.aws_cli import block

pytestmark = [pytest.mark.integration, pytest.mark.thorough]

MACHINE = "arm64" if platform.machine().lower() in {"arm64", "aarch64"} else "x86_64"
TABLES = 8
DEPLOY = ("failover", "deploy")
HERE = ("--set", "Stage=local", "--set", f"Architecture={MACHINE}")


REMOVAL = block((ROOT / "docs" / "on-an-account.md").read_text(encoding="utf-8"), "sam delete")


def run(cloud: LocalAws, *command: str, status: int = 0) -> str:
    """Run a command against this engine, and return what it printed."""
    return _run(cloud, [sys.executable, "-m", "ops", *command], status)


def remove(cloud: LocalAws, stacks: Mapping[str, StackRef]) -> None:
    """Remove both regions in the steps of docs/on-an-account.md, without a build.

    `sam delete` also empties the bucket, whose URLs it expects to be AWS's own.
    """
    for action, role, options in re.findall(r"sam (deploy|delete) --config-env (\w+)(.*)", REMOVAL):
        if action == "deploy":
            words = ["sam", "deploy", "--no-confirm-changeset", "--config-env", role]
            _run(cloud, [*words, *shlex.split(options)], 0)
        else:
            cloud.delete_stack(stacks[role].name, region=stacks[role].region)


def _run(cloud: LocalAws, words: list[str], status: int) -> str:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    path = f"{ROOT / '.venv-sam' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        words,
        cwd=ROOT,
        env={**inherited, **cloud.environment(), "PATH": path, "SAM_CLI_TELEMETRY": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + (done.stderr if status else "")


def test_two_regions_by_command(cloud: LocalAws) -> None:
    """The stack is deployed, replayed, failed over and back, and deleted, as samconfig.toml says.

    Nothing is left.
    """
    pair = configured(cloud.client)
    assert run(cloud, *DEPLOY, *HERE).count("sam deploy") == 4
    run(cloud, *DEPLOY, "--yes", *HERE)
    primary, secondary = (each.stack for each in pair)
    assert [primary.role, secondary.role] == ["primary", "secondary"]
    assert run(cloud, *DEPLOY, *HERE).count("sam deploy") == 2
    owned = primary.named("AWS::DynamoDB::GlobalTable")
    assert len(owned) == TABLES
    assert secondary.named("AWS::DynamoDB::GlobalTable") == {}
    assert set(owned.values()) <= tables(secondary)
    assert set(primary.outputs) == set(secondary.outputs)
    endpoint = primary.client("events").describe_endpoint(Name=primary.name)
    assert [bus["EventBusArn"].split(":")[3] for bus in endpoint["EventBuses"]] == [
        primary.region,
        secondary.region,
    ]
    assert secondary.outputs["CarRideEndpointId"] == primary.outputs["CarRideEndpointId"]

    replay = ("replay", "run", "--since", "1h", "--region", primary.region, "--json")
    assert f"as {primary.region}." in json.loads(run(cloud, *replay))["plan"][0]
    moved = json.loads(
        run(
            cloud,
            "failover",
            "run",
            "--runs-end-in",
            "0s",
            "--archived-in",
            "0s",
            "--json",
            "--yes",
        )
    )
    assert moved["drained"]
    states = json.loads(run(cloud, "failover", "status", "--json", status=1))["regions"]
    assert [each["fenced_since"] is not None for each in states] == [True, False]
    assert "is fenced" in run(cloud, *replay, status=2)
    drill = (
        "failover",
        "drill",
        "--since",
        "1h",
        "--runs-end-in",
        "0s",
        "--archived-in",
        "0s",
        "--json",
        "--yes",
    )
    assert json.loads(run(cloud, *drill))["audit"]["balanced"], (
        "it continues the failover, and goes back"
    )
    assert "is not fenced" in run(cloud, "failover", "back", "--yes", status=2)

    remove(cloud, {each.role: each.stack for each in pair})
    for stack in (primary, secondary):
        assert not set(owned.values()) & tables(stack)
        assert stack.client("events").list_event_buses(NamePrefix=stack.name)["EventBuses"] == []
        left = stack.client("cloudformation").describe_stacks()["Stacks"]
        assert [each["StackName"] for each in left if each["StackStatus"] != "DELETE_COMPLETE"] == [
            "aws-sam-cli-managed-default"
        ]


def tables(stack: StackRef) -> set[str]:
    return set(stack.client("dynamodb").list_tables()["TableNames"])
