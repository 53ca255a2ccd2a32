"""Servers that tests start for themselves: child processes on free loopback ports, gone with the test run."""

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
DYNAMODB_LOCAL: Final = ROOT / "scripts/dynamodb-local"
_PATIENCE_S: Final = 30.0


@contextlib.contextmanager
def dynamodb_local() -> Iterator[str]:
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
    """Return a loopback port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
