"""What the template deploys in each of two regions, and what its rules let through."""

import json
from typing import Any, Final

import pytest
from moto.events.models import EventPattern

from carride.events import SOURCES
from ops.replay import PLAN_PREFIX
from tests.template.graph import grants
from tools.transformed import NO_VALUE, ROLES, Stack, holds, named, source, stack

pytestmark = pytest.mark.integration

HERE: Final = "eu-west-1"
THERE: Final = "us-east-1"
STANDALONE, PRIMARY, SECONDARY = (stack(**parameters) for parameters in ROLES.values())
FIRST: Final = stack(**{**ROLES["primary"], "GlobalEndpoint": "absent"})
"""The primary's first deployment."""
OF_CONSUMERS: Final = sorted(set(PRIMARY.of_type("AWS::Events::Rule")) - {"CarRideLogRule"})
"""Every rule except the catch-all, which logs what either region ingested."""


def test_only_the_primary_has_replicas_elsewhere() -> None:
    """Each table has a replica in its own region.

    The primary's tables have an equally safe one in the other region.
    """
    own, there = ({"Ref": name} for name in ("AWS::Region", "PeerRegion"))
    for deployed, regions in ((STANDALONE, [own]), (PRIMARY, [own, there])):
        for name, table in deployed.of_type("AWS::DynamoDB::GlobalTable").items():
            assert [replica["Region"] for replica in table["Replicas"]] == regions, name
            elsewhere = [{**replica, "Region": None} for replica in table["Replicas"]]
            assert elsewhere.count(elsewhere[0]) == len(regions), name
            # Replicas need it.
            assert table["StreamSpecification"] == {"StreamViewType": "NEW_AND_OLD_IMAGES"}, name


def test_the_secondary_calls_the_replicas_by_their_names() -> None:
    """It has no table, owns none of the names, and names every table of the primary."""
    assert SECONDARY.of_type("AWS::DynamoDB::GlobalTable") == {}
    text = json.dumps([SECONDARY.resources, SECONDARY.outputs])
    for name, table in PRIMARY.of_type("AWS::DynamoDB::GlobalTable").items():
        assert table["TableName"] == {"Fn::Sub": f"${{AWS::StackName}}-{name}"}
        assert f"${{AWS::StackName}}-{name}" in text
        assert not any(own in text for own in (f'{{"Ref": "{name}"}}', f'"Fn::GetAtt": ["{name}"'))


def test_a_pipe_publishes_what_its_own_region_wrote() -> None:
    """The stream of a replica has the items of every region."""
    (pipe,) = PRIMARY.of_type("AWS::Pipes::Pipe").values()
    (only,) = pipe["SourceParameters"]["FilterCriteria"]["Filters"]
    assert json.loads(only["Pattern"]["Fn::Sub"])["dynamodb"]["NewImage"]["region"] == {
        "S": ["${AWS::Region}"]
    }


def test_only_the_primary_has_the_endpoint() -> None:
    """It has the endpoint once both buses exist, and outputs are the same everywhere."""
    for deployed in (STANDALONE, PRIMARY, SECONDARY, FIRST):
        endpoints = [
            *deployed.of_type("AWS::Events::Endpoint"),
            *deployed.of_type("AWS::Route53::HealthCheck"),
        ]
        assert len(endpoints) == (2 if deployed is PRIMARY else 0)
        assert set(deployed.outputs) == set(STANDALONE.outputs)
        assert [
            name for name, output in deployed.outputs.items() if output["Value"] in ("", NO_VALUE)
        ] == []


def test_the_endpoint_replicates_and_follows_its_health_check() -> None:
    """It copies events between buses, and leaves a primary that is late for five minutes."""
    (endpoint,) = PRIMARY.of_type("AWS::Events::Endpoint").values()
    assert [named(bus["EventBusArn"]) for bus in endpoint["EventBuses"]] == [
        "CarRideBus",
        "CarRideBus of the peer",
    ]
    assert endpoint["ReplicationConfig"] == {"State": "ENABLED"}
    copying = {
        f"events:{action}"
        for action in ("DeleteRule", "PutEvents", "PutRule", "PutTargets", "RemoveTargets")
    }
    assert {each[1:] for each in grants(PRIMARY) if each.who == "CarRideEndpoint"} == {
        *((action, "CarRideBus") for action in copying),
        ("events:PutEvents", "CarRideBus of the peer"),
        ("iam:PassRole", "CarRideEndpointRole"),
    }
    failover = endpoint["RoutingConfig"]["FailoverConfig"]
    assert failover["Secondary"] == {"Route": {"Ref": "PeerRegion"}}
    config = PRIMARY.resources[named(failover["Primary"]["HealthCheck"])]["Properties"][
        "HealthCheckConfig"
    ]
    # What CloudWatch in a dead region reports.
    assert config["InsufficientDataHealthStatus"] == "Unhealthy"
    alarm = PRIMARY.resources[config["AlarmIdentifier"]["Name"]["Ref"]]["Properties"]
    assert (alarm["TreatMissingData"], alarm["Period"], alarm["EvaluationPeriods"]) == (
        "breaching",
        60,
        5,
    )
    assert (alarm["MetricName"], alarm["Threshold"]) == (
        "IngestionToInvocationStartLatency",
        30_000,
    )


