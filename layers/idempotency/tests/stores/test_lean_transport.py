"""The lean transport over TLS on this machine, in every fault of a connection, beside botocore.

The conformance suite, on DynamoDB Local, shows refusals, transactions and threads over both.
"""

import gc
import json
import logging
import os
import re
import resource
import socket
import ssl
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.client import HTTPException, HTTPResponse, IncompleteRead
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from itertools import permutations, product
from pathlib import Path
from typing import Any, Final, Self
from unittest.mock import Mock, call

import pytest

from carride_idempotency import DynamoDBStore
from carride_idempotency.errors import StoreUnavailableError
from carride_idempotency.stores.default_transport import dynamodb_transport
from carride_idempotency.stores.lean import (
    Guarded,
    LeanTransport,
    UnusableError,
    _received,
    lean_transport,
    only_botocore_knows,
    tls_context,
)
from carride_idempotency.stores.signing import ContainerCredentials, Credentials, CredentialsError
from carride_idempotency.stores.transport import (
    BOTOCORE_USED,
    BotocoreTransport,
    NoAnswerError,
    ServiceError,
    Transport,
    botocore_transport,
)
from tests.stores.backends import certify

NOW: Final = datetime(2026, 11, 21, 8, 30, tzinfo=UTC)
NOW_MS: Final = int(NOW.timestamp() * 1000)
MINUTE_MS: Final = 60_000
KEY: Final = {"TableName": "Idempotency", "Key": {"idempotencyKey": {"S": "history#k1"}}}
KEYS: Final = Credentials("AKIDFIRST", "secret", "token")
FUNCTION: Final = {
    "AWS_ACCESS_KEY_ID": "AKIDFIRST",
    "AWS_SECRET_ACCESS_KEY": "s",
    "AWS_DEFAULT_REGION": "eu-west-1",
}
DEADLINE_S: Final = 60
AGENT_HANGS_S: Final = 1.5
"""Less than credentials are waited for, so that whoever waits for them sees the end."""
TIMEOUTS: Final = {"connect_timeout_s": 10.0, "read_timeout_s": 30.0}
SOON: Final = {"read_timeout_s": 1.0}
"""For answers that never come: longer than a loaded machine takes for those that do."""
BRIEF: Final = {"connect_timeout_s": 1.0, "read_timeout_s": 1.0}
AGENT_GIVEN_UP_S: Final = 2.0
LATE_S: Final = 3.0
"""How late a loaded machine may be. What trickles takes longer, together with the time of a try."""

pytestmark = [
    pytest.mark.integration,
    # Kept connections live as long as their transport, which nothing closes: a function is frozen,
    # not ended.
    pytest.mark.filterwarnings(
        "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
    ),
]

type Answer = bytes | Callable[[BaseHTTPRequestHandler], object]
"""What is sent, or what happens before the connection is closed."""


def answer(body: object, status: int = 200, *headers: str, length: int | None = None) -> bytes:
    """Return an HTTP answer as DynamoDB writes it; a body that is not bytes yet becomes JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = (
        f"HTTP/1.1 {status} Something",
        f"Content-Length: {len(content) if length is None else length}",
        *headers,
    )
    return "\r\n".join([*lines, "", ""]).encode() + content


def refusal(code: str, **members: Any) -> bytes:
    body = {
        "__type": f"com.amazonaws.dynamodb.v20120810#{code}",
        "message": "made by a test",
        **members,
    }
    return answer(body, 400, f"Date: {format_datetime(NOW, usegmt=True)}")


FOUND: Final = answer({"Item": {"status": {"S": "COMPLETED"}}})


def until(holds: Callable[[], object]) -> None:
    """Poll until a condition holds."""
    give_up = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < give_up
        threading.Event().wait(0.01)


class Exchange(BaseHTTPRequestHandler):
    """The requests of one connection."""

    protocol_version = "HTTP/1.1"
    server: "Service"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append((headers | {":path": self.path}, body))
        reply = self.server.answers.popleft() if self.server.answers else FOUND
        if isinstance(reply, bytes):
            self.wfile.write(reply)
        else:
            reply(self)
            self.close_connection = True

    def do_GET(self) -> None:
        self.do_POST()


class Service(ThreadingHTTPServer):
    """Gives each request the next of its answers, over TLS if it has a certificate."""

    daemon_threads = True

    def __init__(self, certificate: Path | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Exchange)
        self.answers: deque[Answer] = deque()
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.connections = 0
        self.closed = threading.Event()
        self.certificate = certificate
        self.url = f"{'https' if certificate else 'http'}://127.0.0.1:{self.server_port}"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.socket = context.wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections += 1
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, and say so."""
        super().shutdown_request(request)
        self.closed.set()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: these clients break connections off."""

    @contextmanager
    def running(self) -> Iterator["Service"]:
        thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            self.server_close()
            thread.join()

    def trusted(self, complete: bool) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.certificate)

    def transport(self, **options: Any) -> LeanTransport:
        given: dict[str, Any] = {"tls": self.trusted, "clock": lambda: NOW_MS, **TIMEOUTS} | options
        return LeanTransport(
            self.url, "eu-west-1", given.pop("credentials", lambda **_: KEYS), **given
        )


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The key and the certificate of a server on this machine."""
    return certify(tmp_path_factory.mktemp("tls") / "service.pem", "IP:127.0.0.1")


