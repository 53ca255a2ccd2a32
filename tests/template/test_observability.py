"""What alarms watch and say, and whether dashboard, queries and pages cover every resource.

The house rules require the alarms of every function, pipe, API and queue (E9103, E9304).
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import pytest

from carride_idempotency import observation
from tools.transformed import ROOT, Stack, source, stack

pytestmark = pytest.mark.integration

NAMESPACE: Final = {"Fn::Sub": "CarRide/${AWS::StackName}"}
PAGE: Final = re.compile(r"ops/docs/runbooks/[\w-]+\.md")
OUTCOMES: Final = set(observation.PROTECTED)
"""What a consumer counts."""
OF_CONSUMERS: Final = (observation.TAKEOVER, observation.LOST_LEASE, observation.QUARANTINED)
WATCHED: Final = {
    ("IngestionToInvocationStartLatency", "AWS/Events"),
    ("InvocationsFailedToBeSentToDlq", "${CarRideBus}"),
    ("AccountProvisionedReadCapacityUtilization", "AWS/DynamoDB"),
    ("AccountProvisionedWriteCapacityUtilization", "AWS/DynamoDB"),
    ("ExecutionThrottled", '{"Ref": "OutboxPipe"}'),
    ("EventCount", '{"Ref": "OutboxPipe"}'),
    (observation.NEW, '"carride-api"'),
    ("Rejected", '"carride-simulator"'),
    ("Overdue", '"reconciler"'),
    (observation.EXPIRED, '"dispatch"'),
    (observation.EXPIRED, '"payment"'),
}
"""Metrics with an alarm, besides those of every function, queue and consumer, and what they are
of."""


def unwatched(resources: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return the metrics that lack their alarm."""
    alarms = [
        each["Properties"]
        for each in resources.values()
        if each["Type"] == "AWS::CloudWatch::Alarm"
    ]
    texts = [json.dumps(alarm) for alarm in alarms]
    wanted = WATCHED | {
        (outcome, f'"{service}"') for outcome in OF_CONSUMERS for service in services(resources)
    }
    tables = [
        name for name, each in resources.items() if each["Type"] == "AWS::DynamoDB::GlobalTable"
    ]
    wanted |= {
        ("ThrottledRequests", f"TableName = '${{AWS::StackName}}-{name}'") for name in tables
    }
    return {
        (metric, of)
        for metric, of in wanted
        if not any(metric in text and of in text for text in texts)
    }


def services(resources: Mapping[str, Any]) -> set[str]:
    """Return the service names of the consumers."""
    variables = [
        resource["Properties"]["Environment"]["Variables"]
        for resource in resources.values()
        if resource["Type"] in {"AWS::Serverless::Function", "AWS::Lambda::Function"}
    ]
    return {
        each["POWERTOOLS_SERVICE_NAME"] for each in variables if "DEAD_LETTER_QUEUE_URL" in each
    }


# ── Alarms ────────────────────────────────────────────────────────────────────────────────────────


def test_whatever_can_go_wrong_is_watched() -> None:
    """Each metric that needs one has an alarm.

    Consumers count under the names of the loops' mapping.
    """
    resources = source()["Resources"]
    assert unwatched(resources) == set()
    assert services(resources) == {
        each["Name"] for each in source()["Mappings"]["Services"].values()
    }


def test_only_the_composite_alarms_notify_and_every_alarm_names_its_runbook(
    deployed: Stack,
) -> None:
    """Composites report beginning and end.

    Each alarm names a page that exists and has the stack's own namespace.
    """
    for name, function in deployed.functions().items():
        assert function["Environment"]["Variables"]["POWERTOOLS_METRICS_NAMESPACE"] == NAMESPACE, (
            name
        )
    composites = deployed.of_type("AWS::CloudWatch::CompositeAlarm")
    for name, alarm in (deployed.of_type("AWS::CloudWatch::Alarm") | composites).items():
        actions = [{"Ref": "AlarmTopic"}] if name in composites else None
        assert alarm.get("AlarmActions") == alarm.get("OKActions") == actions, name
        pages = PAGE.findall(json.dumps(alarm["AlarmDescription"]))
        assert pages, name
        assert all((ROOT / page).exists() for page in pages), name
        assert (
            name in {*composites, "CarRideLatencyAlarm"}
            or alarm["TreatMissingData"] == "notBreaching"
        ), name
        for metric in [
            alarm,
            *(
                each["MetricStat"]["Metric"]
                for each in alarm.get("Metrics", ())
                if "MetricStat" in each
            ),
        ]:
            if metric.get("MetricName") in OUTCOMES | {"Rejected", "Overdue"}:
                assert metric["Namespace"] == NAMESPACE, name


def watched_by(deployed: Stack, composite: str) -> set[str]:
    """Return the alarms in a composite alarm; each must be a quoted name."""
    text, names = deployed.resources[composite]["Properties"]["AlarmRule"]["Fn::Sub"]
    for name, value in names.items():
        match value:
            case {"Fn::Join": [separator, members]}:
                inserted = separator.join(f"${{{each['Ref']}}}" for each in members)
            case _:
                inserted = value["Fn::Sub"] if value else ""
        text = text.replace(f"${{{name}}}", inserted)
    # The nested stack gets this name as a parameter.
    text = text.replace("${LatencyAlarm}", "${CarRideLatencyAlarm}")
    assert re.fullmatch(r'ALARM\("\$\{\w+\}"\)( OR ALARM\("\$\{\w+\}"\))*', text), text
    return set(re.findall(r"\$\{(\w+)\}", text))


