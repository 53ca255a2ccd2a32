"""What the template deploys in each of two regions, and what its rules let through."""

import json
from typing import Any, Final

import pytest

from tests.template.stack import NO_VALUE, ROLES, Properties, Stack, source, stack

HERE: Final = "eu-west-1"
THERE: Final = "us-east-1"
RULES: Final = ("RideHistoryRule", "DispatchRule", "PaymentRule", "PartnersRule", "PartnersOlderRule")
ENDPOINT: Final = {
    "CarRideEndpoint",
    "CarRideEndpointPolicy",
    "CarRideEndpointRole",
    "CarRideHealthCheck",
    "CarRideLatencyAlarm",
}


@pytest.fixture(scope="module")
def standalone() -> Stack:
    """Return the stack of one region by itself."""
    return stack(**ROLES["standalone"])


@pytest.fixture(scope="module")
def primary() -> Stack:
    """Return the stack of the primary region."""
    return stack(**ROLES["primary"])


@pytest.fixture(scope="module")
def secondary() -> Stack:
    """Return the stack of the secondary region."""
    return stack(**ROLES["secondary"])


# ── Tables ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_only_the_primary_has_replicas_elsewhere(standalone: Stack, primary: Stack) -> None:
    """Each table has a replica in the region's own place, and those of the primary one in the other region."""
    own = {"Ref": "AWS::Region"}
    for name, table in standalone.of_type("AWS::DynamoDB::GlobalTable").items():
        assert [replica["Region"] for replica in table["Replicas"]] == [own], name
    for name, table in primary.of_type("AWS::DynamoDB::GlobalTable").items():
        here, there = table["Replicas"]
        assert (here["Region"], there["Region"]) == (own, {"Ref": "PeerRegion"}), name
        assert {**here, "Region": None} == {**there, "Region": None}, f"{name}: as safe there as here"
    for name, table in standalone.of_type("AWS::DynamoDB::GlobalTable").items():  # replicas ask for it, from the start
        assert table["StreamSpecification"] == {"StreamViewType": "NEW_AND_OLD_IMAGES"}, name


def test_the_secondary_has_no_table_and_knows_the_names_of_all(secondary: Stack, primary: Stack) -> None:
    """It calls the primary's replicas by the names that the primary gave them, wherever a table is named."""
    assert secondary.of_type("AWS::DynamoDB::GlobalTable") == {}
    tables = primary.of_type("AWS::DynamoDB::GlobalTable")
    for name, table in tables.items():
        assert table["TableName"] == {"Fn::Sub": f"${{AWS::StackName}}-{name}"}
    text = json.dumps([secondary.resources, secondary.outputs])
    for name in tables:
        assert f'{{"Ref": "{name}"}}' not in text
        assert f'"Fn::GetAtt": ["{name}"' not in text
        assert f"${{AWS::StackName}}-{name}" in text


def test_the_pipe_of_the_secondary_reads_its_own_replica(secondary: Stack, primary: Stack) -> None:
    """Both may read exactly the stream that they read."""
    for deployed, stream in (
        (secondary, {"Ref": "OutboxStreamArn"}),
        (primary, {"Fn::GetAtt": ["OutboxTable", "StreamArn"]}),
    ):
        assert deployed.of_type("AWS::Pipes::Pipe")["OutboxPipe"]["Source"] == stream
        (policy,) = deployed.of_type("AWS::IAM::Role")["OutboxPipeRole"]["Policies"]
        (reads,) = [each for each in policy["PolicyDocument"]["Statement"] if each["Sid"] == "ReadStream"]
        assert reads["Resource"] == stream


def test_a_pipe_tells_what_its_own_region_wrote() -> None:
    """The stream of a replica has what every region wrote."""
    filters = source()["Resources"]["OutboxPipe"]["Properties"]["SourceParameters"]["FilterCriteria"]["Filters"]
    (pattern,) = [json.loads(each["Pattern"]["Fn::Sub"]) for each in filters]
    assert pattern["dynamodb"]["NewImage"]["region"] == {"S": ["${AWS::Region}"]}


# ── The global endpoint ───────────────────────────────────────────────────────────────────────────────────────────────


