"""Durable functions whose effects happen once, and the example, on the SDK's local runner."""

from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import import_module
from operator import methodcaller
from typing import Any

import pytest
from aws_durable_execution_sdk_python import DurableContext, durable_execution
from aws_durable_execution_sdk_python.config import Duration, MapConfig, StepConfig
from aws_durable_execution_sdk_python.retries import RetryPresets

from carride_idempotency import Operation, PermanentError
from carride_idempotency.durable import effect_once, start_once
from carride_idempotency.testing import Crash
from tests.idempotency.differential import durable
from tests.idempotency.differential.durable import EFFECT, FUNCTION, Case, Lambda
from tests.idempotency.samples import create_tables, event

pytestmark = pytest.mark.enable_socket  # the runner has an event loop of its own

add_point: Callable[[Operation], None] = methodcaller("write", EFFECT)


@pytest.fixture
def case() -> Iterator[Case]:
    """A world with a consumer, and a durable function that only one test uses."""
    with durable.case(durable.WITH) as new:
        yield new


def run(
    case: Case, handler: Callable[..., object], *, executions: int = 1, fault: str = ""
) -> list[Any]:
    with closing(Lambda(case.world, durable_execution(handler))) as lambda_:
        lambda_.fault = fault
        for _ in range(executions):
            lambda_.client.invoke(FunctionName=FUNCTION, InvocationType="Event", Payload=b"{}")
        return lambda_.results


@pytest.mark.parametrize(("keys", "points"), [((None, None), 4), (("a", "a"), 1), (("a", "b"), 2)])
@pytest.mark.parametrize("branches", [False, True])
def test_a_step_or_a_key_has_its_effect_once(
    case: Case, keys: tuple[str | None, ...], points: int, *, branches: bool
) -> None:
    """Each step of each execution has its effect, whatever its name.

    With a key, all executions have one effect.
    """

    def give(context: DurableContext, key: str | None, *_: object) -> None:
        context.wait(Duration.from_seconds(1))
        effect_once(context, case.consumer, "point", add_point, key=key)

    def handler(_: object, context: DurableContext) -> None:
        if branches:
            context.map(keys, give, config=MapConfig(max_concurrency=1)).throw_if_error()
        else:
            for key in keys:
                give(context, key)

    assert [ended.status.name for ended in run(case, handler, executions=2)] == ["SUCCEEDED"] * 2
    assert case.seen.endswith(f" {points} point{'' if points == 1 else 's'}")


def test_what_no_retry_can_help_fails_at_once(case: Case) -> None:
    """A step is not repeated after a PermanentError, nor for a known key with another payload."""

    def refuse(_: Operation) -> None:
        raise PermanentError

    def mismatch(_: object, context: DurableContext) -> None:
        for amount in (1, 2):
            effect_once(context, case.consumer, "point", add_point, key="order_01", payload=amount)

    (refused,) = run(case, lambda _, context: effect_once(context, case.consumer, "refuse", refuse))
    (mismatched,) = run(case, mismatch)
    assert [(step.status.name, step.attempt) for step in refused.operations] == [("FAILED", 1)]
    assert [(step.status.name, step.attempt) for step in mismatched.operations] == [
        ("SUCCEEDED", 1),
        ("FAILED", 1),
    ]
    assert case.seen.endswith("1 point")


def test_a_step_waits_for_the_lease_of_another_attempt(case: Case) -> None:
    """A step whose process died runs again after its lease, even if it retries nothing."""
    deaths = iter([Crash()])

    def die_once() -> None:
        for death in deaths:
            raise death

    case.meet = die_once
    case.config = StepConfig(retry_strategy=RetryPresets.none())
    case.deliver()
    assert case.seen == "1 execution, 2 runs, 1 point"


def test_an_execution_is_named_after_the_key(case: Case) -> None:
    """A key starts one execution for each step, even if a redelivery makes another payload."""
    starts: list[tuple[int, str | None]] = [(1, None), (1, None), (2, None), (2, "other")]

    @case.consumer.function(key="order")
    def start(order: str, operation: Any = None) -> list[str | None]:
        client = case.lambda_.client
        return [
            start_once(operation, client, FUNCTION, {"amount": amount}, step=step)
            for amount, step in starts
        ]

    first, again, refused, other = start("order_01")
    assert first == again is not None
    assert refused is None
    assert len({first, other, start("order_02")[0]}) == 3


def test_a_completed_ride_gives_one_point(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    """The example starts one execution for an event that is delivered twice."""
    monkeypatch.setenv("POINTS_FUNCTION", FUNCTION)
    monkeypatch.setenv("POINTS_TABLE", "CustomerPoints")
    dynamodb: Any = case.world.wire.session.create_client("dynamodb")
    create_tables(dynamodb, {"idempotency": "idempotencyKey", "CustomerPoints": "customerID"})
    starter, points = (import_module(f"examples.durable.{name}") for name in ("starter", "points"))
    with closing(Lambda(case.world, points.handler)) as lambda_:
        monkeypatch.setattr(starter, "client", lambda_.client)
        lambda_.fault = "killed"
        for _ in range(2):
            starter.handler(event(customerID="customer_a"), case.world.invocation())
    assert [result.result for result in lambda_.results] == ['"a point for order_01"']
    (item,) = dynamodb.scan(TableName="CustomerPoints")["Items"]
    assert item == {"customerID": {"S": "customer_a"}, "points": {"N": "1"}}
