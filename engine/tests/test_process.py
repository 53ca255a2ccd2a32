"""An engine's start and end, builds, deployments and waiting."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.client import LocalCloud
from engine.process import ROOT, Engine, EngineError
from engine.tests.support import PERMISSION, attribute, bus, function, put, rule, template, until

pytestmark = pytest.mark.integration

SLEEPS = {
    "Bus": bus(),
    "Function": function('print("began", flush=True)\ntime.sleep(60)', Timeout=90),
    "Rule": rule({"Arn": attribute("Function")}),
    "Permission": PERMISSION,
}
STAYS = """
import signal
from engine.client import LocalCloud
with LocalCloud() as cloud:
    print(cloud.port, cloud.folder, flush=True)
    signal.pause()
"""


def processes_in(folder: Path) -> list[str]:
    listing = subprocess.run(
        ["/bin/ps", "-eo", "args"], capture_output=True, text=True, check=True
    ).stdout
    return [line for line in listing.splitlines() if str(folder) in line]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_nothing_is_left_when_the_block_ends_in_an_error() -> None:
    """The engine, a function at work in its process, and the folder are gone."""

    def interrupted(cloud: LocalCloud) -> None:
        put(cloud, cloud.apply("sleeps", template(SLEEPS)), {})
        assert until(lambda: processes_in(cloud.folder))
        raise KeyboardInterrupt

    cloud = LocalCloud()
    with pytest.raises(KeyboardInterrupt), cloud:
        interrupted(cloud)
    assert not cloud.folder.exists()
    assert until(lambda: not processes_in(cloud.folder))
    assert until(lambda: not listens(cloud.port))


def test_the_engine_ends_with_the_process_that_started_it() -> None:
    """When that process is killed, the engine ends by itself and removes its folder."""
    with subprocess.Popen(
        [sys.executable, "-c", STAYS], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        port, folder = parent.stdout.readline().split()
        parent.send_signal(signal.SIGKILL)
    assert until(lambda: not listens(int(port)))
    assert until(lambda: not Path(folder).exists())


def test_nothing_else_gets_the_engines_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken from its choice on, before the engine's process starts and listens."""
    start = subprocess.Popen
    tried = list[int]()

    def start_late(*command: Any, **options: Any) -> Any:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", cloud.port))
        tried.append(cloud.port)
        return start(*command, **options)

    monkeypatch.setattr(subprocess, "Popen", start_late)
    cloud = LocalCloud()
    with cloud:
        assert not any(cloud.in_flight().values())
    assert tried == [cloud.port]


def test_functions_see_nothing_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of the shell that started the engine do not reach functions.

    Variables of the engine do.

    Waiting names the unfinished work when its time is over; after a reset there are no events and
    no stacks.
    """
    monkeypatch.setenv("SECRET_OF_THE_SHELL", "x")
    with LocalCloud(variables={"GIVEN": "y"}) as cloud:
        stack = cloud.apply(
            "environment", template({"Function": function("return dict(os.environ)")})
        )
        answer = cloud.client("lambda").invoke(FunctionName=stack.resources["Function"])
        variables = json.loads(answer["Payload"].read())
        assert "SECRET_OF_THE_SHELL" not in variables
        assert (variables["GIVEN"], variables["AWS_REGION"]) == ("y", "us-east-1")

        put(cloud, cloud.apply("sleeps", template(SLEEPS)), {})
        with pytest.raises(EngineError, match=r"busy after 0\.1 s \(.*1 async events"):
            cloud.wait_until_quiet(timeout=0.1)
        cloud.reset()
        cloud.wait_until_quiet()
        assert cloud.client("cloudformation").describe_stacks()["Stacks"] == []


def test_a_failed_deployment_names_the_resource(engine: LocalCloud, name: str) -> None:
    """The error is one sentence: the first resource that failed this time, and why."""
    broken = {"Type": "AWS::Events::Archive", "Properties": {"SourceArn": "x", "EventPattern": "{"}}
    engine.apply(name, template({"Bus": bus()}))
    for archive in ("First", "Second"):
        with pytest.raises(
            EngineError,
            match=rf"^update_stack of {name} failed: {archive} \(AWS::Events::Archive\): ",
        ):
            engine.apply(name, template({"Bus": bus(), archive: broken}))


@pytest.mark.parametrize(
    ("python", "reason"),
    [
        ("nowhere/python", "nowhere/python is missing: run `make setup`"),
        (sys.executable, "ended by itself.*--nonsense"),
    ],
)
def test_an_engine_that_cannot_start_says_why(python: str, reason: str) -> None:
    """The error says what to run, or shows the last lines of the engine's log."""
    with pytest.raises(EngineError, match=f"(?s){reason}"), Engine(Path(python), "--nonsense"):
        pass
