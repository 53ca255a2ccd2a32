"""Sample events, one file for each situation and function: ``python -m carride.samples events``.

They are for ``sam local invoke`` and for tests, so they lie in the future: a consumer turns away what is older than the
time for which it remembers keys. Dead letters, in a folder of their own, are messages as ``aws sqs receive-message``
shows them.
"""

import hashlib
import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from carride import ride as rides
from carride.events import (
    DETAIL_TYPE,
    SOURCE,
    CarAssigned,
    CarRideAccepted,
    CarRideCompleted,
    CarRideCreated,
    CarRideStarted,
    Fact,
    RideEvent,
)
from carride.simulation import Kind, broken, fare, older_envelope, told

type Json = Mapping[str, Any]

TIME: Final = datetime(2040, 1, 2, 8, 30, tzinfo=UTC)
_EXPIRED: Final = datetime(2026, 1, 2, 8, 30, tzinfo=UTC)
_REGION: Final = "us-east-1"
_ACCOUNT: Final = "123456789012"


class Life:
    """The events of one ride that is driven, a minute apart."""

    def __init__(self, order_id: str, time: datetime = TIME, expirytime: datetime | None = None) -> None:
        created = CarRideCreated.of(_booked(order_id))
        accepted = CarRideAccepted.of(rides.accept(created.ride()))
        started = CarRideStarted.of(rides.start(accepted.ride()))
        completed = CarRideCompleted.of(rides.complete(started.ride()))
        self._facts: list[Fact] = [created, accepted, started, completed]
        self._time = time
        self._expirytime = expirytime
        self.created, self.accepted, self.started, self.completed = (self._told(step) for step in range(4))
        self.assigned = RideEvent.of(
            CarAssigned.of(accepted.ride(), car_id="car_01"),
            source=SOURCE,
            time=time + timedelta(minutes=1, seconds=2),
            cause=self.accepted,
            traceparent=self.accepted.traceparent,
            expirytime=expirytime,
        )

    def _told(self, step: int) -> RideEvent:
        facts = self._facts[max(step - 1, 0) : step + 1]
        return told(facts, self._time + timedelta(minutes=step), expirytime=self._expirytime)


def samples() -> dict[str, Json]:
    """Return every sample by file name: the function's name, then the situation."""
    one, late, spoilt, other = (
        Life("order_01"),
        Life("order_02", _EXPIRED, expirytime=_EXPIRED + timedelta(minutes=10)),
        Life("order_03"),
        Life("order_04"),
    )
    ride_history = _situations(
        0,
        live=one.created,
        older=one.accepted,
        out_of_order=one.started,
        expired=late.created,
        malformed=spoilt.created,
    ) | {
        "missing_id": delivered(_spoilt(spoilt.created, Kind.MISSING_ID), 7),
        "partial_id": delivered(_spoilt(spoilt.created, Kind.PARTIAL_ID), 8),
        "unknown_type": delivered(_spoilt(spoilt.created, Kind.UNKNOWN_TYPE), 9),
    }
    dispatch = _situations(
        100,
        live=one.accepted,
        older=one.completed,
        out_of_order=other.completed,
        expired=late.accepted,
        malformed=spoilt.accepted,
    )
    payment = _situations(
        200,
        live=one.assigned,
        older=one.completed,
        out_of_order=other.completed,
        expired=late.assigned,
        malformed=spoilt.assigned,
    )
    batch = [dispatch["live"], dispatch["duplicate"], delivered(other.accepted.to_detail(), 111), dispatch["malformed"]]
    return {
        "carride_simulator_request.json": {
            "rides": 20,
            "seed": 7,
            "duplicates": 0.3,
            "outOfOrder": 0.1,
            "malformed": 6,
        },
        "carride_simulator_predefined.json": {"mode": "predefined", "duration": 5, "rate": 10},
        "carride_simulator_bad_request.json": {"rides": 20, "duplicates": 30},
        "reconciler.json": {"time": f"{TIME:%Y-%m-%dT%H:%M:%SZ}"},
        **{f"ride_history_{situation}.json": event for situation, event in ride_history.items()},
        **{f"dispatch_{situation}.json": received(event) for situation, event in dispatch.items()},
        "dispatch_batch.json": received(*batch),
        **{f"payment_{situation}.json": event for situation, event in payment.items()},
        **{f"dead_letters/{name}.json": letter for name, letter in _dead_letters(spoilt, ride_history).items()},
    }


