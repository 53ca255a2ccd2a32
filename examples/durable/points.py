"""Give the customer of a completed ride a point, a day later.

A durable function whose effect happens once.
"""

import os
from typing import Any

from aws_durable_execution_sdk_python import DurableContext, durable_execution
from aws_durable_execution_sdk_python.config import Duration

from carride_idempotency import Consumer, Operation, Policy, Update, open_store
from carride_idempotency.durable import effect_once

consumer: Consumer[Any] = Consumer(
    "points", open_store(os.environ["IDEMPOTENCY_STORE"]), policy=Policy(atomic=True)
)


@durable_execution
def handler(ride: dict[str, Any], context: DurableContext) -> str:
    """Wait, which costs nothing.

    Then add the point in the transaction that completes the step's record.
    """
    context.wait(Duration.from_days(1), name="complaints")

    def add_point(operation: Operation) -> str:
        customer = {"customerID": ride["customerID"]}
        operation.write(
            Update(os.environ["POINTS_TABLE"], customer, "ADD points :one", values={":one": 1})
        )
        return f"a point for {ride['orderID']}"

    return effect_once(context, consumer, "point", add_point)
