"""A transport to DynamoDB without botocore: signed JSON over connections that are kept.

Botocore loads for a third of a second and takes most of an event's CPU. This transport does only
what the store needs. Only botocore knows what proxies, profiles and other partitions mean: then
`lean_transport` returns None. If something else than DynamoDB answers, `Guarded` changes to
botocore for good.
"""

import binascii
import json
import logging
import os
import re
import select
import socket
import ssl
import sys
import time
import uuid
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Lock
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from carride_idempotency.clock import Clock, epoch_ms
from carride_idempotency.forks import renew_in_children, renew_lock
from carride_idempotency.stores.signing import Credentials, CredentialsError, Signer, credentials_of
from carride_idempotency.stores.timed_socket import Received, TimedSocket, connect, left_s
from carride_idempotency.stores.transport import (
    BOTOCORE_USED,
    CONNECT_TIMEOUT_S,
    READ_TIMEOUT_S,
    NoAnswerError,
    ServiceError,
    Transport,
)

_KEPT: Final = 20
_RECEIVED: Final = 65_536
"""The most bytes that are received at once."""
_CONTENT_TYPE: Final = "application/x-amz-json-1.0"
_USER_AGENT: Final = "carride-idempotency lang/python"
_OK: Final = 200
_MOST_DIGITS: Final = len("16777216")
"""Of a content's length in bytes: DynamoDB answers with at most 16 MB."""
_SERVER_ERROR: Final = 500
_HTTP: Final = 80
_HTTPS: Final = 443

_is_standard_region: Final = re.compile(
    r"(?:af|ap|ca|eu|il|me|mx|sa|us)-(?:north|south)?(?:east|west|central)?-\d"
).fullmatch
"""Regions of the partition `aws`. Botocore knows the endpoints of the others."""
_ONLY_BOTOCORE: Final = (
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_ROLE_ARN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "AWS_USE_FIPS_ENDPOINT",
    "AWS_USE_DUALSTACK_ENDPOINT",
    "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
)
"""Variables whose meaning only botocore knows."""

_SKEWED: Final = frozenset(
    {"InvalidSignatureException", "RequestTimeTooSkewed", "RequestExpired", "SignatureDoesNotMatch"}
)
_EXPIRED: Final = frozenset(
    {"ExpiredTokenException", "UnrecognizedClientException", "ExpiredToken"}
)

_log: Final = logging.getLogger("carride_idempotency")


class UnusableError(NoAnswerError):
    """Raised for an answer that DynamoDB did not give. The request may have taken place."""


