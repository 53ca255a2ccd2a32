"""The statements about a deployed stack that code checks, in the order in which they are run."""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from carride.entry import BusEntry
from carride.events import SOURCE
from carride_idempotency.stores.transport import BOTOCORE_USED
from ops import dead_letters, redrive, replay
from ops.audit import Report, audit
from ops.audit.reading import lines
from ops.text import counted
from ops.verify import Check, Deployment, FailedError, SkippedError

CHECKS: Final[list[Check]] = []

_SIMULATED: Final = {"duplicates": 0.1, "outOfOrder": 0.1, "older": 0.1}
_TRANSITIONS: Final = ("accept", "start", "complete")
_ON_AWS: Final = ("dev", "prod")
"""The local engine does not simulate what other stages have."""
_TRIAL: Final = ("local", "dev")
"""The stages in which a check may publish or break something."""


type _Run = Callable[[Deployment], str]


def check(
    statement: str, *, drill: bool = False, **only: tuple[str, ...]
) -> Callable[[_Run], _Run]:
    """Register a function as the check of a statement; arguments as in `Check`."""

    def register(run: _Run) -> _Run:
        CHECKS.append(Check(statement, run, drill, only))
        return run

    return register


# ── What is deployed ──────────────────────────────────────────────────────────────────────────────


@check(
    "The stack and its nested stacks are complete; in stage prod, deleting the stack is protected"
)
def _stacks(it: Deployment) -> str:
    names = [it.stack.name, *it.stack.named("AWS::CloudFormation::Stack").values()]
    for name in names:
        (found,) = it.client("cloudformation").describe_stacks(StackName=name)["Stacks"]
        if found["StackStatus"] not in {"CREATE_COMPLETE", "UPDATE_COMPLETE", "IMPORT_COMPLETE"}:
            it.wrong.append(f"{found['StackName']} is {found['StackStatus']}")
    protected = (it.stack.describe() or {}).get("EnableTerminationProtection")
    if it.parameters["Stage"] == "prod" and not protected:
        it.wrong.append(
            "nothing protects the stack: enable its termination protection (docs/on-an-account.md)"
        )
    return counted(len(names), "stack")


@check("Nobody has changed the stack by hand: there is no drift", Stage=_ON_AWS)
def _drift(it: Deployment) -> str:
    client = it.client("cloudformation")
    detection = client.detect_stack_drift(StackName=it.stack.name)["StackDriftDetectionId"]

    def ended() -> Any:
        status = client.describe_stack_drift_detection_status(StackDriftDetectionId=detection)
        return status["DetectionStatus"] != "DETECTION_IN_PROGRESS" and status

    if it.until("drift detection has not ended", ended).get("StackDriftStatus") != "IN_SYNC":
        drifts = client.describe_stack_resource_drifts(
            StackName=it.stack.name, StackResourceDriftStatusFilters=["MODIFIED", "DELETED"]
        )
        drifted = [each["LogicalResourceId"] for each in drifts["StackResourceDrifts"]]
        it.wrong.append(f"drifted: {', '.join(drifted)}")
    return "in sync"


@check("Functions are active, on the processor that was asked for, with the reserved concurrency")
def _functions(it: Deployment) -> str:
    client, reserved = it.client("lambda"), int(it.parameters["ReservedConcurrency"])
    for logical, name in it.functions.items():
        found = client.get_function_configuration(FunctionName=name)
        if (
            found.get("State", "Active") != "Active"
            or found.get("LastUpdateStatus", "Successful") != "Successful"
        ):
            it.wrong.append(
                f"{logical} is {found.get('State')}, {found.get('LastUpdateStatusReason', 'not updated')}"
            )
        if found["Architectures"] != [it.parameters["Architecture"]]:
            it.wrong.append(f"{logical} runs on {found['Architectures']}")
        kept = client.get_function_concurrency(FunctionName=name).get(
            "ReservedConcurrentExecutions", 0
        )
        if kept != reserved:
            it.wrong.append(f"{logical} has {kept} reserved invocations, not {reserved}")
    return counted(len(it.functions), "function")


