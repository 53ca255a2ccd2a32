"""Each variable of the template reaches a function's acts: parameter, variable, setting, act.

A function is made from the environment that the transformed template gives it, over tables of the
template's names and keys. What it then does is compared with what the row says. Each row chooses a
parameter that is neither the template's default nor the code's, so that a variable that is dropped,
written as a constant or swapped for another one is noticed.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import cache
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import msgspec
import pytest
from aws_lambda_powertools.utilities.parameters import SecretsProvider
from botocore.auth import AUTH_TYPE_MAPS
from botocore.client import BaseClient
from msgspec.structs import replace

import assignment_table
import assignments
import carride_simulator
import dispatch
import gateway_connection
import payment
import reconciler
from api.service import Settings
from carride.consumer import ConsumerSettings
from carride.events import SOURCE, RideEvent
from carride.overdue import opened
from carride_idempotency.testing import Crash, Invocation, eventbridge_event, sqs_event
from carride_idempotency.testing.worlds import CRASH_BEFORE, Fault
from tests.functions.world import BOOKING
from tests.kit.rides import NOW, Life
from tests.template.deployment import Deployment, environment
from tests.world.wiring import REGION, queue_url, wiring
from tools.transformed import source

pytestmark = pytest.mark.integration

SETTINGS: Final[Mapping[str, type[msgspec.Struct]]] = {
    "CarRideApiFunction": Settings,
    "CarRideSimulatorFunction": carride_simulator.Settings,
    "RideHistoryFunction": ConsumerSettings,
    "DispatchFunction": dispatch.Settings,
    "PaymentFunction": payment.Settings,
    "ReconcilerFunction": reconciler.Settings,
}
OF_LAMBDA: Final = frozenset({"AWS_REGION"})
"""The variables that Lambda sets."""
OF_TELEMETRY: Final = frozenset({
    *("LOG_LEVEL", "POWERTOOLS_METRICS_NAMESPACE", "POWERTOOLS_SERVICE_NAME"),
})  # fmt: skip
"""The variables that `carride.telemetry` and Powertools read, in every function."""
SECONDARY: Final = {
    "Role": "secondary",
    "PeerRegion": "us-west-2",
    "OutboxStreamArn": "arn:aws:dynamodb:us-east-1:123456789012:table/carride-OutboxTable/stream/1",
    "GlobalEndpointId": "abcde.veo",
}
SECRET: Final = "arn:aws:secretsmanager:us-east-1:123456789012:secret:gateway-AbCdEf"  # noqa: S105 - a name


def fields_of(function: str) -> set[str]:
    """Return the variables that the settings of a function read."""
    return {
        each.encode_name.upper() for each in msgspec.structs.fields(SETTINGS[function])
    } - OF_LAMBDA


# ── What each function does ───────────────────────────────────────────────────────────────────────


def of_the_api(deployed: Deployment) -> Iterator[tuple[str, object]]:
    """Yield what the API does: it books a ride, shows it, is fenced, has a simulation started."""
    drivers = {"jwt": {"claims": {"sub": "d", "cognito:groups": "[drivers]"}}}
    assert deployed.ask("POST", "/carrides", BOOKING) == 201
    (ride,) = [item["orderID"] for item in deployed.items("BookingTable")]
    yield "BOOKING_TABLE", deployed.with_attribute("bookedAt")
    yield "OUTBOX_TABLE", deployed.with_attribute("partitionkey")
    yield "IDEMPOTENCY_TABLE", deployed.with_attribute("idempotencyKey")
    yield "OUTBOX_DAYS", deployed.days_kept()
    deployed.ask("GET", f"/carrides/{ride}")
    yield "RIDE_HISTORY_TABLE", deployed.queried("byRide")
    change = {"action": "accept", "version": 1}
    options = {"authorizer": drivers, "key": "accept"}
    yield "STAFF_GROUP", deployed.ask("PUT", f"/carrides/{ride}", change, **options)
    simulated = deployed.ask("POST", "/carrides/simulate", {}, key="simulate", authorizer=drivers)
    yield "STAGE", simulated
    yield "SIMULATOR_FUNCTION_NAME", deployed.started
    deployed.put("OperatorTable", {"id": f"fence#{REGION}"})
    deployed.clock.advance(60)
    yield "STACK_ROLE", deployed.ask("POST", "/carrides", BOOKING, key="fenced")
    fences = [each["TableName"] for _, each in deployed.asked if "id" in each.get("Key", {})]
    yield "OPERATOR_TABLE", sorted(set(fences))


def of_the_simulator(deployed: Deployment) -> Iterator[tuple[str, object]]:
    """Yield what the simulator does with what the bus takes and with what it refuses."""
    sent: list[tuple[str, Mapping[str, Any]]] = []

    def call(_client: Any, operation: str, request: Mapping[str, Any]) -> Any:
        sent.append((operation, request))
        if operation == "PutEvents":
            refused = {"ErrorCode": "MalformedDetail", "ErrorMessage": "refused"}
            return {"FailedEntryCount": 1, "Entries": [refused] * len(request["Entries"])}
        return {"Successful": [{"Id": each["Id"]} for each in request["Entries"]]}

    signs = patch.dict(AUTH_TYPE_MAPS, v4a=object)  # as with the layer of SigV4a
    with patch.object(BaseClient, "_make_api_call", call), signs:
        settings = deployed.settings("CarRideSimulatorFunction", carride_simulator.Settings)
        handler = carride_simulator.make_handler(settings, now=lambda: NOW)
        handler({"rides": 1}, Invocation(deployed.clock, timeout_s=900))
    put = [each for operation, each in sent if operation == "PutEvents"]
    queued = [each for operation, each in sent if operation != "PutEvents"]
    entries = [entry for each in put for entry in each["Entries"]]
    yield "EVENT_BUS_NAME", {each["EventBusName"] for each in entries}
    yield "EVENT_PRODUCER", {tuple(each["Resources"]) for each in entries}
    yield "EVENT_ENDPOINT_ID", {each.get("EndpointId") for each in put}
    yield "PRODUCER_DLQ_URL", {each["QueueUrl"] for each in queued}


def of_the_history(deployed: Deployment) -> Iterator[tuple[str, object]]:
    """Yield what the ride history keeps and gives up."""
    function = "RideHistoryFunction"
    deployed.deliver(function, Life().created)
    yield "IDEMPOTENCY_STORE", deployed.with_attribute("idempotencyKey")
    yield from of_letters(deployed, function)


def of_dispatch(deployed: Deployment) -> Iterator[tuple[str, object]]:
    """Yield what dispatch does when it assigns the one car."""
    function = "DispatchFunction"
    sector = "sector_01"
    car = assignments.Car("car_01", sector)
    place = {"zone": assignments.zone(sector), "carID": "car_01", "sector": sector}
    deployed.put("CarTable", {**place, **assignment_table.free(car)})
    deployed.deliver(function, Life().accepted)
    yield "IDEMPOTENCY_STORE", deployed.with_attribute("idempotencyKey")
    yield "ASSIGNMENT_TABLE", deployed.with_attribute("state")
    yield "CAR_TABLE", deployed.with_attribute("rideID")
    yield "OUTBOX_TABLE", deployed.with_attribute("partitionkey")
    yield "OUTBOX_DAYS", deployed.days_kept()
    yield from of_letters(deployed, function)


def of_payment(deployed: Deployment) -> Iterator[tuple[str, object]]:
    """Yield what payment does when it reserves money, and how long a killed run holds its key."""
    function = "PaymentFunction"
    deployed.deliver(function, Life().assigned)
    yield "IDEMPOTENCY_STORE", deployed.with_attribute("idempotencyKey")
    yield "PAYMENT_TABLE", deployed.with_attribute("state")
    yield "OUTBOX_TABLE", deployed.with_attribute("partitionkey")
    yield "OUTBOX_DAYS", deployed.days_kept()
    killed = Fault(CRASH_BEFORE, lambda call, _: call == 3)
    deployed.deliver(function, Life("order_02").assigned, fault=killed)
    (held,) = [each for each in deployed.items("IdempotencyTable") if "leaseExpiry" in each]
    yield "LEASE_SECONDS", (held["leaseExpiry"] - deployed.clock()) / 1000
    yield from of_letters(deployed, function)
    host, headers = first_request(deployed)
    yield "PAYMENT_GATEWAY_URL", host
    yield "PAYMENT_GATEWAY_SECRET_ARN", headers.get("Authorization")
    yield "PAYMENT_GATEWAY_SIGNED", headers.get("Authorization", "").partition(" ")[0]


def first_request(deployed: Deployment) -> tuple[str, Mapping[str, str]]:
    """Return the host and the headers of the first request to the gateway of the settings."""
    found: list[tuple[str, Mapping[str, str]]] = []

    def exchange(connection: Any, asked: gateway_connection.HttpRequest) -> Any:
        found.append((connection._connection.host, asked.headers))  # noqa: SLF001 - the address it was given
        raise Crash

    secret = patch.object(SecretsProvider, "get", lambda _self, name, **_: f"secret of {name}")
    exchanged = patch.object(gateway_connection.GatewayConnection, "exchange", exchange)
    settings = deployed.settings("PaymentFunction", payment.Settings)
    if settings.payment_gateway_signed:  # the URL of a function, which is not known before
        settings = replace(settings, payment_gateway_url="https://function.example")
    with deployed.installed(), secret, exchanged:
        handler = payment.make_handler(settings, payment.gateway_of(settings), now=deployed.now)
        event = RideEvent.of(Life("order_03", customer="cus_3").assigned, source=SOURCE, time=NOW)
        deployed.invoke(handler, eventbridge_event(event.to_detail(), source=SOURCE), timeout_s=180)
    return found[0]


def of_letters(deployed: Deployment, function: str) -> Iterator[tuple[str, object]]:
    """Yield what becomes of an event that is 25 days old, and where a letter goes."""
    before = len(deployed.letters)
    old = NOW - timedelta(days=25)
    deployed.deliver(function, Life("order_old").completed, sent=old)
    yield "IDEMPOTENCY_WINDOW_DAYS", [reason for _, reason in deployed.letters[before:]]
    broken = eventbridge_event({"type": "CarRideAccepted"}, source=SOURCE, clock=deployed.clock)
    deployed.run(function, sqs_event(broken) if function == "DispatchFunction" else broken)
    yield "DEAD_LETTER_QUEUE_URL", [queue for queue, _ in deployed.letters[-1:]]


def of_the_reconciler(deployed: Deployment) -> Iterator[tuple[str, object]]:
    """Yield what the reconciler does with a booking and with a driven ride that stand still."""
    assert deployed.ask("POST", "/carrides", BOOKING) == 201
    ride = Life()
    for fact in (ride.created, ride.accepted, ride.completed):
        deployed.deliver("RideHistoryFunction", fact)
    waiting = {"orderID": ride.order_id, **opened(ride.order_id, NOW)}
    deployed.put("AssignmentTable", {**waiting, "carID": "car_01"})
    deployed.put("PaymentTable", waiting)
    deployed.clock.advance(timedelta(hours=3).total_seconds())
    before = deployed.items("OutboxTable")
    counts = deployed.run("ReconcilerFunction", {"time": deployed.now().isoformat()})
    emitted = [item for item in deployed.items("OutboxTable") if item not in before]
    yield "OVERDUE_HOURS", counts["reconciled"]
    yield "BOOKING_TABLE", [item["status"] for item in deployed.items("BookingTable")]
    told = [json.loads(item["data"]).get("outcome", "cancelled by hand") for item in emitted]
    yield "ASSIGNMENT_TABLE", sorted(told)
    shards = [item["openShard"] for item in deployed.items("PaymentTable")]
    yield "PAYMENT_TABLE", [shard.partition("-")[0] for shard in shards]
    yield "OUTBOX_TABLE", sorted(item["type"] for item in emitted)
    yield "OUTBOX_DAYS", deployed.days_kept(emitted)
    yield "RIDE_HISTORY_TABLE", deployed.queried("byRide")
    yield "IDEMPOTENCY_TABLE", deployed.with_keys_of("reconciler")


ACTS: Final[Mapping[str, Callable[[Deployment], Iterator[tuple[str, object]]]]] = {
    "CarRideApiFunction": of_the_api,
    "CarRideSimulatorFunction": of_the_simulator,
    "RideHistoryFunction": of_the_history,
    "DispatchFunction": of_dispatch,
    "PaymentFunction": of_payment,
    "ReconcilerFunction": of_the_reconciler,
}


# ── What it does with which parameters ────────────────────────────────────────────────────────────

SHORT: Final = {"Retention": "short"}
"""Events are remembered for 20 days, and the outbox keeps them for 3."""


class Row(NamedTuple):
    """One variable of a function."""

    variable: str
    does: object
    """What the function does, of what the variable says."""
    chosen: Mapping[str, str] = {}
    """The parameters."""


DRIVERS: Final = {"StaffGroup": "drivers"}
PRIMARY: Final = {"Role": "primary", "PeerRegion": "us-west-2"}
PROD: Final = {"Stage": "prod"}
SOON: Final = {"OverdueHours": "2"}
OF_A_SECRET: Final = {"PaymentGatewaySecretArn": SECRET}
OF_STRIPE: Final = {"PaymentGatewayUrl": "https://api.stripe.com", **OF_A_SECRET}
STACK_ID: Final = f"arn:aws:cloudformation:{REGION}:123456789012:stack/carride/1"


def of_a_consumer(queue: str) -> Iterator[Row]:
    """Yield the rows that every consumer has."""
    yield Row("DEAD_LETTER_QUEUE_URL", [queue_url(queue)])
    yield Row("IDEMPOTENCY_WINDOW_DAYS", [])
    yield Row("IDEMPOTENCY_WINDOW_DAYS", ["BEYOND_WINDOW"], SHORT)


OF_AN_OUTBOX: Final = (
    Row("OUTBOX_TABLE", ["carride-OutboxTable"]),
    Row("OUTBOX_DAYS", {3}, SHORT),
)
ROWS: Final[Mapping[str, tuple[Row, ...]]] = {
    "CarRideApiFunction": (
        *OF_AN_OUTBOX,
        Row("BOOKING_TABLE", ["carride-BookingTable"]),
        Row("IDEMPOTENCY_TABLE", ["carride-IdempotencyTable"]),
        Row("RIDE_HISTORY_TABLE", ["carride-RideHistoryTable"]),
        Row("STAFF_GROUP", 403),
        Row("STAFF_GROUP", 200, DRIVERS),
        Row("STAGE", 202, DRIVERS),
        Row("STAGE", 403, DRIVERS | PROD),
        Row("SIMULATOR_FUNCTION_NAME", ["CarRideSimulatorFunction"], DRIVERS),
        Row("STACK_ROLE", 201),
        Row("STACK_ROLE", 503, PRIMARY),
        Row("OPERATOR_TABLE", ["carride-OperatorTable"], PRIMARY),
    ),
    "CarRideSimulatorFunction": (
        Row("EVENT_BUS_NAME", {"CarRideBus"}),
        Row("EVENT_PRODUCER", {(STACK_ID,)}),
        Row("EVENT_ENDPOINT_ID", {None}),
        Row("EVENT_ENDPOINT_ID", {"abcde.veo"}, SECONDARY),
        Row("PRODUCER_DLQ_URL", {queue_url("ProducerDlq")}),
    ),
    "RideHistoryFunction": (
        *of_a_consumer("RideHistoryDlq"),
        Row("IDEMPOTENCY_STORE", ["carride-RideHistoryTable"]),
    ),
    "DispatchFunction": (
        *of_a_consumer("DispatchDlq"),
        *OF_AN_OUTBOX,
        Row("IDEMPOTENCY_STORE", ["carride-IdempotencyTable"]),
        Row("ASSIGNMENT_TABLE", ["carride-AssignmentTable"]),
        Row("CAR_TABLE", ["carride-CarTable"]),
    ),
    "PaymentFunction": (
        *of_a_consumer("PaymentDlq"),
        *OF_AN_OUTBOX,
        Row("IDEMPOTENCY_STORE", ["carride-IdempotencyTable"]),
        Row("PAYMENT_TABLE", ["carride-PaymentTable"]),
        Row("LEASE_SECONDS", 30.0),
        Row("LEASE_SECONDS", 3.0, {"Stage": "local"}),
        Row("PAYMENT_GATEWAY_URL", "gateway.example"),
        Row("PAYMENT_GATEWAY_URL", "api.stripe.com", OF_STRIPE),
        Row("PAYMENT_GATEWAY_SECRET_ARN", None),
        Row("PAYMENT_GATEWAY_SECRET_ARN", f"Bearer secret of {SECRET}", OF_A_SECRET),
        Row("PAYMENT_GATEWAY_SIGNED", ""),
        Row("PAYMENT_GATEWAY_SIGNED", "AWS4-HMAC-SHA256", {"PaymentGatewayUrl": ""}),
    ),
    "ReconcilerFunction": (
        Row("OVERDUE_HOURS", 0),
        Row("OVERDUE_HOURS", 2, SOON),
        Row("BOOKING_TABLE", ["cancelled"], SOON),
        Row("ASSIGNMENT_TABLE", ["cancelled by hand", "completed"], SOON),
        Row("PAYMENT_TABLE", ["reconciled"], SOON),
        Row("OUTBOX_TABLE", ["CarRideCancelled", "CarRideOverdue"], SOON),
        Row("OUTBOX_DAYS", {3}, SOON | SHORT),
        Row("RIDE_HISTORY_TABLE", ["carride-RideHistoryTable"], SOON),
        Row("IDEMPOTENCY_TABLE", ["carride-IdempotencyTable"], SOON),
    ),
}
"""What each function does by each of its variables."""


@cache
def _done(function: str, chosen: tuple[tuple[str, str], ...]) -> Mapping[str, object]:
    return dict(ACTS[function](Deployment(dict(chosen))))


@pytest.mark.parametrize(
    ("function", "row"),
    [
        pytest.param(function, row, id=f"{function}-{row.variable}-{row.does}")
        for function, its_rows in ROWS.items()
        for row in its_rows
    ],
)
def test_each_variable_of_the_template_does_what_its_parameter_says(
    function: str, row: Row
) -> None:
    """A function that is made from its deployed environment acts by each variable."""
    done = _done(function, tuple(sorted(row.chosen.items())))
    assert done[row.variable] == row.does


def test_every_variable_has_a_row_and_every_setting_a_variable() -> None:
    """Nothing that a function reads is missing from the template, and nothing there is unread."""
    of_all = set(source()["Globals"]["Function"]["Environment"]["Variables"])
    for function, its_rows in ROWS.items():
        given = set(environment(function, PRIMARY)) - OF_LAMBDA - OF_TELEMETRY
        read = fields_of(function)
        assert read <= given, function
        assert given - read <= of_all, function
        assert {row.variable for row in its_rows} == read, function


SAYS: Final = """
import importlib, sys
importlib.import_module(sys.argv[1])
from carride.telemetry import count, logger
logger.info("information")
logger.warning("warning")
count("counted", {"Seen": 1})
"""


@pytest.mark.parametrize(
    ("function", "service"),
    [
        ("CarRideApiFunction", "carride-api"),
        ("CarRideSimulatorFunction", "carride-simulator"),
        ("RideHistoryFunction", "ride-history"),
        ("DispatchFunction", "dispatch"),
        ("PaymentFunction", "payment"),
        ("ReconcilerFunction", "reconciler"),
    ],
)
def test_each_function_starts_with_its_variables_and_says_whose_lines_and_counts_it_writes(
    function: str, service: str
) -> None:
    """A process with nothing but the deployed environment logs from the level of `LogLevel` on."""
    spec = wiring(LogLevel="WARN").functions[function]
    given = {"PYTHONPATH": os.pathsep.join(sys.path), "AWS_DEFAULT_REGION": REGION}
    done = subprocess.run(
        [sys.executable, "-c", SAYS, spec.module],
        env=given | dict(spec.environment),
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    said, counted = lines
    assert (said["message"], said["service"]) == ("warning", service)
    (metrics,) = counted["_aws"]["CloudWatchMetrics"]
    assert metrics["Namespace"] == "CarRide/carride"
