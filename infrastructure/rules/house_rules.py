"""The house rules of template.yaml, as rules of cfn-lint: stricter than what AWS accepts.

`.cfnlintrc` adds them to cfn-lint's own rules, so `make lint`, an editor with cfn-lint and `sam
validate --lint` report them with the line. Metadata excepts a resource from some of them, with a
reason::

    Metadata:
      HouseRules:
        NoTimeToLive: the fleet does not grow with the traffic

A rule sees a template before conditions are decided: each branch of an ``Fn::If`` has to keep the
rule. A nested template has to keep the rules by itself.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Final, NamedTuple

from cfnlint.data import AdditionalSpecs
from cfnlint.helpers import load_resource
from cfnlint.rules import CloudFormationLintRule, RuleMatch

type Value = Any
"""A value of a template, with intrinsic functions as mappings: ``{"Ref": "…"}``."""
type Place = tuple[str | int, ...]
type NamedPolicy = tuple[str, Mapping[str, Any]]
"""The logical id of a policy, and its properties."""

PROPERTIES: Final[Place] = ("Properties",)
METADATA: Final[Place] = ("Metadata",)


class Finding(NamedTuple):
    """Something that breaks a rule."""

    resource: str
    """Its logical id."""
    what: str
    """What is wrong with it, as the rest of a sentence that begins with its name."""
    place: Place = ()
    """The path in the resource."""

    def __str__(self) -> str:
        """Return the sentence."""
        return f"{self.resource} {self.what}"


FUNCTIONS: Final = frozenset({"AWS::Serverless::Function", "AWS::Lambda::Function"})
LOG_GROUP: Final = "AWS::Logs::LogGroup"
QUEUE: Final = "AWS::SQS::Queue"
TOPIC: Final = "AWS::SNS::Topic"
TABLE: Final = "AWS::DynamoDB::GlobalTable"
PIPE: Final = "AWS::Pipes::Pipe"
RULE: Final = "AWS::Events::Rule"

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
    """Return the values under a path of names, in every branch and every element of a list.

    A value is None where the path may be missing.
    """
    found = list(branches(value))
    for name in names:
        inner: list[Value] = []
        for each in found:
            elements = listed(each) if isinstance(each, list) else [each]
            for element in elements:
                inner += _under(element, name)
        found = inner
    return found


def _under(value: Value, name: str) -> Iterator[Value]:
    """Yield the values under a name, in every branch; None where there is none."""
    if isinstance(value, Mapping):
        yield from branches(value.get(name))
    else:
        yield None


def listed(value: Value) -> list[Value]:
    """Return the elements of a list, in all branches; a single value is a list of one."""
    found = []
    for each in branches(value):
        elements = each if isinstance(each, list) else [each]
        for element in elements:
            found += [one for one in branches(element) if one is not None]
    return found


def named(value: Value) -> set[str]:
    """Return every logical id that a value names, in all branches. An alias names its function."""
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
                properties = resource.get("Properties") or {}
                yield name, properties

    def reason(self, name: str, exception: str) -> str:
        """Return the reason for an exception; empty without one."""
        metadata = self.resources[name].get("Metadata") or {}
        exceptions = metadata.get("HouseRules") or {}
        reason = str(exceptions.get(exception, ""))
        return reason.strip()

    def dead_letter_queues(self) -> set[str]:
        """Return the queues without a redrive policy: nothing polls them."""
        found = set[str]()
        for name, queue in self.of_type(QUEUE):
            if "RedrivePolicy" not in queue:
                found.add(name)
        return found


def is_tls_only(statement: Mapping[str, Any], resource: str, action: str) -> bool:
    """Return whether a statement refuses requests without TLS."""
    return (
        statement.get("Effect") == "Deny"
        and statement.get("Principal") == "*"
        and listed(statement.get("Action")) == [action]
        and (statement.get("Resource") == "*" or named(statement.get("Resource")) == {resource})
        and statement.get("Condition") == {"Bool": {"aws:SecureTransport": "false"}}
    )


def statements_of(policy: Mapping[str, Any]) -> list[Value]:
    """Return the statements of a queue's or topic's policy."""
    document = policy.get("PolicyDocument", {})
    return listed(document.get("Statement"))


def is_pinned(statement: Mapping[str, Any]) -> bool:
    """Return whether a statement allows nothing, or a service on behalf of a named source."""
    if statement.get("Effect") != "Allow":
        return True
    arns = at(statement, "Condition", "ArnEquals", "aws:SourceArn")
    arns += at(statement, "Condition", "ArnLike", "aws:SourceArn")
    names_a_source = any(arn is not None and arn != "*" for arn in arns)
    principal = statement.get("Principal")
    allows_services = isinstance(principal, Mapping) and set(principal) == {"Service"}
    return names_a_source and allows_services


type Check = Callable[[House], Iterator[Finding]]


class _HouseRule:
    """Turns a check into a rule of cfn-lint."""

    check: Check

    def match(self, cfn: Any) -> list[RuleMatch]:
        """Return the findings of the check in a template."""
        house = House(cfn.template.get("Resources") or {})
        return [
            RuleMatch(["Resources", finding.resource, *finding.place], str(finding))
            for finding in type(self).check(house)
        ]


def _rule(rule_id: str) -> Callable[[Check], type[CloudFormationLintRule]]:
    def made(check: Check) -> type[CloudFormationLintRule]:
        members = {
            "__doc__": check.__doc__,
            "id": rule_id,
            "shortdesc": check.__name__.replace("_", " "),
            "description": check.__doc__,
            "tags": ["house"],
            "check": staticmethod(check),
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
            if not _names_one_of(groups, group):
                yield Finding(
                    name, "needs LoggingConfig.LogGroup, a log group of this template", PROPERTIES
                )
    for name, group in house.of_type(LOG_GROUP):
        if None in at(group, "RetentionInDays"):
            yield Finding(
                name, "needs RetentionInDays; without it, it keeps its entries for ever", PROPERTIES
            )


def _names_one_of(resources: Collection[str], value: Value) -> bool:
    """Return whether a value names a resource, and none but these."""
    found = named(value)
    return bool(found) and found <= set(resources)


# ── Rules of the bus ──────────────────────────────────────────────────────────────────────────────


@_rule("E9201")
def targets_are_retried(house: House) -> Iterator[Finding]:
    """Every target of a rule has a retry policy and a dead-letter queue."""
    for name, rule in house.of_type(RULE):
        for index, target in enumerate(listed(rule.get("Targets"))):
            place = (*PROPERTIES, "Targets", index)
            for setting in ("MaximumRetryAttempts", "MaximumEventAgeInSeconds"):
                if None in at(target, "RetryPolicy", setting):
                    yield Finding(name, f"needs RetryPolicy.{setting} on its target", place)
            for arn in at(target, "DeadLetterConfig", "Arn"):
                if not _names_one_of(house.dead_letter_queues(), arn):
                    needed = "needs a queue of this template as its target's DeadLetterConfig"
                    yield Finding(name, needed, place)


@_rule("E9202")
def rules_come_after_what_admits_them(house: House) -> Iterator[Finding]:
    """A rule is created after the policies and permissions of its targets and its queue.

    EventBridge does not retry what it may not deliver, and drops what it may not dead-letter.
    """
    for name, rule in house.of_type(RULE):
        waits_for = set(listed(house.resources[name].get("DependsOn", [])))
        reached = named(rule.get("Targets"))
        for kind, holder in _ADMITTING.items():
            for admitting, properties in house.of_type(kind):
                if named(properties.get(holder)) & reached and admitting not in waits_for:
                    yield Finding(name, f"needs DependsOn: {admitting}, which admits it")


_ADMITTING: Final = {
    "AWS::SQS::QueuePolicy": "Queues",
    "AWS::SNS::TopicPolicy": "Topics",
    "AWS::Lambda::Permission": "FunctionName",
    "AWS::Logs::ResourcePolicy": "PolicyDocument",
}
"""Types that admit a rule to something, and the property that names it."""


# ── Queues and topics ─────────────────────────────────────────────────────────────────────────────


@_rule("E9301")
def queues_have_one_policy(house: House) -> Iterator[Finding]:
    """A queue or topic has exactly one policy, since two overwrite each other, and demands TLS."""
    for name, _ in house.of_type(QUEUE):
        policies = [*_policies_of(house, name, "AWS::SQS::QueuePolicy", "Queues")]
        yield from _one_with_tls(name, policies, "sqs:*")
    for name, _ in house.of_type(TOPIC):
        policies = [*_policies_of(house, name, "AWS::SNS::TopicPolicy", "Topics")]
        yield from _one_with_tls(name, policies, "sns:Publish")


def _policies_of(house: House, name: str, kind: str, holder: str) -> Iterator[NamedPolicy]:
    """Yield the policies of a kind that name a resource in their property ``holder``."""
    for policy, properties in house.of_type(kind):
        if name in named(properties.get(holder)):
            yield policy, properties


def _one_with_tls(name: str, policies: list[NamedPolicy], denied: str) -> Iterator[Finding]:
    if len(policies) != 1:
        yield Finding(name, "needs exactly one policy")
    for policy, properties in policies:
        statements = statements_of(properties)
        if not any(is_tls_only(statement, name, denied) for statement in statements):
            yield Finding(policy, "needs a statement that denies requests without TLS", PROPERTIES)


@_rule("E9302")
def policies_are_pinned(house: House) -> Iterator[Finding]:
    """A policy of a queue or topic admits a service only on behalf of a resource that it names."""
    for name, policy in house.of_type("AWS::SQS::QueuePolicy", "AWS::SNS::TopicPolicy"):
        pinned = all(is_pinned(statement) for statement in statements_of(policy))
        reason = house.reason(name, "NotPinned")
        if not pinned and not reason:
            yield Finding(
                name, "needs a service and aws:SourceArn in each statement that allows", PROPERTIES
            )
        if reason and pinned:
            yield Finding(
                name, "has a reason for NotPinned and is pinned; remove the reason", METADATA
            )


@_rule("E9303")
def queues_keep_messages(house: House) -> Iterator[Finding]:
    """A queue keeps its messages for 14 days, which leaves time to fix and redrive."""
    for name, queue in house.of_type(QUEUE):
        if at(queue, "MessageRetentionPeriod") != [FOURTEEN_DAYS]:
            yield Finding(
                name, f"needs MessageRetentionPeriod: {FOURTEEN_DAYS}, which is 14 days", PROPERTIES
            )


# ── Tables and roles ──────────────────────────────────────────────────────────────────────────────


@_rule("E9401")
def tables_expire(house: House) -> Iterator[Finding]:
    """A table expires its items, or has a reason for keeping them."""
    for name, table in house.of_type(TABLE):
        expires = at(table, "TimeToLiveSpecification", "Enabled") == [True]
        reason = house.reason(name, "NoTimeToLive")
        if not expires and not reason:
            yield Finding(
                name, "needs TimeToLiveSpecification, or a reason for NoTimeToLive", PROPERTIES
            )
        if expires and reason:
            yield Finding(
                name, "has a reason for NoTimeToLive and a time to live; remove one", METADATA
            )


@_rule("E9402")
def tables_come_back(house: House) -> Iterator[Finding]:
    """Each replica has point-in-time recovery, and deletion protection at least in production."""
    for name, table in house.of_type(TABLE):
        for index, replica in enumerate(listed(table.get("Replicas"))):
            place = (*PROPERTIES, "Replicas", index)
            recovery = "PointInTimeRecoverySpecification"
            if at(replica, recovery, "PointInTimeRecoveryEnabled") != [True]:
                yield Finding(name, f"needs {recovery} on every replica", place)
            if True not in at(replica, "DeletionProtectionEnabled"):
                yield Finding(
                    name, "needs DeletionProtectionEnabled on each replica in production", place
                )
    for name, _ in house.of_type("AWS::DynamoDB::Table", "AWS::Serverless::SimpleTable"):
        if not house.reason(name, "Disposable"):
            why = "a plain table cannot get one later"
            yield Finding(name, f"must be an {TABLE} with one replica: {why}")


@_rule("E9503")
def roles_are_narrow(house: House) -> Iterator[Finding]:
    """The role of a function or a pipe names every action and every resource, without wildcards."""
    used: set[str] = set()
    for _, holder in house.of_type(*FUNCTIONS, PIPE):
        used |= named(holder.get("Role") or holder.get("RoleArn"))
    for role, properties in house.of_type("AWS::IAM::Role"):
        if role not in used:
            continue
        if listed(properties.get("ManagedPolicyArns")):
            yield Finding(
                role, "must not have managed policies; write the permissions down", PROPERTIES
            )
        for statements in at(properties, "Policies", "PolicyDocument", "Statement"):
            yield from _wildcards(role, statements)
    other_roles = house.resources.keys() - used
    for policy, properties in house.of_type("AWS::IAM::Policy"):
        # A role that a parameter names may be one that is used.
        if not named(properties["Roles"]) <= other_roles:
            yield from _wildcards(policy, properties["PolicyDocument"]["Statement"])


def _wildcards(holder: str, statements: Value) -> Iterator[Finding]:
    for statement in listed(statements):
        actions = set(listed(statement.get("Action")))
        if any("*" in action for action in actions):
            yield Finding(holder, f"allows actions by a wildcard: {sorted(actions)}", PROPERTIES)
        resources = listed(statement.get("Resource"))
        everywhere = any("*" in json.dumps(each) for each in resources)
        if everywhere and not actions <= WITHOUT_RESOURCES:
            yield Finding(
                holder, f"allows {sorted(actions)} on resources by a wildcard", PROPERTIES
            )


# ── Policies: every action exists and reaches a resource ──────────────────────────────────────────

SERVICES: Final[Mapping[str, Any]] = load_resource(AdditionalSpecs, "Policies.json")
"""AWS's service authorization reference: services, actions, resources.

