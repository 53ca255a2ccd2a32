"""Sample events, one file for each situation and function.

They are for ``sam local invoke``, ``make invoke`` and tests. Their times are in the future, because a consumer refuses
events that are older than its window. Dead letters are messages as ``aws sqs receive-message`` shows them.
"""

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from msgspec.structs import replace

from carride.events import DETAIL_TYPE, SOURCE, RideEvent
from carride.facts import CarAssigned
from carride.simulation import Kind, broken, older_envelope, predefined, to_event
from contract.layout import compact

type Json = dict[str, Any]

TIME: Final = datetime(2040, 1, 2, 8, 30, tzinfo=UTC)
_EXPIRED: Final = datetime(2026, 1, 2, 8, 30, tzinfo=UTC)
_REGION: Final = "us-east-1"
_ACCOUNT: Final = "123456789012"


class Life:
    """The events of one completed ride, a minute apart, and of the assignment of its car."""

    def __init__(self, order_id: str, time: datetime = TIME, expirytime: datetime | None = None) -> None:
        facts = [replace(fact, order_id=order_id) for fact in predefined(0, 0)]
        self.created, self.accepted, self.started, self.completed = (
            to_event(facts[max(step - 1, 0) : step + 1], time + timedelta(minutes=step), expirytime=expirytime)
            for step in range(4)
        )
        self.assigned = RideEvent.of(
            CarAssigned.of(facts[1], car_id="car_01"),
            source=SOURCE,
            time=time + timedelta(minutes=1, seconds=2),
            cause=self.accepted,
            expirytime=expirytime,
        )


def samples() -> dict[str, Json]:
    """Return every sample by its file name, which is the function's name and the situation."""
    one, spoilt, other = Life("order_01"), Life("order_03"), Life("order_04")
    late = Life("order_02", _EXPIRED, expirytime=_EXPIRED + timedelta(minutes=10))
    live = delivered(one.created.to_detail(), 1)
    accepted = delivered(one.accepted.to_detail(), 101)
    malformed = json.loads(broken(spoilt.accepted, Kind.BROKEN_SHAPE).detail)
    batch = [
        accepted,
        delivered(one.accepted.to_detail(), 102),
        delivered(other.accepted.to_detail(), 103),
        delivered(malformed, 104),
    ]
    broken_shape = delivered(json.loads(broken(spoilt.created, Kind.BROKEN_SHAPE).detail), 7)
    consumers = {
        "ride_history_live": live,
        "ride_history_duplicate": delivered(one.created.to_detail(), 2),
        "ride_history_replayed": delivered(one.created.to_detail(), 3) | {"replay-name": f"{_REGION}.morning"},
        "ride_history_out_of_order": delivered(one.started.to_detail(), 4),
        "ride_history_older_envelope": delivered(older_envelope(one.accepted), 5),
        "ride_history_other_producer": delivered(_of_another_producer(Life("order_05").created, "Created"), 8),
        "ride_history_other_producer_completed": delivered(
            _of_another_producer(Life("order_05").completed, "Completed"), 9
        ),
        "ride_history_expired": delivered(late.created.to_detail(), 6),
        "ride_history_malformed": broken_shape,
        "dispatch_live": received(accepted),
        "dispatch_batch": received(*batch),
        "payment_live": delivered(one.assigned.to_detail(), 201),
        "payment_older_envelope": delivered(older_envelope(one.completed), 202),
        "payment_out_of_order": delivered(other.completed.to_detail(), 203),
        "payment_malformed": delivered(malformed, 204),
        "carride_simulator_request": {"rides": 20, "seed": 7, "duplicates": 0.3, "outOfOrder": 0.1, "malformed": 6},
        "carride_simulator_predefined": {"mode": "predefined", "duration": 5, "rate": 10},
        "carride_simulator_bad_request": {"rides": 20, "duplicates": 30},
        "reconciler": {"time": f"{TIME:%Y-%m-%dT%H:%M:%SZ}"},
        **{f"dead_letters/{name}": letter for name, letter in _dead_letters(spoilt, live, broken_shape).items()},
        **{f"carride_api/{name}": request for name, request in _requests().items()},
    }
    return {f"{name}.json": sample for name, sample in consumers.items()}


def _of_another_producer(event: RideEvent, change: str) -> Json:
    """Return an event of a producer that makes random ids, counts every event as the first, and has its own names."""
    detail = older_envelope(event)
    name, given = (
        f"acme.acr.CarRider{change}Event",
        UUID(hashlib.md5(change.encode(), usedforsecurity=False).hexdigest(), version=4),
    )
    detail["attributes"] |= {"type": name, "idempotencyId": str(given), "eventCount": 1}
    return detail


