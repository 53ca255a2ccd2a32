"""How many rides a second a stack can take, and what stops it first.

The template says how it is set, `tools.costs.bill` what a ride makes of it, and QUOTAS what AWS
allows an account. Durations are assumed, so bounds that rest on them are estimates; only an account
shows them.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from assignments import BLOCKS, SHARD
from carride.overdue import SHARDS
from tools.costs.bill import (
    EVENTS,
    GATEWAY_CALLS,
    NEW_TABLE,
    PARTITION,
    PRODUCTION,
    REQUESTS,
    TABLES,
    calls,
    is_provisioned,
    round_trips,
    shards,
    taken,
)
from tools.costs.tables import filled, markdown
from tools.transformed import Properties, Stack, source, stack

_DOCS: Final = "https://docs.aws.amazon.com"
_BUS: Final = f"{_DOCS}/eventbridge/latest/userguide/eb-quota.html"
_LAMBDA: Final = f"{_DOCS}/lambda/latest/dg/gettingstarted-limits.html"
_LOGS: Final = f"{_DOCS}/AmazonCloudWatch/latest/logs/cloudwatch_limits_cwl.html"
_DYNAMODB: Final = f"{_DOCS}/amazondynamodb/latest/developerguide/ServiceQuotas.html"


class Quota(NamedTuple):
    """What AWS allows an account in a region. Each of these can be raised on request."""

    name: str
    value: int
    source: str


QUOTAS: Final[Mapping[str, Quota]] = {
    "api": Quota(
        "API Gateway: requests a second",
        10_000,
        f"{_DOCS}/apigateway/latest/developerguide/limits.html",
    ),
    "concurrency": Quota("Lambda: concurrent executions", 1_000, _LAMBDA),
    "requests": Quota(
        "Lambda: requests a second, ten for each concurrent execution", 10_000, _LAMBDA
    ),
    "put": Quota("EventBridge: PutEvents requests a second", 10_000, _BUS),
    "invocations": Quota("EventBridge: invocations of targets a second", 18_750, _BUS),
    "pipes": Quota("EventBridge Pipes: concurrent executions", 3_000, _BUS),
    "logs": Quota("CloudWatch Logs: PutLogEvents requests a second", 5_000, _LOGS),
    "table": Quota("DynamoDB: write units a second of a table and its indexes", 40_000, _DYNAMODB),
}
"""In us-east-1, us-west-2 and eu-west-1, as documented on 2026-11-22."""
TRIP_S: Final = 0.01  # assumed for a request to DynamoDB, with the code around it
CALL_S: Final = 0.2  # assumed for a call of the payment gateway
PIPE_S: Final = 0.05  # assumed for a batch of the pipe
INVOCATION_S: Final = 0.1  # assumed for the bus to invoke a target
WARMTH: Final = "warmth"
"""What bounds a table on demand until it has grown, or was warmed by hand."""
PLANNED: Final = 1_000  # rides a second, for which a table says what to raise
INDEX_WRITES: Final = 2  # of a ride in each index of open rides, and in that of free cars


class Bound(NamedTuple):
    """What limits the rides a second, and how to raise that."""

    what: str
    rides: float
    by: str
    """A parameter of the template, a key of QUOTAS, WARMTH, or nothing: only a change of the code
    raises it."""
    needed: float = 0
    """The value of parameter, quota or warmth for one ride a second."""


class Station(NamedTuple):
    """Something that works off a queue."""

    load: float
    """Requests, events or messages of a ride."""
    servers: int
    """How many batches it works on at once."""
    batch: int
    seconds: float
    """For a full batch."""

    @property
    def each(self) -> float:
        """How many servers a ride a second keeps busy."""
        return self.load * self.seconds / self.batch


def stations(deployed: Stack) -> dict[str, Station]:
    """Return the stations of a ride's events."""
    found = {"OutboxPipe": _pipe(deployed), "Bus": _bus(deployed)}
    for name, trips in round_trips(deployed).items():
        load = calls(deployed)[f"{name}Function"]
        seconds = trips * TRIP_S
        if name == "Payment":
            seconds += GATEWAY_CALLS * CALL_S
        servers, batch = _concurrency(deployed, name)
        found[name] = Station(load, servers, batch, seconds / load * batch)
    return found


def _bus(deployed: Stack) -> Station:
    """Return the bus, which an invocation of a target is taken to hold for a while."""
    invocations = sum(taken(deployed).values())
    at_once = int(QUOTAS["invocations"].value * INVOCATION_S)
    return Station(invocations, at_once, 1, INVOCATION_S)


def _pipe(deployed: Stack) -> Station:
    [pipe] = deployed.of_type("AWS::Pipes::Pipe").values()
    stream = pipe["SourceParameters"]["DynamoDBStreamParameters"]
    servers = shards(deployed, "MaxCapacity") * stream["ParallelizationFactor"]
    events = len(EVENTS)
    return Station(events, servers, stream["BatchSize"], PIPE_S)


def _concurrency(deployed: Stack, name: str) -> tuple[int, int]:
    """Return how many invocations of a function run at once, and how many messages each gets."""
    batch = 1
    most = QUOTAS["concurrency"].value
    if name == "Dispatch":
        [mapping] = deployed.of_type("AWS::Lambda::EventSourceMapping").values()
        batch = mapping["BatchSize"]
        most = int(deployed.parameters["DispatchConcurrency"])
    return most, batch


