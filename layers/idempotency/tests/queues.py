"""Queues of each kind, which refuse what SQS refuses."""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import boto3
import moto.sqs.models
from botocore.exceptions import ClientError, ReadTimeoutError

# For each message moto would spell the names of all attributes of its queue anew.
_spelled: Final = moto.sqs.models.camelcase_to_underscores  # type: ignore[attr-defined]
moto.sqs.models.camelcase_to_underscores = cache(_spelled)  # type: ignore[attr-defined]

KINDS: Final[Mapping[str, Mapping[str, str]]] = {
    "standard": {},
    "FIFO": {"FifoQueue": "true"},
    "FIFO by content": {"FifoQueue": "true", "ContentBasedDeduplication": "true"},
}
"""The attributes of the kinds of queues."""


@cache
def _client() -> Any:
    """Return a client: to make one takes longer than most tests with queues do."""
    return boto3.client("sqs", region_name="us-east-1")


class Queues:
    """A client of SQS in this process, which moto answers.

    A standard queue takes no deduplication id, as in AWS.
    """

    def __init__(self) -> None:
        self._sqs = _client()
        self.lost = 0
        """How many answers to what is sent next are lost."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sqs, name)

    def create(self, name: str, kind: str) -> str:
        """Create a queue of a kind; return its URL."""
        suffix = ".fifo" if KINDS[kind] else ""
        created = self._sqs.create_queue(QueueName=name + suffix, Attributes=dict(KINDS[kind]))
        url: str = created["QueueUrl"]
        return url

    def send_message(self, **message: Any) -> Any:
        if "MessageDeduplicationId" in message and not message["QueueUrl"].endswith(".fifo"):
            refused: Any = {
                "Error": {"Code": "InvalidParameterValue", "Message": "not valid for this queue"},
                "ResponseMetadata": {"HTTPStatusCode": 400},
            }
            raise ClientError(refused, "SendMessage")
        answer = self._sqs.send_message(**message)
        if self.lost:
            self.lost -= 1
            raise ReadTimeoutError(endpoint_url=message["QueueUrl"])
        return answer

    def received(self, url: str) -> list[Any]:
        """Receive and delete every message of a queue; return what they have."""
        found: list[Any] = []
        while True:
            messages = self._sqs.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=10,
                AttributeNames=["All"],
                MessageAttributeNames=["All"],
            ).get("Messages", [])
            if not messages:
                return found
            found += messages
            for message in messages:
                receipt = message["ReceiptHandle"]
                self._sqs.delete_message(QueueUrl=url, ReceiptHandle=receipt)
