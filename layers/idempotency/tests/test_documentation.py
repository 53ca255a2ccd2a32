"""The layer's own guide: its code runs, and what it counts and names is there."""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import boto3
import pytest
from moto import mock_aws

import carride_idempotency
from carride_idempotency import (
    ANY_CALLER,
    Consumer,
    IdempotencyError,
    MemoryStore,
    Observation,
    Operation,
)
from carride_idempotency.clock import epoch_ms
from carride_idempotency.errors import BatchFailedError
from carride_idempotency.stores import lean
from carride_idempotency.stores.lean import lean_transport
from carride_idempotency.telemetry import span_attributes
from carride_idempotency.testing import Crash, Invocation, http_event, sqs_event
from tests.samples import World, crash, create_tables, event, fail_with

ROOM: Final = Path(__file__).parents[1]
GUIDE: Final = ROOM / "README.md"
PAGES: Final = ROOM / "docs"


@pytest.fixture
def invoices() -> Iterator[Any]:
    with mock_aws():
        client = boto3.client("dynamodb")
        create_tables(client, {"IdempotencyTable": "idempotencyKey", "Invoices": "id"})
        yield client


def test_the_consumer_that_moves_from_powertools_is_built(invoices: Any) -> None:
    """The page's fragment needs the package's names alone, and those of datetime."""
    (code,) = re.findall(r"```py\n(.*?)```", (PAGES / "powertools.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {"datetime": datetime, "UTC": UTC}
    names |= {name: getattr(carride_idempotency, name) for name in carride_idempotency.__all__}
    exec(compile(code, "the page", "exec"), names)  # noqa: S102 - the page's own code
    assert isinstance(names["consumer"], Consumer)


def test_the_guides_external_call_is_made_once() -> None:
    """Its fragment makes the call under a key of its own, and keeps the result."""
    (code,) = re.findall(r"```py\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    consumer: Consumer[Any] = Consumer("payments", MemoryStore(), key="detail.idempotencyid")
    charges: dict[str, int] = {}
    gateway = SimpleNamespace(charge=charges.setdefault, look_up=charges.get)
    results: list[int] = []

    @consumer.event_handler
    def handler(event: dict[str, Any], operation: Operation) -> None:
        names: dict[str, Any] = {"operation": operation, "gateway": gateway, "price": 20}
        exec(compile(code, "guide", "exec"), names)  # noqa: S102 - the guide's own code
        assert list(charges) == [operation.downstream_key_for("charge")]
        results.append(names["charge"])

    for _ in range(2):
        handler(event() | {"time": "2999-01-01T00:00:00Z"}, Invocation(epoch_ms))
    assert results == [20]


def test_five_line_consumer_runs(invoices: Any) -> None:
    """The five lines of the guide make one invoice of two deliveries."""
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len([line for line in code.splitlines() if line]) == 5
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
        ("redelivery of a message that this process has just completed", 0),
        ("busy", 1),
        ("failure", 2),
        ("takeover", 3),
    ],
)
def test_calls_of_each_path_are_as_the_guide_says(world: World, path: str, calls: int) -> None:
    """The table of calls counts what really goes over the wire."""
    (stated,) = re.findall(rf"^\| {re.escape(path)} \| (\d) \|", GUIDE.read_text(), re.MULTILINE)
    assert int(stated) == calls

    handler = world.consumer(policy={"atomic": "atomic" in path}).event_handler(world.work)
    if path in ("busy", "takeover"):
        world.crash()
        world.clock.advance(60 if path == "takeover" else 1)
    elif "duplicate" in path or "redelivery" in path:
        handler(event(), world.invocation())
    before = len(world.transport.requests)
    if path == "failure":
        world.fail(KeyError("pickup"))
    else:
        handler(event(), world.invocation("request-1" if "redelivery" in path else "request-2"))
    assert len(world.transport.requests) - before == calls


# ── Which decorator for which trigger ─────────────────────────────────────────────────────────────


def by_event(world: World, delivery: str, **policy: Any) -> str:
    outcome: str = world.deliver(by=delivery, **policy)["outcome"]
    return outcome


def by_batch(world: World, delivery: str, **policy: Any) -> str:
    handler = world.consumer(policy=policy, key="id").batch_handler(world.work)
    try:
        answer = handler(sqs_event({"id": "k1"}), world.invocation(delivery))
    except BatchFailedError:
        return "comes again"
    return "comes again" if answer["batchItemFailures"] else "done"


def by_request(world: World, delivery: str, **policy: Any) -> str:
    def work(request: Any, operation: Any) -> dict[str, Any]:
        world.work(request, operation)
        return {"statusCode": 201}

    handler = world.consumer(policy=policy, key=None).http_handler(caller=ANY_CALLER)(work)
    request = http_event("POST", "/rides", {"id": 1}, key="k1")
    answer = handler(request, world.invocation(delivery))
    if answer["statusCode"] != 201:
        return str(answer["statusCode"])
    return "the stored answer" if "Idempotency-Replayed" in answer["headers"] else "its answer"


def by_call(world: World, delivery: str, **policy: Any) -> str:
    runs_before = len(world.work.runs)

    @world.consumer(policy=policy).function(key="order", name="charge")
    def charge(order: str, operation: Any = None) -> str:
        world.work(order, operation)
        return "result"

    assert charge("k1") == "result"
    return "its result" if len(world.work.runs) > runs_before else "the stored result"


def by_block(world: World, delivery: str, **policy: Any) -> str:
    with world.consumer(policy=policy).operation("k1", name="charge") as block:
        if block.done:
            return "block.done"
        world.work(None, block.operation)
    return "runs"


WAYS: Final = {
    "@consumer.event_handler": by_event,
    "@consumer.batch_handler": by_batch,
    "@consumer.http_handler": by_request,
    "@consumer.function": by_call,
    "consumer.operation(": by_block,
}
"""What delivers an operation under each decorator, and returns what its caller gets."""


@pytest.mark.parametrize("decorator", WAYS)
@pytest.mark.parametrize("situation", ["new", "duplicate", "busy", "failed", "quarantined"])
def test_a_caller_gets_what_the_table_says(decorator: str, situation: str) -> None:
    """The first page says for each decorator what becomes of a delivery in each situation."""
    header, _, *rows = re.findall(r"^\| (.*) \|$", table_of_decorators(), re.MULTILINE)
    column = header.split(" | ").index(situation)
    own = [row.replace("`", "").split(" | ") for row in rows if decorator in row]
    assert own
    got = what_a_caller_gets(WAYS[decorator], situation)
    assert [cells[column] for cells in own if got not in cells[column]] == []


def table_of_decorators() -> str:
    """Return the table of the first page."""
    (table,) = re.findall(
        r"^## Which decorator.*?\n\n(\|.*?)\n\n", GUIDE.read_text(), re.MULTILINE | re.DOTALL
    )
    return str(table)


def what_a_caller_gets(way: Callable[..., str], situation: str) -> str:
    """Bring an operation into a situation, deliver it, and return what its caller gets."""
    world = World()
    policy = {"max_attempts": 1} if situation == "quarantined" else {}
    if situation == "duplicate":
        way(world, "request-1")
    elif situation == "busy":
        world.work.step = crash
        with pytest.raises(Crash):
            way(world, "request-1")
    elif situation in ("failed", "quarantined"):
        world.work.step = fail_with(KeyError("pickup"))
        if situation == "quarantined":
            with suppress(KeyError):
                way(world, "request-1", **policy)
    try:
        return way(world, "request-2", **policy)
    except KeyError:
        return "raised: the "
    except IdempotencyError as error:
        return f"raised: {type(error).__name__}"


def test_a_span_has_the_attributes_of_the_guide() -> None:
    """An observation becomes the attributes of the guide's table.

    Those without a value are left out.
    """
    text = (PAGES / "opentelemetry.md").read_text()
    stated = re.findall("`([a-z.]+)", "".join(re.findall(r"^\| (`[^|]+) \|", text, re.MULTILINE)))
    observation = Observation(
        "billing", "Failed", "billing#1", 2, "m1", "KeyError", {"": "order-1"}
    )
    attributes = span_attributes(observation)
    assert list(attributes) == [name if name[0] != "." else f"idempotency{name}" for name in stated]
    assert attributes["error.type"] == "Failed"
    assert "error.type" not in span_attributes(observation._replace(outcome="New"))


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ("recipes.md", "on_failure { destination"),
        ("recipes.md", "onFailure: new destinations"),
        ("tutorial.md", "`OnFailure` destination"),
        ("operations.md", "`OnFailure` destination"),
    ],
)
def test_every_recipe_keeps_events_whose_last_attempt_crashes(page: str, says: str) -> None:
    """Nothing of the library runs any more then: only Lambda can keep the event."""
    assert says in (PAGES / page).read_text()


