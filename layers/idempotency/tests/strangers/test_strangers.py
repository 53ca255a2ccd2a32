"""Applications that strangers would write: they have only the wheel, and are killed at random.

Each runs in an environment of its own, on AWS's own DynamoDB Local. Each delivery is made again
until it is acknowledged. In the end each has taken effect once.

``STRANGERS_SEED`` repeats the kills of a run, as far as the machine keeps time.
"""

import hashlib
import hmac
import json
import os
import random
import select
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent,
)
from aws_lambda_powertools.utilities.idempotency.exceptions import (
    IdempotencyAlreadyInProgressError,
    IdempotencyPersistenceLayerError,
)

from carride_idempotency.clock import epoch_ms
from carride_idempotency.testing import (
    eventbridge_event,
    http_event,
    lambda_context,
    sqs_event,
)
from tests.samples import create_tables
from tests.stores.backends import local_client
from tests.wheels import CLIENT, build, install, link, write_files

pytestmark = pytest.mark.peer

HERE: Final = Path(__file__).parent
DELIVERIES: Final = 40
MOST_LINES: Final = 99
MOST_KILLS: Final = 12
ANSWERS_IN_S: Final = 120.0
ENDS_IN_S: Final = 600.0
RECORDS: Final = "Records"
EFFECTS: Final = ("Receipts", "Bookings", "Invoices", "Payments")
OLD_RECORDS: Final = "PowertoolsRecords"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel and, as in Lambda, botocore."""
    built = build(tmp_path_factory.mktemp("dist"))
    python, site = install(built, tmp_path_factory.mktemp("environment"))
    link(site, "botocore")
    return python


@pytest.fixture(scope="module")
def dynamodb() -> Iterator[Any]:
    with local_client() as client:
        create_tables(
            client, {RECORDS: "idempotencyKey"} | dict.fromkeys((*EFFECTS, OLD_RECORDS), "id")
        )
        yield client


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("STRANGERS_SEED") or random.SystemRandom().randrange(10**6))
    print(f"repeat with STRANGERS_SEED={seed}")  # pytest shows it if the test fails
    return random.Random(seed)  # noqa: S311 - it keeps no secret


class Function:
    """A handler in a process of its own, which is killed while it works, or just after.

    Args:
        module: the application's, beside this file; ``module:app`` is a service.
        python: the interpreter of its environment.
        folder: where it runs, without this repository.
        dynamodb: a client of the server that has its tables.
        chance: says when it is killed.
        environment: its own settings.
    """

    def __init__(
        self,
        module: str,
        python: Path,
        folder: Path,
        dynamodb: Any,
        chance: random.Random,
        **environment: str,
    ) -> None:
        for name in ("runtime", module.partition(":")[0]):
            shutil.copy(HERE / f"{name}.py", folder)
        others = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.environment = others | environment
        self.environment |= {
            "AWS_ENDPOINT_URL_DYNAMODB": dynamodb.meta.endpoint_url,
            "IDEMPOTENCY_STORE": f"dynamodb:{RECORDS}",
            "IDEMPOTENCY_TRANSPORT": "auto",
        }
        self.command = (python, "runtime.py", module)
        self.folder = folder
        self.chance = chance
        self.kills = Counter[str]()
        self.process: subprocess.Popen[bytes] | None = None
        self.answers_left = 0
        self.takes_s = 0.05

    def deliver(self, event: Mapping[str, Any]) -> Any:
        """Return the answer, or None if the process was killed or the handler raised."""
        process = self.process or self._start()
        assert process.stdin is not None
        process.stdin.write(json.dumps(event).encode() + b"\n")
        process.stdin.flush()
        if self.answers_left == 0 and self.kills.total() < MOST_KILLS:
            self._kill_soon(process)
            return None
        self.answers_left -= 1
        began = time.monotonic()
        answer = self._said(process).get("answer")
        self.takes_s = time.monotonic() - began
        return answer

    def stop(self) -> None:
        """End the process, if there is one."""
        if self.process is None:
            return
        self.process.kill()
        self.process.communicate()
        self.process = None

    def _start(self) -> subprocess.Popen[bytes]:
        with (self.folder / "stderr").open("ab") as errors:
            self.process = subprocess.Popen(
                self.command,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self.answers_left = self.chance.randrange(3)
        assert "ready" in self._said(self.process)
        return self.process

    def _kill_soon(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        after_s = self.chance.uniform(0, 1.3 * self.takes_s)
        give_up = time.monotonic() + after_s
        answered, _, _ = select.select([process.stdout], [], [], after_s)
        threading.Event().wait(max(0.0, give_up - time.monotonic()))
        self.stop()
        self.kills["after its answer" if answered else "at work"] += 1

    def _said(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], ANSWERS_IN_S)
        line = process.stdout.readline() if ready else b""
        assert line, f"no answer:\n{(self.folder / 'stderr').read_text()}"
        said: dict[str, Any] = json.loads(line)
        return said


@pytest.fixture
def function(
    python: Path, dynamodb: Any, chance: random.Random, tmp_path: Path
) -> Iterator[Callable[..., Function]]:
    """Make the function of an application, from its module and its environment."""
    with ExitStack() as running:

        def start(module: str, **environment: str) -> Function:
            made = Function(module, python, tmp_path, dynamodb, chance, **environment)
            running.callback(made.stop)
            return made

        yield start


class Gateway(BaseHTTPRequestHandler):
    """Charges whatever it is asked to, and can be asked for the charges of a reference."""

    charges: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.charges.append(body)
        self._answer(200, {"id": f"charge-{len(self.charges)}"})

    def do_GET(self) -> None:
        reference = self.path.rpartition("/")[2]
        found = [charge for charge in self.charges if charge["reference"] == reference]
        self._answer(200 if found else 404, {"id": f"charge of {reference}"})

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Log nothing."""

    def _answer(self, status: int, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def gateway() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Run a gateway; yield its URL and its charges."""
    charges: list[dict[str, Any]] = []
    kind = type("OwnGateway", (Gateway,), {"charges": charges})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", charges
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def until_acknowledged(
    deliveries: Sequence[str],
    chance: random.Random,
    most: int,
    deliver: Callable[[Sequence[str]], set[str]],
) -> None:
    """Deliver in random order, with copies, until each is acknowledged; then all once more.

    Args:
        deliveries: their ids.
        chance: chooses.
        most: how many are delivered at once.
        deliver: delivers some, and returns those that are acknowledged.
    """
    give_up = time.monotonic() + ENDS_IN_S
    waiting = list(deliveries)
    done: list[str] = []
    while waiting:
        assert time.monotonic() < give_up, f"never acknowledged: {waiting}"
        batch = chance.sample(waiting, min(len(waiting), chance.randint(1, most)))
        if done and len(batch) < most:
            batch.append(chance.choice(done))
        acknowledged = deliver(batch)
        done += [each for each in waiting if each in acknowledged]
        waiting = [each for each in waiting if each not in acknowledged]
    for each in deliveries:
        while deliver([each]) != {each}:
            assert time.monotonic() < give_up, f"its copy is not acknowledged: {each}"


def rows(dynamodb: Any, table: str) -> dict[str, dict[str, int]]:
    """Return the numbers of each item by its id."""
    found = dynamodb.scan(TableName=table, ConsistentRead=True)["Items"]
    return {
        item["id"]["S"]: {name: int(value["N"]) for name, value in item.items() if "N" in value}
        for item in found
    }


def assert_killed(function: Function) -> None:
    assert function.kills.total() == MOST_KILLS
    assert function.kills["at work"] > 0


@pytest.mark.parametrize("path", sorted(HERE.glob("[!_]*.py")), ids=lambda path: path.stem)
def test_an_application_is_a_page(path: Path) -> None:
    if not path.name.startswith("test_"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES


def test_a_queue_of_orders_is_charged_once_by_a_gateway_that_recognises_nothing(
    function: Callable[..., Function], dynamodb: Any, chance: random.Random
) -> None:
    orders = [f"order-{number}" for number in range(DELIVERIES)]
    received = Counter[str]()

    def message(order: str) -> dict[str, Any]:
        body = {"orderID": order, "total": 20}
        (record,) = sqs_event(body, clock=epoch_ms, received=received[order])["Records"]
        return {**record, "messageId": order}

    with gateway() as (url, charges):
        consumer = function("queue_charges", GATEWAY_URL=url)

        def deliver(batch: Sequence[str]) -> set[str]:
            received.update(batch)
            answer = consumer.deliver({"Records": [message(order) for order in batch]})
            if answer is None:
                return set()
            failed = {each["itemIdentifier"] for each in answer["batchItemFailures"]}
            return set(batch) - failed

        until_acknowledged(orders, chance, 3, deliver)
        assert_killed(consumer)
        assert rows(dynamodb, "Receipts") == {order: {"written": 1} for order in orders}
        assert sorted(Counter(each["reference"] for each in charges).values()) == [1] * DELIVERIES


def test_a_function_url_books_each_ride_once(
    function: Callable[..., Function], dynamodb: Any, chance: random.Random
) -> None:
    url = function("function_url")
    rides = [f"ride-{number}" for number in range(DELIVERIES)]

    def deliver(batch: Sequence[str]) -> set[str]:
        (ride,) = batch
        body = {"name": ride, "seats": 1}
        headers = {"x-passenger": "ada"}
        answer = url.deliver(http_event("POST", "/rides", body, key=ride, headers=headers))
        return {ride} if answer is not None and answer["statusCode"] == 201 else set()

    until_acknowledged(rides, chance, 1, deliver)
    assert_killed(url)
    assert rows(dynamodb, "Bookings") == {ride: {"booked": 1} for ride in rides}


@pytest.mark.parametrize("way", ["webhooks", "webhooks:app"])
def test_a_webhook_notes_each_event_once(
    way: str,
    function: Callable[..., Function],
    dynamodb: Any,
    chance: random.Random,
    tmp_path: Path,
) -> None:
    """Whatever the order, the latest event of a payment says its status."""
    packages = tmp_path / "packages"
    packages.mkdir()
    link(packages, "fastapi", *CLIENT)
    write_files("webhooks.md", tmp_path)
    receiver = function(way, WEBHOOK_SECRET="secret", PYTHONPATH=str(packages))  # noqa: S106
    statuses = ("created", "authorized", "captured", "refunded")
    events = [f"{way}-{number}" for number in range(DELIVERIES)]
    tries = Counter[str]()

    def deliver(batch: Sequence[str]) -> set[str]:
        (event,) = batch
        tries[event] += 1
        number, step = divmod(int(event.rpartition("-")[2]), len(statuses))
        payment = {"id": f"{way}-{number}", "amount": 20}
        payment |= {"created": (0, 1, 1, 2)[step], "status": statuses[step]}
        body = json.dumps({"id": event, "data": payment, "tries": tries[event]})
        headers = {"stripe-signature": signature_of(body, "secret")}
        request = http_event("POST", "/hooks", key=None, headers=headers) | {"body": body}
        answer = receiver.deliver(request)
        return {event} if answer is not None and answer["statusCode"] == 200 else set()

    until_acknowledged(events, chance, 1, deliver)
    assert_killed(receiver)
    found = dynamodb.scan(TableName="Payments", ConsistentRead=True)["Items"]
    payments = [item for item in found if item["id"]["S"].rpartition("-")[0] == way]
    assert len(payments) * len(statuses) == DELIVERIES
    for payment in payments:
        assert payment["seen"] == {"N": "4"}
        noted = sorted(name for name in payment if name.startswith("at "))
        assert len(noted) == len(statuses)
        assert payment[noted[-1]] == {"S": "refunded"}


def signature_of(body: str, secret: str) -> str:
    """Sign a body as the sender does."""
    sent = str(int(time.time()))
    signed = hmac.new(secret.encode(), f"{sent}.{body}".encode(), hashlib.sha256)
    return f"t={sent},v1={signed.hexdigest()}"


def test_a_migration_from_powertools_writes_each_invoice_once(
    function: Callable[..., Function], dynamodb: Any, chance: random.Random
) -> None:
    """Both versions take deliveries of one stream, as during a gradual deployment.

    The old one is not killed: it can repeat an effect by itself.
    """
    layer = DynamoDBPersistenceLayer(OLD_RECORDS, boto3_client=dynamodb)
    config = IdempotencyConfig(event_key_jmespath="detail.orderID", expires_after_seconds=86_400)
    written = Counter[str]()

    @idempotent(persistence_store=layer, config=config, key_prefix="invoices")
    def old(event: dict[str, Any], context: Any) -> dict[str, str]:
        order = event["detail"]["orderID"]
        written[order] += 1
        dynamodb.update_item(
            TableName="Invoices",
            Key={"id": {"S": order}},
            UpdateExpression="ADD written :one",
            ExpressionAttributeValues={":one": {"N": "1"}},
        )
        return {"by": "old"}

    ends = datetime.now(UTC) + timedelta(days=2)
    new = function("migration", MIGRATION_ENDS=ends.isoformat())
    orders = [f"order-{number}" for number in range(DELIVERIES)]

    def deliver(batch: Sequence[str]) -> set[str]:
        (order,) = batch
        event = eventbridge_event({"orderID": order}, event_id=order, clock=epoch_ms)
        if chance.random() < 0.7:
            return {order} if new.deliver(event) is not None else set()
        try:
            old(event, lambda_context(timeout_s=2.0, clock=epoch_ms))
        except (IdempotencyAlreadyInProgressError, IdempotencyPersistenceLayerError):
            return set()
        return {order}

    until_acknowledged(orders, chance, 1, deliver)
    assert_killed(new)
    assert 0 < len(written) < DELIVERIES
    assert rows(dynamodb, "Invoices") == {order: {"written": 1} for order in orders}
