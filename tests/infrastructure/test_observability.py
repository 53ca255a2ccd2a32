"""What an alarm tells and to whom, and whether the dashboard shows all that there is.

That each function, pipe, API and queue has its alarms is a house rule (E9103, E9304); that none of those that there are
goes missing is held by tests/infrastructure/test_lint_rules.py.
"""

import json
import re
from decimal import Decimal
from typing import Any, Final

import pytest

from idempotency import observation
from tests.infrastructure.stack import ROOT, Properties, Stack, every_choice, label, named, source, stack

NAMESPACE: Final = {"Fn::Sub": "CarRide/${AWS::StackName}"}
PAGE: Final = re.compile(r"docs/runbooks/[\w-]+\.md")
LABEL: Final = re.compile(r'"label": "(\w+)"')


def choices() -> list[Any]:
    """Return one test parameter for each choice of the template's parameters."""
    return [pytest.param(choice, id=label(choice)) for choice in every_choice()]


@pytest.fixture(scope="module", params=choices())
def deployed(request: pytest.FixtureRequest) -> Stack:
    """Return the transformed template, for each choice of parameters in turn."""
    return stack(**request.param)


def alarms(deployed: Stack) -> dict[str, Properties]:
    """Return every alarm by its logical id."""
    return deployed.of_type("AWS::CloudWatch::Alarm")


def metrics_of(alarm: Properties) -> set[tuple[str, str]]:
    """Return what an alarm watches: each metric and the resource or service that it is of."""
    single = [alarm] if "MetricName" in alarm else []
    several = [metric["MetricStat"]["Metric"] for metric in alarm.get("Metrics", ()) if "MetricStat" in metric]
    return {
        (
            metric["MetricName"],
            named(dimension["Value"]) if isinstance(dimension["Value"], dict) else dimension["Value"],
        )
        for metric in single + several
        for dimension in metric.get("Dimensions", ())
    }


def watched(deployed: Stack) -> set[tuple[str, str]]:
    """Return what all alarms together watch."""
    return set().union(*map(metrics_of, alarms(deployed).values()))


def services(deployed: Stack) -> dict[str, str]:
    """Return the name under which each function that consumes events counts, by the function."""
    return {
        name: function["Environment"]["Variables"]["POWERTOOLS_SERVICE_NAME"]
        for name, function in deployed.of_type("AWS::Lambda::Function").items()
        if "DEAD_LETTER_QUEUE_URL" in function["Environment"]["Variables"]
    }


def body(deployed: Stack) -> str:
    """Return the dashboard as it is written, with placeholders where the stack's names will be."""
    (dashboard,) = deployed.of_type("AWS::CloudWatch::Dashboard").values()
    text: str = dashboard["DashboardBody"]["Fn::Sub"]
    return text


# ── Alarms ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_alarm_tells_somebody_and_says_what_to_do(deployed: Stack) -> None:
    """Going off and coming back are told to the topic; the text names a page that is there."""
    for name, alarm in alarms(deployed).items():
        assert alarm["AlarmActions"] == alarm["OKActions"] == [{"Ref": "AlarmTopic"}], name
        assert alarm.get("ActionsEnabled", True) is True, name
        pages = PAGE.findall(alarm["AlarmDescription"])
        assert pages, f"{name} names no runbook"
        assert all((ROOT / page).exists() for page in pages), name


def test_quiet_is_good_news(deployed: Stack) -> None:
    """An alarm stays quiet while nothing happens; of the region's health, the health check decides that."""
    assert {name for name, alarm in alarms(deployed).items() if alarm["TreatMissingData"] != "notBreaching"} <= {
        "CarRideLatencyAlarm"
    }


def test_every_consumer_is_watched_for_attempts_that_do_not_end(deployed: Stack) -> None:
    """Takeovers, lost leases and quarantined keys of each consumer are told, under the names that it counts by."""
    assert {"ride-history", "dispatch", "payment"} <= set(services(deployed).values())
    for service in services(deployed).values():
        wanted = {(outcome, service) for outcome in (observation.TAKEOVER, observation.LOST_LEASE)}
        assert wanted | {(observation.QUARANTINED, service)} <= watched(deployed), service


