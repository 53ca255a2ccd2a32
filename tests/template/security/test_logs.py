"""No personal data in logs: who rides, and from where to where, is in tables and events, and nowhere else."""

import re
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.pipeline.saga.town import Town
from tests.template.security.run import FUNCTIONS
from tests.template.stack import source

PERSONAL: Final = re.compile(r"customer_(?!id\b)\w+|sector_\d+|\b\d{13,16}\b")
"""Customers and places as every sample and simulation calls them, and what is as long as the number of a card."""


def lines(town: Town, group: str) -> Iterator[str]:
    """Yield the lines of a log group."""
    pages = town.cloud.client("logs").get_paginator("filter_log_events").paginate(logGroupName=group)
    for page in pages:
        yield from (event["message"] for event in page["events"])


@pytest.mark.parametrize("function", FUNCTIONS.values())
def test_functions_log_no_personal_data(town: Town, function: str) -> None:
    """Neither deliveries nor failures, stack traces and dead letters tell who rode, or from where to where."""
    group = town.stack.resources[function.removesuffix("Function") + "LogGroup"]
    written = list(lines(town, group))
    assert written
    assert [line for line in written if PERSONAL.search(_without_times(line))] == []


def _without_times(line: str) -> str:
    """Return a line without the milliseconds of metrics, which are as long as the number of a card."""
    return re.sub(r'"Timestamp":\d{13}', "", line)


def test_the_log_of_all_events_is_the_only_one_with_rides(town: Town) -> None:
    """It holds events whole, on purpose: it is the audit's evidence. So the pattern does find what it is to find."""
    pages = town.cloud.client("logs").get_paginator("describe_log_groups").paginate()
    names = [group["logGroupName"] for page in pages for group in page["logGroups"]]
    groups = [name for name in names if re.search(rf"\b{town.stack.name}\b", name)]
    assert len(groups) == sum(each["Type"] == "AWS::Logs::LogGroup" for each in source()["Resources"].values())
    found = [name for name in groups if any(PERSONAL.search(_without_times(line)) for line in lines(town, name))]
    assert found == [town.stack.outputs["CarRideEventsLogGroupName"]]


def test_the_access_log_names_no_personal_data() -> None:
    """It has the route as it is written, never path, query or body; and who called, without which it is of no use."""
    api: dict[str, Any] = source()["Resources"]["CarRideApi"]["Properties"]
    form: str = api["AccessLogSettings"]["Format"]
    assert set(re.findall(r"\$([\w.]+)", form)) == {
        "context.requestId",
        "context.requestTime",
        "context.routeKey",
        "context.status",
        "context.responseLatency",
        "context.identity.sourceIp",
        "context.identity.caller",
        "context.authorizer.claims.sub",
        "context.error.message",
        "context.integrationErrorMessage",
    }
