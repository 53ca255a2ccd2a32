"""What an operation costs in an event loop, beside the same one without: wall time."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, Final

from carride_idempotency import Consumer, MemoryStore

OPERATIONS: Final = 500
AT_ONCE: Final = 100
STORE_S: Final = 0.005
"""How long a slow store takes for each step, as DynamoDB does."""
BURST: Final = 400
BURST_STORE_S: Final = 0.3
"""How long a store takes for each step that is far away or throttles."""
PAUSE_S: Final = 0.001
"""How often the loop looks at the clock while slow stores keep threads busy."""


class _SlowStore(MemoryStore):
    def __init__(self, step_s: float) -> None:
        super().__init__()
        self._step_s = step_s

    def put_if_absent(self, *args: Any, **options: Any) -> Any:
        time.sleep(self._step_s)
        return super().put_if_absent(*args, **options)

    def update_if_owner(self, *args: Any, **options: Any) -> Any:
        time.sleep(self._step_s)
        return super().update_if_owner(*args, **options)


def lines(repetitions: int) -> list[str]:
    """Measure, and return what `make bench` prints of it. Times are medians of the repetitions."""
    turns = range(max(1, repetitions))
    plain_ms = statistics.median(_plain_ms() for _ in turns)
    async_ms = statistics.median(asyncio.run(_async_ms()) for _ in turns)
    together_ms = statistics.median(asyncio.run(_together_ms()) for _ in turns)
    slow_ms, pause_ms = asyncio.run(_slow())
    renewal_ms, commit_ms = asyncio.run(_burst())
    times = (
        f"plain {plain_ms:.2f} ms, async {async_ms:.2f} ms, "
        f"async and {AT_ONCE} at once {together_ms:.2f} ms"
    )
    slow = f"{AT_ONCE} async ones over a store that takes {1000 * STORE_S:.0f} ms for each step"
    stands = f"the loop stands still for at most {pause_ms:.1f} ms"
    burst = f"{BURST} claims at once over a store that takes {1000 * BURST_STORE_S:.0f} ms"
    running = (
        f"a running key is renewed in {renewal_ms:.0f} ms, and committed in {commit_ms:.0f} ms"
    )
    return [
        f"an operation of a function over a store in memory, wall time: {times}",
        f"{slow}: {slow_ms:.0f} ms in all; {stands}",
        f"{burst}: {running}",
    ]


def _consumer(store: Any = None) -> Consumer[Any]:
    return Consumer("bench", store or MemoryStore())


def _plain_ms() -> float:
    @_consumer().function(key="key", name="plain")
    def work(key: str) -> None: ...

    began = time.perf_counter()
    for number in range(OPERATIONS):
        work(f"k{number}")
    return _ms(began) / OPERATIONS


def _async_work(store: Any = None) -> Callable[[str], Awaitable[None]]:
    @_consumer(store).function(key="key", name="async")
    async def work(key: str) -> None: ...

    return work


async def _async_ms() -> float:
    work = _async_work()
    began = time.perf_counter()
    for number in range(OPERATIONS):
        await work(f"k{number}")
    return _ms(began) / OPERATIONS


async def _together_ms() -> float:
    work = _async_work()
    began = time.perf_counter()
    for first in range(0, OPERATIONS, AT_ONCE):
        await asyncio.gather(*[work(f"k{number}") for number in range(first, first + AT_ONCE)])
    return _ms(began) / OPERATIONS


async def _slow() -> tuple[float, float]:
    """Return how long all operations take, and how late the loop was at the most."""
    work = _async_work(_SlowStore(STORE_S))
    keys = (f"k{number}" for number in count())
    began = time.perf_counter()
    operations = asyncio.gather(*[work(next(keys)) for _ in range(AT_ONCE)])
    longest_ms = 0.0
    while not operations.done():
        turn = time.perf_counter()
        await asyncio.sleep(PAUSE_S)
        longest_ms = max(longest_ms, _ms(turn) - 1000 * PAUSE_S)
    await operations
    return _ms(began), longest_ms


async def _burst() -> tuple[float, float]:
    """Return how long a heartbeat and the commit of a running key take while many others begin."""
    consumer = _consumer(_SlowStore(BURST_STORE_S))

    async def begin(key: str) -> None:
        async with consumer.operation(key):
            pass

    async with consumer.operation("running") as block:
        claims = [asyncio.create_task(begin(f"k{number}")) for number in range(BURST)]
        await asyncio.sleep(0)
        began = time.perf_counter()
        await block.operation.heartbeat()
        renewal_ms = _ms(began)
        began = time.perf_counter()
    commit_ms = _ms(began)
    await asyncio.gather(*claims)
    return renewal_ms, commit_ms


def _ms(began: float) -> float:
    return 1000 * (time.perf_counter() - began)
