"""Runs random interleavings of operations and forks in real processes.

`test_forks.py` starts it, and judges what it has left: ``interleavings.py URL TRANSPORT FOLDER
FIRST COUNT``. All that is random in an interleaving follows from its number. A process delivers
keys over every way in, in its own thread and beside it, and forks children that do the same. Lines
in files of the folder, which outlive the processes, say what ran and what went wrong.
"""

import asyncio
import json
import os
import random
import signal
import ssl
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from carride_idempotency import (
    AsyncOperation,
    BusyError,
    Consumer,
    DynamoDBStore,
    Operation,
    Policy,
    Store,
    Update,
    open_store,
)
from carride_idempotency.stores.lean import Guarded, LeanTransport
from carride_idempotency.stores.signing import Credentials
from carride_idempotency.stores.transport import Transport, botocore_transport
from carride_idempotency.testing import eventbridge_event, lambda_context, sqs_event

PATIENCE_S: Final = 60
"""How long a key is waited for: its lease may have to end first."""
LONGEST_LIFE_S: Final = 3 * PATIENCE_S
"""After which a process is ended that has not ended by itself: it may wait for several keys."""
DEEPEST: Final = 2
RECORDS: Final = "Records"
EFFECTS: Final = "Effects"
WAYS: Final = ("plain", "awaited", "loop", "batch")
_TIMEOUTS: Final[dict[str, Any]] = {"connect_timeout_s": 20, "read_timeout_s": 20}
"""Longer than a loaded machine pauses, and short enough for another try."""


def store_at(url: str, kind: str) -> Store:
    """Open a store: over Valkey, or over DynamoDB by one of the transports."""
    if kind == "valkey":
        return open_store(url)
    return DynamoDBStore(RECORDS, transport=transport_to(url, kind))


def transport_to(url: str, kind: str) -> Transport:
    """Return a transport of a kind: ``lean``, ``botocore``, or ``auto``, as by the environment."""
    os.environ["AWS_ENDPOINT_URL"] = url  # for botocore
    trusted = os.environ.get("AWS_CA_BUNDLE")
    lean = LeanTransport(
        url,
        "us-east-1",
        lambda **_: Credentials("test", "test"),
        tls=lambda _: ssl.create_default_context(cafile=trusted),
        **_TIMEOUTS,
    )
    if kind == "lean":
        return lean
    if kind == "auto":
        return Guarded(lean, partial(botocore_transport, **_TIMEOUTS))
    return botocore_transport(**_TIMEOUTS)


