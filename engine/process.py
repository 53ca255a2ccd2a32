"""Start and stop an engine as a process of its own, and run the SAM CLI on it.

Uses the standard library only.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

ROOT: Final = Path(__file__).resolve().parents[1]
HOST: Final = "127.0.0.1"
REGION: Final = "us-east-1"

# On a machine that has much else to do:
_START_SECONDS: Final = 120.0
_ANSWER_SECONDS: Final = 60.0
_REMOVE_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.02
_LAST_LINES: Final = 15


class EngineError(Exception):
    """The engine or the SAM CLI failed; the message says why and what to do."""


class Engine:
    """Run one engine for as long as the ``with`` block lasts.

    Its state is in memory and in one temporary folder.

    Args:
        python: Interpreter of the engine's environment.
        *options: Options of ``python -m engine serve``.
        port: TCP port to listen on; 0 takes a free one.
        variables: Environment variables of every function, beside the template's.
    """

    def __init__(
        self, python: Path, *options: str, port: int = 0, variables: Mapping[str, str] | None = None
    ) -> None:
        self.port = port
        self._python = python
        self._options = options
        self._variables = variables or {}

    def __enter__(self) -> Self:
        if not self._python.exists():
            raise EngineError(f"{self._python} is missing: run `make setup`")
        # The engine inherits this socket: a port that is chosen and released may go to another
        # process, or to a connection, before the engine listens.
        with socket.socket() as listener:
            try:
                listener.bind((HOST, self.port))
            except OSError as error:
                raise EngineError(f"port {self.port} cannot be used: {error.strerror}") from error
            self.port = listener.getsockname()[1]
            self._start(listener.fileno())
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def _start(self, listener: int) -> None:
        """Start the engine's process, which listens on a socket that this process has bound."""
        self.folder = Path(tempfile.mkdtemp(prefix="engine-"))
        serve = [
            "-m",
            "engine",
            "serve",
            f"--socket={listener}",
            f"--until-stdin-closes={self.folder}",
        ]
        # Functions see nothing else of this machine's environment.
        given = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
        }
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [self._python, *serve, *self._options],
                cwd=ROOT,
                env={**given, "LANG": "C.UTF-8", **self._variables},
                pass_fds=[listener],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A group of its own, which ends with everything that functions started.
                start_new_session=True,
            )

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the engine and every function's process, and remove its folder."""
        with suppress(ProcessLookupError):
            # All its state is in memory: nothing would be saved.
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        deadline = time.monotonic() + _REMOVE_SECONDS
        # Dying processes may still write into it.
        while self.folder.exists() and time.monotonic() < deadline:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def endpoint_url(self) -> str:
        """The address to set ``AWS_ENDPOINT_URL`` to."""
        return f"http://{HOST}:{self.port}"

    @property
    def log(self) -> Path:
        """The engine's own log."""
        return self.folder / "engine.log"

    def environment(self) -> dict[str, str]:
        """Return the variables with which ``aws``, ``sam`` and boto3 reach this engine."""
        return environment(self.endpoint_url)

    def request(self, path: str, method: str = "GET", body: bytes | None = None) -> bytes:
        """Send a request to an address that is not part of AWS's API, and return the answer.

        Raises:
            EngineError: The engine's process has ended.
            urllib.error.URLError: The engine did not answer, or refused.
        """
        url = self.endpoint_url + path  # http, on loopback
        request = urllib.request.Request(url, body, method=method)  # noqa: S310 - as above
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as answer:  # noqa: S310
                return bytes(answer.read())
        except urllib.error.URLError as error:
            if self._process.poll() is not None:
                raise self._ended() from error
            raise

    def sam(self, *command: str, parameters: Mapping[str, str], folder: Path | None = None) -> None:
        """Run a command of the SAM CLI on this engine, in a folder or the current one.

        Raises:
            EngineError: The SAM CLI is missing or failed; the message holds all that it printed.
        """
        path = f"{ROOT / '.venv-sam' / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        if (program := shutil.which("sam", path=path)) is None:
            raise EngineError("the SAM CLI is missing: run `make setup`")
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("AWS_")
        }
        overrides = [f"{name}={value}" for name, value in parameters.items()]
        done = subprocess.run(
            [program, *command, *(["--parameter-overrides", *overrides] if overrides else [])],
            cwd=folder,
            env=inherited | self.environment() | {"PATH": path, "SAM_CLI_TELEMETRY": "0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise EngineError(f"sam {command[0]} failed:\n{done.stdout}")

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise self._ended()
            with suppress(urllib.error.URLError):
                self.request("/_ministack/health")
                return
            time.sleep(_POLL_SECONDS)
        raise EngineError(
            f"the engine was not ready in {_START_SECONDS:g} s; it said:\n{self._last_lines()}"
        )

    def _ended(self) -> EngineError:
        return EngineError(f"the engine ended by itself; its last lines:\n{self._last_lines()}")

    def _last_lines(self) -> str:
        return "\n".join(
            self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
        )


def environment(endpoint_url: str) -> dict[str, str]:
    """Return the environment variables with which ``aws``, ``sam`` and boto3 reach an engine."""
    return {
        "AWS_ENDPOINT_URL": endpoint_url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_REGION": REGION,
    }


def end_in_order() -> None:
    """Have Ctrl-C and SIGTERM raise KeyboardInterrupt, so that ``with`` blocks clean up.

    A shell without job control starts background commands with SIGINT ignored, and Python leaves it
    ignored.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
