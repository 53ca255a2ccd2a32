"""Checks of what is deployed."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import batched
from typing import Any, Final

from ops import fence
from ops.text import counted
from ops.verify import CannotTellError, Deployment, FailedError, SkippedError
from ops.verify.drift import UNPROVEN, Drift, drift_of
from ops.verify.policies import lets_in
from ops.verify.registry import ON_AWS, check

_COMPLETE: Final = frozenset({"CREATE_COMPLETE", "UPDATE_COMPLETE", "IMPORT_COMPLETE"})
_ALARMS_A_REQUEST: Final = 100
"""The most that CloudWatch describes by name at once."""
_OF_A_VERSION: Final = ("CodeSha256", "Environment", "Timeout")
"""Settings of a function that its versions keep."""
_LEAST_CONCURRENCY: Final = 100
"""Concurrent executions; Lambda keeps as many unreserved, and a new account may have ten."""
_EXPIRING: Final = frozenset(
    {"IdempotencyTable", "OperatorTable", "OutboxTable", "RideHistoryTable"}
)
"""Tables whose items expire."""


@check(
    "The stack and its nested stacks are complete; in stage prod, deleting the stack is protected"
)
def _stacks(it: Deployment) -> str:
    names = _all_stacks(it)
    for name in names:
        (found,) = it.client("cloudformation").describe_stacks(StackName=name)["Stacks"]
        if found["StackStatus"] not in _COMPLETE:
            it.wrong.append(f"{found['StackName']} is {found['StackStatus']}")
    protected = (it.stack.describe() or {}).get("EnableTerminationProtection")
    if it.stage == "prod" and not protected:
        it.wrong.append(
            "nothing protects the stack: enable its termination protection (docs/on-an-account.md)"
        )
    if it.stage != "prod" and protected:
        it.untold.append(
            f"the stack has termination protection, but is in stage {it.stage}, which protects no "
            "table: if it is in production, deploy it with Stage=prod"
        )
    return counted(len(names), "stack")


def _all_stacks(it: Deployment) -> list[str]:
    """Return the stack's name and the ARNs of its nested stacks."""
    return [it.stack.name, *it.stack.named("AWS::CloudFormation::Stack").values()]


@check("Nobody has changed the stack or its nested stacks by hand: there is no drift", Stage=ON_AWS)
def _drift(it: Deployment) -> str:
    names = _all_stacks(it)
    for name in names:
        try:
            drifts = drift_of(it, name)
        except CannotTellError as error:
            it.untold.append(str(error))
            continue
        for each in drifts:
            _judge(it, each)
    return f"{counted(len(names), 'stack')} in sync"


def _judge(it: Deployment, drift: Drift) -> None:
    """Sort a drift: unproven for its type, or wrong."""
    if drift.type in UNPROVEN and not drift.deleted:
        it.untold.append(f"{drift}: compare the values in the stack's drift results")
    else:
        it.wrong.append(f"drifted: {drift}")


@check("Functions are active, on the processor that was asked for, and none is switched off")
def _functions(it: Deployment) -> str:
    client = it.client("lambda")
    for logical, name in it.functions.items():
        found = it.configurations[logical]
        if not _is_active(found):
            why = found.get("LastUpdateStatusReason", "not updated")
            it.wrong.append(f"{logical} is {found.get('State')}, {why}")
        if found["Architectures"] != [it.parameters["Architecture"]]:
            it.wrong.append(f"{logical} runs on {found['Architectures']}")
        concurrency = client.get_function_concurrency(FunctionName=name)
        if concurrency.get("ReservedConcurrentExecutions") == 0:
            it.wrong.append(f"{logical} is switched off: its reserved concurrency is 0")
    return counted(len(it.functions), "function")


