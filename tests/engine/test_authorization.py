import json
from typing import Any, Final

from local.local_aws import LocalAws
from tests.engine.conftest import Deploy
from tests.engine.support import QUEUE, TLS_ONLY, attribute, function, needed, queue_policy

SENDS_A_BATCH: Final = """
import boto3
entries = [{"Id": str(number), "MessageBody": "x"} for number in range(3)]
return len(boto3.client("sqs").send_message_batch(QueueUrl=os.environ["QUEUE"], Entries=entries)["Successful"])
"""


def answer_with(cloud: LocalAws, deploy: Deploy, action: str) -> Any:
    """Let a function whose role allows one action send a batch to a TLS-only queue; return its answer, or an error."""
    policies = [{"Statement": [{"Effect": "Allow", "Action": action, "Resource": attribute("Queue")}]}]
    sender = function(SENDS_A_BATCH, Policies=policies, Environment={"Variables": {"QUEUE": {"Ref": "Queue"}}})
    stack = deploy(Queue=QUEUE, QueuePolicy=queue_policy("Queue", TLS_ONLY), Function=sender)
    answer = cloud.client("lambda").invoke(FunctionName=stack.resources["Function"])
    return json.loads(answer["Payload"].read())


@needed("authorization")
def test_a_role_may_send_a_batch_if_it_may_send(engine: LocalAws, deploy: Deploy) -> None:
    """`sqs:SendMessage` is the permission for a batch too, and a TLS-only queue takes what comes over loopback."""
    assert answer_with(engine, deploy, "sqs:SendMessage") == 3


def test_a_role_without_the_permission_is_refused(engine: LocalAws, deploy: Deploy, name: str) -> None:
    """A refused action is an error of the function, and is listed under its role like every other request."""
    assert "AccessDenied" in answer_with(engine, deploy, "sqs:GetQueueUrl")["errorMessage"]
    stack = engine.stack(name)
    (asked,) = (each for each in engine.asked() if each.role == stack.resources["FunctionRole"])
    assert (asked.action, asked.allowed) == ("sqs:SendMessage", False)
    assert asked.resource.endswith(stack.resources["Queue"].rsplit("/", 1)[-1])
