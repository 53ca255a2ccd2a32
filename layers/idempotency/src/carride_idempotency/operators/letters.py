"""What lies in a dead-letter queue, whoever has sent it, and how it is delivered again."""

import binascii
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from carride_idempotency.operators.choosing import normalised, short_id
from carride_idempotency.operators.forms import content_of

_CONTENTS: Final = frozenset({"kinesis", "dynamodb", "Sns"})
"""The fields of records of a batch that hold their content, besides those of SQS's."""


class Letter(NamedTuple):
    """A message of a dead-letter queue."""

    id: str
    """SQS's id of the message."""
    group: str
    """The id of its failure. Letters share it if their errors differ in ids and numbers only."""
    reason: str
    """The code of whoever sent it."""
    error: str
    consumer: str | None
    """None if another service has sent it."""
    key: str | None
    """Of the consumer's record, if the letter is the consumer's own and names it."""
    sent: datetime
    event: Any
    """As it was delivered; None if it is not in the letter."""
    unusable: str | None = None
    """Why it cannot be delivered again, whatever its record says."""


def letter_in(message: Mapping[str, Any]) -> Letter:
    """Return a message as a letter."""
    content = content_of(message)
    sent_ms = int(message["Attributes"]["SentTimestamp"])
    return Letter(
        id=message["MessageId"],
        group=short_id(content.consumer or "", content.reason, normalised(content.error)),
        reason=content.reason,
        error=content.error,
        consumer=content.consumer,
        key=content.key,
        sent=datetime.fromtimestamp(sent_ms / 1000, UTC),
        event=content.event,
        unusable=content.unusable,
    )


def as_delivered(event: Any) -> Any:
    """Return what a function takes: a record of a batch in a batch of its own.

    ``replay-name`` is left out. A consumer drops a replay while the event's letter is in the queue,
    but a redrive removes that letter.
    """
    if not isinstance(event, Mapping):
        return event
    if _is_of_sqs(event) or not _CONTENTS.isdisjoint(event):
        return {"Records": [event]}
    if event.keys() >= {"topic", "partition", "offset"}:
        return _batch_of_kafka(event)
    return {name: value for name, value in event.items() if name != "replay-name"}


def _is_of_sqs(event: Any) -> bool:
    """Return whether an event is a message of a queue, by what each has."""
    return isinstance(event, Mapping) and event.keys() >= {"messageId", "body"}


def _batch_of_kafka(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch of one record. A letter keeps the cluster's name in the record."""
    own = dict(record)
    cluster = own.pop("cluster", "")
    partition = f"{own['topic']}-{own['partition']}"
    batch: dict[str, Any] = {"records": {partition: [own]}}
    if cluster.startswith("arn:"):
        batch["eventSource"] = "aws:kafka"
        batch["eventSourceArn"] = cluster
    else:
        batch["eventSource"] = "SelfManagedKafka"
        batch["bootstrapServers"] = cluster
    return batch


def as_message(event: Any) -> dict[str, Any]:
    """Return what a queue takes: the body, attributes and group of a message of SQS's, or JSON."""
    if not _is_of_sqs(event):
        return {"MessageBody": json.dumps(_for_a_queue(event), separators=(",", ":"))}
    message: dict[str, Any] = {"MessageBody": event["body"]}
    attributes = {}
    for name, value in (event.get("messageAttributes") or {}).items():
        kind = value["dataType"]
        if kind.startswith("Binary"):
            content = {"BinaryValue": binascii.a2b_base64(value["binaryValue"])}
        else:
            content = {"StringValue": value["stringValue"]}
        attributes[name] = {"DataType": kind, **content}
    if attributes:
        message["MessageAttributes"] = attributes
    system = event.get("attributes") or {}
    if system.get("MessageGroupId"):
        message["MessageGroupId"] = system["MessageGroupId"]
    return message


def _for_a_queue(event: Any) -> Any:
    """Return the JSON that a queue takes: of a topic its notification."""
    if isinstance(event, Mapping) and isinstance(event.get("Sns"), Mapping):
        return event["Sns"]
    return as_delivered(event)
