"""The verdict on the worst mix of faults."""

import dataclasses
from typing import Any

import pytest

from local.worst import wrong_in
from ops.audit import Report, judge
from ops.audit.evidence import CONSUMERS, Evidence
from ops.audit.problems import Broken, Problem

SOUND = judge(Evidence(CONSUMERS, payments=[]))


def reported(**changes: dict[str, Any]) -> Report:
    """Return a report with these changes to its saga or ledger."""
    return SOUND._replace(
        **{
            name: dataclasses.replace(getattr(SOUND, name), **each)
            for name, each in changes.items()
        }
    )


def account(**changes: Any) -> Report:
    """Return a report with these changes to the account of a consumer."""
    consumers = SOUND.ledger.consumers
    return reported(
        ledger={
            "consumers": {
                **consumers,
                "dispatch": dataclasses.replace(consumers["dispatch"], **changes),
            }
        }
    )


CHARGED_AGAIN = Problem(Broken.CHARGED_AGAIN, times=2)


@pytest.mark.parametrize(
    ("report", "lost", "said"),
    [
        (account(lost_events=("fact-1",)), 0, "fact-1"),
        (account(doubled_rides={"order_01": 1}), 0, "order_01"),
        (reported(ledger={"unpublished": ("fact-2",)}), 0, "fact-2"),
        (reported(saga={"problems": {"order_02": (CHARGED_AGAIN,)}}), 0, "was charged 2 times"),
        (SOUND, 3, "3 events were lost"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_any_problem_makes_it_unsound_and_is_named(report: Report, lost: int, said: str) -> None:
    """One thing is enough, and the result names it."""
    assert wrong_in(SOUND, {"events were lost": 0}) == []
    (problem,) = wrong_in(report, {"events were lost": lost})
    assert said in problem
