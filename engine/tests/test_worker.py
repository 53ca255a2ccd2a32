import json
import os
from pathlib import Path
from typing import Any, Final

import pytest

from engine.client import LocalCloud, Stack
from engine.tests.conftest import Deploy
from engine.tests.support import function, lines, needed, records, template

pytestmark = pytest.mark.integration


def call(cloud: LocalCloud, stack: Stack, payload: object = None) -> tuple[str | None, Any]:
    """Invoke the stack's function and wait for its answer.

    The kind of error, if any, and the payload.
    """
    name = stack.resources["Function"]
    answer = cloud.client("lambda").invoke(FunctionName=name, Payload=json.dumps(payload))
    return answer.get("FunctionError"), json.loads(answer["Payload"].read())


def log(cloud: LocalCloud, stack: Stack) -> list[str]:
    return lines(cloud, f"/aws/lambda/{stack.resources['Function']}")


def test_an_exception_leaves_the_process_alive(engine: LocalCloud, deploy: Deploy) -> None:
    """An exception is in the answer and in the log with its stack trace.

    The next call runs in the same process.

    An answer that JSON cannot hold is an error, too.
    """
    body = (
        'if event == 1: raise KeyError("no such ride")\nreturn object() if event else os.getpid()'
    )
    stack = deploy(Function=function(body))
    before = call(engine, stack, 0)
    kind, error = call(engine, stack, 1)
    assert (kind, error["errorType"], error["errorMessage"]) == (
        "Unhandled",
        "KeyError",
        "'no such ride'",
    )
    assert "in handler" in error["stackTrace"][0]
    assert call(engine, stack, 2)[1]["errorType"] == "Runtime.MarshalError"
    assert call(engine, stack, 0) == before
    logged = log(engine, stack)
    assert "[ERROR] KeyError: 'no such ride'" in logged
    assert any("in handler" in line for line in logged)


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        ("sys.exit(4)", "Runtime.ExitError", "exit status 4"),
        ("os.kill(os.getpid(), 9)", "Runtime.ExitError", "by signal 9"),
        ("time.sleep(30)", "Sandbox.Timedout", "Task timed out after 1.00 seconds"),
    ],
    ids=["exit", "kill", "timeout"],
)
def test_the_death_of_a_process_fails_the_invocation(
    engine: LocalCloud, deploy: Deploy, body: str, kind: str, message: str
) -> None:
    """A process that exits, is killed or overruns the timeout is a failed invocation with a log.

    The next one runs.
    """
    stack = deploy(
        Function=function(f'print("began")\nif event:\n    {body}\nreturn "fine"', Timeout=1)
    )
    assert call(engine, stack, 0) == (None, "fine")
    failed, error = call(engine, stack, 1)
    assert (failed, error["errorType"], message in error["errorMessage"]) == (
        "Unhandled",
        kind,
        True,
    )
    assert call(engine, stack, 0) == (None, "fine")
    assert log(engine, stack).count("began") == 3


def test_every_line_of_the_log_arrives_whole(engine: LocalCloud, deploy: Deploy) -> None:
    """An answered call's log has all lines of any length, also those of a started program."""
    body = """
for number in range(2000): print(json.dumps({"line": number}))
print(json.dumps({"long": "x" * 300_000}))
os.system("echo from a program")
sys.stderr.write("without an end")
"""
    stack = deploy(Function=function(body))
    call(engine, stack)
    found = records(engine, stack)
    assert [each["line"] for each in found if "line" in each] == list(range(2000))
    assert [len(each["long"]) for each in found if "long" in each] == [300_000]
    assert {"from a program", "without an end"} <= set(log(engine, stack))


def test_the_processes_of_a_deleted_function_end(engine: LocalCloud, deploy: Deploy) -> None:
    """A stack leaves no process behind when it is deleted."""
    stack = deploy(Function=function("return os.getpid()"))
    _, process = call(engine, stack)
    os.kill(process, 0)  # it is there
    engine.delete_stack(stack.name)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


FILES: Final = {
    "code/index.py": "import shared, extra\n"
    "def handler(event, context): return [shared.WHO, extra.WHO]",
    "code/shared.py": "WHO = 'function'",
    "layer/python/shared.py": "WHO = 'layer'",
    "layer/python/extra.py": "WHO = 'layer'",
}


@needed("worker")
def test_the_functions_own_module_wins_over_a_layers(
    engine: LocalCloud, tmp_path: Path, name: str
) -> None:
    """Of two modules of one name, the function's is imported, not the layer's, as on AWS."""
    for file, text in FILES.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    code = {
        "Runtime": "python3.13",
        "Handler": "index.handler",
        "CodeUri": "code",
        "Layers": [{"Ref": "Layer"}],
    }
    layer = {"Type": "AWS::Serverless::LayerVersion", "Properties": {"ContentUri": "layer"}}
    body = template(
        {"Layer": layer, "Function": {"Type": "AWS::Serverless::Function", "Properties": code}}
    )
    (tmp_path / "template.json").write_text(json.dumps(body))
    assert call(engine, engine.apply(name, tmp_path / "template.json"))[1] == [
        "function",
        "layer",
    ]