@pytest.fixture
def service(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A service that answers as DynamoDB does, and the environment of a function that uses it."""
    with Service(certificate).running() as running:
        own = {
            "AWS_CA_BUNDLE": certificate,
            "AWS_ENDPOINT_URL": running.url,
            "AWS_EXECUTION_ENV": "AWS_Lambda_python",
        }
        for name, value in (FUNCTION | own).items():
            monkeypatch.setenv(name, str(value))
        yield running


@pytest.fixture(params=["lean", "botocore"])
def transport(request: pytest.FixtureRequest, service: Service) -> Transport:
    return service.transport() if request.param == "lean" else botocore_transport(**TIMEOUTS)


@pytest.fixture(params=["lean", "botocore"])
def impatient(request: pytest.FixtureRequest, service: Service) -> Transport:
    """Gives up soon."""
    if request.param == "lean":
        return service.transport(**SOON)
    return botocore_transport(**TIMEOUTS | SOON)


# ── Both transports ───────────────────────────────────────────────────────────────────────────────


def test_a_request_is_signed_and_its_answer_read(service: Service, transport: Transport) -> None:
    """The second request uses the connection of the first.

    Binary values are bytes; botocore's agent names Lambda.
    """
    item = {"B": {"B": "AP8="}, "all": {"BS": ["AQ=="]}, "m": {"M": {"B": {"S": "x"}}}}
    service.answers += [FOUND, answer({"Item": item})]
    assert transport("GetItem", KEY)["Item"] == {"status": {"S": "COMPLETED"}}
    read = transport("GetItem", KEY | {"Key": {"k": {"B": b"\x00\xff"}}})["Item"]
    assert read == {
        "B": {"B": b"\x00\xff"},
        "all": {"BS": [b"\x01"]},
        "m": {"M": {"B": {"S": "x"}}},
    }
    assert json.loads(service.requests[1][1])["Key"] == {"k": {"B": "AP8="}}
    assert service.connections == 1
    assert transport.longest_try_s == pytest.approx(40)
    for headers, _ in service.requests:
        assert re.search(
            "Credential=AKIDFIRST/[0-9]{8}/eu-west-1/dynamodb/", headers["authorization"]
        )
        assert re.match(
            "carride-idempotency |Botocore/.* exec-env/AWS_Lambda_python", headers["user-agent"]
        )


def then_close(content: bytes) -> Answer:
    return lambda exchange: exchange.wfile.write(content)


FAULTS: Final[dict[str, Answer]] = {
    "cut": then_close(answer(b'{"Item":', length=100)),
    "closed without a byte": then_close(b""),
    "damaged": answer(b"{}", 200, f"x-amz-crc32: {zlib.crc32(b'{]')}"),
    "a server's error without a body": answer(b"", 503),
}
KEPT: Final = {"new connection": False, "kept connection": True}


def silent(exchange: BaseHTTPRequestHandler) -> None:
    """Wait until the client gives up."""
    exchange.rfile.read(1)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
def test_no_answer_is_no_answer(
    service: Service, transport: Transport, fault: Answer, *, kept: bool
) -> None:
    """The outcome is unknown; the request was sent once, and the next one is answered."""
    assert_no_answer(service, transport, fault, kept=kept)


@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
def test_silence_is_no_answer(service: Service, impatient: Transport, *, kept: bool) -> None:
    """The same holds when the client has given up waiting."""
    assert_no_answer(service, impatient, silent, kept=kept)


def assert_no_answer(service: Service, transport: Transport, fault: Answer, *, kept: bool) -> None:
    if kept:
        transport("GetItem", KEY)
    before = len(service.requests)
    service.answers.append(fault)
    with pytest.raises((NoAnswerError, ServiceError)) as failed:
        transport("GetItem", KEY)
    assert getattr(failed.value, "status", None) in {None, 503}
    assert len(service.requests) == before + 1
    assert transport("GetItem", KEY)["Item"]


def test_a_connection_that_ended_leaves_nothing_on_stderr(
    service: Service, impatient: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither does what the garbage collector finds of it, however the connection ended."""
    seen: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: seen.append(raised.exc_value))
    store = DynamoDBStore("Idempotency", transport=impatient)
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    cut = (then_close(chunked), then_close(b"%b5\r\n12" % chunked))
    for fault in (*FAULTS.values(), silent, *cut):
        service.answers.append(fault)
        with pytest.raises(StoreUnavailableError):
            store.read("history#k1", until_ms=0)
        gc.collect()
    assert seen == []


