"""Events as AWS delivers them.

Their times are those of ``clock``: see `now_or_later`. The ids of messages follow
from what they hold and from their number: two calls with the same arguments make two deliveries of
one message. ``first`` numbers another message with the same content.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b, md5
from typing import Any, Literal
from urllib.parse import urlencode

from carride_idempotency import marshalling
from carride_idempotency.clock import Clock, epoch_ms
from carride_idempotency.testing.doubles import ACCOUNT, REGION, Invocation, ManualClock

_SENDER = "AIDAAAAAAAAAAAAAAAAAA"
_STILL = ManualClock()


def now_or_later() -> int:
    """Return the time at which a `ManualClock` starts, or the present one as soon as that is later.

    So neither a consumer in a world's time nor one in real time finds an event beyond its window.
    """
    return max(_STILL(), epoch_ms())


def eventbridge_event(
    detail: Mapping[str, object],
    *,
    event_id: str | None = None,
    source: str = "test",
    clock: Clock = now_or_later,
) -> dict[str, Any]:
    """Return an event with the complete envelope of EventBridge.

    Its id, unless given, follows from the detail and the source.
    """
    return {
        "version": "0",
        "id": event_id or f"event-{_digest(detail, source)}",
        "detail-type": "Test",
        "source": source,
        "account": ACCOUNT,
        "time": _time(clock),
        "region": REGION,
        "resources": [],
        "detail": dict(detail),
    }


def sqs_event(
    *bodies: object,
    clock: Clock = now_or_later,
    received: int = 1,
    first: int = 1,
    **attributes: Any,
) -> dict[str, Any]:
    """Return a batch of messages. A body that is not a string is sent as JSON.

    Args:
        bodies: the messages.
        clock: says when they were sent.
        received: how often they have been received.
        first: the number of the first message, a part of its id.
        attributes: further attributes of each message, such as ``MessageGroupId``.
    """
    attributes = {
        "SentTimestamp": str(clock()),
        "ApproximateFirstReceiveTimestamp": str(clock()),
        "SenderId": _SENDER,
        "ApproximateReceiveCount": str(received),
    } | attributes
    common = {
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:{REGION}:{ACCOUNT}:queue",
        "awsRegion": REGION,
    }
    messages = [
        {
            "messageId": f"message-{number}-{_digest(text)}",
            "receiptHandle": f"receipt-{number}",
            "body": text,
            "md5OfBody": md5(text.encode(), usedforsecurity=False).hexdigest(),
        }
        for number, text in enumerate(map(_text, bodies), first)
    ]
    return {
        "Records": [
            each | common | {"attributes": dict(attributes), "messageAttributes": {}}
            for each in messages
        ]
    }


def sns_event(
    message: object, *, message_id: str | None = None, clock: Clock = now_or_later
) -> dict[str, Any]:
    """Return a notification of an SNS topic, which invokes a function with one message.

    A message that is not a string is sent as JSON. Its id, unless given, follows from it.
    """
    topic = f"arn:aws:sns:{REGION}:{ACCOUNT}:topic"
    return {
        "Records": [
            {
                "EventSource": "aws:sns",
                "EventVersion": "1.0",
                "EventSubscriptionArn": f"{topic}:00000000-0000-0000-0000-000000000001",
                "Sns": {
                    "Type": "Notification",
                    "MessageId": message_id or f"message-{_digest(_text(message))}",
                    "TopicArn": topic,
                    "Subject": None,
                    "Message": _text(message),
                    "Timestamp": _time(clock),
                    "MessageAttributes": {},
                    "SignatureVersion": "1",
                    "Signature": "signature",
                    "SigningCertUrl": f"https://sns.{REGION}.amazonaws.com/certificate.pem",
                    "UnsubscribeUrl": f"https://sns.{REGION}.amazonaws.com/?Action=Unsubscribe",
                },
            }
        ]
    }


def kinesis_event(
    *messages: object,
    partition_key: str = "partition-1",
    first: int = 1,
    clock: Clock = now_or_later,
) -> dict[str, Any]:
    """Return a batch of a Kinesis stream, all in one shard and under one partition key.

    Args:
        messages: the messages; one that is not a string is sent as JSON.
        partition_key: of all messages.
        first: the number of the first message. Sequence numbers begin with it.
        clock: says when they arrived.
    """
    shard = "shardId-000000000000"
    numbered = [
        (_sequence_number(number, _text(message), partition_key), message)
        for number, message in enumerate(messages, first)
    ]
    return {
        "Records": [
            {
                "eventID": f"{shard}:{number}",
                "eventName": "aws:kinesis:record",
                "eventSource": "aws:kinesis",
                "eventSourceARN": f"arn:aws:kinesis:{REGION}:{ACCOUNT}:stream/stream",
                "eventVersion": "1.0",
                "invokeIdentityArn": f"arn:aws:iam::{ACCOUNT}:role/test",
                "awsRegion": REGION,
                "kinesis": {
                    "kinesisSchemaVersion": "1.0",
                    "partitionKey": partition_key,
                    "sequenceNumber": number,
                    "data": _base64(message),
                    "approximateArrivalTimestamp": clock() / 1000,
                },
            }
            for number, message in numbered
        ]
    }


def kafka_event(
    *messages: object,
    topic: str = "topic",
    partition: int = 0,
    first_offset: int = 0,
    clock: Clock = now_or_later,
) -> dict[str, Any]:
    """Return a batch of one partition of a topic in Amazon MSK.

    A message that is not a string is sent as JSON. None is a tombstone. A record's id is its place:
    give the events of a test different offsets.
    """
    return {
        "eventSource": "aws:kafka",
        "eventSourceArn": f"arn:aws:kafka:{REGION}:{ACCOUNT}:cluster/cluster/1",
        "bootstrapServers": "broker-1:9092,broker-2:9092",
        "records": {
            f"{topic}-{partition}": [
                {
                    "topic": topic,
                    "partition": partition,
                    "offset": offset,
                    "timestamp": clock(),
                    "timestampType": "CREATE_TIME",
                    "value": None if message is None else _base64(message),
                    "headers": [],
                }
                for offset, message in enumerate(messages, first_offset)
            ]
        },
    }


def dynamodb_stream_event(
    *items: Mapping[str, object],
    key: str | Sequence[str] = "id",
    change: Literal["INSERT", "MODIFY", "REMOVE"] = "INSERT",
    before: Mapping[str, object] | Sequence[Mapping[str, object]] | None = None,
    first: int = 1,
    clock: Clock = now_or_later,
) -> dict[str, Any]:
    """Return the records of a DynamoDB stream for changed items, given as Python values.

    Args:
        items: the items as they are now; with ``REMOVE``, as they were.
        key: the partition key, or partition and sort key.
        change: what happened to the items.
        before: with ``MODIFY``, what the items were: for each item what it was, in a list, or the
            same for all. Default: as they are now.
        first: the number of the first change. Sequence numbers begin with it.
        clock: says when.

    Raises:
        ValueError: ``before`` has not one image for each item.
    """
    names = (key,) if isinstance(key, str) else key
    records = []
    for number, (item, old) in enumerate(zip(items, _before(items, before), strict=True), first):
        keys = {name: item[name] for name in names}
        images = _images(item, change, old)
        sequence_number = _sequence_number(number, change, images)
        record = {
            "eventID": f"change-{sequence_number}",
            "eventVersion": "1.1",
            "eventName": change,
            "eventSource": "aws:dynamodb",
            "eventSourceARN": f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/table/stream/1",
            "awsRegion": REGION,
            "dynamodb": {
                "ApproximateCreationDateTime": clock() / 1000,
                "Keys": marshalling.item(keys),
                **images,
                "SequenceNumber": sequence_number,
                "SizeBytes": len(str(item)),
                "StreamViewType": "NEW_AND_OLD_IMAGES",
            },
        }
        records.append(record)
    return {"Records": records}


def _before(
    items: Sequence[Mapping[str, object]],
    before: Mapping[str, object] | Sequence[Mapping[str, object]] | None,
) -> Sequence[Mapping[str, object]]:
    """Return what each item was."""
    if before is None:
        return items
    return [before] * len(items) if isinstance(before, Mapping) else before


def _images(
    item: Mapping[str, object], change: str, before: Mapping[str, object]
) -> dict[str, Any]:
    """Return the images that a stream has of a changed item."""
    if change == "REMOVE":
        return {"OldImage": marshalling.item(item)}
    images = {"NewImage": marshalling.item(item)}
    if change == "MODIFY":
        images["OldImage"] = marshalling.item(before)
    return images


def http_event(
    method: str,
    path: str,
    body: object = None,
    *,
    key: str | None = "key-1",
    query: Mapping[str, str] | None = None,
    headers: Mapping[str, str | None] | None = None,
) -> dict[str, Any]:
    """Return a request in payload format 2.0; ``key`` is its Idempotency-Key.

    A header that is None is left out. A body of bytes is sent in base64, any other as JSON.
    """
    given = {
        "content-type": None if body is None else "application/json",
        "idempotency-key": key,
    } | dict(headers or {})
    event: dict[str, Any] = {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": urlencode(query or {}),
        "headers": {name: value for name, value in given.items() if value is not None},
        "requestContext": {
            "accountId": ACCOUNT,
            "http": {"method": method, "path": path},
            "requestId": "request-1",
        },
        "isBase64Encoded": isinstance(body, bytes),
    }
    if query:
        event["queryStringParameters"] = dict(query)
    if isinstance(body, bytes):
        event["body"] = base64.b64encode(body).decode()
    elif body is not None:
        event["body"] = json.dumps(body)
    return event


def lambda_context(
    *,
    request_id: str = "request-1",
    timeout_s: float = 30.0,
    function_name: str = "test",
    clock: Clock = _STILL,
) -> Invocation:
    """Return Lambda's context of a new invocation, with every attribute that Lambda's has."""
    return Invocation(
        clock, request_id=request_id, timeout_s=timeout_s, function_name=function_name
    )


def _digest(*content: object) -> str:
    """Return 16 hexadecimal digits that follow from a content, and from nothing else."""
    text = json.dumps(content, sort_keys=True, default=repr)
    return blake2b(text.encode(), digest_size=8).hexdigest()


def _sequence_number(number: int, *content: object) -> str:
    """Return a number that differs for other contents, and grows with ``number``."""
    return f"{number}{int(_digest(*content), 16):020}"


def _time(clock: Clock) -> str:
    """Return the time of an envelope, in seconds."""
    return datetime.fromtimestamp(clock() / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _text(message: object) -> str:
    """Return a message as it is sent: a string as it is, anything else as JSON."""
    return message if isinstance(message, str) else json.dumps(message)


def _base64(message: object) -> str:
    return base64.b64encode(_text(message).encode()).decode()
