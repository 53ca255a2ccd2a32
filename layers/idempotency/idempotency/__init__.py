"""Every operation takes effect once per consumer, however often it is delivered.

Five lines make a consumer::

    consumer = Consumer("billing", DynamoDBStore("IdempotencyTable"), key="detail.idempotencyid")

    @consumer.event_handler
    def handler(event, operation):
        operation.write(Put("Invoices", {"id": event["detail"]["data"]["orderID"]}))
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from idempotency.stores.opening import open_store

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
    "open_store",
    "within",
]

_MODULES = {
    "consumer": ("Consumer", "within"),
    "dead_letters": ("SqsDeadLetters",),
    "effects": ("Check", "Delete", "Put", "Update"),
    "errors": (
        "BusyError",
        "ConfigurationError",
        "EffectConflictError",
        "IdempotencyError",
        "PermanentError",
        "RetryableError",
    ),
    "keys": ("TRANSPORT_ID",),
    "observation": ("Observation",),
    "operation": ("Operation",),
    "policy": ("Policy",),
    "stores.dynamodb": ("DynamoDBStore",),
    "stores.memory": ("MemoryStore",),
    "stores.opening": ("open_store",),
}


def __getattr__(name: str) -> Any:
    """Import what is asked for, and only that: a cold start does not pay for what its function does not use."""
    for module, exports in _MODULES.items():
        if name in exports:
            value = globals()[name] = getattr(import_module(f"idempotency.{module}"), name)
            return value
    raise AttributeError(f"module 'idempotency' has no attribute {name!r}")
