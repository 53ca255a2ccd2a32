"""A fence stops the processing of events in one region until it is taken down. The API still answers reads.

It stops what consumes and produces events. A mark in the idempotency table makes the API refuse
writes.

The former state is stored in a parameter of the region's Parameter Store, so that another operator
can take the fence down. A fence that was interrupted half-way can be put up or taken down again.
"""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec
from botocore.exceptions import ClientError

from carride.region_fence import KNOWN_FOR, mark
from ops.stack import OperatorError, StackRef

LOG_RULE: Final = "CarRideLogRule"
"""The rule that a fence does not stop: it logs which events arrive."""
API: Final = "CarRideApiFunction"
"""The function that a fence does not switch off: it answers reads."""
SCHEDULE: Final = "AWS::Scheduler::Schedule"
_FUNCTION: Final = "AWS::Lambda::Function"


class Fence(msgspec.Struct, frozen=True):
    """What a fence has stopped, by name."""

    since: datetime
    rules: tuple[str, ...] = ()
    schedules: tuple[str, ...] = ()
    """Logical ids, which are the same in both regions."""
    mappings: tuple[str, ...] = ()
    pipes: tuple[str, ...] = ()
    functions: Mapping[str, int | None] = {}
    """The former reserved concurrency of each function."""


def fenced(stack: StackRef) -> Fence | None:
    """Return the fence around a stack, or None if there is none."""
    ssm = stack.client("ssm")
    try:
        return msgspec.json.decode(
            ssm.get_parameter(Name=f"/{stack.name}/fence")["Parameter"]["Value"], type=Fence
        )
    except ssm.exceptions.ParameterNotFound:
        return None


def refuse_deployment(stack: StackRef) -> None:
    """Refuse a deployment, which would enable rules that a fence has disabled. There need not be a stack."""
    if fence := fenced(stack):
        since = f"{fence.since:%Y-%m-%d %H:%M:%S %Z}"
        raise OperatorError(
            f"{stack.region} is fenced since {since}: deploy after `./carride unfence`"
        )


def put_up(stack: StackRef, now: datetime) -> Fence:
    """Stop the API's writes, then what delivers events, then what processes them, unless a former state is lost.

    Running invocations continue until they end; `ops.failover` waits for them.
    """
    fence = fenced(stack)
    if fence is None:
        if is_forgotten(stack):
            gone = f"its parameter /{stack.name}/fence with the former state is gone"
            raise OperatorError(
                f"{stack.region} is fenced, and {gone}: see docs/runbooks/failover.md"
            )
        fence = remember(stack, _running(stack, now))
    stack.client("dynamodb").put_item(
        TableName=stack.outputs["IdempotencyTableName"], Item=mark(stack.region)
    )
    _switch_rules(stack, fence, on=False)
    switch_schedules(stack, fence.schedules, on=False)
    _switch_mappings(stack, fence, on=False)
    _switch_pipes(stack, fence, on=False)
    for function in fence.functions:
        stack.client("lambda").put_function_concurrency(
            FunctionName=function, ReservedConcurrentExecutions=0
        )
    return fence


def take_down(stack: StackRef, fence: Fence) -> None:
    """Restore the former state in the reverse order. The region counts as fenced until `forget`."""
    functions = stack.client("lambda")
    for function, reserved in fence.functions.items():
        if reserved is None:
            functions.delete_function_concurrency(FunctionName=function)
        else:
            functions.put_function_concurrency(
                FunctionName=function, ReservedConcurrentExecutions=reserved
            )
    _switch_pipes(stack, fence, on=True)
    _switch_mappings(stack, fence, on=True)
    switch_schedules(stack, fence.schedules, on=True)
    _switch_rules(stack, fence, on=True)
    stack.client("dynamodb").delete_item(
        TableName=stack.outputs["IdempotencyTableName"], Key=mark(stack.region)
    )


def remember(stack: StackRef, fence: Fence) -> Fence:
    """Store a fence."""
    stack.client("ssm").put_parameter(
        Name=f"/{stack.name}/fence",
        Value=msgspec.json.encode(fence).decode(),
        Type="String",
        Tier="Intelligent-Tiering",  # some twenty consumers exceed the 4 KB of a standard parameter
        Overwrite=False,
    )
    return fence


def forget(stack: StackRef) -> None:
    """Delete the stored fence."""
    stack.client("ssm").delete_parameter(Name=f"/{stack.name}/fence")


def is_forgotten(stack: StackRef) -> bool:
    """Return whether a stack without a stored fence is fenced: every function but the API's is switched off."""
    reserved = _concurrency(stack).values()
    return bool(reserved) and all(each == 0 for each in reserved)


