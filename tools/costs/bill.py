"""What a month's bill holds, from the template and a number of rides.

The template says what there is and how it is set, and constants say what a ride makes of it.
Amounts are in dollars, without free tiers, and rather too high: the load is even over the month,
and nothing is batched or compressed.
"""

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from tools.costs.tables import filled, markdown
from tools.transformed import ROLES, Properties, Stack, named, source, stack

LOOKED_UP: Final = "2026-11-22"
HOURS: Final = 730  # of a month
SECONDS: Final = HOURS * 3600
MONTHS: Final = 24 / HOURS  # of a day


class Price(NamedTuple):
    """A price of `us-east-1`, its page ``aws.amazon.com/<page>/pricing``, and its doubts."""

    dollars: float
    unit: str
    page: str
    doubt: str = ""


PRICES: Final[Mapping[str, Price]] = {
    "alarm": Price(0.10, "metric", "cloudwatch"),
    "query alarm": Price(
        0.10, "metric", "cloudwatch", "the price, and how many metrics a query analyzes"
    ),
    "composite alarm": Price(0.50, "alarm", "cloudwatch"),
    "dashboard": Price(3.00, "dashboard", "cloudwatch"),
    "custom metric": Price(0.30, "metric", "cloudwatch"),
    "log ingestion": Price(0.50, "GB", "cloudwatch"),
    "log storage": Price(0.03, "GB-month", "cloudwatch"),
    "trace": Price(
        5.00,
        "million",
        "xray",
        "the price, and that each function has a second's first request sampled",
    ),
    "event": Price(1.00, "million", "eventbridge"),
    "archived event": Price(0.10, "GB", "eventbridge"),
    "archive storage": Price(0.023, "GB-month", "eventbridge"),
    "pipe request": Price(0.40, "million", "eventbridge"),
    "scheduled run": Price(1.00, "million", "eventbridge"),
    "invocation": Price(0.20, "million", "lambda"),
    "arm64": Price(0.0000133334, "GB-second", "lambda"),
    "x86_64": Price(0.0000166667, "GB-second", "lambda"),
    "queue request": Price(0.40, "million", "sqs"),
    "publish": Price(0.50, "million", "sns"),
    "API request": Price(1.00, "million", "api-gateway"),
    "write unit": Price(0.625, "million", "dynamodb"),
    "read unit": Price(0.125, "million", "dynamodb"),
    "write capacity": Price(0.00065, "unit-hour", "dynamodb"),
    "read capacity": Price(0.00013, "unit-hour", "dynamodb"),
    "stream read": Price(
        0.20,
        "million",
        "dynamodb",
        "how often a pipe reads a shard, and how many there are (docs/adr/0029-one-shard-for-the-"
        "pipe-of-a-dev-stack.md)",
    ),
    "table storage": Price(0.25, "GB-month", "dynamodb"),
    "recovery": Price(0.20, "GB-month", "dynamodb"),
    "processing unit": Price(
        0.0023, "million", "elasticache", "the price, and what a script costs beyond its bytes"
    ),
    "memory": Price(0.084, "GB-hour", "elasticache", "the price"),
    "health check": Price(
        0.50, "check", "route53", "that a check of an alarm costs what one of AWS's endpoints does"
    ),
    "secret": Price(0.40, "secret", "secrets-manager", "the price"),
    "transfer": Price(0.02, "GB", "ec2"),
}
FREE_TIER: Final[Mapping[str, float]] = {
    "alarm": 10,
    "dashboard": 3,
    "custom metric": 10,
    "log ingestion": 5,
    "invocation": 1,
    "arm64": 400_000,
    "x86_64": 400_000,
    "queue request": 1,
    "publish": 1,
    "stream read": 2.5,
    "table storage": 25,
}
"""What an account has free in each month, in the units of `PRICES`, from the same pages."""
_SCALES: Final = {"million": 1e6, "GB": 1e9, "GB-month": 1e9}

