"""Publish that a ride is completed. A retry of the call publishes the same idempotency id again."""

import json
import os
import uuid
from typing import Any

import boto3

events = boto3.client("events")


def handler(ride: dict[str, Any], _context: object) -> str:
    """Publish one event, and return its idempotency id.

    Args:
        ride: ``{"orderID": …, "customerID": …}``.

    Raises:
        RuntimeError: the bus refused the event; call again.
    """
    # Derived, never random.
    key = str(uuid.uuid5(uuid.NAMESPACE_URL, f"urn:ride:{ride['orderID']}:completed"))
    entry: Any = {
        "EventBusName": os.environ["EVENT_BUS_NAME"],
        "Source": "minimal.rides",
        "DetailType": "RideCompleted",
        "Detail": json.dumps({"idempotencyid": key, "data": ride}),
    }
    answer = events.put_events(Entries=[entry])
    if answer["FailedEntryCount"]:  # put_events raises nothing for an entry that it refused
        raise RuntimeError(answer["Entries"][0]["ErrorMessage"])
    return key
