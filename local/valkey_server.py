"""A server of Valkey or Redis on this machine, where one is installed: for the chaos and for tests, never deployed."""

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import valkey
from valkey.backoff import NoBackoff
from valkey.retry import Retry

HOST: Final = "127.0.0.1"
_START_SECONDS: Final = 30.0
_STOP_SECONDS: Final = 10.0


def program() -> str | None:
    """Return where the server is installed; None where it is not."""
    return shutil.which("valkey-server") or shutil.which("redis-server")


@contextmanager
def running(installed: str, *settings: str) -> Iterator[int]:
    """Run a server that keeps nothing on disk, and yield its port.

    Args:
        installed: what `program` has found.
        *settings: further options of its command line.

    Raises:
        valkey.ConnectionError: it did not start.
    """
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="carride-valkey-") as folder:
        options = ["--port", str(port), "--bind", HOST, "--save", "", "--appendonly", "no", "--dir", folder, *settings]
        server = subprocess.Popen([installed, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_until_it_answers(port)
            yield port
        finally:
            server.terminate()
            try:
                server.wait(timeout=_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def client(port: int, timeout_s: float) -> valkey.Valkey:
    """Return a client that makes one attempt a call."""
    return valkey.Valkey(host=HOST, port=port, socket_timeout=timeout_s, retry=Retry(NoBackoff(), 0))


def _wait_until_it_answers(port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    with client(port, timeout_s=1) as asking:
        while True:
            try:
                asking.ping()
            except (valkey.ConnectionError, valkey.TimeoutError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return
