"""The minimal application, run as `make engine` does."""

import itertools
import json
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote

import pytest

from engine.tests.support import until
from infrastructure.rules.house_rules import listed
from local.local_aws import ROOT, engine_client

pytestmark = [pytest.mark.integration, pytest.mark.thorough]

TEMPLATE: Final = ROOT / "examples" / "minimal" / "template.yaml"
MOST_LINES: Final = 300
SECONDS: Final = 300.0
RIDE: Final = {"orderID": "order_01", "customerID": "customer_a"}


class Running:
    """The deployed application, by what the command has printed."""

    def __init__(self, printed: str) -> None:
        self.outputs = dict(re.findall(r"^  (\w+) +(\S+)$", printed, re.MULTILINE))
        self.endpoint = re.findall(r"AWS_ENDPOINT_URL=(\S+)", printed)[0]

    def client(self, service: str) -> Any:
        return engine_client(self.endpoint, service, "us-east-1")

    def publish(self, ride: dict[str, str]) -> str:
        """Have the producer publish, and return the event's idempotency id."""
        name = self.outputs["ProducerFunctionName"]
        key: str = json.load(
            self.client("lambda").invoke(FunctionName=name, Payload=json.dumps(ride))["Payload"]
        )
        return key

    def control(self, path: str) -> Any:
        """Ask the engine's control interface."""
        with urllib.request.urlopen(f"{self.endpoint}/_engine/{path}") as answer:  # noqa: S310 - loopback, fixed scheme
            return json.load(answer)

    def settle(self) -> None:
        """Wait until nothing is in flight."""
        assert until(lambda: not any(self.control("in-flight").values()), SECONDS)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The application on an engine of its own, which Ctrl-C ends without leaving a trace."""
    folder = tmp_path_factory.mktemp("temporary")
    command = [f"{ROOT}/.venv-engine/bin/python", "-m", "engine", "run", str(TEMPLATE)]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "TMPDIR": str(folder)}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        printed = ""
        for line in process.stdout:
            printed += line
            if line.startswith("Ctrl-C"):
                yield Running(printed)
                break
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130, printed
    assert until(lambda: not list(folder.glob("engine-*")))


def test_an_event_that_comes_twice_gives_one_point(running: Running) -> None:
    """A repeated call of the producer changes nothing; another ride gives another point."""
    assert (
        running.publish(RIDE)
        == running.publish(RIDE)
        != running.publish(RIDE | {"orderID": "order_02"})
    )
    running.settle()
    (item,) = running.client("dynamodb").scan(TableName=running.outputs["PointsTableName"])["Items"]
    assert item == {"customerID": {"S": "customer_a"}, "points": {"N": "2"}}
    assert (
        running.client("dynamodb").scan(TableName=running.outputs["IdempotencyTableName"])["Count"]
        == 2
    )


def test_poison_ends_in_the_consumers_queue_once(running: Running) -> None:
    """An event that fails at every attempt is dead-lettered with its reason.

    A copy of it adds nothing.
    """
    for _ in range(2):
        running.publish({"orderID": "order_03"})
        running.settle()
    (message,) = running.client("sqs").receive_message(
        QueueUrl=running.outputs["ConsumerDlqUrl"], MaxNumberOfMessages=10
    )["Messages"]
    letter = json.loads(message["Body"])
    assert (letter["reason"], letter["attempt"], "customerID" in letter["message"]) == (
        "QUARANTINED",
        3,
        True,
    )
    assert "Messages" not in running.client("sqs").receive_message(
        QueueUrl=running.outputs["ConsumerRuleDlqUrl"]
    )


def test_roles_may_do_what_they_do_and_nothing_else(running: Running) -> None:
    """The tests above use every permission, on each of its resources, and miss none."""
    asked = running.control("asked")
    assert [each for each in asked if not each[3]] == []
    used = {(role, action, resource) for role, action, resource, *_ in asked}
    granted = list(permissions(running.client("iam")))
    assert len(granted) >= 4
    assert set(granted) - used == set()


def permissions(iam: Any) -> Iterator[tuple[str, str, str]]:
    """Yield role, action and resource of each permission that the template gives."""
    for role in iam.list_roles()["Roles"]:
        name = role["RoleName"]
        for policy in iam.list_role_policies(RoleName=name)["PolicyNames"]:
            found = iam.get_role_policy(RoleName=name, PolicyName=policy)["PolicyDocument"]
            document = found if isinstance(found, dict) else json.loads(unquote(found))
            for one in document["Statement"]:
                pairs = itertools.product(listed(one["Action"]), listed(one["Resource"]))
                for action, resource in pairs:
                    yield name, action, resource


def test_the_template_is_short() -> None:
    """It stays the size of an example. `make lint` checks it with AWS's rules."""
    assert len(TEMPLATE.read_text(encoding="utf-8").splitlines()) < MOST_LINES
