"""Who hands what to whom, and who may do what: the transformed template as two tables that can be read."""

import json
from typing import Final

import pytest

from tests.template.graph import flows, grants
from tests.template.stack import Stack, every_choice, label, source, stack

FLOWS: Final = """\
CarRideBus -> CarRideLogRule
CarRideBus -> PartnersOlderRule
CarRideBus -> PartnersRule
CarRideBus ~> CarRideBusDlq
CarRideLogRule -> CarRideEventsLogGroup
CarRideLogRule ~> CarRideLogRuleDlq
OutboxTable -> OutboxPipe
OutboxPipe -> CarRideBus
OutboxPipe ~> OutboxPipeDlq
CarRideSimulatorFunction ~> ProducerDlq
DispatchRule -> DispatchQueue
ReconcilerSchedule -> ReconcilerFunction
ReconcilerSchedule ~> ReconcilerDlq
ReconcilerFunction ~> ReconcilerDlq
DispatchQueue -> DispatchFunction
DispatchQueue ~> DispatchDlq
PartnersRule -> PartnersTopic
PartnersRule ~> PartnersRuleDlq
PartnersOlderRule -> PartnersTopic
PartnersOlderRule ~> PartnersOlderRuleDlq
"""
"""Along which events go: `A -> B`. And `A ~> B`: what A gives up lies in B."""

GRANTS: Final = """\
CarRideBus may sqs:SendMessage on CarRideBusDlq
CarRideLogRule may sqs:SendMessage on CarRideLogRuleDlq
CarRideApi may lambda:InvokeFunction on CarRideApiFunction
CarRideApiFunction may dynamodb:GetItem,PutItem on BookingTable
CarRideApiFunction may dynamodb:PutItem on IdempotencyTable
CarRideApiFunction may dynamodb:GetItem on RideTable
CarRideApiFunction may dynamodb:PutItem on OutboxTable
CarRideApiFunction may dynamodb:Query on BookingTable/index/byCustomer
CarRideApiFunction may lambda:InvokeFunction on CarRideSimulatorFunction
OutboxPipe may dynamodb:DescribeStream,GetRecords,GetShardIterator,ListStreams on OutboxTable
OutboxPipe may events:PutEvents on CarRideBus
OutboxPipe may sqs:SendMessage on OutboxPipeDlq
CarRideSimulatorFunction may events:PutEvents on CarRideBus
CarRideSimulatorFunction may sqs:SendMessage on ProducerDlq
RideHistoryFunction may dynamodb:UpdateItem on RideTable
DispatchRule may sqs:SendMessage on DispatchQueue
ReconcilerSchedule may lambda:InvokeFunction on ReconcilerFunction
ReconcilerSchedule may sqs:SendMessage on ReconcilerDlq
ReconcilerFunction may dynamodb:PutItem on IdempotencyTable
ReconcilerFunction may dynamodb:GetItem,PutItem on BookingTable
ReconcilerFunction may dynamodb:GetItem,UpdateItem on AssignmentTable
ReconcilerFunction may dynamodb:GetItem on RideTable
ReconcilerFunction may dynamodb:PutItem on OutboxTable
ReconcilerFunction may dynamodb:Query on AssignmentTable/index/byOpenSince
ReconcilerFunction may dynamodb:Query on BookingTable/index/byOpenSince
ReconcilerFunction may dynamodb:Query on PaymentTable/index/byOpenSince
ReconcilerFunction may dynamodb:UpdateItem on PaymentTable
ReconcilerFunction may sqs:SendMessage on ReconcilerDlq
DispatchFunction may dynamodb:ConditionCheckItem,GetItem,Query,UpdateItem on CarTable
DispatchFunction may dynamodb:GetItem,UpdateItem on AssignmentTable
DispatchFunction may dynamodb:PutItem on OutboxTable
DispatchFunction may sqs:DeleteMessage,GetQueueAttributes,ReceiveMessage on DispatchQueue
PaymentFunction may dynamodb:GetItem,UpdateItem on PaymentTable
PaymentFunction may dynamodb:PutItem on OutboxTable
PartnersRule may sqs:SendMessage on PartnersRuleDlq
PartnersOlderRule may sqs:SendMessage on PartnersOlderRuleDlq
cloudwatch.amazonaws.com may sns:Publish on AlarmTopic
events.amazonaws.com may sns:Publish on PartnersTopic
"""
"""Besides these, each function may write its own log group and send traces."""

