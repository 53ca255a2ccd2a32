"""The measures. Each runs its sides in turn, so that a busy machine disturbs all alike."""

import json
import os
import statistics
import subprocess
import sys
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final, NamedTuple

from msgspec.json import encode
from msgspec.structs import replace

from carride.events import SOURCE, RideEvent, parse_event
from carride_idempotency.stores.transport import ServiceError
from conftest import ACCOUNT, FUNCTION_ENVIRONMENT
from local.local_aws import LocalAws
from local.simulated_gateway import Books, GatewayServer
from tests.functions.world import World
from tools.costs import bill

ROOT: Final = Path(__file__).parents[2]
LAYERS: Final = ("IdempotencyLayer", "CarRideLayer")
"""The layers of every consumer.

SigV4aLayer is the API's, in two regions: its library slows botocore down.
"""
SIDES: Final = ("here", "powertools", "shared", "bare")
FUNCTIONS: Final = ("ride_history", "dispatch", "payment", "carride_api")
EVENTS: Final = 100
"""The new events of a process after its first."""
BATCH: Final = 10
"""The events of a delivery to dispatch, which reads from a queue; the other functions get one at a
time."""
PACKAGES: Final = {
    "ride_history": "RideHistoryFunction",
    "dispatch": "DispatchFunction",
    "payment": "PaymentFunction",
    "carride_api": "CarRideApiFunction",
}
OPERATIONS: Final = 16
"""Of a ride: four requests to the API and twelve deliveries to consumers."""


MOST_BARE_COLD: Final = 1.6
MOST_BARE_NEW: Final = 3.0
MOST_BARE_DUPLICATE: Final = 2.5
"""The targets beside the same functions bare: docs/adr/0024 explains each difference."""
MOST_UNITS: Final = 84
TIMELINE_UNITS: Final = 10
"""Of eight updates; an item of more than 1 KB costs two units."""


class Row(NamedTuple):
    """One measure in ``unit``.

    Here, with Powertools as documented, with Powertools over one shared client, and bare.
    """

    name: str
    unit: str
    here: float
    powertools: float
    shared: float | None = None
    most: float | None = None
    """The target: at most this multiple of ``powertools``."""
    most_shared: float | None = None
    """The same for ``shared``."""
    bare: float | None = None
    most_bare: float | None = None
    """The same for ``bare``."""

    @property
    def ratios(self) -> tuple[tuple[float, float | None], ...]:
        """``here`` as a multiple of each other side, with its target."""
        sides = (
            (self.powertools, self.most),
            (self.shared, self.most_shared),
            (self.bare, self.most_bare),
        )
        return tuple((self.here / amount, most) for amount, most in sides if amount is not None)

    @property
    def met(self) -> bool:
        return all(most is None or ratio <= most for ratio, most in self.ratios)


class _DynamoDB(BaseHTTPRequestHandler):
    """The tables of a world over HTTP, whose cars are always free."""

    protocol_version = "HTTP/1.1"
    world: World

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "TransactItems" in request:
            actions = [(each, *each.values()) for each in request["TransactItems"]]
            request["TransactItems"] = [
                each for each, action in actions if action["TableName"] != "cars"
            ]
        answer: Mapping[str, Any]
        try:
            status = 200
            answer = self.world.dynamodb(self.headers["x-amz-target"].partition(".")[2], request)
        except ServiceError as error:
            status, answer = 400, {"__type": f"#{error.code}", "message": str(error), **error.body}
        body = json.dumps(answer).encode()
        lines = (f"x-amz-crc32: {zlib.crc32(body)}", f"content-length: {len(body)}", "", "")
        head = "\r\n".join(
            (f"HTTP/1.1 {status} Answer", "content-type: application/x-amz-json-1.0", *lines)
        )
        self.wfile.write(head.encode() + body)

    def log_message(self, *_: object) -> None:
        """Be silent."""


def consumers(repetitions: int, functions: Iterable[str] = FUNCTIONS) -> list[Row]:
    """Measure each consumer in processes of its own over HTTP, from the packages of `sam build`.

    Without ``repetitions`` the numbers are those of the first processes, which compile botocore.
    """
    with LocalAws() as cloud:
        cloud.build()
    world = World()
    world.park(*(f"car_{number:02d}" for number in range(8)))
    world.dynamodb.inserted = lambda *_: None  # there is no bus
    handler = type("Handler", (_DynamoDB,), {"world": world})
    rows = []
    with (
        LocalAws.built() as packages,
        ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        GatewayServer(Books()) as gateway,
    ):
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        variables = {
            **ACCOUNT,
            **FUNCTION_ENVIRONMENT,
            "AWS_LAMBDA_FUNCTION_NAME": "payments",
            "PATH": os.environ["PATH"],
            "PYTHONPATH": ":".join(
                map(str, [*(packages / layer / "python" for layer in LAYERS), ROOT])
            ),
            "IDEMPOTENCY_TRANSPORT": "lean",
            "AWS_ENDPOINT_URL_DYNAMODB": url,
            "PAYMENT_GATEWAY_URL": gateway.url,
        }
        try:
            for function in functions:
                package = packages / PACKAGES[function]
                environment = {**variables, "PYTHONPATH": f"{package}:{variables['PYTHONPATH']}"}
                runs = [
                    [_run(side, function, environment) for side in SIDES]
                    for _ in range(1 + repetitions)
                ]
                # The first ones compile.
                rows += _rows(function, list(zip(*(runs[1:] or runs), strict=True)))
        finally:
            server.shutdown()
    return rows


