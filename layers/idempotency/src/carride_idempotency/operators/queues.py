"""Reads a dead-letter queue and leaves every message in it."""

import math
import time
from collections.abc import Generator, Sequence
from typing import Any, Final, NamedTuple

HIDDEN_SECONDS: Final = 120
"""How long messages are hidden that are to be deleted."""
GLIMPSE_SECONDS: Final = 2
"""How long messages are hidden that are only read, at first."""
LONGEST_HIDDEN_SECONDS: Final = 43_200
"""SQS's limit."""
_MANY: Final = 10
_LONG_POLL_S: Final = 1


class _Taken(NamedTuple):
    """A message that was received."""

    receipt: str
    shows_at: float
    """When it shows again by itself, by the monotonic clock."""


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


def peek(
    sqs: Any, url: str, hidden_s: int = GLIMPSE_SECONDS, reads_s: float | None = None
) -> Generator[dict[str, Any]]:
    """Yield every visible message of a queue once, and make all of them visible again.

    If messages become visible again while the queue is read, later ones are hidden for longer: for
    twice the time that reading has taken so far. A queue cannot be read to its end otherwise, and
    what a killed reader leaves hidden shows soon.

    Reading ends when only known messages are received, or after ``reads_s`` seconds. With such an
    end, which must come before ``hidden_s``, no message is hidden for longer than ``hidden_s``.
    """
    expected = waiting(sqs, url, taken=False, visible=True)
    taken: dict[str, _Taken] = {}
    shown_again = 0
    start = time.monotonic()
    until = math.inf if reads_s is None else start + reads_s
    try:
        while shown_again <= 2 * len(taken) and (began := time.monotonic()) < until:
            polls = len(taken) < expected and began + _LONG_POLL_S < until
            messages = sqs.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=_MANY,
                VisibilityTimeout=hidden_s,
                # The count is approximate, so read until a read returns nothing. While more are
                # expected, use long polls: they ask every server that holds a part of the queue.
                WaitTimeSeconds=_LONG_POLL_S if polls else 0,
                MessageAttributeNames=["All"],
                AttributeNames=["All"],
            ).get("Messages", [])
            if not messages:
                break
            new = [message for message in messages if message["MessageId"] not in taken]
            shown_again = 0 if new else shown_again + len(messages)
            for message in messages:
                receipt = message["ReceiptHandle"]
                taken[message["MessageId"]] = _Taken(receipt, began + hidden_s)
            if len(new) < len(messages) and reads_s is None:
                so_far_s = time.monotonic() - start
                hidden_s = max(hidden_s, math.ceil(2 * so_far_s))
                hidden_s = min(hidden_s, LONGEST_HIDDEN_SECONDS)
            yield from new
    finally:
        _show(sqs, url, list(taken.values()))


def _show(sqs: Any, url: str, taken: Sequence[_Taken]) -> None:
    """Make received messages visible again that do not show by themselves yet."""
    for start in range(0, len(taken), _MANY):
        now = time.monotonic()
        some = taken[start : start + _MANY]
        receipts = [each.receipt for each in some if each.shows_at > now]
        entries: list[Any] = [
            {"Id": str(number), "ReceiptHandle": receipt, "VisibilityTimeout": 0}
            for number, receipt in enumerate(receipts)
        ]
        if entries:
            sqs.change_message_visibility_batch(QueueUrl=url, Entries=entries)