DROP_S: Final = 0.1


def trickling(content: bytes) -> Answer:
    """Answer byte by byte, each well before the client would give up without another one."""

    def trickle(exchange: BaseHTTPRequestHandler) -> None:
        with suppress(OSError):
            for position in range(len(content)):
                exchange.wfile.write(content[position : position + 1])
                threading.Event().wait(DROP_S)

    return trickle


@pytest.mark.parametrize(
    "content",
    [
        FOUND,
        answer({"Item": {}}, 200, "Transfer-Encoding: chunked"),
        b"HTTP/1.1 200 OK\r\n\r\n" * 9,
    ],
    ids=["plain", "another form", "without a length"],
)
@pytest.mark.parametrize("kept", [False, True], ids=["new connection", "kept connection"])
def test_a_server_that_sends_byte_by_byte_outlasts_no_try(
    service: Service, content: bytes, *, kept: bool
) -> None:
    """The time of a try begins once, also if the request is signed and sent again in it."""
    transport = service.transport(**BRIEF)
    if kept:
        transport("GetItem", KEY)
    for first in ([], [refusal("InvalidSignatureException")]):
        service.answers += [*first, trickling(content)]
        begun = time.monotonic()
        with pytest.raises(NoAnswerError):
            transport("GetItem", KEY)
        assert time.monotonic() - begun < transport.longest_try_s + LATE_S


@pytest.mark.parametrize("secure", [False, True])
def test_a_request_of_any_size_is_sent_whole(service: Service, *, secure: bool) -> None:
    """However often the connection takes a part of it."""
    text = "x" * 4_000_000
    with Service(service.certificate if secure else None).running() as other:
        other.transport()("PutItem", {"Item": {"text": {"S": text}}})
        ((_, body),) = other.requests
    assert json.loads(body) == {"Item": {"text": {"S": text}}}


def test_an_agent_that_sends_byte_by_byte_is_not_waited_for(service: Service) -> None:
    """A request waits for credentials for one time, however many requests do."""
    with Service().running() as runtime:
        runtime.answers += [trickling(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20)] * 2
        credentials = ContainerCredentials(f"{runtime.url}/keys", {}, lambda: NOW_MS)
        begun = time.monotonic()
        with ThreadPoolExecutor(2) as pool:
            waits = [pool.submit(credentials) for _ in range(2)]
        assert all(isinstance(wait.exception(), CredentialsError) for wait in waits)
        assert time.monotonic() - begun < AGENT_GIVEN_UP_S + LATE_S


