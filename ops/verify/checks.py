"""The statements about a deployed stack that code checks, in the order in which they are run."""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from carride.entry import BusEntry
from carride.events import SOURCE
from idempotency.stores.transport import BOTOCORE_USED
from ops import letters, redrive, replay
from ops.audit import Report, audit
from ops.audit.reading import lines
from ops.verify import CHECKS, check
from ops.verify.deployment import Deployment, FailedError, SkippedError
from ops.words import counted

__all__ = ["CHECKS"]

_SIMULATED: Final = {"duplicates": 0.1, "outOfOrder": 0.1, "older": 0.1}
_TRANSITIONS: Final = ("accept", "start", "complete")
_OK: Final = (200, 201)
_REFUSED: Final = (401, 403)
_GROUP: Final = "LogGroupName"
_ON_AWS: Final = ("dev", "prod")
"""The local engine does not simulate what other stages have."""
_TRIAL: Final = ("local", "dev")
"""The stages in which a check may publish or break something."""


def _require(problems: Mapping[str, object] | list[str], what: str) -> None:
    if problems:
        raise FailedError(f"{what}: {', '.join(map(str, problems))}")


# ── What is deployed ──────────────────────────────────────────────────────────────────────────────────────────────────


@check("The stack and its nested stacks are complete; in stage prod, deleting the stack is protected")
def _stacks(deployment: Deployment) -> str:
    client = deployment.stack.client("cloudformation")
    nested = deployment.stack.named("AWS::CloudFormation::Stack").values()
    states = {}
    for name in (deployment.stack.name, *nested):
        (described,) = client.describe_stacks(StackName=name)["Stacks"]
        states[described["StackName"]] = described["StackStatus"]
    complete = {"CREATE_COMPLETE", "UPDATE_COMPLETE", "IMPORT_COMPLETE"}
    _require({name: state for name, state in states.items() if state not in complete}, "not complete")
    described = deployment.stack.describe() or {}
    if deployment.parameters["Stage"] == "prod" and not described.get("EnableTerminationProtection"):
        raise FailedError("nothing protects the stack: enable its termination protection (docs/on-an-account.md)")
    return counted(len(states), "stack")


@check("Nobody has changed the stack by hand: there is no drift", Stage=_ON_AWS)
def _drift(deployment: Deployment) -> str:
    client = deployment.stack.client("cloudformation")
    detection = client.detect_stack_drift(StackName=deployment.stack.name)["StackDriftDetectionId"]

    def ended() -> Any:
        status = client.describe_stack_drift_detection_status(StackDriftDetectionId=detection)
        return status["DetectionStatus"] != "DETECTION_IN_PROGRESS" and status

    status = deployment.until("drift detection has not ended", ended)
    if status.get("StackDriftStatus") == "IN_SYNC":
        return "in sync"
    drifts = client.describe_stack_resource_drifts(
        StackName=deployment.stack.name, StackResourceDriftStatusFilters=["MODIFIED", "DELETED"]
    )
    raise FailedError(f"drifted: {', '.join(each['LogicalResourceId'] for each in drifts['StackResourceDrifts'])}")


@check("Functions are active, on the processor that was asked for, with the reserved concurrency")
def _functions(deployment: Deployment) -> str:
    client = deployment.stack.client("lambda")
    functions = deployment.stack.named("AWS::Lambda::Function")
    reserved = int(deployment.parameters["ReservedConcurrency"])
    wrong = []
    for logical, name in functions.items():
        found = client.get_function_configuration(FunctionName=name)
        if found.get("State", "Active") != "Active" or found.get("LastUpdateStatus", "Successful") != "Successful":
            wrong.append(f"{logical} is {found.get('State')}, {found.get('LastUpdateStatusReason', 'not updated')}")
        if found["Architectures"] != [deployment.parameters["Architecture"]]:
            wrong.append(f"{logical} runs on {found['Architectures']}")
        kept = client.get_function_concurrency(FunctionName=name).get("ReservedConcurrentExecutions", 0)
        if kept != reserved:
            wrong.append(f"{logical} has {kept} reserved invocations, not {reserved}")
    _require(wrong, "functions")
    return counted(len(functions), "function")


