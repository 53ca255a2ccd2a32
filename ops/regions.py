"""The two regions: which they are, and how the same stack comes into both and out of them again.

Each needs something that only the other one gives it, so that it takes several steps: the secondary needs the primary's
tables, of which it has replicas; the primary's global endpoint needs both buses; the secondary's producers need the
endpoint's id.
"""

import argparse
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, Protocol, override

import boto3
from botocore.exceptions import BotoCoreError, ClientError, WaiterError

ROOT: Final = Path(__file__).resolve().parent.parent
OUTBOX_TABLE: Final = "OutboxTable"

DESCRIPTION: Final = """\
Deploy the stack into two regions, as the environments [primary] and [secondary] of
samconfig.toml say, or remove it from both. Both deploy what was built last: run
`sam build` first, with the architecture of the environments.

The first time it takes four steps: the primary with its tables and bus, the secondary
with its bus, the primary's global endpoint, the secondary's producers on the endpoint.
Later it takes two. It can be run again at any time, also after it was interrupted."""

_POLL_SECONDS: Final = 5


class RegionsError(Exception):
    """What was asked for cannot be done; the message says why, and what to do."""


class Place(NamedTuple):
    """One of the two regions, and what is deployed there."""

    role: str
    """``primary`` or ``secondary``, which is also the name of its environment in samconfig.toml."""
    region: str
    stack: str
    parameters: Mapping[str, str]
    """What samconfig.toml gives to the template."""


class Pair(NamedTuple):
    """The two regions."""

    primary: Place
    secondary: Place


class Deployed(NamedTuple):
    """A stack that exists."""

    parameters: Mapping[str, str]
    outputs: Mapping[str, str]


class Deployer(Protocol):
    """Looks at stacks and changes them; each method may raise RegionsError."""

    def describe(self, place: Place) -> Deployed | None:
        """Return the stack of a place, or None where there is none."""

    def deploy(self, place: Place, parameters: Mapping[str, str]) -> None:
        """Deploy the template that was built last, with all parameters that are not left at their defaults."""

    def delete(self, place: Place) -> None:
        """Delete a stack."""

    def stream(self, region: str, table: str) -> str:
        """Return the ARN of a table's stream."""

    def endpoint(self, place: Place) -> str:
        """Return the id of the global endpoint that a primary has."""


type Step = Callable[[Place, str], None]
"""Called before each step with the place and what is done there."""


# ── The order ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def deploy(pair: Pair, deployer: Deployer, step: Step) -> None:
    """Deploy both regions.

    Raises:
        RegionsError: a stack is in the way, or a step failed; run it again when it is mended.
    """
    primary, secondary = pair.primary, pair.secondary
    there = deployer.describe(secondary)
    if there is not None and there.parameters.get("Role") != secondary.role:
        raise RegionsError(
            f"the stack {secondary.stack} in {secondary.region} is no secondary, and has tables of its own: "
            "delete it, or choose another region or name in samconfig.toml"
        )
    complete = there is not None and deployer.describe(primary) is not None
    what = "functions, tables and their replicas, bus" + (", global endpoint" if complete else "")
    step(primary, what)
    deployer.deploy(primary, {**_given(pair, primary), "GlobalEndpoint": "present" if complete else "absent"})

    known = {"OutboxStreamArn": deployer.stream(secondary.region, f"{secondary.stack}-{OUTBOX_TABLE}")}
    if complete:
        known["GlobalEndpointId"] = deployer.endpoint(primary)
    step(secondary, "functions, bus")
    deployer.deploy(secondary, _given(pair, secondary) | known)
    if not complete:
        step(primary, "global endpoint, over the buses of both regions")
        deployer.deploy(primary, {**_given(pair, primary), "GlobalEndpoint": "present"})
        step(secondary, "producers use the endpoint")
        deployer.deploy(secondary, _given(pair, secondary) | known | {"GlobalEndpointId": deployer.endpoint(primary)})


