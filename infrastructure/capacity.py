"""How many rides a second a stack can take, and what stops it first: `make capacity`.

The template says how it is set, `infrastructure.costs` what a ride makes of it, and QUOTAS what AWS allows an account.
Durations are assumed, so bounds that rest on them are estimates; only an account shows them.
"""

import argparse
import heapq
import json
import math
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from random import Random
from typing import Any, Final, NamedTuple

from assignments import BLOCKS, SHARD
from carride.overdue import SHARDS
from infrastructure import costs
from infrastructure.costs import EVENTS, REQUESTS, ROUND_TRIPS, SECONDS, TABLES
from infrastructure.transformed import Stack, named, source, stack

_DOCS: Final = "https://docs.aws.amazon.com"
_BUS: Final = f"{_DOCS}/eventbridge/latest/userguide/eb-quota.html"
_LAMBDA: Final = f"{_DOCS}/lambda/latest/dg/gettingstarted-limits.html"
_DYNAMODB: Final = f"{_DOCS}/amazondynamodb/latest/developerguide/ServiceQuotas.html"
NARROW: Final = "us-east-2"
"""A region with smaller quotas, to compare with."""


class Quota(NamedTuple):
    """What AWS allows an account in a region, as long as nobody requests more. All of these can be raised."""

    name: str
    value: int
    source: str
    narrow: int | None = None
    """Its value in NARROW, if that is another one."""


QUOTAS: Final[Mapping[str, Quota]] = {
    "api": Quota("API Gateway: requests a second", 10_000, f"{_DOCS}/apigateway/latest/developerguide/limits.html"),
    "concurrency": Quota("Lambda: concurrent executions", 1_000, _LAMBDA),
    "requests": Quota("Lambda: requests a second, ten for each concurrent execution", 10_000, _LAMBDA),
    "put": Quota("EventBridge: PutEvents requests a second", 10_000, _BUS, 2_400),
    "invocations": Quota("EventBridge: invocations of targets a second", 18_750, _BUS, 4_500),
    "pipes": Quota("EventBridge Pipes: concurrent executions", 3_000, _BUS, 1_000),
    "logs": Quota(
        "CloudWatch Logs: PutLogEvents requests a second",
        5_000,
        f"{_DOCS}/AmazonCloudWatch/latest/logs/cloudwatch_limits_cwl.html",
    ),
    "table": Quota("DynamoDB: write units a second of a table and its indexes", 40_000, _DYNAMODB),
}
"""In us-east-1, us-west-2 and eu-west-1, as documented on 2026-11-22."""
NEW_TABLE: Final = 4_000  # write units a second of a table on demand, before it has grown or was warmed
PARTITION: Final = 1_000  # write units a second of one partition, on which a key of an index lies
TRIP_S: Final = 0.01  # assumed for a request to DynamoDB, with the code around it
CALL_S: Final = 0.2  # assumed for a call of the payment gateway
PIPE_S: Final = 0.05  # assumed for a batch of the pipe
INDEX_WRITES: Final = 2  # of a ride in each index of open rides, and in that of free cars


class Bound(NamedTuple):
    """What limits the rides a second, and how to raise that."""

    what: str
    rides: float
    by: str
    """A parameter of the template, a key of QUOTAS, or nothing: only a change of the code raises it."""
    needed: float
    """The value of parameter or quota for one ride a second."""


def bounds(deployed: Stack, *, narrow: bool = False) -> list[Bound]:
    """Return every bound of a stack on demand, the lowest first.

    Args:
        deployed: the transformed template.
        narrow: with the quotas of NARROW.
    """
    return sorted([*_settings(deployed), *_quotas(deployed, narrow=narrow)], key=lambda bound: bound.rides)