# ── Requests to the API ───────────────────────────────────────────────────────────────────────────────────────────────


_BOOKING: Final = {
    "customerID": "customer_a",
    "pickup": "sector_01",
    "destination": "sector_03",
    "passengers": 2,
    "price": 1250,
}
_RIDE: Final = "f7edccfcd8e682a161818fb49463189a"
"""The orderID that follows from the key of the booking."""


def _requests() -> dict[str, Json]:
    missing = {name: value for name, value in _BOOKING.items() if name != "pickup"}
    accept = {"action": "accept", "version": 1}
    redirect = {"action": "changeDestination", "version": 2, "destination": "sector_09", "price": 2000}
    cancel = {"action": "cancel", "version": 3, "reason": "changed plans"}
    return {
        "book": _request("POST", "/carrides", _BOOKING, key=1),
        "book_again": _request("POST", "/carrides", _BOOKING, key=1),
        "book_other_payload": _request("POST", "/carrides", _BOOKING | {"passengers": 3}, key=1),
        "book_without_key": _request("POST", "/carrides", _BOOKING),
        "book_missing_field": _request("POST", "/carrides", missing, key=2),
        "book_other_currency": _request("POST", "/carrides", _BOOKING | {"currency": "USD"}, key=3),
        "accept": _request("PUT", f"/carrides/{_RIDE}", accept, key=4),
        "accept_stale_version": _request("PUT", f"/carrides/{_RIDE}", accept, key=5),
        "change_destination": _request("PUT", f"/carrides/{_RIDE}", redirect, key=7),
        "cancel": _request("PUT", f"/carrides/{_RIDE}", cancel, key=8),
        "read": _request("GET", f"/carrides/{_RIDE}"),
        "list": _request("GET", "/carrides", customer="customer_a", limit="10"),
        "simulate": _request("POST", "/carrides/simulate", {"rides": 20, "seed": 7, "duplicates": 0.3}, key=10),
        "openapi": _request("GET", "/openapi.json"),
    }


def _request(method: str, path: str, body: Json | None = None, *, key: int | None = None, **query: str) -> Json:
    headers = {} if body is None else {"content-type": "application/json"}
    if key is not None:
        headers["idempotency-key"] = f"2f0c8a52-6f1e-4c39-9d3a-0b7a5e1c4d{key:02d}"
    ride = {"pathParameters": {"id": _RIDE}} if path.endswith(_RIDE) else {}
    route = f"{method} {path.replace(_RIDE, '{id}')}"
    return {
        "version": "2.0",
        "routeKey": route,
        "rawPath": path,
        "rawQueryString": "&".join(f"{name}={value}" for name, value in query.items()),
        "headers": headers,
        "requestContext": {"http": {"method": method, "path": path, "sourceIp": "192.0.2.1"}, "requestId": "request-1"},
        **ride,
        **({"queryStringParameters": query} if query else {}),
        "isBase64Encoded": False,
        **({} if body is None else {"body": json.dumps(body)}),
    }


