"""Calls that follow after a delay."""

import asyncio
import threading
from collections.abc import Callable
from typing import Final

_LOOP: Final = asyncio.new_event_loop()  # one thread waits for every delayed call
threading.Thread(target=_LOOP.run_forever, name="delays", daemon=True).start()


def later[*A](delay: float, call: Callable[[*A], object], *arguments: *A) -> None:
    """Call a function that does not block, after so many seconds."""
    _LOOP.call_soon_threadsafe(_LOOP.call_later, delay, call, *arguments)