@check("Rules deliver: each is enabled, and its target has retries and a dead-letter queue that lets it in")
def _rules(deployment: Deployment) -> str:
    stack = deployment.stack
    events, sqs, bus = stack.client("events"), stack.client("sqs"), stack.outputs["CarRideBusName"]
    rules = stack.named("AWS::Events::Rule")
    wrong = []
    for logical, name in rules.items():
        rule = events.describe_rule(Name=name, EventBusName=bus)
        expected = stack.outputs["PaymentRuleState"] if logical == "PaymentRule" else "ENABLED"
        if rule["State"] != expected:
            wrong.append(f"{logical} is {rule['State']}")
        for target in events.list_targets_by_rule(Rule=name, EventBusName=bus)["Targets"]:
            if ":logs:" in target["Arn"]:
                continue
            arn = target.get("DeadLetterConfig", {}).get("Arn")
            if arn is None or "RetryPolicy" not in target:
                wrong.append(f"{logical} has no dead-letter queue or no retries")
            elif not _lets_in(sqs, arn, rule["Arn"]):
                wrong.append(f"{logical} may not send to {arn.rpartition(':')[2]}: its policy does not name the rule")
            if ":lambda:" in target["Arn"] and not _may_invoke(stack.client("lambda"), target["Arn"], rule["Arn"]):
                wrong.append(f"{logical} may not invoke {target['Arn'].rpartition(':')[2]}")
    _require(wrong, "rules")
    return counted(len(rules), "rule")


def _lets_in(sqs: Any, queue: str, source: str) -> bool:
    url = sqs.get_queue_url(QueueName=queue.rpartition(":")[2])["QueueUrl"]
    policy = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"]).get("Attributes", {}).get("Policy")
    return any(_allows(each, source) for each in _statements(policy))


def _may_invoke(functions: Any, function: str, source: str) -> bool:
    try:
        policy = functions.get_policy(FunctionName=function)["Policy"]
    except functions.exceptions.ResourceNotFoundException:
        return False
    return any(_allows(each, source) for each in _statements(policy))


def _statements(policy: str | None) -> Iterator[dict[str, Any]]:
    yield from json.loads(policy)["Statement"] if policy else ()


def _allows(statement: Mapping[str, Any], source: str) -> bool:
    conditions = [each for kind in statement.get("Condition", {}).values() for each in kind.values()]
    sources = [one for each in conditions for one in (each if isinstance(each, list) else [each])]
    return bool(statement["Effect"] == "Allow") and source in sources


@check("The pipe runs, and the queue's mapping is enabled")
def _movers(deployment: Deployment) -> str:
    stack = deployment.stack
    pipes, functions = stack.client("pipes"), stack.client("lambda")
    states = {}
    for logical, name in stack.named("AWS::Pipes::Pipe").items():
        states[logical] = pipes.describe_pipe(Name=name)["CurrentState"]
    for logical, uuid in stack.named("AWS::Lambda::EventSourceMapping").items():
        states[logical] = functions.get_event_source_mapping(UUID=uuid)["State"]
    stopped = {name: state for name, state in states.items() if state not in {"RUNNING", "Enabled"}}
    _require([f"{name} is {state}" for name, state in stopped.items()], "stopped")
    return ", ".join(states)


@check("The schedule runs the reconciler", Stage=_ON_AWS, Role=("standalone", "primary"))
def _schedule(deployment: Deployment) -> str:
    stack = deployment.stack
    (name,) = stack.named("AWS::Scheduler::Schedule").values()
    if stack.client("scheduler").get_schedule(Name=name)["State"] != "ENABLED":
        raise FailedError("the schedule is not enabled")
    group = stack.outputs["ReconcilerLogGroupName"]
    since = int((datetime.now(UTC) - timedelta(minutes=15)).timestamp() * 1000)
    newest = partial(stack.client("logs").filter_log_events, logGroupName=group, startTime=since, limit=1)
    deployment.until(f"{group} has no line of the last 15 minutes", lambda: newest()["events"])
    return "it ran in the last 15 minutes"