# A ride that is booked, accepted, started and completed over the API, and paid, as
# tests/functions/test_ride_costs.py measures it. Dispatch finds a car with one query.
REQUESTS: Final = 4
EVENTS: Final = (
    "CarRideCreated",
    "CarRideAccepted",
    "CarAssigned",
    "PaymentAuthorized",
    "CarRideStarted",
    "CarRideCompleted",
    "CarReleased",
    "PaymentCaptured",
)
EVENT_BYTES: Final = 1180  # as rules, archive and log have it
LINE_BYTES: Final = 600  # of a delivery's log line, with its metric
METRIC_BYTES: Final = 185  # of the metric alone, which is all that is logged above level INFO
READ_UNITS: Final = 9.5
ROUND_TRIPS: Final = {"CarRideApi": 7, "RideHistory": 8, "Dispatch": 9, "Payment": 7}
"""Requests of each function to DynamoDB, for one ride.

A function that is not here is taken to make one request for each event, as an atomic consumer does.
"""


class RideInTable(NamedTuple):
    """What a ride makes of a table."""

    write_units: int
    """With those of the table's indexes."""
    staying: int = 0
    """Bytes of items that stay."""
    expiring: int = 0
    """Bytes of items that expire."""


TABLES: Final = {
    "IdempotencyTable": RideInTable(20, expiring=3900),
    "RideHistoryTable": RideInTable(16, staying=4100),
    "OutboxTable": RideInTable(16, expiring=5850),
    "BookingTable": RideInTable(12, staying=245),
    "AssignmentTable": RideInTable(6, staying=350),
    "PaymentTable": RideInTable(7, staying=370),
    "CarTable": RideInTable(6),
}
EXPIRING_ITEMS: Final = {"IdempotencyTable": 8, "OutboxTable": 8}
"""Items of a ride that expire, each below 1 KB."""
# After these Retentions.
EXPIRES: Final = {"IdempotencyTable": "WindowDays", "OutboxTable": "OutboxDays"}
# Of a ride's payment at the simulated gateway: invocations, write units.
GATEWAY_CALLS = 5
GATEWAY_UNITS = 3
OUTCOMES: Final = ("New", "Duplicate", "Retried")
"""The metrics of each consumer and the API in a month without failures."""
PLATFORM_BYTES: Final = 400  # of Lambda's lines START, END and REPORT
ACCESS_BYTES: Final = 350  # of a line in the API's access log
# Of each scalable target: docs.aws.amazon.com/amazondynamodb/latest/developerguide/AutoScaling.html
SCALING_ALARMS: Final = 4
POLLS: Final = 5 * SECONDS / 20  # of an idle queue: five pollers that wait for 20 seconds
# Of one shard, four times a second. AWS charges the reads of every consumer but Lambda:
# docs.aws.amazon.com/amazondynamodb/latest/developerguide/CostOptimization_StreamsUsage.html
SHARD_READS: Final = 4 * SECONDS
PERCENT_USED: Final = 50  # of a provisioned table's capacity, as auto scaling keeps it
NEW_TABLE: Final = 4_000  # write units a second of a table on demand, before it has grown
PARTITION: Final = 1_000  # write units a second of one partition, on which a key of an index lies
PARTITION_READS: Final = 3_000  # read units a second of one partition
PAID: Final[Mapping[str, Any]] = {"PaymentGatewayUrl": "https://gateway.example"}
"""Parameters of a stack whose rides are paid at a real gateway."""
PRODUCTION: Final[Mapping[str, Any]] = {"Stage": "prod", **PAID}
"""Parameters of such a stack in production."""
SAMPLED: Final = 0.05  # after the first request of a second
MILLISECONDS: Final = 20  # assumed for an invocation; only an account shows it


class Use(NamedTuple):
    """A line of a bill: a quantity of requests, bytes or hours, and its key in `PRICES`."""

    what: str
    price: str
    quantity: float

    @property
    def scale(self) -> float:
        """How many of the quantity are one unit of the price."""
        unit = PRICES[self.price].unit
        return _SCALES.get(unit, 1)

    @property
    def units(self) -> float:
        """The quantity in the price's unit."""
        return self.quantity / self.scale

    @property
    def dollars(self) -> float:
        """The amount."""
        return self.units * PRICES[self.price].dollars


