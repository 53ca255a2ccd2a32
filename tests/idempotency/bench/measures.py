"""The measures. Each runs both sides by turns and returns rows, so that a busy machine disturbs both alike."""

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

import boto3

from idempotency.stores.transport import BotocoreTransport, botocore_transport
from tests.idempotency.bench.contestants import (
    EVENT,
    Handler,
    StubClient,
    invocation,
    own_handler,
    powertools_handler,
)
from tests.idempotency.differential.world import ACCOUNT, World, world

ROOT: Final = Path(__file__).parents[3]


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


def round_trips(_: int) -> list[Row]:
    """Count the requests of each path."""
    rows = []
    for path, most in {"new": 2, "atomic new": 1, "duplicate": 1, "warm duplicate": 0}.items():
        theirs = None if "atomic" in path else _requests(path, _powertools_in)
        rows.append(Row(f"round trips: {path}", "", theirs, _requests(path, _here_in), most, absolute=True))
    return rows


def _powertools_in(place: World, path: str) -> Handler:
    client = boto3.session.Session(botocore_session=place.wire.session).client("dynamodb")
    return powertools_handler(client, cached="warm" in path)


def _here_in(place: World, path: str) -> Handler:
    transport = botocore_transport(session=place.wire.session)
    return own_handler(transport, cached="warm" in path, atomic="atomic" in path, clock=place.now_ms)


def _requests(path: str, make: Callable[[World, str], Handler]) -> float:
    """Count the requests of the delivery that the path is named after."""
    with world() as place:
        handler = make(place, path)
        if "duplicate" in path:
            handler(EVENT, place.invocation())
        before = len(place.wire.requests)
        handler(EVENT, place.invocation())
        return len(place.wire.requests) - before


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
