"""Every failure ends where it belongs, with the reason, and nothing is lost on the way."""

import re

import pytest

from local.local_aws import LocalAws
from ops.policies import POLICIES
from tests.pipeline.pipeline import HISTORY, Pipeline

pytestmark = pytest.mark.integration

BROKEN = ["data.passengers", "idempotencyid", "idempotencyid", "type"]


def test_events_that_break_the_contract_are_dead_lettered_with_the_reason(
    pipeline: Pipeline,
) -> None:
    """What the bus refuses stays with the producer, what it accepts goes to the consumer's queue.

    None is retried.
    """
    ledger = pipeline.simulate(rides=1, seed=1, malformed=6)
    assert ledger.dead_lettered == {
        "ProducerDlq": {"EntryTooLarge": 1, "MalformedDetail": 1},
        "RideHistoryDlq": {"CONTRACT": 4},
    }
    assert ledger.balanced
    assert ledger.consumers[HISTORY].failed == 0
    reasons = [
        letter["message"].split(": ")[:2] for letter in pipeline.dead_letters("RideHistoryDlq")
    ]
    assert sorted(reasons) == [["ContractError", field] for field in BROKEN]


def test_expired_and_poison_events_harm_nobody_else(pipeline: Pipeline) -> None:
    """Nobody wants an expired one any more: it is dropped and counted.

    One that no attempt survives is quarantined.

    Every other event takes effect.
    """
    ledger = pipeline.simulate(rides=4, seed=3, poison=1, late=3)
    history = ledger.consumers[HISTORY]
    assert (history.expired, history.effects) == (3, history.distinct - 4)
    assert ledger.dead_lettered["RideHistoryDlq"] == {"QUARANTINED": 1}
    assert ledger.balanced
    (letter,) = pipeline.dead_letters("RideHistoryDlq")
    assert letter["attempt"] == POLICIES[HISTORY].max_attempts


def test_what_is_deployed_injects_no_faults(cloud: LocalAws) -> None:
    """No built module or template has code or a setting for faults.

    Only the simulator's events name them.
    """
    with cloud.built() as build:
        texts = {
            path: path.read_text(encoding="utf-8")
            for path in [*build.rglob("*.py"), build / "template.yaml"]
        }
    marks = r"inject_fault|SimulatedFault|simulatedfault|FAULTS:"
    assert {path.name for path, text in texts.items() if re.search(marks, text)} == {
        "simulated_faults.py"
    }