def _settings(deployed: Stack) -> Iterator[Bound]:
    chosen = {name: int(deployed.parameters[name]) for name in ("ApiRate", "DispatchConcurrency", "WarmUnits")}
    yield Bound("requests to the API", chosen["ApiRate"] / REQUESTS, "ApiRate", REQUESTS)
    station = stations(deployed)["Dispatch"]
    each = station.load * station.seconds / station.batch
    yield Bound("concurrent batches of dispatch", station.servers / each, _dispatch(deployed), each)
    units = {table: units for table, (units, _) in TABLES.items()}
    largest = max(units, key=lambda table: units[table])
    at_once = max(NEW_TABLE, chosen["WarmUnits"])
    yield Bound(f"units of {largest} while it is new", at_once / units[largest], "WarmUnits", units[largest])
    pipe = stations(deployed)["OutboxPipe"]
    yield Bound("batches of the pipe", pipe.rate, "WarmUnits", pipe.load * pipe.seconds / pipe.batch * PARTITION / 10)
    yield Bound("shards of an index of open rides", SHARDS * PARTITION / INDEX_WRITES, "", 0)
    yield Bound("shards of the index of free cars", BLOCKS**2 / SHARD * PARTITION / INDEX_WRITES, "", 0)


def _quotas(deployed: Stack, *, narrow: bool) -> Iterator[Bound]:
    targets, calls = costs.taken(deployed), costs.calls(deployed)
    needed = {
        "api": REQUESTS,
        "concurrency": sum(each.load * each.seconds / each.batch for each in _functions(deployed).values()),
        "requests": sum(calls.values()),
        "put": len(EVENTS) / 10,  # the pipe's batches are full when it has much to do
        "invocations": sum(targets.values()),
        "pipes": len(EVENTS) / 10 * PIPE_S,
        "logs": len(EVENTS),
        "table": max(units for units, _ in TABLES.values()),
    }
    for key, (name, value, _, other) in QUOTAS.items():
        yield Bound(name, (other if narrow and other else value) / needed[key], key, needed[key])


def _dispatch(deployed: Stack) -> str:
    return "ReservedConcurrency" if deployed.parameters["ReservedConcurrency"] != "0" else "DispatchConcurrency"


def for_rides(rides: float, **chosen: str) -> dict[str, str]:
    """Return the parameters with which no setting stops so many rides a second, with a third in reserve."""
    parameters = dict(chosen)
    for bound in bounds(stack(**chosen)):
        if bound.rides < rides and bound.by not in ("", *QUOTAS):
            value = max(math.ceil(bound.needed * rides * 4 / 3), int(parameters.get(bound.by, "0")))
            parameters[bound.by] = str(min(value, source()["Parameters"][bound.by].get("MaxValue", value)))
    return parameters


# ── The queues of a ride's events ─────────────────────────────────────────────────────────────────────────────────────


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
    def rate(self) -> float:
        """The rides a second that it can take."""
        return self.servers * self.batch / self.seconds / self.load


def _functions(deployed: Stack) -> dict[str, Station]:
    calls, parameters = costs.calls(deployed), deployed.parameters
    [mapping] = deployed.of_type("AWS::Lambda::EventSourceMapping").values()
    found = {}
    for name, trips in ROUND_TRIPS.items():
        load = calls[f"{name}Function"]
        seconds = trips * TRIP_S / load + (CALL_S * costs.GATEWAY_CALLS / load if name == "Payment" else 0)
        most = int(parameters["ReservedConcurrency"]) or QUOTAS["concurrency"].value
        found[name] = Station(load, most, 1, seconds)
        if name == named(mapping["FunctionName"]).removesuffix("Function"):
            batch = mapping["BatchSize"]
            found[name] = Station(load, int(parameters[_dispatch(deployed)]), batch, seconds * batch)
    return found