def bounds(deployed: Stack) -> list[Bound]:
    """Return every bound of a stack, the lowest first."""
    found = stations(deployed)
    needed = {
        "api": REQUESTS,
        "concurrency": sum(found[name].each for name in round_trips(deployed)),
        "requests": sum(calls(deployed).values()),
        # The pipe's batches are full when it has much to do.
        "put": len(EVENTS) / found["OutboxPipe"].batch,
        "invocations": found["Bus"].load,
        "pipes": found["OutboxPipe"].each,
        "logs": len(EVENTS),
        "table": max(table.write_units for table in TABLES.values()),
    }
    result = [*_bounds_of_the_stack(deployed, found), *_bounds_of_tables(deployed, found)]
    for key, quota in QUOTAS.items():
        result.append(Bound(quota.name, quota.value / needed[key], key, needed[key]))
    return sorted(result, key=lambda bound: bound.rides)


def _bounds_of_the_stack(deployed: Stack, found: Mapping[str, Station]) -> list[Bound]:
    parameters = deployed.parameters
    dispatch = found["Dispatch"]
    open_rides = SHARDS * PARTITION / INDEX_WRITES
    free_cars = BLOCKS**2 / SHARD * PARTITION / INDEX_WRITES
    return [
        Bound("requests to the API", int(parameters["ApiRate"]) / REQUESTS, "ApiRate", REQUESTS),
        Bound(
            "concurrent batches of dispatch",
            dispatch.servers / dispatch.each,
            "DispatchConcurrency",
            dispatch.each,
        ),
        Bound("shards of an index of open rides", open_rides, ""),
        Bound("shards of the index of free cars", free_cars, ""),
    ]


def _bounds_of_tables(deployed: Stack, found: Mapping[str, Station]) -> list[Bound]:
    """Return the bounds of the busiest table of each billing mode, and of the outbox's pipe."""
    most = int(deployed.parameters["MaxCapacity"])
    tables = deployed.of_type("AWS::DynamoDB::GlobalTable")
    result = list[Bound]()
    on_demand = _busiest(tables, are_provisioned=False)
    if on_demand:
        units = TABLES[on_demand].write_units
        what = f"units of {on_demand} while it is new"
        result.append(Bound(what, NEW_TABLE / units, WARMTH, units))
    provisioned = _busiest(tables, are_provisioned=True)
    if provisioned:
        units = TABLES[provisioned].write_units
        what = f"units of {provisioned}, once it has scaled"
        result.append(Bound(what, most / units, "MaxCapacity", units))
    pipe = found["OutboxPipe"]
    batches = pipe.servers / pipe.each
    units = PARTITION * shards(deployed, "MaxCapacity")
    if is_provisioned(tables["OutboxTable"]):
        result.append(Bound("batches of the pipe", batches, "MaxCapacity", units / batches))
    else:
        what = "batches of the pipe while OutboxTable is new"
        result.append(Bound(what, batches, WARMTH, units / batches))
    return result


def _busiest(tables: Mapping[str, Properties], *, are_provisioned: bool) -> str | None:
    """Return the table of a billing mode that takes the most units of a ride, if there is one."""
    names = list[str]()
    for name in TABLES:
        if is_provisioned(tables[name]) == are_provisioned:
            names.append(name)
    return max(names, key=lambda name: TABLES[name].write_units, default=None)


def for_rides(rides: float, **chosen: str) -> dict[str, str]:
    """Return the parameters with which no setting stops these rides a second and a third more."""
    parameters = dict(chosen)
    for bound in bounds(stack(**chosen)):
        if bound.rides >= rides or bound.by in ("", WARMTH, *QUOTAS):
            continue
        wanted = math.ceil(bound.needed * rides * 4 / 3)
        value = max(wanted, int(parameters.get(bound.by, "0")))
        most = source()["Parameters"][bound.by].get("MaxValue", value)
        parameters[bound.by] = str(min(value, most))
    return parameters


# ── Showing it ────────────────────────────────────────────────────────────────────────────────────


def lines(found: Sequence[Bound], rides: float) -> str:
    """Return bounds as a table, with what raises those that are too low for rides a second."""
    rows = []
    for bound in found:
        setting, way = _remedy(bound, math.ceil(bound.needed * rides))
        if bound.rides >= rides:
            way = ""
        rows.append((bound.what, f"{bound.rides:,.0f}", setting, way))
    head = ["what", "rides a second", "set by", f"for {rides:,.0f} a second"]
    return markdown(head, rows)


def _remedy(bound: Bound, value: int) -> tuple[str, str]:
    """Return what sets a bound, and how to raise it to a value."""
    if not bound.by:
        return "the code", "change it"
    if bound.by in QUOTAS:
        source = QUOTAS[bound.by].source
        return f"[a quota]({source})", f"request {value:,}"
    if bound.by == WARMTH:
        return "[warm throughput](#warm-a-table)", f"warm to {value:,}"
    parameter = bound.by
    return f"`{parameter}`", f"`{parameter}={value}`"


def current(page: str) -> str:
    """Return docs/limits.md with the current tables."""
    defaults = bounds(stack(**PRODUCTION))
    raised = bounds(stack(**for_rides(10_000, **PRODUCTION)))
    of_the_stack = [bound for bound in raised if bound.by not in (WARMTH, *QUOTAS)]
    tables = {"defaults": lines(defaults, PLANNED), "raised": lines(of_the_stack[:3], 10_000)}
    return filled(page, "limits", tables)
