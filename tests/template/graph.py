"""The transformed template as a graph: who hands what to whom, and who is allowed what on what."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tests.template.stack import Properties, Stack

WRITTEN_FOR: Final = ("logs", "xray", "kms")
"""Services that are no edges of the graph: everybody writes a log of their own, and sends traces."""

_SUBSTITUTE: Final = re.compile(r"\$\{(\w+)(?:\.\w+)?\}")
_TABLE: Final = re.compile(r":table/\$\{AWS::StackName\}-(.+)$")
_PEER_BUS: Final = re.compile(r":events:\$\{PeerRegion\}:.*:event-bus/\$\{(\w+)\}$")


def flows(deployed: Stack) -> set[str]:
    """Return the edges along which events go: ``A -> B``; and ``A ~> B``, where B gets what A gives up."""
    return set(_flows(deployed))


def grants(deployed: Stack) -> set[str]:
    """Return what is allowed: ``A may service:Action,… on B``, A having the role, or being named by B's policy."""
    allowed: dict[tuple[str, str, str], set[str]] = {}
    for who, action, what in (*_of_roles(deployed), *_of_policies(deployed), *_of_permissions(deployed)):
        service, _, name = action.partition(":")
        if service not in WRITTEN_FOR:
            allowed.setdefault((who, service, what), set()).add(name)
    return {
        f"{who} may {service}:{','.join(sorted(names))} on {what}" for (who, service, what), names in allowed.items()
    }


def _flows(deployed: Stack) -> Iterator[str]:
    for name, bus in deployed.of_type("AWS::Events::EventBus").items():
        yield f"{name} ~> {one(bus['DeadLetterConfig']['Arn'])}"
    for name, rule in deployed.of_type("AWS::Events::Rule").items():
        yield f"{one(rule['EventBusName'])} -> {name}"
        for target in rule["Targets"]:
            yield f"{name} -> {one(target['Arn'])}"
            yield f"{name} ~> {one(target['DeadLetterConfig']['Arn'])}"
    for name, queue in deployed.of_type("AWS::SQS::Queue").items():
        if "RedrivePolicy" in queue:
            yield f"{name} ~> {one(queue['RedrivePolicy']['deadLetterTargetArn'])}"
    for mapping in deployed.of_type("AWS::Lambda::EventSourceMapping").values():
        yield f"{one(mapping['EventSourceArn'])} -> {one(mapping['FunctionName'])}"
    for config in deployed.of_type("AWS::Lambda::EventInvokeConfig").values():
        yield f"{one(config['FunctionName'])} ~> {one(config['DestinationConfig']['OnFailure']['Destination'])}"
    for name, schedule in deployed.of_type("AWS::Scheduler::Schedule").items():
        yield f"{name} -> {one(schedule['Target']['Arn'])}"
        yield f"{name} ~> {one(schedule['Target']['DeadLetterConfig']['Arn'])}"
    for name, pipe in deployed.of_type("AWS::Pipes::Pipe").items():
        yield f"{one(pipe['Source'])} -> {name}"
        yield f"{name} -> {one(pipe['Target'])}"
        yield f"{name} ~> {one(pipe['SourceParameters']['DynamoDBStreamParameters']['DeadLetterConfig']['Arn'])}"


def _of_roles(deployed: Stack) -> Iterator[tuple[str, str, str]]:
    holders = {
        one(properties.get("Role") or properties["RoleArn"]): name
        for kind in ("AWS::Lambda::Function", "AWS::Pipes::Pipe", "AWS::Events::Endpoint")
        for name, properties in deployed.of_type(kind).items()
    }
    schedules = deployed.of_type("AWS::Scheduler::Schedule")
    holders |= {one(schedule["Target"]["RoleArn"]): name for name, schedule in schedules.items()}
    documents = [
        (role, policy["PolicyDocument"])
        for role, properties in deployed.of_type("AWS::IAM::Role").items()
        for policy in properties.get("Policies", [])
    ]
    documents += [
        (one(role), policy["PolicyDocument"])
        for policy in deployed.of_type("AWS::IAM::Policy").values()
        for role in policy["Roles"]
    ]
    for role, document in documents:
        for statement in document["Statement"]:
            if statement["Effect"] != "Allow":
                continue
            for resource in several(statement["Resource"]):
                for action in several(statement["Action"]):
                    yield holders.get(role, role), action, one(resource)


def _of_policies(deployed: Stack) -> Iterator[tuple[str, str, str]]:
    for kind in ("AWS::SQS::QueuePolicy", "AWS::SNS::TopicPolicy"):
        for policy in deployed.of_type(kind).values():
            for statement in policy["PolicyDocument"]["Statement"]:
                if statement["Effect"] == "Allow":
                    for action in several(statement["Action"]):
                        yield _source(statement), action, one(statement["Resource"])


def _source(statement: Properties) -> str:
    """Return the resource on whose behalf a policy lets a service in, or the service where it names none."""
    arn = statement.get("Condition", {}).get("ArnEquals", {}).get("aws:SourceArn")
    service: str = statement["Principal"]["Service"]
    return service if arn is None else one(arn)


def _of_permissions(deployed: Stack) -> Iterator[tuple[str, str, str]]:
    for permission in deployed.of_type("AWS::Lambda::Permission").values():
        yield one(permission["SourceArn"]), permission["Action"], one(permission["FunctionName"])


def several(value: Any) -> list[Any]:
    """Return the elements of a list; a single value is a list of one."""
    return value if isinstance(value, list) else [value]


def one(value: Any) -> str:
    """Return what an intrinsic stands for, by logical id; an alias is its function, a replica its table."""
    match value:
        case {"Ref": "OutboxStreamArn"}:
            return "OutboxTable"
        case {"Ref": str(name)} | {"Fn::GetAtt": [str(name), *_]}:
            return re.sub(r"Aliaslive$", "", name)
        case {"Fn::Sub": str(text)} if found := _TABLE.search(text):
            return found[1]
        case {"Fn::Sub": str(text)} if found := _PEER_BUS.search(text):
            return f"{found[1]} of the peer"
        case {"Fn::Sub": str(text)}:
            return _SUBSTITUTE.findall(text)[-1] if _SUBSTITUTE.search(text) else text
        case Mapping():
            raise NotImplementedError(f"teach this function {value}")
        case _:
            return str(value)