def bill(rides: float, *, regions: int = 1, **chosen: str) -> tuple[list[Use], list[Use]]:
    """Return what a month costs while nothing happens, and what rides cost on top of it.

    Args:
        rides: number of rides in the month.
        regions: 1, or 2 for a primary and a secondary.
        **chosen: parameters of the template, beside those of `PAID`.

    Raises:
        ValueError: the template has no such parameter, or does not allow the value.
    """
    check(chosen)
    roles = ["standalone"] if regions == 1 else ["primary", "secondary"]
    stacks = [stack(**{**PAID, **chosen, **ROLES[role]}) for role in roles]
    resting = summed(*[idle(each) for each in stacks])
    driving = summed(*[load(each, rides) for each in stacks])
    return resting, driving


def beyond_free_tier(uses: Iterable[Use]) -> list[Use]:
    """Return what an account pays for if nothing else is in it."""
    left = dict(FREE_TIER)
    paid = list[Use]()
    for use in uses:
        free = min(left.get(use.price, 0), use.units)
        if free:
            left[use.price] -= free
        quantity = use.quantity - free * use.scale
        if quantity > 0:
            paid.append(use._replace(quantity=quantity))
    return paid


def check(chosen: Mapping[str, str]) -> None:
    """Raise ValueError if the template has no such parameter, or does not allow the value."""
    declared = source()["Parameters"]
    for name, value in chosen.items():
        if name not in declared:
            raise ValueError(f"there is no parameter {name}: docs/parameters.md lists them")
        allowed = [str(each) for each in declared[name].get("AllowedValues", [value])]
        if value not in allowed:
            raise ValueError(f"{name} is one of {', '.join(allowed)}, not {value}")


def summed(*uses: Iterable[Use]) -> list[Use]:
    """Return one line for all lines of a name, without those of nothing."""
    sums = defaultdict[tuple[str, str], float](float)
    for use in chain(*uses):
        sums[use.what, use.price] += use.quantity
    lines = list[Use]()
    for (what, price), quantity in sums.items():
        if quantity:
            lines.append(Use(what, price, quantity))
    return lines


# ── While nothing happens ─────────────────────────────────────────────────────────────────────────


def idle(deployed: Stack) -> Iterator[Use]:
    """Yield what a stack costs while nothing happens."""
    yield from _monitoring(deployed)
    secrets = bool(deployed.parameters["PaymentGatewaySecretArn"])
    yield Use("secret of the gateway", "secret", secrets)
    polls = POLLS * _number(deployed, "Lambda::EventSourceMapping")
    yield Use("SQS: Lambda's polls", "queue request", polls)
    reads = SHARD_READS * shards(deployed, "MinCapacity") * _number(deployed, "Pipes::Pipe")
    yield Use("DynamoDB: the pipe's reads of the stream", "stream read", reads)
    for table in deployed.of_type("AWS::DynamoDB::GlobalTable").values():
        yield from _provisioned(deployed, table)
    for schedule in deployed.of_type("AWS::Scheduler::Schedule").values():
        yield from _scheduled(deployed, schedule)


def shards(deployed: Stack, capacity: str) -> int:
    """Return how many shards the outbox's stream has: one for each of the table's partitions.

    A secondary reads a replica, which is billed as the primary's table.

    Args:
        deployed: a stack; its outbox has not grown yet.
        capacity: the parameter with the units that a provisioned table has.
    """
    if not deployed.conditions["ProvisionsOutbox"]:
        return NEW_TABLE // PARTITION
    units = int(deployed.parameters[capacity])
    return math.ceil(units / PARTITION + units / PARTITION_READS)


def is_provisioned(table: Properties) -> bool:
    """Return whether a table is billed by its capacity rather than on demand."""
    mode: str = table["BillingMode"]
    return mode == "PROVISIONED"


def _number(deployed: Stack, kind: str) -> int:
    """Return how many resources of a type a stack has; the type is without ``AWS::``."""
    return len(deployed.of_type(f"AWS::{kind}"))


def _monitoring(deployed: Stack) -> Iterator[Use]:
    """Yield what alarms, dashboard and health check cost."""
    for properties in deployed.of_type("AWS::CloudWatch::Alarm").values():
        alarm = json.dumps(properties)
        if "SELECT" in alarm:
            # A query analyzes a metric of each rule, or one metric.
            metrics = _number(deployed, "Events::Rule") if "RuleName" in alarm else 1
            yield Use("alarms on queries: metrics", "query alarm", metrics)
        else:
            yield Use("alarms: metrics", "alarm", alarm.count('"MetricStat"') or 1)
    composite = _number(deployed, "CloudWatch::CompositeAlarm")
    yield Use("composite alarms", "composite alarm", composite)
    yield Use("dashboard", "dashboard", _number(deployed, "CloudWatch::Dashboard"))
    checks = _number(deployed, "Route53::HealthCheck")
    yield Use("health check of the endpoint", "health check", checks)