EVERY_CONSUMER: Final = """\
CarRideBus -> {}Rule
{}Rule ~> {}RuleDlq
{}Rule may sqs:SendMessage on {}RuleDlq
{}Function may dynamodb:GetItem,PutItem on IdempotencyTable
{}Function may sqs:SendMessage on {}Dlq
"""
"""What each name in the template's list of consumers stands for."""

EVERY_DIRECT_CONSUMER: Final = """\
{}Rule -> {}Function
{}Function ~> {}Dlq
{}Rule may lambda:InvokeFunction on {}Function
"""
"""And each name in the list of those that a rule invokes."""

OF_TWO_REGIONS: Final = """\
OutboxPipe may events:PutEvents on CarRideBus of the peer
CarRideSimulatorFunction may events:PutEvents on CarRideBus of the peer
"""
"""An endpoint hands events to either bus."""

OF_THE_ENDPOINT: Final = """\
CarRideEndpoint may events:DeleteRule,PutEvents,PutRule,PutTargets,RemoveTargets on CarRideBus
CarRideEndpoint may events:PutEvents on CarRideBus of the peer
CarRideEndpoint may iam:PassRole on CarRideEndpointRole
"""
"""It copies events by rules of its own."""


@pytest.fixture(scope="module", params=[pytest.param(choice, id=label(choice)) for choice in every_choice()])
def deployed(request: pytest.FixtureRequest) -> Stack:
    """Return the transformed template, for each choice of parameters in turn."""
    return stack(**request.param)


def of_consumers(word: str) -> set[str]:
    """Return the lines with a word that follow from the template's lists."""
    names = source()["Mappings"]["Loops"]["Names"]
    kinds = ((EVERY_CONSUMER, names["Consumers"]), (EVERY_DIRECT_CONSUMER, names["Direct"]))
    lines = {line.replace("{}", name) for text, those in kinds for name in those for line in text.splitlines()}
    return {line for line in lines if word in line.split()}


def test_events_go_where_they_should(deployed: Stack) -> None:
    """Each rule leads to its target and to its own dead-letter queue, and nothing else leads anywhere."""
    assert flows(deployed) == set(FLOWS.splitlines()) | of_consumers("->") | of_consumers("~>")


def test_nobody_may_do_more_or_less(deployed: Stack) -> None:
    """Who publishes, who reads or writes which table, who sends to or takes from which queue: this, and no more."""
    wanted = GRANTS
    if deployed.conditions["HasPeer"]:
        wanted += OF_TWO_REGIONS
    if deployed.conditions["HasEndpoint"]:
        wanted += OF_THE_ENDPOINT
    assert grants(deployed) == set(wanted.splitlines()) | of_consumers("may")


def test_what_fails_is_kept(deployed: Stack) -> None:
    """A function that anything but the API invokes gives up what fails to a queue, its own or that of its source."""
    flowing = {edge for edge in flows(deployed) if "~>" in edge}
    for name in set(deployed.of_type("AWS::Lambda::Function")) - {"CarRideApiFunction"}:
        sources = {name} | {edge.split()[0] for edge in flows(deployed) if edge.endswith(f"-> {name}")}
        assert any(edge.startswith(tuple(f"{each} ~>" for each in sources if "Rule" not in each)) for edge in flowing)


def test_the_bus_may_write_its_logs(deployed: Stack) -> None:
    """The catch-all rule and the bus write their log groups, and nothing else does."""
    (policy,) = deployed.of_type("AWS::Logs::ResourcePolicy").values()
    statements = json.loads(policy["PolicyDocument"]["Fn::Sub"])["Statement"]
    writes = {each["Sid"]: each.get("Condition") for each in statements if "logs:PutLogEvents" in each["Action"]}
    assert writes == {
        "CatchAllRuleWritesEvents": {"ArnEquals": {"aws:SourceArn": "${CarRideLogRule.Arn}"}},
        "BusWritesErrors": {"StringEquals": {"aws:SourceAccount": "${AWS::AccountId}"}},
    }