@check(
    "Rules deliver: each is enabled, and its target has retries and a dead-letter queue that lets it in"
)
def _rules(it: Deployment) -> str:
    events, bus, rules = (
        it.client("events"),
        it.stack.outputs["CarRideBusName"],
        it.stack.named("AWS::Events::Rule"),
    )
    for logical, name in rules.items():
        rule = events.describe_rule(Name=name, EventBusName=bus)
        if rule["State"] != (
            it.stack.outputs["PaymentRuleState"] if logical == "PaymentRule" else "ENABLED"
        ):
            it.wrong.append(f"{logical} is {rule['State']}")
        for target in events.list_targets_by_rule(Rule=name, EventBusName=bus)["Targets"]:
            if ":logs:" in target["Arn"]:
                continue
            queue = target.get("DeadLetterConfig", {}).get("Arn")
            if queue is None or "RetryPolicy" not in target:
                it.wrong.append(f"{logical} has no dead-letter queue or no retries")
            elif not _lets_in(it, queue, rule["Arn"]):
                it.wrong.append(
                    f"{logical} may not send to {queue.rpartition(':')[2]}: its policy does not name the rule"
                )
            if ":lambda:" in target["Arn"] and not _lets_in(it, target["Arn"], rule["Arn"]):
                it.wrong.append(f"{logical} may not invoke {target['Arn'].rpartition(':')[2]}")
    return counted(len(rules), "rule")


def _lets_in(it: Deployment, target: str, source: str) -> bool:
    """Return whether the policy of a queue or a function names the ARN of a source."""
    for statement in _policy(it, target):
        conditions = [
            each for kind in statement.get("Condition", {}).values() for each in kind.values()
        ]
        sources = [
            one for each in conditions for one in (each if isinstance(each, list) else [each])
        ]
        if statement["Effect"] == "Allow" and source in sources:
            return True
    return False


def _policy(it: Deployment, arn: str) -> list[dict[str, Any]]:
    """Return the statements of the policy of a queue or a function."""
    sqs, functions = it.client("sqs"), it.client("lambda")
    if ":sqs:" in arn:
        url = sqs.get_queue_url(QueueName=arn.rpartition(":")[2])["QueueUrl"]
        policy = (
            sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])
            .get("Attributes", {})
            .get("Policy")
        )
    else:
        try:
            policy = functions.get_policy(FunctionName=arn)["Policy"]
        except functions.exceptions.ResourceNotFoundException:
            return []
    return list(json.loads(policy)["Statement"]) if policy else []


@check("The pipe runs, and the queue's mapping is enabled")
def _movers(it: Deployment) -> str:
    stack = it.stack
    pipes, functions = stack.client("pipes"), stack.client("lambda")
    states = {}
    for logical, name in stack.named("AWS::Pipes::Pipe").items():
        states[logical] = pipes.describe_pipe(Name=name)["CurrentState"]
    for logical, uuid in stack.named("AWS::Lambda::EventSourceMapping").items():
        states[logical] = functions.get_event_source_mapping(UUID=uuid)["State"]
    it.wrong += [
        f"{name} is {state}"
        for name, state in states.items()
        if state not in {"RUNNING", "Enabled"}
    ]
    return ", ".join(states)


@check("The schedule runs the reconciler", Stage=_ON_AWS, Role=("standalone", "primary"))
def _schedule(it: Deployment) -> str:
    stack = it.stack
    (name,) = stack.named("AWS::Scheduler::Schedule").values()
    if stack.client("scheduler").get_schedule(Name=name)["State"] != "ENABLED":
        raise FailedError("the schedule is not enabled")
    group = stack.outputs["ReconcilerLogGroupName"]
    since = int((datetime.now(UTC) - timedelta(minutes=15)).timestamp() * 1000)
    newest = partial(
        stack.client("logs").filter_log_events, logGroupName=group, startTime=since, limit=1
    )
    it.until(f"{group} has no line of the last 15 minutes", lambda: newest()["events"])
    return "it ran in the last 15 minutes"


