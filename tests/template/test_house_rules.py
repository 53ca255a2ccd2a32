"""What holds of the template as it is deployed, for choices of its parameters.

What holds of it as it is written is checked by infrastructure/rules/house_rules.py.
"""

from typing import Any, Final

import pytest

from tests.template.stack import Properties, Stack, every_choice, label, named, source, stack

DAY: Final = 86_400
FOURTEEN_DAYS: Final = 14 * DAY


def choices() -> list[Any]:
    """Return one test parameter for each combination of the template's parameters."""
    return [pytest.param(choice, id=label(choice)) for choice in every_choice()]


@pytest.fixture(scope="module", params=choices())
def deployed(request: pytest.FixtureRequest) -> Stack:
    """Return the transformed template, for each choice of parameters in turn."""
    return stack(**request.param)


def statements(document: Properties) -> list[Properties]:
    """Return the statements of a policy document, each with its actions as a list."""
    return [
        statement | {"Action": [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]}
        for statement in document["Statement"]
    ]


def test_every_queue_is_an_output(deployed: Stack) -> None:
    """Whoever looks for a dead letter finds its queue among the outputs."""
    values = [output["Value"] for output in deployed.outputs.values()]
    for name in deployed.of_type("AWS::SQS::Queue"):
        assert {"Ref": name} in values, name


def test_an_event_that_breaks_the_contract_reaches_a_consumer(deployed: Stack) -> None:
    """One rule takes every ride event, whatever its detail; those of other consumers look at the type in it only."""
    rules = deployed.of_type("AWS::Events::Rule")
    # With two regions, the alternatives are of regions and replays: none of the detail.
    assert set(rules["RideHistoryRule"]["EventPattern"]) - {"$or"} == {"source", "detail-type"}
    consumers = deployed.of_type("AWS::Lambda::Function") | deployed.of_type("AWS::SQS::Queue")
    for name, rule in rules.items():
        if any(named(target["Arn"]) in consumers for target in rule["Targets"]):
            detail = rule["EventPattern"].get("detail", {})
            for alternative in detail.get("$or", [detail]):
                assert set(alternative) <= {"type", "attributes"}, name
                assert set(alternative.get("attributes", {})) <= {"type"}, name


def test_every_table_is_protected_in_production(deployed: Stack) -> None:
    """Deleting a table takes a second thought in production, in both regions."""
    for name, table in deployed.of_type("AWS::DynamoDB::GlobalTable").items():
        for replica in table["Replicas"]:
            assert replica["DeletionProtectionEnabled"] is (deployed.parameters["Stage"] == "prod"), name


KEPT_IN_THE_CLEAR: Final = {"CarRideBusDlq"}
"""What AWS's own key encrypts always; the template says why."""


def test_the_customers_key_encrypts_everything_or_nothing(deployed: Stack) -> None:
    """With a customer's key, that key encrypts whatever keeps data and settings; without one, AWS's own keys do."""
    own, peer = ({"Ref": "KmsKeyArn"}, {"Ref": "PeerKmsKeyArn"}) if deployed.conditions["HasKmsKey"] else (None, None)
    for kind, setting in (
        ("AWS::SQS::Queue", "KmsMasterKeyId"),
        ("AWS::SNS::Topic", "KmsMasterKeyId"),
        ("AWS::Logs::LogGroup", "KmsKeyId"),
        ("AWS::Events::EventBus", "KmsKeyIdentifier"),
        ("AWS::Events::Archive", "KmsKeyIdentifier"),
        ("AWS::Lambda::Function", "KmsKeyArn"),
    ):
        for name, properties in deployed.of_type(kind).items():
            assert properties.get(setting) == (None if name in KEPT_IN_THE_CLEAR else own), name
    for name, queue in deployed.of_type("AWS::SQS::Queue").items():
        assert queue["SqsManagedSseEnabled"] is (own is None or name in KEPT_IN_THE_CLEAR), name
    for name, table in deployed.of_type("AWS::DynamoDB::GlobalTable").items():
        keys = [replica.get("SSESpecification", {}).get("KMSMasterKeyId") for replica in table["Replicas"]]
        assert keys == [own, peer][: len(keys)], name
        assert ("SSESpecification" in table) is (own is not None), name


def test_whoever_needs_the_customers_key_may_use_it(deployed: Stack) -> None:
    """A role may use the key through the services whose data it reads or writes, and through no other."""
    granted: dict[str, list[Properties]] = {}
    for name, role in deployed.of_type("AWS::IAM::Role").items():
        granted[name] = [one for policy in role.get("Policies", []) for one in statements(policy["PolicyDocument"])]
    for policy in deployed.of_type("AWS::IAM::Policy").values():
        for role in policy["Roles"]:
            granted[role["Ref"]] += statements(policy["PolicyDocument"])
    for name, allowed in granted.items():
        touched = {action.partition(":")[0] for one in allowed for action in one["Action"]} & {"dynamodb", "sqs"}
        with_key = [one for one in allowed if one["Resource"] == {"Ref": "KmsKeyArn"}]
        assert bool(with_key) is bool(deployed.conditions["HasKmsKey"] and touched), name
        for one in with_key:
            services = one["Condition"]["StringEquals"]["kms:ViaService"]
            assert services == [{"Fn::Sub": f"{service}.${{AWS::Region}}.amazonaws.com"} for service in sorted(touched)]
            assert set(one["Action"]) == {"kms:Decrypt"} | ({"kms:GenerateDataKey"} if "sqs" in touched else set())


def test_layers_are_built_for_the_functions_that_load_them(deployed: Stack) -> None:
    """A compiled dependency always meets the processor it was built for."""
    architecture = [{"Ref": "Architecture"}]
    assert all(
        function["Architectures"] == architecture for function in deployed.of_type("AWS::Lambda::Function").values()
    )
    assert source()["Resources"]["CarRideLayer"]["Metadata"]["BuildArchitecture"] == architecture[0]
