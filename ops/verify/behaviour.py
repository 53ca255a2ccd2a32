"""Checks of what the stack does: rides, the API, metrics and traces."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from carride_idempotency.stores.transport import BOTOCORE_USED
from ops import fleet
from ops.api import ApiAnswer, nobody
from ops.audit import CONSUMERS, Report, audit
from ops.audit.reading import lines
from ops.text import counted
from ops.verify import CannotTellError, Deployment, FailedError, SkippedError
from ops.verify.registry import ON_AWS, TRIAL, check

_SIMULATED: Final = {"duplicates": 0.1, "outOfOrder": 0.1, "older": 0.1}
_TRANSITIONS: Final = ("accept", "start", "complete")
_FLEET: Final = 64
"""Cars that a trial parks if there is none."""
_FORBIDDEN: Final = 403
_LOOKED_BACK: Final = timedelta(hours=1)
"""How far back counts are asked for: a stack of stage prod gets no rides from this command."""


@check("Dispatch has cars to assign; a trial without any parks a fleet")
def _cars(it: Deployment) -> str:
    table = it.stack.outputs["CarTableName"]
    dynamodb = it.client("dynamodb")
    if dynamodb.scan(TableName=table, Limit=1)["Items"]:
        return "at least one"
    if it.stage in TRIAL and it.rides:
        fleet.seed(dynamodb, table, _FLEET)
        return f"there was none: {_FLEET} were parked"
    it.wrong.append(f"{table} is empty: `./carride drive fleet --yes` parks a fleet")
    return ""


@check("Payment has a gateway")
def _gateway(it: Deployment) -> str:
    if it.stack.outputs["PaymentRuleState"] == "DISABLED":
        raise SkippedError("there is none (docs/payment-gateway.md): payment's rule is disabled")
    return it.parameters["PaymentGatewayUrl"] or "the simulated one"


@check("The API refuses requests without credentials", Stage=ON_AWS)
def _strangers(it: Deployment) -> str:
    status, _ = it.api.request("GET", "/openapi.json", authorize=nobody)
    if status not in (401, 403):
        it.wrong.append(f"an unsigned request was answered with {status}")
    return str(status)


@check(
    "A booking over the API takes effect once, although each request is sent twice",
    Stage=TRIAL,
    JwtIssuer=("",),
)
def _bookings(it: Deployment) -> str:
    rides = max(1, it.rides // 10)
    for number in range(rides):
        _drive(it, f"verify-{it.began:%Y%m%dT%H%M%S}-{number}", price=1000 + number)
    return counted(rides, "ride")


def _drive(it: Deployment, name: str, price: int) -> None:
    """Book a ride as a customer, and drive it as staff; each request is sent twice."""
    order = {
        "customerID": name,
        "pickup": "sector_01",
        "destination": "sector_09",
        "price": price,
    }
    as_customer = partial(it.api.request, authorize=it.api.customer())
    ride = _twice(partial(as_customer, "POST", "/carrides", order, key=f"{name}-book"))
    as_staff = partial(it.api.request, authorize=it.api.staff)
    for action in _TRANSITIONS:
        path = f"/carrides/{ride['orderID']}"
        change = {"action": action, "version": ride["version"]}
        ride = _twice(partial(as_staff, "PUT", path, change, key=f"{name}-{action}"))


def _twice(send: Callable[[], ApiAnswer]) -> Any:
    """Send a request twice, and return the content of both answers, which have to be the same.

    Raises:
        CannotTellError: the sender is not allowed to send it.
        FailedError: an answer is not the expected one.
    """
    first = send()
    if first.status == _FORBIDDEN:
        raise CannotTellError(
            f"you are not whom the API lets do this ({first.content}): be a role of the name that "
            "StaffGroup has, and allow yourself execute-api:Invoke"
        )
    second = send()
    if first.status not in (200, 201) or first.content != second.content:
        raise FailedError(f"a booking's request was answered with {first}, then with {second}")
    return first.content


@check(
    "Every event of simulated rides takes effect once per consumer; nothing is lost", Stage=TRIAL
)
def _rides(it: Deployment) -> str:
    seed = int(it.began.timestamp())
    request = {"rides": it.rides, "seed": seed, **_SIMULATED}
    answer = it.stack.invoke("CarRideSimulatorFunctionName", request)
    if "error" in answer:
        reason = answer["error"]
        raise FailedError(f"the simulator refused: {reason}")
    return settled(it).ledger.verdict


def settled(it: Deployment) -> Report:
    """Wait until nothing is in flight, and return the audit, which has to be balanced."""
    report = it.until("events are still in flight", partial(_ended, it))
    if not report.ledger.balanced:
        raise FailedError(report.ledger.verdict)
    return report


def _ended(it: Deployment) -> Report | None:
    """Return an audit if waiting changes nothing in it: nothing is in flight, or it is bad."""
    report = audit(it.stack)
    ledger = report.ledger
    if ledger.wrong or ledger.blind or not ledger.in_flight:
        return report
    return None


@check("No process since the last deployment went through botocore")
def _transport(it: Deployment) -> str:
    stack = it.stack.describe() or {}
    since = stack.get("LastUpdatedTime") or stack["CreationTime"]  # a process logs the warning once
    for output in it.stack.outputs:
        group = output.removesuffix("LogGroupName")
        if group == output:
            continue
        for line in lines(it.stack, group, pattern=f'"{BOTOCORE_USED}"', since=since):
            it.wrong.append(f"{group}: {line['message']}")
    return f"none since {since:%Y-%m-%d %H:%M UTC}"


@check("Outcomes arrive as metrics", Stage=ON_AWS)
def _metrics(it: Deployment) -> str:
    # ListMetrics shows a new metric only after up to 15 minutes, GetMetricData at once:
    # https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_ListMetrics.html
    namespace = f"CarRide/{it.stack.name}"
    look = partial(_counts, it, namespace)
    if it.stage == "prod":
        counts = look()
        if not counts:
            raise CannotTellError(
                f"{namespace} counts no new event of the last hour: ask again after traffic"
            )
    else:
        counts = it.until(f"{namespace} has no data of the metric New", look)
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _counts(it: Deployment, namespace: str) -> dict[str, int]:
    """Return how many new events each consumer has counted as a metric in the last hour."""
    queries = [_query(namespace, consumer.name) for consumer in CONSUMERS]
    answer = it.client("cloudwatch").get_metric_data(
        MetricDataQueries=queries,
        StartTime=it.began - _LOOKED_BACK,
        EndTime=datetime.now(UTC) + timedelta(minutes=1),
    )
    counts = {}
    for result in answer["MetricDataResults"]:
        if result["Values"]:
            counts[result["Label"]] = round(sum(result["Values"]))
    return counts


def _query(namespace: str, consumer: str) -> dict[str, Any]:
    """Return the query for a consumer's count of new events, by the minute."""
    metric = {
        "Namespace": namespace,
        "MetricName": "New",
        "Dimensions": [{"Name": "service", "Value": consumer}],
    }
    stat = {"Metric": metric, "Period": 60, "Stat": "Sum"}
    identity = f"new_{consumer.replace('-', '_')}"
    return {"Id": identity, "Label": consumer, "MetricStat": stat}


@check(
    "A trace connects the producers, the bus and the consumers", Stage=ON_AWS, Tracing=("Active",)
)
def _traces(it: Deployment) -> str:
    traces = it.until("no trace has more than one service", partial(_connected, it))
    return counted(len(traces), "trace")


def _connected(it: Deployment) -> list[Mapping[str, Any]]:
    """Return the traces since the beginning that have more than one service."""
    answer = it.client("xray").get_trace_summaries(StartTime=it.began, EndTime=datetime.now(UTC))
    found = []
    for trace in answer["TraceSummaries"]:
        services = {service["Name"] for service in trace["ServiceIds"]}
        if len(services) > 1:
            found.append(trace)
    return found