@check("Tables keep what was promised: expiry of records, point-in-time recovery, protection in stage prod")
def _tables(deployment: Deployment) -> str:
    client = deployment.stack.client("dynamodb")
    tables = {**deployment.stack.named("AWS::DynamoDB::GlobalTable"), **deployment.stack.named("AWS::DynamoDB::Table")}
    wrong = []
    for logical, name in tables.items():
        description = client.describe_table(TableName=name)["Table"]
        if deployment.parameters["Stage"] == "prod" and not description.get("DeletionProtectionEnabled"):
            wrong.append(f"{logical} is not protected from deletion")
        if deployment.parameters["Stage"] != "local":  # the engine keeps neither
            expires = client.describe_time_to_live(TableName=name)["TimeToLiveDescription"]["TimeToLiveStatus"]
            if logical in {"IdempotencyTable", "OutboxTable"} and expires not in {"ENABLED", "ENABLING"}:
                wrong.append(f"{logical} never deletes expired items")
            backups = client.describe_continuous_backups(TableName=name)["ContinuousBackupsDescription"]
            if backups["PointInTimeRecoveryDescription"]["PointInTimeRecoveryStatus"] != "ENABLED":
                wrong.append(f"{logical} has no point-in-time recovery")
    _require(wrong, "tables")
    return counted(len(tables), "table")


@check("Provisioned tables and their indexes scale", TableBilling=("provisioned",))
def _scaling(deployment: Deployment) -> str:
    pages = deployment.stack.client("application-autoscaling").get_paginator("describe_scalable_targets")
    targets = [each for page in pages.paginate(ServiceNamespace="dynamodb") for each in page["ScalableTargets"]]
    mine = {each["ResourceId"] for each in targets if deployment.stack.name in each["ResourceId"]}
    tables = deployment.stack.named("AWS::DynamoDB::GlobalTable").values()
    _require([name for name in tables if f"table/{name}" not in mine], "these do not scale")
    return counted(len(mine), "target")


@check("The key of KmsKeyArn encrypts the tables")
def _key(deployment: Deployment) -> str:
    key = deployment.parameters["KmsKeyArn"]
    if not key:
        raise SkippedError("KmsKeyArn is not set")
    client = deployment.stack.client("dynamodb")
    tables = deployment.stack.named("AWS::DynamoDB::GlobalTable").values()
    found = {name: client.describe_table(TableName=name)["Table"].get("SSEDescription", {}) for name in tables}
    _require([name for name, each in found.items() if each.get("KMSMasterKeyArn") != key], "not encrypted with it")
    return counted(len(found), "table")


@check("A gradual deployment publishes versions behind the alias live")
def _aliases(deployment: Deployment) -> str:
    if deployment.parameters["DeploymentStrategy"] == "AllAtOnce":
        raise SkippedError("DeploymentStrategy is AllAtOnce")
    client = deployment.stack.client("lambda")
    functions = deployment.stack.named("AWS::Lambda::Function").values()
    versions = {name: client.get_alias(FunctionName=name, Name="live")["FunctionVersion"] for name in functions}
    return ", ".join(f"{name} {version}" for name, version in versions.items())


@check("The archive is enabled, and its days of retention are those that you expect")
def _archive(deployment: Deployment) -> str:
    name = deployment.stack.outputs["CarRideArchiveArn"].rpartition("/")[2]
    archive = deployment.stack.client("events").describe_archive(ArchiveName=name)
    if archive["State"] not in {"ENABLED", "CREATING", "UPDATING"}:
        raise FailedError(f"the archive is {archive['State']}: {archive.get('StateReason', '')}")
    return f"{archive['RetentionDays']} days"


@check("The endpoint is active, and the health check of the primary is good", GlobalEndpoint=("present",))
def _endpoint(deployment: Deployment) -> str:
    stack = deployment.stack
    state = stack.client("events").describe_endpoint(Name=stack.name)["State"]
    if state != "ACTIVE":
        raise FailedError(f"the endpoint is {state}")
    answers = stack.client("route53").get_health_check_status(HealthCheckId=stack.outputs["CarRideHealthCheckId"])
    states = [each["StatusReport"]["Status"] for each in answers["HealthCheckObservations"]]
    _require([each for each in states if not each.startswith("Success")], "the health check says")
    return "active"


@check("Every table of the primary has a replica in the other region", Role=("primary",))
def _replicas(deployment: Deployment) -> str:
    client, peer = deployment.stack.client("dynamodb"), deployment.parameters["PeerRegion"]
    tables = deployment.stack.named("AWS::DynamoDB::GlobalTable")
    missing = [
        logical
        for logical, name in tables.items()
        if (peer, "ACTIVE")
        not in {
            (each["RegionName"], each.get("ReplicaStatus"))
            for each in client.describe_table(TableName=name)["Table"].get("Replicas", [])
        }
    ]
    _require(missing, f"without an active replica in {peer}")
    return counted(len(tables), "table")


