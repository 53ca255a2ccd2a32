"""Two regions: an endpoint routes and copies events, replicas of tables can lag, deliveries can be late."""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from local.local_aws import LocalAws
from tests.engine.support import (
    attribute,
    bus,
    from_rule,
    needed,
    outage,
    put_through_endpoint,
    queue_policy,
    rule,
    template,
)
from tests.engine.test_resources import table

HOME: Final = "us-east-1"
AWAY: Final = "us-west-2"
EVENT: Final = {"DetailType": "t", "Detail": "{}"}


def endpoint(name: str) -> dict[str, Any]:
    """An endpoint over the buses of that name, with its health check."""
    arn = f"arn:aws:events:%s:${{AWS::AccountId}}:event-bus/{name}"
    check = {"Fn::Sub": "arn:aws:route53:::healthcheck/${HealthCheck}"}
    config = {"Type": "CLOUDWATCH_METRIC", "AlarmIdentifier": {"Name": "late", "Region": HOME}}
    return {
        "HealthCheck": {"Type": "AWS::Route53::HealthCheck", "Properties": {"HealthCheckConfig": config}},
        "Endpoint": {
            "Type": "AWS::Events::Endpoint",
            "Properties": {
                "Name": name,
                "EventBuses": [{"EventBusArn": {"Fn::Sub": arn % region}} for region in (HOME, AWAY)],
                "ReplicationConfig": {"State": "ENABLED"},
                "RoutingConfig": {"FailoverConfig": {"Primary": {"HealthCheck": check}, "Secondary": {"Route": AWAY}}},
            },
        },
    }


class Pair:
    """Buses of one name in two regions, each with a rule to a queue, and an endpoint over them."""

    def __init__(self, cloud: LocalAws, name: str) -> None:
        self.cloud = cloud
        self.name = name
        self.queues = {}
        watched = {
            "Bus": bus(),
            "Queue": {"Type": "AWS::SQS::Queue"},
            "Policy": queue_policy("Queue", from_rule()),
            "Rule": rule({"Arn": attribute("Queue")}),
        }
        for region, more in ((AWAY, {}), (HOME, endpoint(name))):
            stack = cloud.deploy_fast(name, template(watched | more), region=region)
            self.queues[region] = stack.resources["Queue"]
        self.check = stack.resources["HealthCheck"]

    def put(self, source: str) -> None:
        """Put an event through the endpoint."""
        entry = {"Source": source, "EventBusName": self.name, **EVENT}
        put_through_endpoint(self.cloud, f"{self.name.lower()}.local", entry)

    def seen(self, region: str) -> list[tuple[str, str]]:
        """Return the delivered events of a region's bus: their sources, and the regions that ingested them."""
        sqs = self.cloud.client("sqs", region=region)
        messages = sqs.receive_message(QueueUrl=self.queues[region], MaxNumberOfMessages=10, VisibilityTimeout=0)
        events = [json.loads(message["Body"]) for message in messages.get("Messages", [])]
        return sorted((event["source"], event["region"]) for event in events)


@pytest.fixture
def pair(engine: LocalAws, name: str) -> Iterator[Pair]:
    """Two regions of this test's own, without an outage at the end."""
    yield Pair(engine, name)
    outage(engine, late=[], lagging=False)


@needed("global_endpoints")
def test_an_event_reaches_both_buses_and_says_where_it_was_ingested(pair: Pair, engine: LocalAws) -> None:
    """The endpoint uses the primary; the other bus has a copy, which its archive keeps."""
    events = engine.client("events", region=AWAY)
    bus_arn = events.describe_event_bus(Name=pair.name)["Arn"]
    events.create_archive(ArchiveName=pair.name[:48], EventSourceArn=bus_arn)
    pair.put("a")
    assert pair.seen(HOME) == pair.seen(AWAY) == [("a", HOME)]
    assert events.describe_archive(ArchiveName=pair.name[:48])["EventCount"] == 1


def test_a_health_check_that_is_disabled_and_inverted_sends_events_to_the_secondary(
    pair: Pair, engine: LocalAws
) -> None:
    """An operator can steer producers to the secondary and back."""
    route53 = engine.client("route53")
    route53.update_health_check(HealthCheckId=pair.check, Disabled=True, Inverted=True)
    pair.put("a")
    route53.update_health_check(HealthCheckId=pair.check, Disabled=False, Inverted=False)
    pair.put("b")
    assert pair.seen(AWAY) == [("a", AWAY), ("b", HOME)]


def test_a_late_region_accepts_events_that_arrive_when_it_has_recovered(pair: Pair, engine: LocalAws) -> None:
    """Events wait for the recovery, and the endpoint hands later ones to the other region."""
    outage(engine, late=[HOME])
    engine.client("events").put_events(Entries=[{"Source": "a", "EventBusName": pair.name, **EVENT}])
    pair.put("b")
    assert pair.seen(HOME) == []
    assert pair.seen(AWAY) == [("a", HOME), ("b", AWAY)]
    outage(engine, late=[])
    assert pair.seen(HOME) == [("a", HOME), ("b", AWAY)]


def test_an_endpoint_that_is_not_there_is_refused(engine: LocalAws) -> None:
    """A wrong id is an error, and no event is put anywhere."""
    with pytest.raises(AssertionError, match="ResourceNotFoundException"):
        put_through_endpoint(engine, "nowhere.local", {"Source": "a", **EVENT})


# ── Names ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def roles(cloud: LocalAws, name: str, description: str = "first") -> set[str]:
    """Deploy one stack in two regions, and return the names of its role."""
    document = {"Version": "2012-10-17", "Statement": []}
    properties = {"AssumeRolePolicyDocument": document, "Description": description}
    body = template({"Role": {"Type": "AWS::IAM::Role", "Properties": properties}})
    return {cloud.deploy_fast(name, body, region=region).resources["Role"] for region in (HOME, AWAY)}


@needed("generated_names")
def test_a_role_belongs_to_one_region(engine: LocalAws, name: str) -> None:
    """Stacks of one name in two regions have roles of their own, though roles are global; an update keeps them."""
    made = roles(engine, name)
    assert len(made) == 2
    assert roles(engine, name, "second") == made


# ── Tables ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("first", "last"), [(HOME, AWAY), (AWAY, HOME)])
def test_a_lagging_replica_catches_up_with_the_last_writer(engine: LocalAws, name: str, first: str, last: str) -> None:
    """While replicas lag, a region sees its own writes only; afterwards both see the later write of each item."""
    replicas = [{"Region": HOME}, {"Region": AWAY}]
    engine.deploy_fast(name, template({"Table": table("GlobalTable", TableName=name, Replicas=replicas)}))
    clients = {region: engine.client("dynamodb", region=region) for region in (HOME, AWAY)}

    def put(region: str, key: str, value: str) -> None:
        clients[region].put_item(TableName=name, Item={"key": {"S": key}, "value": {"S": value}})

    def items(region: str) -> dict[str, str]:
        return {item["key"]["S"]: item["value"]["S"] for item in clients[region].scan(TableName=name)["Items"]}

    put(first, "old", "0")
    outage(engine, lagging=True)
    put(first, "both", "1")
    put(first, "new", "2")
    put(last, "both", "3")
    clients[first].delete_item(TableName=name, Key={"key": {"S": "old"}})
    assert (items(first), items(last)) == ({"both": "1", "new": "2"}, {"old": "0", "both": "3"})
    outage(engine, lagging=False)
    assert items(first) == items(last) == {"both": "3", "new": "2"}