Each release of cfn-lint brings a current one. Parliament has more rules, but its last release, and
so its reference, is of April 2025.
"""

UNLISTED: Final = {
    # docs.aws.amazon.com/eventbridge/latest/userguide/eb-pipes-permissions.html
    "dynamodb:ListStreams": ["arn:*:dynamodb:*:*:table/*"],
}
"""ARNs of resources that an action applies to, and that the reference lacks."""

CONDITION_KEYS: Final = frozenset(
    {
        # docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-keys.html
        "aws:SecureTransport",
        "aws:SourceAccount",
        "aws:SourceArn",
        # docs.aws.amazon.com/lambda/latest/dg/urls-auth.html
        "lambda:FunctionUrlAuthType",
        "lambda:InvokedViaFunctionUrl",
    }
)
"""Every condition key that a policy may have; IAM takes a misspelt one for a key without value."""

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
    "OutboxStreamArn": "arn:x:dynamodb:x:x:table/x/stream/x",
    "PaymentGatewaySecretArn": "arn:x:secretsmanager:x:x:secret:x",
}
"""The form of the ARNs that parameters of the templates hold."""


def policies(resource: Mapping[str, Any]) -> Iterator[tuple[str, Value]]:
    """Yield each policy of a resource, with the property that holds it."""
    properties = resource.get("Properties") or {}
    for name in ("AssumeRolePolicyDocument", "PolicyDocument"):
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
    """Return the form of the ARN that a value stands for; None if it is unknown.

    In the form, `x` stands for what a deployment fills in.
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
    if attribute == "Arn":
        return ARNS[house.type_of(name)]
    return "x"


