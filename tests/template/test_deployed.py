"""Rules over all resources of the deployed template, for every choice of parameters."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest

import assignments
import payments
from carride.facts import ALIASES, Fact
from tests.template.stack import every_choice, options, pairs
from tests.template.test_regions import refused
from tools.transformed import ROLES, Stack, named, source, stack

pytestmark = pytest.mark.integration


def test_any_two_options_of_parameters_are_chosen_together() -> None:
    """CloudFormation would accept each choice; each condition holds in some and not in others."""
    choices = list(every_choice())
    for (one, first), (other, second) in pairs():
        both = options()[one][first] | options()[other][second]
        assert any(both.items() <= choice.items() for choice in choices), both
    elsewhere = {"AWS::Region": "ap-south-1"}
    assert [choice for choice in choices if refused(**choice | elsewhere)] == []
    conditions = [stack(**choice).conditions for choice in choices]
    assert all({each[name] for each in conditions} == {True, False} for name in conditions[0])


def named_in(value: Any) -> Iterator[str]:
    """Yield the names that references in a part of a template have."""
    match value:
        case {"Ref": str(name)} | {"Fn::GetAtt": [str(name), *_]} | {"DependsOn": str(name)}:
            yield name
        case {"Fn::Sub": str(text)}:
            yield from re.findall(r"\$\{(?!AWS::|!)(\w+)", text)
        case {"Fn::Sub": [str(text), dict(own)]}:
            yield from set(re.findall(r"\$\{(?!AWS::|!)(\w+)", text)) - own.keys()
            yield from named_in(own)
        case {"DependsOn": list(names), **rest}:
            yield from names
            yield from named_in(rest)
        case dict():
            yield from named_in(list(value.values()))
        case list():
            for each in value:
                yield from named_in(each)


def test_every_reference_leads_to_something(deployed: Stack) -> None:
    """What a resource or an output names is deployed with it, or a parameter."""
    known = deployed.resources.keys() | deployed.parameters.keys()
    for name, each in (deployed.resources | deployed.outputs).items():
        assert {one for one in named_in(each) if not one.startswith("AWS::")} <= known, name


def test_a_stack_leaves_nothing_behind(deployed: Stack) -> None:
    """No resource outlives it, and no function logs to a group that Lambda would make itself.

    In production its tables and the stack itself are protected from deletion.
    """
    kept = [
        name
        for name, resource in deployed.resources.items()
        if resource.get("DeletionPolicy", "Delete") != "Delete"
        and resource["Type"] != "AWS::Lambda::Version"  # it ends with its function
    ]
    assert kept == []
    groups = deployed.of_type("AWS::Logs::LogGroup")
    for name, function in deployed.functions().items():
        assert function["LoggingConfig"]["LogGroup"]["Ref"] in groups, name


def test_a_replaced_table_is_kept(deployed: Stack) -> None:
    """No archive restores a booking, and a lost record allows a second effect."""
    for name in deployed.of_type("AWS::DynamoDB::GlobalTable"):
        assert deployed.resources[name]["UpdateReplacePolicy"] == "Retain", name


NAMES: Final = {
    "AWS::CloudWatch::Alarm": "AlarmName",
    "AWS::CloudWatch::CompositeAlarm": "AlarmName",
    "AWS::CloudWatch::Dashboard": "DashboardName",
    "AWS::Events::Archive": "ArchiveName",
    "AWS::Events::EventBus": "Name",
    "AWS::Pipes::Pipe": "Name",
    "AWS::Scheduler::Schedule": "Name",
}
"""By type, the property that names a resource."""


def test_what_has_a_name_is_named_after_the_stack(deployed: Stack) -> None:
    """Two stacks share an account; each name occurs once, and CloudFormation generates none."""
    found = [
        resource["Properties"].get(NAMES[resource["Type"]], {}).get("Fn::Sub", name)
        for name, resource in deployed.resources.items()
        if resource["Type"] in NAMES
    ]
    assert [each for each in found if not each.startswith("${AWS::StackName}-")] == []
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("given", ["", "arn:aws:iam::123456789012:policy/boundary"])
def test_every_role_of_a_stack_is_bounded_if_a_boundary_is_given(given: str) -> None:
    """Also those of nested stacks, and CodeDeploy's."""
    for choice in (*every_choice(), ROLES["primary"]):
        deployed = stack(**{**choice, "PermissionsBoundaryArn": given})
        for name, role in deployed.of_type("AWS::IAM::Role").items():
            assert role.get("PermissionsBoundary", {}).get("Ref", "") == (
                "PermissionsBoundaryArn" if given else ""
            ), name


