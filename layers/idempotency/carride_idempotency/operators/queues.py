"""Reads a dead-letter queue and leaves every message in it."""

from collections.abc import Generator
from typing import Any, Final

HIDDEN_SECONDS: Final = 120
"""How long messages stay hidden while a queue is read. It is doubled if reading takes longer."""
_LONGEST_HIDDEN_SECONDS: Final = 43_200
_MANY: Final = 10


def waiting(sqs: Any, url: str, *, taken: bool = True, visible: bool = False) -> int:
    """Count messages of a queue.

    Args:
        sqs: botocore's or boto3's client.
        url: the queue.
        taken: counts messages that other readers have received and not deleted.
        visible: counts messages that can be received, and delayed ones.
    """
    asked: list[Any] = []
    if taken:
        asked.append("ApproximateNumberOfMessagesNotVisible")
    if visible:
        asked += ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesDelayed"]
    answer = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=asked)
    return sum(int(count) for count in answer["Attributes"].values())


def peek(sqs: Any, url: str, hidden_s: int = HIDDEN_SECONDS) -> Generator[dict[str, Any]]:
    """Yield every visible message of a queue once, and make all of them visible again.

    If messages become visible again while the queue is read, later ones are hidden for longer.
    Reading ends when only known messages are received.
    """
    expected = waiting(sqs, url, taken=False, visible=True)
    receipts: dict[str, str] = {}
    shown_again = 0
    try:
        while shown_again <= 2 * len(receipts):
            messages = sqs.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=_MANY,
                VisibilityTimeout=hidden_s,
                # The count is approximate, so read until a read returns nothing. While more are
                # expected, use long polls: they ask every server that holds a part of the queue.
                WaitTimeSeconds=1 if len(receipts) < expected else 0,
                MessageAttributeNames=["All"],
                AttributeNames=["SentTimestamp"],
            ).get("Messages", [])
            if not messages:
                break
            new = [message for message in messages if message["MessageId"] not in receipts]
            shown_again = 0 if new else shown_again + len(messages)
            if len(new) < len(messages):
                hidden_s = min(2 * hidden_s, _LONGEST_HIDDEN_SECONDS)
            receipts |= {message["MessageId"]: message["ReceiptHandle"] for message in messages}
            yield from new
    finally:
        _show(sqs, url, list(receipts.values()))


def _show(sqs: Any, url: str, receipts: list[str]) -> None:
    """Make received messages visible again."""
    for start in range(0, len(receipts), _MANY):
        entries: list[Any] = [
            {"Id": str(number), "ReceiptHandle": receipt, "VisibilityTimeout": 0}
            for number, receipt in enumerate(receipts[start : start + _MANY])
        ]
        sqs.change_message_visibility_batch(QueueUrl=url, Entries=entries)
