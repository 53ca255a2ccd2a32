"""The local AWS: start the engine, deploy to it, call it and wait for it.

    with LocalAws() as cloud:
        cloud.build()
        stack = cloud.deploy()
        cloud.client("lambda").invoke(FunctionName=stack.outputs["CarRideSimulatorFunctionName"])
        cloud.wait_until_quiet()

The engine is a process of its own in the environment ``.venv-engine``. It ends with the ``with``
block.
"""

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError, WaiterError

from engine.process import HOST, REGION, ROOT, Engine, EngineError
from local import artifacts
from ops.stack import StackRef as Stack

__all__ = ["FAULTS", "HOST", "REGION", "ROOT", "Asked", "EngineError", "LocalAws", "Stack"]

FAULTS: Final = (f"--preload={ROOT / 'local' / 'faults.py'}",)
"""The engine's options with which consumers meet the faults that events ask for."""

_OPERATION_BEGINS: Final = frozenset(
    {"CREATE_IN_PROGRESS", "UPDATE_IN_PROGRESS", "DELETE_IN_PROGRESS"}
)
_CAPABILITIES: Final = ["CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND"]
_POLL_SECONDS: Final = 0.02
_LONGEST_POLL_SECONDS: Final = 0.1


class Asked(NamedTuple):
    """A request of a role."""

    role: str
    """The role's name."""
    action: str
    """As in ``sqs:SendMessage``."""
    resource: str
    """Its ARN."""
    allowed: bool


def engine_client(endpoint_url: str, service: str, region: str) -> Any:
    """Return a boto3 client of an engine that waits for long invocations and retries nothing."""
    session: Any = boto3.session.Session()  # typed for literal names only
    return session.client(
        service,
        region_name=region,
        endpoint_url=endpoint_url,
        aws_access_key_id="test",
        aws_secret_access_key="test",  # noqa: S106 - the engine's own
        config=Config(
            read_timeout=120, retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}
        ),
    )


