"""The key that infrastructure/key.yaml makes: who may use it, and for what only."""

import re
from fnmatch import fnmatchcase
from typing import Any, Final

import pytest
from samtranslator.yaml_helper import yaml_parse

from infrastructure.rules.house_rules import LOG_GROUP
from tests.infrastructure.stack import ROOT, Properties, source

USERS: Final = {
    "EventBridgeChecksTheKey": ("events.amazonaws.com", {"kms:DescribeKey"}, None),
    "EventBridgeKeepsEvents": (
        "events.amazonaws.com",
        {"kms:Decrypt", "kms:GenerateDataKey", "kms:ReEncryptFrom", "kms:ReEncryptTo"},
        "event-bus/${ApplicationStackName}-bus",
    ),
    "RulesReachQueuesAndTopics": (
        "events.amazonaws.com",
        {"kms:Decrypt", "kms:GenerateDataKey"},
        "rule/${ApplicationStackName}-bus/*",
    ),
    "EventBridgeSendsErrors": ("events.amazonaws.com", {"kms:GenerateDataKey"}, "${AWS::AccountId}:*"),
    "LogDeliveryReadsErrors": (
        "delivery.logs.amazonaws.com",
        {"kms:Decrypt", "kms:GenerateDataKey"},
        "${AWS::AccountId}:*",
    ),
    "LogGroupsKeepLines": (
        "logs.${AWS::Region}.amazonaws.com",
        {
            "kms:Decrypt",
            "kms:DescribeKey",
            "kms:Encrypt",
            "kms:GenerateDataKey",
            "kms:GenerateDataKeyWithoutPlaintext",
            "kms:ReEncryptFrom",
            "kms:ReEncryptTo",
        },
        "log-group:/aws/*/${ApplicationStackName}*",
    ),
    "AlarmsReachTheirTopic": (
        "cloudwatch.amazonaws.com",
        {"kms:Decrypt", "kms:GenerateDataKey"},
        "alarm:${ApplicationStackName}-*",
    ),
}
"""Statements of the key policy: for which service, what, and what the end of an ARN has to be for it."""


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
    """Besides the account's own administrators, services may use it on behalf of resources that are named."""
    assert set(statements) == {"AccountAdministers", *USERS}
    for sid, (service, actions, resource) in USERS.items():
        statement = statements[sid]
        principal = statement["Principal"]["Service"]
        assert (principal["Fn::Sub"] if isinstance(principal, dict) else principal) == service, sid
        action = statement["Action"]
        assert set(action if isinstance(action, list) else [action]) == actions, sid
        arns = re.findall(r"'Fn::Sub': '(arn:[^']+)'", str(statement.get("Condition", {})))
        assert [arn.endswith(resource or "") for arn in arns] == [True] * (resource is not None), sid


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
