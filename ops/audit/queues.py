"""Reads dead-letter queues and leaves every message in them."""

import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, Final

from carride.events import MOST_LEVELS, ContractError, parse_event, read_json
from carride_idempotency.operators.forms import Content, content_of, unpacked
from carride_idempotency.operators.queues import (
    GLIMPSE_SECONDS,
    peek,
    waiting,
)
from ops.audit.evidence import DeadLettered
from ops.stack import StackRef

__all__ = [
    "GLANCE_HIDDEN_S",
    "GLANCE_READS_S",
    "GLIMPSE_SECONDS",
    "Letters",
    "content_in",
    "dead_letter",
    "fact_of",
    "id_in",
    "json_object",
    "opened",
    "peek",
    "waiting",
]

GLANCE_HIDDEN_S: Final = 2
"""How long a letter that a page reads is hidden from other readers, at most."""
GLANCE_READS_S: Final = 1.2
"""How long a page reads a queue. A request that is under way may follow."""

_LEVELS: Final = MOST_LEVELS + 16
"""The most levels of a log line or a dead letter, which wraps an event."""
_event_id: Final = re.compile(
    r"""\\?"version\\?": ?\\?"0\\?", ?\\?"id\\?": ?\\?"([0-9a-f-]{36})"""
).search
"""Finds EventBridge's id, with which the envelope begins, in unreadable text."""


class Letters:
    """The messages of a dead-letter queue, to be read once.

    They are read to the end of the queue, and hidden from other readers for seconds; a stack that
    `glances` reads for `GLANCE_READS_S`, and hides them for `GLANCE_HIDDEN_S`.
    """

    def __init__(self, stack: StackRef, url: str) -> None:
        self._stack = stack
        self._url = url
        self.hidden = waiting(stack.client("sqs"), url)
        """How many messages another reader had taken before."""
        self.left = 0
        """How many messages a glance has left, by SQS's approximate count."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield each message once."""
        sqs = self._stack.client("sqs")
        if not self._stack.glances:
            yield from peek(sqs, self._url)
            return
        there = waiting(sqs, self._url, taken=False, visible=True)
        read = 0
        with closing(peek(sqs, self._url, GLANCE_HIDDEN_S, GLANCE_READS_S)) as messages:
            for message in messages:
                read += 1
                yield message
        self.left = max(0, there - read)


def dead_letter(queue: str, consumer: str | None, message: Mapping[str, Any]) -> DeadLettered:
    """Return a dead letter as evidence, whoever sent it.

    ``queue`` is the queue's logical id, ``consumer`` the one that did not process the event, if
    any.
    """
    reason, event = opened(message)
    event_id = id_in(message["Body"])
    if isinstance(event, Mapping):
        event_id = event["id"] if isinstance(event.get("id"), str) else None
    return DeadLettered(queue, reason, consumer, event_id, fact_of(event))


def opened(message: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the reason of a dead letter and its event, None if that is missing or unreadable."""
    content = content_in(message)
    return content.reason, content.event


def content_in(message: Mapping[str, Any]) -> Content:
    """Return what a dead letter says, with the event of a ride in it."""
    content = content_of(message, json_object)
    return content._replace(event=_unwrapped(content.event))


def _unwrapped(sent: Any) -> Any:
    """Return the event in what a consumer or a target received."""
    match sent:
        case {"messageId": _, "body": str(text)}:  # a record of a batch
            return json_object(text)
        case {"Sns": {"Message": str(text)}}:  # of a topic
            return json_object(text)
        case {"detailGzip": packed}:  # the publisher's, compressed
            detail = unpacked(packed) or None
            return {**sent, "detail": json_object(detail) or detail}
        case _:
            return sent


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
    match = _event_id(text)
    return None if match is None else match[1]
