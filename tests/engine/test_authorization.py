import json
from typing import Any, Final

from local.local_aws import LocalAws
from tests.engine.conftest import Deploy
from tests.engine.support import TLS_ONLY, Resource, attribute, function, needed, queue_policy

SENDS_A_BATCH: Final = """
import boto3
entries = [{"Id": str(number), "MessageBody": "x"} for number in range(3)]
boto3.client("sqs").send_message_batch(QueueUrl=os.environ["QUEUE"], Entries=entries)
"""


def resources(action: str) -> dict[str, Resource]:
    """A TLS-only queue, and a function that sends it a batch and whose role allows one action."""
    statement = {"Effect": "Allow", "Action": action, "Resource": attribute("Queue")}
    return {
        "Queue": {"Type": "AWS::SQS::Queue"},
        "QueuePolicy": queue_policy("Queue", TLS_ONLY),
        "Function": function(
            SENDS_A_BATCH,
            Policies=[{"Version": "2012-10-17", "Statement": [statement]}],
            Environment={"Variables": {"QUEUE": {"Ref": "Queue"}}},
        ),
    }


def answer_with(cloud: LocalAws, deploy: Deploy, action: str) -> Any:
    """Return the function's answer if its role allows the action: None, or an error."""
    stack = deploy(**resources(action))
    answer = cloud.client("lambda").invoke(FunctionName=stack.resources["Function"])
    return json.loads(answer["Payload"].read())


@needed("authorization")
def test_a_role_may_send_a_batch_if_it_may_send(engine: LocalAws, deploy: Deploy, name: str) -> None:
    """`sqs:SendMessage` is the permission for a batch too, and a TLS-only queue takes what comes over loopback."""
    assert answer_with(engine, deploy, "sqs:SendMessage") is None
    count = "ApproximateNumberOfMessages"
    url = engine.stack(name).resources["Queue"]
    attributes = engine.client("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=[count])["Attributes"]
    assert attributes[count] == "3"


def test_a_role_without_the_permission_is_refused(engine: LocalAws, deploy: Deploy, name: str) -> None:
    """A refused action is an error of the function, and is listed under its role like every other request."""
    assert "AccessDenied" in answer_with(engine, deploy, "sqs:GetQueueUrl")["errorMessage"]
    stack = engine.stack(name)
    asked = [each for each in engine.asked() if each.role == stack.resources["FunctionRole"]]
    assert [(each.action, each.allowed) for each in asked] == [("sqs:SendMessage", False)]
    assert asked[0].resource.endswith(stack.resources["Queue"].rsplit("/", 1)[-1])
