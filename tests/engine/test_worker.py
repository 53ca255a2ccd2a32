import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from local.local_aws import Laptop, Stack
from tests.engine.conftest import Deploy
from tests.engine.support import function, lines, needless, records, template


def call(laptop: Laptop, stack: Stack, payload: object = None) -> tuple[str | None, Any]:
    """Invoke the stack's function and wait for its answer: the kind of error, if any, and the payload."""
    name = stack.resources["Function"]
    answer = laptop.client("lambda").invoke(FunctionName=name, Payload=json.dumps(payload))
    return answer.get("FunctionError"), json.loads(answer["Payload"].read())


def log(laptop: Laptop, stack: Stack) -> list[str]:
    """The function's log."""
    return lines(laptop, f"/aws/lambda/{stack.resources['Function']}")


COUNTS_CALLS = 'os.environ["CALLS"] = str(int(os.environ.get("CALLS", "0")) + 1)'


def test_an_exception_leaves_the_process_alive(engine: Laptop, deploy: Deploy) -> None:
    """A handler that raises is answered with its error and stack trace; the next call meets the same process."""
    stack = deploy(
        engine,
        Function=function(
            f'{COUNTS_CALLS}\nif event: raise KeyError("no such ride")\nreturn os.getpid(), os.environ["CALLS"]'
        ),
    )
    before = call(engine, stack, 0)[1]
    kind, error = call(engine, stack, 1)
    after = call(engine, stack, 0)[1]
    assert kind == "Unhandled"
    assert error["errorType"] == "KeyError"
    assert "no such ride" in error["errorMessage"]
    assert "in handler" in error["stackTrace"][0]
    assert after == [before[0], "3"]


def test_an_exceptions_stack_trace_is_in_the_log(engine: Laptop, deploy: Deploy) -> None:
    """The log of a failed invocation says what was raised and where."""
    stack = deploy(engine, Function=function('raise KeyError("no such ride")'))
    call(engine, stack)
    logged = log(engine, stack)
    assert "[ERROR] KeyError: 'no such ride'" in logged
    assert any("in handler" in line for line in logged)


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        ("os._exit(3)", "Runtime.ExitError", "exit status 3"),
        ("sys.exit(4)", "Runtime.ExitError", "exit status 4"),
        ("os.kill(os.getpid(), 9)", "Runtime.ExitError", "by signal 9"),
        ("time.sleep(30)", "Sandbox.Timedout", "Task timed out after 1.00 seconds"),
    ],
    ids=["exit", "sys-exit", "kill", "timeout"],
)
def test_the_death_of_a_process_fails_the_invocation(
    engine: Laptop, deploy: Deploy, body: str, kind: str, message: str
) -> None:
    """A process that exits, is killed or overruns the timeout is a failed invocation with a log; the next one runs."""
    stack = deploy(engine, Function=function(f'print("began")\nif event:\n    {body}\nreturn "fine"', Timeout=1))
    assert call(engine, stack, 0) == (None, "fine")
    failed, error = call(engine, stack, 1)
    assert failed == "Unhandled"
    assert error["errorType"] == kind
    assert message in error["errorMessage"]
    assert call(engine, stack, 0) == (None, "fine")
    assert log(engine, stack).count("began") == 3


def test_every_line_of_the_log_arrives_whole(engine: Laptop, deploy: Deploy) -> None:
    """Lines of any length and number, also of a program that was started, are in the log once the call is answered."""
    body = """
for number in range(2000): print(json.dumps({"line": number}))
print(json.dumps({"long": "x" * 300_000}))
os.system("echo from a program")
sys.stderr.write("without an end")
"""
    stack = deploy(engine, Function=function(body))
    call(engine, stack)
    found = records(engine, stack)
    assert [each["line"] for each in found if "line" in each] == list(range(2000))
    assert [len(each["long"]) for each in found if "long" in each] == [300_000]
    assert {"from a program", "without an end"} <= set(log(engine, stack))


def test_a_quiet_invocation_is_answered_at_once(engine: Laptop, deploy: Deploy) -> None:
    """A warm call of a function that writes nothing takes milliseconds: 20 of them stay below half a second."""
    stack = deploy(engine, Function=function("return time.time()"))
    call(engine, stack)
    first, last = call(engine, stack)[1], 0.0
    for _ in range(20):
        last = call(engine, stack)[1]
    assert last - first < 0.5


