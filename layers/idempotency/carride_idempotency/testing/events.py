"""Events as AWS delivers them.

Their times are those of ``clock``, by default of a new `ManualClock`.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import md5
from typing import Any, Literal
from urllib.parse import urlencode

from carride_idempotency import marshalling
from carride_idempotency.clock import Clock
from carride_idempotency.testing.doubles import ACCOUNT, REGION, Invocation, ManualClock

_SENDER = "AIDAAAAAAAAAAAAAAAAAA"
_STILL = ManualClock()


def eventbridge_event(
    detail: Mapping[str, object],
    *,
    event_id: str = "event-1",
    source: str = "test",
    clock: Clock = _STILL,
) -> dict[str, Any]:
    """Return an event with the complete envelope of EventBridge."""
    return {
        "version": "0",
        "id": event_id,
        "detail-type": "Test",
        "source": source,
        "account": ACCOUNT,
        "time": _time(clock),
        "region": REGION,
        "resources": [],
        "detail": dict(detail),
    }


def sqs_event(
    *bodies: object, clock: Clock = _STILL, received: int = 1, **attributes: Any
) -> dict[str, Any]:
    """Return a batch of messages, ``message-1`` and so on.

    A body that is not a string is sent as JSON.
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
            "messageId": f"message-{number}",
            "receiptHandle": f"receipt-{number}",
            "body": text,
            "md5OfBody": md5(text.encode(), usedforsecurity=False).hexdigest(),
        }
        for number, text in enumerate(map(_text, bodies), 1)
    ]
    return {
        "Records": [
            each | common | {"attributes": dict(attributes), "messageAttributes": {}}
            for each in messages
        ]
    }


def sns_event(
    message: object, *, message_id: str = "message-1", clock: Clock = _STILL
) -> dict[str, Any]:
    """Return a notification of an SNS topic, which invokes a function with one message.

    A message that is not a string is sent as JSON.
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
                    "MessageId": message_id,
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
    *messages: object, partition_key: str = "partition-1", clock: Clock = _STILL
) -> dict[str, Any]:
    """Return a batch of a Kinesis stream, all in one shard and under one partition key.

    A message that is not a string is sent as JSON.
    """
    shard = "shardId-000000000000"
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
                    "sequenceNumber": str(number),
                    "data": _base64(message),
                    "approximateArrivalTimestamp": clock() / 1000,
                },
            }
            for number, message in enumerate(messages, 1)
        ]
    }


def kafka_event(
    *messages: object,
    topic: str = "topic",
    partition: int = 0,
    first_offset: int = 0,
    clock: Clock = _STILL,
) -> dict[str, Any]:
    """Return a batch of one partition of a topic in Amazon MSK.

    A message that is not a string is sent as JSON. None is a tombstone.
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
    before: Mapping[str, object] | None = None,
    clock: Clock = _STILL,
) -> dict[str, Any]:
    """Return the records of a DynamoDB stream for changed items, given as Python values.

    Args:
        items: the items as they are now; with ``REMOVE``, as they were.
        key: the partition key, or partition and sort key.
        change: what happened to the items.
        before: with ``MODIFY``, what the items were.
        clock: says when.
    """
    names = (key,) if isinstance(key, str) else key
    records = []
    for number, item in enumerate(items, 1):
        keys = {name: item[name] for name in names}
        record = {
            "eventID": f"change-{number}",
            "eventVersion": "1.1",
            "eventName": change,
            "eventSource": "aws:dynamodb",
            "eventSourceARN": f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/table/stream/1",
            "awsRegion": REGION,
            "dynamodb": {
                "ApproximateCreationDateTime": clock() / 1000,
                "Keys": marshalling.item(keys),
                **_images(item, change, before),
                "SequenceNumber": str(number),
                "SizeBytes": len(str(item)),
                "StreamViewType": "NEW_AND_OLD_IMAGES",
            },
        }
        records.append(record)
    return {"Records": records}


def _images(
    item: Mapping[str, object], change: str, before: Mapping[str, object] | None
) -> dict[str, Any]:
    """Return the images that a stream has of a changed item."""
    if change == "REMOVE":
        return {"OldImage": marshalling.item(item)}
    images = {"NewImage": marshalling.item(item)}
    if change == "MODIFY":
        images["OldImage"] = marshalling.item(item if before is None else before)
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


def _time(clock: Clock) -> str:
    """Return the time of an envelope, in seconds."""
    return datetime.fromtimestamp(clock() / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _text(message: object) -> str:
    """Return a message as it is sent: a string as it is, anything else as JSON."""
    return message if isinstance(message, str) else json.dumps(message)


def _base64(message: object) -> str:
    return base64.b64encode(_text(message).encode()).decode()
