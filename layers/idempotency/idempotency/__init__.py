"""Every operation takes effect once per consumer, however often it is delivered.

Five lines make a consumer::

    consumer = Consumer("billing", DynamoDBStore("IdempotencyTable"), key="detail.idempotencyid")

    @consumer.event_handler
    def handler(event, operation):
        operation.write(Put("Invoices", {"id": event["detail"]["data"]["orderID"]}))
"""

from idempotency.consumer import Consumer, within
from idempotency.dead_letters import SqsDeadLetters
from idempotency.effects import Check, Delete, Put, Update
from idempotency.errors import (
    BusyError,
    ConfigurationError,
    EffectConflictError,
    IdempotencyError,
    PermanentError,
    RetryableError,
)
from idempotency.keys import TRANSPORT_ID
from idempotency.observation import Observation
from idempotency.operation import Operation
from idempotency.policy import Policy
from idempotency.stores.dynamodb import DynamoDBStore
from idempotency.stores.memory import MemoryStore

__all__ = [
    "TRANSPORT_ID",
    "BusyError",
    "Check",
    "ConfigurationError",
    "Consumer",
    "Delete",
    "DynamoDBStore",
    "EffectConflictError",
    "IdempotencyError",
    "MemoryStore",
    "Observation",
    "Operation",
    "PermanentError",
    "Policy",
    "Put",
    "RetryableError",
    "SqsDeadLetters",
    "Update",
    "within",
]