# ── Dead letters ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _dead_letters(spoilt: Life, live: Json, malformed: Json) -> dict[str, Json]:
    """Return one message for each form of dead letters, named after its queue."""
    entry = broken(spoilt.created, Kind.MALFORMED_DETAIL)
    refused = {
        "source": entry.source,
        "detail-type": entry.detail_type,
        "time": f"{entry.time:%Y-%m-%dT%H:%M:%SZ}",
        "resources": [],
        "detail": entry.detail,
    }
    arn = f"arn:aws:lambda:{_REGION}:{_ACCOUNT}:function:carride-RideHistoryFunction"
    undelivered = {
        "RULE_ARN": f"arn:aws:events:{_REGION}:{_ACCOUNT}:rule/carride-bus/carride-RideHistoryRule",
        "TARGET_ARN": arn,
        "RETRY_ATTEMPTS": "185",
        "ERROR_CODE": "THROTTLING",
        "ERROR_MESSAGE": "Rate exceeded",
        "EXHAUSTED_RETRY_CONDITION": "MaximumEventAgeInSeconds",
    }
    failed = {
        "version": "1.0",
        "timestamp": f"{TIME:%Y-%m-%dT%H:%M:%S.000Z}",
        "requestContext": {
            "requestId": "00000000-0000-4000-8000-000000000301",
            "functionArn": f"{arn}:$LATEST",
            "condition": "RetriesExhausted",
            "approximateInvokeCount": 3,
        },
        "requestPayload": live,
        "responseContext": {"statusCode": 200, "executedVersion": "$LATEST", "functionError": "Unhandled"},
        "responsePayload": {"errorMessage": "the tables are away", "errorType": "ConnectionError"},
    }
    given_up = {
        "reason": "CONTRACT",
        "message": "ContractError: data.passengers: Expected `int`, got `str` - at `$.passengers`",
        "consumer": "ride-history",
        "key": None,
        "attempt": 0,
        "event": malformed,
    }
    table = f"arn:aws:dynamodb:{_REGION}:{_ACCOUNT}:table/carride-OutboxTable"
    unpublished = {
        "context": {
            "partnerResourceArn": f"arn:aws:pipes:{_REGION}:{_ACCOUNT}:pipe/carride-OutboxPipe",
            "condition": "RetryAttemptsExhausted",
        },
        "version": "1.0",
        "timestamp": f"{TIME:%Y-%m-%dT%H:%M:%S.000Z}",
        "DDBStreamBatchInfo": {
            "shardId": "shardId-00000001735806600000-00000001",
            "startSequenceNumber": "100000000000000000001",
            "endSequenceNumber": "100000000000000000001",
            "approximateArrivalOfFirstRecord": f"{TIME:%Y-%m-%dT%H:%M:%SZ}",
            "approximateArrivalOfLastRecord": f"{TIME:%Y-%m-%dT%H:%M:%SZ}",
            "batchSize": 1,
            "streamArn": f"{table}/stream/{TIME:%Y-%m-%d}T00:00:00.000",
        },
    }
    reason = {"ERROR_CODE": "MalformedDetail", "ERROR_MESSAGE": "Detail is malformed."}
    return {
        "producer_dlq": _message(1, refused, reason, RETRY_ATTEMPTS=1),
        "ride_history_rule_dlq": _message(2, live, undelivered),
        "ride_history_dlq_failed": _message(3, failed),
        "ride_history_dlq_given_up": _message(4, given_up, {"Reason": "CONTRACT", "Consumer": "ride-history"}),
        "outbox_pipe_dlq": _message(5, unpublished),
    }


def _message(number: int, body: Json, texts: Mapping[str, str] | None = None, **numbers: int) -> Json:
    """Return an SQS message as ReceiveMessage shows it; ``texts`` and ``numbers`` are its attributes."""
    content = compact(body)
    attributes = {name: {"StringValue": value, "DataType": "String"} for name, value in (texts or {}).items()}
    attributes |= {name: {"StringValue": str(value), "DataType": "Number"} for name, value in numbers.items()}
    return {
        "MessageId": f"00000000-0000-4000-8000-{400 + number:012d}",
        "ReceiptHandle": f"receipt-{number}",
        "MD5OfBody": _md5(content),
        "Body": content,
        **({"MessageAttributes": attributes} if attributes else {}),
    }


def received(*events: Json) -> Json:
    """Return events in the form in which Lambda passes messages of dispatch's queue to the function."""
    sent = str(int(TIME.timestamp() * 1000))
    return {
        "Records": [
            {
                "messageId": f"10000000-{event['id'][9:]}",
                "receiptHandle": f"receipt-{event['id']}",
                "body": (body := compact(event)),
                "attributes": {
                    "ApproximateReceiveCount": "1",
                    "SentTimestamp": sent,
                    "SenderId": "AIDAEXAMPLE",
                    "ApproximateFirstReceiveTimestamp": sent,
                },
                "messageAttributes": {},
                "md5OfBody": _md5(body),
                "eventSource": "aws:sqs",
                "eventSourceARN": f"arn:aws:sqs:{_REGION}:{_ACCOUNT}:carride-DispatchQueue",
                "awsRegion": _REGION,
            }
            for event in events
        ]
    }


def delivered(detail: Json, number: int) -> Json:
    """Return a detail as EventBridge delivers it; ``number`` makes the id of the delivery."""
    return {
        "version": "0",
        "id": f"00000000-0000-4000-8000-{number:012d}",
        "detail-type": DETAIL_TYPE,
        "source": detail.get("attributes", detail)["source"],
        "account": _ACCOUNT,
        "time": f"{TIME:%Y-%m-%dT%H:%M:%SZ}",
        "region": _REGION,
        "resources": [],
        "detail": detail,
    }


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
