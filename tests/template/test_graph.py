"""Rules over the graph of the deployed template, for every choice of parameters.

Who hands what to whom, and may.
"""

import json
from collections.abc import Iterator
from typing import Final

import pytest

from tests.template.graph import RULES, Edge, Grant, edges, grants
from tools.transformed import Stack, named, source, stack

pytestmark = pytest.mark.integration

STREAM: Final = ("DescribeStream", "GetRecords", "GetShardIterator", "ListStreams")
POLL: Final = ("DeleteMessage", "GetQueueAttributes", "ReceiveMessage")
ALWAYS: Final = {
    Grant("cloudwatch.amazonaws.com", "sns:Publish", "AlarmTopic"),
    Grant("events.amazonaws.com", "sns:Publish", "PartnersTopic"),
    Grant("CarRideApi", "lambda:InvokeFunction", "CarRideApiFunction"),
}
SHARED: Final = {"ProducerDlq": "CarRideSimulatorFunction", "PartnersRuleDlq": "Partners"}
"""Dead-letter queues that are not named after their source."""
BEHIND: Final = {"SimulatedGatewayUrl": "SimulatedGatewayFunction"}
"""What a permission names instead of a resource that leads to it."""
CALLED_BY_NOBODY: Final = {"Endpoint", "Role"}
"""Types whose name is enough for a function."""

ARN: Final = "arn:${AWS::Partition}:events:${AWS::Region}:${AWS::AccountId}"
TYPES: Final = {
    name: str(each["Type"]).rpartition("::")[2]
    for name, each in (stack().resources | source()["Resources"]).items()
}
"""The last part of each resource's type; a secondary has no tables of its own."""


def _needed_along(edge: Edge) -> Iterator[Grant]:
    """Yield what an edge requires."""
    match TYPES[edge.source], TYPES[edge.target]:
        case "Rule", "Queue":
            yield Grant(RULES, "sqs:SendMessage", edge.target)
        case (("Function" | "Schedule" | "Pipe"), "Queue"):
            yield Grant(edge.source, "sqs:SendMessage", edge.target)
        case "Rule", "Function":
            yield Grant(RULES, "lambda:InvokeFunction", edge.target)
        case "Schedule", "Function":
            yield Grant(edge.source, "lambda:InvokeFunction", edge.target)
        case "Queue", "Function":
            yield from (Grant(edge.target, f"sqs:{action}", edge.source) for action in POLL)
        case "GlobalTable", "Pipe":
            yield from (Grant(edge.target, f"dynamodb:{action}", edge.source) for action in STREAM)
        case (("Pipe" | "Schedule"), "EventBus"):
            yield Grant(edge.source, "events:PutEvents", edge.target)


def needed(deployed: Stack) -> Iterator[Grant]:
    """Yield what the edges require, and a wildcard for each resource in an environment."""
    for edge in edges(deployed):
        yield from _needed_along(edge)
    for name, function in deployed.of_type("AWS::Lambda::Function").items():
        for value in function["Environment"]["Variables"].values():
            what = named(value)
            is_secret = what == "PaymentGatewaySecretArn" and deployed.parameters[what]
            if is_secret or TYPES.get(what, "Endpoint") not in CALLED_BY_NOBODY:
                yield Grant(name, "*", BEHIND.get(what, what))


def test_everybody_may_do_what_the_graph_requires_and_nothing_else(deployed: Stack) -> None:
    """Each edge and each resource in an environment has a permission, and each permission one."""
    allowed = {grant for grant in grants(deployed) if grant.who != "CarRideEndpoint"}
    wanted = set(needed(deployed)) | ALWAYS
    wanted_any = {(grant.who, grant.what) for grant in wanted if grant.action == "*"}
    by_edges = {grant for grant in wanted if grant.action != "*"}
    if deployed.conditions["HasPeer"]:  # the endpoint hands events to either bus
        publishers = [
            grant
            for grant in allowed
            if grant.action == "events:PutEvents" and grant.what == "CarRideBus"
        ]
        through = [grant for grant in publishers if grant.who != "CarRideHeartbeat"]
        by_edges |= {grant._replace(what="CarRideBus of the peer") for grant in through}
    if deployed.conditions["MakesStaffRole"]:
        by_edges.add(Grant("StaffRole", "execute-api:Invoke", "CarRideApi"))
    assert by_edges <= allowed
    assert {
        grant for grant in allowed - by_edges if (grant.who, grant.what) not in wanted_any
    } == set()
    assert wanted_any <= {(grant.who, grant.what) for grant in allowed}


