"""Deploys the stack to two regions, and removes it from both.

Each region needs something that only the other one has, so this takes several steps. The secondary
needs the streams of its replicas, which the primary creates. The primary's global endpoint needs
both buses. The secondary's producers need the endpoint's id.
"""

import os
import subprocess
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from botocore.exceptions import WaiterError

from ops.stack import ClientFactory, OperatorError, StackRef

ROOT: Final = Path(__file__).resolve().parent.parent
_STREAM: Final = "OutboxStreamArn"
_ENDPOINT: Final = "GlobalEndpointId"
_POLL_SECONDS: Final = 5
_LONGEST_SECONDS: Final = 2 * 60 * 60
"""Adding a replica to a table with data takes long, and so does deleting tables with replicas."""


class Environment(NamedTuple):
    """One of the two environments of samconfig.toml, named by its role: ``primary`` or ``secondary``."""

    role: str
    stack: StackRef
    parameters: Mapping[str, str]


type Pair = tuple[Environment, Environment]
"""The primary and the secondary."""


class Step(NamedTuple):
    """One change of a stack."""

    environment: Environment
    what: str
    parameters: Mapping[str, str] | None = None
    """What the stack is deployed with; None deletes the stack."""
    needs: tuple[str, ...] = ()
    """Further parameters, whose values are known when the steps before this one are done."""

    def __str__(self) -> str:
        action = "delete the stack"
        if self.parameters is not None:
            given = {**self.parameters, **dict.fromkeys(self.needs, "(known by then)")}
            action = f"sam deploy --config-env {self.environment.role} {' '.join(map('='.join, given.items()))}"
        return f"{self.environment.role} in {self.environment.stack.region}: {self.what}\n     {action}"


