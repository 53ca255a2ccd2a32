"""Adds the readings of a Kinesis stream to the total of their meter.

The producer may write one reading twice, so the key is the reading's own id.
"""

import os
from typing import Any

from carride_idempotency import KINESIS, Consumer, Operation, Policy, Update, open_store

consumer: Consumer = Consumer(
    "totals",
    open_store(os.environ["IDEMPOTENCY_STORE"]),
    key="readingID",
    source=KINESIS,
    policy=Policy(max_attempts=30, margin=0.1, clock_skew=0.1, reserve=0.2),
)


@consumer.batch_handler
def handler(reading: dict[str, Any], operation: Operation) -> None:
    """Add one reading."""
    operation.write(
        Update(
            "Totals",
            {"id": reading["meter"]},
            "ADD readings :one, litres :litres",
            values={":one": 1, ":litres": reading["litres"]},
        )
    )
