"""Events as AWS delivers them.

Their times are those of ``clock``, by default of a new `ManualClock`.
"""

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from carride_idempotency import marshalling
from carride_idempotency.clock import Clock
from carride_idempotency.testing.doubles import Invocation, ManualClock

_REGION = "eu-west-1"
_ACCOUNT = "123456789012"
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
        "account": _ACCOUNT,
        "time": datetime.fromtimestamp(clock() / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "region": _REGION,
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
        "ApproximateReceiveCount": str(received),
    } | attributes
    common = {
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:{_REGION}:{_ACCOUNT}:queue",
        "awsRegion": _REGION,
    }
    texts = [body if isinstance(body, str) else json.dumps(body) for body in bodies]
    messages = [
        {"messageId": f"message-{number}", "body": text} for number, text in enumerate(texts, 1)
    ]
    return {
        "Records": [
            each | common | {"attributes": dict(attributes), "messageAttributes": {}}
            for each in messages
        ]
    }


def stream_event(
    *items: Mapping[str, object], key: str = "id", clock: Clock = _STILL
) -> dict[str, Any]:
    """Return the records of a DynamoDB stream for new items, given as Python values.

    ``key`` is the partition key.
    """
    return {
        "Records": [
            {
                "eventID": f"change-{number}",
                "eventName": "INSERT",
                "eventSource": "aws:dynamodb",
                "awsRegion": _REGION,
                "dynamodb": {
                    "ApproximateCreationDateTime": clock() / 1000,
                    "Keys": marshalling.item({key: item[key]}),
                    "NewImage": marshalling.item(item),
                    "SequenceNumber": str(number),
                    "StreamViewType": "NEW_IMAGE",
                },
            }
            for number, item in enumerate(items, 1)
        ]
    }


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

    A header of None is left out.

    A body of bytes is sent as it is, in base64; anything else as JSON.
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
            "accountId": _ACCOUNT,
            "http": {"method": method, "path": path},
            "requestId": "request-1",
        },
        "isBase64Encoded": isinstance(body, bytes),
    }
    if query:
        event["queryStringParameters"] = dict(query)
    if body is not None:
        event["body"] = (
            base64.b64encode(body).decode() if isinstance(body, bytes) else json.dumps(body)
        )
    return event


def lambda_context(
    *, request_id: str = "request-1", timeout_s: float = 30.0, clock: Clock = _STILL
) -> Invocation:
    """Return Lambda's context of a new invocation."""
    return Invocation(clock, request_id=request_id, timeout_s=timeout_s)