def is_still(stack: StackRef, fence: Fence) -> bool:
    """Return whether mappings and pipes have stopped, which takes them a while."""
    mappings = (
        stack.client("lambda").get_event_source_mapping(UUID=each)["State"]
        for each in fence.mappings
    )
    pipes = (stack.client("pipes").describe_pipe(Name=each)["CurrentState"] for each in fence.pipes)
    return all(state == "Disabled" for state in mappings) and all(
        state == "STOPPED" for state in pipes
    )


def longest_run(stack: StackRef, fence: Fence) -> float:
    """Return for how many seconds the stopped functions, and writes of the API, may still run after `put_up`."""
    functions, names = stack.client("lambda"), {*fence.functions, stack.named(_FUNCTION)[API]}
    timeouts = (
        functions.get_function_configuration(FunctionName=each)["Timeout"] for each in names
    )
    return float(max(timeouts)) + KNOWN_FOR.total_seconds()


def switch_schedules(stack: StackRef, logical_ids: Collection[str], *, on: bool) -> None:
    """Enable or disable schedules, and keep all of their other settings."""
    scheduler = stack.client("scheduler")
    settings = scheduler.meta.service_model.operation_model("UpdateSchedule").input_shape.members
    for logical_id in logical_ids:
        schedule = scheduler.get_schedule(Name=stack.named(SCHEDULE)[logical_id])
        # An update resets every setting that it leaves out.
        kept = {name: value for name, value in schedule.items() if name in settings}
        scheduler.update_schedule(**kept | {"State": "ENABLED" if on else "DISABLED"})


def everything(stack: StackRef, now: datetime) -> Fence:
    """Return a fence that names everything that a fence can stop, without reserved concurrency."""
    return Fence(
        now.astimezone(UTC),
        tuple(
            name
            for logical, name in stack.named("AWS::Events::Rule").items()
            if logical != LOG_RULE
        ),
        tuple(stack.named(SCHEDULE)),
        tuple(stack.named("AWS::Lambda::EventSourceMapping").values()),
        tuple(stack.named("AWS::Pipes::Pipe").values()),
        dict.fromkeys(_functions(stack)),
    )


def _running(stack: StackRef, now: datetime) -> Fence:
    """Return what is running."""
    events, functions, pipes, scheduler = map(
        stack.client, ("events", "lambda", "pipes", "scheduler")
    )
    bus, schedules, every = (
        stack.outputs["CarRideBusName"],
        stack.named(SCHEDULE),
        everything(stack, now),
    )
    stopped = {"Disabled", "Disabling"}
    return Fence(
        every.since,
        tuple(
            r
            for r in every.rules
            if events.describe_rule(Name=r, EventBusName=bus)["State"] == "ENABLED"
        ),
        tuple(
            s
            for s in every.schedules
            if scheduler.get_schedule(Name=schedules[s])["State"] == "ENABLED"
        ),
        tuple(
            m
            for m in every.mappings
            if functions.get_event_source_mapping(UUID=m)["State"] not in stopped
        ),
        tuple(p for p in every.pipes if pipes.describe_pipe(Name=p)["DesiredState"] == "RUNNING"),
        _concurrency(stack),
    )


def _concurrency(stack: StackRef) -> dict[str, int | None]:
    """Return the reserved concurrency of the functions that a fence stops, None where nothing is reserved."""
    ask = stack.client("lambda").get_function_concurrency
    return {
        name: ask(FunctionName=name).get("ReservedConcurrentExecutions")
        for name in _functions(stack)
    }


def _functions(stack: StackRef) -> list[str]:
    return [name for logical_id, name in stack.named(_FUNCTION).items() if logical_id != API]


def _switch_rules(stack: StackRef, fence: Fence, *, on: bool) -> None:
    events = stack.client("events")
    for rule in fence.rules:
        (events.enable_rule if on else events.disable_rule)(
            Name=rule, EventBusName=stack.outputs["CarRideBusName"]
        )


def _switch_mappings(stack: StackRef, fence: Fence, *, on: bool) -> None:
    functions, reached = (
        stack.client("lambda"),
        {"Enabled", "Enabling"} if on else {"Disabled", "Disabling"},
    )
    for mapping in fence.mappings:
        # Lambda refuses to change a mapping that is changing.
        if functions.get_event_source_mapping(UUID=mapping)["State"] not in reached:
            functions.update_event_source_mapping(UUID=mapping, Enabled=on)


def _switch_pipes(stack: StackRef, fence: Fence, *, on: bool) -> None:
    pipes, wanted = stack.client("pipes"), "RUNNING" if on else "STOPPED"
    for pipe in fence.pipes:
        try:
            (pipes.start_pipe if on else pipes.stop_pipe)(Name=pipe)
        except ClientError as error:
            is_changing = error.response["Error"]["Code"] == "ConflictException"
            if not is_changing or pipes.describe_pipe(Name=pipe)["DesiredState"] != wanted:
                raise
