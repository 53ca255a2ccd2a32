"""Inject the faults that events ask for into the deployed consumers: on this machine only.

The engine runs this file in the process of every function, before the function's own code
(`--preload`). It wraps the work that a handler gives to
`carride_idempotency.Consumer.event_handler` or `batch_handler`: a fault comes after the handler
registered its effects and before the layer commits them, the moment at which it does the most harm.
The consumers that the variable ``UNPROTECTED`` names lose their idempotency, which an audit has to
notice; every attempt of those that ``FAILING`` names fails. Deployed code has no faults.

The extension ``simulatedfault`` of an event names a `carride.simulated_faults.Fault`, which meets
every consumer of the event or only one, as in ``stall@payment``.
"""

import functools
import hashlib
import os
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Final

SLOW_S: Final = 3.0
"""Additional seconds that a slow consumer takes."""
_FROZEN_S: Final = 20.0
"""How long a stalled attempt waits for another delivery at most: less than the timeout of any
consumer."""
_POLL_S: Final = 0.05
_EXIT_CODE: Final = 70


class SimulatedFaultError(Exception):
    """Raised because the event asked for it."""


def fault_of(consumer: str, event: Any) -> str | None:
    """Return the fault that an event asks of a consumer; None without one."""
    from carride.simulated_faults import FAULT_EXTENSION, Fault  # noqa: PLC0415 - found in the function's process only

    fault, _, only = getattr(event, "extensions", {}).get(FAULT_EXTENSION, "").partition("@")
    return fault if fault in list(Fault) and only in {"", consumer} else None


def _mark(event: Any) -> Path:
    """Return the file that says that an event's fault was injected into this function.

    The process may end at once.

    The event's time is part of the file's name: stacks that follow each other on one engine may
    publish the same rides.
    """
    where = (os.environ.get("AWS_REGION"), os.environ.get("AWS_LAMBDA_FUNCTION_NAME"))
    name = hashlib.blake2b(
        repr((where, event.idempotencyid, event.time)).encode(), digest_size=16
    ).hexdigest()
    return Path(gettempdir(), f"fault-{name}")


class Injector:
    """Injects faults into every consumer of this process."""

    def __init__(self) -> None:
        self.unanswered: set[str] = set()
        """Owner tokens of the attempts whose commit gets no answer."""
        self.stalling: set[str] = set()
        """Record keys whose next attempt stalls."""
        self.leases: dict[str, int] = {}
        """The end of the lease of each stalled attempt, in epoch milliseconds, by owner token."""

    def inject(self, consumer: Any, event: Any, operation: Any) -> None:
        """Inject the fault of an attempt whose handler has ended.

        Only poison meets more than one attempt.
        """
        is_failing = consumer.name in os.environ.get("FAILING", "").split(",")
        fault = "poison" if is_failing else fault_of(consumer.name, event)
        try:
            if fault not in {None, "poison"}:
                _mark(event).touch(exist_ok=False)
        except FileExistsError:
            return
        match fault:
            case None:
                return
            case "crash":
                os._exit(_EXIT_CODE)
            case "slow":
                time.sleep(SLOW_S)
            case "lose-answer":
                self.unanswered.add(operation.owner)
            case "stall":
                self.stalling.discard(operation.key)
                _wait_for_another(consumer, operation)
            case _:
                raise SimulatedFaultError(f"{event.type} of {event.subject} asked for it")

    def key(self, consumer: str, stock: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a consumer's ``key=``, which is asked before the claim, and learns of a stall."""

        def key(event: Any) -> Any:
            found = stock(event)
            if fault_of(consumer, event) == "stall" and not _mark(event).exists():
                self.stalling.add(f"{consumer}#{found}")
            return found

        return key

    def lease_until(self, stock: Callable[[Any, int], int]) -> Callable[[Any, int], int]:
        """Return `decision.lease_until` with short leases for stalled attempts."""

        def lease_until(request: Any, now_ms: int) -> int:
            if request.key in self.stalling:
                from carride.simulated_faults import STALLED_LEASE_S  # noqa: PLC0415 - as above

                self.leases.setdefault(request.owner, now_ms + int(STALLED_LEASE_S * 1000))
            return self.leases.get(request.owner) or stock(request, now_ms)

        return lease_until

    def transport(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        """Return the sending of a request without the answers that are lost."""
        from carride_idempotency.stores.transport import NoAnswerError  # noqa: PLC0415 - found in the function's process only

        def send(transport: Any, operation: str, request: Mapping[str, Any]) -> Any:
            answer = stock(transport, operation, request)
            put = request["TransactItems"][0]["Put"] if "TransactItems" in request else request
            item = put.get("Item", {})
            if (
                item.get("owner", {}).get("S") in self.unanswered
                and item["status"]["S"] == "COMPLETED"
            ):
                raise NoAnswerError("the answer was lost on its way")
            return answer

        return send


def _wait_for_another(consumer: Any, operation: Any) -> None:
    """Freeze an attempt until another delivery has taken over."""
    deadline = time.monotonic() + _FROZEN_S
    while time.monotonic() < deadline:
        found = consumer.record(operation.key.partition("#")[2])
        if found is not None and found.owner != operation.owner and found.status != "IN_PROGRESS":
            return
        time.sleep(_POLL_S)


def install(replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """Have every consumer that is made from now on inject faults.

    A test's ``replace`` is undone.
    """
    try:
        from carride_idempotency import Consumer  # noqa: PLC0415 - as above
        from carride_idempotency.protocol import decision  # noqa: PLC0415 - as above
        from carride_idempotency.stores.lean import LeanTransport  # noqa: PLC0415 - as above
        from carride_idempotency.stores.transport import BotocoreTransport  # noqa: PLC0415 - as above
    except ModuleNotFoundError:
        return

    injector = Injector()
    unprotected = os.environ.get("UNPROTECTED", "").split(",")
    replace(decision, "lease_until", injector.lease_until(decision.lease_until))
    for transport in (BotocoreTransport, LeanTransport):
        replace(transport, "__call__", injector.transport(transport.__call__))
    for name in ("event_handler", "batch_handler"):
        replace(Consumer, name, _with_faults(getattr(Consumer, name), injector))
    replace(Consumer, "__init__", _with_keys(Consumer.__init__, injector, unprotected))


def _with_faults(decorate: Callable[..., Any], injector: Injector) -> Callable[..., Any]:
    @functools.wraps(decorate)
    def decorator(consumer: Any, work: Callable[[Any, Any], Any]) -> Any:
        @functools.wraps(work)
        def handler(event: Any, operation: Any) -> Any:
            result = work(event, operation)
            injector.inject(consumer, event, operation)
            return result

        return decorate(consumer, handler)

    return decorator


def _key_of_its_own(_event: Any) -> str:
    """Return a key that no other delivery has."""
    return uuid.uuid4().hex


def _with_keys(
    initialise: Callable[..., None], injector: Injector, unprotected: list[str]
) -> Callable[..., None]:
    """Have keys learn of stalls, and give each delivery of unprotected consumers its own key."""

    @functools.wraps(initialise)
    def with_keys(consumer: Any, name: str, *args: Any, **options: Any) -> None:
        if name in unprotected:
            options["key"] = _key_of_its_own
        elif callable(options.get("key")):
            stock = options["key"]
            options["key"] = injector.key(name, stock)
        initialise(consumer, name, *args, **options)

    return with_keys


if __name__ == "__main__":
    install()