class LeanTransport:
    """Sends requests to DynamoDB at a URL without a path. It may be used from several threads.

    ``credentials`` returns what signs the requests. It is called with ``renew=True`` after DynamoDB
    has refused expired ones. ``tls`` makes the TLS context, as `tls_context` does.

    A try ends after ``longest_try_s``, also if its request is signed and sent again. Not bounded by
    it are the resolution of the host's name and the waits for credentials: for the first ones, and
    for others after expired ones were refused.
    """

    def __init__(
        self,
        url: str,
        region: str,
        credentials: Callable[..., Credentials],
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        read_timeout_s: float = READ_TIMEOUT_S,
        clock: Clock = epoch_ms,
        tls: Callable[[bool], ssl.SSLContext] | None = None,
    ) -> None:
        self.longest_try_s = connect_timeout_s + read_timeout_s
        self._connect_s = connect_timeout_s
        self._read_s = read_timeout_s
        self._clock = clock
        self._address = urlsplit(url)
        self._host = self._address.netloc
        self._signer = Signer(region)
        self._credentials = credentials
        self._kept: deque[socket.socket] = deque(maxlen=_KEPT)
        self._tls = tls or tls_context
        self._context: ssl.SSLContext | None = None
        self._trusts_whole_bundle = False
        self._skew_ms = 0
        renew_in_children(self, LeanTransport.close)  # the parent's connections stay open there

    def __call__(self, operation: str, request: Mapping[str, Any], /) -> Mapping[str, Any]:
        """Send one request.

        Raises:
            UnusableError: something else than DynamoDB answered, or it cannot be trusted.
        """
        if operation == "TransactWriteItems" and "ClientRequestToken" not in request:
            request = {**request, "ClientRequestToken": str(uuid.uuid4())}
        body = _json(request).encode()
        headers = self._signed(operation, body)
        end = time.monotonic() + self.longest_try_s
        received = self._exchange(headers, body, end)
        answer = _decoded(received)
        if received.status != _OK and self._corrects(_code_of(answer), received.headers):
            received = self._exchange(self._signed(operation, body), body, end)
            answer = _decoded(received)
        if received.status == _OK:
            return answer
        raise _refusal(received.status, answer)

    def close(self) -> None:
        """Close the kept connections. A function need not: it is frozen, not ended."""
        while self._kept:
            self._kept.pop().close()

    def _corrects(self, code: str, headers: Mapping[str, str]) -> bool:
        """Correct what a refused signature was made from, if that is why a request was refused.

        Return whether the request may be accepted with another signature.
        """
        if code in _EXPIRED:
            with suppress(CredentialsError):
                self._credentials(renew=True)
            return True
        if code not in _SKEWED:
            return False
        from email.utils import parsedate_to_datetime

        with suppress(LookupError, TypeError, ValueError):
            theirs = parsedate_to_datetime(headers["date"])
            self._skew_ms = int(theirs.timestamp() * 1000) - self._clock()
        return True

    def _exchange(self, headers: Mapping[str, str], body: bytes, end: float) -> "_Received":
        """Send a request and read its answer until ``end``, a time of `time.monotonic`."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"POST / HTTP/1.1\r\n{lines}content-length: {len(body)}\r\n\r\n".encode("latin-1")
        connection = self._live() or self._connected(end)
        timed = TimedSocket(connection, min(end, time.monotonic() + self._read_s))
        try:
            timed.sendall(head + body)
            received = _received(timed)
        except BaseException as error:  # noqa: BLE001 - raised as `_no_answer` says
            connection.close()
            # What cut this connection may have cut the others: the next try connects anew.
            self.close()
            # Without its cause, which may show what the other side repeats.
            raise _no_answer(error) from None
        if received.may_be_kept:
            self._kept.append(connection)
        else:
            connection.close()
        return received

    def _signed(self, operation: str, body: bytes) -> dict[str, str]:
        try:
            credentials = self._credentials()
        except CredentialsError as error:
            raise ServiceError(type(error).__name__, 0, str(error), {}) from None
        stamp = time.strftime(
            "%Y%m%dT%H%M%SZ", time.gmtime((self._clock() + self._skew_ms) // 1000)
        )
        headers = {
            "content-type": _CONTENT_TYPE,
            "host": self._host,
            "x-amz-date": stamp,
            "x-amz-target": f"DynamoDB_20120810.{operation}",
        }
        if credentials.token:
            headers["x-amz-security-token"] = credentials.token
        headers["authorization"] = self._signer.authorization(credentials, headers, body, stamp)
        headers |= {"accept-encoding": "identity", "user-agent": _USER_AGENT}
        if trace := os.environ.get("_X_AMZN_TRACE_ID"):
            headers["x-amzn-trace-id"] = trace
        values = headers.values()
        if not (all(map(str.isascii, values)) and all(map(str.isprintable, values))):
            raise UnusableError("a header holds a line break, or letters that HTTP has none for")
        return headers

    # ── Connections ───────────────────────────────────────────────────────────────────────────────

    def _live(self) -> socket.socket | None:
        """Return a kept connection that is still open; None if there is none.

        A connection on which something has arrived was closed, or is out of step.
        """
        while True:
            try:
                connection = self._kept.pop()
            except IndexError:
                return None
            if _is_silent(connection):
                return connection
            connection.close()

    def _connected(self, end_of_try: float) -> socket.socket:
        host = str(self._address.hostname)
        is_secure = self._address.scheme == "https"
        port = self._address.port or (_HTTPS if is_secure else _HTTP)
        if _is_mocked(host):
            raise UnusableError(
                "moto stands for AWS in this process, and only botocore's requests reach it: set "
                "IDEMPOTENCY_TRANSPORT=botocore"
            )
        context = None
        connection = None
        try:
            if is_secure:
                context = self._context or self._tls(self._trusts_whole_bundle)
                self._context = context
            end = min(end_of_try, time.monotonic() + self._connect_s)
            connection = connect(host, port, end)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                connection.settimeout(left_s(end))
                connection = context.wrap_socket(connection, server_hostname=host)
        except OSError as error:
            if connection is not None:
                connection.close()
            if not _shows_another_peer(error):
                raise NoAnswerError(f"no connection to {host}: {error}") from error
            if self._trusts_whole_bundle or not isinstance(error, ssl.SSLCertVerificationError):
                raise UnusableError(f"{host} cannot be trusted: {error}") from error
            self._trusts_whole_bundle = True
            self._context = None
            return self._connected(end_of_try)
        return connection


def _is_mocked(host: str) -> bool:
    """Return whether a test has put moto in place of AWS. It leaves other hosts alone."""
    moto = sys.modules.get("moto.core.models")
    stub = getattr(moto, "botocore_stubber", None)
    return getattr(stub, "enabled", False) is True and host.endswith(".amazonaws.com")


def _shows_another_peer(error: OSError) -> bool:
    """Return whether a failed connection shows that something else than DynamoDB is there.

    A failure of TLS does, unless the handshake was only cut.
    """
    was_cut = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
    return isinstance(error, ssl.SSLError) and not was_cut


def _is_silent(connection: socket.socket) -> bool:
    """Return whether nothing has arrived, neither bytes nor the end of the connection."""
    # `select` refuses the file descriptors from 1,024 on.
    events = select.poll()
    events.register(connection, select.POLLIN)
    return not events.poll(0)


# ── Requests and answers ──────────────────────────────────────────────────────────────────────────


def _encoded(value: object) -> str:
    """Return what JSON cannot hold: binary values are sent in base64."""
    if isinstance(value, bytes | bytearray):
        return binascii.b2a_base64(value, newline=False).decode()
    raise TypeError(f"a {type(value).__name__} cannot be sent to DynamoDB")


_json: Final = json.JSONEncoder(
    separators=(",", ":"), default=_encoded, check_circular=False
).encode

_plain_head: Final = re.compile(
    rb"HTTP/1\.1 (200|[45][0-9]{2}) [^\r\n]*\r\n((?:[A-Za-z0-9-]+:[^\r\n]*\r\n)+)\r\n"
).match


class _Received(NamedTuple):
    """An answer as it was received."""

    status: int
    headers: Mapping[str, str]
    """By their names in lower case."""
    content: bytes
    may_be_kept: bool
    """Whether the connection can carry another request."""


def _received(connection: TimedSocket) -> _Received:
    """Read an answer.

    Answers as DynamoDB writes them are read here, because the standard library takes more CPU for
    that than all else that an event needs. It reads every other form.
    """
    begin = _with_its_head(connection)
    plain = _plain_head(begin)
    if plain is not None:
        lines = [line.split(":", 1) for line in plain[2].decode("latin-1").split("\r\n")[:-1]]
        headers = {name.lower(): value.strip() for name, value in lines}
        expected = _plain_length(headers)
        is_unique = len(headers) == len(lines)
        if expected is not None and is_unique:
            content = _read_up_to(expected, begin[plain.end() :], connection)
            in_step = len(content) == expected
            return _Received(int(plain[1]), headers, content[:expected], in_step)
    return _received_in_another_form(begin, connection)


def _with_its_head(connection: TimedSocket) -> bytes:
    """Receive an answer's status line and headers, and what comes with them.

    What is not HTTP is returned as it comes. HTTP that ends before its head does was cut on its
    way, and says nothing about who was there.
    """
    begin = connection.recv(_RECEIVED)
    while _is_part_of_a_head(begin):
        more = connection.recv(_RECEIVED)
        if not more:
            raise NoAnswerError("the answer was cut")
        begin += more
    return begin


def _is_part_of_a_head(begin: bytes) -> bool:
    is_http = bool(begin) and begin[:5] == b"HTTP/"[: len(begin)]
    is_whole = b"\n\r\n" in begin or b"\n\n" in begin
    return is_http and not is_whole and len(begin) < _RECEIVED


def _plain_length(headers: Mapping[str, str]) -> int | None:
    """Return the length of a content that follows as it is, on a connection that stays open."""
    length = headers.get("content-length", "")
    if not length.isdecimal() or len(length) > _MOST_DIGITS:
        return None
    if "transfer-encoding" in headers or headers.get("connection", "keep-alive") != "keep-alive":
        return None
    return int(length)


def _read_up_to(expected: int, content: bytes, connection: TimedSocket) -> bytes:
    while len(content) < expected:
        more = connection.recv(_RECEIVED)
        if not more:
            raise NoAnswerError("the answer was cut")
        content += more
    return content


def _received_in_another_form(begin: bytes, connection: TimedSocket) -> _Received:
    from http.client import HTTPResponse

    again: Any = Received(begin, connection)  # of a socket, HTTPResponse calls makefile only
    with HTTPResponse(again, method="POST") as answer:  # left open, it would print how it failed
        answer.begin()
        content = answer.read()
    headers = {name.lower(): value for name, value in answer.headers.items()}
    return _Received(answer.status, headers, content, may_be_kept=False)


def _decoded(received: _Received) -> dict[str, Any]:
    """Return the answer that a body holds."""
    status, headers, content, _ = received
    checksum = headers.get("x-amz-crc32")
    if checksum is not None and checksum != str(zlib.crc32(content)):
        raise NoAnswerError("the answer was damaged on its way")
    try:
        binary = b'"B":' in content or b'"BS":' in content
        answer = json.loads(content, object_hook=_with_binary if binary else None)
    except ValueError as error:
        if status >= _SERVER_ERROR:
            raise NoAnswerError(f"the answer (status {status}) cannot be read") from error
        raise UnusableError(f"the answer (status {status}) is not JSON") from error
    if not isinstance(answer, dict):
        raise UnusableError(f"the answer (status {status}) is not a JSON object")
    return answer


def _with_binary(value: dict[str, Any]) -> dict[str, Any]:
    """Return an attribute's value with its binary parts as bytes."""
    match value:
        case {"B": str(text), **rest} if not rest:
            return {"B": binascii.a2b_base64(text)}
        case {"BS": [*texts], **rest} if not rest:
            return {"BS": [binascii.a2b_base64(text) for text in texts]}
        case _:
            return value


