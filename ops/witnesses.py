"""Reads what the bus, the tables, the dead-letter queues and the gateway have to say of the rides, for the saga."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from carride.dedup import facts_in
from carride.events import ContractError, parse_event, read_json
from idempotency import marshalling, observation
from ops import audit
from ops.saga import DISPATCH, PAYMENT, Charge, Evidence, Fact, Item

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_logs import CloudWatchLogsClient

_DETAILS: Final = {DISPATCH: "carID", PAYMENT: "amount"}
"""The attribute of an item that says more than its state, by consumer."""


def witnesses(clients: audit.Clients, outputs: Mapping[str, str], charges: Iterable[Mapping[str, Any]]) -> Evidence:
    """Read all evidence of a stack.

    Args:
        clients: for the stack's account and region.
        outputs: the stack's outputs by name.
        charges: the gateway's ledger.
    """
    consumers = [consumer for consumer in audit.CONSUMERS if consumer.name in _DETAILS]
    return Evidence(
        facts=list(facts(clients.logs, outputs["CarRideEventsLogGroupName"])),
        items={
            consumer.name: dict(_rides(clients.dynamodb, outputs[f"{consumer.table}Name"], _DETAILS[consumer.name]))
            for consumer in consumers
        },
        excused={consumer.name: frozenset(_excused(clients, outputs, consumer)) for consumer in consumers},
        cars={item["carID"]: item.get("rideID") for item in _scan(clients.dynamodb, outputs["CarTableName"])},
        charges=[
            Charge(
                charge["reference"], charge["status"], charge["amount"], len(charge["captures"]), len(charge["refunds"])
            )
            for charge in charges
        ],
    )


def facts(logs: "CloudWatchLogsClient", group: str) -> Iterator[Fact]:
    """Yield each fact that is on the bus, once."""
    seen: set[str] = set()
    pages = logs.get_paginator("filter_log_events").paginate(logGroupName=group)
    for line in (line for page in pages for line in page["events"]):
        try:
            event = parse_event(read_json(line["message"], "line"))
        except ContractError:
            continue
        if event.idempotencyid not in seen:
            seen.add(event.idempotencyid)
            yield Fact(event.subject, event.type, event.idempotencyid)


def _excused(clients: audit.Clients, outputs: Mapping[str, str], consumer: audit.Consumer) -> Iterator[str]:
    """Yield the facts that a consumer may not have acted on: they are in its queues, or have expired."""
    for queue in (f"{consumer.resources}RuleDlq", f"{consumer.resources}Dlq"):
        for message in audit.peek(clients.sqs, outputs[f"{queue}Url"]):
            letter = audit.dead_letter(queue, consumer.name, message)
            if letter.fact is not None:
                yield letter.fact
    for delivery in audit.deliveries(clients.logs, outputs[f"{consumer.resources}LogGroupName"]):
        if delivery.outcome == observation.EXPIRED and delivery.fact is not None:
            yield delivery.fact


def _rides(dynamodb: "DynamoDBClient", table: str, detail: str) -> Iterator[tuple[str, Item]]:
    for item in _scan(dynamodb, table):
        acted = facts_in(item)
        yield item["orderID"], Item(item["state"], acted, item.get(detail))


def _scan(dynamodb: "DynamoDBClient", table: str) -> Iterator[dict[str, Any]]:
    for page in dynamodb.get_paginator("scan").paginate(TableName=table, ConsistentRead=True):
        for item in page["Items"]:
            yield marshalling.values(item)  # type: ignore[arg-type] # the stubs know more kinds of values than there are