@check("The dashboard is there, and no alarm is on", Stage=_ON_AWS)
def _alarms(deployment: Deployment) -> str:
    client = deployment.stack.client("cloudwatch")
    pages = client.get_paginator("describe_alarms").paginate(
        AlarmNamePrefix=f"{deployment.stack.name}-", AlarmTypes=["MetricAlarm", "CompositeAlarm"]
    )
    alarms = [each for page in pages for kind in ("MetricAlarms", "CompositeAlarms") for each in page[kind]]
    _require([each["AlarmName"] for each in alarms if each["StateValue"] == "ALARM"], "on")
    prefix = f"{deployment.stack.name}-"
    if not client.list_dashboards(DashboardNamePrefix=prefix)["DashboardEntries"]:
        raise FailedError(f"there is no dashboard {prefix}…")
    return counted(len(alarms), "alarm")


# ── What it does ──────────────────────────────────────────────────────────────────────────────────────────────────────


@check("Dispatch has cars to assign")
def _cars(deployment: Deployment) -> str:
    table = deployment.stack.outputs["CarTableName"]
    if not deployment.stack.client("dynamodb").scan(TableName=table, Limit=1)["Items"]:
        raise FailedError(f"{table} is empty: `./carride fleet --yes` parks a fleet")
    return "at least one"


@check("Payment has a gateway")
def _gateway(deployment: Deployment) -> str:
    if deployment.stack.outputs["PaymentRuleState"] == "DISABLED":
        raise SkippedError("there is none (docs/payment-gateway.md): payment's rule is disabled")
    return deployment.parameters["PaymentGatewayUrl"] or "the simulated one"


@check("The API refuses requests without credentials", Stage=_ON_AWS)
def _strangers(deployment: Deployment) -> str:
    status, _ = deployment.request("GET", "/openapi.json", sign=False)
    if status not in _REFUSED:
        raise FailedError(f"an unsigned request was answered with {status}")
    return str(status)


