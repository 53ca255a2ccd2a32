"""A Valkey or Redis server on this machine, if one is installed."""

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import valkey
from valkey.backoff import ConstantBackoff, NoBackoff
from valkey.retry import Retry

HOST: Final = "127.0.0.1"


def program() -> str | None:
    """Return the path of the installed server, or None."""
    return shutil.which("valkey-server") or shutil.which("redis-server")


def reserved_port() -> int:
    """Return a port that nobody gets for some seconds, but a server that asks for this one.

    The kernel gives no other bind and no connection the port of a connection that has just ended
    (TIME_WAIT). A server sets SO_REUSEADDR, and gets it.
    """
    with socket.create_server((HOST, 0)) as listening:
        address: tuple[str, int] = listening.getsockname()
        with socket.create_connection(address):
            ending, _ = listening.accept()
            ending.close()  # before the other side: whoever closes first keeps its port
    return address[1]


@contextmanager
def running(installed: str, *settings: str) -> Iterator[int]:
    """Run a server that keeps nothing on disk, and yield its port.

    Args:
        installed: The result of `program`.
        *settings: Further options of its command line.

    Raises:
        valkey.ConnectionError: It did not start.
    """
    port = reserved_port()
    with tempfile.TemporaryDirectory(prefix="carride-valkey-") as folder:
        address = ["--port", str(port), "--bind", HOST]
        on_disk = ["--save", "", "--appendonly", "no", "--dir", folder]
        command = [installed, *address, *on_disk, *settings]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_until_it_answers(port)
            yield port
        finally:
            server.kill()
            server.wait()


def _wait_until_it_answers(port: int) -> None:
    patience = Retry(ConstantBackoff(0.05), 600, (OSError,))
    with valkey.Valkey(host=HOST, port=port, retry=patience) as asking:
        asking.ping()


def client(port: int, timeout_s: float) -> valkey.Valkey:
    """Return a client that sends each call once."""
    return valkey.Valkey(
        host=HOST, port=port, socket_timeout=timeout_s, retry=Retry(NoBackoff(), 0)
    )
