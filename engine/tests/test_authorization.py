from typing import Final

import pytest

from engine.client import LocalCloud
from engine.tests.conftest import Deploy
from engine.tests.support import QUEUE, TLS_ONLY, attribute, function, needed, queue_policy

pytestmark = pytest.mark.integration

SENDS_A_BATCH: Final = """
import boto3
entries = [{"Id": str(number), "MessageBody": "x"} for number in range(3)]
sqs = boto3.client("sqs")
answer = sqs.send_message_batch(QueueUrl=os.environ["QUEUE"], Entries=entries)
return len(answer["Successful"])
"""


@needed("authorization")
@pytest.mark.parametrize("allowed", ["sqs:SendMessage", "sqs:GetQueueUrl"])
def test_a_role_may_send_a_batch_if_it_may_send(
    engine: LocalCloud, deploy: Deploy, allowed: str
) -> None:
    """`sqs:SendMessage` permits a batch too, and a TLS-only queue takes what comes over loopback.

    Without it, the action is an error of the function. Every request is listed under its role.
    """
    policies = [
        {"Statement": [{"Effect": "Allow", "Action": allowed, "Resource": attribute("Queue")}]}
    ]
    sender = function(
        SENDS_A_BATCH, Policies=policies, Environment={"Variables": {"QUEUE": {"Ref": "Queue"}}}
    )
    stack = deploy(Queue=QUEUE, QueuePolicy=queue_policy("Queue", TLS_ONLY), Function=sender)
    answer = (
        engine.client("lambda")
        .invoke(FunctionName=stack.resources["Function"])["Payload"]
        .read()
        .decode()
    )
    assert answer == "3" if allowed == "sqs:SendMessage" else "AccessDenied" in answer
    (asked,) = (each for each in engine.asked() if each.role == stack.resources["FunctionRole"])
    assert (asked.action, asked.allowed) == ("sqs:SendMessage", allowed == "sqs:SendMessage")
    assert asked.resource.endswith(stack.resources["Queue"].rsplit("/", 1)[-1])


def test_a_role_does_no_more_than_its_boundary(engine: LocalCloud, deploy: Deploy) -> None:
    """Although its own policy allows the action."""
    sending = {"Effect": "Allow", "Action": "sqs:SendMessage", "Resource": "*"}
    reading = {"Effect": "Allow", "Action": "sqs:GetQueueUrl", "Resource": "*"}
    boundary = {
        "Type": "AWS::IAM::ManagedPolicy",
        "Properties": {"PolicyDocument": {"Version": "2012-10-17", "Statement": [reading]}},
    }
    sender = function(
        SENDS_A_BATCH,
        Policies=[{"Statement": [sending]}],
        PermissionsBoundary={"Ref": "Boundary"},
        Environment={"Variables": {"QUEUE": {"Ref": "Queue"}}},
    )
    stack = deploy(Queue=QUEUE, Boundary=boundary, Function=sender)
    answer = engine.client("lambda").invoke(FunctionName=stack.resources["Function"])
    assert "AccessDenied" in answer["Payload"].read().decode()
