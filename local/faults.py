"""Inject the faults that simulated events ask for into the deployed consumers: on this machine only.

The engine runs this file in the process of every function, before the function's own code (`--preload`). It wraps the
work that a handler gives to `idempotency.Consumer.event_handler` or `batch_handler`: a fault comes after the handler
registered its effects and before the layer commits them, the moment at which it does the most harm. The consumers that
the variable ``UNPROTECTED`` names lose their idempotency, which an audit has to notice. Deployed code has no faults.

An `Intervention` is a fault that somebody armed for the next run of one event in one function (`local/interventions.py`
runs in the engine and arms it; a file says so, which the first run that meets the fault removes):

- ``kill`` ends the process after the handler registered its effects and before the commit.
- ``lose-answer`` sends the commit, and takes away each answer to it, so that the attempt ends without knowing.
- ``stall`` gives the attempt a short lease and freezes it before the commit, until another delivery has taken over.
"""

import functools
import hashlib
import os
import time
import uuid
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Final

SLOW_S: Final = 3.0
"""Additional seconds that a slow consumer takes."""
STALLED_LEASE_S: Final = 2.0
"""The lease of a stalled attempt: enough to reach the end of its handler."""
_FROZEN_S: Final = 20.0
"""How long a stalled attempt waits for another delivery at most: less than the timeout of any consumer."""
_POLL_S: Final = 0.05
_EXIT_CODE: Final = 70


class Intervention(StrEnum):
    """A fault that can be armed for the next run of an event."""

    KILL = "kill"
    LOSE_ANSWER = "lose-answer"
    STALL = "stall"


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


def armed(function: str, event_id: str, fault: Intervention) -> Path:
    """Return the file that exists while a fault is armed for an event in a function.

    Args:
        function: The function's name.
        event_id: The event's idempotency id.
        fault: The fault.
    """
    name = hashlib.blake2b(repr((function, event_id, fault.value)).encode(), digest_size=16).hexdigest()
    return Path(gettempdir(), f"armed-{name}")


def _armed_here(key: str, fault: Intervention) -> Path:
    """Return the file of a fault of this function; ``key`` is the record's, ``<consumer>#<idempotency id>``."""
    return armed(os.environ.get("AWS_LAMBDA_FUNCTION_NAME", ""), key.partition("#")[2], fault)


def _use(key: str, fault: Intervention) -> bool:
    """Return whether a fault is armed, and use it up: of several attempts one meets it."""
    try:
        _armed_here(key, fault).unlink()
    except FileNotFoundError:
        return False
    return True


class _Interventions:
    """Injects what is armed into every consumer of this process.

    Attributes:
        unanswered: Owner tokens of the attempts whose commit gets no answer.
        leases: The end of the lease of each stalled attempt, in epoch milliseconds, by owner token.
    """

    def __init__(self) -> None:
        self.unanswered: set[str] = set()
        self.leases: dict[str, int] = {}

    def inject(self, consumer: Any, operation: Any) -> None:
        """Inject the armed faults of an attempt whose handler has ended."""
        if _use(operation.key, Intervention.KILL):
            os._exit(_EXIT_CODE)
        if _use(operation.key, Intervention.LOSE_ANSWER):
            self.unanswered.add(operation.owner)
        if _use(operation.key, Intervention.STALL):
            deadline = time.monotonic() + _FROZEN_S
            while time.monotonic() < deadline:
                found = consumer.record(operation.key.partition("#")[2])
                if found is not None and found.owner != operation.owner and found.status != "IN_PROGRESS":
                    return
                time.sleep(_POLL_S)

    def lease_until(self, stock: Callable[[Any, int], int]) -> Callable[[Any, int], int]:
        """Return `decision.lease_until` with short leases of stalled attempts, which no heartbeat makes longer."""

        def lease_until(request: Any, now_ms: int) -> int:
            if _armed_here(request.key, Intervention.STALL).exists():
                self.leases.setdefault(request.owner, now_ms + int(STALLED_LEASE_S * 1000))
            return self.leases.get(request.owner) or stock(request, now_ms)

        return lease_until

    def transport(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        """Return the sending of a request without the answers that are lost."""
        from idempotency.stores.transport import NoAnswerError  # noqa: PLC0415 - found in the function's process only

        def send(transport: Any, operation: str, request: Mapping[str, Any]) -> Any:
            answer = stock(transport, operation, request)
            put = request["TransactItems"][0]["Put"] if "TransactItems" in request else request
            item = put.get("Item", {})
            if item.get("owner", {}).get("S") in self.unanswered and item["status"]["S"] == "COMPLETED":
                raise NoAnswerError("the answer was lost on its way")
            return answer

        return send


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
        from idempotency import Consumer, decision  # noqa: PLC0415 - as above
        from idempotency.stores.lean import LeanTransport  # noqa: PLC0415 - as above
        from idempotency.stores.transport import BotocoreTransport  # noqa: PLC0415 - as above
    except ModuleNotFoundError:
        return

    interventions = _Interventions()
    replace(decision, "lease_until", interventions.lease_until(decision.lease_until))
    for transport in (BotocoreTransport, LeanTransport):
        replace(transport, "__call__", interventions.transport(transport.__call__))
    for name in ("event_handler", "batch_handler"):
        replace(Consumer, name, _with_faults(getattr(Consumer, name), interventions))
    if unprotected := os.environ.get("UNPROTECTED"):
        replace(Consumer, "__init__", _without_keys(Consumer.__init__, unprotected.split(",")))


def _with_faults(decorate: Callable[..., Any], interventions: _Interventions) -> Callable[..., Any]:
    @functools.wraps(decorate)
    def decorator(consumer: Any, work: Callable[[Any, Any], Any]) -> Any:
        @functools.wraps(work)
        def handler(event: Any, operation: Any) -> Any:
            result = work(event, operation)
            inject_fault(event)
            interventions.inject(consumer, operation)
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
