"""Two regions: an endpoint routes and copies events, replicas of tables can lag, deliveries can be late."""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from local.local_aws import Laptop
from tests.engine.support import (
    attribute,
    bus,
    from_rule,
    needless,
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
    """Buses of one name in two regions, each with a queue of what it handed over, and an endpoint over them."""

    def __init__(self, laptop: Laptop, name: str) -> None:
        self.laptop = laptop
        self.name = name
        self.queues = {}
        watched = {
            "Bus": bus(),
            "Queue": {"Type": "AWS::SQS::Queue"},
            "Policy": queue_policy("Queue", from_rule()),
            "Rule": rule({"Arn": attribute("Queue")}),
        }
        for region, more in ((AWAY, {}), (HOME, endpoint(name))):
            stack = laptop.deploy_fast(name, template(watched | more), region=region)
            self.queues[region] = stack.resources["Queue"]
        self.check = stack.resources["HealthCheck"]

    def put(self, source: str) -> None:
        """Put an event through the endpoint."""
        entry = {"Source": source, "EventBusName": self.name, **EVENT}
        put_through_endpoint(self.laptop, f"{self.name.lower()}.local", entry)

    def seen(self, region: str) -> list[tuple[str, str]]:
        """What the bus of a region has handed over so far: sources, and where they were ingested."""
        sqs = self.laptop.client("sqs", region=region)
        messages = sqs.receive_message(QueueUrl=self.queues[region], MaxNumberOfMessages=10, VisibilityTimeout=0)
        events = [json.loads(message["Body"]) for message in messages.get("Messages", [])]
        return sorted((event["source"], event["region"]) for event in events)


@pytest.fixture
def pair(engine: Laptop, name: str) -> Iterator[Pair]:
    """Two regions of this test's own, without an outage at the end."""
    yield Pair(engine, name)
    outage(engine, late=[], lagging=False)


def test_an_event_reaches_both_buses_and_says_where_it_was_ingested(pair: Pair, engine: Laptop) -> None:
    """The endpoint uses the primary; the other bus has a copy, which its archive keeps."""
    events = engine.client("events", region=AWAY)
    bus_arn = events.describe_event_bus(Name=pair.name)["Arn"]
    events.create_archive(ArchiveName=pair.name[:48], EventSourceArn=bus_arn)
    pair.put("a")
    assert pair.seen(HOME) == pair.seen(AWAY) == [("a", HOME)]
    assert events.describe_archive(ArchiveName=pair.name[:48])["EventCount"] == 1


def test_a_health_check_that_is_disabled_and_inverted_sends_events_to_the_secondary(pair: Pair, engine: Laptop) -> None:
    """An operator can steer, and steer back."""
    route53 = engine.client("route53")
    route53.update_health_check(HealthCheckId=pair.check, Disabled=True, Inverted=True)
    pair.put("a")
    route53.update_health_check(HealthCheckId=pair.check, Disabled=False, Inverted=False)
    pair.put("b")
    assert pair.seen(AWAY) == [("a", AWAY), ("b", HOME)]


def test_a_late_region_accepts_events_that_arrive_when_it_has_recovered(pair: Pair, engine: Laptop) -> None:
    """Until then they wait, and the endpoint hands later ones to the other region."""
    outage(engine, late=[HOME])
    engine.client("events").put_events(Entries=[{"Source": "a", "EventBusName": pair.name, **EVENT}])
    pair.put("b")
    assert pair.seen(HOME) == []
    assert pair.seen(AWAY) == [("a", HOME), ("b", AWAY)]
    outage(engine, late=[])
    assert pair.seen(HOME) == [("a", HOME), ("b", AWAY)]


def test_an_endpoint_that_is_not_there_is_refused(engine: Laptop) -> None:
    """A wrong id is an error, and no event is put anywhere."""
    with pytest.raises(AssertionError, match="ResourceNotFoundException"):
        put_through_endpoint(engine, "nowhere.local", {"Source": "a", **EVENT})


def test_stock_does_not_route(stock: Laptop) -> None:
    """Canary: the plug-in is needed while MiniStack takes no notice of an endpoint."""
    try:
        put_through_endpoint(stock, "nowhere.local", {"Source": "a", **EVENT})
    except AssertionError:
        needless("routing by global endpoints", "global_endpoints")


# ── Names ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def roles(laptop: Laptop, name: str, description: str = "first") -> set[str]:
    """Deploy one stack in two regions, and return how its role is called in each."""
    document = {"Version": "2012-10-17", "Statement": []}
    properties = {"AssumeRolePolicyDocument": document, "Description": description}
    body = template({"Role": {"Type": "AWS::IAM::Role", "Properties": properties}})
    return {laptop.deploy_fast(name, body, region=region).resources["Role"] for region in (HOME, AWAY)}


def test_a_role_belongs_to_one_region(engine: Laptop, name: str) -> None:
    """Stacks of one name in two regions have roles of their own, though roles are global; an update keeps them."""
    made = roles(engine, name)
    assert len(made) == 2
    assert roles(engine, name, "second") == made


def test_stock_shares_roles(stock: Laptop, name: str) -> None:
    """Canary: the plug-in is needed while stacks of one name share their roles."""
    if len(roles(stock, name)) == 2:
        needless("roles that no two stacks share", "generated_names")


# ── Tables ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Replicas:
    """A global table in two regions."""

    def __init__(self, laptop: Laptop, name: str) -> None:
        replicas = [{"Region": HOME}, {"Region": AWAY}]
        stack = laptop.deploy_fast(name, template({"Table": table("GlobalTable", Replicas=replicas)}))
        self.name = stack.resources["Table"]
        self.clients = {region: laptop.client("dynamodb", region=region) for region in (HOME, AWAY)}

    def put(self, region: str, key: str, value: str) -> None:
        """Write an item in a region."""
        self.clients[region].put_item(TableName=self.name, Item={"key": {"S": key}, "value": {"S": value}})

    def items(self, region: str) -> dict[str, str]:
        """What a region shows."""
        items = self.clients[region].scan(TableName=self.name)["Items"]
        return {item["key"]["S"]: item["value"]["S"] for item in items}


@pytest.fixture
def replicas(engine: Laptop, name: str) -> Iterator[Replicas]:
    """A table of this test's own, whose replicas do not lag at the end."""
    yield Replicas(engine, name)
    outage(engine, lagging=False)


def test_a_lagging_replica_sees_nothing_until_it_has_caught_up(replicas: Replicas, engine: Laptop) -> None:
    """A write or a deletion is seen at once where it was made, and later in the other region."""
    replicas.put(HOME, "old", "1")
    outage(engine, lagging=True)
    replicas.put(HOME, "new", "1")
    replicas.clients[HOME].delete_item(TableName=replicas.name, Key={"key": {"S": "old"}})
    assert replicas.items(AWAY) == {"old": "1"}
    outage(engine, lagging=False)
    assert replicas.items(AWAY) == replicas.items(HOME) == {"new": "1"}


@pytest.mark.parametrize(("first", "last"), [(HOME, AWAY), (AWAY, HOME)])
def test_the_last_writer_wins(replicas: Replicas, engine: Laptop, first: str, last: str) -> None:
    """Of two writes to one item while replicas lag, both regions end up with the later one."""
    outage(engine, lagging=True)
    replicas.put(first, "key", "first")
    replicas.put(last, "key", "last")
    outage(engine, lagging=False)
    assert replicas.items(HOME) == replicas.items(AWAY) == {"key": "last"}


def test_stock_is_never_behind(stock: Laptop, name: str) -> None:
    """Canary: the plug-in is needed while MiniStack copies every write at once."""
    here, there = (stock.client("dynamodb", region=region) for region in (HOME, AWAY))
    here.create_table(TableName=name, **table("Table")["Properties"])
    here.update_table(TableName=name, ReplicaUpdates=[{"Create": {"RegionName": AWAY}}])
    for number in range(20):
        here.put_item(TableName=name, Item={"key": {"S": str(number)}})
        if there.scan(TableName=name)["Count"] <= number:
            needless("replicas that lag", "outages", "tests/engine")