@check("The account lets enough functions run at once", Stage=ON_AWS)
def _concurrency(it: Deployment) -> str:
    limit = it.client("lambda").get_account_settings()["AccountLimit"]
    at_once: int = limit["ConcurrentExecutions"]
    if at_once < _LEAST_CONCURRENCY:
        it.wrong.append(
            f"the account allows {at_once} concurrent executions, so functions are throttled: "
            "request more (docs/limits.md)"
        )
    return f"{at_once} at once"


def _is_active(function: Mapping[str, Any]) -> bool:
    """Return whether a function runs its last version."""
    if function.get("State", "Active") != "Active":
        return False
    return bool(function.get("LastUpdateStatus", "Successful") == "Successful")


@check(
    "Rules deliver: each is enabled, and its target has retries and a dead-letter queue that lets "
    "it in"
)
def _rules(it: Deployment) -> str:
    events = it.client("events")
    bus = it.stack.outputs["CarRideBusName"]
    rules = it.stack.named("AWS::Events::Rule")
    for logical, name in rules.items():
        rule = events.describe_rule(Name=name, EventBusName=bus)
        if rule["State"] != _wanted_state(it, logical):
            it.wrong.append(f"{logical} is {rule['State']}")
        targets = events.list_targets_by_rule(Rule=name, EventBusName=bus)["Targets"]
        for target in targets:
            it.wrong += _faults_of_target(it, logical, rule["Arn"], target)
    return counted(len(rules), "rule")


def _wanted_state(it: Deployment, rule: str) -> str:
    if rule == "PaymentRule":
        return it.stack.outputs["PaymentRuleState"]
    return "ENABLED"


def _faults_of_target(
    it: Deployment, rule: str, rule_arn: str, target: Mapping[str, Any]
) -> Iterator[str]:
    """Yield what keeps a rule from delivering to a target. Log groups need nothing."""
    arn = target["Arn"]
    if ":logs:" in arn:
        return
    queue = target.get("DeadLetterConfig", {}).get("Arn")
    if queue is None or "RetryPolicy" not in target:
        yield f"{rule} has no dead-letter queue or no retries"
    elif not lets_in(it, queue, rule_arn):
        name = queue.rpartition(":")[2]
        yield f"{rule} may not send to {name}: its policy does not name the rule"
    if ":lambda:" in arn and not lets_in(it, arn, rule_arn):
        yield f"{rule} may not invoke {arn.rpartition(':')[2]}"


@check("The pipe runs, and the queue's mapping is enabled")
def _movers(it: Deployment) -> str:
    pipes = it.client("pipes")
    functions = it.client("lambda")
    states = {}
    for logical, name in it.stack.named("AWS::Pipes::Pipe").items():
        states[logical] = pipes.describe_pipe(Name=name)["CurrentState"]
    for logical, uuid in it.stack.named("AWS::Lambda::EventSourceMapping").items():
        states[logical] = functions.get_event_source_mapping(UUID=uuid)["State"]
    for logical, state in states.items():
        if state not in {"RUNNING", "Enabled"}:
            it.wrong.append(f"{logical} is {state}")
    return ", ".join(states)


@check("The schedule runs the reconciler", Stage=ON_AWS, Role=("standalone", "primary"))
def _schedule(it: Deployment) -> str:
    (logical_id,) = fence.schedules(it.stack)
    name = it.stack.named(fence.SCHEDULE)[logical_id]
    if it.client("scheduler").get_schedule(Name=name)["State"] != "ENABLED":
        raise FailedError("the schedule is not enabled")
    group = it.stack.outputs["ReconcilerLogGroupName"]
    since = datetime.now(UTC) - timedelta(minutes=15)
    newest = partial(
        it.client("logs").filter_log_events,
        logGroupName=group,
        startTime=int(since.timestamp() * 1000),
        limit=1,
    )
    it.until(f"{group} has no line of the last 15 minutes", lambda: newest()["events"])
    return "it ran in the last 15 minutes"


