"""Books rides over a function URL; clients repeat a request with its Idempotency-Key."""

import json
import os
from typing import Any

from carride_idempotency import (
    Consumer,
    HttpProblemError,
    Operation,
    Policy,
    Update,
    open_store,
)

consumer: Consumer = Consumer(
    "bookings",
    open_store(os.environ["IDEMPOTENCY_STORE"]),
    policy=Policy(max_attempts=30, margin=0.1, clock_skew=0.1, reserve=0.2),
)


@consumer.http_handler(caller='headers."x-passenger"')
def handler(request: dict[str, Any], operation: Operation | None) -> dict[str, Any]:
    """Book one ride."""
    if operation is None:
        return {"statusCode": 405, "headers": {"Allow": "POST"}}
    ride = json.loads(request["body"])
    if ride["seats"] < 1:
        raise HttpProblemError(422, "A ride needs a seat", field="seats")
    booking = {"id": ride["name"]}
    operation.write(Update("Bookings", booking, "ADD booked :one", values={":one": 1}))
    return {"statusCode": 201, "body": {"id": operation.downstream_key}}