class Deployer:
    """Deploys stacks with the SAM CLI and deletes them with CloudFormation."""

    def deploy(self, environment: Environment, parameters: Mapping[str, str]) -> None:
        """Deploy the template that was built last."""
        role, stack = environment.role, environment.stack
        command = [
            "sam",
            "deploy",
            "--config-env",
            role,
            "--region",
            stack.region,
            "--stack-name",
            stack.name,
        ]
        command += ["--max-wait-duration", str(_LONGEST_SECONDS // 60), "--no-confirm-changeset"]
        command += ["--parameter-overrides", *map("=".join, parameters.items())]
        path = f"{ROOT / '.venv-sam' / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        try:
            subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, "PATH": path, "SAM_CLI_TELEMETRY": "0"},
                check=True,
            )
        except FileNotFoundError:
            raise OperatorError(
                "the SAM CLI is missing: run `make setup`, which installs it"
            ) from None
        except subprocess.CalledProcessError as error:
            raise OperatorError(f"sam deploy failed for the {role} in {stack.region}") from error

    def delete(self, stack: StackRef) -> None:
        """Delete a stack, and wait until it is gone."""
        if (described := stack.describe()) is None:
            return
        # Also of a deleted stack.
        client, known = stack.client("cloudformation"), {"StackName": described["StackId"]}
        client.delete_stack(**known)
        waiting = {"Delay": _POLL_SECONDS, "MaxAttempts": _LONGEST_SECONDS // _POLL_SECONDS}
        try:
            client.get_waiter("stack_delete_complete").wait(**known, WaiterConfig=waiting)
        except WaiterError as error:
            (left,) = client.describe_stacks(**known)["Stacks"]
            why = left.get("StackStatusReason", error)  # names the resources that are left
            raise OperatorError(
                f"the stack {stack.name} in {stack.region} could not be deleted: {why}"
            ) from error


def deployment(primary: Environment, secondary: Environment) -> list[Step]:
    """Return the steps that deploy both regions, or complete their deployment, unless another stack is in the way."""
    there = secondary.stack.parameters()
    if there is not None and there.get("Role") != secondary.role:
        name = f"{secondary.stack.name} in {secondary.stack.region}"
        what = f"the stack {name} is not a secondary: it has tables of its own"
        raise OperatorError(
            f"{what}: delete it, or choose another region or name in samconfig.toml"
        )
    complete = there is not None and primary.stack.parameters() is not None
    here, there = (
        {**each.parameters, "Role": each.role, "PeerRegion": other.stack.region}
        for each, other in ((primary, secondary), (secondary, primary))
    )
    present, absent = {"GlobalEndpoint": "present"}, {"GlobalEndpoint": "absent"}
    if complete:
        return [
            Step(
                primary,
                "functions, tables and their replicas, bus, global endpoint",
                here | present,
            ),
            Step(secondary, "functions, bus", there, (_STREAM, _ENDPOINT)),
        ]
    return [
        Step(primary, "functions, tables and their replicas, bus", here | absent),
        Step(secondary, "functions, bus", there, (_STREAM,)),
        Step(primary, "global endpoint, over the buses of both regions", here | present),
        Step(secondary, "producers use the endpoint", there, (_STREAM, _ENDPOINT)),
    ]


def removal(primary: Environment, secondary: Environment) -> list[Step]:
    """Return the steps that remove the stacks of both regions, or what is left of them."""
    here = primary.stack.parameters()
    steps = []
    if here is not None and here.get("GlobalEndpoint") == "present":
        # The parameters of its last deployment.
        given = {name: value for name, value in here.items() if value}
        steps.append(
            Step(primary, "without its global endpoint", given | {"GlobalEndpoint": "absent"})
        )
    if secondary.stack.parameters() is not None:
        steps.append(Step(secondary, "delete the stack"))
    if here is not None:
        steps.append(Step(primary, "delete the stack, with tables and replicas"))
    return steps


def carry_out(
    steps: Sequence[Step], pair: Pair, deployer: Deployer, report: Callable[[str], None] = print
) -> int:
    """Carry out steps, and return their number. When the cause of a failure is fixed, run the command again."""
    for number, step in enumerate(steps, 1):
        report(f"{number}. {step}")
        if step.parameters is None:
            deployer.delete(step.environment.stack)
        else:
            needed = {name: _known(pair, name) for name in step.needs}
            deployer.deploy(step.environment, {**step.parameters, **needed})
    return len(steps)


def _known(pair: Pair, parameter: str) -> str:
    """Return what one region's stack has and the other one's needs."""
    primary, secondary = (each.stack for each in pair)
    if parameter == _STREAM:
        table = secondary.client("dynamodb").describe_table(
            TableName=f"{secondary.name}-OutboxTable"
        )
        return str(table["Table"]["LatestStreamArn"])
    return primary.outputs["CarRideEndpointId"]


def configured(
    clients: ClientFactory,
    path: Path = ROOT / "samconfig.toml",
    overrides: Mapping[str, str] | None = None,
) -> Pair:
    """Return the two environments of samconfig.toml. ``overrides`` take precedence over its parameters."""
    config = tomllib.loads(path.read_text(encoding="utf-8"))
    found = []
    for role in ("primary", "secondary"):
        settings = config.get(role, {}).get("global", {}).get("parameters", {})
        try:
            stack = StackRef(settings["stack_name"], settings["region"], clients)
        except KeyError as error:
            raise OperatorError(
                f"{path.name} has no {error.args[0]} in [{role}.global.parameters]"
            ) from None
        given = dict(map(assignment, settings.get("parameter_overrides", [])))
        found.append(Environment(role, stack, given | dict(overrides or {})))
    primary, secondary = (each.stack for each in found)
    if primary.region == secondary.region:
        raise OperatorError(
            f"{path.name} has both environments in {primary.region}: they have to be two regions"
        )
    if primary.name != secondary.name:
        raise OperatorError(
            f"{path.name} has two names for the stack: each region finds the other by the name"
        )
    return found[0], found[1]


def assignment(text: str) -> tuple[str, str]:
    """Read ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise OperatorError(f"{text!r} sets no parameter: write NAME=VALUE")
    return name, value