def _situations(
    number: int,
    *,
    live: RideEvent,
    older: RideEvent,
    out_of_order: RideEvent,
    expired: RideEvent,
    malformed: RideEvent,
) -> dict[str, dict[str, Any]]:
    """Return a consumer's samples by situation, as EventBridge delivers them; ``number`` tells consumers apart."""
    return {
        "live": delivered(live.to_detail(), number + 1),
        "duplicate": delivered(live.to_detail(), number + 2),
        "replayed": delivered(live.to_detail(), number + 3) | {"replay-name": f"{_REGION}.morning"},
        "older_envelope": delivered(older_envelope(older), number + 4),
        "out_of_order": delivered(out_of_order.to_detail(), number + 5),
        "expired": delivered(expired.to_detail(), number + 6),
        "malformed": delivered(_spoilt(malformed, Kind.BROKEN_SHAPE), number + 10),
    }


def _dead_letters(spoilt: Life, ride_history: Mapping[str, Json]) -> dict[str, Json]:
    """Return one message for each form that dead letters have, by the queue that they lie in."""
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
        "requestPayload": ride_history["live"],
        "responseContext": {"statusCode": 200, "executedVersion": "$LATEST", "functionError": "Unhandled"},
        "responsePayload": {"errorMessage": "the tables are away", "errorType": "ConnectionError"},
    }
    given_up = {
        "reason": "CONTRACT",
        "message": "MalformedDataError: data.passengers: Expected `int`, got `str` - at `$.passengers`",
        "consumer": "ride-history",
        "key": None,
        "attempt": 0,
        "event": ride_history["malformed"],
    }
    table = f"arn:aws:dynamodb:{_REGION}:{_ACCOUNT}:table/carride-OutboxTable"
    not_told = {
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
        "ride_history_rule_dlq": _message(2, ride_history["live"], undelivered),
        "ride_history_dlq_failed": _message(3, failed),
        "ride_history_dlq_given_up": _message(4, given_up, {"Reason": "CONTRACT", "Consumer": "ride-history"}),
        "outbox_pipe_dlq": _message(5, not_told),
    }


def _message(number: int, body: Json, texts: Mapping[str, str] | None = None, **numbers: int) -> dict[str, Any]:
    """Return an SQS message as ReceiveMessage shows it; ``texts`` and ``numbers`` are its attributes."""
    content = json.dumps(body, separators=(",", ":"))
    attributes = {name: {"StringValue": value, "DataType": "String"} for name, value in (texts or {}).items()}
    attributes |= {name: {"StringValue": str(value), "DataType": "Number"} for name, value in numbers.items()}
    return {
        "MessageId": f"00000000-0000-4000-8000-{400 + number:012d}",
        "ReceiptHandle": f"receipt-{number}",
        "MD5OfBody": _md5(content),
        "Body": content,
        **({"MessageAttributes": attributes} if attributes else {}),
    }


def received(*events: Json) -> dict[str, Any]:
    """Return events as Lambda hands over the messages of dispatch's queue that hold them."""
    sent = str(int(TIME.timestamp() * 1000))
    return {
        "Records": [
            {
                "messageId": f"10000000-{event['id'][9:]}",
                "receiptHandle": f"receipt-{event['id']}",
                "body": (body := json.dumps(event, separators=(",", ":"))),
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


def delivered(detail: Json, number: int) -> dict[str, Any]:
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


def write(folder: Path) -> None:
    """Write every sample."""
    for name, sample in samples().items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(sample, indent=2) + "\n")


def _booked(order_id: str) -> rides.Ride:
    return rides.request(
        order_id=order_id,
        customer_id="customer_a",
        pickup="sector_01",
        destination="sector_03",
        passengers=2,
        price=fare(0, 2),
    )


def _spoilt(event: RideEvent, kind: Kind) -> Json:
    detail: Json = json.loads(broken(event, kind).detail)
    return detail


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


if __name__ == "__main__":
    write(Path(sys.argv[1]))
