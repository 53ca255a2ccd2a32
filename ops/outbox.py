"""Publishes the events of a region's outbox that its pipe may not have published."""

import base64
import json
import math
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from carride.bus_entry import BusEntry
from carride.publisher import Outcome, Publisher, PublishError
from ops import tables
from ops.stack import OperatorError, StackRef
from ops.text import counted

_MARGIN: Final = timedelta(minutes=1)
_TEXTS: Final = (
    "id", "source", "type", "subject", "time",
    "dataschema", "idempotencyid", "sequence", "partitionkey",
    "correlationid", "causationid", "traceparent", "expirytime",
)  # fmt: skip


class Republished(NamedTuple):
    """How many events the bus has accepted, and how many lie in the ProducerDlq instead."""

    republished: int
    refused: int


def republish(
    stack: StackRef,
    region: str,
    since: datetime,
    until: datetime,
    report: Callable[[str], None] = print,
) -> Republished:
    """Publish again on a stack's bus what a region wrote to its outbox.

    The stack's own replica of the table is read.

    Raises:
        OperatorError: some events are neither on the bus nor in the ProducerDlq.
    """
    return publish(stack, list(written(stack, region, since, until)), report)


def publish(
    stack: StackRef, entries: Sequence[BusEntry], report: Callable[[str], None] = print
) -> Republished:
    """Publish entries of an outbox on a stack's bus.

    Raises:
        OperatorError: some events are neither on the bus nor in the ProducerDlq.
    """
    report(f"republishing {counted(len(entries), 'event')} of the outbox")
    bus = stack.outputs["CarRideBusName"]
    dlq = stack.outputs["ProducerDlqUrl"]
    publisher = Publisher(stack.client("events"), stack.client("sqs"), bus, dlq)
    try:
        receipts = publisher.publish(entries, lambda: math.inf)
    except PublishError as error:
        raise OperatorError(f"{error}. They are still in the outbox: run it again") from error
    refused = [each for each in receipts if each.outcome is not Outcome.PUBLISHED]
    if refused:
        codes = {str(each.code) for each in refused}
        report(f"{len(refused)} of them lie in the ProducerDlq: {', '.join(sorted(codes))}")
    accepted = len(receipts) - len(refused)
    return Republished(accepted, len(refused))


def written(stack: StackRef, region: str, since: datetime, until: datetime) -> Iterator[BusEntry]:
    """Return what a region wrote to its outbox, in the form in which its pipe publishes it.

    An event happens shortly before it is written, so both ends of the window are extended by a
    minute.
    """
    items = tables.scan(
        stack.client("dynamodb"),
        stack.outputs["OutboxTableName"],
        "#region = :region AND #time BETWEEN :begin AND :end",
        region=region,
        begin=_second(since - _MARGIN),
        end=_second(until + _MARGIN),
    )
    return map(entry_of, items)


def _second(time: datetime) -> str:
    """Return a time as those of the outbox begin, with which it is compared as text."""
    return f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%S}"


def entry_of(item: dict[str, dict[str, Any]]) -> BusEntry:
    """Return the entry that the template's pipe makes of an item of the outbox."""
    texts = {name: item[name]["S"] for name in _TEXTS}
    detail = {
        "specversion": "1.0",
        **texts,
        "datacontenttype": "application/json",
        "data_base64": base64.b64encode(item["data"]["B"]).decode(),
    }
    time = datetime.fromisoformat(texts["time"]).astimezone(UTC)
    return BusEntry(source=texts["source"], detail=json.dumps(detail), time=time)
