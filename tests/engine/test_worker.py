import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from local.local_aws import LocalAws, Stack
from tests.engine.conftest import Deploy
from tests.engine.support import function, lines, needed, records, template


def call(cloud: LocalAws, stack: Stack, payload: object = None) -> tuple[str | None, Any]:
    """Invoke the stack's function and wait for its answer: the kind of error, if any, and the payload."""
    name = stack.resources["Function"]
    answer = cloud.client("lambda").invoke(FunctionName=name, Payload=json.dumps(payload))
    return answer.get("FunctionError"), json.loads(answer["Payload"].read())


def log(cloud: LocalAws, stack: Stack) -> list[str]:
    """The function's log."""
    return lines(cloud, f"/aws/lambda/{stack.resources['Function']}")


def test_an_exception_leaves_the_process_alive(engine: LocalAws, deploy: Deploy) -> None:
    """An exception is in the answer and in the log with its stack trace; the next call runs in the same process."""
    stack = deploy(Function=function('if event: raise KeyError("no such ride")\nreturn os.getpid()'))
    before = call(engine, stack, 0)[1]
    kind, error = call(engine, stack, 1)
    assert (kind, error["errorType"], error["errorMessage"]) == ("Unhandled", "KeyError", "'no such ride'")
    assert "in handler" in error["stackTrace"][0]
    assert call(engine, stack, 0)[1] == before
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
    engine: LocalAws, deploy: Deploy, body: str, kind: str, message: str
) -> None:
    """A process that exits, is killed or overruns the timeout is a failed invocation with a log; the next one runs."""
    stack = deploy(Function=function(f'print("began")\nif event:\n    {body}\nreturn "fine"', Timeout=1))
    assert call(engine, stack, 0) == (None, "fine")
    failed, error = call(engine, stack, 1)
    assert (failed, error["errorType"], message in error["errorMessage"]) == ("Unhandled", kind, True)
    assert call(engine, stack, 0) == (None, "fine")
    assert log(engine, stack).count("began") == 3


def test_every_line_of_the_log_arrives_whole(engine: LocalAws, deploy: Deploy) -> None:
    """Once the call is answered, the log has all lines of any length, also those of a started program."""
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


def test_an_answer_that_json_cannot_hold_is_an_error(engine: LocalAws, deploy: Deploy) -> None:
    """The invocation fails as it does on AWS."""
    assert call(engine, deploy(Function=function("return object()")))[1]["errorType"] == "Runtime.MarshalError"


def test_the_processes_of_a_deleted_function_end(engine: LocalAws, deploy: Deploy) -> None:
    """A stack leaves no process behind when it is deleted."""
    stack = deploy(Function=function("return os.getpid()"))
    _, process = call(engine, stack)
    os.kill(process, 0)  # it is there
    engine.delete_stack(stack.name)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


FILES: Final = {
    "code/index.py": "import shared, extra\ndef handler(event, context): return [shared.WHO, extra.WHO]",
    "code/shared.py": "WHO = 'function'",
    "layer/python/shared.py": "WHO = 'layer'",
    "layer/python/extra.py": "WHO = 'layer'",
}


def layered(cloud: LocalAws, folder: Path, name: str, files: Mapping[str, str] = FILES) -> Stack:
    """A function and a layer of these files: each with a module `shared`, the layer with one `extra` as well."""
    for file, text in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    code = {"Runtime": "python3.13", "Handler": "index.handler", "CodeUri": "code", "Layers": [{"Ref": "Layer"}]}
    layer = {"Type": "AWS::Serverless::LayerVersion", "Properties": {"ContentUri": "layer"}}
    body = template({"Layer": layer, "Function": {"Type": "AWS::Serverless::Function", "Properties": code}})
    (folder / "template.json").write_text(json.dumps(body))
    return cloud.deploy_fast(name, folder / "template.json")


@needed("worker")
def test_the_functions_own_module_wins_over_a_layers(engine: LocalAws, tmp_path: Path, name: str) -> None:
    """Where function and layer have a module of one name, the function's is imported, as from /var/task on AWS."""
    assert call(engine, layered(engine, tmp_path, name))[1] == ["function", "layer"]


def test_a_preloaded_file_runs_before_the_functions_code(tmp_path: Path) -> None:
    """It can import and change the function's modules, in every process of every function."""
    preload = tmp_path / "preload.py"
    preload.write_text("import extra\nextra.WHO = 'preload'")
    with LocalAws(f"--preload={preload}") as cloud:
        assert call(cloud, layered(cloud, tmp_path, "preloaded"))[1] == ["function", "preload"]


def test_a_killed_process_is_followed_by_one_with_the_same_copy_of_its_layer(
    engine: LocalAws, tmp_path: Path, name: str
) -> None:
    """A package is unpacked once, and its compiled modules stay."""
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
