"""Events for tests of the layer."""

from typing import Any


def event(key: str | None = "k1", **data: object) -> dict[str, Any]:
    """An event of EventBridge's with an idempotency id and data."""
    return {
        "version": "0",
        "id": "e1",
        "account": "123456789012",
        "resources": [],
        "source": "test",
        "detail-type": "Test",
        "time": "2027-01-15T08:00:00Z",  # when ManualClock starts
        "region": "eu-west-1",
        "detail": {"idempotencyid": key, "data": {"orderID": "order_01"} | data},
    }
