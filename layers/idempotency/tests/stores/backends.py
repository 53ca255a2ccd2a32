"""Every store, with a place for effects, as the conformance suite takes it."""

import os
import shutil
import socket
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import boto3
import fakeredis
import pytest
import valkey
from botocore.config import Config
from moto import mock_aws
from valkey.backoff import NoBackoff
from valkey.exceptions import ReadOnlyError
from valkey.retry import Retry

from carride_idempotency import DynamoDBStore, EffectConflictError, MemoryStore, Update
from carride_idempotency.effects import Check, Effect
from carride_idempotency.stores import Store
from carride_idempotency.stores.lean import LeanTransport
from carride_idempotency.stores.signing import Credentials
from carride_idempotency.stores.transport import BotocoreTransport, Transport
from carride_idempotency.stores.valkey import ValkeyStore
from carride_idempotency.testing import FakeDynamoDB
from tests.conftest import SHELL
from tests.samples import create_tables
from tests.stores import valkey_server

FIRST_CHARGE: Final = "attribute_not_exists(charges)"
"""The condition of a charge that must be the only one."""

_ROOM: Final = Path(__file__).parents[2]
_DYNAMODB_LOCAL: Final = _ROOM / "tools/dynamodb-local"
_PATIENCE_S: Final = 120.0
_ONE_TRY: Final = Config(
    connect_timeout=10, read_timeout=60, retries={"total_max_attempts": 1}, max_pool_connections=20
)
_PREFIX: Final = "test:"


class Backend(NamedTuple):
    """One store, opened empty."""

    store: Store
    table: str
    """Where effects are written."""
    charges: Callable[[str], int]
    """How many effects on a ride were committed."""
    forgotten_in_s: Callable[[str], float | None]
    """After how many seconds the backend itself drops a key; None: never."""
    keeps_times: bool = True
    """Times come back as they were written. Otherwise they are moved by as much as the answers were
    late."""

    def charge(self, ride: str, condition: str | None = None) -> Update:
        return Update(self.table, {"id": ride}, "ADD charges :one", condition, {":one": 1})


type Opener = Callable[[], AbstractContextManager[Backend]]


# ── In this process ───────────────────────────────────────────────────────────────────────────────


@contextmanager
def open_memory() -> Iterator[Backend]:
    """A MemoryStore whose effects are counted in this process."""
    charges: Counter[str] = Counter()

    def apply(effects: Sequence[Effect]) -> None:
        for index, effect in enumerate(effects):
            assert isinstance(effect, Update | Check)
            if effect.condition == FIRST_CHARGE and charges[str(effect.key["id"])]:
                raise EffectConflictError(index)
        charges.update(str(effect.key["id"]) for effect in effects if isinstance(effect, Update))

    def forgotten_in_s(key: str) -> float | None:
        found = store.read(key)
        return None if found is None or found.expiry is None else found.expiry - time.time()

    store = MemoryStore(apply=apply)
    yield Backend(store, "Rides", charges.__getitem__, forgotten_in_s)


@contextmanager
def open_valkey(client: Any) -> Iterator[Backend]:
    """A ValkeyStore over an empty server."""
    client.flushall()

    def forgotten_in_s(key: str) -> float | None:
        left_ms = client.pttl(_PREFIX + key)
        return None if left_ms == -1 else left_ms / 1000

    yield Backend(
        ValkeyStore(client, prefix=_PREFIX), "", lambda ride: 0, forgotten_in_s, keeps_times=False
    )


# ── DynamoDB ──────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _open_fake_dynamodb() -> Iterator[Backend]:
    fake = FakeDynamoDB({"Rides": ("id",)})
    yield _on_dynamodb(fake, fake, "Records", "Rides")


def _on_dynamodb(client: Any, transport: Transport, records: str, rides: str) -> Backend:
    def item(table: str, key: str, value: str) -> Mapping[str, Any]:
        found = client.get_item(TableName=table, Key={key: {"S": value}}, ConsistentRead=True)
        attributes: Mapping[str, Any] = found.get("Item", {})
        return attributes

    def charges(ride: str) -> int:
        return int(item(rides, "id", ride).get("charges", {"N": "0"})["N"])

    def forgotten_in_s(key: str) -> float | None:
        ttl = item(records, "idempotencyKey", key).get("expiryTimestamp")
        # DynamoDB reads its TTL in epoch seconds.
        return None if ttl is None else int(ttl["N"]) - time.time()

    return Backend(DynamoDBStore(records, transport=transport), rides, charges, forgotten_in_s)


@contextmanager
def _dynamodb(client: Any, transport: Transport | None = None) -> Iterator[Opener]:
    """Open DynamoDBStores over two tables of this run's own.

    Emptied each time, and deleted in the end.

    ``client`` makes and reads the tables. The stores use ``transport``, by default over the same
    client.
    """
    prefix = f"carride-test-{uuid.uuid4().hex[:12]}"
    tables = {f"{prefix}-records": "idempotencyKey", f"{prefix}-rides": "id"}

    @contextmanager
    def opener() -> Iterator[Backend]:
        for table, key in tables.items():
            for page in client.get_paginator("scan").paginate(TableName=table, ConsistentRead=True):
                for item in page["Items"]:
                    client.delete_item(TableName=table, Key={key: item[key]})
        sends = transport or BotocoreTransport(client, 1.5)
        records, rides = tables
        yield _on_dynamodb(client, sends, records, rides)

    try:
        create_tables(client, tables)
        for table in tables:
            client.get_waiter("table_exists").wait(TableName=table, WaiterConfig={"Delay": 2})
        yield opener
    finally:
        for table in tables:
            with suppress(client.exceptions.ResourceNotFoundException):
                client.delete_table(TableName=table)