def test_a_pipe_that_stands_still_is_noticed(deployed: Stack) -> None:
    """It takes no event while rides are booked."""
    standstill = alarms(deployed)["OutboxPipeStandstillAlarm"]
    assert {("EventCount", "OutboxPipe"), (observation.NEW, "carride-api")} == metrics_of(standstill)


def test_every_rule_of_the_bus_is_watched_for_dead_letters_that_are_lost(deployed: Stack) -> None:
    """One alarm is of all rules, also of those that are added: it asks by the bus."""
    (query,) = alarms(deployed)["CarRideBusLostAlarm"]["Metrics"]
    text = " ".join(query["Expression"]["Fn::Sub"].split())
    assert text == (
        'SELECT SUM(InvocationsFailedToBeSentToDlq) FROM SCHEMA("AWS/Events", EventBusName, RuleName) '
        "WHERE EventBusName = '${CarRideBus}'"
    )


def test_metrics_of_the_project_are_asked_for_where_they_are_written(deployed: Stack) -> None:
    """Functions and alarms agree on the namespace, which is the stack's own: stages share an account."""
    for name, function in deployed.of_type("AWS::Lambda::Function").items():
        assert function["Environment"]["Variables"]["POWERTOOLS_METRICS_NAMESPACE"] == NAMESPACE, name
    own = {
        observation.TAKEOVER,
        observation.LOST_LEASE,
        observation.QUARANTINED,
        observation.NEW,
        "Rejected",
        "Overdue",
    }
    for name, alarm in alarms(deployed).items():
        several = [each["MetricStat"]["Metric"] for each in alarm.get("Metrics", ()) if "MetricStat" in each]
        for metric in [alarm, *several]:
            if metric.get("MetricName") in own:
                assert metric["Namespace"] == NAMESPACE, name
    assert body(deployed).count('SEARCH(\'{\\"CarRide/${AWS::StackName}\\",service}') == body(deployed).count(
        "CarRide/"
    )


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
    """Every queue, every function, the pipe, the bus and the API are on it."""
    shown = {name for name in re.findall(r"\$\{(\w+)", body(deployed)) if name != "AWS"}
    for kind in ("AWS::SQS::Queue", "AWS::Lambda::Function", "AWS::Pipes::Pipe", "AWS::Events::EventBus"):
        assert set(deployed.of_type(kind)) <= shown, kind
    assert set(deployed.of_type("AWS::ApiGatewayV2::Api")) <= shown
    assert shown <= set(deployed.resources), "the dashboard shows what is not there"


def test_a_line_of_the_dashboard_is_called_what_it_shows(deployed: Stack) -> None:
    """The label of a queue or function is its logical id: a line that was copied and not renamed would mislead."""
    for line in body(deployed).splitlines():
        if match := re.search(r'"(?:QueueName|FunctionName)", "\$\{(\w+?)(?:Function)?(?:\.\w+)?\}"', line):
            assert LABEL.findall(line) == [match[1]], line


def test_every_metric_of_a_consumer_is_on_the_dashboard(deployed: Stack) -> None:
    """A search finds each outcome at every consumer that counts it, also at those that are added."""
    asked = set().union(
        *(set(re.findall(r"\w+", names)) for names in re.findall(r"MetricName=\(([^)]*)\)", body(deployed)))
    )
    assert outcomes() | {"Published", "Rejected", "Overdue", "Reconciled", "CarNotHeld", "CarRowSkipped"} <= asked


