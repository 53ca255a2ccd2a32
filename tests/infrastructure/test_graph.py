"""Who hands what to whom, and who may do what: the transformed template as two tables that can be read."""

from typing import Final

import pytest

from tests.infrastructure.graph import flows, grants
from tests.infrastructure.stack import Stack, every_choice, label, stack

FLOWS: Final = """\
CarRideBus -> CarRideLogRule
CarRideBus -> DispatchRule
CarRideBus -> PartnersOlderRule
CarRideBus -> PartnersRule
CarRideBus -> PaymentRule
CarRideBus -> RideHistoryRule
CarRideBus ~> CarRideBusDlq
CarRideLogRule -> CarRideEventsLogGroup
CarRideLogRule ~> CarRideLogRuleDlq
OutboxTable -> OutboxPipe
OutboxPipe -> CarRideBus
OutboxPipe ~> OutboxPipeDlq
CarRideSimulatorFunction ~> ProducerDlq
RideHistoryRule -> RideHistoryFunction
RideHistoryRule ~> RideHistoryRuleDlq
RideHistoryFunction ~> RideHistoryDlq
DispatchRule -> DispatchQueue
DispatchRule ~> DispatchRuleDlq
DispatchQueue -> DispatchFunction
DispatchQueue ~> DispatchDlq
PaymentRule -> PaymentFunction
PaymentRule ~> PaymentRuleDlq
PaymentFunction ~> PaymentDlq
ReconcilerSchedule -> ReconcilerFunction
ReconcilerSchedule ~> ReconcilerDlq
ReconcilerFunction ~> ReconcilerDlq
PartnersRule -> PartnersTopic
PartnersRule ~> PartnersRuleDlq
PartnersOlderRule -> PartnersTopic
PartnersOlderRule ~> PartnersRuleDlq
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
RideHistoryRule may lambda:InvokeFunction on RideHistoryFunction
RideHistoryRule may sqs:SendMessage on RideHistoryRuleDlq
RideHistoryFunction may dynamodb:GetItem,PutItem on IdempotencyTable
RideHistoryFunction may dynamodb:UpdateItem on RideTable
RideHistoryFunction may sqs:SendMessage on RideHistoryDlq
DispatchRule may sqs:SendMessage on DispatchQueue
DispatchRule may sqs:SendMessage on DispatchRuleDlq
DispatchFunction may dynamodb:ConditionCheckItem,GetItem,Query,UpdateItem on CarTable
DispatchFunction may dynamodb:GetItem,PutItem on IdempotencyTable
DispatchFunction may dynamodb:GetItem,UpdateItem on AssignmentTable
DispatchFunction may dynamodb:PutItem on OutboxTable
DispatchFunction may sqs:DeleteMessage,GetQueueAttributes,ReceiveMessage on DispatchQueue
DispatchFunction may sqs:SendMessage on DispatchDlq
PaymentRule may lambda:InvokeFunction on PaymentFunction
PaymentRule may sqs:SendMessage on PaymentRuleDlq
PaymentFunction may dynamodb:GetItem,PutItem on IdempotencyTable
PaymentFunction may dynamodb:GetItem,UpdateItem on PaymentTable
PaymentFunction may dynamodb:PutItem on OutboxTable
PaymentFunction may sqs:SendMessage on PaymentDlq
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
PartnersRule may sqs:SendMessage on PartnersRuleDlq
PartnersOlderRule may sqs:SendMessage on PartnersRuleDlq
cloudwatch.amazonaws.com may sns:Publish on AlarmTopic
events.amazonaws.com may sns:Publish on PartnersTopic
"""
"""Besides these, each function may write its own log group and send traces."""

OF_TWO_REGIONS: Final = """\
OutboxPipe may events:PutEvents on CarRideBus of the peer
CarRideSimulatorFunction may events:PutEvents on CarRideBus of the peer
"""
"""An endpoint hands events to either bus."""

ON_THE_RECORDS: Final = """\
RideHistoryFunction may dynamodb:GetItem,PutItem on IdempotencyTable
DispatchFunction may dynamodb:GetItem,PutItem on IdempotencyTable
PaymentFunction may dynamodb:GetItem,PutItem on IdempotencyTable
"""
"""Of these, nothing where the records are in Valkey."""

_JOIN = (
    "AssignPrivateIpAddresses,CreateNetworkInterface,DeleteNetworkInterface,DescribeNetworkInterfaces,DescribeSubnets,"
    "UnassignPrivateIpAddresses"
)
OF_THE_VPC: Final = f"""\
RideHistoryFunction may ec2:{_JOIN} on *
DispatchFunction may ec2:{_JOIN} on *
PaymentFunction may ec2:{_JOIN} on *
"""
"""For Lambda itself: a Deny keeps the functions' own code from it."""

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


def test_events_go_where_they_should(deployed: Stack) -> None:
    """Each rule leads to its target and to its own dead-letter queue, and nothing else leads anywhere."""
    assert flows(deployed) == set(FLOWS.splitlines())


def test_nobody_may_do_more_or_less(deployed: Stack) -> None:
    """Who publishes, who reads or writes which table, who sends to or takes from which queue: this, and no more."""
    wanted = GRANTS
    if deployed.conditions["HasPeer"]:
        wanted += OF_TWO_REGIONS
    if deployed.conditions["HasEndpoint"]:
        wanted += OF_THE_ENDPOINT
    if deployed.conditions["JoinsVpc"]:
        wanted += OF_THE_VPC
    lines = set(wanted.splitlines())
    if deployed.conditions["UsesValkey"]:
        lines -= set(ON_THE_RECORDS.splitlines())
    assert grants(deployed) == lines
