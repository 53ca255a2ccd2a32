"""Function processes: errors, exits and timeouts, the order of modules, and complete logs.

Stock MiniStack kills a handler that raises, and answers ``Runtime.HandlerError`` without the stack
trace. A layer's module hides the function's. The log is read with timers: lines can be late, belong
to the next invocation, or be lost when the process dies, and a quiet invocation waits 50 ms for
them. On AWS only a handler that exits, is killed or overruns the function's timeout ends the
environment and fails the invocation.

Here the processes of a function share one copy of its package and layers, where MiniStack unpacks
them for each. As on AWS, functions must not write there.
"""

import hashlib
import json
import logging
import os
import tempfile
import threading
import types
import zipfile
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from ministack.core import lambda_runtime
from ministack.services import lambda_svc

from engine.bootstrap import LOG, PRELOAD
from engine.settings import Settings

_INIT_SECONDS = 10.0  # time that AWS gives a function to be imported, apart from its timeout

_logger = logging.getLogger("engine")
_stock_worker_class_for = lambda_runtime._worker_class_for
_stock_execute = lambda_svc._execute_function_warm
_unpacking = threading.Lock()


class _SharedZipFile(zipfile.ZipFile):
    def extractall(self, path: Any = None, members: Any = None, pwd: Any = None) -> None:
        """Link the entries at the package's top, in a copy that is unpacked once, into a folder."""
        digest = hashlib.sha256(Path(str(self.filename)).read_bytes()).hexdigest()
        copy = Path(tempfile.gettempdir(), f"package-{digest}")
        with _unpacking:
            if not copy.exists():
                super().extractall(copy, members, pwd)
        for entry in copy.iterdir():
            Path(path, entry.name).symlink_to(entry)


class PythonWorker(lambda_runtime.Worker):  # type: ignore[misc] # MiniStack has no types
    """A process of one Python function, which serves one invocation at a time."""

    _proc: Any  # a Popen, whose pipes are text; None before it is started and after it has ended
    _logged = 0  # how far its log has been read

    def call(self, event: Any, context: dict[str, Any]) -> dict[str, Any]:
        """Run one invocation; return ``result`` or ``error``, as Lambda answers it, and ``log``."""
        with self._lock:
            cold = self._proc is None or self._proc.poll() is not None
            if cold:
                self._spawn()
                self._logged = 0
            process = self._proc
            timeout = int(self.config.get("Timeout", 3))
            with suppress(BrokenPipeError):  # it has ended: the answer below is empty
                process.stdin.write(json.dumps({"event": event, "ctx": context}) + "\n")
                process.stdin.flush()
            if not wait([process.stdout.fileno()], timeout + (_INIT_SECONDS if cold else 0.0)):
                process.kill()
                process.wait()
                return self._failed(
                    "Sandbox.Timedout", f"Task timed out after {timeout}.00 seconds"
                )
            if answer := process.stdout.readline():
                return {**json.loads(answer), "log": self._log()}
            status = process.wait()
            how = f"by signal {-status}" if status < 0 else f"with exit status {status}"
            return self._failed("Runtime.ExitError", f"Runtime exited {how}")

    def _failed(self, kind: str, message: str) -> dict[str, Any]:
        self._proc = None
        log = f"{self._log()}\n{message}".lstrip("\n")
        return {"error": {"errorType": kind, "errorMessage": message}, "log": log}

    def _log(self) -> str:
        written = b""
        # It goes with its function.
        with suppress(FileNotFoundError), Path(self._tmpdir, LOG).open("rb") as log:
            log.seek(self._logged)
            written = log.read()
        self._logged += len(written)
        return written.decode(errors="replace").removesuffix("\n")


def _is_python(config: dict[str, Any]) -> bool:
    return str(config.get("Runtime", "")).startswith("python")


def _execute(function: dict[str, Any], event: Any, request_id: str) -> dict[str, Any]:
    config = function.get("config") or function
    if not _is_python(config) or not function.get("code_zip"):
        stock: dict[str, Any] = _stock_execute(function, event, request_id)
        return stock
    lambda_svc._ensure_reaper_thread()
    worker, _ = lambda_runtime.acquire_worker(
        config["FunctionName"],
        config,
        function["code_zip"],
        qualifier=config.get("Version", "$LATEST"),
    )
    context = {
        "request_id": request_id,
        "invoked_function_arn": config["FunctionArn"],
        "trace_id": lambda_svc._xray_trace_id_for_invocation(config),
    }
    try:
        answer = worker.call(event, context)
    except (OSError, RuntimeError) as error:  # the process could not be started
        _logger.exception("%s could not be started", config["FunctionName"])
        answer = {
            "error": {"errorType": type(error).__name__, "errorMessage": str(error)},
            "log": str(error),
        }
    finally:
        lambda_runtime.release_worker(worker)
    if "error" in answer:
        return {
            "body": answer["error"],
            "error": True,
            "function_error": "Unhandled",
            "log": answer["log"],
        }
    return {"body": answer["result"], "log": answer["log"]}


def apply(settings: Settings) -> None:
    """Replace the Python worker."""
    if settings.preload:
        # Functions' processes inherit the environment.
        os.environ[PRELOAD] = os.pathsep.join(settings.preload)
    lambda_runtime.zipfile = types.SimpleNamespace(**vars(zipfile) | {"ZipFile": _SharedZipFile})
    lambda_runtime._PYTHON_WORKER_SCRIPT = (
        Path(__file__).with_name("bootstrap.py").read_text(encoding="utf-8")
    )
    lambda_runtime._worker_class_for = lambda config: (
        PythonWorker if _is_python(config) else _stock_worker_class_for(config)
    )
    lambda_svc._execute_function_warm = _execute
