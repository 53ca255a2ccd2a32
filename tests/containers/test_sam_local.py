"""`sam local invoke`: each function, in a container, with each of its samples."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from local.artifacts import FOLDER, PARAMETERS
from local.local_aws import ROOT, LocalAws
from ops.audit.queues import opened, peek
from tests.containers.conftest import Invoke, TypeIn

pytestmark = pytest.mark.peer

EVENTS = ROOT / "events"
CONSUMERS = {"ride_history": "RideHistoryFunction", "payment": "PaymentFunction"}


def listed(page: Path, pattern: str) -> list[tuple[str, str]]:
    """Return the files that a page lists in its tables, and what it says in the second column."""
    return re.findall(rf"^\| `({pattern})` \| ([\w, ]+) \|", page.read_text(), re.MULTILINE)


def sample(name: str) -> Any:
    """Return a sample event."""
    return json.loads((EVENTS / name).read_text())


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_each_sample_has_the_outcome_of_the_readme(invoke: Invoke, consumer: str) -> None:
    """Invoked in the order of events/README.md, a consumer reports the page's outcomes."""
    expected = listed(EVENTS / "README.md", rf"{consumer}_\w+\.json")
    assert expected
    answers = [
        (name, invoke(CONSUMERS[consumer], sample(name))[0]["outcome"]) for name, _ in expected
    ]
    assert answers == expected


def test_a_batch_is_acknowledged(invoke: Invoke, cloud: LocalAws, name: str) -> None:
    """Dispatch acknowledges its samples.

    Each of the two rides takes effect once, one message is dead-lettered.
    """
    samples = listed(EVENTS / "README.md", r"dispatch_\w+\.json")
    answers = [invoke("DispatchFunction", sample(each))[0] for each, _ in samples]
    assert answers == [{"batchItemFailures": []}] * len(samples)
    outputs = cloud.stack(name).outputs
    assert [
        opened(message)[0] for message in peek(cloud.client("sqs"), outputs["DispatchDlqUrl"])
    ] == ["CONTRACT"]
    rides = cloud.client("dynamodb").scan(TableName=outputs["AssignmentTableName"])["Items"]
    assert {ride["orderID"]["S"]: ride["state"]["S"] for ride in rides} == {
        "order_01": "unserved",
        "order_04": "unserved",
    }


def test_requests_are_answered(invoke: Invoke) -> None:
    """The API answers each request, in order, with the status of its page.

    Here the read model may know the ride.
    """
    rows = listed(EVENTS / "README.md", r"carride_api/\w+\.json")
    assert rows
    for name, status in rows:
        answer, _ = invoke("CarRideApiFunction", sample(name))
        allowed = {int(status)} | ({200} if name == "carride_api/read.json" else set())
        assert (name, answer["statusCode"] in allowed) == (name, True)


def test_rides_are_simulated_and_reconciled(invoke: Invoke) -> None:
    """The simulator publishes one sample and refuses the other.

    A second run of the reconciler repeats its answer.
    """
    published, _ = invoke("CarRideSimulatorFunction", sample("carride_simulator_request.json"))
    assert published["resume"] is None
    refused, _ = invoke("CarRideSimulatorFunction", sample("carride_simulator_bad_request.json"))
    assert "duplicates" in json.dumps(refused)
    answers = [invoke("ReconcilerFunction", sample("reconciler.json"))[0] for _ in range(2)]
    assert answers[0] == answers[1]


LIVE = "sam local invoke RideHistoryFunction -e events/ride_history_live.json"


def test_sam_local_invoke_of_ride_history_works_as_typed(type_in: TypeIn) -> None:
    """After `make local-env` it reaches the kept stack, and no account of the shell."""
    written = type_in("make local-env")
    assert "sam local now reaches the local stack" in written.stderr, written.stderr
    for outcome in ("New", "Duplicate"):
        done = type_in(LIVE)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["outcome"] == outcome
    written = json.loads((FOLDER / "env.json").read_text())
    assert {each["AWS_ACCESS_KEY_ID"] for each in written.values()} == {"test"}


def test_ride_history_in_a_container_that_knows_no_stack_refuses(type_in: TypeIn) -> None:
    """The built template declares no endpoint: the function says what to do, and asks nobody."""
    build = FOLDER / "build" / "template.yaml"
    machine = f"Architecture={PARAMETERS['Architecture']}"
    config = f"--config-file {ROOT / 'samconfig.toml'} --config-env local"
    done = type_in(f"{LIVE} -t {build} {config} --parameter-overrides Stage=local {machine}")
    said = done.stdout + done.stderr
    assert "make local-env" in said, said
    assert "SettingsError" in said


def test_a_fresh_build_says_which_command_to_run(type_in: TypeIn, tmp_path: Path) -> None:
    """In a container, before `make local-env`: one sentence, and no account is asked."""
    (tmp_path / ".aws-sam" / "build").mkdir(parents=True)
    build = (FOLDER / "build" / "template.yaml").read_text()
    (tmp_path / ".aws-sam" / "build" / "template.yaml").write_text(build)
    script = ROOT / "tools" / "scripts" / "unprepared"
    (tmp_path / "samconfig.toml").write_text((ROOT / "samconfig.toml").read_text())
    (tmp_path / "events").symlink_to(EVENTS)
    python = ROOT / ".venv-sam" / "bin" / "python"
    done = type_in(f"{python} {script} {tmp_path} && cd {tmp_path} && {LIVE}")
    assert done.returncode == 0, done.stderr
    assert "make local-env" in json.loads(done.stdout)
