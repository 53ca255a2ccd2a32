"""A partner's application: one process that gives points for rides.

It subscribes a queue to the partners' topic, whose messages are in the older envelope. Its
idempotency records are in memory. When it grows to many processes, only that store changes.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from carride_idempotency import (
    Consumer,
    MemoryStore,
    Operation,
    Policy,
)
from carride_idempotency.clock import epoch_ms
from carride_idempotency.errors import BatchFailedError
from carride_idempotency.sources import SQS
from carride_idempotency.testing import Invocation
from ops.replay.planning import may_send

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.type_defs import MessageTypeDef

_MOST_MESSAGES: Final = 10
"""Messages that one request to SQS receives."""
_BATCH_SECONDS: Final = 60.0
"""How long one batch may take; the layer asks its caller, which is Lambda elsewhere."""


class Partner:
    """Gives points for every event of a ride, once.

    ``before`` gets event and attempt, and may fail it.
    """

    def __init__(self, before: Callable[[Mapping[str, Any], int], None]) -> None:
        self.points: Counter[str] = Counter()
        """How often each event took effect, by its idempotency id. Once is right."""
        # Messages of a batch are processed in threads.
        self._before = before
        self._lock = threading.Lock()
        key = "attributes.idempotencyId"
        policy = Policy(max_attempts=10)
        consumer: Consumer[dict[str, Any]] = Consumer(
            "points", MemoryStore(), key=key, payload="data", source=SQS, policy=policy
        )
        self.receive = consumer.batch_handler(self._give)

    def _give(self, event: dict[str, Any], operation: Operation) -> None:
        self._before(event, operation.attempt)
        with self._lock:
            self.points[event["attributes"]["idempotencyId"]] += 1

    def poll(self, sqs: "SQSClient", url: str) -> None:
        """Process a batch of the messages that wait in a queue."""
        received = sqs.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=_MOST_MESSAGES,
            WaitTimeSeconds=1,
            MessageSystemAttributeNames=["SentTimestamp", "ApproximateReceiveCount"],
        )
        messages = received.get("Messages", [])
        batch = {"Records": [_as_lambda_delivers(message) for message in messages]}
        try:
            answer = self.receive(batch, Invocation(epoch_ms, timeout_s=_BATCH_SECONDS))
        except BatchFailedError:  # all messages stay in the queue
            return
        failed = {failure["itemIdentifier"] for failure in answer["batchItemFailures"]}
        for message in messages:
            if message["MessageId"] not in failed:
                sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


def _as_lambda_delivers(message: "MessageTypeDef") -> dict[str, Any]:
    return {
        "messageId": message["MessageId"],
        "body": message["Body"],
        "attributes": message["Attributes"],
    }


def subscribe(sns: Any, sqs: "SQSClient", topic: str, name: str) -> str:
    """Create a queue that gets every message of a topic, by its ARN, unchanged; return its URL."""
    created = sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "2"})
    url = created["QueueUrl"]
    described = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
    arn = described["Attributes"]["QueueArn"]
    policy = may_send("sns", topic, arn)
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})
    sns.subscribe(
        TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes={"RawMessageDelivery": "true"}
    )
    return url
