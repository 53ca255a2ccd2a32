import threading
from collections.abc import Iterator

import pytest

from local.engine.queueing import DelayedQueue, QueueFullError
from tests.engine.support import until


class Handler:
    """Notes items, and keeps each in hand until it is let go."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.delays: dict[int, list[float]] = {}
        self.go = threading.Event()

    def __call__(self, item: int) -> float | None:
        """Handle an item: the next of its delays, or none."""
        self.seen.append(item)
        self.go.wait(5)
        if item < 0:
            raise ValueError("no")
        delays = self.delays.get(item)
        return delays.pop() if delays else None


@pytest.fixture
def handler() -> Iterator[Handler]:
    """A handler that lets everything go at the end."""
    made = Handler()
    yield made
    made.go.set()


def test_items_wait_for_a_worker_and_each_is_handled_once(handler: Handler) -> None:
    """As many are in hand as there are workers; what is beyond the limit is refused; the rest follows."""
    queue = DelayedQueue("test", handler, workers=2, limit=100)
    for item in range(100):
        queue.put(item)
    assert until(lambda: len(handler.seen) == 2)
    assert queue.pending == 100
    with pytest.raises(QueueFullError):
        queue.put(100)
    handler.go.set()
    assert until(lambda: queue.pending == 0)
    assert sorted(handler.seen) == list(range(100))


def test_an_item_comes_back_after_the_delay_its_handler_names(handler: Handler) -> None:
    """An item is handled until its handler names no delay; others are handled while it waits."""
    handler.go.set()
    handler.delays[1] = [0.02, 0.02]
    queue = DelayedQueue("test", handler, workers=1, limit=10)
    queue.put(1)
    queue.put(2)
    assert until(lambda: queue.pending == 0)
    assert handler.seen == [1, 2, 1, 1]


def test_a_handler_that_fails_ends_its_item_only(handler: Handler, caplog: pytest.LogCaptureFixture) -> None:
    """An error that escapes from the handler is logged; the item is done and the next one is handled."""
    handler.go.set()
    queue = DelayedQueue("test", handler, workers=1, limit=2)
    queue.put(-1)
    queue.put(2)
    assert until(lambda: queue.pending == 0)
    assert handler.seen == [-1, 2]
    assert "an item was given up" in caplog.text


def test_a_closed_queue_forgets(handler: Handler) -> None:
    """After closing, nothing is pending and an item in hand does not come back."""
    handler.delays[1] = [0.0]
    queue = DelayedQueue("test", handler, workers=1, limit=5)
    queue.put(1)
    queue.put(2)
    assert until(lambda: handler.seen == [1])
    queue.close()
    handler.go.set()
    assert until(lambda: not handler.delays[1])
    assert (queue.pending, handler.seen) == (0, [1])
