"""The lean transport over TLS on this machine, in every fault that a connection has, and botocore beside it."""

import json
import logging
import socket
import ssl
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from idempotency.stores.lean import Guarded, LeanTransport, UnusableError, lean_transport
from idempotency.stores.signing import ContainerCredentials, Credentials, CredentialsError
from idempotency.stores.transport import NoAnswerError, ServiceError, Transport, botocore_transport

NOW: Final = datetime(2026, 11, 21, 8, 30, tzinfo=UTC)
KEY: Final = {"TableName": "Idempotency", "Key": {"idempotencyKey": {"S": "history#k1"}}}
KEYS: Final = Credentials("AKIDFIRST", "secret", "token")
TIMEOUTS: Final = {"connect_timeout_s": 1.0, "read_timeout_s": 0.4}

# Kept connections live as long as their transport, which nothing closes: a function is frozen, not ended.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")

type Answer = bytes | Callable[[socket.socket], None]


def answer(body: bytes, status: int = 200, *headers: str, length: int | None = None) -> bytes:
    """Return an HTTP answer as DynamoDB writes it."""
    lines = (f"HTTP/1.1 {status} Something", f"Content-Length: {len(body) if length is None else length}", *headers)
    return "\r\n".join([*lines, "", ""]).encode() + body


def refusal(code: str, **members: Any) -> bytes:
    """Return DynamoDB's refusal of a request."""
    body = {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "made by a test", **members}
    return answer(json.dumps(body).encode(), 400, f"Date: {format_datetime(NOW, usegmt=True)}")


FOUND: Final = answer(b'{"Item":{"status":{"S":"COMPLETED"}}}')


class Service:
    """Answers each request with the next of its answers, over TLS with a certificate of its own authority."""

    def __init__(self, folder: Path) -> None:
        self.answers: deque[Answer] = deque()
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.connections = 0
        self.authority = _certificates(folder)
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(folder / "service.pem")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"https://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """End it."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def trusted(self, complete: bool) -> ssl.SSLContext:
        """Return a context that trusts the service's authority."""
        return ssl.create_default_context(cadata=self.authority)

    def transport(self, **options: Any) -> LeanTransport:
        """Return a lean transport to it, whose clock shows the service's time."""
        clock = options.pop("clock", lambda: int(NOW.timestamp() * 1000))
        given = {"tls": self.trusted, "clock": clock, **TIMEOUTS} | options
        return LeanTransport(self.url, "eu-west-1", given.pop("credentials", lambda **_: KEYS), **given)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with suppress(OSError), self._tls.wrap_socket(connection, server_side=True) as secure:
            while self._hear(secure):
                reply = self.answers.popleft() if self.answers else FOUND
                if isinstance(reply, bytes):
                    secure.sendall(reply)
                else:
                    reply(secure)
                    return

    def _hear(self, connection: socket.socket) -> bool:
        head = b""
        while b"\r\n\r\n" not in head:
            if not (more := connection.recv(65_536)):
                return False
            head += more
        head, _, body = head.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")[1:]
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        while len(body) < int(headers["content-length"]):
            body += connection.recv(65_536)
        self.requests.append((headers, body))
        return True


def _certificates(folder: Path) -> str:
    """Write the key and certificate of a service, and return the certificate of the authority that issued it."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test")])
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    made = []
    for key, is_authority in zip(keys, (True, False), strict=True):
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(datetime.now(UTC) - timedelta(days=1))
            .not_valid_after(datetime.now(UTC) + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(keys[0].public_key()), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        )
        if is_authority:
            usage = x509.KeyUsage(
                digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
                key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
                decipher_only=False,
            )  # fmt: skip
            builder = builder.add_extension(usage, critical=True)
        made.append(builder.sign(keys[0], hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "service.pem").write_bytes(keys[1].private_bytes(*form) + made[1])
    return made[0].decode()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A service that answers as DynamoDB does."""
    running = Service(tmp_path)
    yield running
    running.stop()


