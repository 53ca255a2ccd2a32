"""The fence around a region: nothing of the stack runs there any more, until it is taken down.

What there was before is kept in a parameter of the region's Parameter Store, so that whoever takes the fence down need
not be who put it up. A fence that was put up or taken down half-way can be put up or taken down again.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, Self

from botocore.exceptions import ClientError

from ops.site import OperatorError, Site

EVIDENCE: Final = "CarRideLogRule"
"""The rule that stays: what it does is to write down which events there were."""


class Fence(NamedTuple):
    """What a fence has stopped."""

    since: datetime
    rules: tuple[str, ...]
    mappings: tuple[str, ...]
    pipes: tuple[str, ...]
    functions: Mapping[str, int | None]
    """Reserved concurrency by function."""

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps(self._asdict() | {"since": self.since.isoformat()})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return what `to_json` made text of."""
        stored: dict[str, Any] = json.loads(text)
        lists = {name: tuple(stored[name]) for name in ("rules", "mappings", "pipes")}
        return cls(**stored | lists | {"since": datetime.fromisoformat(stored["since"])})


def parameter(site: Site) -> str:
    """Return the name of the parameter that keeps what there was before."""
    return f"/{site.stack}/fence"


def fenced(site: Site) -> Fence | None:
    """Return the fence around a region, or None where there is none."""
    ssm = site.client("ssm")
    try:
        return Fence.from_json(ssm.get_parameter(Name=parameter(site))["Parameter"]["Value"])
    except ssm.exceptions.ParameterNotFound:
        return None


def fenced_since(site: Site) -> datetime | None:
    """Return since when a region is fenced, or None where it is not."""
    fence = fenced(site)
    return None if fence is None else fence.since


def put_up(site: Site, now: datetime) -> Fence:
    """Stop everything of the stack in a region: first what hands events over, then what works on them.

    Functions end what they have begun: `ops.failover` waits for that.

    Raises:
        OperatorError: the region is fenced, and what there was before is not known.
    """
    fence = fenced(site)
    if fence is None:
        fence = _before(site, now)
        check_remembered(site, fence)
        site.client("ssm").put_parameter(
            Name=parameter(site),
            Value=fence.to_json(),
            Type="String",
            Tier="Intelligent-Tiering",  # some twenty consumers take more than the 4 KB of a standard one
            Overwrite=False,
        )
    bus, functions = site.outputs["CarRideBusName"], site.client("lambda")
    for rule in fence.rules:
        site.client("events").disable_rule(Name=rule, EventBusName=bus)
    for mapping in fence.mappings:
        _mapping(site, mapping, enabled=False)
    for pipe in fence.pipes:
        _pipe(site, pipe, "STOPPED")
    for function in fence.functions:
        functions.put_function_concurrency(FunctionName=function, ReservedConcurrentExecutions=0)
    return fence


def take_down(site: Site, fence: Fence) -> None:
    """Start everything again as it was: first what works on events, then what hands them over.

    The region counts as fenced until `forget`.
    """
    bus, functions = site.outputs["CarRideBusName"], site.client("lambda")
    for function, reserved in fence.functions.items():
        if reserved is None:
            functions.delete_function_concurrency(FunctionName=function)
        else:
            functions.put_function_concurrency(FunctionName=function, ReservedConcurrentExecutions=reserved)
    for pipe in fence.pipes:
        _pipe(site, pipe, "RUNNING")
    for mapping in fence.mappings:
        _mapping(site, mapping, enabled=True)
    for rule in fence.rules:
        site.client("events").enable_rule(Name=rule, EventBusName=bus)


def forget(site: Site) -> None:
    """Have the region count as not fenced."""
    site.client("ssm").delete_parameter(Name=parameter(site))


def check_remembered(site: Site, found: Fence | None = None) -> None:
    """See to it that a region without a known fence has none.

    Args:
        site: the region, of which no fence is known.
        found: what is running there; left out, it is looked up.

    Raises:
        OperatorError: every function is switched off, so there was a fence, and what it stopped is forgotten.
    """
    functions = _concurrency(site) if found is None else found.functions
    if functions and all(reserved == 0 for reserved in functions.values()):
        raise OperatorError(
            f"{site.region} is fenced, and its parameter {parameter(site)}, which says what there was before, is gone: "
            "docs/runbooks/failover.md says how to start the region by hand"
        )


def is_still(site: Site, fence: Fence) -> bool:
    """Whether pipes and mappings, which take a while, have stopped."""
    mappings = (site.client("lambda").get_event_source_mapping(UUID=each)["State"] for each in fence.mappings)
    pipes = (site.client("pipes").describe_pipe(Name=each)["CurrentState"] for each in fence.pipes)
    return all(state == "Disabled" for state in mappings) and all(state == "STOPPED" for state in pipes)


def longest_run(site: Site, fence: Fence) -> float:
    """Return how many seconds an invocation that had begun may still take."""
    functions = site.client("lambda")
    configured = (functions.get_function_configuration(FunctionName=each)["Timeout"] for each in fence.functions)
    return float(max(configured, default=0))


def _before(site: Site, now: datetime) -> Fence:
    """Return what is running."""
    bus = site.outputs["CarRideBusName"]
    events, functions, pipes = site.client("events"), site.client("lambda"), site.client("pipes")
    rules = [name for logical, name in site.named("AWS::Events::Rule").items() if logical != EVIDENCE]
    mappings = site.named("AWS::Lambda::EventSourceMapping").values()
    return Fence(
        now.astimezone(UTC),
        tuple(each for each in rules if events.describe_rule(Name=each, EventBusName=bus)["State"] == "ENABLED"),
        tuple(
            each
            for each in mappings
            if functions.get_event_source_mapping(UUID=each)["State"] not in {"Disabled", "Disabling"}
        ),
        tuple(
            each
            for each in site.named("AWS::Pipes::Pipe").values()
            if pipes.describe_pipe(Name=each)["DesiredState"] == "RUNNING"
        ),
        _concurrency(site),
    )


def _concurrency(site: Site) -> dict[str, int | None]:
    """Return the reserved concurrency of every function; None where there is none."""
    functions = site.client("lambda")
    return {
        each: functions.get_function_concurrency(FunctionName=each).get("ReservedConcurrentExecutions")
        for each in site.named("AWS::Lambda::Function").values()
    }


def _mapping(site: Site, uuid: str, *, enabled: bool) -> None:
    """Switch a mapping that is not being switched so already: Lambda refuses to change one that is changing."""
    functions = site.client("lambda")
    there = {"Enabled", "Enabling"} if enabled else {"Disabled", "Disabling"}
    if functions.get_event_source_mapping(UUID=uuid)["State"] not in there:
        functions.update_event_source_mapping(UUID=uuid, Enabled=enabled)


def _pipe(site: Site, name: str, wanted: str) -> None:
    """Stop or start a pipe that is not asked to be so already."""
    pipes = site.client("pipes")
    try:
        pipes.stop_pipe(Name=name) if wanted == "STOPPED" else pipes.start_pipe(Name=name)
    except ClientError as error:
        if error.response["Error"]["Code"] != "ConflictException" or (
            pipes.describe_pipe(Name=name)["DesiredState"] != wanted
        ):
            raise
