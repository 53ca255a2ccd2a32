"""Processes that fork: each has connections, locks, threads and loops of its own.

Programs beside this file fork; they ask a server of this process.
"""

import json
import os
import random
import ssl
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseServer
from typing import Any, Final

import pytest
from fakeredis import FakeValkey, TcpFakeServer

from carride_idempotency import Consumer
from carride_idempotency.stores.transport import ServiceError
from carride_idempotency.stores.valkey import ValkeyStore
from carride_idempotency.testing import FakeDynamoDB
from tests.samples import create_tables
from tests.stores.backends import certify, local_client, running_valkey

pytestmark = pytest.mark.integration

INTERLEAVINGS: Final = Path(__file__).with_name("interleavings.py")
WITHIN_A_RUN: Final = Path(__file__).with_name("within_a_run.py")
INHERITANCE: Final = Path(__file__).with_name("inheritance.py")
COUNT: Final = int(os.environ.get("FORK_INTERLEAVINGS", "10"))
FIRST: Final = int(os.environ.get("FORK_INTERLEAVINGS_FROM", "0"))
"""How many interleavings a test runs, and the number of the first one: a large run has others."""
PATIENCE_S: Final = 300 + COUNT
CUT: Final = 0.2
"""The part of the answers that come in two parts."""
LAST: Final = 0.03
"""The part of the answers after which the connection ends."""
PAUSE_S: Final = 0.002


class Exchange(BaseHTTPRequestHandler):
    """The requests of one connection."""

    protocol_version = "HTTP/1.1"
    server: "Server"

    def do_GET(self) -> None:
        keys = {"AccessKeyId": "test", "SecretAccessKey": "test", "Token": "test"}
        self._send(200, keys | {"Expiration": "2100-01-01T00:00:00Z"})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        _, _, operation = self.headers["X-Amz-Target"].partition(".")
        self._send(*self.server.answer(operation, request))

    def _send(self, status: int, answer: Mapping[str, Any]) -> None:
        content = json.dumps(answer).encode()
        head = f"HTTP/1.1 {status} Answer\r\nContent-Length: {len(content)}\r\n\r\n"
        whole = head.encode() + content
        if self.server.chance.random() < CUT:
            half = len(whole) // 2
            self.wfile.write(whole[:half])
            threading.Event().wait(PAUSE_S)
            whole = whole[half:]
        self.wfile.write(whole)
        self.close_connection = self.server.chance.random() < self.server.last

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


class Server(ThreadingHTTPServer):
    """DynamoDB and SQS, in any order of their requests and with connections that end."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, certificate: Path | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Exchange)
        self.tables = FakeDynamoDB({"Effects": ("id",)})
        self.last = LAST
        self.chance = random.Random(0)  # noqa: S311 - an experiment, not a secret
        self.url = f"{'https' if certificate else 'http'}://127.0.0.1:{self.server_port}"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.socket = context.wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )

    def answer(self, operation: str, request: Mapping[str, Any]) -> tuple[int, Mapping[str, Any]]:
        """Carry a request out."""
        if operation == "SendMessage":
            return 200, {"MessageId": "1"}
        try:
            return 200, self.tables(operation, request)
        except ServiceError as error:
            return error.status, {"__type": f"x#{error.code}", "message": "refused", **error.body}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: processes end with open connections."""