def test_the_page_of_stores_names_each_setting_that_leads_to_botocore() -> None:
    """Whoever wonders about the warning in a log finds the setting there."""
    page = (PAGES / "stores.md").read_text()
    (table,) = re.findall(r"lead to botocore.*?\n\n(.*?)\n\n", page, re.DOTALL)
    named = set(re.findall(r"AWS_[A-Z_]+|[A-Z]+_PROXY|REQUESTS_CA_BUNDLE", table))
    plain = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "a")
    plain["AWS_DEFAULT_REGION"] = "eu-west-1"
    assert lean_transport(plain) is not None
    known = set(re.findall(r'"((?:AWS|HTTPS?|ALL|REQUESTS)_[A-Z_]+)"', source_of(lean)))
    leading = {name for name in known if lean_transport(plain | {name: "on"}) is None}
    assert leading >= {"AWS_PROFILE", "HTTPS_PROXY"}
    assert leading <= named


def source_of(module: ModuleType) -> str:
    return Path(str(module.__file__)).read_text()


def test_the_recipe_for_agents_holds() -> None:
    """The tests of the page pass: a repeated tool call takes effect once."""
    page = (PAGES / "agents.md").read_text()
    (code,) = re.findall(r'```python title="test_agents.py"\n(.*?)```', page, re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(compile(code, "agents", "exec"), namespace)  # noqa: S102 - the page's own code
    tests = [value for name, value in namespace.items() if name.startswith("test_")]
    assert len(tests) == 3
    for test in tests:
        test()
