"""Helpers for tests of handlers and stores: a world, events, faults, and `crash_everywhere`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from carride_idempotency.testing.crashes import (
        BrokenPromiseError,
        CrashEverywhere,
        crash_everywhere,
    )
    from carride_idempotency.testing.doubles import (
        START_MS,
        Crash,
        DeadLetterBox,
        FaultyTransport,
        Inline,
        Invocation,
        ManualClock,
    )
    from carride_idempotency.testing.dynamodb import FakeDynamoDB
    from carride_idempotency.testing.events import (
        dynamodb_stream_event,
        eventbridge_event,
        http_event,
        kafka_event,
        kinesis_event,
        lambda_context,
        sns_event,
        sqs_event,
    )
    from carride_idempotency.testing.worlds import NO_KEY, Run, World

__all__ = [
    "NO_KEY",
    "START_MS",
    "BrokenPromiseError",
    "Crash",
    "CrashEverywhere",
    "DeadLetterBox",
    "FakeDynamoDB",
    "FaultyTransport",
    "Inline",
    "Invocation",
    "ManualClock",
    "Run",
    "World",
    "crash_everywhere",
    "dynamodb_stream_event",
    "eventbridge_event",
    "http_event",
    "kafka_event",
    "kinesis_event",
    "lambda_context",
    "sns_event",
    "sqs_event",
]

_MODULES = {
    "NO_KEY": "worlds",
    "START_MS": "doubles",
    "BrokenPromiseError": "crashes",
    "Crash": "doubles",
    "CrashEverywhere": "crashes",
    "DeadLetterBox": "doubles",
    "FakeDynamoDB": "dynamodb",
    "FaultyTransport": "doubles",
    "Inline": "doubles",
    "Invocation": "doubles",
    "ManualClock": "doubles",
    "Run": "worlds",
    "World": "worlds",
    "crash_everywhere": "crashes",
}
"""The modules of the public names; all others are in `events`."""


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: the pytest plugin is loaded with every run of pytest."""
    if name not in __all__:
        raise AttributeError(f"module 'carride_idempotency.testing' has no attribute {name!r}")
    module = import_module(f"carride_idempotency.testing.{_MODULES.get(name, 'events')}")
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, also those that are not imported yet."""
    return sorted({*__all__, "__all__", "__doc__", "__file__", "__name__", "__path__"})