@check(
    "Tables keep what was promised: expiry of records, point-in-time recovery, protection in stage "
    "prod"
)
def _tables(it: Deployment) -> str:
    has_backups = it.stage != "local"  # the engine keeps neither expiry nor backups
    is_protected = it.stage == "prod"
    for logical, table in it.tables.items():
        if is_protected and not table.get("DeletionProtectionEnabled"):
            it.wrong.append(f"{logical} is not protected from deletion")
        if has_backups:
            it.wrong += _broken_promises(it, logical, table["TableName"])
    return counted(len(it.tables), "table")


def _broken_promises(it: Deployment, logical: str, name: str) -> Iterator[str]:
    """Yield which of expiry and backups a table lacks."""
    client = it.client("dynamodb")
    expiry = client.describe_time_to_live(TableName=name)["TimeToLiveDescription"]
    if logical in _EXPIRING and expiry["TimeToLiveStatus"] not in {"ENABLED", "ENABLING"}:
        yield f"{logical} never deletes expired items"
    backups = client.describe_continuous_backups(TableName=name)["ContinuousBackupsDescription"]
    if backups["PointInTimeRecoveryDescription"]["PointInTimeRecoveryStatus"] != "ENABLED":
        yield f"{logical} has no point-in-time recovery"


@check("Provisioned tables and their indexes scale", Stage=ON_AWS)
def _scaling(it: Deployment) -> str:
    provisioned = [table["TableName"] for table in it.tables.values() if _is_provisioned(table)]
    if not provisioned:
        raise SkippedError("no table is provisioned")
    scaling = it.client("application-autoscaling").get_paginator("describe_scalable_targets")
    mine = set[str]()
    for page in scaling.paginate(ServiceNamespace="dynamodb"):
        for target in page["ScalableTargets"]:
            _, table, *_ = target["ResourceId"].split("/")
            if table in provisioned:
                mine.add(target["ResourceId"])
    for name in provisioned:
        if f"table/{name}" not in mine:
            it.wrong.append(f"{name} does not scale")
    return counted(len(mine), "target")


def _is_provisioned(table: Mapping[str, Any]) -> bool:
    """Return whether a table has capacity of its own; one on demand has zero units."""
    units: int = table["ProvisionedThroughput"]["WriteCapacityUnits"]
    return units > 0


@check("The stream of a provisioned outbox has one shard, whose reads cost little", Stage=ON_AWS)
def _shards(it: Deployment) -> str:
    outbox = it.tables.get("OutboxTable")
    if outbox is None:
        raise SkippedError("the outbox is a replica of the primary's")
    streams = it.client("dynamodbstreams")
    number = 0
    more = {"StreamArn": outbox["LatestStreamArn"]}
    while more:
        found = streams.describe_stream(**more)["StreamDescription"]
        for shard in found["Shards"]:
            number += "EndingSequenceNumber" not in shard["SequenceNumberRange"]
        last = found.get("LastEvaluatedShardId")
        more = {**more, "ExclusiveStartShardId": last} if last else {}
    open_shards = f"{counted(number, 'open shard')}, which the pipe reads"
    if number > 1 and _is_provisioned(outbox):
        it.untold.append(f"{open_shards}: docs/costs.md counts one, and ADR 0029 says what to do")
    return open_shards


@check("Callers reach what was deployed last: the alias live has its code and its settings")
def _aliases(it: Deployment) -> str:
    client = it.client("lambda")
    versions = []
    for logical, name in it.functions.items():
        alias = client.get_alias(FunctionName=name, Name="live")
        version = alias["FunctionVersion"]
        versions.append(f"{logical} {version}")
        following = alias.get("RoutingConfig", {}).get("AdditionalVersionWeights")
        if following:
            more = ", ".join(following)
            it.untold.append(
                f"{logical} is being deployed: it moves from version {version} to {more}"
            )
            continue
        latest = it.configurations[logical]
        live = client.get_function_configuration(FunctionName=name, Qualifier=version)
        behind = [each for each in _OF_A_VERSION if latest.get(each) != live.get(each)]
        if behind:
            it.wrong.append(f"the version {version} of {logical} has another {', '.join(behind)}")
    return ", ".join(versions)


