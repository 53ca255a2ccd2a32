"""Guards of a handler under test.

It must not go by the real clock, or open an undeclared connection.
"""

import importlib
import socket
import time
import warnings
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch


class UndeclaredCallError(ConnectionError):
    """Raised inside a handler that opens a connection outside of any declared call."""


class Time:
    """Has ``time`` and ``datetime`` show the time of a world's clock during an invocation.

    Without the package time-machine they show the real time.
    """

    def __init__(self, clock: Callable[[], int], sleep: Callable[[float], None]) -> None:
        self._clock = clock
        self._sleep = sleep
        self._travellers: list[Any] = []

    @contextmanager
    def frozen(self) -> Generator[None]:
        """Show the clock's time inside the context, if time-machine is installed."""
        if find_spec("time_machine") is None:
            yield
            return
        time_machine = importlib.import_module("time_machine")
        with (
            time_machine.travel(self._clock() / 1000, tick=False) as traveller,
            patch.object(time, "sleep", self.wait),
        ):
            self._travellers.append(traveller)
            try:
                yield
            finally:
                self._travellers.pop()

    def follow(self) -> None:
        """Show what the clock shows now."""
        if self._travellers:
            self._travellers[-1].move_to(self._clock() / 1000, tick=False)

    def wait(self, seconds: float) -> None:
        """Move the clock, and show its time."""
        self._sleep(seconds)
        self.follow()


def warn_of_real_time() -> None:
    """Warn that nobody can move the handler's clock, because time-machine is not installed."""
    if find_spec("time_machine") is None:
        warnings.warn(
            "keys and values made of the time are not found without time-machine: "
            "pip install 'carride-idempotency[testing]'",
            stacklevel=3,
        )


@contextmanager
def refused_sockets(refuses: Callable[[str], bool]) -> Generator[None]:
    """Have ``refuses`` judge each connection by its peer inside the context.

    A connection that it refuses raises an UndeclaredCallError.
    """

    def guarded(method: Callable[..., Any], place: int) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            peer = str(args[place]) if len(args) > place else str(options)
            if refuses(peer):
                raise UndeclaredCallError(f"a connection to {peer} is not declared")
            return method(*args, **options)

        return call

    with ExitStack() as stack:
        for owner, name, place in (
            (socket.socket, "connect", 1),
            (socket.socket, "connect_ex", 1),
            (socket, "getaddrinfo", 0),
        ):
            stack.enter_context(patch.object(owner, name, guarded(getattr(owner, name), place)))
        yield
