"""The stores as fixtures; the suites' folders import those that they run on, and say which in `backend`."""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import boto3
import fakeredis
import pytest
import valkey
from botocore.config import Config
from moto import mock_aws
from valkey.backoff import NoBackoff
from valkey.exceptions import ReadOnlyError
from valkey.retry import Retry

from idempotency.clock import Clock
from idempotency.stores.lean import LeanTransport
from idempotency.stores.signing import Credentials
from local import valkey_server
from local.local_aws import LocalAws
from tests.conftest import SHELL
from tests.idempotency.stores.backends import Backend, Opener, dynamodb, open_memory, open_valkey

ROOT: Final = Path(__file__).parents[3]
DYNAMODB_LOCAL: Final = ROOT / "scripts/dynamodb-local"
_PATIENCE_S: Final = 30.0
_ONE_TRY: Final = Config(connect_timeout=1, read_timeout=5, retries={"total_max_attempts": 1}, max_pool_connections=20)


def over(*stores: str) -> Any:
    """Make a fixture that opens each of these stores in turn, empty."""

    @pytest.fixture(params=stores)
    def opened(request: pytest.FixtureRequest, clock: Clock) -> Iterator[Backend]:
        with request.getfixturevalue(request.param)(clock) as backend:
            yield backend

    return opened


@pytest.fixture(scope="session")
def memory() -> Opener:
    return open_memory


@pytest.fixture(scope="module")
def moto_dynamodb() -> Iterator[Opener]:
    with mock_aws(), dynamodb(boto3.client("dynamodb"), one_at_a_time=True) as opener:
        yield opener


@pytest.fixture(scope="session")
def fake_valkey() -> Opener:
    return partial(open_valkey, fakeredis.FakeValkey(socket_timeout=1))


@pytest.fixture(scope="session")
def fake_redis() -> Opener:
    """ValkeyStore with redis-py's client, which decodes what it reads, on fakeredis."""
    return partial(open_valkey, fakeredis.FakeRedis(socket_timeout=1, decode_responses=True))


@pytest.fixture(scope="session")
def valkey_client() -> Iterator[Any]:
    """A client of a real server."""
    installed = valkey_server.program()
    if installed is None:
        pytest.skip("neither valkey-server nor redis-server is installed")
    with (
        valkey_server.running(installed) as port,
        valkey.Valkey(
            port=port,
            socket_connect_timeout=1,
            socket_timeout=2,
            retry=Retry(NoBackoff(), 0),
            retry_on_error=[ReadOnlyError],
        ) as client,
    ):
        yield client


@pytest.fixture(scope="session")
def real_valkey(valkey_client: Any) -> Opener:
    return partial(open_valkey, valkey_client)


@pytest.fixture(scope="session")
def engine_dynamodb() -> Iterator[Opener]:
    with (
        LocalAws() as engine,
        dynamodb(boto3.client("dynamodb", endpoint_url=engine.endpoint_url, config=_ONE_TRY)) as opener,
    ):
        yield opener


@contextlib.contextmanager
def running_dynamodb_local() -> Iterator[str]:
    """Run AWS's own DynamoDB Local, and yield its endpoint's URL."""
    port, give_up = free_port(), time.monotonic() + _PATIENCE_S
    with subprocess.Popen([DYNAMODB_LOCAL, str(port)], stdout=subprocess.DEVNULL) as server:
        try:
            while not _listens(port):
                if server.poll() is not None or time.monotonic() > give_up:
                    raise RuntimeError("DynamoDB Local did not start: run scripts/dynamodb-local to see why")
                time.sleep(0.02)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="session")
def dynamodb_local() -> Iterator[str]:
    """AWS's own DynamoDB Local: its endpoint's URL."""
    fetched = subprocess.run([DYNAMODB_LOCAL, "fetch"], capture_output=True, text=True, check=False)
    if fetched.returncode:
        pytest.skip(fetched.stderr.strip())
    with running_dynamodb_local() as url:
        yield url


@pytest.fixture(scope="session")
def local_dynamodb(dynamodb_local: str) -> Iterator[Opener]:
    with dynamodb(boto3.client("dynamodb", endpoint_url=dynamodb_local, config=_ONE_TRY)) as opener:
        yield opener


@pytest.fixture(scope="session")
def lean_dynamodb(dynamodb_local: str) -> Iterator[Opener]:
    lean = LeanTransport(dynamodb_local, "us-east-1", lambda **_: Credentials("test", "test"), read_timeout_s=5)
    with dynamodb(boto3.client("dynamodb", endpoint_url=dynamodb_local, config=_ONE_TRY), lean) as opener:
        yield opener
    lean.close()


@pytest.fixture(scope="session")
def named_dynamodb() -> Iterator[Opener]:
    """DynamoDBStore on the endpoint that DYNAMODB_ENDPOINT names, with the credentials and region of the shell."""
    with pytest.MonkeyPatch.context() as environment:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "AWS_REGION"):
            environment.delenv(name)
        for name, value in SHELL.items():
            environment.setenv(name, value)
        session = boto3.session.Session()
        keys = None if session.get_credentials() else "test"  # a local server accepts any
        client = session.client(
            "dynamodb",
            region_name=session.region_name or "us-east-1",
            endpoint_url=os.environ["DYNAMODB_ENDPOINT"],
            aws_access_key_id=keys,
            aws_secret_access_key=keys,
            config=_ONE_TRY,
        )
    with dynamodb(client) as opener:
        yield opener