def test_composite_alarms_have_every_alarm_of_their_kind(deployed: Stack) -> None:
    """Somebody is notified of every dead letter, of what is stuck, and of the API's alarms."""
    every = set(deployed.of_type("AWS::CloudWatch::Alarm"))
    lost = {
        name
        for name in every
        if name.endswith(("DlqAlarm", "UndeliveredAlarm", "LostAlarm", "ExpiredAlarm"))
    }
    check_members(deployed, "LostAlarm", lost)
    pipe = {name for name in every if name.startswith("OutboxPipe")} - lost
    stuck = pipe | {"DispatchQueueAlarm", "OverdueAlarm"} | ({"CarRideLatencyAlarm"} & every)
    check_members(deployed, "StuckAlarm", stuck)
    of_the_api = {name for name in every if name.startswith("CarRideApi")}
    check_members(deployed, "ApiAlarm", of_the_api)


NOTIFYING: Final = ("LostAlarm", "StuckAlarm", "ApiAlarm")


def has_full_monitoring(deployed: Stack) -> bool:
    """Whether the parameters ask for alarms that only inform, and for the dashboard."""
    chosen = deployed.parameters["Monitoring"]
    return chosen == "full" or (chosen == "by-stage" and deployed.parameters["Stage"] != "dev")


def test_what_notifies_is_in_every_stack(deployed: Stack) -> None:
    """Every member of a composite alarm exists; others do with full monitoring, or to roll back."""
    alarms = set(deployed.of_type("AWS::CloudWatch::Alarm"))
    members = set[str]().union(*(watched_by(deployed, each) for each in NOTIFYING))
    informing = alarms - members - {"TableCapacityAlarm"}
    assert members <= alarms
    rolls_back = {name for name in informing if name.endswith("ErrorsAlarm")}
    assert bool(informing - rolls_back) == has_full_monitoring(deployed)
    gradual = deployed.parameters["DeploymentStrategy"] != "AllAtOnce"
    assert bool(rolls_back) == (has_full_monitoring(deployed) or gradual)


def check_members(deployed: Stack, composite: str, wanted: set[str]) -> None:
    """Fail, and say what to do, unless a composite alarm watches just these alarms."""
    members = watched_by(deployed, composite)
    missing = sorted(wanted - members)
    assert not missing, f"add {missing} to the AlarmRule of {composite} in template.yaml"
    unknown = sorted(members - wanted)
    assert not unknown, (
        f"{composite} watches {unknown}: add them to the sets in the test above, or remove them"
    )


def test_an_address_can_be_notified() -> None:
    """`AlarmEmail` subscribes an address to the topic; without one, nothing is subscribed."""
    (subscription,) = stack(AlarmEmail="you@example.com").of_type("AWS::SNS::Subscription").values()
    assert subscription == {
        "TopicArn": {"Ref": "AlarmTopic"},
        "Protocol": "email",
        "Endpoint": {"Ref": "AlarmEmail"},
    }
    assert stack().of_type("AWS::SNS::Subscription") == {}


# ── Dashboard and queries ─────────────────────────────────────────────────────────────────────────


def test_the_dashboard_shows_every_resource_and_outcome(deployed: Stack) -> None:
    """It is JSON, finds every queue, function and rule by name, and names every outcome."""
    dashboards = [*deployed.of_type("AWS::CloudWatch::Dashboard").values()]
    assert len(dashboards) == has_full_monitoring(deployed)
    if not dashboards:
        return
    [dashboard] = dashboards
    text: str = dashboard["DashboardBody"]["Fn::Sub"]
    assert all(widget["x"] + widget["width"] <= 24 for widget in json.loads(text)["widgets"])
    for kind, word in (("AWS::SQS::Queue", "Dlq|Queue"), ("AWS::Lambda::Function", "Function")):
        assert all(re.search(rf"({word})$", name) for name in deployed.of_type(kind)), kind
        for each in word.split("|"):
            assert f"Name=(${{AWS::StackName}} AND {each})" in text
    asked = set().union(
        *(re.findall(r"\w+", names) for names in re.findall(r"MetricName=\(([^)]*)\)", text))
    )
    of_functions = {"Published", "Rejected", "Overdue", "Reconciled", "CarNotHeld", "CarRowSkipped"}
    assert asked >= OUTCOMES | of_functions | {"EmptyFleet", "NoCarAvailable"}


def test_saved_queries_are_of_every_function(deployed: Stack) -> None:
    """No query leaves out a consumer."""
    groups = {
        function["LoggingConfig"]["LogGroup"]["Ref"] for function in deployed.functions().values()
    }
    for name, query in deployed.of_type("AWS::Logs::QueryDefinition").items():
        expected = {"CarRideEventsLogGroup"} if name.startswith("Events") else groups
        assert {group["Ref"] for group in query["LogGroupNames"]} == expected, name
