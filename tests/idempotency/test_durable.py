"""Durable functions whose effects happen once, and the example, on the local runner of AWS's SDK."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
from aws_durable_execution_sdk_python import DurableContext, durable_execution

from idempotency import Operation, PermanentError
from idempotency.durable import effect_once, start_once
from tests.idempotency.differential import durable
from tests.idempotency.differential.durable import EFFECT, FUNCTION, Case, Lambda
from tests.idempotency.samples import create_tables, event

pytestmark = pytest.mark.enable_socket  # the runner has an event loop of its own

type Handler = Callable[[Any, DurableContext], object]


@pytest.fixture
def case() -> Iterator[Case]:
    """A world with a consumer, and a durable function that only one test uses."""
    with durable.case(durable.WITH) as new:
        yield new


def run(case: Case, handler: Handler, *, executions: int = 1, fault: str = "") -> list[tuple[str, str | None]]:
    """Run a durable function; return the status and the result of each execution."""
    with Lambda(case.world, durable_execution(handler)) as lambda_:
        lambda_.fault = fault
        for _ in range(executions):
            lambda_.client.invoke(FunctionName=FUNCTION, InvocationType="Event", Payload=b"{}")
        return [(each.status.name, each.result) for each in lambda_.results]


def add_point(operation: Operation) -> None:
    """Register the effect."""
    operation.write(EFFECT)


def test_a_step_that_runs_again_returns_the_committed_result(case: Case) -> None:
    """An execution goes on with the result that was committed, although the step's process died after the commit."""
    results = iter([1, 2])

    def work(operation: Operation) -> int:
        add_point(operation)
        return next(results)

    assert run(case, lambda _, context: effect_once(context, case.consumer, "point", work), fault="killed") == [
        ("SUCCEEDED", "1")
    ]
    assert case.seen.endswith("1 point")


@pytest.mark.parametrize(
    ("names", "keys", "status", "points"),
    [
        (("first", "second"), (None, None), "SUCCEEDED", "4 points"),
        (("point", "point"), (None, None), "FAILED", "2 points"),
        (("point", "point"), ("order_01", "order_01"), "SUCCEEDED", "1 point"),
        (("point", "point"), ("order_01", "order_02"), "SUCCEEDED", "2 points"),
    ],
    ids=["two names", "one name", "one key", "two keys"],
)
def test_a_name_or_a_key_says_what_happens_once(
    case: Case, names: tuple[str, ...], keys: tuple[str | None, ...], status: str, points: str
) -> None:
    """A step happens once for its execution; with a key, once for all executions; no step is skipped silently."""

    def handler(_: object, context: DurableContext) -> None:
        for name, key in zip(names, keys, strict=True):
            effect_once(context, case.consumer, name, add_point, key=key)

    assert [ended for ended, _ in run(case, handler, executions=2)] == [status] * 2
    assert case.seen.endswith(f" {points}")


def test_what_no_retry_can_help_fails_at_once(case: Case) -> None:
    """A step is not repeated after a PermanentError, nor for a known key with another payload."""
    runs = 0

    def refuse(_: Operation) -> None:
        nonlocal runs
        runs += 1
        raise PermanentError

    def handler(_: object, context: DurableContext) -> None:
        effect_once(context, case.consumer, "refuse", refuse)

    def mismatch(_: object, context: DurableContext) -> None:
        for amount in (1, 2):
            effect_once(context, case.consumer, "point", add_point, key="order_01", payload=amount)

    assert run(case, handler) == run(case, mismatch) == [("FAILED", None)]
    assert runs == 1
    assert case.seen.endswith("1 point")


def test_an_execution_is_named_after_the_key(case: Case) -> None:
    """A key starts one execution for each step, even if another payload is made of the redelivered event."""
    starts: list[tuple[int, str | None]] = [(1, None), (1, None), (2, None), (2, "other")]

    @case.consumer.function(key="order")
    def start(order: str, operation: Any = None) -> list[str | None]:
        client = case.lambda_.client
        return [start_once(operation, client, FUNCTION, {"amount": amount}, step=step) for amount, step in starts]

    first, again, refused, other = start("order_01")
    assert first == again is not None
    assert refused is None
    assert len({first, other, start("order_02")[0]}) == 3


def test_a_completed_ride_gives_one_point(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    """The example starts one execution, whose effect happens once, for an event that is delivered twice."""
    monkeypatch.setenv("POINTS_FUNCTION", FUNCTION)
    monkeypatch.setenv("POINTS_TABLE", "CustomerPoints")
    dynamodb: Any = case.world.wire.session.create_client("dynamodb")
    create_tables(dynamodb, {"idempotency": "idempotencyKey", "CustomerPoints": "customerID"})
    starter, points = (import_module(f"examples.durable.{name}") for name in ("starter", "points"))
    with Lambda(case.world, points.handler) as lambda_:
        monkeypatch.setattr(starter, "client", lambda_.client)
        lambda_.fault = "killed"
        for _ in range(2):
            starter.handler(event(customerID="customer_a"), case.world.invocation())
    assert [result.result for result in lambda_.results] == ['"a point for order_01"']
    (item,) = dynamodb.scan(TableName="CustomerPoints")["Items"]
    assert item == {"customerID": {"S": "customer_a"}, "points": {"N": "1"}}


def test_the_sdk_is_imported_by_those_who_call_it() -> None:
    """A starter's cold start does not pay for the SDK of the durable function."""
    code = "import sys, idempotency.durable; print([name for name in sys.modules if name.startswith('aws_durable')])"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout == "[]\n"
