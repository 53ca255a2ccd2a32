"""The layer's own guide: its code runs, and what it counts and names is there."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

import idempotency
from idempotency import Consumer, Operation
from idempotency.clock import epoch_ms
from idempotency.testing import FaultyTransport, Invocation, ManualClock
from tests.unit.idempotency.samples import event

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
def test_calls_of_each_path_are_as_the_guide_says(
    consumer: Callable[..., Consumer], clock: ManualClock, transport: FaultyTransport, path: str, calls: int
) -> None:
    """The table of calls counts what really goes over the wire."""
    (stated,) = re.findall(rf"^\| {re.escape(path)} \| (\d) \|", GUIDE.read_text(), re.MULTILINE)
    assert int(stated) == calls

    runs: list[Operation] = []

    def work(event: dict[str, Any], operation: Operation) -> None:
        runs.append(operation)
        if path in ("busy", "takeover") and len(runs) == 1:
            raise SystemExit  # the process ends in the middle
        if path == "failure":
            raise KeyError("pickup")

    handler = consumer(atomic="atomic" in path, warm_cache=10 if "just seen" in path else 0).event_handler(work)
    if path in ("busy", "takeover"):
        with pytest.raises(SystemExit):
            handler(event(), Invocation(clock))
        clock.advance(60 if path == "takeover" else 1)
    elif "duplicate" in path:
        handler(event(), Invocation(clock))
    before = len(transport.requests)

    if path == "failure":
        with pytest.raises(KeyError):
            handler(event(), Invocation(clock))
    else:
        handler(event(), Invocation(clock, request_id="request-2"))

    assert len(transport.requests) - before == calls


def test_every_test_that_the_guide_names_exists() -> None:
    """Each of the sixteen rules points at tests that are there."""
    rows = re.findall(r"^\| (\d+) .*? \| (`.*`) \|$", GUIDE.read_text(), re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 17))
    for _, cell in rows:
        for name in re.findall(r"`([^`]+)`", cell):
            file, _, inside = name.partition("::") if name.startswith("test_") else ("test_rules.py", "", name)
            assert f"class {inside}" in (TESTS / file).read_text() if inside else (TESTS / file).exists(), name


def test_public_names_are_documented() -> None:
    """Whatever the package exports has a docstring."""
    undocumented = [name for name in idempotency.__all__ if not getattr(idempotency, name).__doc__]
    assert undocumented == []