def delete(pair: Pair, deployer: Deployer, step: Step) -> None:
    """Remove the stacks of both regions, or what is left of them.

    Raises:
        RegionsError: a step failed; run it again when it is mended.
    """
    primary = deployer.describe(pair.primary)
    if primary is not None and primary.parameters.get("GlobalEndpoint") == "present":
        step(pair.primary, "without its global endpoint")
        given = {name: value for name, value in primary.parameters.items() if value}  # and so the stage stays
        deployer.deploy(pair.primary, {**given, "GlobalEndpoint": "absent"})
    if deployer.describe(pair.secondary) is not None:
        step(pair.secondary, "delete the stack")
        deployer.delete(pair.secondary)
    if primary is not None:
        step(pair.primary, "delete the stack, with tables and replicas")
        deployer.delete(pair.primary)


def _given(pair: Pair, place: Place) -> dict[str, str]:
    peer = pair.secondary if place is pair.primary else pair.primary
    return {**place.parameters, "Role": place.role, "PeerRegion": peer.region}


# ── samconfig.toml ────────────────────────────────────────────────────────────────────────────────────────────────────


def configured(path: Path = ROOT / "samconfig.toml", overrides: Mapping[str, str] | None = None) -> Pair:
    """Return the two regions that samconfig.toml names.

    Args:
        path: the file.
        overrides: parameters of the template, for both regions, that go before the file's.

    Raises:
        RegionsError: the file does not say enough.
    """
    config = tomllib.loads(path.read_text(encoding="utf-8"))
    places = []
    for role in ("primary", "secondary"):
        settings = config.get(role, {}).get("global", {}).get("parameters", {})
        try:
            region, stack = settings["region"], settings["stack_name"]
        except KeyError as error:
            raise RegionsError(f"{path.name} has no {error.args[0]} in [{role}.global.parameters]") from None
        given = dict(_assignment(text) for text in settings.get("parameter_overrides", []))
        places.append(Place(role, region, stack, given | dict(overrides or {})))
    pair = Pair(*places)
    if pair.primary.region == pair.secondary.region:
        raise RegionsError(f"{path.name} has both environments in {pair.primary.region}: they have to be two regions")
    if pair.primary.stack != pair.secondary.stack:
        raise RegionsError(f"{path.name} has two names for the stack: it is by its name that each finds the other")
    return pair


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise RegionsError(f"{text!r} sets no parameter: write NAME=VALUE")
    return name, value


# ── On an account, or on the local engine where AWS_ENDPOINT_URL says so ──────────────────────────────────────────────


class Aws(Deployer):
    """Deploys with the SAM CLI and deletes with CloudFormation.

    Args:
        ask: whether the SAM CLI shows what it will change, and asks.
    """

    def __init__(self, *, ask: bool) -> None:
        self._ask = ask

    @override
    def describe(self, place: Place) -> Deployed | None:
        try:
            (stack,) = self._cloudformation(place).describe_stacks(StackName=place.stack)["Stacks"]
        except ClientError as error:
            # CloudFormation's way to say that there is no such stack.
            if error.response["Error"]["Code"] == "ValidationError":
                return None
            raise
        if stack["StackStatus"] == "REVIEW_IN_PROGRESS":  # a change set that nobody has executed
            return None
        return Deployed(
            {each["ParameterKey"]: each["ParameterValue"] for each in stack.get("Parameters", [])},
            {each["OutputKey"]: each["OutputValue"] for each in stack.get("Outputs", [])},
        )

    @override
    def deploy(self, place: Place, parameters: Mapping[str, str]) -> None:
        command = ["sam", "deploy", "--config-env", place.role, "--region", place.region, "--stack-name", place.stack]
        command += ["--confirm-changeset" if self._ask else "--no-confirm-changeset", "--parameter-overrides"]
        command += [f"{name}={value}" for name, value in parameters.items()]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            raise RegionsError(f"sam deploy failed for the {place.role} in {place.region}")

    @override
    def delete(self, place: Place) -> None:
        self._cloudformation(place).delete_stack(StackName=place.stack)
        self._wait(place, "stack_delete_complete")

    @override
    def stream(self, region: str, table: str) -> str:
        client: Any = boto3.client("dynamodb", region_name=region)
        arn: str = client.describe_table(TableName=table)["Table"]["LatestStreamArn"]
        return arn

    @override
    def endpoint(self, place: Place) -> str:
        return self._there(place).outputs["CarRideEndpointId"]

    def _there(self, place: Place) -> Deployed:
        deployed = Aws.describe(self, place)
        if deployed is None:
            raise RegionsError(f"the stack {place.stack} in {place.region} has gone")
        return deployed

    def _wait(self, place: Place, waiter: str) -> None:
        client = self._cloudformation(place)
        try:
            client.get_waiter(waiter).wait(StackName=place.stack, WaiterConfig={"Delay": _POLL_SECONDS})
        except WaiterError as error:
            events = client.describe_stack_events(StackName=place.stack)["StackEvents"]
            failed = [event for event in events if event["ResourceStatus"].endswith("_FAILED")]
            reason = f"{failed[-1]['LogicalResourceId']}: {failed[-1].get('ResourceStatusReason')}" if failed else error
            raise RegionsError(f"the stack {place.stack} in {place.region} could not be changed: {reason}") from error

    @staticmethod
    def _cloudformation(place: Place) -> Any:
        return boto3.client("cloudformation", region_name=place.region)