def test_only_the_primary_has_the_endpoint(standalone: Stack, primary: Stack, secondary: Stack) -> None:
    """Endpoint, health check, alarm and role are the primary's, as soon as both buses are there."""
    first = stack(**{**ROLES["primary"], "GlobalEndpoint": "absent"})
    assert set(primary.resources) - set(first.resources) >= ENDPOINT
    for deployed in (standalone, secondary, first):
        assert not ENDPOINT & set(deployed.resources)


def test_the_endpoint_replicates_and_follows_its_health_check(primary: Stack) -> None:
    """It has the bus of either region, copies events between them, and leaves a primary that is unhealthy."""
    endpoint = primary.of_type("AWS::Events::Endpoint")["CarRideEndpoint"]
    regions = ("AWS::Region", "PeerRegion")
    arn = "arn:${{AWS::Partition}}:events:${{{}}}:${{AWS::AccountId}}:event-bus/${{CarRideBus}}"
    assert endpoint["EventBuses"] == [{"EventBusArn": {"Fn::Sub": arn.format(region)}} for region in regions]
    assert endpoint["ReplicationConfig"] == {"State": "ENABLED"}
    assert endpoint["RoleArn"] == {"Fn::GetAtt": ["CarRideEndpointRole", "Arn"]}
    failover = endpoint["RoutingConfig"]["FailoverConfig"]
    assert failover["Secondary"] == {"Route": {"Ref": "PeerRegion"}}
    assert "${CarRideHealthCheck}" in failover["Primary"]["HealthCheck"]["Fn::Sub"]


def test_a_quiet_region_is_not_unhealthy(primary: Stack) -> None:
    """EventBridge has to be late for five minutes; where no event is, nothing fails over."""
    alarm = primary.of_type("AWS::CloudWatch::Alarm")["CarRideLatencyAlarm"]
    assert (alarm["Namespace"], alarm["MetricName"]) == ("AWS/Events", "IngestionToInvocationStartLatency")
    assert (alarm["Statistic"], alarm["Threshold"], alarm["ComparisonOperator"]) == (
        "Average",
        30_000,
        "GreaterThanThreshold",
    )
    assert (alarm["Period"], alarm["EvaluationPeriods"]) == (60, 5)
    assert alarm["TreatMissingData"] == "missing"
    check = primary.of_type("AWS::Route53::HealthCheck")["CarRideHealthCheck"]["HealthCheckConfig"]
    assert check["InsufficientDataHealthStatus"] == "LastKnownStatus"
    assert check["AlarmIdentifier"]["Name"] == {"Ref": "CarRideLatencyAlarm"}


# ── Rules ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def pattern(deployed: Stack, rule: str) -> Properties:
    """Return the pattern of a rule as it is in `HERE`."""
    text = json.dumps(deployed.of_type("AWS::Events::Rule")[rule]["EventPattern"])
    for ref in ('{"Ref": "AWS::Region"}', '{"Fn::Sub": "${AWS::Region}"}'):
        text = text.replace(ref, f'"{HERE}"')
    text = text.replace('{"Fn::Sub": "${AWS::Region}."}', f'"{HERE}."')
    found: Properties = json.loads(text)
    return found


def alternatives(deployed: Stack, rule: str) -> list[Properties] | None:
    """Return what a rule lets through of regions and replays; None is everything."""
    found: list[Properties] | None = pattern(deployed, rule).get("$or")
    return found


def takes(choices: list[Properties] | None, event: dict[str, str]) -> bool:
    """Whether the alternatives match, by what EventBridge documents of `exists` and `prefix`."""

    def matches(matcher: Any, value: str | None) -> bool:
        match matcher:
            case {"exists": bool(wanted)}:
                return (value is not None) == wanted
            case {"prefix": str(beginning)}:
                return value is not None and value.startswith(beginning)
            case _:
                return bool(value == matcher)

    return choices is None or any(
        all(any(matches(matcher, event.get(field)) for matcher in matchers) for field, matchers in choice.items())
        for choice in choices
    )


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("event", "taken"),
    [
        pytest.param({"region": HERE}, True, id="ingested here"),
        pytest.param({"region": THERE}, False, id="copied from there"),
        pytest.param({"region": HERE, "replay-name": f"{HERE}.1"}, True, id="replayed for here"),
        pytest.param({"region": THERE, "replay-name": f"{HERE}.1"}, True, id="copy replayed for here"),
        pytest.param({"region": HERE, "replay-name": f"{THERE}.1"}, False, id="replayed for there"),
        pytest.param({"region": HERE, "replay-name": f"{HERE}-a"}, False, id="replayed without a name for a region"),
    ],
)
def test_a_rule_takes_an_event_in_one_region(
    rule: str, event: dict[str, str], taken: bool, primary: Stack, secondary: Stack, standalone: Stack
) -> None:
    """Where it was ingested, or for which it was replayed; one region by itself takes whatever comes."""
    assert takes(alternatives(primary, rule), event) is taken
    assert takes(alternatives(secondary, rule), event) is taken
    assert takes(alternatives(standalone, rule), event)


