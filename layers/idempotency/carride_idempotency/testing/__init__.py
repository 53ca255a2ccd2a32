"""Helpers for tests of handlers and stores.

A world that stands still, events, faults, and `crash_everywhere`.
"""

from carride_idempotency.testing.crashes import BrokenPromiseError, crash_everywhere
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
    eventbridge_event,
    http_event,
    lambda_context,
    sqs_event,
    stream_event,
)
from carride_idempotency.testing.worlds import NO_KEY, World

__all__ = [
    "NO_KEY",
    "START_MS",
    "BrokenPromiseError",
    "Crash",
    "DeadLetterBox",
    "FakeDynamoDB",
    "FaultyTransport",
    "Inline",
    "Invocation",
    "ManualClock",
    "World",
    "crash_everywhere",
    "eventbridge_event",
    "http_event",
    "lambda_context",
    "sqs_event",
    "stream_event",
]