class LocalAws(Engine):
    """Run one engine, with options of ``python -m engine serve``, during the ``with`` block."""

    region: Final = REGION

    def __init__(self, *options: str, variables: Mapping[str, str] | None = None) -> None:
        # The transport that a deployed function chooses, without its way back: what fails here is
        # seen.
        given = {"IDEMPOTENCY_TRANSPORT": "lean", **(variables or {})}
        super().__init__(ROOT / ".venv-engine" / "bin" / "python", *options, variables=given)
        self._clients: dict[tuple[str, str], Any] = {}

    def stop(self) -> None:
        """End the engine and every function's process, and remove its folder."""
        for client in self._clients.values():
            client.close()
        super().stop()

    def client(self, service: str, region: str = REGION) -> Any:
        """Return a boto3 client of this engine, made once for each service and region."""
        key = (service, region)
        if key not in self._clients:
            self._clients[key] = engine_client(self.endpoint_url, *key)
        return self._clients[key]

    def reset(self) -> None:
        """Delete every resource, stack and event, and end the functions' processes."""
        self.request("/_ministack/reset", method="POST")

    def control(self, path: str, **body: Any) -> Any:
        """Call the engine's control interface: ``GET``, or ``POST`` if there is a body."""
        method = "GET"
        content = None
        if body:
            method = "POST"
            content = json.dumps(body).encode()
        return json.loads(self.request(f"/_engine/{path}", method, content))

    def in_flight(self) -> dict[str, int]:
        """Return the engine's unfinished work by kind."""
        counts: dict[str, int] = self.control("in-flight")
        return counts

    def asked(self) -> set[Asked]:
        """Return the requests of roles since the engine started, allowed or not."""
        return {Asked(*each) for each in self.control("asked")}

    def wait_until_quiet(
        self, timeout: float = 60.0, report: Callable[[str], object] = lambda _left: None
    ) -> None:
        """Wait until nothing happens by itself, or nothing was finished for ``timeout`` seconds."""
        fewest = math.inf
        deadline = 0.0
        pause = _POLL_SECONDS
        while True:
            counts = self.in_flight()
            left = sum(counts.values())
            if not left:
                return
            report(f"{left:,} in flight")
            if left < fewest:
                fewest = left
                deadline = time.monotonic() + timeout
            if time.monotonic() > deadline:
                raise EngineError(
                    f"the engine was still busy after {timeout:g} s ({_in_words(counts)}): "
                    f"see {self.log}"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_POLL_SECONDS)

    def build(self) -> None:
        """Run ``sam build``, unless nothing has changed since this machine's last build."""
        artifacts.build(self)

    built = staticmethod(artifacts.built)

    def deploy(self, stack_name: str = "carride", **parameters: str) -> Stack:
        """Deploy what was built with ``sam deploy``.

        The template's Stage and Architecture are set for this machine.
        """
        try:
            with artifacts.built() as build:
                template = str(build / "template.yaml")
                settings = str(ROOT / "samconfig.toml")  # SAM looks for it beside the template
                self.sam(
                    "deploy",
                    "--config-file",
                    settings,
                    "--config-env",
                    "local",
                    "--template-file",
                    template,
                    "--stack-name",
                    stack_name,
                    parameters=artifacts.PARAMETERS | parameters,
                    folder=ROOT,
                )
        except EngineError as error:
            raise self._failure("sam deploy", stack_name, error) from error
        return self.stack(stack_name)

    def deploy_fast(
        self,
        stack_name: str,
        template: Path | Mapping[str, Any] | None = None,
        *,
        region: str = REGION,
        **parameters: str,
    ) -> Stack:
        """Deploy by CloudFormation alone, for tests.

        ``template`` is a file, or a template without code; by default it is the last build.
        """
        stack = self.stack(stack_name, region=region)
        uploads = artifacts.Uploads(self.client("s3", region=region), region, self.endpoint_url)
        body = _packaged(template, uploads)
        given = dict[str, str]()
        for name, value in artifacts.PARAMETERS.items():
            if name in body.get("Parameters", {}):
                given[name] = value
        given |= parameters
        self._operate(
            "update_stack" if stack.describe() else "create_stack",
            stack_name,
            region,
            TemplateURL=uploads.template(json.dumps(body).encode()),
            Parameters=[
                {"ParameterKey": name, "ParameterValue": value} for name, value in given.items()
            ],
            Capabilities=_CAPABILITIES,
        )
        return stack

    def delete_stack(self, stack_name: str, *, region: str = REGION) -> None:
        """Delete a stack and wait until it is gone."""
        self._operate("delete_stack", stack_name, region)

    def stack(self, stack_name: str, *, region: str = REGION) -> Stack:
        """Return a deployed stack."""
        return Stack(stack_name, region, self.client)

    def _operate(self, operation: str, stack_name: str, region: str, **request: Any) -> None:
        """Call an operation of CloudFormation, such as ``create_stack``, and wait for its end."""
        cloudformation = self.client("cloudformation", region=region)
        try:
            getattr(cloudformation, operation)(StackName=stack_name, **request)
            waiter = cloudformation.get_waiter(f"stack_{operation.removesuffix('_stack')}_complete")
            waiter.wait(StackName=stack_name, WaiterConfig={"Delay": 0.05, "MaxAttempts": 2400})
        except (ClientError, WaiterError) as error:
            raise self._failure(operation, stack_name, error, region) from error

    def _failure(
        self, operation: str, stack_name: str, error: Exception, region: str = REGION
    ) -> EngineError:
        """Return an error that names the first resource that failed in the last operation."""
        cloudformation = self.client("cloudformation", region=region)
        why = str(error)
        try:
            # The newest comes first.
            events = cloudformation.describe_stack_events(StackName=stack_name)["StackEvents"]
        except ClientError:  # there is no such stack
            events = []
        for event in events:
            resource = event["LogicalResourceId"]
            status = event["ResourceStatus"]
            if resource == stack_name and status in _OPERATION_BEGINS:
                break  # what follows belongs to an earlier operation
            if status.endswith("_FAILED"):
                reason = event.get("ResourceStatusReason", "no reason")
                why = f"{resource} ({event['ResourceType']}): {reason}"
        return EngineError(f"{operation} of {stack_name} failed: {why}")


def _in_words(counts: Mapping[str, int]) -> str:
    kinds = [f"{count} {kind.replace('_', ' ')}" for kind, count in counts.items() if count]
    return ", ".join(kinds)


def _packaged(
    template: Path | Mapping[str, Any] | None, uploads: artifacts.Uploads
) -> dict[str, Any]:
    """Return a template, or that of the last build, whose code was uploaded."""
    if isinstance(template, Path):
        return uploads.package(template)
    if template is not None:
        return dict(template)
    with artifacts.built() as build:
        return uploads.package(build / "template.yaml")
