"""The house rules of template.yaml, as rules of cfn-lint: stricter than what AWS accepts.

`.cfnlintrc` adds them to cfn-lint's own rules, so `make template`, an editor with cfn-lint and `sam
validate --lint` report them with the line. Metadata excepts a resource from some of them, with a
reason::

    Metadata:
      HouseRules:
        NoTimeToLive: the fleet does not grow with the traffic

A rule sees a template with its loops expanded, before conditions are decided: each branch of an
``Fn::If`` has to keep the rule. A nested template has to keep the rules by itself.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Final

from cfnlint.data import AdditionalSpecs
from cfnlint.helpers import load_resource
from cfnlint.rules import CloudFormationLintRule, RuleMatch

type Value = Any
"""A value of a template, with intrinsic functions as mappings: ``{"Ref": "…"}``."""
type Place = list[str | int]
type Finding = tuple[Place, str]
"""The path in the template, from the resource's logical id on, and what is wrong there."""

FUNCTIONS: Final = frozenset({"AWS::Serverless::Function", "AWS::Lambda::Function"})
LOG_GROUP: Final = "AWS::Logs::LogGroup"
QUEUE: Final = "AWS::SQS::Queue"
TOPIC: Final = "AWS::SNS::Topic"
TABLE: Final = "AWS::DynamoDB::GlobalTable"
PIPE: Final = "AWS::Pipes::Pipe"

FOURTEEN_DAYS: Final = 14 * 86_400
"""In seconds; the maximum of SQS."""
WITHOUT_RESOURCES: Final = frozenset({"xray:PutTraceSegments", "xray:PutTelemetryRecords"})
"""Actions that IAM allows only on "*"."""
_NO_VALUE: Final = {"Ref": "AWS::NoValue"}
_NAME: Final = re.compile(r"\$\{(\w+)(?:\.\w+)?\}")


# ── Reading a template ────────────────────────────────────────────────────────────────────────────


def branches(value: Value) -> Iterator[Value]:
    """Yield every value that the conditions allow; None if it can be left out."""
    match value:
        case {"Fn::If": [_, chosen, otherwise]}:
            yield from branches(chosen)
            yield from branches(otherwise)
        case _ if value == _NO_VALUE:
            yield None
        case _:
            yield value


def at(value: Value, *names: str) -> list[Value]:
    """Return the values under a path of names, in every branch and every element of a list."""
    found = list(branches(value))
    for name in names:
        inner: list[Value] = []
        for each in found:
            elements = (
                [one for element in each for one in branches(element)]
                if isinstance(each, list)
                else [each]
            )
            for element in elements:
                if element is not None or not isinstance(each, list):
                    inner += branches(element.get(name) if isinstance(element, Mapping) else None)
        found = inner
    return found


def listed(value: Value) -> list[Value]:
    """Return the elements of a list, in all branches; a single value is a list of one."""
    found = []
    for each in branches(value):
        for element in each if isinstance(each, list) else [each]:
            found += [one for one in branches(element) if one is not None]
    return found


def named(value: Value) -> set[str]:
    """Return every logical id that a value names, in all branches.

    An alias counts as its function.
    """
    match value:
        case {"Ref": str(name)} | {"Fn::GetAtt": [str(name), *_]} | {"Fn::GetAtt": str(name)}:
            return {name.partition(".")[0]}
        case {"Fn::Sub": str(text)}:
            return set(_NAME.findall(text))
        case {"Fn::Sub": [str(text), values]}:
            return {*_NAME.findall(text), *named(values)}
        case Mapping():
            return set().union(*map(named, value.values()))
        case list():
            return set().union(*map(named, value))
        case _:
            return set()


