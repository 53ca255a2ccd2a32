"""A stack in one region, as the operator's commands reach it."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final, NamedTuple

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

type Clients = Callable[[str, str], Any]
"""Makes a client, or returns the one that it has made: ``clients(service, region)``."""

_CONFIG: Final = Config(connect_timeout=5, read_timeout=20, retries={"mode": "standard", "total_max_attempts": 3})


class OperatorError(Exception):
    """What was asked for cannot be done; the message says why, and what to do."""


class Resource(NamedTuple):
    """A resource of a stack."""

    type: str
    name: str
    """What its service calls it."""


class Site:
    """A stack in one region.

    Args:
        stack: the stack's name.
        region: where it is.
        clients: makes clients.
    """

    def __init__(self, stack: str, region: str, clients: Clients) -> None:
        self.stack = stack
        self.region = region
        self._clients = clients

    def client(self, service: str) -> Any:
        """Return a client for the region."""
        return self._clients(service, self.region)

    @cached_property
    def _described(self) -> Mapping[str, Any]:
        try:
            (stack,) = self.client("cloudformation").describe_stacks(StackName=self.stack)["Stacks"]
        except ClientError as error:
            if error.response["Error"]["Code"] != "ValidationError":
                raise
            raise OperatorError(f"there is no stack {self.stack} in {self.region}: give --stack and --region") from None
        return dict(stack)

    @cached_property
    def outputs(self) -> Mapping[str, str]:
        """The stack's outputs by name.

        Raises:
            OperatorError: there is no such stack.
        """
        return {output["OutputKey"]: output["OutputValue"] for output in self._described.get("Outputs", [])}

    @cached_property
    def parameters(self) -> Mapping[str, str]:
        """The parameters with which the stack was deployed, by name.

        Raises:
            OperatorError: there is no such stack.
        """
        return {each["ParameterKey"]: each["ParameterValue"] for each in self._described.get("Parameters", [])}

    @cached_property
    def resources(self) -> Mapping[str, Resource]:
        """The stack's resources by logical id."""
        pages = self.client("cloudformation").get_paginator("list_stack_resources").paginate(StackName=self.stack)
        return {
            # A rule of a custom bus is called `bus|rule`.
            each["LogicalResourceId"]: Resource(each["ResourceType"], each["PhysicalResourceId"].rsplit("|", 1)[-1])
            for page in pages
            for each in page["StackResourceSummaries"]
        }

    def named(self, resource_type: str) -> dict[str, str]:
        """Return the names of the stack's resources of a type, by logical id."""
        return {logical: each.name for logical, each in self.resources.items() if each.type == resource_type}

    @property
    def role(self) -> str:
        """``standalone``, ``primary`` or ``secondary``."""
        return self.outputs["Role"]

    def peer(self) -> "Site | None":
        """Return the stack in the other region, where there is one."""
        return None if self.role == "standalone" else Site(self.stack, self.outputs["PeerRegion"], self._clients)


def clients() -> Clients:
    """Return what makes clients as the AWS CLI is configured, each once, with timeouts that a person can wait for."""
    made: dict[tuple[str, str], Any] = {}

    def client(service: str, region: str) -> Any:
        if (service, region) not in made:
            session: Any = boto3.session.Session()  # typed for literal names only
            made[service, region] = session.client(service, region_name=region, config=_CONFIG)
        return made[service, region]

    return client