def _provisioned(deployed: Stack, table: Properties) -> Iterator[Use]:
    """Yield what the least capacity of a table and its indexes costs, and what scales it."""
    if not is_provisioned(table):
        return
    indexes = len(table.get("GlobalSecondaryIndexes", []))
    targets = (1 + indexes) * len(table["Replicas"])
    yield Use("alarms of auto scaling: metrics", "alarm", 2 * targets * SCALING_ALARMS)
    unit_hours = targets * int(deployed.parameters["MinCapacity"]) * HOURS
    yield Use("DynamoDB: write capacity, the least", "write capacity", unit_hours)
    yield Use("DynamoDB: read capacity, the least", "read capacity", unit_hours)


def _scheduled(deployed: Stack, schedule: Properties) -> Iterator[Use]:
    """Yield what a schedule costs: its runs, and what they call."""
    (minutes,) = re.findall(r"\d+", schedule["ScheduleExpression"])
    runs = 0.0
    if schedule["State"] == "ENABLED":
        runs = SECONDS / 60 / int(minutes)
    yield Use("Scheduler: runs", "scheduled run", runs)
    target = named(schedule["Target"]["Arn"])
    if target in deployed.of_type("AWS::Lambda::Function"):
        yield from _invoked(deployed, target, runs)
    else:
        yield Use("EventBridge: heartbeats", "event", runs)
        yield from _logged(deployed, runs * EVENT_BYTES)


# ── Rides ─────────────────────────────────────────────────────────────────────────────────────────


def load(deployed: Stack, rides: float) -> Iterator[Use]:
    """Yield what rides cost on top of an idle stack. A secondary only gets copies of the events."""
    if not rides:
        return
    is_copy = deployed.parameters["Role"] == "secondary"
    yield from _on_the_bus(deployed, rides, is_copy=is_copy)
    if not is_copy:
        requests = rides * len(EVENTS)
        yield Use("Pipes: requests, if each carries one event", "pipe request", requests)
        yield from _processed(deployed, rides)
        # No function reads the outbox.
        by_capacity = deployed.conditions["ProvisionsTables"]
        yield from _units("read", READ_UNITS * rides, by_capacity=by_capacity)
    for name, table in deployed.of_type("AWS::DynamoDB::GlobalTable").items():
        yield from _written(name, table, rides)
        yield from _stored(deployed, name, len(table["Replicas"]), rides)


def _on_the_bus(deployed: Stack, rides: float, *, is_copy: bool) -> Iterator[Use]:
    """Yield what the events of rides cost on the bus, in its archive and at its targets."""
    events = rides * len(EVENTS)
    what = "copied events" if is_copy else "events"
    yield Use(f"EventBridge: {what}", "event", events)
    volume = events * EVENT_BYTES
    for archive in deployed.of_type("AWS::Events::Archive").values():
        yield Use("EventBridge: archived events", "archived event", volume)
        kept = volume * archive["RetentionDays"] * MONTHS
        yield Use("EventBridge: storage of the archive", "archive storage", kept)
    targets = taken(deployed, copied=is_copy)

    def to(kind: str) -> float:
        return rides * sum(targets[name] for name in deployed.of_type(f"AWS::{kind}"))

    yield from _logged(deployed, to("Logs::LogGroup") * EVENT_BYTES)
    yield Use("SNS: publishes to partners", "publish", to("SNS::Topic"))
    yield Use("SQS: send, receive and delete, one by one", "queue request", 3 * to("SQS::Queue"))


def _written(name: str, table: Properties, rides: float) -> Iterator[Use]:
    """Yield what the writes of rides to a table cost."""
    others = len(table["Replicas"]) - 1
    by_capacity = is_provisioned(table)
    if name in TABLES:
        units = TABLES[name].write_units * rides
        yield from _units("write", units * (1 + others), by_capacity=by_capacity)
        yield Use("transfer to the other region", "transfer", units * 1024 * others)
    # The region that deletes an expired item pays nothing, a replica a write unit:
    # docs.aws.amazon.com/amazondynamodb/latest/developerguide/
    # bp-global-table-design.prescriptive-guidance.throughput.html
    deletes = EXPIRING_ITEMS.get(name, 0) * rides * others
    for use in _units("write", deletes, by_capacity=by_capacity):
        yield use._replace(what="DynamoDB: deletes of expired items, in the replica")


