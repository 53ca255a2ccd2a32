"""A customer is erased from a deployed stack: nothing names them, even after a replay."""

from typing import Any

import pytest

from local.bookings import book
from ops.audit.reading import scan
from tests.carride.pipe import piped
from tests.pipeline.pipeline import Pipeline

pytestmark = pytest.mark.integration

CUSTOMER = "customer_b"
TABLES = ("BookingTableName", "OutboxTableName", "IdempotencyTableName", "RideHistoryTableName")


def held(pipeline: Pipeline) -> str:
    """Return everything in the tables that hold personal data, as text."""
    dynamodb = pipeline.cloud.client("dynamodb")
    items = [item for table in TABLES for item in scan(dynamodb, pipeline.stack.outputs[table])]
    return repr(items)


def published(pipeline: Pipeline) -> list[Any]:
    """Return the events in the outbox, as the pipe has published them."""
    table = pipeline.stack.outputs["OutboxTableName"]
    return [*map(piped, scan(pipeline.cloud.client("dynamodb"), table))]


def test_an_erased_customer_does_not_come_back(pipeline: Pipeline) -> None:
    """The audit is balanced after the erasure, and after every event has come once more."""
    for _ in book(pipeline.cloud, pipeline.stack, 5):
        pass
    assert pipeline.audit().verdict == "balanced"
    events = published(pipeline)
    assert CUSTOMER in held(pipeline)
    assert pipeline.carride("erase", CUSTOMER) == 2  # its rides have changed lately
    assert pipeline.carride("erase", CUSTOMER, "--quiet", "0s", "--yes") == 0
    erased = held(pipeline)
    assert CUSTOMER not in erased
    assert "customer_a" in erased
    assert pipeline.audit().verdict == "balanced"
    for event in events:
        pipeline.put(event)
    assert pipeline.audit().verdict == "balanced"
    assert CUSTOMER not in held(pipeline)
