"""An engine as its callers use it: started, asked with boto3, given stacks, and waited for.

    with LocalCloud(python) as cloud:
        cloud.apply("orders", {"Resources": {"Queue": {"Type": "AWS::SQS::Queue"}}})
        cloud.client("sqs").list_queues()
        cloud.wait_until_quiet()

The engine is a process of its own. It ends with the ``with`` block.
"""

import json
import math
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError, WaiterError

from engine.process import REGION, ROOT, Engine, EngineError
from engine.uploads import Uploads

PYTHON: Final = ROOT / ".venv-engine" / "bin" / "python"
"""The interpreter of the engine's environment."""

_OPERATION_BEGINS: Final = frozenset(
    {"CREATE_IN_PROGRESS", "UPDATE_IN_PROGRESS", "DELETE_IN_PROGRESS"}
)
_CAPABILITIES: Final = ["CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND"]
_UNKNOWN_STACK: Final = "ValidationError"
"""CloudFormation's code for it."""
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


class Stack:
    """A deployed stack, as it is when it is first looked at."""

    def __init__(self, name: str, region: str, cloudformation: Any) -> None:
        self.name = name
        self.region = region
        self._cloudformation = cloudformation

    @cached_property
    def resources(self) -> dict[str, str]:
        """The physical id of each resource, by its logical id."""
        pages = self._cloudformation.get_paginator("list_stack_resources")
        return {
            each["LogicalResourceId"]: each["PhysicalResourceId"]
            for page in pages.paginate(StackName=self.name)
            for each in page["StackResourceSummaries"]
        }

    @cached_property
    def outputs(self) -> dict[str, str]:
        """The value of each output, by its key."""
        (described,) = self._cloudformation.describe_stacks(StackName=self.name)["Stacks"]
        return {each["OutputKey"]: each["OutputValue"] for each in described.get("Outputs", [])}


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


class LocalCloud(Engine):
    """Run one engine, with options of ``python -m engine serve``, during the ``with`` block.

    Args:
        *options: Options of ``python -m engine serve``.
        variables: Environment variables of every function, beside the template's.
    """

    region: Final = REGION

    def __init__(self, *options: str, variables: Mapping[str, str] | None = None) -> None:
        super().__init__(PYTHON, *options, variables=variables)
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

    def packaged(self, template: Path, *, region: str = REGION) -> dict[str, Any]:
        """Upload a template's code and nested templates, and return it with their addresses."""
        return self._uploads(region).package(template)

    def apply(
        self,
        stack_name: str,
        template: Path | Mapping[str, Any],
        *,
        region: str = REGION,
        parameters: Mapping[str, str] | None = None,
    ) -> Stack:
        """Create a stack, or update it, by CloudFormation alone; return it when that has ended.

        Args:
            stack_name: The stack's name.
            template: A file, or a template without code.
            region: The stack's region.
            parameters: Values of the template's parameters.

        Raises:
            EngineError: The operation failed; the message names the first resource that did.
        """
        if isinstance(template, Path):
            template = self.packaged(template, region=region)
        given = [
            {"ParameterKey": name, "ParameterValue": value}
            for name, value in (parameters or {}).items()
        ]
        self._operate(
            "update_stack" if self._is_there(stack_name, region) else "create_stack",
            stack_name,
            region,
            TemplateURL=self._uploads(region).template(json.dumps(template).encode()),
            Parameters=given,
            Capabilities=_CAPABILITIES,
        )
        return Stack(stack_name, region, self.client("cloudformation", region=region))

    def delete_stack(self, stack_name: str, *, region: str = REGION) -> None:
        """Delete a stack and wait until it is gone."""
        self._operate("delete_stack", stack_name, region)

    def _uploads(self, region: str) -> Uploads:
        return Uploads(self.client("s3", region=region), region, self.endpoint_url)

    def _is_there(self, stack_name: str, region: str) -> bool:
        cloudformation = self.client("cloudformation", region=region)
        try:
            (stack,) = cloudformation.describe_stacks(StackName=stack_name)["Stacks"]
        except ClientError as error:
            if error.response["Error"]["Code"] != _UNKNOWN_STACK:
                raise
            return False
        return bool(stack["StackStatus"] != "DELETE_COMPLETE")

    def _operate(self, operation: str, stack_name: str, region: str, **request: Any) -> None:
        """Call an operation of CloudFormation, such as ``create_stack``, and wait for its end."""
        cloudformation = self.client("cloudformation", region=region)
        try:
            getattr(cloudformation, operation)(StackName=stack_name, **request)
            waiter = cloudformation.get_waiter(f"stack_{operation.removesuffix('_stack')}_complete")
            waiter.wait(StackName=stack_name, WaiterConfig={"Delay": 0.05, "MaxAttempts": 2400})
        except (ClientError, WaiterError) as error:
            raise self.failure(operation, stack_name, error, region) from error

    def failure(
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