@check(
    "Tables keep what was promised: expiry of records, point-in-time recovery, protection in stage prod"
)
def _tables(it: Deployment) -> str:
    client = it.client("dynamodb")
    for logical, table in it.tables.items():
        name = table["TableName"]
        if it.parameters["Stage"] == "prod" and not table.get("DeletionProtectionEnabled"):
            it.wrong.append(f"{logical} is not protected from deletion")
        if it.parameters["Stage"] != "local":  # the engine keeps neither
            expires = client.describe_time_to_live(TableName=name)["TimeToLiveDescription"][
                "TimeToLiveStatus"
            ]
            if logical in {"IdempotencyTable", "OutboxTable"} and expires not in {
                "ENABLED",
                "ENABLING",
            }:
                it.wrong.append(f"{logical} never deletes expired items")
            backups = client.describe_continuous_backups(TableName=name)[
                "ContinuousBackupsDescription"
            ]
            if backups["PointInTimeRecoveryDescription"]["PointInTimeRecoveryStatus"] != "ENABLED":
                it.wrong.append(f"{logical} has no point-in-time recovery")
    return counted(len(it.tables), "table")


@check("Provisioned tables and their indexes scale", TableBilling=("provisioned",))
def _scaling(it: Deployment) -> str:
    pages = it.client("application-autoscaling").get_paginator("describe_scalable_targets")
    targets = [
        each
        for page in pages.paginate(ServiceNamespace="dynamodb")
        for each in page["ScalableTargets"]
    ]
    mine = {each["ResourceId"] for each in targets if it.stack.name in each["ResourceId"]}
    names = [table["TableName"] for table in it.tables.values()]
    it.wrong += [f"{name} does not scale" for name in names if f"table/{name}" not in mine]
    return counted(len(mine), "target")


@check("The key of KmsKeyArn encrypts the tables")
def _key(it: Deployment) -> str:
    key = it.parameters["KmsKeyArn"]
    if not key:
        raise SkippedError("KmsKeyArn is not set")
    keys = {
        logical: table.get("SSEDescription", {}).get("KMSMasterKeyArn")
        for logical, table in it.tables.items()
    }
    it.wrong += [
        f"{logical} is not encrypted with it" for logical, found in keys.items() if found != key
    ]
    return counted(len(it.tables), "table")


@check("A gradual deployment publishes versions behind the alias live")
def _aliases(it: Deployment) -> str:
    if it.parameters["DeploymentStrategy"] == "AllAtOnce":
        raise SkippedError("DeploymentStrategy is AllAtOnce")
    alias = partial(it.client("lambda").get_alias, Name="live")
    return ", ".join(
        f"{name} {alias(FunctionName=name)['FunctionVersion']}" for name in it.functions.values()
    )


@check("The archive is enabled, and its days of retention are those that you expect")
def _archive(it: Deployment) -> str:
    name = it.stack.outputs["CarRideArchiveArn"].rpartition("/")[2]
    archive = it.client("events").describe_archive(ArchiveName=name)
    if archive["State"] not in {"ENABLED", "CREATING", "UPDATING"}:
        it.wrong.append(f"the archive is {archive['State']}: {archive.get('StateReason', '')}")
    return f"{archive['RetentionDays']} days"


@check(
    "The endpoint is active, and the health check of the primary is good",
    GlobalEndpoint=("present",),
)
def _endpoint(it: Deployment) -> str:
    stack = it.stack
    state = stack.client("events").describe_endpoint(Name=stack.name)["State"]
    if state != "ACTIVE":
        raise FailedError(f"the endpoint is {state}")
    answers = stack.client("route53").get_health_check_status(
        HealthCheckId=stack.outputs["CarRideHealthCheckId"]
    )
    states = [each["StatusReport"]["Status"] for each in answers["HealthCheckObservations"]]
    it.wrong += [
        f"the health check says {each}" for each in states if not each.startswith("Success")
    ]
    return "active"


@check("Every table of the primary has a replica in the other region", Role=("primary",))
def _replicas(it: Deployment) -> str:
    peer = it.parameters["PeerRegion"]
    for logical, table in it.tables.items():
        if (peer, "ACTIVE") not in {
            (each["RegionName"], each.get("ReplicaStatus")) for each in table.get("Replicas", ())
        }:
            it.wrong.append(f"{logical} has no active replica in {peer}")
    return counted(len(it.tables), "table")


