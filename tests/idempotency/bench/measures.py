"""The measures. Each runs both sides in turn, so that a busy machine disturbs both alike."""

import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import zip_longest
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar, Final, NamedTuple
from unittest.mock import patch

from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, IdempotencyConfig, idempotent
from botocore.exceptions import ClientError

from idempotency import Consumer, DynamoDBStore, Policy
from idempotency.clock import epoch_ms
from idempotency.stores.transport import BotocoreTransport
from idempotency.testing import Invocation
from tests.idempotency.differential.world import ACCOUNT

type Handler = Callable[[dict[str, Any], Any], object]

ROOT: Final = Path(__file__).parents[3]
KEY: Final = "detail.idempotencyid"
RESULT: Final = {"accepted": True}
EVENT: Final[dict[str, Any]] = json.loads((ROOT / "events/ride_history_live.json").read_text(encoding="utf-8"))
CALLS: Final = 300


class Row(NamedTuple):
    """One measure of both sides, in ``unit``."""

    name: str
    unit: str
    powertools: float
    here: float
    most: float | None
    """The target: at most this multiple of ``powertools``."""

    @property
    def ratio(self) -> float:
        """``here`` as a multiple of ``powertools``."""
        return self.here / self.powertools

    @property
    def met(self) -> bool:
        """Whether the target is met, if there is one."""
        return self.most is None or self.ratio <= self.most


class StubClient:
    """A DynamoDB client that answers at once: writes succeed, or the ``completed`` item refuses them."""

    def __init__(self, completed: Mapping[str, Any] | None = None) -> None:
        self.completed = completed
        self.written: dict[str, Any] = {}
        body = {"Error": {"Code": "ConditionalCheckFailedException", "Message": "refused"}, "Item": completed}
        self._refusal = ClientError(body, "PutItem")  # type: ignore[arg-type] # the item is in the real answer too

    def put_item(self, **request: Any) -> dict[str, Any]:
        """Write, or refuse."""
        if self.completed is not None:
            raise self._refusal.with_traceback(None)  # else each raise would make its traceback longer
        self.written = request["Item"]
        return {}

    def update_item(self, **request: Any) -> dict[str, Any]:
        """Complete a record of Powertools'."""
        values = request["ExpressionAttributeValues"]
        names = {"status": ":status", "data": ":response_data", "expiration": ":expiry"}
        self.written = self.written | {name: values[value] for name, value in names.items()}
        return {}

    get_item = query = transact_write_items = update_item


def powertools_handler(client: Any) -> Handler:
    """Make Powertools' handler, which compares payloads as this layer always does."""
    config = IdempotencyConfig(event_key_jmespath=KEY, payload_validation_jmespath="detail.data")

    @idempotent(persistence_store=DynamoDBPersistenceLayer("Powertools", boto3_client=client), config=config)
    def handler(event: dict[str, Any], context: Any) -> object:
        return RESULT

    return handler


def own_handler(client: Any) -> Handler:
    """Make this layer's handler."""
    store = DynamoDBStore("Idempotency", transport=BotocoreTransport(client, 1.5))
    consumer = Consumer("bench", store, key=KEY, policy=Policy(warm_cache=0), region="us-east-1")
    return consumer.event_handler(lambda event, operation: RESULT)


def own_cpu(repetitions: int) -> list[Row]:
    """Measure the median CPU time of each side, per call, over a client that answers at once."""
    times: dict[tuple[str, int], list[float]] = {}
    with patch.dict(os.environ, ACCOUNT):
        sides, context = (powertools_handler, own_handler), Invocation(epoch_ms)
        clients = [StubClient() for _ in sides]
        for make, client in zip(sides, clients, strict=True):
            make(client)(EVENT, context)
        handlers = {("new", side): make(StubClient()) for side, make in enumerate(sides)}
        handlers |= {("duplicate", side): make(StubClient(clients[side].written)) for side, make in enumerate(sides)}
        for repetition in range(repetitions + 1):
            gc.collect()
            gc.disable()  # otherwise one handler pays for the garbage of all
            for name, handler in handlers.items():
                context = Invocation(epoch_ms)
                before = time.process_time_ns()
                for _ in range(CALLS):
                    handler(EVENT, context)
                spent = time.process_time_ns() - before
                if repetition:  # the first one warms up
                    times.setdefault(name, []).append(spent / CALLS / 1000)
            gc.enable()
    us = {name: statistics.median(values) for name, values in times.items()}
    return [Row(f"own CPU: {path}", "µs", us[path, 0], us[path, 1], 0.4) for path in ("new", "duplicate")]


