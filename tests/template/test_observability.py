"""What alarms watch and say, and whether dashboard, queries and pages cover every resource."""

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
MOST: Final = 12
"""Alarms of a stack besides those of dead-letter queues, of which each further consumer adds two:
composite ones and that of the endpoint included."""
WATCHED: Final = {
    ("InvocationsFailedToBeSentToDlq", "${CarRideBus}"),
    ("5xx", '{"Ref": "CarRideApi"}'),
    ("ApproximateAgeOfOldestMessage", '["DispatchQueue", "QueueName"]'),
    ("ExecutionFailed", '{"Ref": "OutboxPipe"}'),
    ("ExecutionThrottled", '{"Ref": "OutboxPipe"}'),
    ("EventCount", '{"Ref": "OutboxPipe"}'),
    (observation.NEW, '"carride-api"'),
    ("Overdue", '"reconciler"'),
    (observation.EXPIRED, '"dispatch"'),
    (observation.EXPIRED, '"payment"'),
    ("IngestionToInvocationStartLatency", "AWS/Events"),
}
"""Metrics with an alarm, besides those of every function and queue, and what they are of."""


def wanted(resources: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return the metrics that need an alarm, and what they are of.

    The first message of every dead-letter queue; errors of every function, and what Lambda could
    not dead-letter of those that it invokes asynchronously.
    """
    found = set(WATCHED)
    for name, each in resources.items():
        properties = each.get("Properties", {})
        if each["Type"] == "AWS::SQS::Queue" and "RedrivePolicy" not in properties:
            found.add(("ApproximateNumberOfMessagesVisible", f'["{name}", "QueueName"]'))
        if each["Type"] == "AWS::Serverless::Function":
            found.add(("Errors", f'{{"Ref": "{name}"}}'))
            if "EventInvokeConfig" in properties:
                found.add(("DestinationDeliveryFailures", f'{{"Ref": "{name}"}}'))
    return found


def unwatched(resources: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return the metrics that lack their alarm."""
    texts = [
        json.dumps(each["Properties"])
        for each in resources.values()
        if each["Type"] == "AWS::CloudWatch::Alarm"
    ]
    return {
        (metric, of)
        for metric, of in wanted(resources)
        if not any(f'"{metric}"' in text and of in text for text in texts)
        and not any(f"SUM({metric})" in text and of in text for text in texts)
    }


# ── Alarms ────────────────────────────────────────────────────────────────────────────────────────


def test_whatever_can_go_wrong_is_watched() -> None:
    """Each metric that needs one has an alarm; a dead letter's is at the first message."""
    resources = source()["Resources"]
    assert unwatched(resources) == set()
    for name, each in resources.items():
        if name.endswith("DlqAlarm"):
            alarm = each["Properties"]
            assert (alarm["Threshold"], alarm["EvaluationPeriods"]) == (0, 1), name


def test_three_alarms_notify_and_every_alarm_names_its_runbook(
    deployed: Stack,
) -> None:
    """Those that notify report beginning and end.

    Each alarm names a page that exists and has the stack's own namespace.
    """
    for name, function in deployed.functions().items():
        assert function["Environment"]["Variables"]["POWERTOOLS_METRICS_NAMESPACE"] == NAMESPACE, (
            name
        )
    composites = deployed.of_type("AWS::CloudWatch::CompositeAlarm")
    for name, alarm in (deployed.of_type("AWS::CloudWatch::Alarm") | composites).items():
        actions = [{"Ref": "AlarmTopic"}] if name in NOTIFYING else None
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
            if metric.get("MetricName") in OUTCOMES | {"Overdue"}:
                assert metric["Namespace"] == NAMESPACE, name


def watched_by(deployed: Stack, composite: str) -> set[str]:
    """Return the alarms in a composite alarm; each must be a quoted name."""
    match deployed.resources[composite]["Properties"]["AlarmRule"]["Fn::Sub"]:
        case [str(text), {"OfTheEndpoint": endpoints}]:
            text = text.replace("${OfTheEndpoint}", endpoints and endpoints["Fn::Sub"])
        case text:
            pass
    assert re.fullmatch(r'ALARM\("\$\{\w+\}"\)( OR ALARM\("\$\{\w+\}"\))*', text), text
    return set(re.findall(r"\$\{(\w+)\}", text))


NOTIFYING: Final = ("LostAlarm", "StuckAlarm", "ApiServerErrorsAlarm")


def test_somebody_is_notified_by_every_alarm_but_that_of_rollouts(deployed: Stack) -> None:
    """Two composite alarms have every dead letter, what is lost, and what is stuck."""
    every = set(deployed.of_type("AWS::CloudWatch::Alarm"))
    lost = {
        name
        for name in every
        if name.endswith(("DlqAlarm", "UndeliveredAlarm", "LostAlarm", "ExpiredAlarm"))
    }
    check_members(deployed, "LostAlarm", lost)
    stuck = every - lost - {"FunctionErrorsAlarm", "ApiServerErrorsAlarm"}
    check_members(deployed, "StuckAlarm", stuck)
    composites = deployed.of_type("AWS::CloudWatch::CompositeAlarm")
    others = [name for name in every if not name.endswith("DlqAlarm")]
    assert len(others) + len(composites) <= MOST


def check_members(deployed: Stack, composite: str, wanted: set[str]) -> None:
    """Fail, and say what to do, unless a composite alarm watches just these alarms."""
    members = watched_by(deployed, composite)
    missing = sorted(wanted - members)
    assert not missing, f"add {missing} to the AlarmRule of {composite}"
    unknown = sorted(members - wanted)
    assert not unknown, f"{composite} watches {unknown}, which is another one's: remove them"


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
    assert len(dashboards) == (deployed.parameters["Stage"] != "dev")
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