@check("The dashboard is there, and no alarm is on", Stage=_ON_AWS)
def _alarms(it: Deployment) -> str:
    client, prefix, kinds = (
        it.client("cloudwatch"),
        f"{it.stack.name}-",
        ("MetricAlarm", "CompositeAlarm"),
    )
    pages = client.get_paginator("describe_alarms").paginate(
        AlarmNamePrefix=prefix, AlarmTypes=[*kinds]
    )
    alarms = [each for page in pages for kind in kinds for each in page[f"{kind}s"]]
    it.wrong += [f"{each['AlarmName']} is on" for each in alarms if each["StateValue"] == "ALARM"]
    if not client.list_dashboards(DashboardNamePrefix=prefix)["DashboardEntries"]:
        it.wrong.append(f"there is no dashboard {prefix}…")
    return counted(len(alarms), "alarm")


# ── What it does ──────────────────────────────────────────────────────────────────────────────────


@check("Dispatch has cars to assign")
def _cars(it: Deployment) -> str:
    table = it.stack.outputs["CarTableName"]
    if not it.client("dynamodb").scan(TableName=table, Limit=1)["Items"]:
        it.wrong.append(f"{table} is empty: `./carride fleet --yes` parks a fleet")
    return "at least one"


@check("Payment has a gateway")
def _gateway(it: Deployment) -> str:
    if it.stack.outputs["PaymentRuleState"] == "DISABLED":
        raise SkippedError("there is none (docs/payment-gateway.md): payment's rule is disabled")
    return it.parameters["PaymentGatewayUrl"] or "the simulated one"


@check("The API refuses requests without credentials", Stage=_ON_AWS)
def _strangers(it: Deployment) -> str:
    status, _ = it.request("GET", "/openapi.json", sign=False)
    if status not in (401, 403):
        it.wrong.append(f"an unsigned request was answered with {status}")
    return str(status)