def _code_of(answer: Mapping[str, Any]) -> str:
    """Return the code of an error, without the namespace that stands before it."""
    _, _, code = str(answer.get("__type", "")).rpartition("#")
    return code


def _refusal(status: int, answer: Mapping[str, Any]) -> Exception:
    """Return the error of an answer that is not 200."""
    code = _code_of(answer)
    if code in _SKEWED:
        return UnusableError(f"the signature is refused: {code}")
    message = answer.get("message", answer.get("Message", ""))
    return ServiceError(code or str(status), status, str(message), answer)


def _no_answer(error: BaseException) -> BaseException:
    """Return what the end of a connection means to the caller."""
    from http.client import HTTPException, IncompleteRead

    # RemoteDisconnected, time-outs and errors of TLS are kinds of OSError.
    if isinstance(error, OSError | IncompleteRead):
        return NoAnswerError(f"the connection ended: {error!r}")
    if isinstance(error, HTTPException):
        return UnusableError(f"the answer is not HTTP: {type(error).__name__}")
    return error


# ── Trust ─────────────────────────────────────────────────────────────────────────────────────────

_AMAZONS: Final = ("O=Amazon", "O=Starfield")
"""Whose roots the certificates of AWS's endpoints have: https://www.amazontrust.com/repository/"""


