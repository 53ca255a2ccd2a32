"""No personal data in logs: who rides, and from where to where, is only in tables and events."""

import re
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.pipeline.saga.town import Town
from tools.transformed import source, stack

pytestmark = pytest.mark.integration

PERSONAL: Final = re.compile(r"customer_(?!id\b)\w+|sector_\d+|\b\d{13,16}\b")
"""Customers and places as all samples and simulations name them, and numbers as long as a
card's."""


def lines(town: Town, group: str) -> Iterator[str]:
    """Yield a log group's lines without metrics' milliseconds, which look like a card's number."""
    for page in (
        town.cloud.client("logs").get_paginator("filter_log_events").paginate(logGroupName=group)
    ):
        yield from (re.sub(r'"Timestamp":\d{13}', "", event["message"]) for event in page["events"])


def test_the_log_of_all_events_is_the_only_one_with_rides(town: Town) -> None:
    """It has whole events, because the audit reads them.

    The logs of functions name no customer and no place.
    """
    pages = town.cloud.client("logs").get_paginator("describe_log_groups").paginate()
    names = [group["logGroupName"] for page in pages for group in page["logGroups"]]
    groups = [name for name in names if re.search(rf"\b{town.stack.name}\b", name)]
    assert len(groups) == len(stack(Stage="local").of_type("AWS::Logs::LogGroup"))
    assert all(any(lines(town, name)) for name in groups if name.startswith("/aws/lambda/"))
    found = [name for name in groups if any(PERSONAL.search(line) for line in lines(town, name))]
    assert found == [town.stack.outputs["CarRideEventsLogGroupName"]]


def test_the_access_log_names_no_personal_data() -> None:
    """It has the route as it is written, and never path, query or body."""
    api: dict[str, Any] = source()["Resources"]["CarRideApi"]["Properties"]
    logged = set(re.findall(r"\$context\.([\w.]+)", api["AccessLogSettings"]["Format"]))
    assert logged <= {
        *("requestId", "requestTime", "routeKey", "status", "responseLatency"),
        *("identity.sourceIp", "identity.caller", "authorizer.claims.sub"),
        *("error.message", "integrationErrorMessage"),
    }
