"""Behaviours of AWS that the engine lacks: the README lists them, and a canary each says so."""

import pytest

from engine.client import LocalCloud
from engine.tests.conftest import Deploy
from engine.tests.support import QUEUE, attribute, listed, messages, until
from engine.tests.test_resources import table

pytestmark = pytest.mark.integration


@listed
@pytest.mark.parametrize("kind", ["Table", "GlobalTable"])
def test_a_table_expires_its_items(engine: LocalCloud, deploy: Deploy, kind: str) -> None:
    """The table has the time to live of its template."""
    expires = {"AttributeName": "expiry", "Enabled": True}
    stack = deploy(Table=table(kind, TimeToLiveSpecification=expires))
    answer = engine.client("dynamodb").describe_time_to_live(TableName=stack.resources["Table"])
    assert answer["TimeToLiveDescription"]["TimeToLiveStatus"] == "ENABLED"


@listed
def test_a_task_moves_messages_back(engine: LocalCloud, deploy: Deploy) -> None:
    """A dead-lettered message is in its queue again."""
    redrive = {"deadLetterTargetArn": attribute("Dlq"), "maxReceiveCount": 1}
    source = {"Type": "AWS::SQS::Queue", "Properties": {"RedrivePolicy": redrive}}
    stack = deploy(Queue=source, Dlq=QUEUE)
    sqs = engine.client("sqs")
    sqs.send_message(QueueUrl=stack.resources["Dlq"], MessageBody="1")
    request = {"QueueUrl": stack.resources["Dlq"], "AttributeNames": ["QueueArn"]}
    arn = sqs.get_queue_attributes(**request)["Attributes"]["QueueArn"]
    sqs.start_message_move_task(SourceArn=arn)
    assert until(lambda: messages(engine, stack), timeout=2.5)