def tls_context(whole_bundle: bool) -> ssl.SSLContext:
    """Return a context that trusts the roots of Amazon's certificates, or the whole bundle.

    Loading a handful of roots takes a tenth of the time that loading all of them takes. They are
    read from the bundle that botocore ships, which Lambda keeps current.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    bundle = _bundle()
    roots = [each for each in bundle.split("# Issuer: ") if _is_of_amazon(each)]
    if not bundle:
        context.load_default_certs()
    elif whole_bundle or not roots:
        context.load_verify_locations(cadata=bundle)
    else:
        context.load_verify_locations(cadata="# ".join(roots))
    return context


def _is_of_amazon(certificate: str) -> bool:
    issuer, _, _ = certificate.partition("\n")
    return any(owner in issuer for owner in _AMAZONS)


def _bundle() -> str:
    """Return the certificates that botocore ships, without importing it."""
    from importlib.util import find_spec

    spec = find_spec("botocore")
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        path = f"{folder}/cacert.pem"
        with suppress(OSError), open(path, encoding="utf-8") as bundle:  # noqa: PTH123 - pathlib costs import time
            return bundle.read()
    return ""


# ── The choice ────────────────────────────────────────────────────────────────────────────────────


def lean_transport(
    environment: Mapping[str, str] | None = None, *, clock: Clock = epoch_ms
) -> LeanTransport | None:
    """Return the transport for an environment, by default this process's.

    None means that only botocore knows what the environment says: `only_botocore_knows` names it.
    """
    given = os.environ if environment is None else environment
    if _setting_of_botocore(given) is not None:
        return None
    credentials = credentials_of(given, clock)
    if credentials is None:
        return None
    address = _address_in(given)
    return LeanTransport(address.geturl(), _region_in(given), credentials, clock=clock)


def only_botocore_knows(environment: Mapping[str, str] | None = None) -> str:
    """Return which setting of an environment makes `lean_transport` return None."""
    given = os.environ if environment is None else environment
    return _setting_of_botocore(given) or (
        "where the credentials are: neither AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY nor "
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI is set"
    )


def _setting_of_botocore(given: Mapping[str, str]) -> str | None:
    """Return the setting whose meaning only botocore knows, if there is one.

    In the modes ``preferred`` and ``disabled`` of ``AWS_ACCOUNT_ID_ENDPOINT_MODE`` the transport
    uses the region's endpoint, which serves every account.
    """
    for name in _ONLY_BOTOCORE:
        if given.get(name):
            return name
    if given.get("AWS_ACCOUNT_ID_ENDPOINT_MODE") == "required":
        return "AWS_ACCOUNT_ID_ENDPOINT_MODE=required"
    region = _region_in(given)
    if not region:
        return "the region: AWS_DEFAULT_REGION is not set"
    if not _is_standard_region(region):
        return f"AWS_DEFAULT_REGION={region}"
    if not _is_plain(_address_in(given)):
        return "AWS_ENDPOINT_URL_DYNAMODB or AWS_ENDPOINT_URL"
    return None


def _region_in(given: Mapping[str, str]) -> str:
    return given.get("AWS_DEFAULT_REGION", "")


def _address_in(given: Mapping[str, str]) -> SplitResult:
    url = given.get("AWS_ENDPOINT_URL_DYNAMODB") or given.get("AWS_ENDPOINT_URL") or ""
    return urlsplit(url or f"https://dynamodb.{_region_in(given)}.amazonaws.com")


def _is_plain(address: SplitResult) -> bool:
    """Return whether a URL names a host, perhaps a port, and nothing else."""
    return (
        address.scheme in {"http", "https"}
        and bool(address.hostname)
        and address.path in {"", "/"}
        and "@" not in address.netloc
        and not address.query
    )


class Guarded:
    """Sends through one transport until an answer shows that it cannot be used, then by another.

    The request that failed is sent again: every request of the store is safe to repeat.
    """

    def __init__(self, lean: Transport, other: Callable[[], Transport]) -> None:
        self.longest_try_s = lean.longest_try_s
        self._lean = lean
        self._transport = lean
        self._other = other
        self._lock = Lock()
        renew_in_children(self, renew_lock)

    def __call__(self, operation: str, request: Mapping[str, Any], /) -> Mapping[str, Any]:
        """Send one request."""
        try:
            return self._transport(operation, request)
        except UnusableError as error:
            with self._lock:
                if self._transport is self._lean:
                    _log.warning("%s from now on: %s", BOTOCORE_USED, error)
                    self._transport = self._other()
        return self._transport(operation, request)
