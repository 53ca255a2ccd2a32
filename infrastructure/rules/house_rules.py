"""The house rules of template.yaml, as rules of cfn-lint: what AWS accepts, and this project does not.

`.cfnlintrc` appends them to cfn-lint's own, so that `make template`, an editor with cfn-lint and `sam validate --lint`
all report them with the line. docs/security.md lists them.

A resource can be excepted from some of them, with a reason that whoever reads the template sees::

    Metadata:
      HouseRules:
        NoTimeToLive: the fleet does not grow with the traffic

A rule looks at the template as it is written, before conditions are decided: where there is an ``Fn::If``, each of its
branches has to keep the rule.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from cfnlint.decode import decode
from cfnlint.rules import CloudFormationLintRule, RuleMatch

type Value = Any
"""A value of a template, with intrinsic functions as mappings: ``{"Ref": "…"}``."""
type Place = list[str | int]
type Finding = tuple[Place, str]
"""Where in the template, from the resource's logical id on, and what is wrong there."""

FUNCTIONS: Final = frozenset({"AWS::Serverless::Function", "AWS::Lambda::Function"})
LOG_GROUP: Final = "AWS::Logs::LogGroup"
QUEUE: Final = "AWS::SQS::Queue"
TOPIC: Final = "AWS::SNS::Topic"
RULE: Final = "AWS::Events::Rule"
BUS: Final = "AWS::Events::EventBus"
TABLE: Final = "AWS::DynamoDB::GlobalTable"
ROLE: Final = "AWS::IAM::Role"
API: Final = "AWS::Serverless::HttpApi"
PIPE: Final = "AWS::Pipes::Pipe"
NESTED: Final = "AWS::CloudFormation::Stack"

FOURTEEN_DAYS: Final = 14 * 86_400
"""Seconds; the longest that SQS keeps a message."""
WITHOUT_RESOURCES: Final = frozenset({"xray:PutTraceSegments", "xray:PutTelemetryRecords"})
"""Actions that IAM lets be allowed on "*" only."""
EXCEPTIONS: Final = frozenset({"NoTimeToLive", "NoCustomerKey", "NotPinned"})
"""What a reason can be given for."""

KEYS: Final = {
    LOG_GROUP: ("KmsKeyId",),
    QUEUE: ("KmsMasterKeyId",),
    TOPIC: ("KmsMasterKeyId",),
    BUS: ("KmsKeyIdentifier",),
    "AWS::Events::Archive": ("KmsKeyIdentifier",),
    TABLE: ("Replicas", "SSESpecification", "KMSMasterKeyId"),
    "AWS::ElastiCache::ServerlessCache": ("KmsKeyId",),
}
"""Where a resource names the key that encrypts it."""

_NO_VALUE: Final = {"Ref": "AWS::NoValue"}
_NAME: Final = re.compile(r"\$\{(\w+)(?:\.\w+)?\}")


# ── Reading a template ────────────────────────────────────────────────────────────────────────────────────────────────


def branches(value: Value) -> Iterator[Value]:
    """Yield what a value can be, once the conditions are decided; None where it can be left out."""
    match value:
        case {"Fn::If": [_, chosen, otherwise]}:
            yield from branches(chosen)
            yield from branches(otherwise)
        case _ if value == _NO_VALUE:
            yield None
        case _:
            yield value


def at(value: Value, *names: str) -> list[Value]:
    """Return what can be found under a path of names, in every branch and every element of a list."""
    found = list(branches(value))
    for name in names:
        inner: list[Value] = []
        for each in found:
            elements = [one for element in each for one in branches(element)] if isinstance(each, list) else [each]
            for element in elements:
                if element is not None or not isinstance(each, list):
                    inner += branches(element.get(name) if isinstance(element, Mapping) else None)
        found = inner
    return found


def listed(value: Value) -> list[Value]:
    """Return the elements that a list can have, in all branches; a single value is a list of one."""
    found = []
    for each in branches(value):
        for element in each if isinstance(each, list) else [each]:
            found += [one for one in branches(element) if one is not None]
    return found


