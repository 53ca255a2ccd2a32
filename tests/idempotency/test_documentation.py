"""The layer's own guide: its code runs, and what it counts and names is there."""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import boto3
import pytest
from moto import mock_aws

import idempotency
from idempotency import Policy
from idempotency.clock import epoch_ms
from idempotency.testing import Invocation
from tests.idempotency.samples import DynamoDBWorld, create_tables, event

GUIDE: Final = Path(idempotency.__file__).parents[1] / "README.md"


@pytest.fixture
def invoices() -> Iterator[Any]:
    """The tables of the five-line consumer."""
    with mock_aws():
        client = boto3.client("dynamodb")
        create_tables(client, {"IdempotencyTable": "idempotencyKey", "Invoices": "id"})
        yield client


GUIDES: Final = {
    "README": "".join(re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)),
    "package": "from idempotency import *\n" + textwrap.dedent(str(idempotency.__doc__).split("::\n\n")[1]),
}


@pytest.mark.parametrize("code", GUIDES.values(), ids=GUIDES)
def test_five_line_consumer_runs(invoices: Any, code: str) -> None:
    """The five lines in the guide and in the package make one invoice of two deliveries."""
    lines = [line for line in code.splitlines() if line]
    assert len(lines) == 5
    namespace: dict[str, Any] = {}
    exec(compile(code, "idempotency", "exec"), namespace)  # noqa: S102 - the guide's own code
    order = event() | {"time": "2999-01-01T00:00:00Z"}
    outcomes = [namespace["handler"](order, Invocation(epoch_ms))["outcome"] for _ in range(2)]
    assert outcomes == ["New", "Duplicate"]
    assert invoices.scan(TableName="Invoices")["Count"] == 1


@pytest.mark.parametrize(
    ("path", "calls"),
    [
        ("new event", 2),
        ("new event, `atomic`", 1),
        ("duplicate", 1),
        ("duplicate that this process has just seen", 0),
        ("busy", 1),
        ("failure", 2),
        ("takeover", 3),
    ],
)
def test_calls_of_each_path_are_as_the_guide_says(world: DynamoDBWorld, path: str, calls: int) -> None:
    """The table of calls counts what really goes over the wire."""
    (stated,) = re.findall(rf"^\| {re.escape(path)} \| (\d) \|", GUIDE.read_text(), re.MULTILINE)
    assert int(stated) == calls

    policy = {"atomic": "atomic" in path, "warm_cache": 10 if "just seen" in path else 0}
    handler = world.consumer(policy=policy).event_handler(world.work)
    if path in ("busy", "takeover"):
        world.crash()
        world.clock.advance(60 if path == "takeover" else 1)
    elif "duplicate" in path:
        handler(event(), world.invocation())
    before = len(world.transport.requests)
    if path == "failure":
        world.fail(KeyError("pickup"))
    else:
        handler(event(), world.invocation("request-2"))
    assert len(world.transport.requests) - before == calls


def test_every_setting_and_its_default_is_in_the_guide() -> None:
    """The table of settings has each field of a policy, with the default that it has."""
    section = GUIDE.read_text().split("\n## Settings\n")[1].split("\n## ")[0]
    stated: dict[str, str] = {}
    for names, defaults in re.findall(r"^\| (`[^|]+) \| (`[^|]+) \|", section, re.MULTILINE):
        stated |= zip(*(re.findall("`([^`]+)`", cell) for cell in (names, defaults)), strict=True)
    values = {field.name: getattr(Policy(), field.name) for field in fields(Policy)}
    assert stated == {name: getattr(value, "__name__", repr(value).replace("'", '"')) for name, value in values.items()}