@check(
    "A booking over the API takes effect once, although each request is sent twice",
    Stage=_TRIAL,
    ApiAuthorization=("iam",),
)
def _bookings(deployment: Deployment) -> str:
    rides = max(1, deployment.rides // 10)
    for number in range(rides):
        name = f"verify-{deployment.began:%Y%m%dT%H%M%S}-{number}"
        order = {"customerID": name, "pickup": "sector_01", "destination": "sector_09", "price": 1000 + number}
        ride = _twice(deployment, "POST", "/carrides", order, f"{name}-book")
        for action in _TRANSITIONS:
            change = {"action": action, "version": ride["version"]}
            ride = _twice(deployment, "PUT", f"/carrides/{ride['orderID']}", change, f"{name}-{action}")
    return counted(rides, "ride")


def _twice(deployment: Deployment, method: str, path: str, body: Mapping[str, Any], key: str) -> Any:
    answers = [deployment.request(method, path, body, key=key) for _ in range(2)]
    if answers[0][0] not in _OK or answers[0][1] != answers[1][1]:
        raise FailedError(f"{method} {path} was answered with {answers}")
    return answers[0][1]


@check("Every event of simulated rides takes effect once per consumer; nothing is lost", Stage=_TRIAL)
def _rides(deployment: Deployment) -> str:
    request: dict[str, Any] = {"rides": deployment.rides, "seed": int(deployment.began.timestamp())} | _SIMULATED
    answer = deployment.stack.invoke("CarRideSimulatorFunctionName", request)
    if "error" in answer:
        raise FailedError(f"the simulator refused: {answer['error']}")
    return _settled(deployment).ledger.verdict


def _settled(deployment: Deployment) -> Report:
    """Wait until nothing is in flight, and return the audit.

    Raises:
        FailedError: something is lost or doubled, or the audit cannot tell.
    """

    def settled() -> Report | None:
        report = audit(deployment.stack)
        return report if report.ledger.wrong or report.ledger.blind or not report.ledger.in_flight else None

    report = deployment.until("events are still in flight", settled)
    if not report.ledger.balanced:
        raise FailedError(report.ledger.verdict)
    return report


@check("No process since the last deployment went through botocore")
def _transport(deployment: Deployment) -> str:
    groups = [name.removesuffix(_GROUP) for name in deployment.stack.outputs if name.endswith(_GROUP)]
    stack = deployment.stack.describe() or {}
    since = stack.get("LastUpdatedTime") or stack["CreationTime"]  # a process logs the warning once
    look = partial(lines, deployment.stack, pattern=f'"{BOTOCORE_USED}"', since=since)
    others = {group: line["message"] for group in groups for line in look(group)}
    _require(others, "went through botocore")
    return f"none since {since:%Y-%m-%d %H:%M UTC}"


@check("Outcomes arrive as metrics", Stage=_ON_AWS)
def _metrics(deployment: Deployment) -> str:
    client, namespace = deployment.stack.client("cloudwatch"), f"CarRide/{deployment.stack.name}"
    metrics = partial(client.list_metrics, Namespace=namespace, MetricName="New")
    deployment.until(f"{namespace} has no metric New", lambda: metrics()["Metrics"])
    return namespace


@check("A trace connects the producers, the bus and the consumers", Stage=_ON_AWS, Tracing=("Active",))
def _traces(deployment: Deployment) -> str:
    traces = partial(deployment.stack.client("xray").get_trace_summaries, StartTime=deployment.began)

    def connected() -> list[Any]:
        found = traces(EndTime=datetime.now(UTC))["TraceSummaries"]
        return [each for each in found if len({service["Name"] for service in each["ServiceIds"]}) > 1]

    return counted(len(deployment.until("no trace has more than one service", connected)), "trace")


# ── Drills ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_drill: Final = partial(check, drill=True, Stage=_TRIAL)


@_drill("An event that breaks the contract is dead-lettered at once; its message stays for you to delete")
def _poison(deployment: Deployment) -> str:
    stack = deployment.stack

    def broken() -> int:
        return letters.reasons(stack, "RideHistoryDlq")["CONTRACT"]

    before = broken()
    detail = {"specversion": "1.0", "id": "verify", "source": "verify", "type": "CarRideCreated", "data": {}}
    entry = BusEntry(source=SOURCE, detail=json.dumps(detail), time=datetime.now(UTC))
    stack.client("events").put_events(Entries=[entry.to_request(stack.outputs["CarRideBusName"])])
    deployment.until("the event is in no dead-letter queue", lambda: broken() > before)
    return "in RideHistoryDlq, with the reason CONTRACT"


@_drill("A rule without permission dead-letters its events; with it, a redrive gives each its effect once")
def _permission(deployment: Deployment) -> str:
    stack, functions = deployment.stack, deployment.stack.client("lambda")
    function = stack.outputs["RideHistoryFunctionName"]
    (statement, *_) = _statements(functions.get_policy(FunctionName=function)["Policy"])
    (source,) = statement["Condition"]["ArnLike"].values()
    functions.remove_permission(FunctionName=function, StatementId=statement["Sid"])
    try:
        stack.invoke("CarRideSimulatorFunctionName", {"rides": 1, "seed": int(deployment.began.timestamp()) + 1})
        deployment.until("nothing is in RideHistoryRuleDlq", lambda: letters.reasons(stack, "RideHistoryRuleDlq"))
    finally:
        functions.add_permission(
            FunctionName=function,
            StatementId=statement["Sid"],
            Action="lambda:InvokeFunction",
            Principal="events.amazonaws.com",
            SourceArn=source,
        )
    plan = redrive.plan(stack, "RideHistoryRuleDlq")
    sent = redrive.Job(stack, plan, report=lambda _: None).run().sent
    return f"{sent} redriven; {_settled(deployment).ledger.verdict}"


@_drill("A replay of the archive has no further effects")
def _replay(deployment: Deployment) -> str:
    stack = deployment.stack
    name = replay.name_for(stack.region, datetime.now(UTC))
    replay.check(stack)
    began = deployment.began - timedelta(minutes=1)
    replay.start(stack, name, began, datetime.now(UTC), replay.receivers(stack))
    replay.handed_over(stack, name)
    return f"{name}: {_settled(deployment).ledger.verdict}"