def test_saved_queries_ask_for_what_is_logged(deployed: Stack) -> None:
    """Each is of log groups that are there and of fields that a delivery's line has."""
    queries = deployed.of_type("AWS::Logs::QueryDefinition")
    groups = deployed.of_type("AWS::Logs::LogGroup")
    fields = {
        "consumer",
        "outcome",
        "idempotencyid",
        "correlationid",
        "attempt",
        "reason",
        "key",
        "delivery",
        "message",
    }
    for name, query in queries.items():
        assert {group["Ref"] for group in query["LogGroupNames"]} <= set(groups), name
        text = re.sub(r'"[^"]*"', "", query["QueryString"])
        words = set(re.findall(r"(?<![\w@.])[a-z]+(?![\w(])", text))
        keywords = {"fields", "filter", "sort", "desc", "stats", "by", "as", "and", "in", "limit"}
        assert words <= fields | keywords | {"deliveries", "since", "megabytes", "detail"}, (name, words)


def test_queries_about_deliveries_are_of_every_consumer(deployed: Stack) -> None:
    """Nobody misses a consumer because a query leaves it out."""
    consumers = {
        function["LoggingConfig"]["LogGroup"]["Ref"]
        for name, function in deployed.of_type("AWS::Lambda::Function").items()
        if name in services(deployed)
    }
    for name, query in deployed.of_type("AWS::Logs::QueryDefinition").items():
        if '"delivery"' in query["QueryString"]:
            assert {group["Ref"] for group in query["LogGroupNames"]} == consumers, name


# ── Documents ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def outcomes() -> set[str]:
    """Return every outcome that a consumer counts; none of these consumers runs what has no key."""
    return set(observation.PROTECTED)


def table(heading: str, after: str = "\n") -> list[str]:
    """Return the names in the first column of the first table under a heading, behind a text there."""
    text = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0].split(after, 1)[-1]
    lines = section[section.index("| ---") :].split("\n\n")[0].splitlines()[1:]
    return [name for line in lines for name in re.findall(r"`([^`]+)`", line.split("|")[1])]


def test_every_metric_is_documented_under_its_name() -> None:
    """The names are an interface: dashboards and alarms of others rest on them."""
    assert set(table("Metrics")) == outcomes()
    assert table("Metrics", "A producer counts") == ["Published", "Rejected"]


def test_the_names_of_the_metrics_do_not_change() -> None:
    """Whoever renames an outcome breaks alarms that are not in this template."""
    assert outcomes() == {
        *("New", "Retried", "Takeover", "Duplicate", "Busy", "Failed"),
        *("LostLease", "Expired", "DeadLettered", "Quarantined"),
    }


def test_every_query_is_documented_under_its_name() -> None:
    """The page lists the saved queries as they are called in the console."""
    queries = [
        resource["Properties"]["Name"]["Fn::Sub"].removeprefix("${AWS::StackName}/")
        for resource in source()["Resources"].values()
        if resource["Type"] == "AWS::Logs::QueryDefinition"
    ]
    assert table("Logs", "Saved queries") == queries


def test_what_watching_costs_is_counted_in_the_template() -> None:
    """Whoever adds an alarm, a rule, a consumer or an outcome adds to the bill, and says so on the page."""
    deployed = stack()
    text = (ROOT / "docs" / "costs.md").read_text(encoding="utf-8")
    section = text.split("\n## Watching it\n", 1)[1].split("\n## ", 1)[0]
    rows = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in section.splitlines() if "0" in line]
    *things, total = [row for row in rows if len(row) == 4]
    for what, count, price, cost in things:
        assert Decimal(count) * Decimal(price) == Decimal(cost), what
    assert Decimal(total[-1]) == sum(Decimal(row[-1]) for row in things)

    of_alarms = [alarm.get("Metrics", [{"MetricStat": alarm}]) for alarm in alarms(deployed).values()]
    singly = sum("MetricStat" in metric for metrics in of_alarms for metric in metrics)
    assert int(things[0][1]) == singly + len(deployed.of_type("AWS::Events::Rule"))
    counting = len(services(deployed)) + len({"carride-api", "carride-api-simulate"})
    others = table("Metrics", "A producer counts") + table("Metrics", "Those who keep cars")
    assert int(things[1][1]) == counting * len(outcomes()) + len(set(others) - {"dispatch", "reconciler"})