class Ways:
    """Every way in, over consumers that were made before the first fork, as by an import."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._folder = folder
        self._transactional = store.transactional
        policy = Policy(busy="wait", wait_limit=PATIENCE_S)
        events: Consumer = Consumer("events", store, key="detail.id", policy=policy)
        batches: Consumer = Consumer("batches", store, key="id", policy=policy)

        @events.function(key="key")
        def plain(key: str, operation: Operation | None = None) -> str:
            return self._work(operation, key)

        @events.function(key="key")
        async def awaited(key: str, operation: AsyncOperation | None = None) -> str:
            await asyncio.sleep(0)
            return self._work(operation, key)

        @events.event_handler
        async def loop(event: Any, operation: AsyncOperation) -> None:
            await asyncio.sleep(0)
            self._work(operation, event["detail"]["id"])

        @batches.batch_handler
        def batch(event: Any, operation: Operation) -> None:
            self._work(operation, event["id"])

        self._plain = plain
        self._awaited = awaited
        self._loop = loop
        self._batch = batch

    def note(self, file: str, line: str) -> None:
        """Append a line to a file of the folder."""
        with (self._folder / file).open("a", encoding="utf-8") as lines:
            lines.write(f"{line}\n")

    def deliver(self, way: str, key: str) -> None:
        """Deliver a key until it is answered."""
        give_up = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up:
            with suppress(BusyError):
                if self._answers(way, f"{way}-{key}"):
                    return
            time.sleep(0.002)
        raise TimeoutError(f"{way} {key} is not answered")

    def _answers(self, way: str, key: str) -> bool:
        """Deliver a key once; return False, or raise BusyError, if it is to come again."""
        context = lambda_context(timeout_s=PATIENCE_S)
        if way == "plain":
            self.note("answers", json.dumps([key, self._plain(key)]))
        elif way == "awaited":
            self.note("answers", json.dumps([key, asyncio.run(self._awaited(key))]))
        elif way == "loop":
            self._loop(eventbridge_event({"id": key}), context)
        else:
            event = sqs_event(*({"id": f"{key}-{number}"} for number in range(2)))
            return not self._batch(event, context)["batchItemFailures"]
        return True

    def _work(self, operation: Operation | AsyncOperation | None, key: str) -> str:
        assert operation is not None
        self.note("runs", key)
        if self._transactional:
            effect = Update(EFFECTS, {"id": key}, "ADD charges :one", None, {":one": 1})
            operation.write(effect)
        return f"{key} by {os.getpid()}"


class Interleaving:
    """The steps of one process, and the children that it forks."""

    def __init__(self, ways: Ways, name: str, seed: float) -> None:
        self._ways = ways
        self._name = name
        self._chance = _chance(seed)
        self._keys = range(self._chance.randint(1, 3))
        self._depth = 0
        self._beside: list[threading.Thread] = []
        self._children: list[int] = []

    def run(self) -> None:
        """Take steps, and wait for the end of what they began."""
        for _ in range(self._chance.randint(1, 3)):
            self._chance.choice([self._here, self._here, self._in_a_thread, self._fork])()
        if not self._depth and not self._children:
            self._fork()
            self._here()
        for thread in self._beside:
            thread.join()
        for child in self._children:
            _, status = os.waitpid(child, 0)
            if status:
                code = os.waitstatus_to_exitcode(status)
                self._note_error(f"a child ended with {code}")

    def _here(self) -> None:
        self._deliver(self._chance.random())

    def _in_a_thread(self) -> None:
        thread = threading.Thread(target=self._deliver, args=(self._chance.random(),))
        thread.start()
        self._beside.append(thread)

    def _deliver(self, seed: float) -> None:
        chance = _chance(seed)
        with self._noting_errors():
            self._ways.deliver(chance.choice(WAYS), f"{self._name}-{chance.choice(self._keys)}")

    def _fork(self) -> None:
        """Fork one or two children, which begin at the same time."""
        if self._depth == DEEPEST:
            return
        waiting, begin = os.pipe()
        for seed in [self._chance.random() for _ in range(self._chance.randint(1, 2))]:
            child = os.fork()
            if not child:
                signal.alarm(LONGEST_LIFE_S)
                os.close(begin)
                os.read(waiting, 1)
                os.close(waiting)
                self._live_as_child(seed)
            self._children.append(child)
        os.close(begin)
        os.close(waiting)

    def _live_as_child(self, seed: float) -> None:
        """Run as a child. Most end as those of multiprocessing, some as a server's workers."""
        self._chance = _chance(seed)
        self._depth += 1
        self._beside = []
        self._children = []
        ends_at_once = self._chance.random() < 0.9
        with self._noting_errors():
            self.run()
        if ends_at_once:
            os._exit(0)
        raise SystemExit(0)

    @contextmanager
    def _noting_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception:  # noqa: BLE001 - who reads the file judges it
            self._note_error(traceback.format_exc())

    def _note_error(self, what: str) -> None:
        self._ways.note("errors", json.dumps(f"{self._name}: {what}"))


def _chance(seed: float) -> random.Random:
    return random.Random(seed)  # noqa: S311 - an experiment, not a secret


def main(url: str, kind: str, folder: str, first: str, count: str) -> None:
    """Run some interleavings, one after the other, in one first process."""
    warnings.simplefilter("ignore", DeprecationWarning)  # about forks of a process with threads
    ways = Ways(store_at(url, kind), Path(folder))
    for number in range(int(first), int(first) + int(count)):
        signal.alarm(LONGEST_LIFE_S + PATIENCE_S)
        Interleaving(ways, str(number), number).run()
        ways.note("ended", str(number))


if __name__ == "__main__":
    main(*sys.argv[1:])
