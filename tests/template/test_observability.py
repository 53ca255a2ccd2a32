"""What alarms watch and say, and whether dashboard, queries and pages cover every resource.

The house rules require the alarms of every function, pipe, API and queue (E9103, E9304).
"""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from idempotency import observation
from infrastructure.rules.house_rules import listed, mentioned
from tests.template.stack import ROOT, Stack, source, stack

NAMESPACE: Final = {"Fn::Sub": "CarRide/${AWS::StackName}"}
PAGE: Final = re.compile(r"docs/runbooks/[\w-]+\.md")
OUTCOMES: Final = set(observation.PROTECTED)
"""What a consumer counts."""
WATCHED: Final = {
    ("IngestionToInvocationStartLatency", "AWS/Events"),
    ("InvocationsFailedToBeSentToDlq", "CarRideBus"),
    ("ExecutionThrottled", "OutboxPipe"),
    ("EventCount", "OutboxPipe"),
    (observation.NEW, "carride-api"),
    ("Rejected", "carride-simulator"),
    ("Overdue", "reconciler"),
    (observation.EXPIRED, "dispatch"),
    (observation.EXPIRED, "payment"),
}
"""Metrics with an alarm, besides those of every function, queue and consumer, and what they are of."""


def alarms(resources: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties of every alarm by its logical id."""
    return {
        name: resource["Properties"]
        for name, resource in resources.items()
        if resource["Type"] == "AWS::CloudWatch::Alarm"
    }


def metrics(alarm: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each metric that an alarm watches, with its resource or service."""
    for query in alarm.get("Metrics", [{"MetricStat": {"Metric": alarm}}]):
        metric = query.get("MetricStat", {}).get("Metric")
        if metric is None:  # an expression: of other queries, or of Metrics Insights
            for name in mentioned(query.get("Expression")):
                yield str(query["Expression"]["Fn::Sub"]).partition("(")[2].partition(")")[0], name
            continue
        values = [each.get("Value") for each in listed(metric.get("Dimensions")) if each]
        subjects = sorted(mentioned(values)) or [str(value) for value in values] or [str(metric["Namespace"])]
        yield str(metric["MetricName"]), subjects[0]


def unwatched(resources: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return the metrics that lack their alarm."""
    watched = {each for alarm in alarms(resources).values() if alarm["AlarmActions"] for each in metrics(alarm)}
    of_consumers = (observation.TAKEOVER, observation.LOST_LEASE, observation.QUARANTINED)
    return (WATCHED | {(outcome, service) for outcome in of_consumers for service in services(resources)}) - watched


def services(resources: Mapping[str, Any]) -> set[str]:
    """Return the service names of the consumers."""
    variables = [
        resource["Properties"]["Environment"]["Variables"]
        for resource in resources.values()
        if resource["Type"] in {"AWS::Serverless::Function", "AWS::Lambda::Function"}
    ]
    return {each["POWERTOOLS_SERVICE_NAME"] for each in variables if "DEAD_LETTER_QUEUE_URL" in each}


# ── Alarms ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_whatever_can_go_wrong_is_watched() -> None:
    """Each metric that needs one has an alarm; consumers count under the names of the loops' mapping."""
    resources = source()["Resources"]
    assert unwatched(resources) == set()
    assert services(resources) == {each["Name"] for each in source()["Mappings"]["Services"].values()}


def test_every_alarm_reports_and_names_its_runbook(deployed: Stack) -> None:
    """It reports its beginning and its end, names a page that exists, and has the stack's own namespace."""
    for name, function in deployed.of_type("AWS::Lambda::Function").items():
        assert function["Environment"]["Variables"]["POWERTOOLS_METRICS_NAMESPACE"] == NAMESPACE, name
    composites = deployed.of_type("AWS::CloudWatch::CompositeAlarm")
    for name, alarm in (alarms(deployed.resources) | composites).items():
        assert alarm["AlarmActions"] == alarm["OKActions"] == [{"Ref": "AlarmTopic"}], name
        pages = PAGE.findall(json.dumps(alarm["AlarmDescription"]))
        assert pages, name
        assert all((ROOT / page).exists() for page in pages), name
        assert name in {*composites, "CarRideLatencyAlarm"} or alarm["TreatMissingData"] == "notBreaching", name
        for metric in [
            alarm,
            *(each["MetricStat"]["Metric"] for each in alarm.get("Metrics", ()) if "MetricStat" in each),
        ]:
            if metric.get("MetricName") in OUTCOMES | {"Rejected", "Overdue"}:
                assert metric["Namespace"] == NAMESPACE, name


def test_the_apis_composite_alarm_has_every_alarm_of_the_api(deployed: Stack) -> None:
    """The alarms of the API and its function are in it, each as a quoted name."""
    rule, names = deployed.resources["ApiAlarm"]["Properties"]["AlarmRule"]["Fn::Sub"]
    assert rule == 'ALARM("${CarRideApiServerErrorsAlarm}") OR ALARM("${OfTheFunction}")'
    separator, of_the_function = names["OfTheFunction"]["Fn::Join"]
    assert separator == '") OR ALARM("'
    found = {"CarRideApiServerErrorsAlarm", *(each["Ref"] for each in of_the_function)}
    assert found == {name for name in alarms(deployed.resources) if name.startswith("CarRideApi")}


# ── Dashboard and queries ─────────────────────────────────────────────────────────────────────────────────────────────


def test_the_dashboard_shows_every_resource_and_outcome(deployed: Stack) -> None:
    """It is JSON; its searches find every queue, function and rule by name, and name every outcome."""
    (dashboard,) = deployed.of_type("AWS::CloudWatch::Dashboard").values()
    text: str = dashboard["DashboardBody"]["Fn::Sub"]
    assert all(widget["x"] + widget["width"] <= 24 for widget in json.loads(text)["widgets"])
    for kind, word in (("AWS::SQS::Queue", "Dlq|Queue"), ("AWS::Lambda::Function", "Function")):
        assert all(re.search(rf"({word})$", name) for name in deployed.of_type(kind)), kind
        for each in word.split("|"):
            assert f"Name=(${{AWS::StackName}} AND {each})" in text
    asked = set().union(*(re.findall(r"\w+", names) for names in re.findall(r"MetricName=\(([^)]*)\)", text)))
    assert asked >= OUTCOMES | {"Published", "Rejected", "Overdue", "Reconciled", "CarNotHeld", "CarRowSkipped"}


def test_saved_queries_are_of_every_function(deployed: Stack) -> None:
    """No query leaves out a consumer."""
    groups = {
        function["LoggingConfig"]["LogGroup"]["Ref"] for function in deployed.of_type("AWS::Lambda::Function").values()
    }
    for name, query in deployed.of_type("AWS::Logs::QueryDefinition").items():
        expected = {"CarRideEventsLogGroup"} if name.startswith("Events") else groups
        assert {group["Ref"] for group in query["LogGroupNames"]} == expected, name


# ── Documents ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def table(heading: str, after: str = "\n") -> list[str]:
    """Return the names in the first column of the first table after a text under a heading."""
    text = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0].split(after, 1)[-1]
    lines = section[section.index("| ---") :].split("\n\n")[0].splitlines()[1:]
    return [name for line in lines for name in re.findall(r"`([^`]+)`", line.split("|")[1])]


def test_names_that_others_rest_on_are_documented() -> None:
    """Dashboards and alarms of others depend on the names of metrics and saved queries."""
    assert set(table("Metrics")) == OUTCOMES
    assert table("Metrics", "A producer counts") == ["Published", "Rejected"]
    queries = [
        resource["Properties"]["Name"]["Fn::Sub"].removeprefix("${AWS::StackName}/")
        for resource in source()["Resources"].values()
        if resource["Type"] == "AWS::Logs::QueryDefinition"
    ]
    assert table("Logs", "Saved queries") == queries


def test_the_price_of_watching_counts_what_alarms_watch() -> None:
    """CloudWatch bills each metric of an alarm, and each rule of the alarm on all rules."""
    deployed = stack()
    added = tuple(set(source()["Mappings"]["Services"]) - {"RideHistory", "Dispatch", "Payment"})  # by the reader
    kept = {name: each for name, each in deployed.resources.items() if not name.startswith(added)}
    queries = [alarm.get("Metrics", [{"MetricStat": alarm}]) for alarm in alarms(kept).values()]
    count = sum("MetricStat" in each for metrics in queries for each in metrics)
    count += len(dataclasses.replace(deployed, resources=kept).of_type("AWS::Events::Rule"))
    assert f"| metrics that alarms watch | {count} |" in (ROOT / "docs" / "costs.md").read_text(encoding="utf-8")
