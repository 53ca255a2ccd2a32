"""Every operation takes effect once per consumer, however often it is delivered."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from carride_idempotency.aio.operation import AsyncOperation
    from carride_idempotency.consumer import BatchHandler, Consumer, EventHandler
    from carride_idempotency.dead_letters import DeadLetter, DeadLetters, SqsDeadLetters
    from carride_idempotency.effects import Check, Delete, Effect, Keep, Put, Update
    from carride_idempotency.errors import (
        BusyError,
        ConfigurationError,
        EffectConflictError,
        IdempotencyError,
        LostLeaseError,
        MissingKeyError,
        NotDoneError,
        PayloadMismatchError,
        PermanentError,
        QuarantinedError,
        ResultOmittedError,
        RetryableError,
        StoreError,
        StoreRefusedError,
        StoreUnavailableError,
        UndecodableResultError,
        UnknownOutcomeError,
    )
    from carride_idempotency.http import ANY_CALLER, HttpHandler, HttpProblemError, idempotency_key
    from carride_idempotency.invocation import LambdaContext, lambda_deadline
    from carride_idempotency.keys import TRANSPORT_ID
    from carride_idempotency.observation import Observation, Observer
    from carride_idempotency.observers import emf, logged
    from carride_idempotency.policy import Policy
    from carride_idempotency.protocol.externals import CANNOT_TELL, NOT_DONE, Answer, Done
    from carride_idempotency.protocol.operation import Operation
    from carride_idempotency.record import Record, Status, UnknownStatus
    from carride_idempotency.recovery import forget, release, settle, stored_form
    from carride_idempotency.sources import (
        DYNAMODB_STREAM,
        EVENTBRIDGE,
        KAFKA,
        KINESIS,
        SNS,
        SNS_IN_SQS,
        SQS,
        Source,
    )
    from carride_idempotency.stores import Store
    from carride_idempotency.stores.default_transport import dynamodb_transport
    from carride_idempotency.stores.dynamodb import DynamoDBStore
    from carride_idempotency.stores.factory import open_store
    from carride_idempotency.stores.memory import MemoryStore
    from carride_idempotency.stores.powertools import PowertoolsRecords
    from carride_idempotency.stores.transport import Transport, botocore_transport
    from carride_idempotency.stores.valkey import ValkeyStore

__version__ = "0.1.0"
__all__ = [
    "ANY_CALLER",
    "CANNOT_TELL",
    "DYNAMODB_STREAM",
    "EVENTBRIDGE",
    "KAFKA",
    "KINESIS",
    "NOT_DONE",
    "SNS",
    "SNS_IN_SQS",
    "SQS",
    "TRANSPORT_ID",
    "Answer",
    "AsyncOperation",
    "BatchHandler",
    "BusyError",
    "Check",
    "ConfigurationError",
    "Consumer",
    "DeadLetter",
    "DeadLetters",
    "Delete",
    "Done",
    "DynamoDBStore",
    "Effect",
    "EffectConflictError",
    "EventHandler",
    "HttpHandler",
    "HttpProblemError",
    "IdempotencyError",
    "Keep",
    "LambdaContext",
    "LostLeaseError",
    "MemoryStore",
    "MissingKeyError",
    "NotDoneError",
    "Observation",
    "Observer",
    "Operation",
    "PayloadMismatchError",
    "PermanentError",
    "Policy",
    "PowertoolsRecords",
    "Put",
    "QuarantinedError",
    "Record",
    "ResultOmittedError",
    "RetryableError",
    "Source",
    "SqsDeadLetters",
    "Status",
    "Store",
    "StoreError",
    "StoreRefusedError",
    "StoreUnavailableError",
    "Transport",
    "UndecodableResultError",
    "UnknownOutcomeError",
    "UnknownStatus",
    "Update",
    "ValkeyStore",
    "botocore_transport",
    "dynamodb_transport",
    "emf",
    "forget",
    "idempotency_key",
    "lambda_deadline",
    "logged",
    "open_store",
    "release",
    "settle",
    "stored_form",
]

_MODULES = {
    "aio.operation": "AsyncOperation",
    "consumer": "BatchHandler Consumer EventHandler",
    "dead_letters": "DeadLetter DeadLetters SqsDeadLetters",
    "effects": "Check Delete Effect Keep Put Update",
    "http": "ANY_CALLER HttpHandler HttpProblemError idempotency_key",
    "invocation": "LambdaContext lambda_deadline",
    "keys": "TRANSPORT_ID",
    "observation": "Observation Observer",
    "observers": "emf logged",
    "policy": "Policy",
    "protocol.externals": "CANNOT_TELL NOT_DONE Answer Done",
    "protocol.operation": "Operation",
    "record": "Record Status UnknownStatus",
    "recovery": "forget release settle stored_form",
    "sources": "DYNAMODB_STREAM EVENTBRIDGE KAFKA KINESIS SNS SNS_IN_SQS SQS Source",
    "stores": "Store",
    "stores.default_transport": "dynamodb_transport",
    "stores.dynamodb": "DynamoDBStore",
    "stores.factory": "open_store",
    "stores.memory": "MemoryStore",
    "stores.powertools": "PowertoolsRecords",
    "stores.transport": "Transport botocore_transport",
    "stores.valkey": "ValkeyStore",
}
"""The modules of the names that are not errors."""
_MODULE_NAMES = ("__all__", "__doc__", "__file__", "__name__", "__path__", "__version__")


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used.

    So a cold start pays only for what its function uses.
    """
    if name in __all__:
        module = next(
            (module for module, exports in _MODULES.items() if name in exports.split()), "errors"
        )
        value = globals()[name] = getattr(import_module(f"carride_idempotency.{module}"), name)
        return value
    raise AttributeError(f"module 'carride_idempotency' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, also those that are not imported yet."""
    return sorted({*__all__, *_MODULE_NAMES})
