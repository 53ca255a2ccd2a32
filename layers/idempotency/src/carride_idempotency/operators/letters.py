"""What lies in a dead-letter queue, whoever has sent it, and how it is delivered again."""

import binascii
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, Self

from carride_idempotency.dead_letters import group_of
from carride_idempotency.operators.choosing import normalised, short_id
from carride_idempotency.operators.forms import content_of

_CONTENTS: Final = frozenset({"kinesis", "dynamodb", "Sns"})
"""The fields of records of a batch that hold their content, besides those of SQS's."""
_no_character_of_sqs: Final = re.compile(
    "[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
).search
"""Finds a character that no message of SQS's can have."""


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

    @property
    def labels(self) -> Mapping[str, Any]:
        """What else a plan says of it: nothing."""
        return {}

    def without_event(self) -> Self:
        """Return it without its event, which may be a megabyte."""
        return self._replace(event=None)


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
        unusable=content.unusable or _misfit_in(content.event),
    )


def _misfit_in(event: Any) -> str | None:
    """Return why an event cannot be written as a delivery or a message; None if it can.

    The target may still refuse it. An event is whatever a producer writes, so it may have the marks
    of a record, and not its form.
    """
    try:
        json.dumps(as_delivered(event))
        as_message(event)
    except RecursionError:
        return "its event is nested too deeply"
    except ValueError as error:
        return f"its event is no message of a queue: {error}"
    return None


def as_delivered(event: Any) -> Any:
    """Return what a function takes: a record of a batch in a batch of its own.

    ``replay-name`` is left out. A consumer drops a replay while the event's letter is in the queue,
    but a redrive removes that letter.
    """
    if not isinstance(event, Mapping):
        return event
    if _is_of_sqs(event) or any(isinstance(event.get(name), Mapping) for name in _CONTENTS):
        return {"Records": [event]}
    if _is_of_kafka(event):
        return _batch_of_kafka(event)
    return {name: value for name, value in event.items() if name != "replay-name"}


def _is_of_sqs(event: Any) -> bool:
    """Return whether an event is a message of a queue, by what Lambda says of each.

    Its id and its body alone would be many an event's that a function gets by itself.
    """
    match event:
        case {"messageId": str(), "body": str(), "eventSource": str(source)}:
            return source == "aws:sqs"
        case {"messageId": str(), "body": str(), "eventSourceARN": str(arn)}:
            return ":sqs:" in arn
    return False


def _is_of_kafka(event: Any) -> bool:
    """Return whether an event is a record of a topic, with the cluster that its letter names."""
    match event:
        case {"topic": str(), "partition": int(), "offset": int(), "cluster": str()}:
            return True
    return False


def _batch_of_kafka(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch of one record. A letter keeps the cluster's name in the record."""
    own = dict(record)
    cluster = own.pop("cluster")
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
    """Return what a queue takes: the body, attributes and group of a message of SQS's, or JSON.

    Raises:
        ValueError: the event has the marks of a message, and no message can be like it.
    """
    if not _is_of_sqs(event):
        return {"MessageBody": json.dumps(_for_a_queue(event), separators=(",", ":"))}
    message: dict[str, Any] = {"MessageBody": _body_of(event)}
    attributes = _attributes_of(event)
    if attributes:
        message["MessageAttributes"] = attributes
    group = group_of(event)
    if group is not None:
        message["MessageGroupId"] = group
    return message


def _body_of(event: Mapping[str, Any]) -> str:
    body: str = event["body"]
    if not body or _no_character_of_sqs(body):
        raise ValueError("its body is empty, or has a character that no queue takes")
    return body


def _attributes_of(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a message as a queue takes them."""
    named = event.get("messageAttributes") or {}
    if isinstance(named, Mapping):
        return {name: _attribute_of(name, value) for name, value in named.items()}
    raise ValueError("its messageAttributes are no object")


def _attribute_of(name: str, value: Any) -> dict[str, Any]:
    """Return an attribute as a queue takes it."""
    match value:
        case {"dataType": str(kind), "binaryValue": str(content)} if kind.startswith("Binary"):
            return {"DataType": kind, "BinaryValue": binascii.a2b_base64(content)}
        case {"dataType": str(kind), "stringValue": str(content)} if not kind.startswith("Binary"):
            return {"DataType": kind, "StringValue": content}
    raise ValueError(f"its attribute {name} has no value of its type")


def _for_a_queue(event: Any) -> Any:
    """Return the JSON that a queue takes: of a topic its notification."""
    if isinstance(event, Mapping) and isinstance(event.get("Sns"), Mapping):
        return event["Sns"]
    return as_delivered(event)