def test_an_api_with_a_mistake_is_refused() -> None:
    """Otherwise API Gateway deploys it with a warning that nobody sees."""
    assert stack().resources["CarRideApi"]["Properties"]["FailOnWarnings"] is True


# ── Who gets which events ─────────────────────────────────────────────────────────────────────────


def test_an_event_that_breaks_the_contract_reaches_a_consumer(deployed: Stack) -> None:
    """One rule matches every ride event, whatever its detail.

    Other consumers' rules match at most the type.
    """
    rules = deployed.of_type("AWS::Events::Rule")
    # With two regions, the alternatives are of regions and replays.
    assert set(rules["RideHistoryRule"]["EventPattern"]) - {"$or"} == {"source", "detail-type"}
    consumers = deployed.of_type("AWS::Lambda::Function") | deployed.of_type("AWS::SQS::Queue")
    for name, rule in rules.items():
        if any(named(target["Arn"]) in consumers for target in rule["Targets"]):
            detail = rule["EventPattern"].get("detail", {})
            for alternative in detail.get("$or", [detail]):
                assert set(alternative) <= {"type", "attributes"}, name
                assert set(alternative.get("attributes", {})) <= {"type"}, name


@pytest.mark.parametrize(
    ("rule", "consumed", "emitted"),
    [
        ("DispatchRule", assignments.CONSUMED, assignments.EMITTED),
        ("PaymentRule", payments.CONSUMED, payments.EMITTED),
    ],
)
def test_a_rule_matches_what_its_consumer_acts_on(
    rule: str, consumed: frozenset[type[Fact]], emitted: frozenset[type[Fact]]
) -> None:
    """It matches the same types in both envelopes, and none that the consumer emits: a loop."""
    alternatives = source()["Resources"][rule]["Properties"]["EventPattern"]["detail"]["$or"]
    names = {fact.__name__ for fact in consumed}
    names |= {alias for alias, name in ALIASES.items() if name in names}
    newer = [name for each in alternatives for name in each.get("type", ())]
    older = [name for each in alternatives for name in each.get("attributes", {}).get("type", ())]
    assert sorted(newer) == sorted(older) == sorted(names)
    assert {ALIASES.get(name, name) for name in names}.isdisjoint(fact.__name__ for fact in emitted)


# ── Keys that AWS owns ────────────────────────────────────────────────────────────────────────────


def test_every_queue_encrypts_its_messages(deployed: Stack) -> None:
    """SQS manages the key."""
    for name, queue in deployed.of_type("AWS::SQS::Queue").items():
        assert queue["SqsManagedSseEnabled"] is True, name


# ── Layers ────────────────────────────────────────────────────────────────────────────────────────


def test_layers_are_built_for_the_functions_that_load_them(deployed: Stack) -> None:
    """A compiled dependency meets the processor that it was built for."""
    architecture = [{"Ref": "Architecture"}]
    assert all(
        each["Architectures"] == architecture
        for each in deployed.of_type("AWS::Lambda::Function").values()
    )
    for name, layer in source()["Resources"].items():
        if layer["Type"] != "AWS::Serverless::LayerVersion":
            continue
        # SAM builds a layer whose condition is false for the default processor.
        assert "Condition" not in layer, name
        compatible = layer["Properties"]["CompatibleArchitectures"]
        if compatible != ["arm64", "x86_64"]:
            assert [layer["Metadata"]["BuildArchitecture"]] == compatible == architecture, name


def test_who_publishes_through_an_endpoint_can_sign_for_it(deployed: Stack) -> None:
    """Simulator and pipe have the same endpoint.

    The simulator loads the signing layer only with an endpoint.
    """
    roles = [deployed, stack(**{**ROLES["primary"], "GlobalEndpoint": "absent"})]
    for each in (*roles, stack(**{**ROLES["secondary"], "GlobalEndpointId": ""})):
        present = each.conditions["PublishesThroughEndpoint"]
        simulator = each.resources["CarRideSimulatorFunction"]["Properties"]
        endpoint = simulator["Environment"]["Variables"]["EVENT_ENDPOINT_ID"]
        known = {"Ref": "GlobalEndpointId"}  # empty without an endpoint
        assert endpoint in [{"Fn::GetAtt": ["CarRideEndpoint", "EndpointId"]}, known]
        pipe = each.resources["OutboxPipe"]["Properties"]["TargetParameters"][
            "EventBridgeEventBusParameters"
        ]
        assert pipe.get("EndpointId") == (endpoint if present else None)
        assert ("SigV4aLayer" in json.dumps(simulator["Layers"])) is present
