"""The house rules of cfn-lint.

Silent about the template, and red when one thing in it is taken away or changed.
"""

import copy
from collections.abc import Mapping
from typing import Any, Final

import pytest
from cfnlint.rules import CloudFormationLintRule

from infrastructure.rules import house_rules
from infrastructure.rules.house_rules import TABLE, House, named
from tests.template.test_observability import unwatched
from tools.transformed import source

pytestmark = pytest.mark.integration

RULES: Final[dict[str, Any]] = {
    str(vars(rule)["id"]): rule
    for rule in vars(house_rules).values()
    if isinstance(rule, type) and issubclass(rule, CloudFormationLintRule) and "check" in vars(rule)
}

_DLQ: Final = "OtherQueuesPolicy.Properties.PolicyDocument.Statement"
_RULE_DLQ: Final = "RuleQueuesPolicy.Properties.PolicyDocument.Statement"
_ROLE: Final = "PaymentRole.Properties.Policies.0.PolicyDocument.Statement.0"
_POLICY: Final = "CallerPolicy.Properties.PolicyDocument.Statement.0"
_TRUST: Final = "PaymentRole.Properties.AssumeRolePolicyDocument.Statement.0"
_LOGS: Final = "CarRideLogsPolicy.Properties.PolicyDocument"
_WRONG_LOGS: Final = (
    '{"Statement": [{"Effect": "Allow", "Action": "logs:WriteEvents", "Resource": "*"}]}'
)
_TABLE: Final = {"Fn::Sub": "arn:${AWS::Partition}:dynamodb:::table/carride-PaymentTable"}
_TARGET: Final = "PaymentRule.Properties.Targets.0"
WRONG: Final[list[tuple[str, str, object]]] = [
    # rule, path from the logical id on, and the wrong value there; None removes it
    ("E9101", "PaymentFunction.Properties.LoggingConfig.LogGroup", "/aws/lambda/somewhere"),
    ("E9101", "PaymentLogGroup.Properties.RetentionInDays", None),
    ("E9201", f"{_TARGET}.RetryPolicy", {"Fn::If": ["IsProd", {}, {"Ref": "AWS::NoValue"}]}),
    ("E9201", f"{_TARGET}.DeadLetterConfig", None),
    ("E9201", f"{_TARGET}.DeadLetterConfig.Arn", {"Fn::GetAtt": ["DispatchQueue", "Arn"]}),
    ("E9202", "PaymentRule.DependsOn", ["PaymentRulePermission"]),
    ("E9202", "PaymentRule.DependsOn", "RuleQueuesPolicy"),
    ("E9202", "PartnersRule.DependsOn", ["RuleQueuesPolicy"]),
    ("E9202", "CarRideLogRule.DependsOn", ["RuleQueuesPolicy"]),
    (
        "E9301",
        "OtherQueuesPolicy.Properties.Queues",
        [{"Ref": "PaymentDlq"}, {"Ref": "DispatchDlq"}],
    ),
    ("E9301", f"{_DLQ}.0", None),
    ("E9301", f"{_DLQ}.0.Action", ["sqs:SendMessage"]),
    ("E9302", f"{_RULE_DLQ}.0.Condition", None),
    ("E9302", f"{_RULE_DLQ}.0.Principal", "*"),
    ("E9302", "PartnersTopicPolicy.Metadata", None),
    ("E9303", "DispatchQueue.Properties.MessageRetentionPeriod", 345_600),
    ("E9401", "OutboxTable.Properties.TimeToLiveSpecification.Enabled", False),
    ("E9401", "CarTable.Metadata.HouseRules.NoTimeToLive", " "),
    ("E9402", "CarTable.Properties.Replicas.0.DeletionProtectionEnabled", False),
    ("E9402", "CarTable.Type", "AWS::DynamoDB::Table"),
    ("E9402", "SimulatedGatewayTable.Metadata", None),
    (
        "E9503",
        "PaymentRole.Properties.ManagedPolicyArns",
        ["arn:aws:iam::aws:policy/AmazonSQSFullAccess"],
    ),
    ("E9503", f"{_ROLE}.Action", ["logs:*"]),
    ("E9503", f"{_ROLE}.Resource", "*"),
    ("E9503", f"{_POLICY}.Action", ["lambda:*"]),
    ("E9503", f"{_POLICY}.Resource", {"Fn::Sub": "${SimulatedGatewayFunction.Arn}*"}),
    ("E9504", f"{_ROLE}.Action", ["dynamodb:ReadItem"]),
    ("E9504", f"{_ROLE}.Action", ["dynamodb:Reads*"]),
    ("E9504", f"{_POLICY}.Effect", "Permit"),
    ("E9504", f"{_TRUST}.Action", "sts:BecomeRole"),
    ("E9504", f"{_RULE_DLQ}.0.Condition", {"ArnLike": {"aws:SourceArm": "arn:aws:events:::"}}),
    ("E9504", f"{_LOGS}.Fn::Sub", _WRONG_LOGS),
    ("E9505", f"{_ROLE}.Action", ["dynamodb:GetItem", "dynamodb:GetRecords", "sqs:SendMessage"]),
    ("E9505", f"{_ROLE}.Resource", {"Fn::GetAtt": ["PaymentDlq", "Arn"]}),
    ("E9505", f"{_ROLE}.Resource", [_TABLE, {"Fn::GetAtt": ["PaymentDlq", "Arn"]}]),
    ("E9505", f"{_ROLE}.Resource", {"Fn::ImportValue": "elsewhere"}),
]


