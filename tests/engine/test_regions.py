"""Two regions: an endpoint routes and copies events, and generated names are of one region."""

import json
from typing import Any, Final

import pytest

from local.local_aws import LocalAws
from tests.engine.support import attribute, bus, from_rule, needed, put_through_endpoint, queue_policy, rule, template

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


@needed("global_endpoints")
def test_an_event_reaches_both_buses_and_says_where_it_was_ingested(engine: LocalAws, name: str) -> None:
    """The endpoint uses the primary; the other bus has a copy, which its archive keeps."""
    pair, events = Pair(engine, name), engine.client("events", region=AWAY)
    bus_arn = events.describe_event_bus(Name=pair.name)["Arn"]
    events.create_archive(ArchiveName=pair.name[:48], EventSourceArn=bus_arn)
    pair.put("a")
    assert pair.seen(HOME) == pair.seen(AWAY) == [("a", HOME)]
    assert events.describe_archive(ArchiveName=pair.name[:48])["EventCount"] == 1


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