def stations(deployed: Stack) -> dict[str, Station]:
    """Return the stations of a ride's events. Each invocation of a target holds the bus for 0.1 s."""
    [pipe] = deployed.of_type("AWS::Pipes::Pipe").values()
    stream = pipe["SourceParameters"]["DynamoDBStreamParameters"]
    shards = max(NEW_TABLE, int(deployed.parameters["WarmUnits"])) // PARTITION
    targets = sum(costs.taken(deployed).values())
    return _functions(deployed) | {
        "OutboxPipe": Station(len(EVENTS), shards * stream["ParallelizationFactor"], stream["BatchSize"], PIPE_S),
        "Bus": Station(targets, QUOTAS["invocations"].value // 10, 1, 0.1),
    }


def granted(deployed: Stack, rides: float) -> dict[str, Station]:
    """Return the stations of a stack whose quotas were raised for so many rides a second, with a third in reserve."""
    found = stations(deployed)
    for name in found.keys() - {"Dispatch", "OutboxPipe"}:  # which settings bound
        servers = math.ceil(found[name].servers / found[name].rate * rides * 4 / 3)
        found[name] = found[name]._replace(servers=max(found[name].servers, servers))
    return found


class _Simulation:
    """Stations and their queues in virtual time."""

    def __init__(self, found: Mapping[str, Station], seed: int) -> None:
        self.now, self.queues = 0.0, {name: deque[str]() for name in found}
        self.random = Random(seed)  # noqa: S311 - a simulation, not a secret
        self._found, self._busy = found, dict.fromkeys(found, 0)
        self._calendar: list[tuple[float, int, str, Sequence[str]]] = []
        self._numbers = count()

    def later(self, delay: float, station: str, work: Sequence[str]) -> None:
        """Have work arrive at a station, or be done there."""
        heapq.heappush(self._calendar, (self.now + delay, next(self._numbers), station, work))

    def next(self) -> tuple[str, Sequence[str]]:
        """Go on to what happens next, and return its station and work."""
        self.now, _, station, work = heapq.heappop(self._calendar)
        return station, work

    def arrive(self, station: str, event: str) -> None:
        """Put an event into the queue of a station, if there is such a station."""
        if station in self.queues:
            self.queues[station].append(event)
            self.begin(station)

    def begin(self, station: str) -> None:
        """Have a station begin what it can. The time for a batch varies by a half."""
        _, servers, batch, seconds = self._found[station]
        queue = self.queues[station]
        while queue and self._busy[station] < servers:
            work = [queue.popleft() for _ in range(min(batch, len(queue)))]
            self._busy[station] += 1
            self.later(seconds * self.random.uniform(0.5, 1.5), station, work)

    def end(self, station: str, work: Sequence[str]) -> None:
        """Pass on what a station has done."""
        self._busy[station] -= 1
        for event in work:
            if station == "CarRideApi":
                self.arrive("OutboxPipe", event)
            elif station == "OutboxPipe":
                for target in _TARGETS:
                    if target not in {"Dispatch", "Payment"} or (target, event) in _EMITS:
                        self.arrive("Bus", f"{target} {event}")
            elif station == "Bus":
                self.arrive(*event.split())
            elif (station, event) in _EMITS:
                self.arrive("OutboxPipe", _EMITS[station, event])
        self.begin(station)


def simulate(found: Mapping[str, Station], rides: float, *, seconds: int = 20, seed: int = 0) -> dict[str, list[int]]:
    """Simulate the queues in virtual time, and return how many wait at each station at the end of every second.

    Args:
        found: the stations, as `stations` returns them.
        rides: rides a second. Their requests come at random.
        seconds: how long rides come.
        seed: makes a run repeatable.
    """
    simulation, waiting = _Simulation(found, seed), {name: list[int]() for name in found}
    for second in range(seconds):
        simulation.later(second + 1, "end of a second", ())
    for event in _REQUESTED:
        simulation.later(simulation.random.expovariate(rides), "a client", [event])
    while simulation.now < seconds:
        station, work = simulation.next()
        if station == "end of a second":
            for name, queue in simulation.queues.items():
                waiting[name].append(len(queue))
        elif station == "a client":
            simulation.later(simulation.random.expovariate(rides), station, work)
            simulation.arrive("CarRideApi", work[0])
        else:
            simulation.end(station, work)
    return waiting


def growing(waiting: Mapping[str, Sequence[int]]) -> list[str]:
    """Return the stations whose queue grows: it is longer in the last quarter than in the one before."""

    def longer(queue: Sequence[int]) -> bool:
        quarter = len(queue) // 4
        return sum(queue[-quarter:]) > 1.1 * sum(queue[-2 * quarter : -quarter]) + 100 * quarter

    return [name for name, queue in waiting.items() if longer(queue)]


_REQUESTED: Final = ("CarRideCreated", "CarRideAccepted", "CarRideStarted", "CarRideCompleted")
_EMITS: Final[Mapping[tuple[str, str], str]] = {
    ("Dispatch", "CarRideAccepted"): "CarAssigned",
    ("Dispatch", "CarRideCompleted"): "CarReleased",
    ("Payment", "CarAssigned"): "PaymentAuthorized",
    ("Payment", "CarRideCompleted"): "PaymentCaptured",
}
_TARGETS: Final = ("RideHistory", "Dispatch", "Payment", "log", "partners")


# ── Showing it ────────────────────────────────────────────────────────────────────────────────────────────────────────


def table(found: Sequence[Bound], rides: float) -> str:
    """Return bounds as a table in Markdown, with what raises those that are too low for so many rides a second."""
    rows = []
    for what, most, by, needed in found:
        value = math.ceil(needed * rides)
        set_by, way = (f"`{by}`", f"`{by}={value}`") if by else ("the code", "change it")
        if by in QUOTAS:
            set_by, way = "a quota", f"request {value:,}"
        rows.append((what, f"{most:,.0f}", set_by, way if most < rides else ""))
    return costs.table(f"what | rides a second | set by | for {rides:,.0f} a second", rows)


def monthly() -> float:
    """Return what one ride a second costs in a month, in dollars, on top of an idle stack."""
    return sum(use.dollars for use in costs.bill(SECONDS)[1])


def current(page: str) -> str:
    """Return docs/limits.md with the current tables."""
    wide = stack(**for_rides(10_000))
    raised = [bound for bound in bounds(wide) if bound.by not in QUOTAS]
    quotas = [
        (name, f"{value:,}", f"{narrow or value:,}", f"[AWS]({source})")
        for name, value, source, narrow in QUOTAS.values()
    ]
    return costs.filled(
        page,
        "limits",
        {
            "defaults": table(bounds(stack()), 1000),
            "raised": table(raised, 10_000),
            "quotas": costs.table(f"quota | us-east-1, us-west-2, eu-west-1 | {NARROW} | source", quotas),
            "narrow": table(bounds(stack(), narrow=True)[:3], 1000),
        },
    )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="make capacity", description=" ".join(str(__doc__).split()))
    parser.add_argument("--rides", type=float, default=1000, help="rides a second to plan for (1000)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the template")
    parser.add_argument("--narrow", action="store_true", help=f"with the smaller quotas of {NARROW}")
    parser.add_argument("--simulate", type=float, metavar="RIDES", help="simulate the queues at so many rides a second")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    chosen = {name: value for name, _, value in (each.partition("=") for each in options.set)}
    try:
        costs.check(chosen)
    except ValueError as error:
        sys.exit(f"error: {error}")
    if options.simulate:
        parameters = for_rides(options.simulate, **chosen)
        waiting = simulate(granted(stack(**parameters), options.simulate), options.simulate)
        result: dict[str, Any] = {"set": parameters, "waiting": waiting, "growing": growing(waiting)}
        print(json.dumps(result) if options.json else _simulated(result))
        sys.exit(bool(result["growing"]))
    found = bounds(stack(**chosen), narrow=options.narrow)
    if options.json:
        print(json.dumps({"bounds": [each._asdict() for each in found], "dollars_a_month": monthly()}))
    else:
        print(f"{table(found, options.rides)}\nFirst: {found[0].what}, at {found[0].rides:,.0f} rides a second.")
        print(f"A ride a second costs ${monthly():,.0f} a month on top of an idle stack; `make costs` says what for.")


def _simulated(result: Mapping[str, Any]) -> str:
    rows = [(name, *(f"{queue[at]:,}" for at in (4, 9, 14, 19))) for name, queue in result["waiting"].items()]
    shown = costs.table("waiting at | after 5 s | 10 s | 15 s | 20 s", rows)
    return f"{shown}\nQueues that grow: {', '.join(result['growing']) or 'none'}."


if __name__ == "__main__":
    main()
