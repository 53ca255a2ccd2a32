"""How many rides a second a stack can take, and what stops it first: `make capacity`.

The template says how it is set, `tools.costs` what a ride makes of it, and QUOTAS what AWS
allows an account. Durations are assumed, so bounds that rest on them are estimates; only an account
shows them.
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import Final, NamedTuple

from assignments import BLOCKS, SHARD
from carride.overdue import SHARDS
from tools import costs
from tools.costs import EVENTS, REQUESTS, ROUND_TRIPS, SECONDS, TABLES
from tools.transformed import Stack, source, stack

_DOCS: Final = "https://docs.aws.amazon.com"
_BUS: Final = f"{_DOCS}/eventbridge/latest/userguide/eb-quota.html"
_LAMBDA: Final = f"{_DOCS}/lambda/latest/dg/gettingstarted-limits.html"
_LOGS: Final = f"{_DOCS}/AmazonCloudWatch/latest/logs/cloudwatch_limits_cwl.html"
_DYNAMODB: Final = f"{_DOCS}/amazondynamodb/latest/developerguide/ServiceQuotas.html"


class Quota(NamedTuple):
    """What AWS allows an account in a region, as long as nobody requests more. All of these can be raised."""

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
# Write units a second of a table on demand, before it has grown or was warmed.
NEW_TABLE: Final = 4_000
PARTITION: Final = 1_000  # write units a second of one partition, on which a key of an index lies
TRIP_S: Final = 0.01  # assumed for a request to DynamoDB, with the code around it
CALL_S: Final = 0.2  # assumed for a call of the payment gateway
PIPE_S: Final = 0.05  # assumed for a batch of the pipe
INDEX_WRITES: Final = 2  # of a ride in each index of open rides, and in that of free cars
EMITTED: Final = {"Dispatch": 2, "Payment": 2}  # events of a ride, besides those of the API
_TICKS: Final = 50  # of a simulated second


class Bound(NamedTuple):
    """What limits the rides a second, and how to raise that."""

    what: str
    rides: float
    by: str
    """A parameter of the template, a key of QUOTAS, or nothing: only a change of the code raises
    it."""
    needed: float = 0
    """The value of parameter or quota for one ride a second."""


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
    """Return the stations of a ride's events. Each invocation of a target is taken to hold the bus for 0.1 s."""
    parameters, calls = deployed.parameters, costs.calls(deployed)
    [pipe] = deployed.of_type("AWS::Pipes::Pipe").values()
    stream = pipe["SourceParameters"]["DynamoDBStreamParameters"]
    [mapping] = deployed.of_type("AWS::Lambda::EventSourceMapping").values()
    shards = max(NEW_TABLE, int(parameters["WarmUnits"])) // PARTITION
    targets = sum(costs.taken(deployed).values())
    found = {
        "OutboxPipe": Station(
            len(EVENTS), shards * stream["ParallelizationFactor"], stream["BatchSize"], PIPE_S
        ),
        "Bus": Station(targets, QUOTAS["invocations"].value // 10, 1, 0.1),
    }
    reserved = int(parameters["ReservedConcurrency"])
    for name, trips in ROUND_TRIPS.items():
        load, batch, servers = calls[f"{name}Function"], 1, reserved or QUOTAS["concurrency"].value
        if name == "Dispatch":
            batch, servers = (
                mapping["BatchSize"],
                reserved or int(parameters["DispatchConcurrency"]),
            )
        if not load:  # payment without a gateway
            continue
        seconds = trips * TRIP_S + (CALL_S * costs.GATEWAY_CALLS if name == "Payment" else 0)
        found[name] = Station(load, servers, batch, seconds / load * batch)
    return found


def bounds(deployed: Stack) -> list[Bound]:
    """Return every bound of a stack on demand, the lowest first."""
    parameters, found = deployed.parameters, stations(deployed)
    dispatch, pipe = found["Dispatch"], found["OutboxPipe"]
    largest, units = max(
        ((table, units) for table, (units, *_) in TABLES.items()), key=lambda table: table[1]
    )
    by = (
        "DispatchConcurrency" if parameters["ReservedConcurrency"] == "0" else "ReservedConcurrency"
    )
    needed = {
        "api": REQUESTS,
        "concurrency": sum(found[name].each for name in ROUND_TRIPS if name in found),
        "requests": sum(costs.calls(deployed).values()),
        "put": len(EVENTS) / pipe.batch,  # the pipe's batches are full when it has much to do
        "invocations": found["Bus"].load,
        "pipes": pipe.each,
        "logs": len(EVENTS),
        "table": units,
    }
    warm = max(NEW_TABLE, int(parameters["WarmUnits"]))
    result = [
        Bound("requests to the API", int(parameters["ApiRate"]) / REQUESTS, "ApiRate", REQUESTS),
        Bound(
            "concurrent batches of dispatch", dispatch.servers / dispatch.each, by, dispatch.each
        ),
        Bound(f"units of {largest} while it is new", warm / units, "WarmUnits", units),
        Bound(
            "batches of the pipe",
            pipe.servers / pipe.each,
            "WarmUnits",
            pipe.each * warm / pipe.servers,
        ),
        Bound("shards of an index of open rides", SHARDS * PARTITION / INDEX_WRITES, ""),
        Bound("shards of the index of free cars", BLOCKS**2 / SHARD * PARTITION / INDEX_WRITES, ""),
    ]
    result += [
        Bound(name, value / needed[key], key, needed[key])
        for key, (name, value, _) in QUOTAS.items()
    ]
    return sorted(result, key=lambda bound: bound.rides)


def for_rides(rides: float, **chosen: str) -> dict[str, str]:
    """Return the parameters with which no setting stops so many rides a second, with a third in reserve."""
    parameters = dict(chosen)
    for bound in bounds(stack(**chosen)):
        if bound.rides < rides and bound.by not in ("", *QUOTAS):
            value = max(math.ceil(bound.needed * rides * 4 / 3), int(parameters.get(bound.by, "0")))
            parameters[bound.by] = str(
                min(value, source()["Parameters"][bound.by].get("MaxValue", value))
            )
    return parameters


def granted(deployed: Stack, rides: float) -> dict[str, Station]:
    """Return the stations of a stack whose quotas were raised for so many rides a second, with a third in reserve."""
    found = stations(deployed)
    for name in found.keys() - {"Dispatch", "OutboxPipe"}:  # which settings bound
        servers = max(found[name].servers, math.ceil(found[name].each * rides * 4 / 3))
        found[name] = found[name]._replace(servers=servers)
    return found


# ── The queues of a ride's events ─────────────────────────────────────────────────────────────────


def simulate(
    found: Mapping[str, Station], rides: float, *, seconds: int = 20, seed: int = 0
) -> dict[str, list[float]]:
    """Simulate the queues in virtual time, and return how many wait at each station, on average, in every second.

    Each event has its share of what a station passes on: the API, dispatch and payment to the pipe,
    the pipe to the bus, and the bus to its targets.

    Args:
        found: the stations, as `stations` returns them. How much they do in a moment varies by a
            half.
        rides: rides a second. Their requests come at random.
        seconds: how long rides come.
        seed: makes a run repeatable.
    """
    random = Random(seed)  # noqa: S311 - a simulation, not a secret
    waiting, averages = dict.fromkeys(found, 0.0), {name: [0.0] * seconds for name in found}
    published = {"CarRideApi": REQUESTS} | {
        name: EMITTED[name] for name in EMITTED if name in found
    }
    targets = {
        name: station.load
        for name, station in found.items()
        if name not in {"CarRideApi", "OutboxPipe", "Bus"}
    }
    onward = {name: {"OutboxPipe": events / found[name].load} for name, events in published.items()}
    onward |= {"OutboxPipe": {"Bus": found["Bus"].load / found["OutboxPipe"].load}}
    onward |= {"Bus": {name: load / found["Bus"].load for name, load in targets.items()}}
    for tick in range(seconds * _TICKS):
        waiting["CarRideApi"] += random.binomialvariate(10_000, REQUESTS * rides / _TICKS / 10_000)
        for name, (_, servers, batch, duration) in found.items():
            done = min(
                waiting[name], servers * batch / duration / _TICKS * random.uniform(0.5, 1.5)
            )
            waiting[name] -= done
            for target, share in onward.get(name, {}).items():
                waiting[target] += done * share
            averages[name][tick // _TICKS] += waiting[name] / _TICKS
    return averages


def growing(waiting: Mapping[str, Sequence[float]]) -> list[str]:
    """Return the stations whose queue grows: it is longer in the last quarter than in the one before."""
    quarter = min(map(len, waiting.values())) // 4
    parts = {
        name: (queue[-2 * quarter : -quarter], queue[-quarter:]) for name, queue in waiting.items()
    }
    return [
        name
        for name, (before, last) in parts.items()
        if sum(last) > 1.1 * sum(before) + 100 * quarter
    ]


# ── Showing it ────────────────────────────────────────────────────────────────────────────────────


def table(found: Sequence[Bound], rides: float) -> str:
    """Return bounds as a table in Markdown, with what raises those that are too low for so many rides a second."""
    rows = []
    for what, most, by, needed in found:
        value = math.ceil(needed * rides)
        set_by, way = (f"`{by}`", f"`{by}={value}`") if by else ("the code", "change it")
        if by in QUOTAS:
            set_by, way = f"[a quota]({QUOTAS[by].source})", f"request {value:,}"
        rows.append((what, f"{most:,.0f}", set_by, way if most < rides else ""))
    return costs.table(f"what | rides a second | set by | for {rides:,.0f} a second", rows)


def current(page: str) -> str:
    """Return docs/limits.md with the current tables."""
    raised = [bound for bound in bounds(stack(**for_rides(10_000))) if bound.by not in QUOTAS]
    return costs.filled(
        page,
        "limits",
        {"defaults": table(bounds(stack()), 1000), "raised": table(raised[:3], 10_000)},
    )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="make capacity", description=" ".join(str(__doc__).split())
    )
    parser.add_argument(
        "--rides", type=float, default=1000, help="rides a second to plan for (1000)"
    )
    parser.add_argument(
        "--simulate",
        type=float,
        metavar="RIDES",
        help="simulate the queues at so many rides a second",
    )
    options, chosen = costs.parsed(parser)
    if options.simulate:
        parameters = for_rides(options.simulate, **chosen)
        waiting = simulate(granted(stack(**parameters), options.simulate), options.simulate)
        rows = [
            (name, *(f"{queue[at]:,.0f}" for at in (4, 9, 14, 19)))
            for name, queue in waiting.items()
        ]
        print(costs.table("waiting at | in second 5 | 10 | 15 | 20", rows))
        print(f"Queues that grow, with {parameters}: {', '.join(growing(waiting)) or 'none'}.")
    else:
        found, dollars = bounds(stack(**chosen)), sum(use.dollars for use in costs.bill(SECONDS)[1])
        print(
            f"{table(found, options.rides)}\nFirst: {found[0].what}, at {found[0].rides:,.0f} rides a second."
        )
        print(
            f"A ride a second costs ${dollars:,.0f} a month on top of an idle stack; `make costs` says what for."
        )


if __name__ == "__main__":
    main()
