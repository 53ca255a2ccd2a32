"""The house rules of cfn-lint: each is silent about what is right, and speaks up when one thing is taken away."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest
from cfnlint.rules import CloudFormationLintRule
from samtranslator.yaml_helper import yaml_parse

from infrastructure.rules import house_rules
from infrastructure.rules.house_rules import House, mentioned
from tests.infrastructure.alarms import WATCHED, watched
from tests.infrastructure.stack import source

RULES: Final[dict[str, Any]] = {
    str(vars(rule)["id"]): rule
    for rule in vars(house_rules).values()
    if isinstance(rule, type) and issubclass(rule, CloudFormationLintRule) and "check" in vars(rule)
}

RIGHT: Final = """
Bus:
  Type: AWS::Events::EventBus
  Properties:
    KmsKeyIdentifier: !Ref KmsKeyArn
    DeadLetterConfig: { Arn: !GetAtt Dlq.Arn }
Rule:
  Type: AWS::Events::Rule
  Properties:
    Targets:
      - Arn: !GetAtt Function.Arn
        RetryPolicy: { MaximumRetryAttempts: 185, MaximumEventAgeInSeconds: 86400 }
        DeadLetterConfig: { Arn: !GetAtt Dlq.Arn }
      - Arn: !GetAtt Work.Arn
        RetryPolicy: { MaximumRetryAttempts: 185, MaximumEventAgeInSeconds: 86400 }
        DeadLetterConfig: { Arn: !GetAtt Dlq.Arn }
      - Arn: !Ref Topic
        RetryPolicy: { MaximumRetryAttempts: 185, MaximumEventAgeInSeconds: 86400 }
        DeadLetterConfig: { Arn: !GetAtt Dlq.Arn }
      - Arn: !Sub arn:aws:logs:${AWS::Region}:${AWS::AccountId}:log-group:${LogGroup}
        RetryPolicy: { MaximumRetryAttempts: 185, MaximumEventAgeInSeconds: 86400 }
        DeadLetterConfig: { Arn: !GetAtt Dlq.Arn }
Permission:
  Type: AWS::Lambda::Permission
  Properties:
    FunctionName: !If [Gradually, !Ref Function.Alias, !Ref Function]
    Principal: events.amazonaws.com
    SourceArn: !GetAtt Rule.Arn
Function:
  Type: AWS::Serverless::Function
  Properties:
    Role: !GetAtt Role.Arn
    LoggingConfig: { LogGroup: !Ref LogGroup }
    EventInvokeConfig: { DestinationConfig: { OnFailure: { Type: SQS, Destination: !GetAtt Dlq.Arn } } }
Role:
  Type: AWS::IAM::Role
  Properties:
    Policies:
      - PolicyDocument:
          Statement:
            - { Effect: Allow, Action: [sqs:SendMessage], Resource: !GetAtt Dlq.Arn }
            - { Effect: Allow, Action: [xray:PutTraceSegments, xray:PutTelemetryRecords], Resource: "*" }
ErrorsAlarm: &errors
  Type: AWS::CloudWatch::Alarm
  Properties:
    Namespace: AWS/Lambda
    MetricName: Errors
    Dimensions: [{ Name: FunctionName, Value: !Ref Function }]
    AlarmActions: [!Ref Topic]
ThrottlesAlarm:
  Type: AWS::CloudWatch::Alarm
  Properties:
    Namespace: AWS/Lambda
    MetricName: Throttles
    Dimensions: [{ Name: FunctionName, Value: !Ref Function }]
    AlarmActions: [!Ref Topic]
UndeliveredAlarm:
  Type: AWS::CloudWatch::Alarm
  Properties:
    Namespace: AWS/Lambda
    MetricName: DestinationDeliveryFailures
    Dimensions: [{ Name: FunctionName, Value: !Ref Function }]
    AlarmActions: [!Ref Topic]
LogGroup:
  Type: AWS::Logs::LogGroup
  Properties: { RetentionInDays: 14, KmsKeyId: !Ref KmsKeyArn }
