"""The key that infrastructure/key.yaml makes: who may use it, and for what only."""

import json
from fnmatch import fnmatchcase
from typing import Any, Final

import pytest
from samtranslator.yaml_helper import yaml_parse

from infrastructure.rules.house_rules import LOG_GROUP, listed
from tests.template.stack import ROOT, Properties, source

USES: Final = {
    *("kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:GenerateDataKey", "kms:GenerateDataKeyWithoutPlaintext"),
    *("kms:ReEncryptFrom", "kms:ReEncryptTo"),
}
"""What a service may do with the key."""


@pytest.fixture(scope="module")
def template() -> dict[str, Any]:
    """The template of the key."""
    parsed: dict[str, Any] = yaml_parse((ROOT / "infrastructure" / "key.yaml").read_text(encoding="utf-8"))
    return parsed


@pytest.fixture(scope="module")
def statements(template: dict[str, Any]) -> dict[str, Properties]:
    """The statements of the key policy by their ids."""
    policy = template["Resources"]["Key"]["Properties"]["KeyPolicy"]
    return {statement["Sid"]: statement for statement in policy["Statement"]}


def test_each_service_may_use_the_key_for_this_application_only(statements: dict[str, Properties]) -> None:
    """Besides the account's own administrators, only services, which may not manage it, for resources of this stack."""
    users = {sid: each for sid, each in statements.items() if sid != "AccountAdministers"}
    services = {str(each["Principal"]["Service"]) for each in users.values()}
    for part in ("events.", "delivery.logs.", "logs.${AWS::Region}.", "cloudwatch."):
        assert any(part in service for service in services), part
    for sid, each in users.items():
        actions = set(listed(each["Action"]))
        assert actions <= USES, sid
        scope = json.dumps(each.get("Condition", {}))
        assert ("${ApplicationStackName}" in scope or "${AWS::AccountId}" in scope) or actions == {"kms:DescribeKey"}, (
            sid
        )


def test_the_key_outlives_its_stack_and_is_rotated(template: dict[str, Any]) -> None:
    """What a key has encrypted cannot be read without it: no deletion of a stack takes it away."""
    key = template["Resources"]["Key"]
    assert key["DeletionPolicy"] == key["UpdateReplacePolicy"] == "Retain"
    assert key["Properties"]["EnableKeyRotation"] is True


def test_every_log_group_is_one_that_the_key_is_for(statements: dict[str, Properties]) -> None:
    """The names of the template's log groups are within the pattern of the key policy."""
    (arn,) = statements["LogGroupsKeepLines"]["Condition"]["ArnLike"]["kms:EncryptionContext:aws:logs:arn"]
    pattern = arn["Fn::Sub"].partition(":log-group:")[2].replace("${ApplicationStackName}", "carride")
    for name, resource in source()["Resources"].items():
        if resource["Type"] == LOG_GROUP:
            group = resource["Properties"]["LogGroupName"]["Fn::Sub"].replace("${AWS::StackName}", "carride")
            assert fnmatchcase(group, pattern), name


def test_the_bus_is_the_one_that_the_key_is_for() -> None:
    """The key policy knows the bus by its name, since the key is made before the bus."""
    assert source()["Resources"]["CarRideBus"]["Properties"]["Name"] == {"Fn::Sub": "${AWS::StackName}-bus"}