def named(value: Value) -> set[str]:
    """Return the logical ids that an intrinsic names, in all branches; an alias counts as its function."""
    match value:
        case {"Ref": str(name)}:
            return {name.partition(".")[0]}
        case {"Fn::GetAtt": [str(name), *_]} | {"Fn::GetAtt": str(name)}:
            return {name.partition(".")[0]}
        case {"Fn::Sub": str(text)} | {"Fn::Sub": [str(text), *_]}:
            return set(_NAME.findall(text))
        case {"Fn::If": [_, *both]}:
            return set().union(*map(named, both))
        case _:
            return set()


def mentioned(value: Value) -> set[str]:
    """Return every logical id that is named anywhere in a value."""
    match value:
        case Mapping():
            return named(value).union(*map(mentioned, value.values()))
        case list():
            return set().union(*map(mentioned, value))
        case _:
            return set()


def with_nested(resources: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the resources with those of nested stacks in place of the stacks, as if all stood in one template.

    Args:
        resources: of a template.
        folder: where the template is, from which its nested templates are named.
    """
    found: dict[str, Any] = {}
    outputs: dict[str, Any] = {}
    for name, resource in resources.items():
        if resource.get("Type") != NESTED:
            found[name] = resource
            continue
        properties = resource["Properties"]
        given = properties.get("Parameters", {})
        template, _ = decode(str(folder / properties["TemplateURL"]))
        condition = {"Condition": resource["Condition"]} if "Condition" in resource else {}
        found |= {inner: condition | each for inner, each in _filled(template["Resources"], given).items()}
        for output, each in template.get("Outputs", {}).items():
            outputs[f"{name}.Outputs.{output}"] = _filled(each["Value"], given)
    linked: dict[str, Any] = _linked(found, outputs)
    return linked


def _filled(value: Value, given: Mapping[str, Value]) -> Value:
    """Return part of a nested template with the values of its parameters."""
    match value:
        case {"Ref": str(name)} if name in given:
            return given[name]
        case {"Fn::Sub": str(text)}:
            return {"Fn::Sub": re.sub(r"\$\{(\w+)\}", lambda found: _written(given.get(found[1]), found[0]), text)}
        case Mapping():
            return {key: _filled(inner, given) for key, inner in value.items()}
        case list():
            return [_filled(inner, given) for inner in value]
        case _:
            return value


def _written(value: Value, otherwise: str) -> str:
    """Return a parameter's value as it stands in the text of an ``Fn::Sub``."""
    match value:
        case {"Ref": str(name)}:
            return f"${{{name}}}"
        case {"Fn::GetAtt": [str(name), str(attribute)]}:
            return f"${{{name}.{attribute}}}"
        case _:
            return otherwise


def _linked(value: Value, outputs: Mapping[str, Value]) -> Value:
    """Return a value in which references to outputs of nested stacks are what these outputs refer to."""
    match value:
        case {"Fn::GetAtt": [str(name), str(attribute)]} if f"{name}.{attribute}" in outputs:
            return outputs[f"{name}.{attribute}"]
        case Mapping():
            return {key: _linked(inner, outputs) for key, inner in value.items()}
        case list():
            return [_linked(inner, outputs) for inner in value]
        case _:
            return value


class House:
    """The resources of a template, by what the rules ask of them."""

    def __init__(self, resources: Mapping[str, Any]) -> None:
        self.resources = resources

    def of_type(self, *types: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield logical id and properties of every resource of these types."""
        for name, resource in self.resources.items():
            if resource.get("Type") in types:
                yield name, resource.get("Properties") or {}

    def is_a(self, names: Iterable[str], *types: str) -> bool:
        """Whether there are names, and all of them are of resources of these types."""
        names = list(names)
        return bool(names) and all(self.resources.get(name, {}).get("Type") in types for name in names)

    def reason(self, name: str, exception: str) -> str:
        """Return why a resource is excepted; empty if it is not."""
        metadata = self.resources[name].get("Metadata") or {}
        return str((metadata.get("HouseRules") or {}).get(exception, "")).strip()

    def stands_with(self, needed: str, needing: str) -> bool:
        """Whether a resource is there whenever another one is."""
        condition = self.resources[needed].get("Condition")
        return condition is None or condition == self.resources[needing].get("Condition")

    def policies(self, kind: str, places: str, name: str) -> list[tuple[str, list[Mapping[str, Any]]]]:
        """Return the policies of a queue or topic, by logical id, with their statements."""
        return [
            (policy, listed(properties.get("PolicyDocument", {}).get("Statement")))
            for policy, properties in self.of_type(kind)
            if name in mentioned(properties.get(places)) and self.stands_with(policy, name)
        ]

    def alarms(self, namespace: str, metric: str, dimension: str, name: str) -> list[str]:
        """Return the alarms that watch a metric of a resource and tell somebody."""
        return [
            alarm
            for alarm, properties in self.of_type("AWS::CloudWatch::Alarm")
            if properties.get("Namespace") == namespace
            and properties.get("MetricName") == metric
            and name in {watched for each in at(properties, "Dimensions", "Value") for watched in named(each)}
            and dimension in at(properties, "Dimensions", "Name")
            and self.is_a(mentioned(properties.get("AlarmActions")), TOPIC)
            and self.stands_with(alarm, name)
        ]

    def dead_letter_queues(self) -> set[str]:
        """Return the queues that nothing takes messages from by itself."""
        return {name for name, queue in self.of_type(QUEUE) if "RedrivePolicy" not in queue}


def lets_in(statement: Mapping[str, Any], service: str, action: str, resource: str, source: str) -> bool:
    """Whether a statement of a resource's policy lets a service act on behalf of one source, and of no other."""
    return (
        statement.get("Effect") == "Allow"
        and statement.get("Principal") == {"Service": service}
        and listed(statement.get("Action")) == [action]
        and named(statement.get("Resource")) == {resource}
        and [named(arn) for arn in at(statement, "Condition", "ArnEquals", "aws:SourceArn")] == [{source}]
    )


def is_tls_only(statement: Mapping[str, Any], resource: str) -> bool:
    """Whether a statement refuses everybody who does not come over TLS."""
    return (
        statement.get("Effect") == "Deny"
        and statement.get("Principal") == "*"
        and named(statement.get("Resource")) == {resource}
        and statement.get("Condition") == {"Bool": {"aws:SecureTransport": "false"}}
    )


def is_pinned(statement: Mapping[str, Any]) -> bool:
    """Whether what a statement allows, it allows one service on behalf of a source that it names."""
    sources = [
        arn
        for operator in ("ArnEquals", "ArnLike")
        for arn in at(statement, "Condition", operator, "aws:SourceArn")
        if arn is not None and arn != "*"
    ]
    principal = statement.get("Principal")
    return statement.get("Effect") != "Allow" or (
        bool(sources) and isinstance(principal, Mapping) and set(principal) == {"Service"}
    )


# ── Functions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def functions_log(house: House) -> Iterator[Finding]:
    """Every function writes to a log group of the template, and every log group forgets."""
    for name, function in house.of_type(*FUNCTIONS):
        for group in at(function, "LoggingConfig", "LogGroup"):
            if not house.is_a(named(group), LOG_GROUP):
                yield [name, "Properties"], f"{name} needs LoggingConfig.LogGroup, a log group of this template"
    for name, group in house.of_type(LOG_GROUP):
        if None in at(group, "RetentionInDays"):
            yield [name, "Properties"], f"{name} needs RetentionInDays, or it keeps its entries for ever"


def functions_keep_failures(house: House) -> Iterator[Finding]:
    """What nobody waits for ends, when its retries are used up, in a queue that only dead letters go to."""
    dead_letters = house.dead_letter_queues()
    for name, _ in house.of_type(*FUNCTIONS):
        if _is_waited_for(house, name):
            continue
        destinations = _on_failure(house, name)
        destinations += [
            target
            for _, mapping in house.of_type("AWS::Lambda::EventSourceMapping")
            if named(mapping.get("FunctionName")) == {name}
            for queue in named(mapping.get("EventSourceArn")) & set(house.resources)
            for target in at(house.resources[queue].get("Properties"), "RedrivePolicy", "deadLetterTargetArn")
        ]
        if not any(named(destination) and named(destination) <= dead_letters for destination in destinations):
            yield (
                [name, "Properties"],
                f"{name} needs an OnFailure queue, or a redrive policy on the queue that it takes from",
            )


def _on_failure(house: House, function: str) -> list[Value]:
    """Return where a function's asynchronous events go when its retries are used up."""
    configs = [house.resources[function].get("Properties", {}).get("EventInvokeConfig")]
    configs += [
        properties
        for config, properties in house.of_type("AWS::Lambda::EventInvokeConfig")
        if named(properties.get("FunctionName")) == {function} and house.stands_with(config, function)
    ]
    found = [each for config in configs for each in at(config, "DestinationConfig", "OnFailure", "Destination")]
    return [each for each in found if each is not None]


def _is_waited_for(house: House, function: str) -> bool:
    """Whether only API Gateway invokes a function: then the client waits for the answer, and asks again itself."""
    principals = {
        permission.get("Principal")
        for _, permission in house.of_type("AWS::Lambda::Permission")
        if named(permission.get("FunctionName")) == {function}
    }
    return principals == {"apigateway.amazonaws.com"}


def functions_alarm(house: House) -> Iterator[Finding]:
    """Somebody is told when a function, an API or a pipe fails, and when what failed could not even be kept."""
    wanted = [(name, "AWS/Lambda", "FunctionName", ["Errors", "Throttles"]) for name, _ in house.of_type(*FUNCTIONS)]
    wanted += [(name, "AWS/ApiGateway", "ApiId", ["5xx"]) for name, _ in house.of_type(API)]
    wanted += [(name, "AWS/EventBridge/Pipes", "PipeName", ["ExecutionFailed"]) for name, _ in house.of_type(PIPE)]
    wanted += [
        (name, "AWS/Lambda", "FunctionName", ["DestinationDeliveryFailures"])
        for name, _ in house.of_type(*FUNCTIONS)
        if _on_failure(house, name)
    ]
    for name, namespace, dimension, metrics in wanted:
        for metric in metrics:
            if not house.alarms(namespace, metric, dimension, name):
                yield [name], f"{name} needs an alarm on {metric}"


# ── Rules of the bus ──────────────────────────────────────────────────────────────────────────────────────────────────


def targets_are_retried(house: House) -> Iterator[Finding]:
    """What a target does not take is tried again, for as long as the rule says, and then kept."""
    for name, index, target in _targets(house):
        path: Place = [name, "Properties", "Targets", index]
        for setting in ("MaximumRetryAttempts", "MaximumEventAgeInSeconds"):
            if None in at(target, "RetryPolicy", setting):
                yield path, f"{name} needs RetryPolicy.{setting} on its target"
        for arn in at(target, "DeadLetterConfig", "Arn"):
            if not named(arn) or not named(arn) <= house.dead_letter_queues():
                yield path, f"{name} needs DeadLetterConfig.Arn on its target, a queue of this template"


def targets_let_their_rule_in(house: House) -> Iterator[Finding]:
    """Target and dead-letter queue of a rule let it in: without, EventBridge loses what it should hand over."""
    for name, index, target in _targets(house):
        path: Place = [name, "Properties", "Targets", index]
        for reached in mentioned(target.get("Arn")) & set(house.resources):
            if not _lets_rule_in(house, reached, name):
                yield path, f"{reached} does not let {name} in"
        for queue in mentioned(target.get("DeadLetterConfig")) & set(house.resources):
            if not _queue_lets_in(house, queue, name):
                yield path, f"the policy of {queue} does not let {name} in"


def buses_keep_failures(house: House) -> Iterator[Finding]:
    """What a bus cannot encrypt or decrypt, because its key is disabled, is kept in a queue that lets the bus in."""
    for name, bus in house.of_type(BUS):
        for arn in at(bus, "DeadLetterConfig", "Arn"):
            if not named(arn) or not named(arn) <= house.dead_letter_queues():
                yield [name, "Properties"], f"{name} needs DeadLetterConfig.Arn, a queue of this template"
        for queue in mentioned(bus.get("DeadLetterConfig")) & set(house.resources):
            if not _queue_lets_in(house, queue, name):
                yield [name, "Properties"], f"the policy of {queue} does not let {name} in"


def _targets(house: House) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    for name, rule in house.of_type(RULE):
        for index, target in enumerate(listed(rule.get("Targets"))):
            yield name, index, target


def _lets_rule_in(house: House, target: str, rule: str) -> bool:
    match house.resources[target].get("Type"):
        case kind if kind in FUNCTIONS:
            return any(
                named(permission.get("FunctionName")) == {target}
                and permission.get("Principal") == "events.amazonaws.com"
                and named(permission.get("SourceArn")) == {rule}
                for _, permission in house.of_type("AWS::Lambda::Permission")
            )
        case "AWS::SQS::Queue":
            return _queue_lets_in(house, target, rule)
        case "AWS::SNS::Topic":
            return any(
                statement.get("Principal") == {"Service": "events.amazonaws.com"}
                and listed(statement.get("Action")) == ["sns:Publish"]
                for _, statements in house.policies("AWS::SNS::TopicPolicy", "Topics", target)
                for statement in statements
            )
        case "AWS::Logs::LogGroup":
            return any(
                {target, rule} <= mentioned(policy.get("PolicyDocument"))
                for _, policy in house.of_type("AWS::Logs::ResourcePolicy")
            )
        case _:
            return True


def _queue_lets_in(house: House, queue: str, source: str) -> bool:
    return any(
        lets_in(statement, "events.amazonaws.com", "sqs:SendMessage", queue, source)
        for _, statements in house.policies("AWS::SQS::QueuePolicy", "Queues", queue)
        for statement in statements
    )


def integrations_may_invoke(house: House) -> Iterator[Finding]:
    """An API may invoke the functions that its routes lead to."""
    for name, api in house.of_type(API):
        reached = {each for each in mentioned(api.get("DefinitionBody")) if house.is_a({each}, *FUNCTIONS)}
        allowed = {
            function
            for _, permission in house.of_type("AWS::Lambda::Permission")
            if permission.get("Principal") == "apigateway.amazonaws.com" and name in named(permission.get("SourceArn"))
            for function in named(permission.get("FunctionName"))
        }
        for function in sorted(reached - allowed):
            yield [name], f"{name} may not invoke {function}, to which its routes lead"


# ── Queues and topics ─────────────────────────────────────────────────────────────────────────────────────────────────


def queues_have_one_policy(house: House) -> Iterator[Finding]:
    """A queue has exactly one policy, since two would overwrite each other, and it refuses what is not over TLS."""
    for name, _ in house.of_type(QUEUE):
        policies = house.policies("AWS::SQS::QueuePolicy", "Queues", name)
        if len(policies) != 1:
            yield [name], f"{name} needs exactly one queue policy"
        for policy, statements in policies:
            if not any(
                is_tls_only(statement, name) and listed(statement.get("Action")) == ["sqs:*"]
                for statement in statements
            ):
                yield [policy, "Properties"], f"{policy} does not refuse what does not come over TLS"
    for name, _ in house.of_type(TOPIC):
        policies = house.policies("AWS::SNS::TopicPolicy", "Topics", name)
        if len(policies) != 1:
            yield [name], f"{name} needs exactly one topic policy"
        for policy, statements in policies:
            if not any(is_tls_only(statement, name) for statement in statements):
                yield [policy, "Properties"], f"{policy} does not refuse what does not come over TLS"


def policies_are_pinned(house: House) -> Iterator[Finding]:
    """Whatever a queue or a topic allows, it allows a service on behalf of one resource, so that nobody borrows it."""
    for name, policy in house.of_type("AWS::SQS::QueuePolicy", "AWS::SNS::TopicPolicy"):
        loose = [each for each in listed(policy.get("PolicyDocument", {}).get("Statement")) if not is_pinned(each)]
        reason = house.reason(name, "NotPinned")
        if loose and not reason:
            yield [name, "Properties"], f"{name} allows something without naming in aws:SourceArn on whose behalf"
        if reason and not loose:
            yield [name, "Metadata"], f"{name} gives a reason for being NotPinned, and is pinned"


def queues_keep_messages(house: House) -> Iterator[Finding]:
    """A queue keeps its messages for 14 days: nobody loses a dead letter over a long weekend."""
    for name, queue in house.of_type(QUEUE):
        if at(queue, "MessageRetentionPeriod") != [FOURTEEN_DAYS]:
            yield [name, "Properties"], f"{name} needs MessageRetentionPeriod: {FOURTEEN_DAYS}, which is 14 days"


def queues_alarm(house: House) -> Iterator[Finding]:
    """One message in a dead-letter queue raises an alarm; where a function works a queue off, an old message does."""
    dead_letters = house.dead_letter_queues()
    for name, _ in house.of_type(QUEUE):
        metric = "ApproximateNumberOfMessagesVisible" if name in dead_letters else "ApproximateAgeOfOldestMessage"
        alarms = house.alarms("AWS/SQS", metric, "QueueName", name)
        if not alarms:
            yield [name], f"{name} needs an alarm on {metric}"
        for alarm in alarms if name in dead_letters else ():
            if house.resources[alarm]["Properties"].get("Threshold") != 0:
                yield [alarm, "Properties"], f"{alarm} overlooks the first message in {name}"


# ── Tables, keys and roles ────────────────────────────────────────────────────────────────────────────────────────────


def tables_expire(house: House) -> Iterator[Finding]:
    """A table grows without end on purpose only."""
    for name, table in house.of_type(TABLE):
        expires = at(table, "TimeToLiveSpecification", "Enabled") == [True]
        reason = house.reason(name, "NoTimeToLive")
        if not expires and not reason:
            yield [name, "Properties"], f"{name} needs TimeToLiveSpecification, or a reason for NoTimeToLive"
        if expires and reason:
            yield [name, "Metadata"], f"{name} gives a reason for NoTimeToLive, and has one"


def tables_come_back(house: House) -> Iterator[Finding]:
    """Each replica can be restored to any second of the last 35 days, and says whether it can be deleted."""
    for name, table in house.of_type(TABLE):
        for index, replica in enumerate(listed(table.get("Replicas"))):
            path: Place = [name, "Properties", "Replicas", index]
            if at(replica, "PointInTimeRecoverySpecification", "PointInTimeRecoveryEnabled") != [True]:
                yield path, f"{name} needs PointInTimeRecoverySpecification on every replica"
            if True not in at(replica, "DeletionProtectionEnabled"):
                yield path, f"{name} needs DeletionProtectionEnabled on every replica, in production at least"
    for name, _ in house.of_type("AWS::DynamoDB::Table", "AWS::Serverless::SimpleTable"):
        yield [name], f"{name} cannot get a replica later: it has to be an {TABLE} with one replica"


def customer_key_encrypts(house: House) -> Iterator[Finding]:
    """Whatever keeps data can be encrypted with the customer's key; without one, with a key that AWS owns."""
    for name, resource in house.resources.items():
        where = KEYS.get(resource.get("Type", ""))
        if where is None:
            continue
        reason = house.reason(name, "NoCustomerKey")
        keys = at(resource.get("Properties"), *where)
        if not any(named(key) & {"KmsKeyArn", "PeerKmsKeyArn"} for key in keys) and not reason:
            yield [name, "Properties"], f"{name} needs {'.'.join(where)}, or a reason for NoCustomerKey"
    for name, queue in house.of_type(QUEUE):
        if True not in at(queue, "SqsManagedSseEnabled"):
            yield [name, "Properties"], f"{name} needs SqsManagedSseEnabled where there is no customer's key"


def roles_are_their_own(house: House) -> Iterator[Finding]:
    """Each function and each pipe has a role of its own."""
    holders: dict[str, str] = {}
    for name, holder in house.of_type(*FUNCTIONS, PIPE):
        roles = named(holder.get("Role") or holder.get("RoleArn"))
        if not house.is_a(roles, ROLE):
            yield [name, "Properties"], f"{name} needs a role of this template"
        for role in roles:
            if role in holders:
                yield [name, "Properties"], f"{name} shares {role} with {holders[role]}"
            holders[role] = name


def roles_are_narrow(house: House) -> Iterator[Finding]:
    """The role of a function or a pipe names every action and every resource."""
    holders = [holder for _, holder in house.of_type(*FUNCTIONS, PIPE)]
    used = set().union(*(named(holder.get("Role") or holder.get("RoleArn")) for holder in holders))
    own = {name for name, _ in house.of_type("AWS::IAM::ManagedPolicy")}
    for role, properties in house.of_type(ROLE):
        if role not in used:
            continue
        if not all(named(policy) & own for policy in listed(properties.get("ManagedPolicyArns"))):
            yield [role, "Properties"], f"{role} takes over permissions that nobody here wrote down"
        for statement in (each for each in at(properties, "Policies", "PolicyDocument", "Statement") if each):
            for one in listed(statement):
                yield from _wildcards(role, one)


def _wildcards(role: str, statement: Mapping[str, Any]) -> Iterator[Finding]:
    actions = set(listed(statement.get("Action")))
    if any("*" in action for action in actions):
        yield [role, "Properties"], f"{role} allows actions by a wildcard: {sorted(actions)}"
    everywhere = any("*" in json.dumps(each) for each in listed(statement.get("Resource")))
    if everywhere and not actions <= WITHOUT_RESOURCES:
        yield [role, "Properties"], f"{role} allows {sorted(actions)} on resources by a wildcard"


def exceptions_are_known(house: House) -> Iterator[Finding]:
    """A reason is given for an exception that there is."""
    for name, resource in house.resources.items():
        given = (resource.get("Metadata") or {}).get("HouseRules") or {}
        for exception in given:
            if exception not in EXCEPTIONS:
                yield [name, "Metadata"], f"{name}: no house rule has the exception {exception}"


# ── As cfn-lint has them ──────────────────────────────────────────────────────────────────────────────────────────────


class _HouseRule:
    """What makes a rule of cfn-lint of a check."""

    check: Callable[[House], Iterator[Finding]]

    def match(self, cfn: Any) -> list[RuleMatch]:
        """Return what the check finds in a template."""
        own = cfn.template.get("Resources") or {}
        house = House(with_nested(own, Path(cfn.filename).parent))
        found = type(self).check(house)
        return [RuleMatch(["Resources", *(path if path[0] in own else [])], message) for path, message in found]


def _rule(rule_id: str, check: Callable[[House], Iterator[Finding]]) -> type[CloudFormationLintRule]:
    sentence = (check.__doc__ or "").strip()
    members = {
        "__doc__": sentence,
        "id": rule_id,
        "shortdesc": check.__name__.replace("_", " "),
        "description": sentence,
        "tags": ["house"],
        "check": staticmethod(check),
    }
    return type(check.__name__, (_HouseRule, CloudFormationLintRule), members)


FunctionsLog = _rule("E9101", functions_log)
FunctionsKeepFailures = _rule("E9102", functions_keep_failures)
FunctionsAlarm = _rule("E9103", functions_alarm)
TargetsAreRetried = _rule("E9201", targets_are_retried)
TargetsLetTheirRuleIn = _rule("E9202", targets_let_their_rule_in)
BusesKeepFailures = _rule("E9203", buses_keep_failures)
IntegrationsMayInvoke = _rule("E9204", integrations_may_invoke)
QueuesHaveOnePolicy = _rule("E9301", queues_have_one_policy)
PoliciesArePinned = _rule("E9302", policies_are_pinned)
QueuesKeepMessages = _rule("E9303", queues_keep_messages)
QueuesAlarm = _rule("E9304", queues_alarm)
TablesExpire = _rule("E9401", tables_expire)
TablesComeBack = _rule("E9402", tables_come_back)
CustomerKeyEncrypts = _rule("E9501", customer_key_encrypts)
RolesAreTheirOwn = _rule("E9502", roles_are_their_own)
RolesAreNarrow = _rule("E9503", roles_are_narrow)
ExceptionsAreKnown = _rule("E9901", exceptions_are_known)
