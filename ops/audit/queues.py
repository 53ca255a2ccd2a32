"""Reads dead-letter queues and leaves every message in them."""

import binascii
import re
import zlib
from collections.abc import Generator, Mapping
from itertools import batched
from typing import TYPE_CHECKING, Any, Final

from carride.events import MOST_LEVELS, ContractError, parse_event, read_json
from carride.publisher import GZIP
from ops.audit.evidence import DeadLettered

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.type_defs import MessageTypeDef

UNREADABLE: Final = "UNREADABLE"
"""The reason of a dead letter that is not a JSON object."""

HIDDEN_SECONDS: Final = 120
"""How long messages stay hidden while a queue is read. It is doubled if reading takes longer."""
_LONGEST_HIDDEN_SECONDS: Final = 43_200
_MANY: Final = 10
_LARGEST: Final = 2**26
"""The most bytes of a compressed event."""
_LEVELS: Final = MOST_LEVELS + 16
"""The most levels of a log line or a dead letter, which wraps an event."""
_event_id: Final = re.compile(
    r"""\\?"version\\?": ?\\?"0\\?", ?\\?"id\\?": ?\\?"([0-9a-f-]{36})"""
).search
"""Finds EventBridge's id, with which the envelope begins, in unreadable text."""


def waiting(sqs: "SQSClient", url: str, *, taken: bool = True, visible: bool = False) -> int:
    """Return how many messages of a queue other readers have ``taken``, are ``visible``, or both.

    Delayed messages count as visible.
    """
    asked: list[Any] = []
    if taken:
        asked.append("ApproximateNumberOfMessagesNotVisible")
    if visible:
        asked += ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesDelayed"]
    answer = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=asked)
    return sum(int(count) for count in answer["Attributes"].values())


def peek(sqs: "SQSClient", url: str, hidden_s: int = HIDDEN_SECONDS) -> Generator["MessageTypeDef"]:
    """Yield every visible message of a queue once, and make all of them visible again.

    If reading takes so long that messages become visible again, they are hidden for longer. Reading
    ends when only known messages are received.
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


def _show(sqs: "SQSClient", url: str, receipts: list[str]) -> None:
    """Make received messages visible again."""
    for some in batched(receipts, _MANY, strict=False):
        entries: list[Any] = [
            {"Id": str(number), "ReceiptHandle": receipt, "VisibilityTimeout": 0}
            for number, receipt in enumerate(some)
        ]
        sqs.change_message_visibility_batch(QueueUrl=url, Entries=entries)


def dead_letter(queue: str, consumer: str | None, message: "MessageTypeDef") -> DeadLettered:
    """Return a dead letter as evidence, whoever sent it.

    ``queue`` is the queue's logical id, ``consumer`` the one that did not process the event, if
    any.
    """
    reason, event = opened(message)
    event_id = id_in(message["Body"])
    if isinstance(event, Mapping):
        event_id = event["id"] if isinstance(event.get("id"), str) else None
    return DeadLettered(queue, reason, consumer, event_id, fact_of(event))


def opened(message: "MessageTypeDef") -> tuple[str, Any]:
    """Return the reason of a dead letter and its event, None if that is missing or unreadable."""
    reason, sent = _as_sent(message)
    return reason, _unwrapped(sent)


def _as_sent(message: "MessageTypeDef") -> tuple[str, Any]:
    """Return the reason of a dead letter and what its sender received, by the sender's form."""
    body = json_object(message["Body"])
    match body:
        case None:
            return UNREADABLE, None
        case {"reason": str(reason), "consumer": str(), "event": None}:  # compressed by a consumer
            return reason, json_object(_unpacked(body.get("eventGzip")))
        case {"reason": str(reason), "consumer": str(), "event": event}:
            return reason, event
        case {"requestContext": {"condition": str(reason)}, "requestPayload": event}:  # by Lambda
            return reason, event
        case {"context": {"condition": str(reason)}}:  # by a pipe: it names the record and omits it
            return reason, None
    # Sent by EventBridge, or by the publisher in the same form; or moved here by SQS, unchanged.
    code = message.get("MessageAttributes", {}).get("ERROR_CODE")
    if code is None:
        return "ReceivesExhausted", body
    return code.get("StringValue", UNREADABLE), body


def _unwrapped(sent: Any) -> Any:
    """Return the event in what a consumer or a target received."""
    match sent:
        case {"messageId": _, "body": str(text)}:  # a record of a batch
            return json_object(text)
        case {"detailGzip": packed}:  # the publisher's, compressed
            detail = _unpacked(packed)
            return {**sent, "detail": json_object(detail) or detail}
        case _:
            return sent


def fact_of(event: Any) -> str | None:
    """Return the idempotency id of an event, or None if it breaks the contract."""
    try:
        return parse_event(event).idempotencyid
    except ContractError:
        return None


def json_object(content: str | None) -> Any:
    """Return the JSON object in a text, or None if there is none or it is unreadable."""
    try:
        value = None if content is None else read_json(content, "content", levels=_LEVELS)
    except ContractError:
        return None
    return value if isinstance(value, dict) else None


def id_in(text: str) -> str | None:
    """Return EventBridge's id of an event in unreadable text, or None."""
    match = _event_id(text)
    return None if match is None else match[1]


def _unpacked(packed: object) -> str | None:
    """Return a text that was compressed and encoded as base64, or None if it is incomplete."""
    unpacking = zlib.decompressobj(GZIP)
    try:
        text = unpacking.decompress(binascii.a2b_base64(str(packed)), _LARGEST).decode(
            errors="surrogatepass"
        )
    except (zlib.error, ValueError):
        return None
    return text if unpacking.eof else None