@pytest.fixture(params=["lean", "botocore"])
def transport(
    request: pytest.FixtureRequest, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Transport:
    """Each transport to the service."""
    if request.param == "lean":
        return service.transport()
    (tmp_path / "ca.pem").write_text(service.authority)
    for name, value in (("AWS_CA_BUNDLE", str(tmp_path / "ca.pem")), ("AWS_ENDPOINT_URL", service.url)):
        monkeypatch.setenv(name, value)
    return botocore_transport(connect_timeout_s=1.0, read_timeout_s=0.4)


# ── Both transports ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_answer_is_read(service: Service, transport: Transport) -> None:
    """The second request uses the connection of the first; binary values are bytes, as they were sent."""
    service.answers += [FOUND, answer(b'{"Item":{"B":{"B":"AP8="},"all":{"BS":["AQ=="]},"m":{"M":{"B":{"S":"x"}}}}}')]
    assert transport("GetItem", KEY)["Item"] == {"status": {"S": "COMPLETED"}}
    read = transport("GetItem", KEY | {"Key": {"k": {"B": b"\x00\xff"}}})["Item"]
    assert read == {"B": {"B": b"\x00\xff"}, "all": {"BS": [b"\x01"]}, "m": {"M": {"B": {"S": "x"}}}}
    assert json.loads(service.requests[1][1])["Key"] == {"k": {"B": "AP8="}}
    assert service.connections == 1


class Fault(NamedTuple):
    """What happens to an answer."""

    name: str
    answer: Answer


def _silence(connection: socket.socket) -> None:
    connection.recv(1)  # until the client gives up


NO_ANSWER: Final = [
    Fault("cut", answer(b'{"Item":', length=100)),
    Fault("closed without a byte", lambda connection: connection.shutdown(socket.SHUT_RDWR)),
    Fault("silent", _silence),
    Fault("damaged", answer(b"{}", 200, f"x-amz-crc32: {zlib.crc32(b'{]')}")),
    Fault("a server's error without a body", answer(b"", 503)),
]


@pytest.mark.parametrize("fault", NO_ANSWER, ids=lambda fault: fault.name)
@pytest.mark.parametrize("kept", [False, True], ids=["new connection", "kept connection"])
def test_no_answer_is_no_answer(service: Service, transport: Transport, fault: Fault, *, kept: bool) -> None:
    """The outcome is unknown; the request was sent once, and the next one is answered."""
    if kept:
        transport("GetItem", KEY)
    before = len(service.requests)
    reply = fault.answer if callable(fault.answer) else _then_close(fault.answer)
    service.answers.append(reply)
    try:
        answered: object = str(transport("GetItem", KEY))
    except ServiceError as error:
        answered = error.status
    except NoAnswerError as error:
        answered = type(error)
    assert answered in {NoAnswerError, 503}
    assert len(service.requests) == before + 1
    assert transport("GetItem", KEY)["Item"]


def _then_close(content: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(content)


def test_a_chunked_answer_is_read(service: Service, transport: Transport) -> None:
    """Whatever stands between may send an answer in pieces."""
    body = b'{"Item":{}}'
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:4], body[4:], b""))
    service.answers.append(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
    assert transport("GetItem", KEY)["Item"] == {}


def test_a_refusal_has_its_code_and_body(service: Service, transport: Transport) -> None:
    """A condition that does not hold comes back with the stored item; the connection is kept."""
    service.answers.append(refusal("ConditionalCheckFailedException", Item={"owner": {"S": "o"}}))
    with pytest.raises(ServiceError) as refused:
        transport("PutItem", {"TableName": "Idempotency", "Item": KEY["Key"]})
    assert (refused.value.code, refused.value.status) == ("ConditionalCheckFailedException", 400)
    assert refused.value.body["Item"] == {"owner": {"S": "o"}}
    transport("GetItem", KEY)
    assert service.connections == 1


def test_a_connection_that_died_while_it_was_kept_is_replaced(service: Service, transport: Transport) -> None:
    """A connection that the other side closed between two requests is not used for the second."""
    service.answers.append(_then_close(FOUND))
    for _ in range(2):
        assert transport("GetItem", KEY)["Item"]
    assert (service.connections, len(service.requests)) == (2, 2)


def test_threads_share_the_connections(service: Service, transport: Transport) -> None:
    """Requests of several threads do not meet on one connection."""
    service.answers += [answer(json.dumps({"Item": {"n": {"N": str(number)}}}).encode()) for number in range(40)]
    found: list[str] = []

    def ask() -> None:
        found.extend(transport("GetItem", KEY)["Item"]["n"]["N"] for _ in range(10))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(int, found)) == list(range(40))
    assert service.connections <= 4