def test_an_agent_that_closes_is_read_to_its_end() -> None:
    """However late its last byte comes, in the form of any version of HTTP."""
    keys = {"AccessKeyId": "last", "SecretAccessKey": "s", "Expiration": "2026-11-22T08:30:00Z"}
    head, _, body = answer(keys, 200, "Connection: close").partition(b"\r\n\r\n")

    def in_parts(exchange: BaseHTTPRequestHandler) -> None:
        exchange.wfile.write(head + b"\r\n\r\n")
        threading.Event().wait(DROP_S)
        exchange.wfile.write(body)

    with Service().running() as runtime:
        runtime.answers.append(in_parts)
        credentials = ContainerCredentials(f"{runtime.url}/keys", {}, lambda: NOW_MS)
        assert credentials().access_key == "last"


def test_a_host_with_several_addresses_has_one_time_for_all(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address that does not answer leaves time for the next one, and a try ends in its time."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as waiting:
        # What connects to a full backlog waits for an answer, as for a host that is down.
        for _ in range(8):
            waiter = waiting.enter_context(socket.socket())
            waiter.setblocking(False)
            waiter.connect_ex(full.getsockname())
        unanswering = (socket.AF_INET, socket.SOCK_STREAM, 0, "", full.getsockname())
        answering = (socket.AF_INET, socket.SOCK_STREAM, 0, "", service.server_address)
        addresses = [unanswering, unanswering, answering]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
        transport = service.transport(connect_timeout_s=3.0, read_timeout_s=1.0)
        begun = time.monotonic()
        assert transport("GetItem", KEY)["Item"]
        transport.close()
        addresses[-1] = unanswering
        with pytest.raises(NoAnswerError):
            transport("GetItem", KEY)
        assert time.monotonic() - begun < 2 * transport.longest_try_s + LATE_S


def test_an_answer_may_be_cut_anywhere(service: Service) -> None:
    """It says nothing about who was there, so botocore does not take over."""
    for position in range(len(FOUND)):
        service.answers.append(then_close(FOUND[:position]))
        with pytest.raises(NoAnswerError) as failed:
            service.transport()("GetItem", KEY)
        assert not isinstance(failed.value, UnusableError), FOUND[:position]


def test_a_request_that_cannot_be_sent_has_no_answer(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody listens where it goes."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        lean = LeanTransport(url, "eu-west-1", lambda **_: KEYS)
        for transport in (lean, botocore_transport(**TIMEOUTS)):
            with pytest.raises(NoAnswerError):
                transport("GetItem", KEY)


def test_a_connection_that_died_while_it_was_kept_is_replaced(
    service: Service, transport: Transport
) -> None:
    """A connection that the other side closed between two requests is not used for the second."""
    service.answers.append(then_close(FOUND))
    assert transport("GetItem", KEY)["Item"]
    assert service.closed.wait(DEADLINE_S)
    assert transport("GetItem", KEY)["Item"]
    assert (service.connections, len(service.requests)) == (2, 2)


def test_of_many_kept_connections_that_died_unnoticed_only_one_costs_a_try(
    service: Service,
) -> None:
    """Nothing says that they are dead, such as after a function was frozen.

    The next try connects anew.
    """
    transport = service.transport(**SOON)
    with socket.create_server(("127.0.0.1", 0)) as server:
        dead = [socket.create_connection(server.getsockname()) for _ in range(3)]
        transport._kept.extend(dead)  # noqa: SLF001 - only a frozen sandbox makes such connections
        with pytest.raises(NoAnswerError):
            transport("GetItem", KEY)
        assert transport("GetItem", KEY)["Item"]
        assert [each.fileno() for each in dead] == [-1] * 3


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x03"], ids=["at once", "in its first message"])
def test_a_handshake_that_is_cut_is_no_answer(sent: bytes) -> None:
    """It says nothing about who is there, so it does not lead to botocore."""

    def cut(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        connection.recv(4096)
        connection.sendall(sent)
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=cut, args=(listener,))
        thread.start()
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        transport = LeanTransport(url, "eu-west-1", lambda **_: KEYS)
        with pytest.raises(NoAnswerError) as raised:
            transport("GetItem", KEY)
        thread.join(DEADLINE_S)
    assert not isinstance(raised.value, UnusableError)


def test_a_kept_connection_may_have_any_number(service: Service) -> None:
    """A process with more than 1,024 open files sends as before."""
    most, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit < 1_200:
        pytest.skip("this process may not open as many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(most, 1_200), limit))
    open_files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_030)]
    try:
        transport = service.transport()
        for _ in range(2):
            assert transport("GetItem", KEY)["Item"]
        assert service.connections == 1
    finally:
        for number in open_files:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, limit))


