"""Reads dead-letter queues and leaves every message in them."""

import binascii
import re
import zlib
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, Final

from carride.events import MOST_LEVELS, ContractError, parse_event, read_json
from carride.publisher import GZIP
from ops.audit.evidence import DeadLettered

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.type_defs import MessageTypeDef

UNREADABLE: Final = "UNREADABLE"
"""The reason of a dead letter that is no JSON object."""

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
    """Return how many messages of a queue other readers have taken, and how many are visible or delayed."""
    names = (("NotVisible",) if taken else ()) + (("", "Delayed") if visible else ())
    asked: Any = [f"ApproximateNumberOfMessages{name}" for name in names]
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=asked)["Attributes"]
    return sum(map(int, attributes.values()))


def peek(sqs: "SQSClient", url: str, hidden_s: int = HIDDEN_SECONDS) -> Generator["MessageTypeDef"]:
    """Yield every visible message of a queue once, and make all of them visible again.

    If reading takes so long that messages become visible again, they are hidden for longer. Reading
    ends when only known messages are received.
    """
    expected = waiting(sqs, url, taken=False, visible=True)
    receipts: dict[str, str] = {}
    shown_again = 0
    try:
        # The count is approximate, so read until a read returns nothing. While more messages are
        # expected, use long polls, which ask every server that holds a part of the queue.
        while shown_again <= 2 * len(receipts) and (
            messages := sqs.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=_MANY,
                VisibilityTimeout=hidden_s,
                WaitTimeSeconds=1 if len(receipts) < expected else 0,
                MessageAttributeNames=["All"],
                AttributeNames=["SentTimestamp"],
            ).get("Messages", [])
        ):
            new = [message for message in messages if message["MessageId"] not in receipts]
            shown_again = 0 if new else shown_again + len(messages)
            if len(new) < len(messages):
                hidden_s = min(2 * hidden_s, _LONGEST_HIDDEN_SECONDS)
            receipts |= {message["MessageId"]: message["ReceiptHandle"] for message in messages}
            yield from new
    finally:
        handles = list(receipts.values())
        for first in range(0, len(handles), _MANY):
            sqs.change_message_visibility_batch(
                QueueUrl=url,
                Entries=[
                    {"Id": str(index), "ReceiptHandle": handle, "VisibilityTimeout": 0}
                    for index, handle in enumerate(handles[first : first + _MANY])
                ],
            )


def dead_letter(queue: str, consumer: str | None, message: "MessageTypeDef") -> DeadLettered:
    """Return a dead letter as evidence, whoever sent it: its queue's logical id, and the consumer if any."""
    reason, event = opened(message)
    event_id = event.get("id") if isinstance(event, Mapping) else id_in(message["Body"])
    return DeadLettered(
        queue, reason, consumer, event_id if isinstance(event_id, str) else None, fact_of(event)
    )


def opened(message: "MessageTypeDef") -> tuple[str, Any]:
    """Return the reason of a dead letter and its event, None if that is missing or unreadable."""
    body = json_object(message["Body"])
    event: Any
    if body is None:
        return UNREADABLE, None
    match body:
        case {
            "reason": str(reason),
            "consumer": str(),
            "event": event,
        }:  # sent by the consumer itself
            event = event if event is not None else json_object(_unpacked(body.get("eventGzip")))
        case {
            "requestContext": {"condition": str(reason)},
            "requestPayload": event,
        }:  # sent by Lambda
            pass
        case {
            "context": {"condition": str(reason)}
        }:  # sent by a pipe, which names the record and omits it
            event = None
        case _:  # sent by EventBridge, or by the publisher in the same form; or moved here by SQS, unchanged
            code = message.get("MessageAttributes", {}).get("ERROR_CODE")
            reason, event = (
                "ReceivesExhausted" if code is None else code.get("StringValue", UNREADABLE),
                body,
            )
    match event:
        case {"messageId": _, "body": str(text)}:  # a record of a batch
            event = json_object(text)
        case {"detailGzip": packed}:  # the publisher's, compressed
            detail = _unpacked(packed)
            event = {**event, "detail": json_object(detail) or detail}
    return reason, event


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
    found = _event_id(text)
    return found and found[1]


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
