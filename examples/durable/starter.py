"""Start one execution of the durable function for each completed ride, however often told."""

import os
from typing import Any

from botocore.session import get_session

from carride_idempotency import Consumer, Operation, SqsDeadLetters, open_store
from carride_idempotency.durable import start_once

client: Any = get_session().create_client("lambda")
consumer: Consumer[dict[str, Any]] = Consumer(
    "points-starter",
    open_store(os.environ["IDEMPOTENCY_STORE"]),
    key="detail.idempotencyid",
    payload="detail.data",
    dead_letters=SqsDeadLetters(os.environ["DEAD_LETTER_QUEUE_URL"]),
)


@consumer.event_handler
def handler(event: dict[str, Any], operation: Operation) -> None:
    """Name the execution after the idempotency key, so that a redelivery finds it."""
    start_once(operation, client, os.environ["POINTS_FUNCTION"], event["detail"]["data"])
