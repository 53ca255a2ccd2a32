"""The mix of a chaos run, and its verdict."""

import dataclasses
import json
from typing import Any

import pytest

from carride.simulation import Fault, Simulation
from local.chaos import Mix, Result, _poison
from ops.audit.evidence import CONSUMERS, Evidence
from ops.audit.ledger import balance
from ops.audit.saga import check
from tests.functions.saga import NOW

SOUND = Result(
    seed=1,
    seconds=12.3,
    ledger=balance(Evidence([each for each in CONSUMERS if each.name == "dispatch"])),
    saga=check(Evidence(CONSUMERS, payments=[])),
    overdue=0,
    partner_lost=0,
    partner_doubled=0,
    gateway={"late": 2},
    poison=0,
    unexpected=(),
    not_replayed=0,
    changed_by_replay=(),
)


def ledger(**changes: Any) -> Any:
    """Return a ledger with these changes to the account of its consumer."""
    account = dataclasses.replace(SOUND.ledger.consumers["dispatch"], **changes)
    return dataclasses.replace(SOUND.ledger, consumers={"dispatch": account})


def test_the_mix_is_the_one_that_was_asked_for() -> None:
    """Of the facts of all rides, each share is the mix's; the same seed gives the same."""
    mix = Mix(rides=100)
    entries = list(Simulation(mix.spec(1), NOW).entries())
    facts = {entry.fact: entry.fault for entry in entries}
    faults = list(facts.values())
    assert len(entries) == round(1.5 * len(facts))
    assert faults.count(Fault.CRASH) == round(0.05 * len(facts))
    assert faults.count(Fault.POISON) == round(0.02 * len(facts))
    assert mix.spec(1) == mix.spec(1) != mix.spec(2)


def test_poison_is_expected_in_the_queue_of_each_consumer_that_is_handed_it() -> None:
    """The ride history takes all of it; dispatch and payment only the types that they act on."""
    spec = Mix(rides=100).spec(1)
    expected = set(_poison(spec))
    history = {fact for consumer, fact, _ in expected if consumer == "ride-history"}
    assert len(history) == spec.poison
    for consumer in ("dispatch", "payment"):
        assert {fact for name, fact, _ in expected if name == consumer} < history


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ledger": ledger(lost_events=("fact-1",))}, "fact-1"),
        ({"ledger": ledger(doubled_rides={"order_01": 1})}, "order_01"),
        ({"ledger": dataclasses.replace(SOUND.ledger, unpublished=("fact-2",))}, "fact-2"),
        ({"saga": dataclasses.replace(SOUND.saga, problems={"order_02": ("has 2 cars",)})}, "has 2 cars"),
        ({"partner_lost": 1}, "the partner: lost 1"),
        ({"partner_doubled": 1}, "doubled 1"),
        ({"unexpected": ("payment: dead-lettered fact-3",)}, "fact-3"),
        ({"not_replayed": 3}, "3 events"),
        ({"changed_by_replay": ("CarTable",)}, "CarTable"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_any_problem_makes_it_unsound_and_is_named(changes: dict[str, Any], said: str) -> None:
    """One thing is enough, and the result names it."""
    assert SOUND.sound
    result = dataclasses.replace(SOUND, **changes)
    assert not result.sound
    (problem,) = result.wrong()
    assert said in problem
    assert json.loads(json.dumps(result.to_json()))["sound"] is False
