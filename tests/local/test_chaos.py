"""The mix of a chaos run, and its verdict."""

import dataclasses
from typing import Any

import pytest

from carride.simulation import Fault, Simulation
from local.chaos import mix, wrong_in
from ops.audit import Report, judge
from ops.audit.evidence import CONSUMERS, Evidence
from tests.carride.rides import NOW

SOUND = judge(Evidence(CONSUMERS, payments=[]))


def reported(**changes: dict[str, Any]) -> Report:
    """Return a report with these changes to its saga or ledger."""
    return SOUND._replace(**{name: dataclasses.replace(getattr(SOUND, name), **each) for name, each in changes.items()})


def account(**changes: Any) -> Report:
    """Return a report with these changes to the account of a consumer."""
    consumers = SOUND.ledger.consumers
    return reported(
        ledger={"consumers": {**consumers, "dispatch": dataclasses.replace(consumers["dispatch"], **changes)}}
    )


def test_the_mix_is_the_one_that_was_asked_for() -> None:
    """Of the facts of all rides, each share is the mix's; the same seed gives the same."""
    entries = list(Simulation(mix(100, 1), NOW).entries())
    facts = {entry.fact: entry.fault for entry in entries}
    faults = list(facts.values())
    assert len(entries) == round(1.5 * len(facts))
    assert faults.count(Fault.CRASH) == round(0.05 * len(facts))
    assert faults.count(Fault.POISON) == round(0.02 * len(facts))
    assert mix(100, 1) == mix(100, 1) != mix(100, 2)


@pytest.mark.parametrize(
    ("report", "lost", "said"),
    [
        (account(lost_events=("fact-1",)), 0, "fact-1"),
        (account(doubled_rides={"order_01": 1}), 0, "order_01"),
        (reported(ledger={"unpublished": ("fact-2",)}), 0, "fact-2"),
        (reported(saga={"problems": {"order_02": ("has 2 cars",)}}), 0, "has 2 cars"),
        (SOUND, 3, "3 events were lost"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_any_problem_makes_it_unsound_and_is_named(report: Report, lost: int, said: str) -> None:
    """One thing is enough, and the result names it."""
    assert wrong_in(SOUND, {"events were lost": 0}) == []
    (problem,) = wrong_in(report, {"events were lost": lost})
    assert said in problem
