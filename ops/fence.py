"""A fence stops the processing of events in one region until it is taken down.

The API still answers reads. The fence stops what consumes and produces events. A mark in
OperatorTable makes the API refuse writes.

The former state is stored in a parameter of the region's Parameter Store, so that another operator
can take the fence down. A fence that was interrupted half-way can be put up or taken down again.
"""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec
from botocore.exceptions import ClientError

from carride.region_fence import KNOWN_FOR, mark
from ops.audit.evidence import MARKS
from ops.stack import OperatorError, StackRef

LOG_RULE: Final = "CarRideLogRule"
"""The rule that a fence does not stop: it logs which events arrive."""
API: Final = "CarRideApiFunction"
"""The function that a fence does not switch off: it answers reads."""
SCHEDULE: Final = "AWS::Scheduler::Schedule"
HEARTBEAT: Final = "CarRideHeartbeat"
"""The schedule that a fence does not stop: without it, the endpoint would fail over."""
_FUNCTION: Final = "AWS::Lambda::Function"
_MAPPING_ON: Final = frozenset({"Enabled", "Enabling"})
_MAPPING_OFF: Final = frozenset({"Disabled", "Disabling"})


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
    """Refuse a deployment, which would enable rules that a fence has disabled.

    There need not be a stack.
    """
    if fence := fenced(stack):
        since = f"{fence.since:%Y-%m-%d %H:%M:%S %Z}"
        raise OperatorError(
            f"{stack.region} is fenced since {since}: deploy after `./carride failover back`"
        )


