import threading
from collections.abc import Callable

import pytest

from local.engine.queueing import DelayedQueue, QueueFullError

PATIENCE = 5.0


def collecting(count: int) -> tuple[Callable[[int], None], list[int], threading.Event]:
    """A handler that collects items, what it collected, and an event that is set once there are so many."""
    seen: list[int] = []
    done = threading.Event()

    def handle(item: int) -> None:
        seen.append(item)
        if len(seen) == count:
            done.set()

    return handle, seen, done


def test_every_item_is_handled_once() -> None:
    """Each of many items reaches the handler once, and then nothing is pending."""
    handle, seen, done = collecting(1000)
    queue = DelayedQueue("test", handle, workers=4, limit=1000)
    for item in range(1000):
        queue.put(item)
    assert done.wait(PATIENCE)
    assert sorted(seen) == list(range(1000))


def test_an_item_comes_back_after_the_delay_its_handler_names() -> None:
    """An item is handled until its handler names no delay; others are handled while it waits."""
    seen: list[int] = []
    done = threading.Event()

    def handle(item: int) -> float | None:
        seen.append(item)
        if item == 1 and seen.count(1) < 3:
            return 0.02
        if item == 1:
            done.set()
        return None

    queue = DelayedQueue("test", handle, workers=1, limit=10)
    queue.put(1)
    queue.put(2)
    assert done.wait(PATIENCE)
    assert seen == [1, 2, 1, 1]


def test_no_more_items_are_in_hand_than_there_are_workers() -> None:
    """At most as many items as there are workers are handled at a time, and as many are."""
    both = threading.Barrier(2)
    lock = threading.Lock()
    inside = most = 0
    handled = threading.Semaphore(0)

    def handle(_item: int) -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        both.wait(PATIENCE)
        with lock:
            inside -= 1
        handled.release()

    queue = DelayedQueue("test", handle, workers=2, limit=10)
    for item in range(6):
        queue.put(item)
    assert all(handled.acquire(timeout=PATIENCE) for _ in range(6))
    assert most == 2


def test_a_full_queue_refuses() -> None:
    """Items in hand, waiting and queued count; one beyond the limit is refused."""
    go = threading.Event()
    taken = threading.Event()

    def handle(_item: int) -> None:
        taken.set()
        go.wait(PATIENCE)

    queue = DelayedQueue("test", handle, workers=1, limit=2)
    queue.put(1)
    queue.put(2)
    assert taken.wait(PATIENCE)
    with pytest.raises(QueueFullError):
        queue.put(3)
    assert queue.pending == 2
    go.set()


def test_a_handler_that_fails_ends_its_item_only(caplog: pytest.LogCaptureFixture) -> None:
    """An error that escapes from the handler is logged; the item is done and the next one is handled."""
    collect, seen, done = collecting(1)

    def handle(item: int) -> None:
        if item == 1:
            raise ValueError("no")
        collect(item)

    queue = DelayedQueue("test", handle, workers=1, limit=2)
    queue.put(1)
    queue.put(2)
    assert done.wait(PATIENCE)
    assert seen == [2]
    assert "an item was given up" in caplog.text


def test_a_closed_queue_forgets() -> None:
    """After closing, nothing is pending and an item in hand does not come back."""
    taken, go, ended = threading.Event(), threading.Event(), threading.Event()
    seen: list[int] = []

    def handle(item: int) -> float:
        seen.append(item)
        taken.set()
        go.wait(PATIENCE)
        ended.set()
        return 0.0

    queue = DelayedQueue("test", handle, workers=1, limit=5)
    queue.put(1)
    queue.put(2)
    assert taken.wait(PATIENCE)
    queue.close()
    go.set()
    assert ended.wait(PATIENCE)
    assert queue.pending == 0
    assert seen == [1]