def test_an_import_that_fails_is_answered_with_its_error(engine: Laptop, deploy: Deploy) -> None:
    """What a module raises while it is imported is the error of the invocation, and is in the log."""
    broken = {"Runtime": "python3.13", "Handler": "index.handler", "InlineCode": "import nothing_like_it"}
    stack = deploy(engine, Function={"Type": "AWS::Serverless::Function", "Properties": broken})
    _, error = call(engine, stack)
    assert error["errorType"] == "ModuleNotFoundError"
    assert any("ModuleNotFoundError" in line for line in log(engine, stack))


def test_the_processes_of_a_deleted_function_end(engine: Laptop, deploy: Deploy) -> None:
    """A stack leaves no process behind when it is deleted."""
    stack = deploy(engine, Function=function("return os.getpid()"))
    _, process = call(engine, stack)
    os.kill(process, 0)  # it is there
    engine.delete_stack(stack.name)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_an_answer_that_is_no_json_is_an_error(engine: Laptop, deploy: Deploy) -> None:
    """A result that JSON cannot carry fails the invocation as it does on AWS."""
    stack = deploy(engine, Function=function("return object()"))
    assert call(engine, stack)[1]["errorType"] == "Runtime.MarshalError"


FILES = {
    "code/index.py": "import shared, extra\ndef handler(event, context): return [shared.WHO, extra.WHO]",
    "code/shared.py": "WHO = 'function'",
    "layer/python/shared.py": "WHO = 'layer'",
    "layer/python/extra.py": "WHO = 'layer'",
}


def layered(laptop: Laptop, folder: Path, name: str, files: Mapping[str, str] = FILES) -> Stack:
    """A function and a layer of these files: each with a module `shared`, the layer with one `extra` as well."""
    for file, text in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    code = {"Runtime": "python3.13", "Handler": "index.handler", "CodeUri": "code", "Layers": [{"Ref": "Layer"}]}
    body = template(
        {
            "Layer": {"Type": "AWS::Serverless::LayerVersion", "Properties": {"ContentUri": "layer"}},
            "Function": {"Type": "AWS::Serverless::Function", "Properties": code},
        }
    )
    (folder / "template.json").write_text(json.dumps(body))
    return laptop.deploy_fast(name, folder / "template.json")


def test_the_functions_own_module_wins_over_a_layers(engine: Laptop, tmp_path: Path, name: str) -> None:
    """Where function and layer have a module of one name, the function's is imported, as from /var/task on AWS."""
    assert call(engine, layered(engine, tmp_path, name))[1] == ["function", "layer"]


def test_a_killed_process_is_followed_by_one_with_the_same_copy_of_its_layer(
    engine: Laptop, tmp_path: Path, name: str
) -> None:
    """A package is unpacked once, and what Python has compiled of it is still there."""
    body = """
import os
import shared
def handler(event, context):
    if event: os._exit(1)
    return [os.getpid(), os.path.realpath(shared.__file__), os.path.realpath(shared.__cached__)]
"""
    files = {"code/index.py": body, "layer/python/shared.py": FILES["layer/python/shared.py"]}
    stack = layered(engine, tmp_path, name, files)
    first = call(engine, stack)[1]
    assert call(engine, stack, "die")[0] == "Unhandled"
    second = call(engine, stack)[1]
    assert first[0] != second[0]
    assert first[1] == second[1]
    assert Path(second[2]).is_relative_to(Path(second[1]).parent)


def test_stock_prefers_the_layers_module(stock: Laptop, tmp_path: Path, name: str) -> None:
    """Canary: the plug-in is needed while MiniStack lets a layer hide a function's modules, or an error's type."""
    stack = layered(stock, tmp_path, name)
    own_module = call(stock, stack)[1] == ["function", "layer"]
    failing = stock.deploy_fast(f"{name}-fails", template({"Function": function("raise KeyError(1)")}))
    if own_module and call(stock, failing)[1]["errorType"] == "KeyError":
        needless("function processes as AWS has them", "worker")
