"""Charges each order of an SQS queue at a gateway that recognises no repeated request."""

import json
import os
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen as open_url

from carride_idempotency import (
    NOT_DONE,
    Answer,
    Consumer,
    Done,
    Operation,
    Policy,
    Update,
    open_store,
)

GATEWAY = os.environ["GATEWAY_URL"]

consumer: Consumer = Consumer(
    "charges",
    open_store(os.environ["IDEMPOTENCY_STORE"]),
    key="orderID",
    policy=Policy(max_attempts=30, margin=0.1, clock_skew=0.1, reserve=0.2, concurrency=3),
)


def charge(reference: str, total: int) -> str:
    """Charge the total; return the charge's id."""
    body = json.dumps({"reference": reference, "total": total}).encode()
    with open_url(f"{GATEWAY}/charges", body, timeout=1) as answer:  # noqa: S310 - our gateway
        return str(json.load(answer)["id"])


def find(reference: str) -> Done[str] | Answer:
    """Ask the gateway whether it has charged for this reference."""
    try:
        asked = f"{GATEWAY}/charges/{reference}"
        with open_url(asked, timeout=1) as answer:  # noqa: S310 - as above
            return Done(str(json.load(answer)["id"]))
    except HTTPError as error:
        if error.code != 404:
            raise
        return NOT_DONE


@consumer.batch_handler
def handler(order: dict[str, Any], operation: Operation) -> None:
    """Charge one order, and count its receipt."""
    operation.external("charge", lambda key: charge(key, order["total"]), find)
    receipt = {"id": order["orderID"]}
    operation.write(Update("Receipts", receipt, "ADD written :one", values={":one": 1}))
