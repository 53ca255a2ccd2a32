"""A socket whose waits end at one time: its own timeout would begin anew with every byte."""

import io
import socket
import time
from collections.abc import Buffer


def left_s(end: float) -> float:
    """Return the seconds until ``end``, a time of `time.monotonic`.

    Raises:
        TimeoutError: it has come.
    """
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def connect(host: str, port: int, end: float) -> socket.socket:
    """Return a connection to a host by ``end``, whatever addresses it has.

    They are tried in their order, each for an equal part of the time that is left.

    Raises:
        OSError: none of them takes the connection in time.
    """
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failed = OSError("it has no address")
    for tried, (family, kind, protocol, _, address) in enumerate(addresses):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(left_s(end) / (len(addresses) - tried))
            connection.connect(address)
        except OSError as error:
            connection.close()
            failed = error
        else:
            return connection
    raise failed


class TimedSocket:
    """Sends and receives until ``end``, a time of `time.monotonic`. Then it raises TimeoutError."""

    __slots__ = ("_end", "_socket")

    def __init__(self, connection: socket.socket, end: float) -> None:
        self._socket = connection
        self._end = end

    def sendall(self, data: bytes) -> None:
        """Send all of ``data``."""
        self._socket.settimeout(left_s(self._end))
        sent = self._socket.send(data)
        while sent < len(data):
            self._socket.settimeout(left_s(self._end))
            sent += self._socket.send(memoryview(data)[sent:])

    def recv(self, size: int) -> bytes:
        """Receive at most ``size`` bytes."""
        self._socket.settimeout(left_s(self._end))
        return self._socket.recv(size)

    def recv_into(self, buffer: Buffer) -> int:
        """Receive into a buffer, and return how many bytes came."""
        self._socket.settimeout(left_s(self._end))
        return self._socket.recv_into(buffer)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return what reads from it, as a socket does for `http.client`."""
        return io.BufferedReader(Received(b"", self))

    def close(self) -> None:
        """Leave the connection open: whoever opened it closes it, when the answer is read."""


class Received(io.RawIOBase):
    """Gives what was received once more, and then what the connection still has."""

    def __init__(self, received: bytes, connection: TimedSocket) -> None:
        self._received = received
        self._connection = connection

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return a reader, as a socket does."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill a buffer, and return how many bytes were written."""
        view = memoryview(buffer)
        if not self._received:
            return self._connection.recv_into(view)
        part = self._received[: len(view)]
        self._received = self._received[len(view) :]
        view[: len(part)] = part
        return len(part)
