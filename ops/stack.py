"""A reference to a deployed stack: its name, its region, and the clients that reach it."""

import copy
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache, cached_property
from typing import Any, Final, NamedTuple

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

from carride_idempotency import StoreError

type ClientFactory = Callable[[str, str], Any]
"""Returns a boto3 client for ``(service, region)``."""

_CONFIG: Final = Config(
    connect_timeout=5, read_timeout=20, retries={"mode": "standard", "total_max_attempts": 3}
)


class OperatorError(Exception):
    """A request that cannot be carried out. The message gives the reason and what to do."""


LOCAL_STACK: Final = "`make demo ARGS=--keep` runs a local stack, which needs no account"
"""What to do without AWS, for error messages."""

FAILURES: Final = (OperatorError, BotoCoreError, ClientError, StoreError)
"""What asking a stack may raise."""


def reason(error: Exception) -> str:
    """Return why one of `FAILURES` was raised, in a sentence."""
    if isinstance(error, ClientError):
        told = error.response["Error"]
        message = told.get("Message", error)
        return f"AWS refused {error.operation_name}: {told['Code']}: {message}"
    if isinstance(error, NoCredentialsError):
        return (
            "there are no credentials for AWS: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and "
            f"AWS_SECRET_ACCESS_KEY; {LOCAL_STACK}"
        )
    if isinstance(error, BotoCoreError):
        return f"AWS could not be reached: {error}; {LOCAL_STACK}"
    return str(error)


class Kept(NamedTuple):
    """A local stack that is running, as `make demo ARGS=--keep` leaves one."""

    name: str
    region: str
    endpoint: str
    """URL of the local engine."""
    gateway: str
    """URL of the simulated payment gateway."""
    desk: str
    """URL of the page."""
    pid: int
    """Process that runs them."""
    container_endpoint: str = ""
    """URL of the engine for containers; empty without Docker and podman."""
    container_gateway: str = ""
    """The same of the gateway."""


class StackRef:
    """A stack in one region.

    ``local`` describes the local engine that it runs on; it is None on AWS.
    """

    def __init__(
        self, name: str, region: str, clients: ClientFactory, local: Kept | None = None
    ) -> None:
        self.name = name
        self.region = region
        self.local = local
        self.glances = False
        """Whether its dead letters are read as for a page: `ops.audit.queues.Letters`."""
        self._clients = clients

    def glancing(self) -> "StackRef":
        """Return the same stack, whose dead letters are read as for a page."""
        same = copy.copy(self)
        same.glances = True
        return same

    def client(self, service: str) -> Any:
        """Return a client for the stack's region."""
        return self._clients(service, self.region)

    def describe(self) -> Mapping[str, Any] | None:
        """Return CloudFormation's description of the stack, or None if there is no such stack."""
        try:
            (stack,) = self.client("cloudformation").describe_stacks(StackName=self.name)["Stacks"]
        except ClientError as error:
            # CloudFormation's code for an unknown stack.
            if error.response["Error"]["Code"] != "ValidationError":
                raise
            return None
        # A stack in review is a change set that nobody has executed.
        return None if stack["StackStatus"] in {"REVIEW_IN_PROGRESS", "DELETE_COMPLETE"} else stack

    def parameters(self) -> dict[str, str] | None:
        """Return the parameters of the deployed stack, or None if there is no such stack."""
        if (described := self.describe()) is None:
            return None
        return {
            each["ParameterKey"]: each["ParameterValue"] for each in described.get("Parameters", [])
        }

    @cached_property
    def outputs(self) -> Mapping[str, str]:
        """The stack's outputs by name."""
        stack = self.describe()
        if stack is None:
            raise OperatorError(
                f"there is no stack {self.name} in {self.region}: give --stack and --region; "
                f"{LOCAL_STACK}"
            )
        return {output["OutputKey"]: output["OutputValue"] for output in stack.get("Outputs", [])}

    @cached_property
    def resources(self) -> Mapping[str, str]:
        """The names of the stack's resources by logical id."""
        return {logical: name for found in self.by_type.values() for logical, name in found.items()}

    @cached_property
    def by_type(self) -> Mapping[str, Mapping[str, str]]:
        """The same, by type and logical id."""
        found: dict[str, dict[str, str]] = {}
        pages = self.client("cloudformation").get_paginator("list_stack_resources")
        for page in pages.paginate(StackName=self.name):
            for each in page["StackResourceSummaries"]:
                # The physical id of a rule on a custom bus is `bus|rule`.
                name = each["PhysicalResourceId"].rsplit("|", 1)[-1]
                found.setdefault(each["ResourceType"], {})[each["LogicalResourceId"]] = name
        return found

    def named(self, resource_type: str) -> Mapping[str, str]:
        """Return the names of the stack's resources of one type, by logical id."""
        return self.by_type.get(resource_type, {})

    def environments(self) -> dict[str, dict[str, str]]:
        """Return the environment variables of each function, by its logical id."""
        client = self.client("lambda")
        found = {}
        for logical_id, name in self.named("AWS::Lambda::Function").items():
            function = client.get_function_configuration(FunctionName=name)
            found[logical_id] = function.get("Environment", {}).get("Variables", {})
        return found

    def invoke(self, output: str, payload: Mapping[str, Any]) -> Any:
        """Invoke the function that an output names, and return its answer."""
        answer = self.client("lambda").invoke(
            FunctionName=self.outputs[output], Payload=json.dumps(payload)
        )
        content = json.load(answer["Payload"])
        if "FunctionError" in answer:
            raise OperatorError(
                f"{self.outputs[output]} failed: {content.get('errorMessage', content)}"
            )
        return content

    @property
    def role(self) -> str:
        """``standalone``, ``primary`` or ``secondary``."""
        return self.outputs["Role"]

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """Whose the credentials for this stack are: ``Account`` and ``Arn``."""
        found: Mapping[str, Any] = self.client("sts").get_caller_identity()
        return found

    def peer(self) -> "StackRef | None":
        """Return the stack in the other region, or None for a standalone stack."""
        if self.role == "standalone":
            return None
        return StackRef(self.name, self.outputs["PeerRegion"], self._clients)

    def nested(self, name: str) -> "StackRef":
        """Return another stack of this region, such as a nested one, by its name or ARN."""
        return StackRef(name, self.region, self._clients)

    def regions(self) -> tuple["StackRef", ...]:
        """Return the stack in each of its regions, this one first."""
        peer = self.peer()
        return (self,) if peer is None else (self, peer)


def account_of(stacks: Iterable[StackRef]) -> str | None:
    """Return the account that the credentials for these stacks are of.

    Whichever of their regions answers says it; None if none does.
    """
    for stack in stacks:
        with suppress(*FAILURES):
            return str(stack.identity["Account"])
    return None


def aws_clients(**settings: Any) -> ClientFactory:
    """Return a factory that makes each client once, with AWS's settings or these of boto3."""

    @cache
    def client(service: str, region: str) -> Any:
        session: Any = boto3.session.Session()  # typed for literal names only
        return session.client(service, region_name=region, config=_CONFIG, **settings)

    return client
