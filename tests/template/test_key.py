"""The key of infrastructure/key.yaml: who may use it, and only for what."""

import json
from fnmatch import fnmatchcase
from typing import Final

import pytest
from samtranslator.yaml_helper import yaml_parse

from infrastructure.rules.house_rules import LOG_GROUP, listed
from tools.transformed import ROOT, source

pytestmark = pytest.mark.integration

KEY: Final = yaml_parse((ROOT / "infrastructure" / "key.yaml").read_text(encoding="utf-8"))[
    "Resources"
]["Key"]
STATEMENTS: Final = {each["Sid"]: each for each in KEY["Properties"]["KeyPolicy"]["Statement"]}
USES: Final = {
    *(
        "kms:Decrypt",
        "kms:DescribeKey",
        "kms:Encrypt",
        "kms:GenerateDataKey",
        "kms:GenerateDataKeyWithoutPlaintext",
    ),
    *("kms:ReEncryptFrom", "kms:ReEncryptTo"),
}
"""What a service may do with the key."""


def test_each_service_may_use_the_key_for_this_application_only() -> None:
    """Only administrators and the account's services may use it, and services do not manage it."""
    for sid, statement in STATEMENTS.items():
        if sid != "AccountAdministers":
            assert set(statement["Principal"]) == {"Service"}, sid
            actions = set(listed(statement["Action"]))
            assert actions <= USES, sid
            scope = json.dumps(statement.get("Condition", {}))
            assert (
                "${ApplicationStackName}" in scope
                or "${AWS::AccountId}" in scope
                or actions == {"kms:DescribeKey"}
            )
    services = {str(statement["Principal"].get("Service")) for statement in STATEMENTS.values()}
    for part in ("events.", "delivery.logs.", "logs.${AWS::Region}.", "cloudwatch."):
        assert any(part in service for service in services), part


def test_rules_reach_the_encrypted_topic_of_partners() -> None:
    """EventBridge sends neither `aws:SourceAccount` nor `aws:SourceArn` for a topic.

    SNS names it in the context.
    """
    context = "kms:EncryptionContext:aws:sns:topicArn"
    (statement,) = (each for each in STATEMENTS.values() if context in json.dumps(each))
    assert statement["Principal"] == {"Service": "events.amazonaws.com"}
    assert set(statement["Action"]) == {"kms:Decrypt", "kms:GenerateDataKey"}
    # CloudFormation names a topic without a name after its stack and its logical id.
    assert "TopicName" not in source()["Resources"]["PartnersTopic"]["Properties"]
    ((operator, condition),) = statement["Condition"].items()
    assert (operator, set(condition)) == ("ArnLike", {context}), (
        "another condition would refuse EventBridge"
    )
    assert condition[context]["Fn::Sub"].endswith(":${ApplicationStackName}-PartnersTopic-*")


def test_the_key_outlives_its_stack_and_is_rotated() -> None:
    """Data cannot be read without its key, so no deletion of a stack removes the key."""
    assert KEY["DeletionPolicy"] == KEY["UpdateReplacePolicy"] == "Retain"
    assert KEY["Properties"]["EnableKeyRotation"] is True


def test_the_key_policy_covers_every_log_group_and_the_bus() -> None:
    """The policy knows both by name, because the key exists before the stack."""
    (arn,) = STATEMENTS["LogGroupsKeepLines"]["Condition"]["ArnLike"][
        "kms:EncryptionContext:aws:logs:arn"
    ]
    pattern = (
        arn["Fn::Sub"].partition(":log-group:")[2].replace("${ApplicationStackName}", "carride")
    )
    for name, resource in source()["Resources"].items():
        if resource["Type"] == LOG_GROUP:
            group = resource["Properties"]["LogGroupName"]["Fn::Sub"].replace(
                "${AWS::StackName}", "carride"
            )
            assert fnmatchcase(group, pattern), name
    assert source()["Resources"]["CarRideBus"]["Properties"]["Name"] == {
        "Fn::Sub": "${AWS::StackName}-bus"
    }
