"""The forms of dead letters, by who has sent them.

The first form of this table that fits is a letter's. Nothing that a producer can write comes before
what SQS says of a message: whoever may send to a source queue would choose the form otherwise.

form                      known by                                       event
────────────────────────  ─────────────────────────────────────────────  ──────────────────────────
moved by SQS              system attribute ``DeadLetterQueueSourceArn``  the message, as a record
a consumer's              attributes ``Reason`` and ``Consumer``         ``event``, ``eventGzip``
Lambda's own              attributes ``RequestID`` and ``ErrorCode``     the body
EventBridge's, Scheduler  attribute ``ERROR_CODE``                       the body, unless truncated
of a stream, of a pipe    a condition, and ``…BatchInfo``                none: it has the positions
on-failure destination    a condition, and ``requestPayload``            ``requestPayload``
a topic's                 ``Type`` is ``Notification``                   a record of the topic
a copy of a consumer's    ``reason`` and ``consumer``, no attributes     ``event``, ``eventGzip``
anybody's                 a JSON object                                  the body

Only a consumer's own letter states a key, and only one of that consumer's.
"""

import base64
import binascii
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from carride_idempotency.operators.choosing import is_of_a_call

EXHAUSTED: Final = "ReceivesExhausted"
"""The reason of a message that SQS moved because it was received too often."""
FAILED_INVOCATION: Final = "InvocationFailed"
"""The reason of a message in the dead-letter queue of a function."""
UNDELIVERED: Final = "Undelivered"
"""The reason of a message that a topic could not deliver."""
UNKNOWN_SENDER: Final = "UnknownSender"
"""The reason of a JSON object that says nothing of its sender."""
UNREADABLE: Final = "UNREADABLE"
"""The reason of a message whose sender is unknown, and which is not a JSON object."""
NO_EVENT: Final = "the event is not in it"
_ARGUMENTS: Final = (
    "it holds the arguments of a call, which no function or queue takes: call it again, and delete "
    "the letter"
)
_REQUEST: Final = (
    "it holds a request, which only its client can send again: release its key, and delete the "
    "letter"
)
_GZIP: Final = 31
_LARGEST: Final = 2**26
"""The most bytes of a compressed event."""

type ReadJson = Callable[[str], Any]
"""Returns the JSON value in a text; None if there is none."""


class Content(NamedTuple):
    """What a message of a dead-letter queue says."""

    reason: str
    """The code of whoever sent it."""
    error: str = ""
    event: Any = None
    """As it was delivered, or would have been; None if it is not in the letter."""
    consumer: str | None = None
    """None if another service has sent it."""
    key: str | None = None
    """Of the consumer's record: one that a release may free."""
    unusable: str | None = None
    """Why it cannot be delivered again, whatever its record says."""


class _Message(NamedTuple):
    """A message of a dead-letter queue."""

    raw: Mapping[str, Any]
    system: Mapping[str, str]
    """What SQS says of it."""
    attributes: Mapping[str, str]
    """What its sender says of it beside the body."""
    body: Any
    """The JSON value in it; None if there is none."""
    read: ReadJson


def content_of(message: Mapping[str, Any], read: ReadJson | None = None) -> Content:
    """Return what a message says, by the first form that fits.

    Args:
        message: as SQS's `ReceiveMessage` returns it, with all attributes.
        read: reads JSON, such as a reader that refuses what is nested deeply.
    """
    read = read or _json_in
    given = _Message(
        raw=message,
        system=message.get("Attributes", {}),
        attributes=_texts_of(message.get("MessageAttributes", {})),
        body=read(message["Body"]),
        read=read,
    )
    content = next(found for form in FORMS if (found := form(given)) is not None)
    if content.event is None and content.unusable is None:
        return content._replace(unusable=NO_EVENT)
    return content


