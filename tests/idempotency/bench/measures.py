"""The measures. Each runs both sides by turns and returns rows, so that a busy machine disturbs both alike."""

import contextlib
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from aws_lambda_powertools.utilities.idempotency.exceptions import IdempotencyAlreadyInProgressError

from idempotency import BusyError
from idempotency.stores.transport import BotocoreTransport, botocore_transport
from tests.idempotency.bench.contestants import (
    EVENT,
    Handler,
    StubClient,
    batch,
    invocation,
    own_batch,
    own_handler,
    powertools_batch,
    powertools_client,
    powertools_handler,
)
from tests.idempotency.differential.world import ACCOUNT, World, world

ROOT: Final = Path(__file__).parents[3]
BATCH_SIZE: Final = 10
LATENCY_S: Final = 0.005


class Row(NamedTuple):
    """One measure of both sides, in ``unit``."""

    name: str
    unit: str
    powertools: float | None
    """None where Powertools has no such thing."""
    here: float
    most: float | None
    """What ``here`` may be at the most: a multiple of ``powertools``, or an amount where ``absolute``."""
    absolute: bool = False

    @property
    def ratio(self) -> float | None:
        """``here`` as a multiple of ``powertools``."""
        return self.here / self.powertools if self.powertools else None

    @property
    def met(self) -> bool:
        """Whether the target is met; a row without one has nothing to meet."""
        value = self.here if self.absolute else self.ratio
        return self.most is None or value is None or value <= self.most


# ── Round trips ───────────────────────────────────────────────────────────────────────────────────────────────────────


def round_trips() -> list[Row]:
    """Count the requests of each path."""
    rows = []
    paths = {"new": 2, "atomic new": 1, "duplicate": 1, "warm duplicate": 0, "busy": 1, "failure": 2}
    for path, most in paths.items():
        theirs = None if path == "atomic new" else float(_requests(path, _powertools_in))
        here = float(_requests(path, _here_in))
        rows.append(Row(f"round trips: {path}", "", theirs, here, most, absolute=True))
    return rows


def _powertools_in(place: World, path: str, work: Callable[[], object]) -> Handler:
    return powertools_handler(powertools_client(place.wire.session), work, cached=path == "warm duplicate")


def _here_in(place: World, path: str, work: Callable[[], object]) -> Handler:
    options = {"cached": path == "warm duplicate", "atomic": path == "atomic new"}
    return own_handler(botocore_transport(session=place.wire.session), work, **options, clock=place.now_ms)


def _requests(path: str, make: Callable[[World, str, Callable[[], object]], Handler]) -> int:
    """Count the requests of the delivery that the path is named after."""
    with world() as place:
        counted: list[int] = []

        def deliver(handler: Handler) -> None:
            before = len(place.wire.requests)
            with contextlib.suppress(ZeroDivisionError, IdempotencyAlreadyInProgressError, BusyError):
                handler(EVENT, place.invocation(30))
            counted.append(len(place.wire.requests) - before)

        work: Callable[[], object] = {"failure": lambda: 1 / 0, "busy": lambda: deliver(again)}.get(path, lambda: 0)
        again: Handler = make(place, path, lambda: 0)
        first = make(place, path, work)
        deliver(first)
        if "duplicate" in path:
            deliver(first)
        return counted[0] if path == "busy" else counted[-1]


# ── CPU ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def own_cpu(repetitions: int) -> list[Row]:
    """Measure the CPU time of each side over a client that answers at once."""
    with patch.dict(os.environ, ACCOUNT):
        theirs, here = _completed()
        stubs = {"new": (None, None), "duplicate": (theirs, here)}
        handlers = {("atomic new", "here"): own_handler(BotocoreTransport(StubClient(), 1.5), atomic=True)}
        for path, (checks, own) in stubs.items():
            handlers[path, "theirs"] = powertools_handler(StubClient(checks))
            handlers[path, "here"] = own_handler(BotocoreTransport(StubClient(own), 1.5))
        us = _cpu_us(handlers, calls=300, repetitions=repetitions)
    rows = [Row(f"own CPU: {path}", "µs", us[path, "theirs"], us[path, "here"], 0.4) for path in stubs]
    return [*rows, Row("own CPU: atomic new", "µs", None, us["atomic new", "here"], None)]


def _completed() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the item of a completed record of either side."""
    theirs, here = StubClient(), StubClient()
    powertools_handler(theirs)(EVENT, invocation())
    own_handler(BotocoreTransport(here, 1.5))(EVENT, invocation())
    return theirs.written, here.written


def _cpu_us[K](handlers: Mapping[K, Handler], *, calls: int, repetitions: int) -> dict[K, float]:
    """Return the median CPU time of one call of each handler."""
    times: dict[K, list[float]] = {name: [] for name in handlers}
    for repetition in range(repetitions + 1):
        gc.collect()
        gc.disable()  # otherwise one handler pays for the garbage of all
        for name, handler in handlers.items():
            context = invocation()
            before = time.process_time_ns()
            for _ in range(calls):
                handler(EVENT, context)
            spent = time.process_time_ns() - before
            if repetition:  # the first one warms up
                times[name].append(spent / calls / 1000)
        gc.enable()
    return {name: statistics.median(values) for name, values in times.items()}


# ── Start ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def start_up(repetitions: int) -> list[Row]:
    """Measure import, construction and memory, each time in a new process, from compiled modules."""
    with tempfile.TemporaryDirectory(prefix="carride-bench-") as cache:
        starts = [[_start(side, cache) for side in ("powertools", "here")] for _ in range(repetitions + 1)]
    measured = list(zip(*starts[1:], strict=True))  # the first one compiles

    def row(name: str, unit: str, what: str, most: float | None) -> Row:
        theirs, here = (statistics.median(start[what] for start in side) for side in measured)
        return Row(name, unit, theirs, here, most)

    return [
        row("import and construction", "ms", "ms", 0.3),
        row("memory of it", "KiB", "kib", None),
        row("modules that it imports", "", "modules", None),
    ]


def _start(side: str, cache: str) -> dict[str, float]:
    environment = {**os.environ, **ACCOUNT, "PYTHONPATH": str(ROOT / "layers/idempotency")}
    command = [sys.executable, str(Path(__file__).with_name("startup.py")), side]
    environment |= {"PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": ""}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    measured: dict[str, float] = json.loads(run.stdout)
    return measured


# ── Batch ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def batches(repetitions: int) -> list[Row]:
    """Measure the wall time of ten new records of one batch, with 5 ms for every round trip."""
    times: dict[str, list[float]] = {"theirs": [], "here": []}
    with patch.dict(os.environ, ACCOUNT):
        client = StubClient(latency_s=LATENCY_S)
        handlers = {"theirs": powertools_batch(client), "here": own_batch(BotocoreTransport(client, 1.5))}
        for repetition in range(repetitions + 1):
            for side, handler in handlers.items():
                event = batch(BATCH_SIZE, repetition)
                before = time.perf_counter()
                answer: Any = handler(event, invocation())
                spent = time.perf_counter() - before
                if answer["batchItemFailures"]:
                    raise RuntimeError(f"{side} failed new records: {answer}")
                if repetition:  # the first one warms up
                    times[side].append(spent * 1000)
    theirs, here = (min(times[side]) for side in ("theirs", "here"))
    return [Row("batch of 10 new records, 5 ms a round trip", "ms", theirs, here, 25.0, absolute=True)]