def test_the_bus_reaches_every_consumer(deployed: Stack) -> None:
    """Each function with a dead-letter queue of its own is behind a rule, or its queue is."""
    after: dict[str, set[str]] = {}
    for edge in edges(deployed):
        if not edge.dead:
            after.setdefault(edge.source, set()).add(edge.target)
    rules = after["CarRideBus"]
    reached = set().union(*(after[rule] for rule in rules))
    reached |= set().union(*(after.get(name, set()) for name in reached))
    functions = deployed.of_type("AWS::Lambda::Function")
    consumers = {
        name
        for name in functions
        if "DEAD_LETTER_QUEUE_URL" in functions[name]["Environment"]["Variables"]
    }
    assert {"RideHistoryFunction", "DispatchFunction", "PaymentFunction"} <= consumers <= reached
    assert reached - consumers == {"DispatchQueue", "PartnersTopic", "CarRideEventsLogGroup"}
    assert rules == set(deployed.of_type("AWS::Events::Rule"))


def test_every_dead_letter_queue_belongs_to_one_source(deployed: Stack) -> None:
    """It gets the dead letters of the resources that it is named after.

    Whatever gives up an event has such a queue.
    """
    dead = {edge for edge in edges(deployed) if edge.dead}
    for edge in dead:
        assert edge.source.startswith(SHARED.get(edge.target, edge.target.removesuffix("Dlq"))), (
            edge
        )
    assert {edge.target for edge in dead} == {
        name for name in deployed.of_type("AWS::SQS::Queue") if name.endswith("Dlq")
    }
    asynchronous = {
        named(each["FunctionName"])
        for each in deployed.of_type("AWS::Lambda::EventInvokeConfig").values()
    }
    polled = {
        edge.target for edge in edges(deployed) if TYPES[edge.source] == "Queue" and not edge.dead
    }
    assert asynchronous | polled == set(deployed.functions()) - {"CarRideApiFunction"}


def test_the_simulated_gateway_is_for_development_only(deployed: Stack) -> None:
    """It exists in stage `dev` of one region without another gateway.

    Only signed requests to its URL lead to it.
    """
    chosen = [deployed.parameters[name] for name in ("Stage", "Role", "PaymentGatewayUrl")]
    exists = chosen == ["dev", "standalone", ""]
    assert any(name.startswith("SimulatedGateway") for name in deployed.resources) is exists
    enabled = exists or bool(deployed.parameters["PaymentGatewayUrl"])
    assert deployed.resources["PaymentRule"]["Properties"]["State"] == (
        "ENABLED" if enabled else "DISABLED"
    )
    if exists:
        assert deployed.resources["SimulatedGatewayUrl"]["Properties"]["AuthType"] == "AWS_IAM"
        statements = deployed.resources["CallerPolicy"]["Properties"]["PolicyDocument"]["Statement"]
        assert {each["Action"]: each["Condition"] for each in statements} == {
            "lambda:InvokeFunctionUrl": {"StringEquals": {"lambda:FunctionUrlAuthType": "AWS_IAM"}},
            "lambda:InvokeFunction": {"Bool": {"lambda:InvokedViaFunctionUrl": "true"}},
        }


def test_only_the_bus_writes_its_logs(deployed: Stack) -> None:
    """Only rules of the bus write the events' log group, only the account that of errors."""
    (policy,) = deployed.of_type("AWS::Logs::ResourcePolicy").values()
    statements = json.loads(policy["PolicyDocument"]["Fn::Sub"])["Statement"]
    assert Edge("CarRideLogRule", "CarRideEventsLogGroup") in set(edges(deployed))
    assert {
        each["Sid"]: each.get("Condition")
        for each in statements
        if "logs:PutLogEvents" in each["Action"]
    } == {
        "RulesWriteEvents": {"ArnLike": {"aws:SourceArn": f"{ARN}:rule/${{CarRideBus}}/*"}},
        "BusWritesErrors": {"StringEquals": {"aws:SourceAccount": "${AWS::AccountId}"}},
    }


def test_every_queue_has_its_address_among_the_outputs(deployed: Stack) -> None:
    """The audit, the operator's commands and the runbooks find a queue by the output ``…Url``."""
    for name in deployed.of_type("AWS::SQS::Queue"):
        assert deployed.outputs[f"{name}Url"]["Value"] == {"Ref": name}