@contextmanager
def serving[S: BaseServer](server: S) -> Iterator[S]:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def run(program: Path, *arguments: object) -> str:
    """Run a program to its end, and return what it has printed. It prints no error."""
    ended = subprocess.run(
        [sys.executable, program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert not ended.stderr, ended.stderr
    assert ended.returncode == 0
    return ended.stdout


def assert_once(folder: Path, effects: Mapping[str, int] | None) -> None:
    """Assert that every key ran once, took effect once, and was always answered as the first time.

    ``effects`` are counted by key; None: the store takes none.
    """
    assert _lines(folder, "errors") == []
    assert len(_lines(folder, "ended")) == COUNT
    runs = Counter(_lines(folder, "runs"))
    assert [key for key, times in runs.items() if times > 1] == []
    assert effects is None or effects == runs
    answers: dict[str, str] = {}
    for key, answer in map(json.loads, _lines(folder, "answers")):
        assert answer.startswith(f"{key} by ")
        assert answers.setdefault(key, answer) == answer
    assert answers.keys() <= runs.keys()


def _lines(folder: Path, name: str) -> list[str]:
    file = folder / name
    return file.read_text().splitlines() if file.exists() else []


def charges(items: list[dict[str, Any]]) -> dict[str, int]:
    return {item["id"]["S"]: int(item["charges"]["N"]) for item in items}


def teach_scripts(server: TcpFakeServer) -> None:
    """Let a fake server know each script of the store, so that no client is told of an unknown one.

    After an answer that is an error, this server ends the connection, which Valkey does not.
    """
    with FakeValkey(server=server.fake_server, socket_timeout=1) as client:
        store = ValkeyStore(client)

        @Consumer("scripts", store).function(key="key")
        def answer(key: str) -> str:
            return key

        assert answer("any") == "any"
        assert store.read("another") is None


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("kind", ["lean", "botocore", "auto"])
def test_however_operations_and_forks_interleave_each_key_runs_once(
    kind: str, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Children go on while parents' requests are under way, and each process gets its answers."""
    certificate = None
    if scheme == "https":
        certificate = certify(tmp_path / "server.pem", "IP:127.0.0.1")
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
    with serving(Server(certificate)) as server:
        run(INTERLEAVINGS, server.url, kind, tmp_path, FIRST, COUNT)
    assert_once(tmp_path, charges(server.tables.all("Effects")))


def test_a_valkey_client_serves_processes_that_fork(tmp_path: Path) -> None:
    """The same holds over Valkey, whose client has a pool for each process."""
    with serving(TcpFakeServer(("127.0.0.1", 0), server_type="valkey")) as server:
        teach_scripts(server)
        url = f"valkey://127.0.0.1:{server.server_address[1]}"
        run(INTERLEAVINGS, url, "valkey", tmp_path, FIRST, COUNT)
    assert_once(tmp_path, None)


def test_a_child_shares_nothing_that_belongs_to_one_process() -> None:
    """Connections, locks, threads and loops are its own, and its end takes none from its parent."""
    with serving(Server()) as server:
        # A request may wait as long as the program here: none whose connection ends is sent again.
        server.last = 0
        names = run(INHERITANCE, server.url).splitlines()
    assert names[:-1] == []
    assert names[-1].endswith("the child ended with 0")


def test_a_child_takes_no_step_of_the_run_that_it_was_forked_in() -> None:
    """It makes no call, registers no effect and ends nothing: its parent's run is as if alone."""
    with serving(Server()) as server:
        # A run whose claim has no answer comes again, and no run is looked for here.
        server.last = 0
        assert run(WITHIN_A_RUN, server.url, FIRST, COUNT) == ""
        effects = charges(server.tables.all("Effects"))
    assert effects == {f"k{number}": 1 for number in range(FIRST, FIRST + COUNT)}


@pytest.mark.peer
@pytest.mark.parametrize("kind", ["lean", "botocore"])
def test_dynamodb_local_serves_processes_that_fork(kind: str, tmp_path: Path) -> None:
    """The same holds on DynamoDB Local."""
    with local_client() as client:
        create_tables(client, {"Records": ("idempotencyKey",), "Effects": ("id",)})
        run(INTERLEAVINGS, client.meta.endpoint_url, kind, tmp_path, FIRST, COUNT)
        pages = client.get_paginator("scan").paginate(TableName="Effects")
        assert_once(tmp_path, charges([item for page in pages for item in page["Items"]]))


@pytest.mark.peer
def test_a_real_valkey_server_serves_processes_that_fork(tmp_path: Path) -> None:
    """The same holds on a server of Valkey or Redis."""
    with running_valkey() as client:
        port = client.get_connection_kwargs()["port"]
        run(INTERLEAVINGS, f"valkey://127.0.0.1:{port}", "valkey", tmp_path, FIRST, COUNT)
    assert_once(tmp_path, None)
