"""What alarms watch and say, and whether dashboard, queries and pages show what there is.

A house rule asks for the alarms of every function, pipe, API and queue (E9103, E9304).
"""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

import pytest

from idempotency import observation
from infrastructure.rules.house_rules import listed, mentioned
from tests.template.stack import ROOT, Stack, every_choice, label, source, stack

NAMESPACE: Final = {"Fn::Sub": "CarRide/${AWS::StackName}"}
PAGE: Final = re.compile(r"docs/runbooks/[\w-]+\.md")
OUTCOMES: Final = set(observation.PROTECTED)
"""What a consumer counts."""
CONSUMERS: Final = {"ride-history", "dispatch", "payment"}
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
"""Metrics, and what they are of, that somebody hears about beside those of every function, queue and consumer."""


@pytest.fixture(scope="module", params=[pytest.param(choice, id=label(choice)) for choice in every_choice()])
def deployed(request: pytest.FixtureRequest) -> Stack:
    """Return the transformed template, for each choice of parameters in turn."""
    return stack(**request.param)


def alarms(resources: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties of every alarm by its logical id."""
    return {
        name: resource["Properties"]
        for name, resource in resources.items()
        if resource["Type"] == "AWS::CloudWatch::Alarm"
    }


def metrics(alarm: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what an alarm watches: each metric, and the resource or service that it is of."""
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
    """Return the metrics that no alarm watches though somebody has to hear about them."""
    told = {each for alarm in alarms(resources).values() if alarm["AlarmActions"] for each in metrics(alarm)}
    of_consumers = (observation.TAKEOVER, observation.LOST_LEASE, observation.QUARANTINED)
    return (WATCHED | {(outcome, service) for outcome in of_consumers for service in services(resources)}) - told


def services(resources: Mapping[str, Any]) -> set[str]:
    """Return the names under which functions that consume events count."""
    variables = [
        resource["Properties"]["Environment"]["Variables"]
        for resource in resources.values()
        if resource["Type"] in {"AWS::Serverless::Function", "AWS::Lambda::Function"}
    ]
    return {each["POWERTOOLS_SERVICE_NAME"] for each in variables if "DEAD_LETTER_QUEUE_URL" in each}


def body(deployed: Stack) -> str:
    """Return the dashboard as it is written, with placeholders where the stack's names will be."""
    (dashboard,) = deployed.of_type("AWS::CloudWatch::Dashboard").values()
    text: str = dashboard["DashboardBody"]["Fn::Sub"]
    return text


# ── Alarms ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_whatever_can_go_wrong_is_watched() -> None:
    """Of every consumer too, under the name that it counts by; the loops' mapping has the same names."""
    resources = source()["Resources"]
    assert unwatched(resources) == set()
    assert services(resources) >= CONSUMERS
    assert services(resources) == {each["Name"] for each in source()["Mappings"]["Services"].values()}


def test_every_alarm_tells_somebody_and_says_what_to_do(deployed: Stack) -> None:
    """It reports to the topic when it goes off and when it is over, and names a page that exists."""
    for name, alarm in alarms(deployed.resources).items():
        assert alarm["AlarmActions"] == alarm["OKActions"] == [{"Ref": "AlarmTopic"}], name
        pages = PAGE.findall(json.dumps(alarm["AlarmDescription"]))
        assert pages, f"{name} names no runbook"
        assert all((ROOT / page).exists() for page in pages), name
        assert alarm["TreatMissingData"] == "notBreaching" or name == "CarRideLatencyAlarm", name


def test_metrics_of_the_project_are_asked_for_where_they_are_written(deployed: Stack) -> None:
    """Functions and alarms agree on the namespace, which is the stack's own: stages share an account."""
    for name, function in deployed.of_type("AWS::Lambda::Function").items():
        assert function["Environment"]["Variables"]["POWERTOOLS_METRICS_NAMESPACE"] == NAMESPACE, name
    for name, alarm in alarms(deployed.resources).items():
        several = [each["MetricStat"]["Metric"] for each in alarm.get("Metrics", ()) if "MetricStat" in each]
        for metric in [alarm, *several]:
            if metric.get("MetricName") in OUTCOMES | {"Rejected", "Overdue"}:
                assert metric["Namespace"] == NAMESPACE, name


# ── Dashboard and queries ─────────────────────────────────────────────────────────────────────────────────────────────


def test_the_dashboard_can_be_drawn(deployed: Stack) -> None:
    """It is JSON, every widget is on the grid of 24 columns, and none covers another."""
    cells: set[tuple[int, int]] = set()
    for widget in json.loads(body(deployed))["widgets"]:
        assert widget["x"] + widget["width"] <= 24
        covered = {
            (x, y)
            for x in range(widget["x"], widget["x"] + widget["width"])
            for y in range(widget["y"], widget["y"] + widget["height"])
        }
        assert cells.isdisjoint(covered), widget
        cells |= covered


def test_the_dashboard_shows_all_that_there_is(deployed: Stack) -> None:
    """Searches find every queue, function and rule of the stack by its name, and every outcome; the rest is named."""
    text = body(deployed)
    for kind, word in (("AWS::SQS::Queue", r"Dlq$|Queue$"), ("AWS::Lambda::Function", r"Function$")):
        assert all(re.search(word, name) for name in deployed.of_type(kind)), kind
    for search in ("QueueName=(${AWS::StackName} AND Dlq)", "QueueName=(${AWS::StackName} AND Queue)"):
        assert search in text
    assert text.count("FunctionName=(${AWS::StackName} AND Function)") == 5
    assert set(re.findall(r"\$\{(\w+)\}", text)) == {"CarRideBus", "OutboxPipe", "CarRideApi"}
    asked = set().union(*(re.findall(r"\w+", names) for names in re.findall(r"MetricName=\(([^)]*)\)", text)))
    assert asked >= OUTCOMES | {"Published", "Rejected", "Overdue", "Reconciled", "CarNotHeld", "CarRowSkipped"}


def test_saved_queries_are_of_every_function(deployed: Stack) -> None:
    """Nobody misses a consumer because a query leaves it out."""
    groups = {
        function["LoggingConfig"]["LogGroup"]["Ref"] for function in deployed.of_type("AWS::Lambda::Function").values()
    }
    for name, query in deployed.of_type("AWS::Logs::QueryDefinition").items():
        expected = {"CarRideEventsLogGroup"} if name.startswith("Events") else groups
        assert {group["Ref"] for group in query["LogGroupNames"]} == expected, name


# ── Documents ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def table(heading: str, after: str = "\n") -> list[str]:
    """Return the names in the first column of the first table under a heading, behind a text there."""
    text = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0].split(after, 1)[-1]
    lines = section[section.index("| ---") :].split("\n\n")[0].splitlines()[1:]
    return [name for line in lines for name in re.findall(r"`([^`]+)`", line.split("|")[1])]