# ── What the lean transport does by itself ────────────────────────────────────────────────────────


LINES: Final = (
    *(
        "Content-Length: 5",
        "content-length:5",
        "Content-Length: 9",
        "Content-Length: five",
        "x-amz-crc32: 1",
    ),
    *("Transfer-Encoding: chunked", "Connection: keep-alive", "Connection: close"),
    *("Date: today ", " folded", "no header", "X: \x85"),
)
STATUSES: Final = (
    "HTTP/1.1 200 OK",
    "HTTP/1.1 400 ",
    "HTTP/1.0 200 OK",
    "HTTP/1.1 204 No",
    "HTTP/1.1 20 ?",
    "SMTP",
)
CONTENTS: Final = (b"12345", b"5\r\n12345\r\n0\r\n\r\n", b"123", b"12345 and more")


@pytest.mark.parametrize("lines", [LINES[:0], *permutations(LINES, 1), *permutations(LINES, 2)])
def test_answers_are_read_as_the_standard_library_reads_them(lines: Sequence[str]) -> None:
    """Whatever form an answer has, and wherever it is divided on its way.

    One that may have more is not kept.
    """
    for status, content, cut in product(STATUSES, CONTENTS, (0, 20, 60)):
        sent = "\r\n".join([status, *lines, "", ""]).encode("latin-1") + content
        *ours, is_kept = _read(sent, cut, _received)
        assert ours[:3] == [*_read(sent, cut, _read_by_the_standard_library)][: len(ours)]
        assert not is_kept or (sent.endswith(b"\r\n\r\n12345") and "Connection: close" not in lines)


class InParts(BytesIO):
    """A connection that brings an answer in two parts, and ends."""

    cut: int

    def recv(self, size: int) -> bytes:
        return self.read(min(size, self.cut - self.tell()) if self.tell() < self.cut else size)

    recv_into = BytesIO.readinto

    def makefile(self, _mode: str) -> Self:
        return self


def _read(sent: bytes, cut: int, read: Callable[[Any], tuple[Any, ...]]) -> tuple[Any, ...]:
    connection = InParts(sent)
    connection.cut = cut
    try:
        status, headers, *rest = read(connection)
    except (NoAnswerError, OSError, IncompleteRead):
        return NoAnswerError, False
    except (HTTPException, ValueError) as error:
        return type(error), False
    return status, {name.lower(): value.strip() for name, value in headers.items()}, *rest


def _read_by_the_standard_library(connection: Any) -> tuple[Any, ...]:
    answer = HTTPResponse(connection, method="POST")
    answer.begin()
    return answer.status, answer.headers, answer.read()


