"""Servers that tests start for themselves: child processes on free loopback ports, gone with the test run."""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
ENGINE: Final = ROOT / ".venv-engine/bin/ministack"
DYNAMODB_LOCAL: Final = ROOT / "scripts/dynamodb-local"
_PATIENCE_S: Final = 30.0


@contextlib.contextmanager
def ministack(folder: Path) -> Iterator[str]:
    """Run the local engine as it comes, and yield its endpoint's URL."""
    port = free_port()
    environment = {
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "IOT_MTLS_ENABLED": "0",
        "SFTP_ENABLED": "0",
        "TMPDIR": str(folder),
        "HOME": str(folder),
    }
    health = b"GET /_ministack/health HTTP/1.0\r\n\r\n"
    with _running([str(ENGINE)], folder, environment, lambda: _answers(port, health, b"HTTP/1")):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def dynamodb_local(folder: Path) -> Iterator[str]:
    """Run AWS's own DynamoDB Local, and yield its endpoint's URL."""
    port = free_port()
    question = b"GET / HTTP/1.0\r\n\r\n"
    with _running([str(DYNAMODB_LOCAL), str(port)], folder, {}, lambda: _answers(port, question, b"HTTP/1")):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def _running(
    command: list[str], folder: Path, environment: dict[str, str], is_up: Callable[[], bool]
) -> Iterator[None]:
    log = folder / "server.log"
    path = {"PATH": os.environ["PATH"]}
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, env=path | environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        give_up = time.monotonic() + _PATIENCE_S
        while not is_up():
            if process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError(f"{command[0]} did not start:\n{log.read_text()}")
            time.sleep(0.02)
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    """Return a loopback port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(port: int, question: bytes, answer: bytes) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(question)
            return connection.recv(64).startswith(answer)
    except OSError:
        return False
