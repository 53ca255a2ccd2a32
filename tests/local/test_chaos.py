"""The mix of a chaos run, and its verdict."""

import dataclasses
import json
from typing import Any

import pytest

from carride.simulation import Fault, Simulation
from local.chaos import Result, _poison, mix
from ops.audit import judge
from ops.audit.evidence import CONSUMERS, Evidence
from tests.functions.saga import NOW

SOUND = Result(
    seed=1,
    seconds=12.3,
    report=judge(Evidence(CONSUMERS, payments=[])),
    overdue=0,
    partner_lost=0,
    partner_doubled=0,
    gateway={"late": 2},
    poison=0,
    unexpected=(),
    not_replayed=0,
    changed_by_replay=(),
)


def account(**changes: Any) -> Any:
    """Return a report with these changes to the account of a consumer."""
    consumers = SOUND.report.ledger.consumers
    account = dataclasses.replace(consumers["dispatch"], **changes)
    return reported(ledger={"consumers": {**consumers, "dispatch": account}})


def reported(**changes: dict[str, Any]) -> Any:
    """Return a report with these changes to its saga or ledger."""
    return SOUND.report._replace(
        **{name: dataclasses.replace(getattr(SOUND.report, name), **each) for name, each in changes.items()}
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


def test_poison_is_expected_in_the_queue_of_each_consumer_that_is_handed_it() -> None:
    """The ride history takes all of it; dispatch and payment only the types that they act on."""
    spec = mix(100, 1)
    expected = set(_poison(spec))
    history = {fact for consumer, fact, _ in expected if consumer == "ride-history"}
    assert len(history) == spec.poison
    for consumer in ("dispatch", "payment"):
        assert {fact for name, fact, _ in expected if name == consumer} < history


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"report": account(lost_events=("fact-1",))}, "fact-1"),
        ({"report": account(doubled_rides={"order_01": 1})}, "order_01"),
        ({"report": reported(ledger={"unpublished": ("fact-2",)})}, "fact-2"),
        ({"report": reported(saga={"problems": {"order_02": ("has 2 cars",)}})}, "has 2 cars"),
        ({"partner_lost": 1}, "lost 1"),
        ({"partner_doubled": 1}, "doubled 1"),
        ({"unexpected": ("payment: dead-lettered fact-3",)}, "fact-3"),
        ({"not_replayed": 3}, "3 events"),
        ({"changed_by_replay": ("CarTable",)}, "CarTable"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_any_problem_makes_it_unsound_and_is_named(changes: dict[str, Any], said: str) -> None:
    """One thing is enough, and the result names it."""
    assert SOUND.wrong() == []
    result = dataclasses.replace(SOUND, **changes)
    (problem,) = result.wrong()
    assert said in problem
    assert json.loads(json.dumps(result.to_json()))["wrong"] == [problem]
