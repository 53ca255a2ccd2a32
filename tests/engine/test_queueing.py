import threading

import pytest

from local.engine.queueing import DelayedQueue
from tests.engine.support import until


def test_a_handler_that_fails_ends_its_item_only(caplog: pytest.LogCaptureFixture) -> None:
    """An error that escapes from the handler is logged; the item is done and the next one is handled."""
    handled = []

    def handle(item: int) -> None:
        handled.append(item)
        if item < 0:
            raise ValueError("no")

    queue = DelayedQueue("test", handle, workers=1, limit=2)
    queue.put(-1)
    queue.put(2)
    assert until(lambda: queue.pending == 0)
    assert handled == [-1, 2]
    assert "an item was given up" in caplog.text


def test_a_closed_queue_forgets() -> None:
    """After closing, nothing is pending and an item in hand does not come back."""
    handled, go = [], threading.Event()

    def handle(item: int) -> float:
        handled.append(item)
        go.wait(5)
        return 0.0

    queue = DelayedQueue("closing", handle, workers=1, limit=5)
    queue.put(1)
    queue.put(2)
    assert until(lambda: handled == [1])
    queue.close()
    go.set()
    assert until(lambda: not any(thread.name.startswith("closing") for thread in threading.enumerate()))
    assert (queue.pending, handled) == (0, [1])