def _stored(deployed: Stack, name: str, replicas: int, rides: float) -> Iterator[Use]:
    """Yield what the items of rides in a table cost."""
    if name not in TABLES:
        return
    staying = TABLES[name].staying * rides * replicas
    yield from _kept("stay, each month", staying)
    expiring = TABLES[name].expiring * rides * replicas
    if name in EXPIRES:
        retention = deployed.mappings["Retentions"][deployed.parameters["Retention"]]
        expiring *= int(retention[EXPIRES[name]]) * MONTHS
    yield from _kept("expire", expiring)


def _kept(which: str, volume: float) -> Iterator[Use]:
    yield Use(f"DynamoDB: storage of items that {which}", "table storage", volume)
    yield Use(f"DynamoDB: point-in-time recovery of items that {which}", "recovery", volume)


def taken(deployed: Stack, *, copied: bool = False) -> Counter[str]:
    """Return how many events of a ride the rules deliver to each target.

    Rules that look at the region take no copy.
    """
    events = Counter[str]()
    for rule in deployed.of_type("AWS::Events::Rule").values():
        pattern = rule["EventPattern"]
        is_off = rule.get("State") == "DISABLED"
        if is_off or (copied and "$or" in pattern):
            continue
        number = _matched(pattern)
        for target in rule["Targets"]:
            events[named(target["Arn"])] += number
    return events


def _matched(pattern: Mapping[str, Any]) -> int:
    """Return how many events of a ride a rule's pattern matches.

    They are in the newer envelope and have each of its attributes.
    """
    detail = pattern.get("detail", {})
    number = 0
    for alternative in detail.get("$or", [detail]):
        if "attributes" in alternative or [{"exists": False}] in alternative.values():
            continue  # of the older envelope, or without an attribute
        types = alternative.get("type", EVENTS)
        is_any = types == [{"prefix": ""}]
        number += len(EVENTS) if is_any else sum(event in types for event in EVENTS)
    return number


def calls(deployed: Stack) -> Counter[str]:
    """Return how often a ride invokes each function, if a batch has one message."""
    found = taken(deployed)
    for mapping in deployed.of_type("AWS::Lambda::EventSourceMapping").values():
        queue = named(mapping["EventSourceArn"])
        function = named(mapping["FunctionName"])
        found[function] += found[queue]
    for permission in deployed.of_type("AWS::Lambda::Permission").values():
        if permission["Principal"] == "apigateway.amazonaws.com":
            function = named(permission["FunctionName"])
            found[function] += REQUESTS
    functions = deployed.of_type("AWS::Lambda::Function")
    return Counter({name: number for name, number in found.items() if number and name in functions})


def round_trips(deployed: Stack) -> dict[str, int]:
    """Return the requests to DynamoDB that a ride costs each function, by its prefix."""
    found: dict[str, int] = {}
    for function, events in calls(deployed).items():
        name = function.removesuffix("Function")
        found[name] = ROUND_TRIPS.get(name, events)
    return found


def _processed(deployed: Stack, rides: float) -> Iterator[Use]:
    """Yield what API, functions and the simulated gateway cost."""
    requests = REQUESTS * rides * _number(deployed, "ApiGatewayV2::Stage")
    yield Use("HTTP API: requests", "API request", requests)
    yield from _logged(deployed, requests * ACCESS_BYTES)
    if "SimulatedGatewayFunction" in deployed.of_type("AWS::Lambda::Function"):
        yield from _invoked(deployed, "SimulatedGatewayFunction", GATEWAY_CALLS * rides)
    tables = len(deployed.of_type("AWS::DynamoDB::Table"))
    yield Use("DynamoDB: write units", "write unit", GATEWAY_UNITS * rides * tables)
    line = LINE_BYTES if deployed.parameters["LogLevel"] in {"DEBUG", "INFO"} else METRIC_BYTES
    for name, number in calls(deployed).items():
        yield from _invoked(deployed, name, number * rides)
        yield from _logged(deployed, number * rides * line)
        yield Use("custom metrics, without failures", "custom metric", len(OUTCOMES))


