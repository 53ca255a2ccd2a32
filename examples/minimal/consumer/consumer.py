"""Give the customer of every completed ride a point.

Once per ride, however often its event is delivered.
"""

import os
from typing import Any

from carride_idempotency import Consumer, Operation, SqsDeadLetters, Update, open_store

dead_letters = SqsDeadLetters(os.environ["DEAD_LETTER_QUEUE_URL"])
consumer: Consumer[dict[str, Any]] = Consumer(
    "points",
    open_store(os.environ["IDEMPOTENCY_STORE"]),
    key="detail.idempotencyid",
    payload="detail.data",
    dead_letters=dead_letters,
)


@consumer.event_handler
def handler(event: dict[str, Any], operation: Operation) -> None:
    """Add the point in the transaction that completes the idempotency record."""
    customer = {"customerID": event["detail"]["data"]["customerID"]}
    operation.write(
        Update(os.environ["POINTS_TABLE"], customer, "ADD points :one", values={":one": 1})
    )