def found(resources: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return what the rules find, by rule."""
    house = House(resources)
    findings = {
        rule_id: [str(finding) for finding in rule.check(house)] for rule_id, rule in RULES.items()
    }
    return {rule_id: messages for rule_id, messages in findings.items() if messages}


def changed(resources: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """Return the resources with one value replaced or removed."""
    result = copy.deepcopy(resources)
    *way, last = path.split(".")
    place: Any = result
    for step in way:
        place = place[int(step)] if isinstance(place, list) else place.setdefault(step, {})
    key: Any = int(last) if isinstance(place, list) else last
    if value is None:
        del place[key]
    else:
        place[key] = value
    return result


def test_the_template_keeps_every_rule() -> None:
    """The rules find nothing in the template and its nested stacks, and every metric is watched."""
    assert found(source()["Resources"]) == {}
    assert unwatched(source()["Resources"]) == set()


@pytest.mark.parametrize(
    ("rule", "path", "value"), [pytest.param(*case, id=f"{case[0]}-{case[1]}") for case in WRONG]
)
def test_what_is_wrong_is_found(rule: str, path: str, value: object) -> None:
    """The rule finds a missing or wrong value."""
    assert rule in found(changed(source()["Resources"], path, value))


def test_every_rule_is_tried() -> None:
    """There is something wrong for each rule to find."""
    assert {rule for rule, _, _ in WRONG} == set(RULES)


GUARDS: Final = {"AWS::SQS::QueuePolicy", "AWS::SNS::TopicPolicy", "AWS::CloudWatch::Alarm"}


@pytest.mark.parametrize(
    "guard", [name for name, each in source()["Resources"].items() if each["Type"] in GUARDS]
)
def test_no_guard_can_be_taken_away(guard: str) -> None:
    """Without any alarm or policy, a rule, a dangling reference or an unwatched metric speaks."""
    resources = source()["Resources"]
    del resources[guard]
    assert found(resources) or guard in named(resources) or unwatched(resources)


@pytest.mark.parametrize(
    "table", [name for name, each in source()["Resources"].items() if each["Type"] == TABLE]
)
@pytest.mark.parametrize(
    "setting", ["TimeToLiveSpecification", "Replicas.0.PointInTimeRecoverySpecification"]
)
def test_no_table_can_lose_a_guard(table: str, setting: str) -> None:
    """Without its time to live, a reason for having none, or backups, a rule speaks up."""
    resources = source()["Resources"]
    reason = setting == "TimeToLiveSpecification" and setting not in resources[table]["Properties"]
    assert found(
        changed(resources, f"{table}.Metadata" if reason else f"{table}.Properties.{setting}", None)
    )
