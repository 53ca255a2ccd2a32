import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from local import local_aws
from local.local_aws import ROOT, Laptop, LaptopError
from tests.engine.support import attribute, bus, function, permission, put, rule, template, until

SLEEPS = {
    "Bus": bus(),
    "Function": function('print("began", flush=True)\ntime.sleep(60)', Timeout=90),
    "Rule": rule({"Arn": attribute("Function")}),
    "Permission": permission("Function"),
}


def folder_of(laptop: Laptop) -> Path:
    """The engine's own temporary folder."""
    return laptop.log.parent


def processes_in(folder: Path) -> list[str]:
    """The command lines of running processes that name the folder."""
    listing = subprocess.run(["/bin/ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listing.splitlines() if str(folder) in line]


def test_nothing_is_left_when_the_block_ends_in_an_error() -> None:
    """However the block ends, the engine, a function at work in its process, and the folder are gone."""
    seen: dict[str, Path] = {}

    def interrupted(laptop: Laptop) -> None:
        seen["folder"] = folder_of(laptop)
        put(laptop, laptop.deploy_fast("sleeps", template(SLEEPS)), {})
        assert until(lambda: processes_in(seen["folder"]))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Laptop() as laptop:
        interrupted(laptop)
    assert not seen["folder"].exists()
    assert until(lambda: not processes_in(seen["folder"]))
    assert not listens(laptop.port)


STAYS = """
import signal
from local.local_aws import Laptop
with Laptop() as laptop:
    print(laptop.port, laptop.log.parent, flush=True)
    signal.pause()
"""


def test_the_engine_ends_with_whoever_started_it() -> None:
    """When the process that started the engine is killed, the engine ends by itself and removes its folder."""
    with subprocess.Popen([sys.executable, "-c", STAYS], cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        port, folder = parent.stdout.readline().split()
        parent.send_signal(signal.SIGKILL)
    assert until(lambda: not listens(int(port)))
    assert until(lambda: not Path(folder).exists())


def listens(port: int) -> bool:
    """Whether anybody takes connections on the port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_functions_see_nothing_of_this_machine(engine: Laptop, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of the shell that started the engine do not reach functions."""
    monkeypatch.setenv("SECRET_OF_THE_SHELL", "x")
    with Laptop() as laptop:
        stack = laptop.deploy_fast(name, template({"Function": function("return dict(os.environ)")}))
        answer = laptop.client("lambda").invoke(FunctionName=stack.resources["Function"])
        variables = json.loads(answer["Payload"].read())
    assert "SECRET_OF_THE_SHELL" not in variables
    assert variables["AWS_REGION"] == "us-east-1"


def test_a_reset_forgets_everything() -> None:
    """After a reset there are no stacks and no events, and the laptop can be deployed to again."""
    with Laptop() as laptop:
        put(laptop, laptop.deploy_fast("sleeps", template(SLEEPS)), {})
        assert laptop.in_flight()["async_events"] == 1
        laptop.reset()
        laptop.wait_until_quiet(timeout=5)
        assert laptop.client("cloudformation").describe_stacks()["Stacks"] == []
        assert laptop.deploy_fast("again", template({"Bus": bus()})).resources["Bus"] == "again"


def test_waiting_has_an_end() -> None:
    """Waiting for quiet gives up in time and says what is still going on."""
    with Laptop() as laptop:
        put(laptop, laptop.deploy_fast("sleeps", template(SLEEPS)), {})
        with pytest.raises(LaptopError, match=r"busy after 0\.1 s \(.*1 async events"):
            laptop.wait_until_quiet(timeout=0.1)


def test_a_failed_deployment_names_the_resource(engine: Laptop, name: str) -> None:
    """A stack that cannot be deployed is one sentence: the first resource that failed this time, and why."""
    broken = {"Type": "AWS::Events::Archive", "Properties": {"SourceArn": "x", "EventPattern": "{"}}
    engine.deploy_fast(name, template({"Bus": bus()}))
    for archive in ("First", "Second"):
        expected = rf"^the stack {name} could not be deployed: {archive} \(AWS::Events::Archive\): "
        with pytest.raises(LaptopError, match=expected):
            engine.deploy_fast(name, template({"Bus": bus(), archive: broken}))


def test_a_missing_environment_says_what_to_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the engine's environment the error says to run `make setup`."""
    monkeypatch.setattr(local_aws, "ROOT", tmp_path)
    with pytest.raises(LaptopError, match=r"\.venv-engine/bin/python is missing: run `make setup`"), Laptop():
        pass


class _Broken(Laptop):
    def _program(self, folder: Path) -> list[str]:
        return ["-c", "raise SystemExit('no engine today')"]


def test_an_engine_that_ends_shows_its_last_lines() -> None:
    """An engine that ends by itself is an error with the last lines of its log."""
    with pytest.raises(LaptopError, match="no engine today"), _Broken():
        pass


def test_a_build_is_repeated_only_when_something_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a source that changed nor a build of somebody else's is overlooked."""
    built: list[str] = []
    template = tmp_path / ".aws-sam" / "build" / "template.yaml"

    def sam(laptop: Laptop, command: str, *options: str) -> None:
        built.append(command)
        template.parent.mkdir(parents=True, exist_ok=True)
        template.write_text(str(len(built)))

    for name, value in (("ROOT", tmp_path), ("_BUILD", template.parents[1]), ("_BUILT", template.parents[1] / "built")):
        monkeypatch.setattr(local_aws, name, value)
    monkeypatch.setattr(Laptop, "_sam", sam)
    sources = [tmp_path / "template.yaml", tmp_path / "samconfig.toml", tmp_path / "layers" / "module.py"]
    sources[-1].parent.mkdir()
    for change in (*sources, template):
        for source in sources:
            source.touch()
        change.write_text(f"changed {change}")
        os.utime(change, ns=(0, len(built)))  # another time, however coarse the clock is
        for _ in range(2):
            Laptop().build()
    assert len(built) == len(sources) + 1
