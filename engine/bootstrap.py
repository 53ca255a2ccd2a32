"""The main program of a function's process: the engine's counterpart of Lambda's Python runtime.

The engine writes JSON lines to the process's standard input: first one that names the code, then
one for each invocation. It reads one JSON line for each invocation from the process's original
standard output. The function's own standard output and standard error are its log, the file `LOG`
beside this one.

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
from types import SimpleNamespace
from typing import Any

LOG = "function.log"
PRELOAD = "_ENGINE_PRELOAD"
"""The environment variable that names the files to run before the function's own code."""

type Handler = Callable[[Any, Any], Any]


def _context(call: dict[str, Any]) -> SimpleNamespace:
    """Return the second argument of a handler."""
    name = os.environ["AWS_LAMBDA_FUNCTION_NAME"]
    deadline = time.time() + float(os.environ["_LAMBDA_TIMEOUT"])
    return SimpleNamespace(
        aws_request_id=call["request_id"],
        invoked_function_arn=call["invoked_function_arn"],
        function_name=name,
        function_version=os.environ["AWS_LAMBDA_FUNCTION_VERSION"],
        memory_limit_in_mb=os.environ["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"],
        log_group_name=f"/aws/lambda/{name}",
        log_stream_name=os.environ["AWS_LAMBDA_LOG_STREAM_NAME"],
        identity=None,
        client_context=None,
        get_remaining_time_in_millis=lambda: max(0, int((deadline - time.time()) * 1000)),
    )


def _search_path(code: str) -> list[str]:
    """Return the folders of modules: the function's, layers' (last first), and the runtime's."""
    layers = os.environ.get("_LAMBDA_LAYERS_DIRS", "").split(os.pathsep)
    layered = [f"{layer}/python" for layer in reversed(layers)]
    runtime = sys.path[1:]  # without this file's own folder
    if sys.platform == "linux":
        return [code, *layered, *runtime]
    # Layers are built for Lambda's Linux: here their compiled modules cannot be loaded, but the
    # runtime's can.
    return [code, *runtime, *layered]


def _load(module: str, handler: str) -> Handler:
    for file in filter(None, os.environ.pop(PRELOAD, "").split(os.pathsep)):
        runpy.run_path(file, run_name="__main__")
    found: Handler = getattr(importlib.import_module(module), handler)
    return found


def _describe(error: BaseException) -> dict[str, Any]:
    """Log an error with its stack trace, and return it in the form of Lambda's answer."""
    frames = traceback.format_tb(error.__traceback__)[1:]  # without this file's own
    kind = type(error).__name__
    print(
        f"[ERROR] {kind}: {error}\n{''.join(traceback.format_exception(error))}",
        end="",
        file=sys.stderr,
    )
    return {"error": {"errorMessage": str(error), "errorType": kind, "stackTrace": frames}}


def _call(handler: Handler, call: dict[str, Any], event: Any) -> str:
    try:
        result = handler(event, _context(call))
    except Exception as error:  # noqa: BLE001 - a handler may raise anything; it is the answer
        return json.dumps(_describe(error))
    try:
        return json.dumps({"result": result})
    except (TypeError, ValueError) as error:
        message = f"Unable to marshal response: {error}"
        return json.dumps({"error": {"errorMessage": message, "errorType": "Runtime.MarshalError"}})


def main() -> None:
    """Serve invocations until standard input ends."""
    # Keep the engine's two pipes out of reach of the function and of programs that it starts, whose
    # standard output belongs to the log.
    calls = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    log = os.open(Path(__file__).with_name(LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream, target in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
        os.dup2(target, stream)
    sys.stdout = sys.stderr

    def answer(line: str) -> None:
        sys.stderr.flush()
        answers.write(f"{line}\n")
        answers.flush()

    start = json.loads(calls.readline())
    os.environ.setdefault("AWS_EXECUTION_ENV", "AWS_Lambda_python3.13")
    sys.path[:] = _search_path(start["code_dir"])
    # The first call imports the module, so that a slow or failing import belongs to that call.
    answer('{"status": "ready"}')
    handler: Handler | None = None
    for line in calls:
        envelope = json.loads(line)
        call = envelope["ctx"]
        if call["trace_id"]:
            os.environ["_X_AMZN_TRACE_ID"] = call["trace_id"]
        try:
            handler = handler or _load(start["module"], start["handler"])
        except Exception as error:  # noqa: BLE001 - the import may raise anything
            found = json.dumps(_describe(error))
        else:
            found = _call(handler, call, envelope["event"])
        answer(found)
        if handler is None:  # the next call starts over, in a new process
            return


if __name__ == "__main__":
    main()
