"""Deploys the stack to two regions.

Each region needs something that only the other one has, so this takes several steps. The secondary
needs the streams of its replicas, which the primary creates. The primary's global endpoint needs
both buses. The secondary's producers need the endpoint's id.
"""

import os
import subprocess
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from ops.stack import ClientFactory, OperatorError, StackRef

ROOT: Final = Path(__file__).resolve().parent.parent
_STREAM: Final = "OutboxStreamArn"
_ENDPOINT: Final = "GlobalEndpointId"
_LONGEST_MINUTES: Final = 120
"""Adding a replica to a table with data takes long."""


class Environment(NamedTuple):
    """One of the two environments of samconfig.toml: ``primary`` or ``secondary``."""

    role: str
    stack: StackRef
    parameters: Mapping[str, str]


type Pair = tuple[Environment, Environment]
"""The primary and the secondary."""


class Step(NamedTuple):
    """One deployment of a stack."""

    environment: Environment
    what: str
    parameters: Mapping[str, str]
    """What the stack is deployed with."""
    needs: tuple[str, ...] = ()
    """Further parameters, whose values are known when the steps before this one are done."""

    def __str__(self) -> str:
        where = f"{self.environment.role} in {self.environment.stack.region}"
        return f"{where}: {self.what}\n     {self._command()}"

    def _command(self) -> str:
        """Return what is run for this step, in words."""
        given = {**self.parameters, **dict.fromkeys(self.needs, "(known by then)")}
        overrides = " ".join(f"{name}={value}" for name, value in given.items())
        return f"sam deploy --config-env {self.environment.role} {overrides}"


class Deployer:
    """Deploys stacks with the SAM CLI."""

    def deploy(self, environment: Environment, parameters: Mapping[str, str]) -> None:
        """Deploy the template that was built last."""
        role = environment.role
        stack = environment.stack
        command = ["sam", "deploy", "--no-confirm-changeset"]
        command += ["--config-env", role]
        command += ["--region", stack.region]
        command += ["--stack-name", stack.name]
        command += ["--max-wait-duration", str(_LONGEST_MINUTES)]
        overrides = [f"{name}={value}" for name, value in parameters.items()]
        command += ["--parameter-overrides", *overrides]
        try:
            subprocess.run(command, cwd=ROOT, env=_with_sam(), check=True)
        except FileNotFoundError:
            raise OperatorError(
                "the SAM CLI is missing: run `make setup`, which installs it"
            ) from None
        except subprocess.CalledProcessError as error:
            raise OperatorError(
                f"sam deploy failed for the {role} in {stack.region}: its lines above say why; "
                "mend that, and run the command again"
            ) from error


def _with_sam() -> dict[str, str]:
    """Return this process's environment, with the SAM CLI of `make setup` first on the path."""
    own = os.environ.get("PATH", os.defpath)
    path = os.pathsep.join([str(ROOT / ".venv-sam" / "bin"), own])
    return {**os.environ, "PATH": path, "SAM_CLI_TELEMETRY": "0"}


def deployment(primary: Environment, secondary: Environment) -> list[Step]:
    """Return the steps that deploy both regions, or complete their deployment.

    Raises:
        OperatorError: another stack is in the way.
    """
    deployed = secondary.stack.parameters()
    if deployed is not None and deployed.get("Role") != secondary.role:
        raise OperatorError(
            f"the stack {secondary.stack.name} in {secondary.stack.region} is not a secondary: it "
            "has tables of its own: delete it, or choose another region or name in samconfig.toml"
        )
    here = _parameters(primary, secondary)
    there = _parameters(secondary, primary)
    present = {"GlobalEndpoint": "present"}
    absent = {"GlobalEndpoint": "absent"}
    everything = "functions, tables and their replicas, bus, global endpoint"
    if deployed is not None and primary.stack.parameters() is not None:
        return [
            Step(primary, everything, here | present),
            Step(secondary, "functions, bus", there, (_STREAM, _ENDPOINT)),
        ]
    return [
        Step(primary, "functions, tables and their replicas, bus", here | absent),
        Step(secondary, "functions, bus", there, (_STREAM,)),
        Step(primary, "global endpoint, over the buses of both regions", here | present),
        Step(secondary, "producers use the endpoint", there, (_STREAM, _ENDPOINT)),
    ]


def _parameters(environment: Environment, other: Environment) -> dict[str, str]:
    """Return what an environment's stack is deployed with, whatever the step."""
    roles = {"Role": environment.role, "PeerRegion": other.stack.region}
    return {**environment.parameters, **roles}


def carry_out(
    steps: Sequence[Step], pair: Pair, deployer: Deployer, report: Callable[[str], None] = print
) -> int:
    """Carry out steps, and return their number. After a failure they can be carried out again."""
    for number, step in enumerate(steps, 1):
        report(f"{number}. {step}")
        needed = {name: _known(pair, name) for name in step.needs}
        deployer.deploy(step.environment, {**step.parameters, **needed})
    return len(steps)


def _known(pair: Pair, parameter: str) -> str:
    """Return what one region's stack has and the other one's needs."""
    primary, secondary = pair
    if parameter == _STREAM:
        stack = secondary.stack
        answer = stack.client("dynamodb").describe_table(TableName=f"{stack.name}-OutboxTable")
        return str(answer["Table"]["LatestStreamArn"])
    return primary.stack.outputs["CarRideEndpointId"]


def configured(
    clients: ClientFactory,
    path: Path = ROOT / "samconfig.toml",
    overrides: Mapping[str, str] | None = None,
) -> Pair:
    """Return the two environments of samconfig.toml; ``overrides`` win over its parameters."""
    config = tomllib.loads(path.read_text(encoding="utf-8"))
    given = dict(overrides or {})
    primary = _environment(config, "primary", path.name, clients, given)
    secondary = _environment(config, "secondary", path.name, clients, given)
    if primary.stack.region == secondary.stack.region:
        raise OperatorError(
            f"{path.name} has both environments in {primary.stack.region}: they have to be two "
            "regions"
        )
    if primary.stack.name != secondary.stack.name:
        raise OperatorError(
            f"{path.name} has two names for the stack: each region finds the other by the name"
        )
    return primary, secondary


def _environment(
    config: Mapping[str, Any],
    role: str,
    file: str,
    clients: ClientFactory,
    overrides: Mapping[str, str],
) -> Environment:
    """Return one environment of a file's configuration."""
    environment = config.get(role, {})
    settings = environment.get("global", {}).get("parameters", {})
    for name in ("stack_name", "region"):
        if name not in settings:
            raise OperatorError(f"{file} has no {name} in [{role}.global.parameters]: add it")
    stack = StackRef(settings["stack_name"], settings["region"], clients)
    parameters = dict[str, str]()
    for text in settings.get("parameter_overrides", []):
        name, value = assignment(text)
        parameters[name] = value
    return Environment(role, stack, {**parameters, **overrides})


def assignment(text: str) -> tuple[str, str]:
    """Read ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise OperatorError(f"{text!r} sets no parameter: write NAME=VALUE")
    return name, value
