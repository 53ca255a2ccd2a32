"""The main program of a function's process: the engine's counterpart of Lambda's Python runtime.

The engine writes JSON lines to the process's standard input: first one that names the code, then one for each
invocation. It reads one JSON line for each invocation from the process's original standard output. The function's own
standard output and standard error are its log; after each invocation a line that ends in `END_OF_LOG` closes it.

The engine copies this file to a folder of its own, so it imports the standard library only.
"""

import importlib
import json
import os
import runpy
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

END_OF_LOG = "\x00end of log"
PRELOAD = "_ENGINE_PRELOAD"
"""The environment variable that names the files to run before the function's own code."""

type Handler = Callable[[Any, Any], Any]


class Context:
    """The second argument of a handler."""

    def __init__(self, call: dict[str, Any], deadline: float) -> None:
        self.aws_request_id = call["request_id"]
        self.invoked_function_arn = call["invoked_function_arn"]
        self.function_name = os.environ["AWS_LAMBDA_FUNCTION_NAME"]
        self.function_version = os.environ["AWS_LAMBDA_FUNCTION_VERSION"]
        self.memory_limit_in_mb = os.environ["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"]
        self.log_group_name = call["log_group"]
        self.log_stream_name = os.environ["AWS_LAMBDA_LOG_STREAM_NAME"]
        self.identity = None
        self.client_context = None
        self._deadline = deadline

    def get_remaining_time_in_millis(self) -> int:
        """Return the milliseconds until the function's timeout, never below 0."""
        return max(0, int((self._deadline - time.time()) * 1000))


def search_path(code: str, layers: list[str]) -> list[str]:
    """Return the folders of modules: the function's, then its layers' (the last one first), then the runtime's.

    Layers are built for Lambda's Linux. On another system their compiled modules cannot be loaded, so there the
    runtime's own copies go first.
    """
    inside = [Path(layer, "python") for layer in reversed(layers)]
    site = Path("lib", f"python{sys.version_info.major}.{sys.version_info.minor}", "site-packages")
    layered = [str(path) for folder in inside for path in (folder, folder / site) if path.is_dir()]
    runtime = sys.path[1:]  # without this file's own folder
    return [code, *layered, *runtime] if sys.platform == "linux" else [code, *runtime, *layered]


def _load(module: str, handler: str) -> Handler:
    for file in filter(None, os.environ.pop(PRELOAD, "").split(os.pathsep)):
        runpy.run_path(file, run_name="__main__")
    found: Handler = getattr(importlib.import_module(module), handler)
    return found


def _describe(error: BaseException) -> dict[str, Any]:
    """Log an error with its stack trace, and return it in the form of Lambda's answer."""
    frames = traceback.format_tb(error.__traceback__)[1:]  # without this file's own
    kind = type(error).__name__
    print(f"[ERROR] {kind}: {error}\n{''.join(traceback.format_exception(error))}", end="", file=sys.stderr)
    return {"errorMessage": str(error), "errorType": kind, "stackTrace": frames}


def _call(handler: Handler, call: dict[str, Any], event: Any) -> dict[str, Any]:
    context = Context(call, time.time() + float(os.environ["_LAMBDA_TIMEOUT"]))
    try:
        result = handler(event, context)
    except Exception as error:  # noqa: BLE001 - a handler may raise anything; it is the answer
        return {"error": _describe(error)}
    try:
        json.dumps(result)
    except (TypeError, ValueError) as error:
        message = f"Unable to marshal response: {error}"
        return {"error": {"errorMessage": message, "errorType": "Runtime.MarshalError"}}
    return {"result": result}


def main() -> None:
    """Serve invocations until standard input ends."""
    # Keep the engine's two pipes out of reach of the function and of programs that it starts, whose standard output
    # belongs to the log.
    calls = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr

    start = json.loads(calls.readline())
    os.environ.setdefault("AWS_EXECUTION_ENV", "AWS_Lambda_python3.13")
    sys.path[:] = search_path(start["code_dir"], os.environ.get("_LAMBDA_LAYERS_DIRS", "").split(os.pathsep))
    # The first call imports the module, so that a slow or failing import belongs to that call.
    answers.write('{"status": "ready"}\n')
    answers.flush()

    handler: Handler | None = None
    for line in calls:
        envelope = json.loads(line)
        call = envelope["ctx"]
        if call["trace_id"]:
            os.environ["_X_AMZN_TRACE_ID"] = call["trace_id"]
        broken = False
        try:
            handler = handler or _load(start["module"], start["handler"])
        except Exception as error:  # noqa: BLE001 - an import runs the function's code, which may raise anything
            answer, broken = {"error": _describe(error)}, True
        else:
            answer = _call(handler, call, envelope["event"])
        print(END_OF_LOG, file=sys.stderr, flush=True)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        if broken:  # the next call starts over, in a new process
            return


if __name__ == "__main__":
    main()
