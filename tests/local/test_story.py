"""What the demo says about a report: the numbers, whatever the words."""

import re

import pytest

from local import story
from ops.audit import Report, judge
from ops.audit.evidence import DeadLettered, Delivered
from tests.local.test_commands import BALANCED, BROKEN, DOUBLED, EVIDENCE, ITEM, LOST, OVERDUE

OUTCOMES = {"Duplicate": 3, "Takeover": 2, "Retried": 1, "Failed": 4, "New": 5}
DELIVERIES = [Delivered("ride-history", outcome, "a") for outcome, number in OUTCOMES.items() for _ in range(number)]
LETTERS = [DeadLettered("RideHistoryDlq", reason, "ride-history", "event-1", "a") for reason in ("CONTRACT", "Unknown")]


def test_every_unusual_number_is_explained() -> None:
    """Each number of the ledger that faults cause is there with a reason; zeros and usual numbers are not."""
    report = judge(EVIDENCE._replace(items=[ITEM], deliveries=DELIVERIES, dead_letters=LETTERS))
    lines = story.unusual(report)
    assert sorted(line.number for line in lines) == [1, 1, 1, 2, 3, 4]
    assert all(line.why for line in lines)
    assert story.unusual(BALANCED) == []
    assert re.findall(r"\d+", story.verdict(report, {"copy": 7, "crash": 9})) == ["0", "0", "7", "2"]


@pytest.mark.parametrize(
    ("report", "last"),
    [(LOST, "event a"), (DOUBLED, "ride order_01"), (BROKEN, "ride order_01"), (OVERDUE, "ride order_01")],
)
def test_what_is_wrong_is_looked_into(report: Report, last: str) -> None:
    """There is a command for each event or ride that is wrong, and none if all is well."""
    assert f"./carride {last}" in story.commands(report)
    assert story.commands(BALANCED) == []


def test_only_what_was_injected_is_named() -> None:
    """What the simulator counted is named, and nothing that it did not."""
    assert re.findall(r"\d+", story.injected({"copy": 309, "poison": 1, "late": 0})) == ["309", "1"]
    assert story.injected({}) == ""
