"""A consumer without its idempotency decorator, for `make chaos ARGS="--unprotected …"`: it has to be noticed.

Packed beside a function's main module, and made the function's handler. It does for every delivery what the handler
does, in one transaction and with no record of it, as a consumer would that has never heard of idempotency.
"""

import importlib
import json
import os
import uuid
from collections.abc import Callable
from typing import Any

import idempotency.consumer
from idempotency.clock import epoch_ms
from idempotency.operation import Operation
from idempotency.record import IN_PROGRESS, Record
from idempotency.stores.transport import botocore_transport

_send = botocore_transport()


def _once(consumer: Any, work: Callable[[Any, Operation], object], message: dict[str, Any]) -> None:
    """Do the work, and commit its effects."""
    key = uuid.uuid4().hex  # nothing recognises what was done before, the payment gateway included
    record = Record(key, IN_PROGRESS, key, 1, None, None, None, None, None, 0, 0)
    operation = Operation(record, None, takes_effects=True, clock=epoch_ms, renew=None)
    work(consumer._reader.parse(message), operation)  # noqa: SLF001 - takes the place of the consumer's own method
    actions = [effect.action() for effect in operation._effects]  # noqa: SLF001 - as above
    if actions:
        _send("TransactWriteItems", {"TransactItems": actions})


def _event_handler(consumer: Any, work: Callable[[Any, Operation], object]) -> Callable[..., None]:
    def handler(event: dict[str, Any], context: object) -> None:  # noqa: ARG001 - Lambda's form
        _once(consumer, work, event)

    return handler


def _batch_handler(consumer: Any, work: Callable[[Any, Operation], object]) -> Callable[..., None]:
    def handler(event: dict[str, Any], context: object) -> None:  # noqa: ARG001 - Lambda's form
        for record in event["Records"]:
            _once(consumer, work, json.loads(record["body"]))

    return handler


idempotency.consumer.Consumer.event_handler = _event_handler  # type: ignore[assignment,method-assign]
idempotency.consumer.Consumer.batch_handler = _batch_handler  # type: ignore[assignment,method-assign]
handler = importlib.import_module(os.environ["UNPROTECTED"]).handler
