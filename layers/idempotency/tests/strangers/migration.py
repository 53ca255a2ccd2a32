"""Writes the invoice of each order; the version before it does so with Powertools."""

import os
from datetime import datetime
from typing import Any

from carride_idempotency import (
    Consumer,
    DynamoDBStore,
    Operation,
    Policy,
    PowertoolsRecords,
    Update,
)

before = PowertoolsRecords(
    "PowertoolsRecords",
    {"invoices": "invoices"},
    until=datetime.fromisoformat(os.environ["MIGRATION_ENDS"]),
)
consumer: Consumer = Consumer(
    "invoices",
    DynamoDBStore("Records", before=before),
    key="detail.orderID",
    policy=Policy(max_attempts=30, margin=0.1, clock_skew=0.1, reserve=0.2),
)


@consumer.event_handler
def handler(event: dict[str, Any], operation: Operation) -> dict[str, str]:
    """Write one invoice."""
    invoice = {"id": event["detail"]["orderID"]}
    operation.write(Update("Invoices", invoice, "ADD written :one", values={":one": 1}))
    return {"by": "new"}
