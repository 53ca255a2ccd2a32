"""HTTP requests to one gateway, each bounded in its time and in the size of its answer.

A socket's own timeout starts again with every byte. A gateway that sends one byte every two seconds
would hold a request for ever. So each request has one end, and every wait ends there.
"""

import select
import socket
import time
from collections.abc import Callable
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from io import BufferedReader, RawIOBase
from typing import Any, Final, NamedTuple, Protocol, cast
from urllib.parse import urlsplit

from carride.forks import renew_in_children
from gateway import GatewayUnavailableError

LONGEST_ANSWER: Final = 1_048_576
"""In bytes: a page of payments with their charges has about 600 kB."""


class HttpRequest(NamedTuple):
    """A request to the gateway."""

    method: str
    path: str
    headers: dict[str, str]
    content: bytes | None = None


class HttpResponse(NamedTuple):
    """What the gateway answered."""

    status: int
    content: bytes


class Connection(Protocol):
    """Carries requests to one gateway."""

    def exchange(self, request: HttpRequest) -> HttpResponse:
        """Send a request once, and return the answer, or raise GatewayUnavailableError."""

    def close(self) -> None:
        """Close what it keeps open."""


class GatewayConnection:
    """A connection to a gateway, which is kept from one request to the next.

    It is opened at the first request. A request that fails closes it, and the next one opens it
    again.

    Args:
        url: where the gateway is. The paths of requests are appended to its own.
        connect_timeout_s: in which time the connection must be opened.
        read_timeout_s: in which time the request must be sent and its answer be read.
    """

    def __init__(self, url: str, connect_timeout_s: float, read_timeout_s: float) -> None:
        address = urlsplit(url)
        kind = HTTPSConnection if address.scheme == "https" else HTTPConnection
        host = str(address.hostname)
        self._new = partial(kind, host, address.port, timeout=connect_timeout_s)
        self._connection = self._new()
        self._base_path = address.path.rstrip("/")
        self._read_timeout_s = read_timeout_s
        renew_in_children(self, GatewayConnection._renew)

    def exchange(self, request: HttpRequest) -> HttpResponse:
        """Send a request once, and return the answer.

        Raises:
            GatewayUnavailableError: There was no answer in time, or it is too large. The request
                may have taken effect.
        """
        try:
            return self._exchange(request)
        except (OSError, HTTPException, ValueError) as error:
            self.close()
            # The path may name a customer, and errors end up in logs.
            raise GatewayUnavailableError(f"no answer: {type(error).__name__}") from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _renew(self) -> None:
        self._connection = self._new()

    def _exchange(self, request: HttpRequest) -> HttpResponse:
        if self._has_ended():
            self.close()
        if self._connection.sock is None:
            self._connection.connect()
        end = time.monotonic() + self._read_timeout_s
        self._connection.sock.settimeout(self._read_timeout_s)
        self._connection.response_class = cast("Any", _answer_until(end))
        path = self._base_path + request.path
        self._connection.request(request.method, path, request.content, request.headers)
        answer = self._connection.getresponse()
        content = answer.read(LONGEST_ANSWER + 1)
        if not answer.isclosed():
            raise ValueError(f"the answer is cut off, or larger than {LONGEST_ANSWER:,} bytes")
        return HttpResponse(answer.status, content)

    def _has_ended(self) -> bool:
        """Return whether the gateway has ended the kept connection.

        Otherwise there would be nothing to read before the next request.
        """
        if self._connection.sock is None:
            return False
        poll = select.poll()  # `select.select` fails for the 1,024th open file and those above
        poll.register(self._connection.sock, select.POLLIN)
        return bool(poll.poll(0))


def _answer_until(end: float) -> Callable[..., HTTPResponse]:
    """Return what makes the answer of a socket, which must be read before ``end``."""

    def answer(sock: socket.socket, **options: Any) -> HTTPResponse:
        return HTTPResponse(cast("Any", _TimedSocket(sock, end)), **options)

    return answer


class _TimedSocket:
    """A socket whose bytes can be read until a fixed time, however often some of them come.

    `HTTPResponse` asks a socket only for the file that it reads.
    """

    def __init__(self, sock: socket.socket, end: float) -> None:
        self._socket = sock
        self._end = end

    def makefile(self, mode: str) -> BufferedReader:  # noqa: ARG002 - it is always "rb"
        """Return the file that an answer is read from."""
        return BufferedReader(_TimedFile(self._socket, self._end))


class _TimedFile(RawIOBase):
    def __init__(self, sock: socket.socket, end: float) -> None:
        self._socket = sock
        self._file = sock.makefile("rb", buffering=0)  # keeps the socket open while it is read
        self._end = end

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Wait for some bytes; raise TimeoutError once the time is over."""
        left_s = self._end - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the answer took too long")
        self._socket.settimeout(left_s)
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()