LogsPolicy:
  Type: AWS::Logs::ResourcePolicy
  Properties: { PolicyDocument: !Sub '{"Resource": "${LogGroup.Arn}", "aws:SourceArn": "${Rule.Arn}"}' }
Dlq:
  Type: AWS::SQS::Queue
  Properties:
    MessageRetentionPeriod: 1209600
    SqsManagedSseEnabled: !If [HasKey, false, true]
    KmsMasterKeyId: !If [HasKey, !Ref KmsKeyArn, !Ref AWS::NoValue]
DlqPolicy:
  Type: AWS::SQS::QueuePolicy
  Properties:
    Queues: [!Ref Dlq]
    PolicyDocument:
      Statement:
        - Effect: Allow
          Principal: { Service: events.amazonaws.com }
          Action: sqs:SendMessage
          Resource: !GetAtt Dlq.Arn
          Condition: { ArnEquals: { aws:SourceArn: !GetAtt Rule.Arn } }
        - Effect: Allow
          Principal: { Service: events.amazonaws.com }
          Action: sqs:SendMessage
          Resource: !GetAtt Dlq.Arn
          Condition: { ArnEquals: { aws:SourceArn: !GetAtt Bus.Arn } }
        - Effect: Deny
          Principal: "*"
          Action: sqs:*
          Resource: !GetAtt Dlq.Arn
          Condition: { Bool: { aws:SecureTransport: "false" } }
DlqAlarm:
  Type: AWS::CloudWatch::Alarm
  Properties:
    Namespace: AWS/SQS
    MetricName: ApproximateNumberOfMessagesVisible
    Dimensions: [{ Name: QueueName, Value: !GetAtt Dlq.QueueName }]
    Threshold: 0
    AlarmActions: [!Ref Topic]
Work:
  Type: AWS::SQS::Queue
  Properties:
    MessageRetentionPeriod: 1209600
    SqsManagedSseEnabled: true
    KmsMasterKeyId: !Ref KmsKeyArn
    RedrivePolicy: { deadLetterTargetArn: !GetAtt Dlq.Arn, maxReceiveCount: 5 }
WorkPolicy:
  Type: AWS::SQS::QueuePolicy
  Properties:
    Queues: [!Ref Work]
    PolicyDocument:
      Statement:
        - Effect: Allow
          Principal: { Service: events.amazonaws.com }
          Action: sqs:SendMessage
          Resource: !GetAtt Work.Arn
          Condition: { ArnEquals: { aws:SourceArn: !GetAtt Rule.Arn } }
        - Effect: Deny
          Principal: "*"
          Action: sqs:*
          Resource: !GetAtt Work.Arn
          Condition: { Bool: { aws:SecureTransport: "false" } }
WorkAlarm:
  Type: AWS::CloudWatch::Alarm
  Properties:
    Namespace: AWS/SQS
    MetricName: ApproximateAgeOfOldestMessage
    Dimensions: [{ Name: QueueName, Value: !GetAtt Work.QueueName }]
    AlarmActions: [!Ref Topic]
Topic:
  Type: AWS::SNS::Topic
  Properties: { KmsMasterKeyId: !Ref KmsKeyArn }
TopicPolicy:
  Type: AWS::SNS::TopicPolicy
  Metadata: { HouseRules: { NotPinned: rules cannot be named here } }
  Properties:
    Topics: [!Ref Topic]
    PolicyDocument:
      Statement:
        - { Effect: Allow, Principal: { Service: events.amazonaws.com }, Action: sns:Publish, Resource: !Ref Topic }
        - Effect: Deny
          Principal: "*"
          Action: sns:Publish
          Resource: !Ref Topic
          Condition: { Bool: { aws:SecureTransport: "false" } }
Table:
  Type: AWS::DynamoDB::GlobalTable
  Properties:
    TimeToLiveSpecification: { AttributeName: expiry, Enabled: true }
    Replicas:
      - Region: !Ref AWS::Region
        SSESpecification: !If [HasKey, { KMSMasterKeyId: !Ref KmsKeyArn }, !Ref AWS::NoValue]
        DeletionProtectionEnabled: !If [IsProd, true, false]
        PointInTimeRecoverySpecification: { PointInTimeRecoveryEnabled: true }