def _json_in(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _texts_of(attributes: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name, value in attributes.items():
        if "StringValue" in value:
            found[name] = str(value["StringValue"])
    return found


# ── The forms ─────────────────────────────────────────────────────────────────────────────────────


def _moved(message: _Message) -> Content | None:
    """Read a message that SQS moved: a producer has written all of it."""
    source = message.system.get("DeadLetterQueueSourceArn")
    if source is None:
        return None
    return Content(EXHAUSTED, event=_record_of(message, source))


def _record_of(message: _Message, source: str) -> dict[str, Any]:
    """Return a message as Lambda gets it from the queue in which it was."""
    system = {
        name: value
        for name, value in message.system.items()
        # These differ with each receive, or are of the dead-letter queue.
        if not name.startswith(("Approximate", "DeadLetterQueue"))
    }
    return {
        "messageId": message.raw["MessageId"],
        "body": message.raw["Body"],
        "attributes": system,
        "messageAttributes": dict(_attributes_of(message)),
        "eventSource": "aws:sqs",
        "eventSourceARN": source,
    }


def _attributes_of(message: _Message) -> Iterator[tuple[str, dict[str, str]]]:
    for name, value in message.raw.get("MessageAttributes", {}).items():
        if "BinaryValue" in value:
            content = {"binaryValue": base64.b64encode(value["BinaryValue"]).decode()}
        else:
            content = {"stringValue": str(value.get("StringValue", ""))}
        yield name, {"dataType": str(value.get("DataType", "String")), **content}


def _of_a_consumer(message: _Message) -> Content | None:
    stated = message.attributes.get("Reason"), message.attributes.get("Consumer")
    match message.body:
        case {"reason": str(reason), "consumer": str(consumer)} if stated == (reason, consumer):
            return _lettered(message, is_own=True)
    return None


def _copied(message: _Message) -> Content | None:
    """Read a consumer's letter that another sender has sent again."""
    match message.body:
        case {"reason": str(), "consumer": str(), "event": _} | {
            "reason": str(),
            "consumer": str(),
            "eventGzip": str(),
        }:
            return _lettered(message, is_own=False)
    return None


def _lettered(message: _Message, *, is_own: bool) -> Content:
    """Return what is in a consumer's letter; its key, if that can be believed."""
    body = message.body
    stated = body.get("key")
    event = body.get("event")
    if event is None:
        event = message.read(unpacked(body.get("eventGzip")))
    unusable = None
    if isinstance(stated, str) and is_of_a_call(stated):
        unusable = _ARGUMENTS
    elif is_request(event):
        unusable = _REQUEST
    key = None
    if is_own and isinstance(stated, str) and _is_of(stated, body["consumer"]):
        key = stated
    text = body.get("message")
    error = text if isinstance(text, str) else ""
    return Content(body["reason"], error, event, body["consumer"], key, unusable)


def _is_of(key: str, consumer: str) -> bool:
    """Return whether a key is of a consumer, or of one of its operations."""
    return key.startswith((f"{consumer}#", f"{consumer}/"))


def is_request(event: Any) -> bool:
    """Return whether a letter holds an HTTP request, without the headers that a copy needs."""
    return isinstance(event, Mapping) and event.keys() == {"method", "path", "query", "body"}


def unpacked(packed: Any) -> str:
    """Return a text that was compressed and encoded as base64; empty if it is damaged."""
    unpacking = zlib.decompressobj(_GZIP)
    try:
        text = unpacking.decompress(binascii.a2b_base64(str(packed)), _LARGEST)
        return text.decode(errors="surrogatepass") if unpacking.eof else ""
    except (zlib.error, ValueError):
        return ""


def _of_a_function(message: _Message) -> Content | None:
    attributes = message.attributes
    if not attributes.keys() >= {"RequestID", "ErrorCode"}:
        return None
    error = attributes.get("ErrorMessage") or f"status {attributes['ErrorCode']}"
    return Content(FAILED_INVOCATION, error, message.body)


def _of_eventbridge(message: _Message) -> Content | None:
    code = message.attributes.get("ERROR_CODE")
    if code is None:
        return None
    error = message.attributes.get("ERROR_MESSAGE", "")
    if message.attributes.get("IS_PAYLOAD_TRUNCATED", "").casefold() == "true":
        return Content(code, error, unusable=f"{NO_EVENT}: Scheduler has truncated it")
    return Content(code, error, message.body)


def _of_a_batch(message: _Message) -> Content | None:
    """Read what a trigger or a pipe tells of records, which stay in their stream or topic."""
    match message.body:
        case {"requestContext": {"condition": str(why)}} | {"context": {"condition": str(why)}}:
            for name, batch in message.body.items():
                if name.endswith("BatchInfo") and isinstance(batch, Mapping):
                    where = "; ".join(_positions_in(batch))
                    return Content(why, unusable=f"{NO_EVENT}: its records stay in {where}")
    return None


def _positions_in(batch: Mapping[str, Any]) -> Iterator[str]:
    """Yield where the records of a batch are, in words."""
    source = batch.get("streamArn") or batch.get("eventSourceArn") or batch.get("bootstrapServers")
    records = batch.get("recordsInfo")
    if not isinstance(records, Mapping):
        shard = f", {batch['shardId']}" if "shardId" in batch else ""
        first = batch.get("startSequenceNumber")
        yield f"{source}{shard}, from sequence number {first} to {batch.get('endSequenceNumber')}"
        return
    for partition, numbers in records.items():
        if isinstance(numbers, Mapping):
            first = numbers.get("firstRecordOffset")
            last = numbers.get("lastRecordOffset")
            yield f"{source}, {partition}, from offset {first} to {last}"


def _of_a_destination(message: _Message) -> Content | None:
    match message.body:
        case {"requestContext": {"condition": str(why)}, "requestPayload": event, **more}:
            return Content(why, _error_in(more.get("responsePayload")), event)
    return None


def _error_in(answer: Any) -> str:
    """Return the error that Lambda has recorded with a failed invocation."""
    match answer:
        case {"errorMessage": text, **more}:
            return f"{more.get('errorType', 'Error')}: {text}"
    return ""


def _of_a_topic(message: _Message) -> Content | None:
    match message.body:
        case {"Type": "Notification", "TopicArn": str(), "Message": str()} as notification:
            event = {"EventSource": "aws:sns", "EventVersion": "1.0", "Sns": notification}
            return Content(UNDELIVERED, event=event)
    return None


def _of_anybody(message: _Message) -> Content:
    if isinstance(message.body, Mapping):
        return Content(UNKNOWN_SENDER, event=message.body)
    return Content(UNREADABLE)


FORMS: Final[tuple[Callable[[_Message], Content | None], ...]] = (
    _moved,
    _of_a_consumer,
    _of_a_function,
    _of_eventbridge,
    _of_a_batch,
    _of_a_destination,
    _of_a_topic,
    _copied,
    _of_anybody,
)
"""Each returns what a message of its form says, and None for others. The last one takes all."""
