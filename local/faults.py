"""Inject the faults that simulated events ask for into the deployed consumers: on this machine only.

The engine runs this file in the process of every function, before the function's own code (`--preload`). It wraps the
work that a handler gives to `idempotency.Consumer.event_handler` or `batch_handler`: a fault comes after the handler
registered its effects and before the layer commits them, the moment at which it does the most harm. The consumers that
the variable ``UNPROTECTED`` names lose their idempotency, which an audit has to notice. Deployed code has no faults.
"""

import functools
import hashlib
import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Final

SLOW_S: Final = 3.0
"""Additional seconds that a slow consumer takes."""
_EXIT_CODE: Final = 70


class SimulatedFaultError(Exception):
    """Raised because the event asked for it."""


def inject_fault(event: Any) -> None:
    """Inject the fault that the event's extension ``simulatedfault`` names.

    ``crash`` ends the process, ``fail`` raises and ``slow`` waits, each in the function's first run of the event;
    ``poison`` raises in every run.

    Raises:
        SimulatedFaultError: The event asked for it.
    """
    from carride.simulation import FAULT_EXTENSION, Fault  # noqa: PLC0415 - found in the function's process only

    fault = getattr(event, "extensions", {}).get(FAULT_EXTENSION)
    if fault not in list(Fault) or (fault != Fault.POISON and _ran_before(event)):
        return
    match fault:
        case Fault.CRASH:
            os._exit(_EXIT_CODE)
        case Fault.SLOW:
            time.sleep(SLOW_S)
        case _:
            raise SimulatedFaultError(f"{event.type} of {event.subject} asked for it")


def _ran_before(event: Any) -> bool:
    """Return whether this function ran the event before. A file remembers it, because the process may end at once.

    The event's time is part of the file's name: stacks that follow each other on one engine may publish the same rides.
    """
    where = (os.environ.get("AWS_REGION"), os.environ.get("AWS_LAMBDA_FUNCTION_NAME"))
    name = hashlib.blake2b(repr((where, event.idempotencyid, event.time)).encode(), digest_size=16).hexdigest()
    try:
        Path(gettempdir(), f"fault-{name}").touch(exist_ok=False)
    except FileExistsError:
        return True
    return False


def install(replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """Have every consumer that is made from now on inject faults. Functions without the layer have no consumer.

    Args:
        replace: Sets an attribute; a test gives one that is undone.
    """
    try:
        from idempotency import Consumer  # noqa: PLC0415 - as above
    except ModuleNotFoundError:
        return

    for name in ("event_handler", "batch_handler"):
        replace(Consumer, name, _with_faults(getattr(Consumer, name)))
    if unprotected := os.environ.get("UNPROTECTED"):
        replace(Consumer, "__init__", _without_keys(Consumer.__init__, unprotected.split(",")))


def _with_faults(decorate: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(decorate)
    def decorator(consumer: Any, work: Callable[[Any, Any], Any]) -> Any:
        @functools.wraps(work)
        def handler(event: Any, operation: Any) -> Any:
            result = work(event, operation)
            inject_fault(event)
            return result

        return decorate(consumer, handler)

    return decorator


def _without_keys(protected: Callable[..., None], unprotected: list[str]) -> Callable[..., None]:
    """Give each delivery of the named consumers a key of its own, so that they recognise no duplicate."""

    @functools.wraps(protected)
    def initialise(consumer: Any, name: str, *args: Any, **options: Any) -> None:
        if name in unprotected:
            options["key"] = lambda _event: uuid.uuid4().hex
        protected(consumer, name, *args, **options)

    return initialise


if __name__ == "__main__":
    install()