@check("The archive is enabled, and its days of retention are those that you expect")
def _archive(it: Deployment) -> str:
    arn = it.stack.outputs["CarRideArchiveArn"]
    _, _, name = arn.rpartition("/")
    archive = it.client("events").describe_archive(ArchiveName=name)
    state = archive["State"]
    if state not in {"ENABLED", "CREATING", "UPDATING"}:
        reason = archive.get("StateReason", "EventBridge gives no reason")
        it.wrong.append(f"the archive is {state}: {reason}")
    days = archive["RetentionDays"]
    return f"{days} days"


@check(
    "The endpoint is active, and the health check of the primary is good",
    GlobalEndpoint=("present",),
)
def _endpoint(it: Deployment) -> str:
    state = it.client("events").describe_endpoint(Name=it.stack.name)["State"]
    if state != "ACTIVE":
        raise FailedError(f"the endpoint is {state}")
    health_check = it.stack.outputs["CarRideHealthCheckId"]
    answer = it.client("route53").get_health_check_status(HealthCheckId=health_check)
    for observation in answer["HealthCheckObservations"]:
        status = observation["StatusReport"]["Status"]
        if not status.startswith("Success"):
            it.wrong.append(f"the health check says {status}")
    return "active"


@check("Every table of the primary has a replica in the other region", Role=("primary",))
def _replicas(it: Deployment) -> str:
    peer = it.parameters["PeerRegion"]
    for logical, table in it.tables.items():
        states = {
            replica["RegionName"]: replica.get("ReplicaStatus")
            for replica in table.get("Replicas", ())
        }
        if states.get(peer) != "ACTIVE":
            it.wrong.append(f"{logical} has no active replica in {peer}")
    return counted(len(it.tables), "table")


@check("No alarm is on, and the dashboard is there if it was asked for", Stage=ON_AWS)
def _alarms(it: Deployment) -> str:
    client = it.client("cloudwatch")
    alarms = sorted(_names(it, "AWS::CloudWatch::Alarm", "AWS::CloudWatch::CompositeAlarm"))
    states = _states(client, alarms)
    for name in alarms:
        if name not in states:
            it.wrong.append(f"{name} is missing")
        elif states[name] == "ALARM":
            it.wrong.append(f"{name} is on")
    dashboards = _names(it, "AWS::CloudWatch::Dashboard")
    for name in dashboards:
        found = client.list_dashboards(DashboardNamePrefix=name)["DashboardEntries"]
        if name not in {each["DashboardName"] for each in found}:
            it.wrong.append(f"there is no dashboard {name}")
    return f"{counted(len(alarms), 'alarm')}, {counted(len(dashboards), 'dashboard')}"


def _names(it: Deployment, *types: str) -> set[str]:
    """Return the names of what the stack and its nested stacks made of these types.

    A prefix would not do: `carride-` is also that of the alarms of `carride-prod`.
    """
    found = set[str]()
    nested = it.stack.named("AWS::CloudFormation::Stack").values()
    for stack in (it.stack, *map(it.stack.nested, nested)):
        for kind in types:
            found.update(stack.named(kind).values())
    return found


def _states(client: Any, names: list[str]) -> dict[str, str]:
    """Return the state of each alarm that exists."""
    found = {}
    for batch in batched(names, _ALARMS_A_REQUEST, strict=False):
        answer = client.describe_alarms(
            AlarmNames=list(batch),
            AlarmTypes=["MetricAlarm", "CompositeAlarm"],
            MaxRecords=_ALARMS_A_REQUEST,
        )
        for alarm in (*answer["MetricAlarms"], *answer["CompositeAlarms"]):
            found[alarm["AlarmName"]] = alarm["StateValue"]
    return found