@contextmanager
def _moto_dynamodb() -> Iterator[Opener]:
    client = boto3.session.Session().client("dynamodb")
    with mock_aws(), _dynamodb(client) as opener:
        yield opener


def _at(url: str, transport: Transport | None = None) -> AbstractContextManager[Opener]:
    client = boto3.session.Session().client("dynamodb", endpoint_url=url, config=_ONE_TRY)
    return _dynamodb(client, transport)


@contextmanager
def _local_server() -> Iterator[str]:
    """Run AWS's own DynamoDB Local; yield its URL."""
    fetched = subprocess.run(
        [_DYNAMODB_LOCAL, "fetch"], capture_output=True, text=True, check=False
    )
    if fetched.returncode:
        pytest.skip(fetched.stderr.strip())
    port = valkey_server.reserved_port()
    with (
        subprocess.Popen([_DYNAMODB_LOCAL, str(port)], stdout=subprocess.DEVNULL) as server,
        ExitStack() as ending,
    ):
        ending.callback(server.terminate)
        _wait_until_it_listens(server, port)
        yield f"http://127.0.0.1:{port}"


def _wait_until_it_listens(server: subprocess.Popen[bytes], port: int) -> None:
    give_up = time.monotonic() + _PATIENCE_S
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        assert server.poll() is None, "DynamoDB Local has ended"
        assert time.monotonic() < give_up, "DynamoDB Local does not listen"
        time.sleep(0.02)


@contextmanager
def local_client() -> Iterator[Any]:
    """A client of AWS's own DynamoDB Local, which is empty."""
    with _local_server() as url:
        yield boto3.session.Session().client("dynamodb", endpoint_url=url, config=_ONE_TRY)


@contextmanager
def _local_dynamodb(*, lean: bool = False) -> Iterator[Opener]:
    """AWS's own DynamoDB Local."""
    with _local_server() as url, ExitStack() as ending:
        transport = LeanTransport(
            url, "us-east-1", lambda **_: Credentials("test", "test"), read_timeout_s=5
        )
        ending.callback(transport.close)
        yield ending.enter_context(_at(url, transport if lean else None))


def certify(file: Path, subject: str) -> Path:
    """Write a key and a certificate, signed by itself, of ``subject``, such as ``IP:127.0.0.1``."""
    openssl = shutil.which("openssl") or pytest.skip("openssl is not installed")
    options = (
        "-newkey rsa:2048 -nodes -days 1 -subj /CN=test "
        f"-addext subjectAltName={subject} -keyout {file}"
    )
    subprocess.run(
        [openssl, "req", "-x509", *options.split(), "-out", f"{file}.crt"],
        check=True,
        capture_output=True,
    )
    file.write_text(file.read_text() + Path(f"{file}.crt").read_text())
    return file


def _named_dynamodb() -> AbstractContextManager[Opener]:
    """The endpoint of DYNAMODB_ENDPOINT, with the shell's credentials and region."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    with patch.dict(os.environ, others | SHELL, clear=True):
        return _at(os.environ["DYNAMODB_ENDPOINT"])


# ── A server of Valkey's or Redis's ───────────────────────────────────────────────────────────────


@contextmanager
def running_valkey() -> Iterator[Any]:
    """Run a real server, and yield its client."""
    installed = valkey_server.program()
    if installed is None:
        pytest.skip("neither valkey-server nor redis-server is installed")
    once: Any = {"retry": Retry(NoBackoff(), 0), "retry_on_error": [ReadOnlyError]}
    with (
        valkey_server.running(installed) as port,
        valkey.Valkey(port=port, socket_connect_timeout=1, socket_timeout=2, **once) as client,
    ):
        yield client


@contextmanager
def _real_valkey() -> Iterator[Opener]:
    with running_valkey() as client:
        yield partial(open_valkey, client)


STORES: Final[Mapping[str, Callable[[], AbstractContextManager[Opener]]]] = {
    "memory": lambda: nullcontext(open_memory),
    "fake_dynamodb": lambda: nullcontext(_open_fake_dynamodb),
    "fake_valkey": lambda: nullcontext(
        partial(open_valkey, fakeredis.FakeValkey(socket_timeout=1))
    ),
    "fake_redis": lambda: nullcontext(
        partial(open_valkey, fakeredis.FakeRedis(socket_timeout=1, decode_responses=True))
    ),
    "moto_dynamodb": _moto_dynamodb,
    "local_dynamodb": _local_dynamodb,
    "lean_dynamodb": partial(_local_dynamodb, lean=True),
    "named_dynamodb": _named_dynamodb,
    "real_valkey": _real_valkey,
}
"""What starts each store's server, if it needs one, and opens the store."""


MOTO: Final = pytest.param("moto_dynamodb", marks=pytest.mark.proof)
"""moto answers every request through botocore, which takes longer than the fake."""


@pytest.fixture(scope="module")
def openers() -> Iterator[Callable[[str], Opener]]:
    """Start the server of a store, once, and return what opens the store."""
    with ExitStack() as running:
        yield cache(lambda name: running.enter_context(STORES[name]()))


def over(*stores: Any) -> Any:
    """Make a fixture that opens each of these stores in turn, empty."""

    @pytest.fixture(params=stores)
    def opened(
        request: pytest.FixtureRequest, openers: Callable[[str], Opener]
    ) -> Iterator[Backend]:
        with openers(request.param)() as backend:
            yield backend

    return opened