# ── What the lean transport does by itself ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "reply",
    [answer(b"<html>", 200), answer(b"<html>", 403), answer(b"[]"), b"220 smtp ready\r\n"],
    ids=["a page", "a refusal by somebody else", "no object", "no HTTP"],
)
def test_an_answer_of_somebody_else_leads_to_botocore(
    service: Service, reply: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The request and all later ones go the other way, and one warning says so."""
    sent: list[str] = []

    def other(operation: str, _request: Any) -> Any:
        sent.append(operation)
        return {"Item": {}}

    service.answers.append(reply)
    guarded = Guarded(service.transport(), lambda: other)  # type: ignore[arg-type, return-value] # a function will do
    assert guarded.name == "lean"
    with caplog.at_level(logging.WARNING):
        assert [guarded(operation, KEY) for operation in ("GetItem", "PutItem")] == [{"Item": {}}] * 2
    assert (sent, guarded.name, len(caplog.records)) == (["GetItem", "PutItem"], "botocore", 1)


def test_an_unknown_authority_is_not_trusted(service: Service) -> None:
    """If the certificate cannot be verified with Amazon's roots, all others are tried; then nothing is sent."""
    asked: list[bool] = []

    def tls(complete: bool) -> ssl.SSLContext:
        asked.append(complete)
        return service.trusted(complete) if len(asked) == 2 and trusted else ssl.create_default_context()

    trusted = True
    assert service.transport(tls=tls)("GetItem", KEY)["Item"]
    assert asked == [False, True]
    trusted = False
    asked.clear()
    with pytest.raises(UnusableError, match="certificate"):
        service.transport(tls=tls)("GetItem", KEY)
    assert (asked, len(service.requests)) == ([False, True], 1)


@pytest.mark.parametrize("minutes", [-60, 60])
def test_a_wrong_clock_is_corrected(service: Service, minutes: int) -> None:
    """A signature that is refused for its time is made again with the service's; later ones are right at once."""
    wrong = NOW + timedelta(minutes=minutes)
    transport = service.transport(clock=lambda: int(wrong.timestamp() * 1000))
    service.answers.append(refusal("InvalidSignatureException"))
    transport("GetItem", KEY)
    transport("GetItem", KEY)
    assert [headers["x-amz-date"] for headers, _ in service.requests] == [
        f"{wrong:%Y%m%dT%H%M%SZ}",
        *[f"{NOW:%Y%m%dT%H%M%SZ}"] * 2,
    ]


def test_a_signature_that_stays_refused_leads_to_botocore(service: Service) -> None:
    """Whether the signature or the key is wrong, botocore finds out."""
    service.answers += [refusal("InvalidSignatureException")] * 2
    with pytest.raises(UnusableError):
        service.transport()("GetItem", KEY)
    assert len(service.requests) == 2


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
    signers = [headers["authorization"].split("Credential=")[1].split("/")[0] for headers, _ in service.requests]
    assert signers == ["old", "new"]
    current[:] = ["old", "older"]
    service.answers += [refusal(code)] * 2
    with pytest.raises(ServiceError, match=code):
        service.transport(credentials=credentials)("GetItem", KEY)


def test_without_credentials_nothing_is_sent(service: Service) -> None:
    """It is a definite refusal."""

    def none(**_: object) -> Credentials:
        raise CredentialsError("the runtime gave no credentials")

    with pytest.raises(ServiceError) as refused:
        service.transport(credentials=none)("GetItem", KEY)
    assert (refused.value.status, service.requests) == (0, [])


def test_a_transaction_may_be_sent_again(service: Service) -> None:
    """Each has a token by which DynamoDB recognises a repetition; the store's own is kept."""
    transport = service.transport()
    for given in ({}, {"ClientRequestToken": "mine"}):
        transport("TransactWriteItems", {"TransactItems": [], **given})
    tokens = [json.loads(body)["ClientRequestToken"] for _, body in service.requests]
    assert len(tokens[0]) == 36
    assert tokens[1] == "mine"


def test_a_request_joins_its_trace(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """X-Ray's header goes along, unsigned, as the runtime sets it for each invocation."""
    monkeypatch.setenv("_X_AMZN_TRACE_ID", "Root=1-5759e988-bd862e3fe1be46a994272793")
    service.transport()("GetItem", KEY)
    ((headers, _),) = service.requests
    assert headers["x-amzn-trace-id"].startswith("Root=1-")
    assert "trace" not in headers["authorization"]


# ── Credentials that rotate ───────────────────────────────────────────────────────────────────────────────────────────


def test_rotating_credentials_are_fetched_in_time(tmp_path: Path) -> None:
    """They are fetched again before they expire; while the runtime does not answer, those that are left are used."""
    now_ms = int(NOW.timestamp() * 1000)
    given: list[dict[str, str] | None] = []
    listener = socket.create_server(("127.0.0.1", 0))
    heard: list[str] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                heard.append(connection.recv(65_536).decode())
                body = json.dumps(given.pop(0)).encode()
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    thread = threading.Thread(target=serve)
    thread.start()
    (tmp_path / "token").write_text("let me in\n")
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/2021/credentials?for=me"
    environment = {"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(tmp_path / "token")}
    credentials = ContainerCredentials(url, environment, lambda: now_ms)

    def keys(name: str, minutes: int) -> dict[str, str]:
        expiry = (datetime.fromtimestamp(now_ms / 1000, UTC) + timedelta(minutes=minutes)).isoformat()
        return {"AccessKeyId": name, "SecretAccessKey": "s", "Token": "t", "Expiration": expiry}

    try:
        given.append(keys("first", 60))
        assert [credentials().access_key for _ in range(2)] == ["first", "first"]
        assert "GET /2021/credentials?for=me" in heard[0]
        assert "Authorization: let me in" in heard[0]
        now_ms += 55 * 60_000
        given.append(None)
        assert credentials().access_key == "first"
        given.append(keys("second", 60))
        assert credentials().access_key == "second"
        given.append(keys("third", 60))
        assert credentials(renew=True).access_key == "third"
        now_ms += 61 * 60_000
        given.append(None)
        with pytest.raises(CredentialsError):
            credentials()
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


@pytest.mark.parametrize("url", ["http://example.com/keys", "https://127.0.0.1/keys", "file:///keys", ""])
def test_credentials_come_from_this_machine_only(url: str) -> None:
    """Whoever sets a variable cannot have credentials fetched from elsewhere."""
    with pytest.raises(CredentialsError):
        ContainerCredentials(url, {}, lambda: 0)


# ── When only botocore knows ──────────────────────────────────────────────────────────────────────────────────────────

FUNCTION: Final = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "s", "AWS_DEFAULT_REGION": "eu-west-1"}


@pytest.mark.parametrize(
    "given",
    [
        {"AWS_PROFILE": "mine"},
        {"HTTPS_PROXY": "http://proxy"},
        {"AWS_WEB_IDENTITY_TOKEN_FILE": "/token"},
        {"AWS_USE_FIPS_ENDPOINT": "true"},
        {"AWS_ACCOUNT_ID_ENDPOINT_MODE": "required"},
        {"AWS_DEFAULT_REGION": "cn-north-1"},
        {"AWS_DEFAULT_REGION": "us-gov-west-1"},
        {"AWS_DEFAULT_REGION": ""},
        {"AWS_ENDPOINT_URL": "https://proxy/dynamodb"},
        {"AWS_ENDPOINT_URL_DYNAMODB": "https://me@proxy"},
        {"AWS_SECRET_ACCESS_KEY": ""},
    ],
    ids=" ".join,
)
def test_unusual_settings_are_left_to_botocore(given: dict[str, str]) -> None:
    """Settings that only botocore understands are not guessed at."""
    assert lean_transport(FUNCTION) is not None
    assert lean_transport(FUNCTION | given) is None
