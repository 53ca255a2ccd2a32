"""Take the idempotency off consumers, for `make chaos ARGS="--unprotected …"`: the audit has to notice it.

The engine runs this file in the process of every function, before the function's own code. A consumer that the variable
``UNPROTECTED`` names does for every delivery what its handler does, in one transaction and without a record.
"""

import json
import os
import uuid
from collections.abc import Callable
from typing import Any


def _run(consumer: Any, work: Callable[[Any, Any], object], message: dict[str, Any]) -> None:
    """Do the work, and commit its effects."""
    from idempotency.clock import epoch_ms  # noqa: PLC0415 - found in the function's process only
    from idempotency.operation import Operation  # noqa: PLC0415 - as above
    from idempotency.record import IN_PROGRESS, Record  # noqa: PLC0415 - as above
    from idempotency.stores.transport import botocore_transport  # noqa: PLC0415 - as above

    key = uuid.uuid4().hex  # nothing recognises what was done before, the payment gateway included
    record = Record(key, IN_PROGRESS, key, 1, None, None, None, None, None, 0, 0)
    operation = Operation(record, None, takes_effects=True, clock=epoch_ms, renew=None)
    work(consumer._parse(message), operation)  # noqa: SLF001 - takes the place of the consumer's own method
    actions = [effect.action() for effect in operation._effects]  # noqa: SLF001 - as above
    if actions:
        botocore_transport()("TransactWriteItems", {"TransactItems": actions})


def _event_handler(consumer: Any, work: Callable[[Any, Any], object]) -> Callable[..., None]:
    return lambda event, _context: _run(consumer, work, event)


def _batch_handler(consumer: Any, work: Callable[[Any, Any], object]) -> Callable[..., None]:
    def handler(event: dict[str, Any], _context: object) -> None:
        for record in event["Records"]:
            _run(consumer, work, json.loads(record["body"]))

    return handler


def install(unprotected: list[str]) -> None:
    """Replace the handlers of these consumers."""
    try:
        from idempotency import Consumer  # noqa: PLC0415 - as above
    except ModuleNotFoundError:  # a function without consumers
        return
    for name, without in (("event_handler", _event_handler), ("batch_handler", _batch_handler)):
        protected = getattr(Consumer, name)

        def decorate(consumer: Any, work: Any, without: Any = without, protected: Any = protected) -> Any:
            return (without if consumer.name in unprotected else protected)(consumer, work)

        setattr(Consumer, name, decorate)


if __name__ == "__main__":
    install(os.environ["UNPROTECTED"].split(","))
