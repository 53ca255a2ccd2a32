"""Stacks in two regions, as far as tests of the operator's code look at them."""

from datetime import UTC, datetime
from typing import Any, Final

import boto3
from botocore.exceptions import EndpointConnectionError

from ops.fence import Fence, parameter
from ops.stack import StackRef

HOME: Final = "us-west-2"
AWAY: Final = "us-east-2"
NOW: Final = datetime(2026, 11, 21, 12, tzinfo=UTC)
FENCE: Final = Fence(NOW, (), (), (), {})


class World:
    """Two regions: their parameters, replays and fences, and which of them can be reached."""

    def __init__(self, *, roles: tuple[str, str] = ("primary", "secondary")) -> None:
        self.roles = dict(zip((HOME, AWAY), roles, strict=True))
        self.parameters: dict[str, str] = {}
        self.replays: dict[str, list[dict[str, str]]] = {HOME: [], AWAY: []}
        self.fenced: set[str] = set()
        self.unreachable: set[str] = set()

    def site(self, region: str) -> Site:
        """Return the stack of a region."""
        return Site("carride", region, self.client)

    def client(self, service: str, region: str) -> Any:
        """Return a service of a region."""
        if region in self.unreachable:
            raise EndpointConnectionError(endpoint_url=f"https://{service}.{region}.amazonaws.com")
        if service not in SERVICES:
            return boto3.session.Session().client(service, region_name=region)  # type: ignore[call-overload]
        return SERVICES[service](self, region)


class CloudFormation:
    """Knows parameters and outputs of the stacks."""

    def __init__(self, world: World, region: str) -> None:
        peer = AWAY if region == HOME else HOME
        outputs = {
            "Role": world.roles[region],
            "PeerRegion": peer,
            "CarRideArchiveArn": f"archive:{region}",
            "IdempotencyTableName": "carride-IdempotencyTable",
            "RideHistoryDlqUrl": "https://queue",
        }
        self._parameters = [{"ParameterKey": key, "ParameterValue": value} for key, value in world.parameters.items()]
        self._outputs = [{"OutputKey": key, "OutputValue": value} for key, value in outputs.items()]

    def describe_stacks(self, **request: Any) -> Any:
        """Return the one stack."""
        return {"Stacks": [{"Parameters": self._parameters, "Outputs": self._outputs}]}


class Events:
    """Knows the replays."""

    def __init__(self, world: World, region: str) -> None:
        self._replays = world.replays[region]

    def list_replays(self, **request: Any) -> Any:
        """Return them one a page."""
        begin = int(request.get("NextToken", 0))
        more = {"NextToken": str(begin + 1)} if begin + 1 < len(self._replays) else {}
        return {"Replays": self._replays[begin : begin + 1], **more}


class Ssm:
    """Knows the fences."""

    class exceptions:  # noqa: N801 - as boto3 calls it
        """The errors of the service."""

        class ParameterNotFound(Exception):  # noqa: N818 - as boto3 calls it
            """There is none."""

    def __init__(self, world: World, region: str) -> None:
        self._site, self._fenced = world.site(region), region in world.fenced

    def get_parameter(self, **request: Any) -> Any:
        """Return the fence of the region."""
        assert request["Name"] == parameter(self._site)
        if not self._fenced:
            raise self.exceptions.ParameterNotFound
        return {"Parameter": {"Value": FENCE.to_json()}}


SERVICES: Final[dict[str, Any]] = {"cloudformation": CloudFormation, "events": Events, "ssm": Ssm}