def test_a_quiet_primary_has_a_heartbeat_that_nobody_consumes() -> None:
    """An event each minute reaches only the log, so data is missing only in a dead region.

    It is not a ride event.
    """
    beat = PRIMARY.resources["CarRideHeartbeat"]["Properties"]
    assert (beat["ScheduleExpression"], beat["State"]) == ("rate(1 minute)", "ENABLED")
    assert (
        stack(**ROLES["primary"], Stage="local").resources["CarRideHeartbeat"]["Properties"][
            "State"
        ]
        == "DISABLED"
    )
    kind = beat["Target"]["EventBridgeParameters"]
    event = {"source": kind["Source"], "detail-type": kind["DetailType"], "detail": {}}
    rules = PRIMARY.of_type("AWS::Events::Rule")
    archive = PRIMARY.resources["CarRideArchive"]["Properties"]["EventPattern"]
    patterns = {name: rule["EventPattern"] for name, rule in rules.items()} | {
        "CarRideArchive": archive
    }
    assert [name for name, pattern in patterns.items() if matches(pattern, event)] == [
        "CarRideLogRule"
    ]
    assert event["source"] not in SOURCES  # the audit counts only these


# ── Rules ─────────────────────────────────────────────────────────────────────────────────────────


def matches(pattern: dict[str, Any], event: Any) -> bool:
    """Return whether a pattern lets through an event in `HERE`."""
    text = json.dumps(pattern)
    text = text.replace('{"Ref": "AWS::Region"}', f'"{HERE}"').replace(
        '{"Fn::Sub": "${AWS::Region}."}', f'"{HERE}."'
    )
    return EventPattern(None, json.loads(text)).matches_event(event)


def takes(deployed: Stack, rule: str, event: Any) -> bool:
    """Return whether a rule in `HERE` lets through an event of its types."""
    choices = deployed.of_type("AWS::Events::Rule")[rule]["EventPattern"].get("$or")
    return choices is None or matches({"$or": choices}, event)


@pytest.mark.parametrize("rule", OF_CONSUMERS)
@pytest.mark.parametrize(
    ("event", "taken"),
    [
        pytest.param({"region": HERE}, True, id="ingested here"),
        pytest.param({"region": THERE}, False, id="copied from there"),
        pytest.param({"region": HERE, "replay-name": f"{HERE}.1"}, True, id="replayed for here"),
        pytest.param(
            {"region": THERE, "replay-name": f"{HERE}.1"}, True, id="copy replayed for here"
        ),
        pytest.param({"region": HERE, "replay-name": f"{THERE}.1"}, False, id="replayed for there"),
        pytest.param(
            {"region": HERE, "replay-name": f"{HERE}-a"},
            False,
            id="replayed without a name for a region",
        ),
    ],
)
def test_a_rule_takes_an_event_in_one_region(rule: str, event: dict[str, str], taken: bool) -> None:
    """A rule takes an event in one region, one region takes all, and none a prediction's."""
    assert takes(PRIMARY, rule, event) is taken
    assert takes(SECONDARY, rule, event) is taken
    assert takes(STANDALONE, rule, event)
    predicted = event | {"replay-name": f"{PLAN_PREFIX}{HERE}.1"}
    assert not any(
        takes(deployed, rule, predicted) for deployed in (PRIMARY, SECONDARY, STANDALONE)
    )
    assert takes(PRIMARY, "CarRideLogRule", event)


# ── Parameters ────────────────────────────────────────────────────────────────────────────────────


def refused(**chosen: str) -> list[str]:
    """Return the names of the template's rules that refuse parameters."""
    template = source()
    given = {name: str(spec["Default"]) for name, spec in template["Parameters"].items()}
    given |= {"AWS::Region": HERE} | chosen
    return [
        name
        for name, rule in template["Rules"].items()
        if holds(rule["RuleCondition"], given, {})
        and not all(holds(each["Assert"], given, {}) for each in rule["Assertions"])
    ]


@pytest.mark.parametrize(
    ("chosen", "rule"),
    [
        ({"PeerRegion": THERE}, "OneRegionHasNoPeer"),
        ({"Role": "primary"}, "TwoRegionsAreTwo"),
        ({"Role": "primary", "PeerRegion": HERE}, "TwoRegionsAreTwo"),
        ({"GlobalEndpoint": "present"}, "TheEndpointIsThePrimarys"),
        ({"Role": "secondary", "PeerRegion": THERE}, "TheSecondaryReadsItsReplica"),
        ({"OutboxStreamArn": "arn"}, "OnlyTheSecondaryNamesStreamAndEndpoint"),
        ({"GlobalEndpointId": "id"}, "OnlyTheSecondaryNamesStreamAndEndpoint"),
        ({"JwtIssuer": "https://issuer.example"}, "TheIssuerNeedsAnAudience"),
        ({"JwtAudience": "carride"}, "TheAudienceNeedsAnIssuer"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(chosen: dict[str, str], rule: str) -> None:
    """CloudFormation refuses what could not work, and accepts what `failover deploy` sets."""
    assert refused(**chosen) == [rule]
    assert (
        refused()
        == refused(**ROLES["primary"] | {"PeerRegion": THERE})
        == refused(**ROLES["secondary"])
        == []
    )