Fleet:
  Type: AWS::DynamoDB::GlobalTable
  Metadata: { HouseRules: { NoTimeToLive: it does not grow } }
  Properties:
    Replicas:
      - SSESpecification: { KMSMasterKeyId: !Ref KmsKeyArn }
        DeletionProtectionEnabled: true
        PointInTimeRecoverySpecification: { PointInTimeRecoveryEnabled: true }
Api:
  Type: AWS::Serverless::HttpApi
  Properties: { DefinitionBody: { uri: !Sub "functions/${ApiFunction.Arn}/invocations" } }
ApiAlarm:
  Type: AWS::CloudWatch::Alarm
  Properties:
    Namespace: AWS/ApiGateway
    MetricName: 5xx
    Dimensions: [{ Name: ApiId, Value: !Ref Api }]
    AlarmActions: [!Ref Topic]
ApiPermission:
  Type: AWS::Lambda::Permission
  Properties:
    FunctionName: !Ref ApiFunction
    Principal: apigateway.amazonaws.com
    SourceArn: !Sub arn:aws:execute-api:${AWS::Region}:${AWS::AccountId}:${Api}/*
ApiFunction:
  Type: AWS::Serverless::Function
  Properties: { Role: !GetAtt ApiRole.Arn, LoggingConfig: { LogGroup: !Ref LogGroup } }
ApiRole:
  Type: AWS::IAM::Role
  Properties: {}
ApiErrorsAlarm:
  Type: AWS::CloudWatch::Alarm
  Properties:
    Namespace: AWS/Lambda
    MetricName: Errors
    Dimensions: [{ Name: FunctionName, Value: !Ref ApiFunction }]
    AlarmActions: [!Ref Topic]
ApiThrottlesAlarm:
  Type: AWS::CloudWatch::Alarm
  Properties:
    Namespace: AWS/Lambda
    MetricName: Throttles
    Dimensions: [{ Name: FunctionName, Value: !Ref ApiFunction }]
    AlarmActions: [!Ref Topic]
Pipe:
  Type: AWS::Pipes::Pipe
  Properties: { RoleArn: !GetAtt PipeRole.Arn }
PipeRole:
  Type: AWS::IAM::Role
  Properties: {}
PipeAlarm:
  Type: AWS::CloudWatch::Alarm
  Properties:
    Namespace: AWS/EventBridge/Pipes
    MetricName: ExecutionFailed
    Dimensions: [{ Name: PipeName, Value: !Ref Pipe }]
    AlarmActions: [!Ref Topic]
"""
"""Resources that keep every rule, each of them the smallest that does."""

WRONG: Final[list[tuple[str, str, object]]] = [
    # rule, path from the logical id on, and what stands there instead; None takes it away
    ("E9101", "Function.Properties.LoggingConfig", None),
    ("E9101", "Function.Properties.LoggingConfig.LogGroup", "/aws/lambda/somewhere"),
    ("E9101", "LogGroup.Properties.RetentionInDays", None),
    ("E9102", "Function.Properties.EventInvokeConfig", None),
    ("E9102", "Function.Properties.EventInvokeConfig.DestinationConfig.OnFailure.Destination", {"Ref": "Work"}),
    ("E9102", "ApiPermission.Properties.Principal", "events.amazonaws.com"),
    ("E9103", "ErrorsAlarm", None),
    ("E9103", "ThrottlesAlarm", None),
    ("E9103", "UndeliveredAlarm", None),
    ("E9103", "ErrorsAlarm.Condition", "IsProd"),
    ("E9103", "ErrorsAlarm.Properties.AlarmActions", []),
    ("E9103", "ErrorsAlarm.Properties.Dimensions", [{"Name": "FunctionName", "Value": {"Ref": "Other"}}]),
    ("E9103", "ApiAlarm", None),
    ("E9103", "PipeAlarm", None),
    ("E9201", "Rule.Properties.Targets.0.RetryPolicy", None),
    ("E9201", "Rule.Properties.Targets.1.RetryPolicy.MaximumEventAgeInSeconds", None),
    ("E9201", "Rule.Properties.Targets.0.RetryPolicy", {"Fn::If": ["IsProd", {}, {"Ref": "AWS::NoValue"}]}),
    ("E9201", "Rule.Properties.Targets.2.DeadLetterConfig", None),
    ("E9201", "Rule.Properties.Targets.2.DeadLetterConfig.Arn", {"Fn::GetAtt": ["Work", "Arn"]}),
    ("E9202", "Permission", None),
    ("E9202", "Permission.Properties.SourceArn", {"Fn::GetAtt": ["Bus", "Arn"]}),
    ("E9202", "WorkPolicy.Properties.PolicyDocument.Statement.0", None),
    ("E9202", "DlqPolicy.Properties.PolicyDocument.Statement.0", None),
    ("E9202", "DlqPolicy.Properties.PolicyDocument.Statement.0.Action", "sqs:ReceiveMessage"),
    ("E9202", "TopicPolicy.Properties.PolicyDocument.Statement.0", None),
    ("E9202", "LogsPolicy", None),
    ("E9203", "Bus.Properties.DeadLetterConfig", None),
    ("E9203", "DlqPolicy.Properties.PolicyDocument.Statement.1", None),
    ("E9204", "ApiPermission", None),
    ("E9301", "DlqPolicy", None),
    ("E9301", "WorkPolicy.Condition", "IsProd"),
    ("E9301", "WorkPolicy.Properties.Queues", [{"Ref": "Work"}, {"Ref": "Dlq"}]),
    ("E9301", "DlqPolicy.Properties.PolicyDocument.Statement.2", None),
    ("E9301", "DlqPolicy.Properties.PolicyDocument.Statement.2.Action", "sqs:SendMessage"),
    ("E9301", "TopicPolicy", None),
    ("E9301", "TopicPolicy.Properties.PolicyDocument.Statement.1", None),
    ("E9302", "DlqPolicy.Properties.PolicyDocument.Statement.0.Condition", None),
    ("E9302", "DlqPolicy.Properties.PolicyDocument.Statement.0.Principal", "*"),
    ("E9302", "TopicPolicy.Metadata", None),
    ("E9302", "DlqPolicy.Metadata", {"HouseRules": {"NotPinned": "it is"}}),
    ("E9303", "Dlq.Properties.MessageRetentionPeriod", None),
    ("E9303", "Work.Properties.MessageRetentionPeriod", 345_600),
    ("E9304", "DlqAlarm", None),
    ("E9304", "DlqAlarm.Properties.Threshold", 1),
    ("E9304", "WorkAlarm", None),
    ("E9304", "WorkAlarm.Properties.MetricName", "ApproximateNumberOfMessagesVisible"),
    ("E9401", "Table.Properties.TimeToLiveSpecification", None),
    ("E9401", "Table.Properties.TimeToLiveSpecification.Enabled", False),
    ("E9401", "Fleet.Metadata", None),
    ("E9401", "Fleet.Metadata.HouseRules.NoTimeToLive", " "),
    ("E9401", "Table.Metadata", {"HouseRules": {"NoTimeToLive": "it has one"}}),
    ("E9402", "Table.Properties.Replicas.0.PointInTimeRecoverySpecification", None),
    ("E9402", "Table.Properties.Replicas.0.DeletionProtectionEnabled", False),
    ("E9402", "Table.Type", "AWS::DynamoDB::Table"),
    ("E9501", "Dlq.Properties.KmsMasterKeyId", None),
    ("E9501", "Dlq.Properties.SqsManagedSseEnabled", None),
    ("E9501", "Bus.Properties.KmsKeyIdentifier", "alias/another"),
    ("E9501", "LogGroup.Properties.KmsKeyId", None),
    ("E9501", "Topic.Properties.KmsMasterKeyId", None),
    ("E9501", "Table.Properties.Replicas.0.SSESpecification", None),
    ("E9502", "Function.Properties.Role", "arn:aws:iam::123456789012:role/admin"),
    ("E9502", "ApiFunction.Properties.Role", {"Fn::GetAtt": ["Role", "Arn"]}),
    ("E9502", "Pipe.Properties.RoleArn", {"Fn::GetAtt": ["Role", "Arn"]}),
    ("E9503", "Role.Properties.ManagedPolicyArns", ["arn:aws:iam::aws:policy/AmazonSQSFullAccess"]),
    ("E9503", "Role.Properties.Policies.0.PolicyDocument.Statement.0.Action", ["sqs:*"]),
    ("E9503", "Role.Properties.Policies.0.PolicyDocument.Statement.0.Resource", "*"),
    ("E9503", "Role.Properties.Policies.0.PolicyDocument.Statement.0.Resource", {"Fn::Sub": "${Dlq.Arn}*"}),
    ("E9901", "Dlq.Metadata", {"HouseRules": {"NoAlarm": "it is quiet"}}),
]


def found(resources: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return what the rules find, by rule."""
    house = House(resources)
    findings = {rule_id: [message for _, message in rule.check(house)] for rule_id, rule in RULES.items()}
    return {rule_id: messages for rule_id, messages in findings.items() if messages}


def changed(resources: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """Return the resources with one value in another's place, or taken away."""
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


@pytest.fixture(scope="module")
def right() -> dict[str, Any]:
    """The resources that keep every rule."""
    parsed: dict[str, Any] = yaml_parse(RIGHT)
    return parsed


def test_what_is_right_is_accepted(right: dict[str, Any]) -> None:
    """No rule finds anything in resources that keep them all."""
    assert found(right) == {}


@pytest.mark.parametrize(("rule", "path", "value"), [pytest.param(*case, id=f"{case[0]}-{case[1]}") for case in WRONG])
def test_what_is_wrong_is_found(right: dict[str, Any], rule: str, path: str, value: object) -> None:
    """The rule finds that one thing is missing, or is another."""
    assert rule in found(changed(right, path, value))


def test_every_rule_is_tried() -> None:
    """There is something wrong for each rule to find, and each says in a sentence what it is about."""
    assert {rule for rule, _, _ in WRONG} == set(RULES)
    assert all(rule.description.endswith(".") for rule in RULES.values())


# ── The real template ─────────────────────────────────────────────────────────────────────────────────────────────────

GUARDS: Final = {
    "AWS::SQS::QueuePolicy",
    "AWS::SNS::TopicPolicy",
    "AWS::Logs::ResourcePolicy",
    "AWS::Lambda::Permission",
    "AWS::Lambda::EventInvokeConfig",
    "AWS::IAM::Policy",
    "AWS::CloudWatch::Alarm",
    "AWS::CloudWatch::CompositeAlarm",
}
"""Types of which no resource can go without that a test says so."""


def guards() -> Iterator[str]:
    """Yield the logical ids of the template's policies, permissions and alarms."""
    for name, resource in source()["Resources"].items():
        if resource["Type"] in GUARDS:
            yield name


def dangling(resources: Mapping[str, Any]) -> set[str]:
    """Return what resources name that is not there: cfn-lint's own rules report it."""
    named = mentioned(dict(resources)) | {
        name
        for resource in resources.values()
        for depended in [resource.get("DependsOn", [])]
        for name in ([depended] if isinstance(depended, str) else depended)
    }
    return named & (set(source()["Resources"]) - set(resources))


def test_the_template_keeps_every_rule() -> None:
    """The rules find nothing in the template, and its alarms watch what they should."""
    assert found(source()["Resources"]) == {}
    assert watched(source()["Resources"]) == WATCHED


@pytest.mark.parametrize("guard", list(guards()))
def test_no_guard_can_be_taken_away(guard: str) -> None:
    """Without any policy, permission or alarm, a rule speaks up, a reference leads nowhere, or an alarm is missed."""
    resources = source()["Resources"]
    del resources[guard]
    assert found(resources) or dangling(resources) or watched(resources) != WATCHED
