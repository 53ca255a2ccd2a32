"""The stack in two regions of one engine, and how tests talk to it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, override

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import EndpointConnectionError
from botocore.httpsession import URLLib3Session

from carride.bus_entry import BusEntry
from local.bookings import book
from local.local_aws import LocalAws
from local.simulated_gateway import GatewayServer
from ops import fleet, regions
from ops.audit import CONSUMERS, audit
from ops.audit.ledger import Ledger
from ops.audit.reading import BUS, deliveries, lines, outbox_times, ride_items
from ops.regions import Deployer, Environment
from ops.stack import StackRef
from tests.functions.api.client import Api

HOME: Final = "us-west-2"
AWAY: Final = "us-east-2"
NAME: Final = "pair"

_CARS: Final = 12
_QUIET_SECONDS: Final = 120.0


def unreachable(service: str, region: str) -> Any:
    """Stand for the clients of a region that is out of reach."""
    raise EndpointConnectionError(endpoint_url=f"https://{service}.{region}.amazonaws.com")


class LocalDeployer(Deployer):
    """Deploys what was built with CloudFormation alone, which takes a tenth of the time."""

    def __init__(self, cloud: LocalAws) -> None:
        self._cloud = cloud

    @override
    def deploy(self, environment: Environment, parameters: Mapping[str, str]) -> None:
        stack = environment.stack
        self._cloud.deploy_fast(stack.name, None, region=stack.region, **parameters)


class Regions:
    """Both regions, with cars in their one fleet."""

    def __init__(self, cloud: LocalAws, gateway: GatewayServer) -> None:
        self.cloud = cloud
        self.client = cloud.client
        self.primary, self.secondary = (cloud.stack(NAME, region=region) for region in (HOME, AWAY))
        given = {"PaymentGatewayUrl": gateway.url}
        self.pair = (
            Environment("primary", self.primary, given),
            Environment("secondary", self.secondary, given),
        )
        steps = regions.deployment(*self.pair)
        regions.carry_out(steps, self.pair, LocalDeployer(cloud), report=lambda text: None)
        fleet.seed(self.primary.client("dynamodb"), self.primary.outputs["CarTableName"], _CARS)

    def publish(self, entries: Sequence[BusEntry]) -> None:
        """Publish through the global endpoint, signed for one region.

        To sign for all, botocore needs AWS's CRT.
        """
        bus, endpoint = (
            self.primary.outputs[name] for name in ("CarRideBusName", "CarRideEndpointId")
        )
        headers = {
            "Content-Type": "application/x-amz-json-1.1",
            "X-Amz-Target": "AWSEvents.PutEvents",
        }
        for entry in entries:
            put = entry.to_request(bus) | {"Time": entry.time.timestamp()}
            body = json.dumps({"EndpointId": endpoint, "Entries": [put]})
            request = AWSRequest("POST", self.cloud.endpoint_url, headers=headers, data=body)
            SigV4Auth(Credentials("test", "test"), "events", self.cloud.region).add_auth(request)
            answer = URLLib3Session().send(request.prepare())
            assert json.loads(answer.text).get("FailedEntryCount") == 0, answer.text

    def publish_to(self, region: str, entries: Sequence[BusEntry]) -> None:
        """Put entries on the bus of a region, whatever the endpoint would do."""
        bus = self.primary.outputs["CarRideBusName"]
        for entry in entries:
            answer = self.client("events", region).put_events(Entries=[entry.to_request(bus)])
            assert answer["FailedEntryCount"] == 0

    def book(self, stack: StackRef, rides: int) -> None:
        """Book rides over a region's HTTP API, which publishes them through its outbox."""
        list(book(self.cloud, stack, rides))

    def ask(self, stack: StackRef, method: str, body: object = None) -> tuple[int, str | None]:
        """Book or list rides over a region's HTTP API; return the status and its Retry-After."""
        path = "/carrides" if body else "/carrides?customer=customer_a"
        answer = Api(self.cloud, stack).send(method, path, body, key="asked")
        return answer.status, answer.headers.get("Retry-After")

    def settle(self) -> None:
        self.cloud.wait_until_quiet(timeout=_QUIET_SECONDS)

    def ledger(self) -> Ledger:
        return audit(self.primary, self.secondary, grace=timedelta()).ledger

    def deliveries(self, stack: StackRef) -> int:
        return sum(1 for consumer in CONSUMERS for _ in deliveries(stack, consumer))

    def published(self, entries: Sequence[BusEntry]) -> set[str]:
        table = self.secondary.outputs["OutboxTableName"]
        facts = {json.loads(entry.detail)["idempotencyid"] for entry in entries}
        return facts | set(outbox_times(self.secondary.client("dynamodb"), table))

    def applied(self) -> set[str]:
        """Return the ids of the events in the ride history of the secondary."""
        return {fact for ride in ride_items(self.secondary, CONSUMERS[0]) for fact in ride.facts}

    def logged(self, stack: StackRef) -> Iterator[dict[str, Any]]:
        return (json.loads(line["message"]) for line in lines(stack, BUS))

    def remove(self) -> None:
        for region in (AWAY, HOME):
            self.cloud.delete_stack(NAME, region=region)