def test_every_rule_but_the_evidence_minds_its_region(primary: Stack) -> None:
    """A rule that is added later is not forgotten; the catch-all writes down what either region has ingested."""
    minding = {name for name in primary.of_type("AWS::Events::Rule") if alternatives(primary, name)}
    assert minding == set(primary.of_type("AWS::Events::Rule")) - {"CarRideLogRule"}
    assert minding >= set(RULES)


# ── Parameters and outputs ────────────────────────────────────────────────────────────────────────────────────────────


def test_outputs_are_the_same_for_every_role(standalone: Stack, primary: Stack, secondary: Stack) -> None:
    """Tools find what they look for in either region."""
    for name, output in standalone.outputs.items():
        assert output["Value"] not in ("", NO_VALUE), name
        assert "Condition" not in output, name
    assert set(standalone.outputs) == set(primary.outputs) == set(secondary.outputs)


def refused(parameters: dict[str, str]) -> list[str]:
    """Return what the template's own rules have against parameters, by their names."""
    template = source()
    given = {name: str(spec["Default"]) for name, spec in template["Parameters"].items()}
    given |= parameters | {"AWS::Region": HERE}

    def holds(condition: Any) -> bool:
        match condition:
            case {"Fn::Equals": [left, right]}:
                return bool(value(left) == value(right))
            case {"Fn::Not": [inner]}:
                return not holds(inner)
            case {"Fn::And": parts}:
                return all(holds(part) for part in parts)
            case {"Fn::Or": parts}:
                return any(holds(part) for part in parts)
            case _:
                raise NotImplementedError(condition)

    def value(expression: Any) -> Any:
        return given[expression["Ref"]] if isinstance(expression, dict) else expression

    return [
        name
        for name, rule in template["Rules"].items()
        if holds(rule.get("RuleCondition", {"Fn::Equals": ["", ""]}))
        and not all(holds(each["Assert"]) for each in rule["Assertions"])
    ]


@pytest.mark.parametrize("role", ROLES)
def test_what_the_command_gives_is_accepted(role: str) -> None:
    """The template's rules have nothing against what `make deploy-regions` deploys."""
    assert refused({**ROLES[role], "PeerRegion": THERE} if role != "standalone" else ROLES[role]) == []


@pytest.mark.parametrize(
    ("parameters", "rule"),
    [
        ({"PeerRegion": THERE}, "OneRegionHasNoPeer"),
        ({"Role": "primary"}, "TwoRegionsAreTwo"),
        ({"Role": "primary", "PeerRegion": HERE}, "TwoRegionsAreTwo"),
        ({"GlobalEndpoint": "present"}, "TheEndpointIsThePrimarys"),
        ({"Role": "secondary", "PeerRegion": THERE}, "TheSecondaryReadsItsReplica"),
        ({"OutboxStreamArn": "arn"}, "OnlyTheSecondaryIsTold"),
        ({"GlobalEndpointId": "id"}, "OnlyTheSecondaryIsTold"),
        ({"DeploymentStrategy": "Canary10Percent5Minutes"}, "GradualDeploymentNeedsARelease"),
        ({"ApiAuthorization": "jwt", "JwtIssuer": "https://issuer.example"}, "JwtNeedsItsIssuer"),
        ({"ApiAuthorization": "jwt", "JwtAudience": "carride"}, "JwtNeedsItsIssuer"),
        ({"PeerKmsKeyArn": "arn"}, "PeerKeyGoesWithAKey"),
        ({"Role": "primary", "PeerRegion": THERE, "KmsKeyArn": "arn"}, "BothReplicasHaveKeys"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(parameters: dict[str, str], rule: str) -> None:
    """CloudFormation refuses a deployment that could not work, before it begins."""
    assert refused(parameters) == [rule]
