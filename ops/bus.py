"""Sends an event to a target of the stack: a function, a queue or the bus."""

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import ClientError
from msgspec import Struct

from carride.bus_entry import BusEntry
from carride.decoding import FieldError, shaped
from carride.publisher import Outcome, Publisher
from ops.dead_letters import PRODUCER_DLQ
from ops.stack import StackRef


class _Envelope(Struct, rename={"detail_type": "detail-type"}):
    source: str
    detail_type: str
    time: datetime
    detail: Any
    resources: tuple[str, ...] = ()


def send_to(stack: StackRef, arn: str, event: Mapping[str, Any]) -> str | None:
    """Send an event to a target, and return why it was refused, or None."""
    service = arn.split(":")[2]
    try:
        if service == "lambda":
            functions = stack.client("lambda")
            functions.invoke(FunctionName=arn, InvocationType="Event", Payload=_json(event))
        elif service == "sqs":
            sqs = stack.client("sqs")
            url = sqs.get_queue_url(QueueName=arn.rpartition(":")[2])["QueueUrl"]
            sqs.send_message(QueueUrl=url, MessageBody=_json(event))
        else:
            return _publish(stack, event)
    except ClientError as error:
        return f"refused: {error.response['Error']['Code']}"
    return None


def _publish(stack: StackRef, event: Mapping[str, Any]) -> str | None:
    """Publish an event on the bus, and return why it was refused, or None."""
    bus = stack.outputs["CarRideBusName"]
    dlq = stack.outputs[f"{PRODUCER_DLQ}Url"]
    publisher = Publisher(stack.client("events"), stack.client("sqs"), bus, dlq)
    # `put` makes no second message.
    (receipt,) = publisher.put([entry_in(event)], lambda: math.inf)
    if receipt.outcome is Outcome.PUBLISHED:
        return None
    return f"refused: {receipt.code}"


def entry_in(event: Mapping[str, Any]) -> BusEntry:
    """Return the entry in a dead letter of the publisher.

    Raises:
        FieldError: a field is missing, or has another form.
    """
    envelope = shaped(event, _Envelope)
    detail = envelope.detail
    return BusEntry(
        source=envelope.source,
        detail_type=envelope.detail_type,
        detail=detail if isinstance(detail, str) else _json(detail),
        time=_in_utc(envelope.time),
        resources=envelope.resources,
    )


def _in_utc(time: datetime) -> datetime:
    if time.tzinfo is None:
        return time.replace(tzinfo=UTC)
    try:
        return time.astimezone(UTC)
    except OverflowError as error:
        raise FieldError("time", "not in the calendar of UTC") from error


def _json(event: object) -> str:
    """Return compact JSON in UTF-8, with the two characters that SQS refuses as escapes."""
    text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    return text.replace("\ufffe", r"\ufffe").replace("\uffff", r"\uffff")