# ── The command ───────────────────────────────────────────────────────────────────────────────────────────────────────


class _Showing(Aws):
    """Shows every step, and takes none."""

    @override
    def deploy(self, place: Place, parameters: Mapping[str, str]) -> None:
        print(f"     sam deploy --config-env {place.role}", *(f"{name}={value}" for name, value in parameters.items()))

    @override
    def delete(self, place: Place) -> None:
        print(f"     delete {place.stack}")

    @override
    def stream(self, region: str, table: str) -> str:
        return f"(the stream of {table} in {region})"

    @override
    def endpoint(self, place: Place) -> str:
        return f"(the endpoint's id in {place.region})"


def _numbered() -> Step:
    numbers: Iterator[int] = iter(range(1, 100))

    def step(place: Place, what: str) -> None:
        print(f"{next(numbers)}. {place.role} in {place.region}: {what}", flush=True)

    return step


def main(arguments: Sequence[str] | None = None) -> None:
    """Deploy both regions, or delete them."""
    parser = argparse.ArgumentParser(
        prog="python -m ops.regions", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["deploy", "delete"])
    parser.add_argument("--dry-run", action="store_true", help="show the steps that would be taken, and take none")
    parser.add_argument("--yes", action="store_true", help="do not ask before anything is changed")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="overrides",
        help="a parameter of the template, for both regions; it goes before what samconfig.toml says",
    )
    options = parser.parse_args(arguments)
    deployer = (_Showing if options.dry_run else Aws)(ask=not options.yes)
    try:
        pair = configured(overrides=dict(_assignment(text) for text in options.overrides))
        if options.action == "deploy":
            deploy(pair, deployer, _numbered())
            return
        if not options.dry_run and not options.yes:
            _confirm(pair)
        delete(pair, deployer, _numbered())
    except RegionsError as error:
        _leave(str(error))
    except (BotoCoreError, ClientError) as error:
        _leave(f"AWS refused or could not be reached: {error}")
    except FileNotFoundError as error:
        _leave(f"{error.filename} is missing: run it by `make deploy-regions`, which installs it")
    except KeyboardInterrupt:
        _leave("interrupted; run it again to go on")


def _confirm(pair: Pair) -> None:
    name = pair.primary.stack
    print(f"This deletes the stack {name} in {pair.primary.region} and {pair.secondary.region}, with all of its data.")
    if input("Type the stack's name to go on: ") != name:
        raise RegionsError("nothing was deleted")


def _leave(message: str) -> NoReturn:
    sys.exit(f"error: {message}")


if __name__ == "__main__":
    main()