def matching(action: str) -> list[str]:
    """Return the ARNs that the actions of a pattern apply to; empty if there is no such action.

    ``*`` stands for an action that has no resources.
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
    formats: list[str] = []
    for kind in kinds:
        resource = reference["Resources"][kind.lower()]
        formats += resource.get("ARNFormats", [])
    return [re.sub(r"\$\{\w+\}|\.\*", "*", each) for each in formats]


@cache
def overlap(one: str, other: str) -> bool:
    """Return whether some text matches both patterns, whose only wildcard is ``*``."""
    if not one or not other:
        rest = one or other
        return rest.strip("*") == ""
    if one[0] == "*":
        return overlap(one[1:], other) or overlap(one, other[1:])
    if other[0] == "*":
        return overlap(other, one)
    if one[0] != other[0]:
        return False
    return overlap(one[1:], other[1:])


def reaches(form: str, arn: str) -> bool:
    """Return whether an action on resources of a form applies to a resource of a policy."""
    if arn == "*":
        return True
    if form == "*":
        return False
    for of_form, of_arn in zip(form.split(":", 5), arn.split(":", 5), strict=False):
        if of_arn != "x" and not overlap(of_form, of_arn):
            return False
    return True


@_rule("E9504")
def policies_are_real(house: House) -> Iterator[Finding]:
    """Every action and condition key of a policy exists; Effect is Allow or Deny.

    cfn-lint's own W3037 skips templates with SAM's transform, and stops at the first wrong action.
    """
    for name, resource in house.resources.items():
        for place, policy in policies(resource):
            for statement in listed(policy["Statement"]):
                for what in _unreal(statement):
                    yield Finding(name, what, (*PROPERTIES, place))


def _unreal(statement: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a statement says that IAM does not know."""
    if statement.get("Effect") not in {"Allow", "Deny"}:
        yield "needs Effect: Allow or Deny"
    actions = listed(statement.get("Action")) + listed(statement.get("NotAction"))
    for action in actions:
        if action != "*" and not matching(action):
            yield f"has the unknown action {action}"
    for condition in listed(statement.get("Condition")):
        for key in sorted(_keys(condition) - CONDITION_KEYS):
            yield f"has the unknown condition key {key}"


def _keys(condition: Mapping[str, Any]) -> set[str]:
    """Return the keys of a statement's condition."""
    keys: set[str] = set()
    for operator in condition.values():
        for each in listed(operator):
            keys.update(each)
    return keys


@_rule("E9505")
def policies_reach(house: House) -> Iterator[Finding]:
    """Every action applies to a resource of its statement, and every resource to an action.

    An action on a resource of another kind, such as `sqs:SendMessage` on a table, allows nothing.
    """
    for name, resource in house.resources.items():
        for place, policy in policies(resource):
            for statement in listed(policy["Statement"]):
                for what in _unreachable(house, statement):
                    yield Finding(name, what, (*PROPERTIES, place))


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
    reached: set[str] = set()
    for action in actions:
        forms = matching(action)
        of_action = {arn for form in forms for arn in arns if reaches(form, arn)}
        if forms and not of_action:
            yield f"allows {action} on none of its resources: {sorted(arns)}"
        reached |= of_action
    for arn in arns:
        if arn not in reached:
            yield f"allows nothing on {arn}"
