"""The stack in two regions of one engine, and how tests talk to it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from carride.entry import BusEntry
from local.bookings import book
from local.local_aws import Laptop, Stack
from local.simulated_gateway import GatewayServer
from ops import fleet, regions
from ops.audit import CONSUMERS, audit
from ops.audit.ledger import Ledger
from ops.audit.reading import deliveries, outbox, ride_items
from ops.regions import Deployed, Pair, Place
from ops.site import Site
from tests.engine.support import put_through_endpoint

HOME: Final = "us-west-2"
AWAY: Final = "us-east-2"
NAME: Final = "pair"

_CARS: Final = 12
_QUIET_SECONDS: Final = 120.0


class OnLaptop:
    """Deploys what was built with CloudFormation alone, which takes a tenth of the time."""

    def __init__(self, laptop: Laptop) -> None:
        self._laptop = laptop
        self.taken: list[str] = []

    def describe(self, place: Place) -> Deployed | None:
        """Return the stack of a place, or None where there is none."""
        client = self._laptop.client("cloudformation", region=place.region)
        stacks = [each for each in client.describe_stacks()["Stacks"] if each["StackName"] == place.stack]
        stacks = [each for each in stacks if each["StackStatus"] != "DELETE_COMPLETE"]
        return next(
            (
                Deployed(
                    {each["ParameterKey"]: each["ParameterValue"] for each in stack["Parameters"]},
                    {each["OutputKey"]: each["OutputValue"] for each in stack["Outputs"]},
                )
                for stack in stacks
            ),
            None,
        )

    def deploy(self, place: Place, parameters: Mapping[str, str]) -> None:
        """Deploy the template."""
        self._laptop.deploy_fast(place.stack, None, region=place.region, **parameters)

    def delete(self, place: Place) -> None:
        """Delete a stack."""
        self._laptop.delete_stack(place.stack, region=place.region)

    def stream(self, region: str, table: str) -> str:
        """Return the ARN of a table's stream."""
        described = self._laptop.client("dynamodb", region=region).describe_table(TableName=table)
        arn: str = described["Table"]["LatestStreamArn"]
        return arn

    def endpoint(self, place: Place) -> str:
        """Return the id of the primary's endpoint."""
        deployed = self.describe(place)
        assert deployed is not None
        return deployed.outputs["CarRideEndpointId"]

    def step(self, place: Place, what: str) -> None:
        """Remember a step."""
        self.taken.append(f"{place.role}: {what}")


class Regions:
    """Both regions, with cars in their one fleet."""

    def __init__(self, laptop: Laptop, gateway: GatewayServer) -> None:
        self.laptop = laptop
        given = {"PaymentGatewayUrl": gateway.url}
        self.pair = Pair(Place("primary", HOME, NAME, given), Place("secondary", AWAY, NAME, given))
        self.deployer = OnLaptop(laptop)
        regions.deploy(self.pair, self.deployer, self.deployer.step)
        self.primary, self.secondary = (Site(NAME, region, self.client) for region in (HOME, AWAY))
        fleet.seed(self.primary.client("dynamodb"), self.primary.outputs["CarTableName"], _CARS)

    def client(self, service: str, region: str) -> Any:
        """Return a client of the engine."""
        return self.laptop.client(service, region=region)

    def stack(self, region: str) -> Stack:
        """Describe the stack of a region."""
        return self.laptop.stack(NAME, region=region)

    def publish(self, entries: Sequence[BusEntry]) -> None:
        """Publish through the global endpoint, as a producer does."""
        for entry in entries:
            request = entry.to_request(self.primary.outputs["CarRideBusName"])
            put_through_endpoint(
                self.laptop,
                self.primary.outputs["CarRideEndpointId"],
                {**request, "Time": entry.time.timestamp()},
            )

    def publish_to(self, region: str, entries: Sequence[BusEntry]) -> None:
        """Put entries on the bus of a region, whatever the endpoint would do."""
        bus = self.primary.outputs["CarRideBusName"]
        for entry in entries:
            answer = self.client("events", region).put_events(Entries=[entry.to_request(bus)])
            assert answer["FailedEntryCount"] == 0

    def book(self, region: str, rides: int) -> None:
        """Book rides over the HTTP API of a region, which tells them by its outbox."""
        for _ in book(self.laptop, self.stack(region), rides):
            pass

    def settle(self) -> None:
        """Wait until nothing more will happen by itself."""
        self.laptop.wait_until_quiet(timeout=_QUIET_SECONDS)

    def ledger(self) -> Ledger:
        """Return the ledger of both regions."""
        return audit(self.primary, self.secondary, grace=timedelta()).ledger

    def deliveries(self, region: str) -> int:
        """Return how many deliveries the consumers of a region have reported on."""
        site = Site(NAME, region, self.client)
        return sum(1 for consumer in CONSUMERS for _ in deliveries(site, consumer))

    def published(self, entries: Sequence[BusEntry]) -> set[str]:
        """Return the facts of entries, and those that were committed to be told."""
        table = self.secondary.outputs["OutboxTableName"]
        facts = {json.loads(entry.detail)["idempotencyid"] for entry in entries}
        return facts | set(outbox(self.secondary.client("dynamodb"), table))

    def applied(self) -> set[str]:
        """Return the facts that the ride history of the secondary shows."""
        return {fact for ride in ride_items(self.secondary, CONSUMERS[0]) for fact in ride.facts}

    def logged(self, site: Site) -> Iterator[dict[str, Any]]:
        """Yield every event that a region's bus has had."""
        pages = (
            site.client("logs")
            .get_paginator("filter_log_events")
            .paginate(logGroupName=site.outputs["CarRideEventsLogGroupName"])
        )
        return (json.loads(line["message"]) for page in pages for line in page["events"])

    def remove(self) -> None:
        """Delete both stacks."""
        regions.delete(self.pair, self.deployer, self.deployer.step)