class _DynamoDB(BaseHTTPRequestHandler):
    """As much of DynamoDB as both sides need: a completed item refuses to be written again."""

    protocol_version = "HTTP/1.1"
    items: ClassVar[dict[str, dict[str, Any]]] = {}

    def do_POST(self) -> None:
        """Answer a request."""
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        key = request.get("Item", request.get("Key"))["idempotencyKey"]["S"]
        stored = self.items.get(key, {})
        status = 200
        answer: dict[str, Any] = {}
        if self.headers["x-amz-target"].endswith("GetItem"):
            answer = {"Item": stored} if stored else {}
        elif stored.get("status", {}).get("S") == "COMPLETED":
            status, answer = 400, {"__type": "#ConditionalCheckFailedException", "message": "refused", "Item": stored}
        elif "Item" in request:
            self.items[key] = request["Item"]
        else:
            values = request["ExpressionAttributeValues"]
            names = {"status": ":status", "data": ":response_data", "expiration": ":expiry"}
            self.items[key] = stored | {name: values[value] for name, value in names.items()}
        body = json.dumps(answer).encode()
        lines = (f"x-amz-crc32: {zlib.crc32(body)}", f"content-length: {len(body)}", "", "")
        head = "\r\n".join((f"HTTP/1.1 {status} Answer", "content-type: application/x-amz-json-1.0", *lines))
        self.wfile.write(head.encode() + body)

    def log_message(self, *_: object) -> None:
        """Be silent."""


def whole(repetitions: int) -> list[Row]:
    """Measure whole processes of both sides over HTTP on this machine, from compiled modules."""
    sides = ("powertools", "shared", "here")
    with (
        tempfile.TemporaryDirectory(prefix="carride-bench-") as cache,
        ThreadingHTTPServer(("127.0.0.1", 0), _DynamoDB) as server,
    ):
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        try:
            runs = [
                [_start(side, cache, "wire.py", AWS_ENDPOINT_URL=url) for side in sides] for _ in range(repetitions + 1)
            ]
        finally:
            server.shutdown()
    medians = [
        {name: statistics.median(run[name] for run in side) for name in side[0]}
        for side in zip(*runs[1:], strict=True)  # the first one compiles
    ]
    rows = []
    for number, which, targets in ((0, "as documented", (0.25, 0.15, 0.35, 0.65)), (1, "one tuned client", (0.33,))):
        measures = (
            ("cold", "cold start and first event", "ms"),
            ("new", "CPU of a new event", "µs"),
            ("duplicate", "CPU of a duplicate", "µs"),
            ("memory", "memory", "MiB"),
        )
        for (name, what, unit), target in zip_longest(measures, targets):
            rows.append(Row(f"{what}, {which}", unit, medians[number][name], medians[2][name], target))
    return rows


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


def _start(side: str, cache: str, script: str = "startup.py", **variables: str) -> dict[str, float]:
    # Nothing else of this machine's environment: proxies and profiles would decide how DynamoDB is reached.
    environment = {"PATH": os.environ["PATH"], **ACCOUNT, "PYTHONPATH": str(ROOT / "layers/idempotency"), **variables}
    environment |= {"PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, str(Path(__file__).with_name(script)), side]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    measured: dict[str, float] = json.loads(run.stdout)
    return measured
