"""The layer's own guide: its code runs, and what it counts and names is there."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import pytest

import idempotency
from idempotency import Policy
from idempotency.clock import epoch_ms
from idempotency.testing import Invocation
from tests.unit.idempotency.samples import DynamoDBWorld, event

GUIDE: Final = Path(idempotency.__file__).parents[1] / "README.md"
TESTS: Final = Path(__file__).parent


def python_of(page: Path) -> list[str]:
    """Return the Python blocks of a page."""
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.fixture
def invoices(dynamodb: Any) -> Any:
    """The tables of the five-line consumer."""
    for table, key in (("IdempotencyTable", "idempotencyKey"), ("Invoices", "id")):
        dynamodb.create_table(
            TableName=table,
            KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
    yield dynamodb
    for table in ("IdempotencyTable", "Invoices"):
        dynamodb.delete_table(TableName=table)


def test_five_line_consumer_runs(invoices: Any) -> None:
    """The consumer that the guide begins with makes one invoice of two deliveries."""
    (block,) = python_of(GUIDE)
    lines = [line for line in block.splitlines() if line and not line.startswith("from ")]
    assert len(lines) == 4  # and the import makes five
    namespace: dict[str, Any] = {}
    exec(compile(block, str(GUIDE), "exec"), namespace)  # noqa: S102 - the guide's own code
    order = event() | {"time": "2999-01-01T00:00:00Z"}

    outcomes = [namespace["handler"](order, Invocation(epoch_ms))["outcome"] for _ in range(2)]

    assert outcomes == ["New", "Duplicate"]
    assert invoices.scan(TableName="Invoices")["Count"] == 1


def test_five_line_consumer_is_in_the_package_too(invoices: Any) -> None:
    """The example in the package's docstring runs as well."""
    example = re.search(r"::\n\n(.*)", str(idempotency.__doc__), re.DOTALL)
    assert example is not None
    code = "from idempotency import *\n" + re.sub(r"(?m)^    ", "", example.group(1))
    namespace: dict[str, Any] = {}
    exec(compile(code, "idempotency", "exec"), namespace)  # noqa: S102 - the package's own example
    assert namespace["handler"](event(), Invocation(lambda: 1_800_000_000_000))["outcome"] == "New"


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


def test_every_test_that_the_guide_names_exists() -> None:
    """Each rule points at tests that are there."""
    rows = re.findall(r"^\| (\d+) .*? \| (`.*`) \|$", GUIDE.read_text(), re.MULTILINE)
    assert [int(number) for number, _ in rows] == [*range(1, 25), 26]
    for _, cell in rows:
        for name in re.findall(r"`([^`]+)`", cell):
            file, *inside = name.split("::") if name.startswith("test_") else ("test_rules.py", *name.split("::"))
            text = (TESTS / file).read_text()
            assert all(re.search(rf"(class|def) {part}\b", text) for part in inside), name


def test_every_setting_and_its_default_is_in_the_guide() -> None:
    """The table of settings has each field of a policy, with the default that it has."""
    section = GUIDE.read_text().split("\n## Settings\n")[1].split("\n## ")[0]
    stated: dict[str, str] = {}
    for names, defaults in re.findall(r"^\| (`[^|]+) \| (`[^|]+) \|", section, re.MULTILINE):
        stated |= zip(*(re.findall("`([^`]+)`", cell) for cell in (names, defaults)), strict=True)
    values = {field.name: getattr(Policy(), field.name) for field in fields(Policy)}
    assert stated == {name: getattr(value, "__name__", repr(value).replace("'", '"')) for name, value in values.items()}


def test_every_public_name_is_in_the_guide_and_has_a_docstring() -> None:
    """What the package exports is listed, each name once, and says what it is."""
    section = GUIDE.read_text().split("\n## Every public name\n")[1].split("\n\n`")[0]
    assert sorted(re.findall(r"`(\w+)`", section)) == sorted(idempotency.__all__)
    assert [name for name in idempotency.__all__ if not getattr(idempotency, name).__doc__] == []