def put_up(stack: StackRef, now: datetime) -> Fence:
    """Stop the API's writes, then what delivers events, then what processes them.

    It is refused if the stack is fenced and its former state is lost. Running invocations continue
    until they end; `ops.failover` waits for them.
    """
    fence = fenced(stack)
    if fence is None:
        if is_unstored(stack):
            gone = f"its parameter /{stack.name}/fence with the former state is gone"
            raise OperatorError(
                f"{stack.region} is fenced, and {gone}: see ops/docs/runbooks/failover.md"
            )
        fence = remember(stack, _running(stack, now))
    stack.client("dynamodb").put_item(
        TableName=stack.outputs[f"{MARKS}Name"], Item=mark(stack.region)
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
        TableName=stack.outputs[f"{MARKS}Name"], Key=mark(stack.region)
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


def is_unstored(stack: StackRef) -> bool:
    """Return whether a stack without a stored fence is fenced.

    It is if every function but the API's is switched off.
    """
    reserved = _concurrency(stack).values()
    return bool(reserved) and all(each == 0 for each in reserved)


def is_still(stack: StackRef, fence: Fence) -> bool:
    """Return whether mappings and pipes have stopped, which takes them a while."""
    mappings = stack.client("lambda")
    for mapping in fence.mappings:
        if mappings.get_event_source_mapping(UUID=mapping)["State"] != "Disabled":
            return False
    pipes = stack.client("pipes")
    states = {pipes.describe_pipe(Name=pipe)["CurrentState"] for pipe in fence.pipes}
    return states <= {"STOPPED"}


def longest_run(stack: StackRef, fence: Fence) -> float:
    """Return for how many seconds stopped functions, and the API's writes, may still run."""
    client = stack.client("lambda")
    longest = 0
    for name in {*fence.functions, stack.named(_FUNCTION)[API]}:
        longest = max(longest, client.get_function_configuration(FunctionName=name)["Timeout"])
    return longest + KNOWN_FOR.total_seconds()


def switch_schedules(stack: StackRef, logical_ids: Collection[str], *, on: bool) -> None:
    """Enable or disable schedules, and keep all of their other settings."""
    scheduler = stack.client("scheduler")
    update = scheduler.meta.service_model.operation_model("UpdateSchedule")
    state = "ENABLED" if on else "DISABLED"
    for logical_id in logical_ids:
        schedule = scheduler.get_schedule(Name=stack.named(SCHEDULE)[logical_id])
        # An update resets every setting that it leaves out.
        settings = {name: schedule[name] for name in update.input_shape.members if name in schedule}
        scheduler.update_schedule(**settings | {"State": state})


def schedules(stack: StackRef) -> tuple[str, ...]:
    """Return the logical ids of the schedules that run functions; both regions have them."""
    return tuple(each for each in stack.named(SCHEDULE) if each != HEARTBEAT)


def everything(stack: StackRef, now: datetime) -> Fence:
    """Return a fence that names all that a fence can stop, without reserved concurrency."""
    rules = stack.named("AWS::Events::Rule")
    return Fence(
        since=now.astimezone(UTC),
        rules=tuple(name for logical_id, name in rules.items() if logical_id != LOG_RULE),
        schedules=schedules(stack),
        mappings=tuple(stack.named("AWS::Lambda::EventSourceMapping").values()),
        pipes=tuple(stack.named("AWS::Pipes::Pipe").values()),
        functions=dict.fromkeys(_functions(stack)),
    )


def _running(stack: StackRef, now: datetime) -> Fence:
    """Return what is running."""
    every = everything(stack, now)
    return Fence(
        since=every.since,
        rules=tuple(rule for rule in every.rules if _rule_is_on(stack, rule)),
        schedules=tuple(each for each in every.schedules if _schedule_is_on(stack, each)),
        mappings=tuple(each for each in every.mappings if _mapping_is_on(stack, each)),
        pipes=tuple(pipe for pipe in every.pipes if _pipe_is_on(stack, pipe)),
        functions=_concurrency(stack),
    )


def _rule_is_on(stack: StackRef, rule: str) -> bool:
    bus = stack.outputs["CarRideBusName"]
    found = stack.client("events").describe_rule(Name=rule, EventBusName=bus)
    return bool(found["State"] == "ENABLED")


def _schedule_is_on(stack: StackRef, logical_id: str) -> bool:
    name = stack.named(SCHEDULE)[logical_id]
    found = stack.client("scheduler").get_schedule(Name=name)
    return bool(found["State"] == "ENABLED")


def _mapping_is_on(stack: StackRef, mapping: str) -> bool:
    found = stack.client("lambda").get_event_source_mapping(UUID=mapping)
    return found["State"] not in _MAPPING_OFF


def _pipe_is_on(stack: StackRef, pipe: str) -> bool:
    found = stack.client("pipes").describe_pipe(Name=pipe)
    return bool(found["DesiredState"] == "RUNNING")


def _concurrency(stack: StackRef) -> dict[str, int | None]:
    """Return the reserved concurrency of the functions that a fence stops, None for no reserve."""
    client = stack.client("lambda")
    reserved = dict[str, int | None]()
    for name in _functions(stack):
        found = client.get_function_concurrency(FunctionName=name)
        reserved[name] = found.get("ReservedConcurrentExecutions")
    return reserved


def _functions(stack: StackRef) -> list[str]:
    """Return the names of the functions that a fence stops."""
    return [name for logical_id, name in stack.named(_FUNCTION).items() if logical_id != API]


def _switch_rules(stack: StackRef, fence: Fence, *, on: bool) -> None:
    events = stack.client("events")
    switch = events.enable_rule if on else events.disable_rule
    for rule in fence.rules:
        switch(Name=rule, EventBusName=stack.outputs["CarRideBusName"])


def _switch_mappings(stack: StackRef, fence: Fence, *, on: bool) -> None:
    functions = stack.client("lambda")
    reached = _MAPPING_ON if on else _MAPPING_OFF
    for mapping in fence.mappings:
        # Lambda refuses to change a mapping that is changing.
        state = functions.get_event_source_mapping(UUID=mapping)["State"]
        if state not in reached:
            functions.update_event_source_mapping(UUID=mapping, Enabled=on)


def _switch_pipes(stack: StackRef, fence: Fence, *, on: bool) -> None:
    pipes = stack.client("pipes")
    switch = pipes.start_pipe if on else pipes.stop_pipe
    wanted = "RUNNING" if on else "STOPPED"
    for pipe in fence.pipes:
        try:
            switch(Name=pipe)
        except ClientError as error:
            # EventBridge refuses to change a pipe that is changing.
            if error.response["Error"]["Code"] != "ConflictException":
                raise
            if pipes.describe_pipe(Name=pipe)["DesiredState"] != wanted:
                raise