@check(
    "A booking over the API takes effect once, although each request is sent twice",
    Stage=_TRIAL,
    ApiAuthorization=("iam",),
)
def _bookings(it: Deployment) -> str:
    rides = max(1, it.rides // 10)
    for number in range(rides):
        name = f"verify-{it.began:%Y%m%dT%H%M%S}-{number}"
        order = {
            "customerID": name,
            "pickup": "sector_01",
            "destination": "sector_09",
            "price": 1000 + number,
        }
        ride = _twice(it, "POST", "/carrides", order, f"{name}-book")
        for action in _TRANSITIONS:
            change = {"action": action, "version": ride["version"]}
            ride = _twice(it, "PUT", f"/carrides/{ride['orderID']}", change, f"{name}-{action}")
    return counted(rides, "ride")


def _twice(it: Deployment, method: str, path: str, body: Mapping[str, Any], key: str) -> Any:
    answers = [it.request(method, path, body, key=key) for _ in range(2)]
    if answers[0][0] not in (200, 201) or answers[0][1] != answers[1][1]:
        raise FailedError(f"{method} {path} was answered with {answers}")
    return answers[0][1]


@check(
    "Every event of simulated rides takes effect once per consumer; nothing is lost", Stage=_TRIAL
)
def _rides(it: Deployment) -> str:
    request: dict[str, Any] = {"rides": it.rides, "seed": int(it.began.timestamp())} | _SIMULATED
    answer = it.stack.invoke("CarRideSimulatorFunctionName", request)
    if "error" in answer:
        raise FailedError(f"the simulator refused: {answer['error']}")
    return _settled(it).ledger.verdict


def _settled(it: Deployment) -> Report:
    """Wait until nothing is in flight, and return the audit, which has to be balanced."""

    def settled() -> Report | None:
        report = audit(it.stack)
        return (
            report
            if report.ledger.wrong or report.ledger.blind or not report.ledger.in_flight
            else None
        )

    report = it.until("events are still in flight", settled)
    if not report.ledger.balanced:
        raise FailedError(report.ledger.verdict)
    return report


@check("No process since the last deployment went through botocore")
def _transport(it: Deployment) -> str:
    groups = [
        group for name in it.stack.outputs if (group := name.removesuffix("LogGroupName")) != name
    ]
    stack = it.stack.describe() or {}
    since = stack.get("LastUpdatedTime") or stack["CreationTime"]  # a process logs the warning once
    look = partial(lines, it.stack, pattern=f'"{BOTOCORE_USED}"', since=since)
    it.wrong += [f"{group}: {line['message']}" for group in groups for line in look(group)]
    return f"none since {since:%Y-%m-%d %H:%M UTC}"


@check("Outcomes arrive as metrics", Stage=_ON_AWS)
def _metrics(it: Deployment) -> str:
    client, namespace = it.client("cloudwatch"), f"CarRide/{it.stack.name}"
    metrics = partial(client.list_metrics, Namespace=namespace, MetricName="New")
    it.until(f"{namespace} has no metric New", lambda: metrics()["Metrics"])
    return namespace


@check(
    "A trace connects the producers, the bus and the consumers", Stage=_ON_AWS, Tracing=("Active",)
)
def _traces(it: Deployment) -> str:
    traces = partial(it.client("xray").get_trace_summaries, StartTime=it.began)

    def connected() -> list[Any]:
        found = traces(EndTime=datetime.now(UTC))["TraceSummaries"]
        return [
            each for each in found if len({service["Name"] for service in each["ServiceIds"]}) > 1
        ]

    return counted(len(it.until("no trace has more than one service", connected)), "trace")


# ── Drills ────────────────────────────────────────────────────────────────────────────────────────

_drill: Final = partial(check, drill=True, Stage=_TRIAL)


@_drill(
    "An event that breaks the contract is dead-lettered at once; its message stays for you to delete"
)
def _poison(it: Deployment) -> str:
    stack = it.stack

    def broken() -> int:
        return dead_letters.reasons(stack, "RideHistoryDlq")["CONTRACT"]

    before = broken()
    detail = {
        "specversion": "1.0",
        "id": "verify",
        "source": "verify",
        "type": "CarRideCreated",
        "data": {},
    }
    entry = BusEntry(source=SOURCE, detail=json.dumps(detail), time=datetime.now(UTC))
    stack.client("events").put_events(Entries=[entry.to_request(stack.outputs["CarRideBusName"])])
    it.until("the event is in no dead-letter queue", lambda: broken() > before)
    return "in RideHistoryDlq, with the reason CONTRACT"


@_drill(
    "A rule without permission dead-letters its events; with it, a redrive gives each its effect once"
)
def _permission(it: Deployment) -> str:
    stack, functions = it.stack, it.client("lambda")
    function = stack.outputs["RideHistoryFunctionName"]
    statement = next(iter(_policy(it, function)), None)
    if statement is None:
        raise FailedError(f"nothing may invoke {function}")
    (source,) = statement["Condition"]["ArnLike"].values()
    functions.remove_permission(FunctionName=function, StatementId=statement["Sid"])
    try:
        stack.invoke(
            "CarRideSimulatorFunctionName", {"rides": 1, "seed": int(it.began.timestamp()) + 1}
        )
        it.until(
            "nothing is in RideHistoryRuleDlq",
            lambda: dead_letters.reasons(stack, "RideHistoryRuleDlq"),
        )
    finally:
        functions.add_permission(
            FunctionName=function,
            StatementId=statement["Sid"],
            Action="lambda:InvokeFunction",
            Principal="events.amazonaws.com",
            SourceArn=source,
        )
    plan = redrive.plan_redrive(stack, "RideHistoryRuleDlq")
    sent = redrive.Redrive(stack, plan, report=lambda _: None).carry_out().sent
    return f"{sent} redriven; {_settled(it).ledger.verdict}"


@_drill("A replay of the archive has no further effects")
def _replay(it: Deployment) -> str:
    stack = it.stack
    name = replay.name_for(stack.region, datetime.now(UTC))
    replay.check(stack)
    began = it.began - timedelta(minutes=1)
    replay.start(stack, name, began, datetime.now(UTC), replay.receivers(stack))
    replay.handed_over(stack, name)
    return f"{name}: {_settled(it).ledger.verdict}"