def test_names_that_others_rest_on_are_documented() -> None:
    """Metrics and saved queries are an interface: dashboards and alarms of others rest on their names."""
    assert set(table("Metrics")) == OUTCOMES
    assert table("Metrics", "A producer counts") == ["Published", "Rejected"]
    queries = [
        resource["Properties"]["Name"]["Fn::Sub"].removeprefix("${AWS::StackName}/")
        for resource in source()["Resources"].values()
        if resource["Type"] == "AWS::Logs::QueryDefinition"
    ]
    assert table("Logs", "Saved queries") == queries


def without_added_consumers(deployed: Stack) -> Stack:
    """Return a stack as the page describes it: with three consumers."""
    added = tuple(set(source()["Mappings"]["Loops"]["Names"]["Consumers"]) - {"RideHistory", "Dispatch", "Payment"})
    kept = {name: each for name, each in deployed.resources.items() if not name.startswith(added)}
    return dataclasses.replace(deployed, resources=kept)


def test_what_watching_costs_is_counted_in_the_template() -> None:
    """Whoever adds an alarm, a rule, a consumer or an outcome adds to the bill, and says so on the page."""
    deployed = without_added_consumers(stack())
    text = (ROOT / "docs" / "costs.md").read_text(encoding="utf-8")
    section = text.split("\n## Watching it\n", 1)[1].split("\n## ", 1)[0]
    rows = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in section.splitlines() if "0" in line]
    *things, total = [row for row in rows if len(row) == 4]
    for what, count, price, cost in things:
        assert Decimal(count) * Decimal(price) == Decimal(cost), what
    assert Decimal(total[-1]) == sum(Decimal(row[-1]) for row in things)
    of_alarms = [alarm.get("Metrics", [{"MetricStat": alarm}]) for alarm in alarms(deployed.resources).values()]
    singly = sum("MetricStat" in metric for each in of_alarms for metric in each)
    assert int(things[0][1]) == singly + len(deployed.of_type("AWS::Events::Rule"))
    counting = len(services(deployed.resources)) + len({"carride-api", "carride-api-simulate"})
    others = table("Metrics", "A producer counts") + table("Metrics", "Those who keep cars")
    assert int(things[1][1]) == counting * len(OUTCOMES) + len(set(others) - {"dispatch", "reconciler"})
