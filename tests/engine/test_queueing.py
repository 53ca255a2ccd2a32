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
