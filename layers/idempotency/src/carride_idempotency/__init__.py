"""Every operation takes effect once per consumer, however often it is delivered."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from carride_idempotency.aio.calls import AsyncBlock
    from carride_idempotency.aio.operation import AsyncOperation
    from carride_idempotency.clock import Clock
    from carride_idempotency.consumer import (
        BatchHandler,
        BatchResponse,
        Consumer,
        EventHandler,
        EventResponse,
        MessageWork,
    )
    from carride_idempotency.dead_letters import (
        DeadLetter,
        DeadLetterError,
        DeadLetters,
        SqsDeadLetters,
    )
    from carride_idempotency.effects import Check, Delete, Effect, Keep, Put, Update
    from carride_idempotency.entry.calls_and_blocks import Block, BlockContext
    from carride_idempotency.errors import (
        BatchFailedError,
        BeyondWindowError,
        BusyError,
        ConfigurationError,
        ContentionError,
        CorruptRecordError,
        EffectConflictError,
        EffectsRejectedError,
        IdempotencyError,
        KeyExpressionError,
        LostLeaseError,
        MissingKeyError,
        NotDoneError,
        OutOfTimeError,
        PayloadMismatchError,
        PermanentError,
        QuarantinedError,
        ResultOmittedError,
        RetryableError,
        RetryLaterError,
        StoreError,
        StoreRefusedError,
        StoreUnavailableError,
        UndecodableResultError,
        UnfinishedWorkError,
        UnknownOutcomeError,
    )
    from carride_idempotency.http import (
        ANY_CALLER,
        AnyCaller,
        HttpHandler,
        HttpProblemError,
        HttpWork,
        idempotency_key,
    )
    from carride_idempotency.invocation import LambdaContext, lambda_deadline
    from carride_idempotency.keys import TRANSPORT_ID, TransportId
    from carride_idempotency.observation import Observation, Observer, Observers
    from carride_idempotency.observers import OutcomeLog, emf, logged
    from carride_idempotency.policy import Policy
    from carride_idempotency.protocol.call_steps import AnyBlock
    from carride_idempotency.protocol.concurrency import Concurrency
    from carride_idempotency.protocol.externals import CANNOT_TELL, NOT_DONE, Answer, Done, Probe
    from carride_idempotency.protocol.operation import AnyOperation, Operation
    from carride_idempotency.record import Record, Status, UnknownStatus
    from carride_idempotency.recovery import forget, release, settle
    from carride_idempotency.sources import (
        DYNAMODB_STREAM,
        EVENTBRIDGE,
        KAFKA,
        KINESIS,
        SNS,
        SNS_IN_SQS,
        SQS,
        Raw,
        Source,
    )
    from carride_idempotency.stores import Store
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
    "AnyBlock",
    "AnyCaller",
    "AnyOperation",
    "AsyncBlock",
    "AsyncOperation",
    "BatchFailedError",
    "BatchHandler",
    "BatchResponse",
    "BeyondWindowError",
    "Block",
    "BlockContext",
    "BusyError",
    "Check",
    "Clock",
    "Concurrency",
    "ConfigurationError",
    "Consumer",
    "ContentionError",
    "CorruptRecordError",
    "DeadLetter",
    "DeadLetterError",
    "DeadLetters",
    "Delete",
    "Done",
    "DynamoDBStore",
    "Effect",
    "EffectConflictError",
    "EffectsRejectedError",
    "EventHandler",
    "EventResponse",
    "HttpHandler",
    "HttpProblemError",
    "HttpWork",
    "IdempotencyError",
    "Keep",
    "KeyExpressionError",
    "LambdaContext",
    "LostLeaseError",
    "MemoryStore",
    "MessageWork",
    "MissingKeyError",
    "NotDoneError",
    "Observation",
    "Observer",
    "Observers",
    "Operation",
    "OutOfTimeError",
    "OutcomeLog",
    "PayloadMismatchError",
    "PermanentError",
    "Policy",
    "PowertoolsRecords",
    "Probe",
    "Put",
    "QuarantinedError",
    "Raw",
    "Record",
    "ResultOmittedError",
    "RetryLaterError",
    "RetryableError",
    "Source",
    "SqsDeadLetters",
    "Status",
    "Store",
    "StoreError",
    "StoreRefusedError",
    "StoreUnavailableError",
    "Transport",
    "TransportId",
    "UndecodableResultError",
    "UnfinishedWorkError",
    "UnknownOutcomeError",
    "UnknownStatus",
    "Update",
    "ValkeyStore",
    "botocore_transport",
    "emf",
    "forget",
    "idempotency_key",
    "lambda_deadline",
    "logged",
    "open_store",
    "release",
    "settle",
]

_MODULES = {
    "aio.calls": "AsyncBlock",
    "aio.operation": "AsyncOperation",
    "clock": "Clock",
    "consumer": "BatchHandler BatchResponse Consumer EventHandler EventResponse MessageWork",
    "dead_letters": "DeadLetter DeadLetterError DeadLetters SqsDeadLetters",
    "effects": "Check Delete Effect Keep Put Update",
    "entry.calls_and_blocks": "Block BlockContext",
    "http": "ANY_CALLER AnyCaller HttpHandler HttpProblemError HttpWork idempotency_key",
    "invocation": "LambdaContext lambda_deadline",
    "keys": "TRANSPORT_ID TransportId",
    "observation": "Observation Observer Observers",
    "observers": "OutcomeLog emf logged",
    "policy": "Policy",
    "protocol.call_steps": "AnyBlock",
    "protocol.concurrency": "Concurrency",
    "protocol.externals": "CANNOT_TELL NOT_DONE Answer Done Probe",
    "protocol.operation": "AnyOperation Operation",
    "record": "Record Status UnknownStatus",
    "recovery": "forget release settle",
    "sources": "DYNAMODB_STREAM EVENTBRIDGE KAFKA KINESIS SNS SNS_IN_SQS SQS Raw Source",
    "stores": "Store",
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