def _units(kind: str, units: float, *, by_capacity: bool) -> Iterator[Use]:
    """Yield what read or write units cost, on demand or by a capacity that follows the load."""
    if not by_capacity:
        yield Use(f"DynamoDB: {kind} units", f"{kind} unit", units)
        return
    provisioned = units * 100 / PERCENT_USED
    hours = provisioned / 3600
    yield Use(f"DynamoDB: {kind} capacity for the load", f"{kind} capacity", hours)


def _invoked(deployed: Stack, function: str, number: float) -> Iterator[Use]:
    """Yield what calls of a function cost, with their traces and Lambda's own log lines."""
    properties = deployed.of_type("AWS::Lambda::Function")[function]
    architecture = deployed.parameters["Architecture"]
    seconds = number * MILLISECONDS / 1000
    gigabyte_seconds = seconds * properties["MemorySize"] / 1024
    yield Use("Lambda: requests", "invocation", number)
    yield Use(f"Lambda: {MILLISECONDS} ms a request", architecture, gigabyte_seconds)
    if deployed.parameters["Tracing"] == "Active" and "TracingConfig" in properties:
        one_a_second = min(number, SECONDS)
        sampled = SAMPLED * (number - one_a_second)
        yield Use("X-Ray: traces", "trace", one_a_second + sampled)
    yield from _logged(deployed, number * PLATFORM_BYTES)


def _logged(deployed: Stack, volume: float) -> Iterator[Use]:
    """Yield what bytes of log lines cost. All log groups keep them for the same time."""
    groups = list(deployed.of_type("AWS::Logs::LogGroup").values())
    if not groups:
        return
    months = groups[0]["RetentionInDays"] * MONTHS
    yield Use("CloudWatch Logs: ingestion", "log ingestion", volume)
    yield Use("CloudWatch Logs: storage", "log storage", volume * months)


# ── Showing it ────────────────────────────────────────────────────────────────────────────────────

COMPARED: Final[Mapping[str, Mapping[str, Any]]] = {
    "the defaults": {},
    "`Architecture=x86_64`": {"Architecture": "x86_64"},
    "`LogLevel=WARN`": {"LogLevel": "WARN"},
    "`Retention=long`": {"Retention": "long"},
    "`Stage=prod`": PRODUCTION,
    "`TableBilling=on-demand`": {"TableBilling": "on-demand"},
    "`TableBilling=provisioned`": {"TableBilling": "provisioned"},
    "`Tracing=Active`": {"Tracing": "Active"},
    "two regions": {"regions": 2},
}
"""What docs/costs.md compares."""


def sum_of(uses: Sequence[Use]) -> str:
    """Return the dollars of uses, as their lines add up."""
    dollars = sum(round(use.dollars, 2) for use in uses)
    return f"{dollars:,.2f}"


def lines(uses: Sequence[Use]) -> str:
    """Return uses as a table, with their sum."""
    rows = [_row(use) for use in uses]
    rows.append(("**sum**", "", "", "", f"**{sum_of(uses)}**"))
    return markdown(["what", "count", "unit", "$ each", "$ a month"], rows)


def _row(use: Use) -> tuple[str, str, str, str, str]:
    """Return a line of a bill in words; a price that nothing confirms has an asterisk."""
    price = PRICES[use.price]
    count = _shortest(f"{use.units:,.3f}")
    each = _shortest(f"{price.dollars:,.10f}")
    if price.doubt:
        each += "*"
    return use.what, count, price.unit, each, f"{use.dollars:,.2f}"


def _shortest(number: str) -> str:
    """Return a decimal number without the zeros at its end."""
    return number.rstrip("0").rstrip(".")


def current(page: str) -> str:
    """Return docs/costs.md with the current tables."""
    _, rides = bill(1e6, **PRODUCTION)
    choices = []
    for name, chosen in COMPARED.items():
        resting, driving = bill(1e6, **chosen)
        choices.append((name, sum_of(resting), sum_of(driving)))
    head = ["parameters", "$ idle", "$ a million rides"]
    return filled(page, "costs", {"rides": lines(rides), "choices": markdown(head, choices)})
