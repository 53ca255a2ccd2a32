"""The transformed template as a graph.

Along which edges events go, and who may do what to which resource.
"""

from collections.abc import Iterator
from itertools import product
from typing import Final, NamedTuple

from infrastructure.rules.house_rules import at, listed
from tools.transformed import Properties, Stack, named

WRITTEN_FOR: Final = ("logs", "xray")
"""Services whose grants are not edges: every function writes its log and sends traces."""


class Edge(NamedTuple):
    """A way of events from one resource to another.

    `dead` if the target gets what the source could not deliver.
    """

    source: str
    target: str
    dead: bool = False


RULES: Final = "rules of CarRideBus"
"""Who may act on behalf of any rule of the bus."""


class Grant(NamedTuple):
    """An action that a resource may take on another, by its role or by the other's policy."""

    who: str
    action: str
    what: str


def grants(deployed: Stack) -> set[Grant]:
    """Return what is allowed."""
    every = (*_of_roles(deployed), *_of_policies(deployed), *_of_permissions(deployed))
    return {grant for grant in every if not grant.action.startswith(WRITTEN_FOR)}


_WAYS: Final[tuple[tuple[str, str, str, bool], ...]] = (
    # type, the places of source and target in it (nothing: the resource itself), and whether the
    # target is for failures
    ("Events::Rule", "EventBusName", "", False),
    ("Events::Rule", "", "Targets.Arn", False),
    ("Events::Rule", "", "Targets.DeadLetterConfig.Arn", True),
    ("SQS::Queue", "", "RedrivePolicy.deadLetterTargetArn", True),
    ("Lambda::EventSourceMapping", "EventSourceArn", "FunctionName", False),
    ("Lambda::EventInvokeConfig", "FunctionName", "DestinationConfig.OnFailure.Destination", True),
    ("Scheduler::Schedule", "", "Target.Arn", False),
    ("Scheduler::Schedule", "", "Target.DeadLetterConfig.Arn", True),
    ("Pipes::Pipe", "Source", "", False),
    ("Pipes::Pipe", "", "Target", False),
    ("Pipes::Pipe", "", "SourceParameters.DynamoDBStreamParameters.DeadLetterConfig.Arn", True),
)


def edges(deployed: Stack) -> Iterator[Edge]:
    """Yield along which edges events go."""
    for kind, *ends, dead in _WAYS:
        for name, properties in deployed.of_type(f"AWS::{kind}").items():
            found = [at(properties, *end.split(".")) if end else [{"Ref": name}] for end in ends]
            yield from (
                Edge(named(source), named(target), dead)
                for source, target in product(*found)
                if target
            )


def _of_roles(deployed: Stack) -> Iterator[Grant]:
    holders = {
        named(
            properties.get("Role") or properties.get("RoleArn") or properties["Target"]["RoleArn"]
        ): name
        for kind in ("Lambda::Function", "Pipes::Pipe", "Events::Endpoint", "Scheduler::Schedule")
        for name, properties in deployed.of_type(f"AWS::{kind}").items()
    }
    documents = [
        (role, policy["PolicyDocument"])
        for role, properties in deployed.of_type("AWS::IAM::Role").items()
        for policy in properties.get("Policies", [])
    ]
    documents += [
        (named(role), policy["PolicyDocument"])
        for policy in deployed.of_type("AWS::IAM::Policy").values()
        for role in policy["Roles"]
    ]
    for role, document in documents:
        for statement in document["Statement"]:
            for resource in listed(statement["Resource"]):
                for action in listed(statement["Action"]):
                    yield Grant(holders.get(role, role), action, named(resource))


def _of_policies(deployed: Stack) -> Iterator[Grant]:
    for kind in ("AWS::SQS::QueuePolicy", "AWS::SNS::TopicPolicy"):
        for policy in deployed.of_type(kind).values():
            for statement in policy["PolicyDocument"]["Statement"]:
                if statement["Effect"] != "Allow":
                    continue
                on = statement["Resource"]
                for what in policy["Queues"] if on == "*" else [on]:
                    yield Grant(_source(statement), statement["Action"], named(what))


def _source(statement: Properties) -> str:
    """Return the resource on whose behalf a policy admits a service.

    The service if the policy names none.
    """
    condition = statement.get("Condition", {})
    arn = condition.get("ArnLike", {}).get("aws:SourceArn")
    if statement["Principal"]["Service"] != "events.amazonaws.com" or arn is None:
        return str(statement["Principal"]["Service"])
    return _source_of(arn)


def _source_of(arn: object) -> str:
    """Return the resource that an ARN in a condition names; `RULES` for every rule of the bus."""
    name = named(arn)
    return RULES if name == "CarRideBus" else name


def _of_permissions(deployed: Stack) -> Iterator[Grant]:
    for permission in deployed.of_type("AWS::Lambda::Permission").values():
        source = _source_of(permission["SourceArn"])
        service = "events" if source == RULES else "apigateway"
        who = (
            source
            if permission["Principal"] == f"{service}.amazonaws.com"
            else permission["Principal"]
        )
        yield Grant(who, permission["Action"], named(permission["FunctionName"]))