class House:
    """The resources of a template, with the questions that rules ask."""

    def __init__(self, resources: Mapping[str, Any]) -> None:
        self.resources = resources

    def type_of(self, name: str) -> str:
        """Return the type of a resource; empty if there is none of that name."""
        return str(self.resources.get(name, {}).get("Type", ""))

    def of_type(self, *types: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield logical id and properties of every resource of these types."""
        for name, resource in self.resources.items():
            if resource.get("Type") in types:
                yield name, resource.get("Properties") or {}

    def reason(self, name: str, exception: str) -> str:
        """Return the reason for an exception; empty without one."""
        metadata = self.resources[name].get("Metadata") or {}
        return str((metadata.get("HouseRules") or {}).get(exception, "")).strip()

    def alarms(self, namespace: str, metric: str, dimension: str, name: str) -> list[str]:
        """Return the alarms that watch a metric of a resource."""
        return [
            alarm
            for alarm, properties in self.of_type("AWS::CloudWatch::Alarm")
            if properties.get("Namespace") == namespace
            and properties.get("MetricName") == metric
            and name in named(properties.get("Dimensions"))
            and dimension in at(properties, "Dimensions", "Name")
        ]

    def dead_letter_queues(self) -> set[str]:
        """Return the queues without a redrive policy: nothing polls them."""
        return {name for name, queue in self.of_type(QUEUE) if "RedrivePolicy" not in queue}


def is_tls_only(statement: Mapping[str, Any], resource: str, action: str) -> bool:
    """Whether a statement refuses requests without TLS."""
    return (
        statement.get("Effect") == "Deny"
        and statement.get("Principal") == "*"
        and listed(statement.get("Action")) == [action]
        and named(statement.get("Resource")) == {resource}
        and statement.get("Condition") == {"Bool": {"aws:SecureTransport": "false"}}
    )


def is_pinned(statement: Mapping[str, Any]) -> bool:
    """Whether a statement allows nothing, or one service on behalf of a source that it names."""
    sources = [
        arn
        for operator in ("ArnEquals", "ArnLike")
        for arn in at(statement, "Condition", operator, "aws:SourceArn")
        if arn is not None and arn != "*"
    ]
    principal = statement.get("Principal")
    by_service = isinstance(principal, Mapping) and set(principal) == {"Service"}
    return statement.get("Effect") != "Allow" or (bool(sources) and by_service)


class _HouseRule:
    """Turns a check into a rule of cfn-lint."""

    check: Callable[[House], Iterator[Finding]]

    def match(self, cfn: Any) -> list[RuleMatch]:
        """Return the findings of the check in a template."""
        found = type(self).check(House(cfn.template.get("Resources") or {}))
        return [RuleMatch(["Resources", *path], message) for path, message in found]


def _rule(
    rule_id: str,
) -> Callable[[Callable[[House], Iterator[Finding]]], type[CloudFormationLintRule]]:
    def made(check: Callable[[House], Iterator[Finding]]) -> type[CloudFormationLintRule]:
        texts = {"shortdesc": check.__name__.replace("_", " "), "description": check.__doc__}
        members = {
            "__doc__": check.__doc__,
            "id": rule_id,
            "tags": ["house"],
            "check": staticmethod(check),
            **texts,
        }
        return type(check.__name__, (_HouseRule, CloudFormationLintRule), members)

    return made


# ── Functions ─────────────────────────────────────────────────────────────────────────────────────


@_rule("E9101")
def functions_log(house: House) -> Iterator[Finding]:
    """Every function writes to a log group of the template, and every log group has a retention."""
    groups = {name for name, _ in house.of_type(LOG_GROUP)}
    for name, function in house.of_type(*FUNCTIONS):
        for group in at(function, "LoggingConfig", "LogGroup"):
            if not named(group) or not named(group) <= groups:
                yield (
                    [name, "Properties"],
                    f"{name} needs LoggingConfig.LogGroup, a log group of this template",
                )
    for name, group in house.of_type(LOG_GROUP):
        if None in at(group, "RetentionInDays"):
            yield (
                [name, "Properties"],
                f"{name} needs RetentionInDays; without it, it keeps its entries for ever",
            )


@_rule("E9103")
def functions_alarm(house: House) -> Iterator[Finding]:
    """Every function, API and pipe has alarms on failures, and on events that Lambda loses."""
    own = [name for name, _ in house.of_type(*FUNCTIONS) if not house.reason(name, "NoAlarms")]
    wanted = [(name, "AWS/Lambda", "FunctionName", ["Errors", "Throttles"]) for name in own]
    wanted += [
        (name, "AWS/ApiGateway", "ApiId", ["5xx"])
        for name, _ in house.of_type("AWS::Serverless::HttpApi")
    ]
    wanted += [
        (name, "AWS/EventBridge/Pipes", "PipeName", ["ExecutionFailed"])
        for name, _ in house.of_type(PIPE)
    ]
    wanted += [
        (name, "AWS/Lambda", "FunctionName", ["DestinationDeliveryFailures"])
        for _, config in house.of_type("AWS::Lambda::EventInvokeConfig")
        for name in named(config["FunctionName"])
    ]
    for name, namespace, dimension, metrics in wanted:
        for metric in metrics:
            if not house.alarms(namespace, metric, dimension, name):
                yield [name], f"{name} needs an alarm on {metric}"


# ── Rules of the bus ──────────────────────────────────────────────────────────────────────────────


@_rule("E9201")
def targets_are_retried(house: House) -> Iterator[Finding]:
    """Every target of a rule has a retry policy and a dead-letter queue."""
    for name, rule in house.of_type("AWS::Events::Rule"):
        for index, target in enumerate(listed(rule.get("Targets"))):
            place: Place = [name, "Properties", "Targets", index]
            for setting in ("MaximumRetryAttempts", "MaximumEventAgeInSeconds"):
                if None in at(target, "RetryPolicy", setting):
                    yield place, f"{name} needs RetryPolicy.{setting} on its target"
            for arn in at(target, "DeadLetterConfig", "Arn"):
                if not named(arn) or not named(arn) <= house.dead_letter_queues():
                    yield (
                        place,
                        f"{name} needs a queue of this template as its target's DeadLetterConfig",
                    )


# ── Queues and topics ─────────────────────────────────────────────────────────────────────────────


@_rule("E9301")
def queues_have_one_policy(house: House) -> Iterator[Finding]:
    """A queue or topic has exactly one policy, since two overwrite each other, and demands TLS."""
    for kind, policy_kind, place, denied in (
        (QUEUE, "AWS::SQS::QueuePolicy", "Queues", "sqs:*"),
        (TOPIC, "AWS::SNS::TopicPolicy", "Topics", "sns:Publish"),
    ):
        for name, _ in house.of_type(kind):
            policies = {
                each: policy
                for each, policy in house.of_type(policy_kind)
                if name in named(policy.get(place))
            }
            if len(policies) != 1:
                yield [name], f"{name} needs exactly one policy"
            for policy, properties in policies.items():
                statements = listed(properties.get("PolicyDocument", {}).get("Statement"))
                if not any(is_tls_only(statement, name, denied) for statement in statements):
                    yield (
                        [policy, "Properties"],
                        f"{policy} needs a statement that denies requests without TLS",
                    )


@_rule("E9302")
def policies_are_pinned(house: House) -> Iterator[Finding]:
    """A policy of a queue or topic admits a service only on behalf of a resource that it names."""
    for name, policy in house.of_type("AWS::SQS::QueuePolicy", "AWS::SNS::TopicPolicy"):
        loose = [
            each
            for each in listed(policy.get("PolicyDocument", {}).get("Statement"))
            if not is_pinned(each)
        ]
        reason = house.reason(name, "NotPinned")
        if loose and not reason:
            yield (
                [name, "Properties"],
                f"{name} needs a service and aws:SourceArn in each statement that allows",
            )
        if reason and not loose:
            yield (
                [name, "Metadata"],
                f"{name} has a reason for NotPinned and is pinned; remove the reason",
            )


@_rule("E9303")
def queues_keep_messages(house: House) -> Iterator[Finding]:
    """A queue keeps its messages for 14 days, which leaves time to fix and redrive."""
    for name, queue in house.of_type(QUEUE):
        if at(queue, "MessageRetentionPeriod") != [FOURTEEN_DAYS]:
            yield (
                [name, "Properties"],
                f"{name} needs MessageRetentionPeriod: {FOURTEEN_DAYS}, which is 14 days",
            )


@_rule("E9304")
def queues_alarm(house: House) -> Iterator[Finding]:
    """A dead-letter queue alarms at its first message.

    A queue that a function polls, at an old message.
    """
    dead_letters = house.dead_letter_queues()
    for name, _ in house.of_type(QUEUE):
        metric = (
            "ApproximateNumberOfMessagesVisible"
            if name in dead_letters
            else "ApproximateAgeOfOldestMessage"
        )
        alarms = house.alarms("AWS/SQS", metric, "QueueName", name)
        if not alarms:
            yield [name], f"{name} needs an alarm on {metric}"
        for alarm in alarms if name in dead_letters else ():
            if house.resources[alarm]["Properties"].get("Threshold") != 0:
                yield (
                    [alarm, "Properties"],
                    f"{alarm} needs Threshold 0, to report the first message in {name}",
                )


# ── Tables, keys and roles ────────────────────────────────────────────────────────────────────────


@_rule("E9401")
def tables_expire(house: House) -> Iterator[Finding]:
    """A table expires its items, or has a reason for keeping them."""
    for name, table in house.of_type(TABLE):
        expires = at(table, "TimeToLiveSpecification", "Enabled") == [True]
        reason = house.reason(name, "NoTimeToLive")
        if not expires and not reason:
            yield (
                [name, "Properties"],
                f"{name} needs TimeToLiveSpecification, or a reason for NoTimeToLive",
            )
        if expires and reason:
            yield (
                [name, "Metadata"],
                f"{name} has a reason for NoTimeToLive and a time to live; remove one",
            )


@_rule("E9402")
def tables_come_back(house: House) -> Iterator[Finding]:
    """Each replica has point-in-time recovery, and deletion protection at least in production."""
    for name, table in house.of_type(TABLE):
        for index, replica in enumerate(listed(table.get("Replicas"))):
            path: Place = [name, "Properties", "Replicas", index]
            if at(replica, "PointInTimeRecoverySpecification", "PointInTimeRecoveryEnabled") != [
                True
            ]:
                yield path, f"{name} needs PointInTimeRecoverySpecification on every replica"
            if True not in at(replica, "DeletionProtectionEnabled"):
                yield (
                    path,
                    f"{name} needs DeletionProtectionEnabled on each replica in production",
                )
    for name, _ in house.of_type("AWS::DynamoDB::Table", "AWS::Serverless::SimpleTable"):
        if not house.reason(name, "Disposable"):
            yield (
                [name],
                f"{name} must be an {TABLE} with one replica: a plain table cannot get one later",
            )


@_rule("E9503")
def roles_are_narrow(house: House) -> Iterator[Finding]:
    """The role of a function or a pipe names every action and every resource, without wildcards."""
    holders = [holder for _, holder in house.of_type(*FUNCTIONS, PIPE)]
    used = set().union(*(named(holder.get("Role") or holder.get("RoleArn")) for holder in holders))
    for role, properties in house.of_type("AWS::IAM::Role"):
        if role in used:
            if listed(properties.get("ManagedPolicyArns")):
                yield (
                    [role, "Properties"],
                    f"{role} must not have managed policies; write the permissions down",
                )
            for statement in (
                each for each in at(properties, "Policies", "PolicyDocument", "Statement") if each
            ):
                yield from _wildcards(role, statement)
    for policy, properties in house.of_type("AWS::IAM::Policy"):
        # Also a role that a parameter names.
        if not named(properties["Roles"]) <= house.resources.keys() - used:
            yield from _wildcards(policy, properties["PolicyDocument"]["Statement"])


def _wildcards(holder: str, statements: Value) -> Iterator[Finding]:
    for statement in listed(statements):
        actions = set(listed(statement.get("Action")))
        if any("*" in action for action in actions):
            yield (
                [holder, "Properties"],
                f"{holder} allows actions by a wildcard: {sorted(actions)}",
            )
        everywhere = any("*" in json.dumps(each) for each in listed(statement.get("Resource")))
        if everywhere and not actions <= WITHOUT_RESOURCES:
            yield (
                [holder, "Properties"],
                f"{holder} allows {sorted(actions)} on resources by a wildcard",
            )


# ── Policies: every action exists and reaches a resource ──────────────────────────────────────────

SERVICES: Final[Mapping[str, Any]] = load_resource(AdditionalSpecs, "Policies.json")
"""AWS's service authorization reference: services, actions, resources.

Each release of cfn-lint brings a current one. That of parliament, which has more rules, is as old
as its last release, of April 2025.
"""

UNLISTED: Final = {
    # AWS's handlers of AWS::ApiGatewayV2::Stage name both; the reference lacks them.
    "apigateway:TagResource": ["arn:*:apigateway:*::/apis/*"],
    "apigateway:UntagResource": ["arn:*:apigateway:*::/apis/*"],
    # docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/using-iam-template.html
    "cloudformation:CreateChangeSet": ["arn:*:cloudformation:*:aws:transform/*"],
    # docs.aws.amazon.com/eventbridge/latest/userguide/eb-pipes-permissions.html
    "dynamodb:ListStreams": ["arn:*:dynamodb:*:*:table/*"],
}
"""ARNs of resources that an action applies to, and that the reference lacks."""

CONDITION_KEYS: Final = frozenset(
    {
        # docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-keys.html
        *("aws:SecureTransport", "aws:SourceAccount", "aws:SourceArn"),
        # docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_iam-condition-keys.html
        *("iam:PassedToService", "iam:PermissionsBoundary", "iam:PolicyARN"),
        # docs.aws.amazon.com/kms/latest/developerguide/conditions-kms.html
        *("kms:CallerAccount", "kms:GrantIsForAWSResource", "kms:ViaService"),
        # docs.aws.amazon.com/lambda/latest/dg/permissions-source-function-arn.html
        *("lambda:SourceFunctionArn", "lambda:FunctionUrlAuthType", "lambda:InvokedViaFunctionUrl"),
        # docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_iam-condition-keys.html
        *("token.actions.githubusercontent.com:aud", "token.actions.githubusercontent.com:sub"),
    }
)
"""Every condition key that a policy may have; IAM takes a misspelt one for a key without value."""
ENCRYPTION_CONTEXT: Final = "kms:EncryptionContext:"
"""A condition key that begins so ends with a name that the encrypting service chooses."""

ARNS: Final = {
    "AWS::DynamoDB::GlobalTable": "arn:x:dynamodb:x:x:table/x",
    "AWS::DynamoDB::Table": "arn:x:dynamodb:x:x:table/x",
    "AWS::Events::EventBus": "arn:x:events:x:x:event-bus/x",
    "AWS::IAM::ManagedPolicy": "arn:x:iam::x:policy/x",
    "AWS::IAM::Role": "arn:x:iam::x:role/x",
    "AWS::Lambda::Function": "arn:x:lambda:x:x:function:x",
    "AWS::Logs::LogGroup": "arn:x:logs:x:x:log-group:x",
    "AWS::Serverless::Function": "arn:x:lambda:x:x:function:x",
    "AWS::SNS::Topic": "arn:x:sns:x:x:x",
    "AWS::SQS::Queue": "arn:x:sqs:x:x:x",
}
"""The form of the ARNs of the types that policies name."""
PARAMETERS: Final = {
    "KmsKeyArn": "arn:x:kms:x:x:key/x",
    "OutboxStreamArn": "arn:x:dynamodb:x:x:table/x/stream/x",
    "PaymentGatewaySecretArn": "arn:x:secretsmanager:x:x:secret:x",
}
"""The form of the ARNs that parameters of the templates hold."""


def policies(resource: Mapping[str, Any]) -> Iterator[tuple[str, Value]]:
    """Yield each policy of a resource, with the property that holds it."""
    properties = resource.get("Properties") or {}
    for name in ("AssumeRolePolicyDocument", "PolicyDocument", "KeyPolicy"):
        for document in branches(properties.get(name)):
            match document:
                case {"Fn::Sub": str(text)}:  # JSON, with variables inside of its texts
                    yield name, json.loads(text)
                case Mapping():
                    yield name, document
    for inline in at(properties, "Policies", "PolicyDocument"):
        if inline is not None:
            yield "Policies", inline


def arn_of(house: House, value: Value) -> str | None:
    """Return the form of the ARN that a value stands for, with `x` for what a deployment fills in.

    None if it is unknown.
    """
    match value:
        case str(text) | {"Fn::Sub": str(text)} | {"Fn::Sub": [str(text), _]}:
            return re.sub(r"\$\{([^}]+)\}", lambda found: _filled(house, found[1]), text)
        case {"Ref": str(name)} if name in PARAMETERS:
            return PARAMETERS[name]
        case {"Ref": str(name)} | {"Fn::GetAtt": [str(name), "Arn"]}:
            return ARNS.get(house.type_of(name.removesuffix(".Alias")))
        case {"Fn::GetAtt": [str(name), "StreamArn"]}:
            return f"{ARNS[house.type_of(name)]}/stream/x"
        case _:
            return None


def _filled(house: House, variable: str) -> str:
    """Return what stands for a variable of a text: the form of an ARN, or a name."""
    name, _, attribute = variable.partition(".")
    return ARNS[house.type_of(name)] if attribute == "Arn" else "x"


def matching(action: str) -> list[str]:
    """Return the ARNs that the actions of a pattern apply to; ``*`` if one has no resources.

    Empty if there is no such action.
    """
    found = list(UNLISTED.get(action, []))
    service, _, name = action.partition(":")
    reference = SERVICES.get(service, {"Actions": {}, "Resources": {}})
    for known, each in reference["Actions"].items():
        if fnmatchcase(known, name.lower()):
            found += _forms(reference, each.get("Resources", [])) or ["*"]
    return found


def _forms(reference: Mapping[str, Any], kinds: Iterable[str]) -> list[str]:
    """Return the ARNs of kinds of resources, with ``*`` for what differs."""
    formats = [
        one for kind in kinds for one in reference["Resources"][kind.lower()].get("ARNFormats", [])
    ]
    return [re.sub(r"\$\{\w+\}|\.\*", "*", each) for each in formats]


@cache
def overlap(one: str, other: str) -> bool:
    """Whether some text matches both patterns, whose only wildcard is ``*``."""
    if not one or not other:
        return not (one + other).strip("*")
    if one[0] == "*":
        return overlap(one[1:], other) or overlap(one, other[1:])
    if other[0] == "*":
        return overlap(other, one)
    return one[0] == other[0] and overlap(one[1:], other[1:])


def reaches(form: str, arn: str) -> bool:
    """Whether an action on resources of a form applies to a resource of a policy."""
    if arn == "*":
        return True
    parts = zip(form.split(":", 5), arn.split(":", 5), strict=False)
    return form != "*" and all(
        overlap(of_form, of_arn) for of_form, of_arn in parts if of_arn != "x"
    )


@_rule("E9504")
def policies_are_real(house: House) -> Iterator[Finding]:
    """Every action and condition key of a policy exists; Effect is Allow or Deny.

    cfn-lint's own W3037 skips templates with SAM's transform, and stops at the first wrong action.
    """
    for name, resource in house.resources.items():
        for place, policy in policies(resource):
            for statement in listed(policy["Statement"]):
                for finding in _unreal(statement):
                    yield [name, "Properties", place], f"{name} {finding}"


def _unreal(statement: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a statement says that IAM does not know."""
    if statement.get("Effect") not in {"Allow", "Deny"}:
        yield "needs Effect: Allow or Deny"
    for action in (*listed(statement.get("Action")), *listed(statement.get("NotAction"))):
        if action != "*" and not matching(action):
            yield f"has the unknown action {action}"
    for condition in listed(statement.get("Condition")):
        for key in sorted(_keys(condition) - CONDITION_KEYS):
            if not key.startswith(ENCRYPTION_CONTEXT):
                yield f"has the unknown condition key {key}"


def _keys(condition: Mapping[str, Any]) -> set[str]:
    """Return the keys of a statement's condition."""
    return {key for operator in condition.values() for each in listed(operator) for key in each}


@_rule("E9505")
def policies_reach(house: House) -> Iterator[Finding]:
    """Every action applies to a resource of its statement, and every resource to an action.

    An action on a resource of another kind, such as `sqs:SendMessage` on a table, allows nothing.
    """
    for name, resource in house.resources.items():
        for place, policy in policies(resource):
            for statement in listed(policy["Statement"]):
                for finding in _unreachable(house, statement):
                    yield [name, "Properties", place], f"{name} {finding}"


def _unreachable(house: House, statement: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a statement allows in vain."""
    resources = listed(statement.get("Resource"))
    actions = [each for each in listed(statement.get("Action")) if each != "*"]
    if not resources or not actions:
        return  # a trust policy, or a statement on all actions
    arns = list[str]()
    for each in resources:
        arn = arn_of(house, each)
        if arn is None:
            yield f"has a resource that the house rules cannot read; add it to them: {each}"
        else:
            arns.append(arn)
    forms = {action: matching(action) for action in actions}
    for action, of_action in forms.items():
        if of_action and not any(reaches(form, arn) for form in of_action for arn in arns):
            yield f"allows {action} on none of its resources: {sorted(arns)}"
    every = [form for of_action in forms.values() for form in of_action]
    for arn in arns:
        if not any(reaches(form, arn) for form in every):
            yield f"allows nothing on {arn}"
