"""The fence around a region.

Up and down again in whatever state an interrupted command has left it.
"""

import itertools
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from carride.region_fence import mark
from ops import fence
from ops.stack import OperatorError, StackRef
from tests.pipeline.pipeline import HISTORY, Pipeline

pytestmark = pytest.mark.integration

NOW: Final = datetime(2026, 11, 21, 12, tzinfo=UTC)
RESERVED: Final = 10
CHANGES: Final = ("put_", "delete_", "update_", "disable_", "enable_", "stop_", "start_")


class MachineGoneError(Exception):
    """The operator's machine has gone."""


class Interrupted:
    """A service whose changes end with the operator's machine after some of them."""

    def __init__(self, real: Any, changes: Iterator[int], at: int) -> None:
        self._real = real
        self._changes = changes
        self._at = at

    def __getattr__(self, name: str) -> Any:
        if name.startswith(CHANGES) and next(self._changes) == self._at:
            raise MachineGoneError
        return getattr(self._real, name)


def reference(pipeline: Pipeline, at: int = -1) -> StackRef:
    """Return the stack as the operator reaches it, up to a change."""
    changes = itertools.count()
    return StackRef(
        pipeline.stack.name,
        pipeline.cloud.region,
        lambda service, region: Interrupted(
            pipeline.cloud.client(service, region=region), changes, at
        ),
    )


def running(stack: StackRef) -> dict[str, Any]:
    """Return the state of everything that a fence stops."""
    events = stack.client("events")
    functions = stack.client("lambda")
    pipes = stack.client("pipes")
    bus = stack.outputs["CarRideBusName"]
    looks: dict[str, Callable[[str], Any]] = {
        "AWS::Events::Rule": lambda name: events.describe_rule(Name=name, EventBusName=bus)[
            "State"
        ],
        "AWS::Lambda::EventSourceMapping": lambda name: functions.get_event_source_mapping(
            UUID=name
        )["State"],
        "AWS::Pipes::Pipe": lambda name: pipes.describe_pipe(Name=name)["CurrentState"],
        "AWS::Lambda::Function": lambda name: functions.get_function_concurrency(
            FunctionName=name
        ).get("ReservedConcurrentExecutions"),
        fence.SCHEDULE: lambda name: stack.client("scheduler").get_schedule(Name=name)["State"],
    }
    return {
        logical: look(name)
        for kind, look in looks.items()
        for logical, name in stack.named(kind).items()
    }


def marked(stack: StackRef) -> bool:
    table = stack.outputs["OperatorTableName"]
    key = mark(stack.region)
    return "Item" in stack.client("dynamodb").get_item(TableName=table, Key=key)


def settings(stack: StackRef) -> dict[str, Any]:
    """Return the settings of the reconciler's schedule, without its state and times."""
    schedule = stack.client("scheduler").get_schedule(
        Name=stack.named(fence.SCHEDULE)["ReconcilerFunctionSchedule"]
    )
    return {
        name: value
        for name, value in schedule.items()
        if name in ("Description", "FlexibleTimeWindow", "Target")
    }


def interrupted_everywhere(pipeline: Pipeline, work: Callable[[StackRef], object]) -> int:
    """Interrupt work before its first change, before its second, and so on, until it ends."""
    for at in itertools.count():
        try:
            work(reference(pipeline, at))
        except MachineGoneError:
            continue
        return at
    raise AssertionError


def test_a_fence_is_put_up_and_taken_down_wherever_it_was_interrupted(gradual: Pipeline) -> None:
    """Everything stops but the evidence, and is afterwards as it was.

    A fence that lost that is not put up again.
    """
    stack = reference(gradual)
    for name in stack.named("AWS::Lambda::Function").values():  # as an operator may reserve it
        gradual.cloud.client("lambda").put_function_concurrency(
            FunctionName=name, ReservedConcurrentExecutions=RESERVED
        )
    # The local stage deploys it disabled.
    fence.switch_schedules(stack, ["ReconcilerFunctionSchedule"], on=True)
    before = running(stack)
    schedule = settings(stack)
    assert schedule["Target"]["RetryPolicy"]
    assert before["PaymentRule"] == "DISABLED"
    assert before["ReconcilerFunctionSchedule"] == "ENABLED"
    assert before["RideHistoryFunction"] == RESERVED

    changes = interrupted_everywhere(gradual, lambda each: fence.put_up(each, NOW))
    assert changes > len(stack.named("AWS::Lambda::Function"))
    stopped = running(stack)
    assert settings(stack) == schedule, "an update of a schedule resets what it leaves out"
    assert {
        state for name, state in stopped.items() if name not in {fence.LOG_RULE, fence.API}
    } == {
        "DISABLED",
        "Disabled",
        "STOPPED",
        0,
    }
    assert (stopped[fence.LOG_RULE], stopped[fence.API]) == ("ENABLED", RESERVED)
    assert marked(stack)
    put_up = fence.fenced(stack)
    assert put_up is not None
    assert fence.put_up(stack, datetime.now(UTC)) == put_up, (
        "what there was before is what there was at first"
    )
    assert fence.is_still(stack, put_up)

    interrupted_everywhere(gradual, lambda each: fence.take_down(each, put_up))
    assert fence.fenced(stack) == put_up, (
        "known until the last step, so that whoever was interrupted can go on"
    )
    fence.forget(stack)
    assert fence.fenced(stack) is None
    assert not fence.is_unstored(stack)
    assert running(stack) == before
    assert not marked(stack)
    ledger = gradual.simulate(rides=2, seed=1)
    assert ledger.balanced
    assert ledger.consumers[HISTORY].effects == ledger.distinct

    fence.put_up(stack, NOW)
    fence.forget(stack)
    assert fence.is_unstored(stack)
    with pytest.raises(OperatorError, match=r"is gone: see ops/docs/runbooks/failover\.md"):
        fence.put_up(stack, NOW)
    fence.take_down(stack, everything := fence.everything(stack, NOW))
    functions = [
        name
        for name, each in stack.named("AWS::Lambda::Function").items()
        if each in everything.functions
    ]
    assert running(stack) == before | {"PaymentRule": "ENABLED"} | dict.fromkeys(functions)
