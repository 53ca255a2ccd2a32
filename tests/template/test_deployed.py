"""Rules over all resources of the deployed template, for every choice of parameters."""

import json
from typing import Final

import pytest

import assignments
import payments
from carride.facts import ALIASES, Fact
from infrastructure.rules.house_rules import listed
from tests.template.stack import every_choice, options
from tools.transformed import ROLES, Properties, Stack, named, source, stack

pytestmark = pytest.mark.integration

OF_AWS: Final = {"CarRideBusDlq"}
"""Queues that a key of AWS always encrypts; the template gives the reason."""
ENCRYPTED: Final = {
    "AWS::SQS::Queue": "KmsMasterKeyId",
    "AWS::SNS::Topic": "KmsMasterKeyId",
    "AWS::Logs::LogGroup": "KmsKeyId",
    "AWS::Events::EventBus": "KmsKeyIdentifier",
    "AWS::Events::Archive": "KmsKeyIdentifier",
    "AWS::Lambda::Function": "KmsKeyArn",
}


def test_every_value_and_condition_is_chosen() -> None:
    """The choices give each parameter each of its values, and each condition both of its own."""
    choices = list(every_choice())
    for name, values in options().items():
        assert {choice[name] for choice in choices} == set(values), name
    conditions = [stack(**choice).conditions for choice in choices]
    assert all({each[name] for each in conditions} == {True, False} for name in conditions[0])


def test_what_production_must_not_lose_is_kept(deployed: Stack) -> None:
    """In `prod`, queues, archive and the logs that the audit reads outlive their stack.

    Elsewhere they end with it.
    """
    logs = {each["LoggingConfig"]["LogGroup"]["Ref"] for each in deployed.functions().values()}
    kept = {
        *deployed.of_type("AWS::Events::Archive"),
        *deployed.of_type("AWS::SQS::Queue"),
    } - OF_AWS
    policies = (
        ("RetainExceptOnCreate", "Retain")
        if deployed.conditions["IsProd"]
        else ("Delete", "Delete")
    )
    for name in kept | logs | {"CarRideEventsLogGroup"}:
        resource = deployed.resources[name]
        assert (resource["DeletionPolicy"], resource["UpdateReplacePolicy"]) == policies, name


def test_a_stack_that_is_not_production_leaves_nothing_behind(deployed: Stack) -> None:
    """No resource outlives it, and no function logs to a group that Lambda would make itself."""
    if deployed.conditions["IsProd"]:
        pytest.skip("queues, archive and logs of production outlive their stack")
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


# ── The customer's key ────────────────────────────────────────────────────────────────────────────


def test_the_customers_key_encrypts_everything_or_nothing(deployed: Stack) -> None:
    """With a customer's key, it encrypts everything that holds data or settings.

    Without one, keys of AWS do.
    """
    own, peer = (
        ({"Ref": "KmsKeyArn"}, {"Ref": "PeerKmsKeyArn"})
        if deployed.conditions["HasKmsKey"]
        else (None, None)
    )
    for kind, setting in ENCRYPTED.items():
        for name, properties in deployed.of_type(kind).items():
            assert properties.get(setting) == (None if name in OF_AWS else own), name
            if kind == "AWS::SQS::Queue":
                assert properties["SqsManagedSseEnabled"] is (own is None or name in OF_AWS), name
    for name, table in deployed.of_type("AWS::DynamoDB::GlobalTable").items():
        keys = [
            replica.get("SSESpecification", {}).get("KMSMasterKeyId")
            for replica in table["Replicas"]
        ]
        assert keys == [own, peer][: len(keys)], name
        assert ("SSESpecification" in table) is (own is not None), name


def test_whoever_needs_the_customers_key_may_use_it(deployed: Stack) -> None:
    """A role that calls DynamoDB or SQS may use the key through them, and not otherwise."""
    granted: dict[str, list[Properties]] = {}
    for name, role in deployed.of_type("AWS::IAM::Role").items():
        granted[name] = [
            each
            for policy in role.get("Policies", [])
            for each in policy["PolicyDocument"]["Statement"]
        ]
    for policy in deployed.of_type("AWS::IAM::Policy").values():
        for role in policy["Roles"]:
            granted[role["Ref"]] += policy["PolicyDocument"]["Statement"]
    through = {
        name: {"Fn::Sub": f"{name}.${{AWS::Region}}.amazonaws.com"} for name in ("dynamodb", "sqs")
    }
    for name, allowed in granted.items():
        called = {
            action.partition(":")[0] for each in allowed for action in listed(each["Action"])
        } & set(through)
        uses = [each for each in allowed if each["Resource"] == {"Ref": "KmsKeyArn"}]
        assert len(uses) == (1 if deployed.conditions["HasKmsKey"] and called else 0), name
        for use in uses:
            services = listed(use["Condition"]["StringEquals"]["kms:ViaService"])
            assert all(through[service] in services for service in called), name
            assert all(service in through.values() for service in services), name
            assert set(use["Action"]) == {"kms:Decrypt", "kms:GenerateDataKey"}, name


# ── Layers ────────────────────────────────────────────────────────────────────────────────────────


def test_layers_are_built_for_the_functions_that_load_them(deployed: Stack) -> None:
    """A compiled dependency meets the processor that it was built for."""
    architecture = [{"Ref": "Architecture"}]
    assert all(
        each["Architectures"] == architecture
        for each in deployed.of_type("AWS::Lambda::Function").values()
    )
    assert source()["Resources"]["CarRideLayer"]["Metadata"]["BuildArchitecture"] == architecture[0]


def test_who_publishes_through_an_endpoint_can_sign_for_it(deployed: Stack) -> None:
    """Simulator and pipe have the same endpoint.

    The simulator loads the signing layer only with an endpoint.
    """
    roles = [deployed, stack(**{**ROLES["primary"], "GlobalEndpoint": "absent"})]
    for each in (*roles, stack(**{**ROLES["secondary"], "GlobalEndpointId": ""})):
        present = each.conditions["PublishesThroughEndpoint"]
        simulator = each.resources["CarRideSimulatorFunction"]["Properties"]
        endpoint = simulator["Environment"]["Variables"]["EVENT_ENDPOINT_ID"]
        assert endpoint in (
            [{"Fn::GetAtt": ["CarRideEndpoint", "EndpointId"]}, {"Ref": "GlobalEndpointId"}]
            if present
            else [""]
        )
        pipe = each.resources["OutboxPipe"]["Properties"]["TargetParameters"][
            "EventBridgeEventBusParameters"
        ]
        assert pipe.get("EndpointId", "") == endpoint
        assert ("SigV4aLayer" in json.dumps(simulator["Layers"])) is present
        assert (
            any(
                name.startswith("SigV4aLayer") for name in each.of_type("AWS::Lambda::LayerVersion")
            )
            is present
        )