@pytest.mark.parametrize(
    "reply",
    [answer(b"<html>", 200), answer(b"<html>", 403), answer(b"[]"), b"220 smtp ready\r\n"],
    ids=["a page", "a refusal by somebody else", "no object", "no HTTP"],
)
def test_an_answer_of_somebody_else_leads_to_botocore(
    service: Service, reply: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The request and all later ones go the other way, and one warning says so."""
    other = Mock(return_value={"Item": {}})
    service.answers.append(reply)
    guarded = Guarded(service.transport(), lambda: other)
    with caplog.at_level(logging.WARNING):
        assert [guarded(operation, KEY) for operation in ("GetItem", "PutItem")] == [
            {"Item": {}}
        ] * 2
    assert other.mock_calls == [call("GetItem", KEY), call("PutItem", KEY)]
    assert [each.message.startswith(BOTOCORE_USED) for each in caplog.records] == [True]


def test_an_unknown_authority_is_not_trusted(service: Service) -> None:
    """If the certificate cannot be verified with Amazon's roots, all others are tried.

    Then nothing is sent.
    """
    distrust = ssl.create_default_context()
    tls = Mock(side_effect=[distrust, service.trusted(True), distrust, distrust])
    assert service.transport(tls=tls)("GetItem", KEY)["Item"]
    with pytest.raises(UnusableError, match="certificate"):
        service.transport(tls=tls)("GetItem", KEY)
    assert tls.mock_calls == [call(False), call(True)] * 2
    assert len(service.requests) == 1


@pytest.mark.parametrize("complete", [False, True])
def test_a_certificate_that_nobody_signed_is_refused(service: Service, complete: bool) -> None:
    """The contexts of the product check the chain and the server's name."""
    transport = service.transport(tls=lambda _: tls_context(complete))
    with pytest.raises(UnusableError, match="certificate"):
        transport("GetItem", KEY)
    assert service.requests == []


@pytest.mark.parametrize("minutes", [-60, 60])
def test_a_wrong_clock_is_corrected(service: Service, minutes: int) -> None:
    """A signature that is refused is made again at the service's time.

    If it stays refused, botocore finds out why.
    """
    wrong = NOW + timedelta(minutes=minutes)
    transport = service.transport(clock=lambda: int(wrong.timestamp() * 1000))
    service.answers.append(refusal("InvalidSignatureException"))
    transport("GetItem", KEY)
    transport("GetItem", KEY)
    sent = [f"{at:%Y%m%dT%H%M%SZ}" for at in (wrong, NOW, NOW)]
    assert [headers["x-amz-date"] for headers, _ in service.requests] == sent
    service.answers += [refusal("InvalidSignatureException")] * 2
    with pytest.raises(UnusableError):
        service.transport()("GetItem", KEY)
    assert len(service.requests) == 5


@pytest.mark.parametrize("code", ["ExpiredTokenException", "UnrecognizedClientException"])
def test_expired_credentials_are_replaced(service: Service, code: str) -> None:
    """A request that was refused for expired credentials is signed again with new ones, once."""
    current = ["old", "new"]

    def credentials(*, renew: bool = False) -> Credentials:
        if renew:
            current.pop(0)
        return Credentials(current[0], "secret")

    service.answers.append(refusal(code))
    service.transport(credentials=credentials)("GetItem", KEY)
    signers = [
        headers["authorization"].split("Credential=")[1].split("/")[0]
        for headers, _ in service.requests
    ]
    assert signers == ["old", "new"]
    current[:] = ["old", "older"]
    service.answers += [refusal(code)] * 2
    with pytest.raises(ServiceError, match=code):
        service.transport(credentials=credentials)("GetItem", KEY)


def test_without_credentials_nothing_is_sent(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a definite refusal."""

    def none(**_: object) -> Credentials:
        raise CredentialsError("the runtime gave no credentials")

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, os.devnull)
    for transport in (service.transport(credentials=none), botocore_transport(**TIMEOUTS)):
        with pytest.raises(ServiceError) as refused:
            transport("GetItem", KEY)
        assert (refused.value.status, service.requests) == (0, [])


def test_a_transaction_may_be_sent_again(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a token, its own or the store's.

    X-Ray's header goes along, unsigned, as the runtime sets it.
    """
    monkeypatch.setenv("_X_AMZN_TRACE_ID", "Root=1-5759e988-bd862e3fe1be46a994272793")
    for own in ({}, {"ClientRequestToken": "mine"}):
        service.transport()("TransactWriteItems", {"TransactItems": [], **own})
    made, kept = (json.loads(body)["ClientRequestToken"] for _, body in service.requests)
    assert (len(made), kept) == (36, "mine")
    headers, _ = service.requests[-1]
    assert headers["x-amzn-trace-id"].startswith("Root=1-")
    assert "trace" not in headers["authorization"]


# ── Credentials that rotate ───────────────────────────────────────────────────────────────────────


def test_rotating_credentials_are_fetched_in_time(tmp_path: Path) -> None:
    """They are fetched again before they expire.

    While the runtime does not answer, those that are left are used.
    """
    now_ms = NOW_MS
    (tmp_path / "token").write_text("let me in\n")
    environment = {"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(tmp_path / "token")}
    with Service().running() as runtime:
        credentials = ContainerCredentials(
            f"{runtime.url}/2021/credentials?for=me", environment, lambda: now_ms
        )

        def give(name: str | None) -> None:
            expiry = datetime.fromtimestamp(now_ms / 1000, UTC) + timedelta(hours=1)
            keys = {
                "AccessKeyId": name,
                "SecretAccessKey": "s",
                "Token": "t",
                "Expiration": expiry.isoformat(),
            }
            runtime.answers.append(answer(name and keys))

        give("first")
        assert [credentials().access_key for _ in range(2)] == ["first", "first"]
        ((headers, _),) = runtime.requests
        assert (headers[":path"], headers["authorization"]) == (
            "/2021/credentials?for=me",
            "let me in",
        )
        now_ms += 55 * MINUTE_MS
        give(None)
        assert credentials().access_key == "first"
        until(lambda: len(runtime.requests) == 2)
        give("second")
        now_ms += MINUTE_MS
        until(lambda: credentials().access_key == "second")
        give("third")
        assert credentials(renew=True).access_key == "third"
        now_ms += 61 * MINUTE_MS
        give(None)
        with pytest.raises(CredentialsError):
            credentials()


def test_an_agent_that_hangs_costs_no_request_while_credentials_hold(tmp_path: Path) -> None:
    """They are renewed before they expire, in a thread of its own.

    One, however many requests come.
    """
    now_ms = NOW_MS
    released = threading.Event()
    gave_up = threading.Event()

    def hang(_: object) -> None:
        released.wait(AGENT_HANGS_S)
        gave_up.set()

    with Service().running() as runtime:
        credentials = ContainerCredentials(f"{runtime.url}/keys", {}, lambda: now_ms)
        expiry = datetime.fromtimestamp(now_ms / 1000, UTC) + timedelta(hours=1)
        keys = {"AccessKeyId": "first", "SecretAccessKey": "s", "Expiration": expiry.isoformat()}
        runtime.answers.append(answer(keys))
        assert credentials().access_key == "first"
        now_ms += 55 * MINUTE_MS
        runtime.answers.append(hang)
        assert [credentials().access_key for _ in range(3)] == ["first"] * 3
        assert not gave_up.is_set()
        released.set()
        until(lambda: len(runtime.requests) == 2)


@pytest.mark.parametrize(
    "url", ["http://example.com/keys", "https://127.0.0.1/keys", "file:///keys", ""]
)
def test_credentials_come_from_this_machine_only(url: str) -> None:
    """Whoever sets a variable cannot have credentials fetched from elsewhere."""
    with pytest.raises(CredentialsError):
        ContainerCredentials(url, {}, lambda: 0)


# ── When only botocore knows ──────────────────────────────────────────────────────────────────────


UNUSUAL: Final = """
    AWS_PROFILE=mine HTTPS_PROXY=http://proxy AWS_WEB_IDENTITY_TOKEN_FILE=/token
    AWS_USE_FIPS_ENDPOINT=true
    AWS_ACCOUNT_ID_ENDPOINT_MODE=required AWS_DEFAULT_REGION=cn-north-1
    AWS_DEFAULT_REGION=us-gov-west-1
    AWS_DEFAULT_REGION= AWS_ENDPOINT_URL=https://proxy/dynamodb AWS_ENDPOINT_URL_DYNAMODB=https://me@proxy
    AWS_SECRET_ACCESS_KEY= AWS_CONFIG_FILE=/config AWS_SHARED_CREDENTIALS_FILE=/credentials
"""


@pytest.mark.parametrize("setting", UNUSUAL.split())
def test_unusual_settings_are_left_to_botocore(setting: str) -> None:
    """Settings that only botocore understands are not guessed at."""
    name, _, value = setting.partition("=")
    assert lean_transport(FUNCTION) is not None
    assert lean_transport(FUNCTION | {name: value}) is None
    assert name in only_botocore_knows(FUNCTION | {name: value})


def test_a_process_that_only_botocore_can_serve_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning that names the setting, unless botocore was asked for."""
    for name, value in (FUNCTION | {"AWS_CONFIG_FILE": os.devnull}).items():
        monkeypatch.setenv(name, value)
    for choice in ("botocore", "auto"):
        monkeypatch.setenv("IDEMPOTENCY_TRANSPORT", choice)
        assert isinstance(dynamodb_transport(), BotocoreTransport)
    assert [each.message.startswith(BOTOCORE_USED) for each in caplog.records] == [True]
    assert "AWS_CONFIG_FILE" in caplog.text