def deliveries(function: str) -> Iterator[Mapping[str, Any]]:
    """Yield what a process is given, about rides and customers of their own.

    One event, and then all the others. Payment asks its gateway what a customer has paid lately: of
    one customer that would be every ride before.
    """
    if function == "carride_api":
        yield from bookings()
        return
    sample = json.loads((ROOT / f"events/{function}_live.json").read_text(encoding="utf-8"))
    if function == "dispatch":
        sample = json.loads(sample["Records"][0]["body"])
    known = parse_event(sample)

    def event() -> dict[str, Any]:
        new = RideEvent.of(
            replace(
                known.data,
                order_id=f"order_{uuid.uuid4().hex}",
                customer_id=f"customer_{uuid.uuid4().hex}",
            ),
            source=SOURCE,
            time=known.time,
        )
        return {**sample, "detail": new.to_detail()}

    if function != "dispatch":
        yield from (event() for _ in range(1 + EVENTS))
        return
    sent = {"ApproximateReceiveCount": "1", "SentTimestamp": str(int(time.time() * 1000))}
    more = {
        "receiptHandle": "r",
        "attributes": sent,
        "messageAttributes": {},
        "eventSource": "aws:sqs",
    }
    for size in (1, *[BATCH] * (EVENTS // BATCH)):
        yield {
            "Records": [
                {"messageId": str(uuid.uuid4()), "body": encode(event()).decode(), **more}
                for _ in range(size)
            ]
        }


def bookings() -> Iterator[Mapping[str, Any]]:
    """Yield requests to the API, each with a key of its own."""
    sample = json.loads((ROOT / "events/carride_api/book.json").read_text(encoding="utf-8"))
    for _ in range(1 + EVENTS):
        yield {**sample, "headers": {**sample["headers"], "idempotency-key": str(uuid.uuid4())}}


def _run(side: str, function: str, environment: Mapping[str, str]) -> dict[str, float]:
    # Nothing else of this machine's environment: proxies and profiles would decide how DynamoDB is
    # reached.
    command = [sys.executable, str(Path(__file__).with_name("wire.py")), side, function]
    given = encode([*deliveries(function)])
    run = subprocess.run(command, env=environment, input=given, stdout=subprocess.PIPE, check=True)
    measured: dict[str, float] = json.loads(run.stdout)
    return measured


EVENT_OF: Final = {"dispatch": "batch of 10", "carride_api": "booking"}
MOST_NEW: Final = {"ride_history": 0.15, "dispatch": 0.30}
"""Most of an event of payment's is what the gateway is asked, which is the same on every side."""
MOST_DUPLICATE: Final = {"ride_history": 0.35, "dispatch": 0.35, "payment": 0.35}
"""A second booking is made again up to its write, which is refused; Powertools reads first."""


class Measure(NamedTuple):
    """What is measured, and its targets: at most these multiples of the other sides."""

    name: str
    unit: str
    most: float | None = None
    most_shared: float | None = None
    most_bare: float | None = None


def _rows(function: str, sides: list[tuple[dict[str, float], ...]]) -> list[Row]:
    event = EVENT_OF.get(function, "new event")
    duplicate = "batch of 10 duplicates" if function == "dispatch" else "duplicate"
    measures = {
        "cold": Measure("cold start and first event, CPU", "ms", 0.25, 0.33, MOST_BARE_COLD),
        "new": Measure(f"{event}, CPU", "ms", MOST_NEW.get(function), None, MOST_BARE_NEW),
        "wall": Measure(f"{event}, wall time", "ms"),
        "duplicate": Measure(
            f"{duplicate}, CPU", "ms", MOST_DUPLICATE.get(function), None, MOST_BARE_DUPLICATE
        ),
        "memory": Measure("memory", "MiB", 0.65),
    }
    rows = []
    for name, measure in measures.items():
        here, powertools, shared, bare = (
            statistics.median(run[name] for run in side) for side in sides
        )
        rows.append(
            Row(
                f"{function}: {measure.name}",
                measure.unit,
                here,
                powertools,
                shared,
                measure.most,
                measure.most_shared,
                bare,
                measure.most_bare,
            )
        )
    return rows


def write_units() -> Row:
    """Compare what a ride writes, which `tests/functions/test_ride_costs.py` holds to the code.

    Powertools writes a record twice, each for one unit, in no transaction with its effects. Its
    ride_history would update a ride's timeline in two items, in place.
    """
    units = {table: number for table, (number, *_) in bill.TABLES.items()}
    records = units["IdempotencyTable"] + units["RideHistoryTable"]
    powertools = sum(units.values()) - records + TIMELINE_UNITS + 2 * OPERATIONS
    return Row(
        "a ride: write units", "", sum(units.values()), powertools, most=MOST_UNITS / powertools
    )
