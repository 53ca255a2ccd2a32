"""A redrive sends mended events to the one consumer that lacks them, and keeps the rest."""

import json
from dataclasses import replace
from typing import Any

import pytest

from carride_idempotency.operators.redriving import HELD_BACK
from carride_idempotency.operators.site import Trial
from ops import redrive
from tests.kit.rides import Life
from tests.kit.rides import event as event_of
from tests.pipeline.pipeline import HISTORY, Pipeline

pytestmark = pytest.mark.integration

DLQ = "RideHistoryDlq"
RULE_DLQ = "RideHistoryRuleDlq"


@pytest.mark.parametrize(
    ("rides", "letters"), [(8, 40), pytest.param(42, 200, marks=pytest.mark.thorough)]
)
def test_mended_letters_take_effect_once(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str], rides: int, letters: int
) -> None:
    """Before the mend only the first of each kind is sent.

    Then all of them take effect, once and nowhere else.
    """
    stack = pipeline.stack
    cloud = pipeline.cloud

    def carride(*arguments: str) -> Any:
        capsys.readouterr()
        assert pipeline.carride(*arguments, "--json") == 0
        return json.loads(capsys.readouterr().out)

    function = pipeline.break_history()
    pipeline.put(event_of(Life().created).to_detail())  # the function cannot start
    pipeline.settle()
    said: list[str] = []
    site = redrive.StackSite(stack, DLQ)
    assert not redrive.carried_out(site, redrive.plan_of(site), report=said.append).succeeded
    assert "it is back: RetriesExhausted" in said[-1], "no record tells"
    store = f"dynamodb:{stack.outputs['RideHistoryTableName']}"
    pipeline.break_history(IDEMPOTENCY_STORE=store, FAILING=HISTORY)
    pipeline.put(
        *(event_of(Life(f"order_{number}").created).to_detail() for number in range(10))
    )  # every attempt fails
    pipeline.settle()
    cloud.client("lambda").remove_permission(
        FunctionName=function,
        StatementId=pipeline.stack.resources["RideHistoryRulePermission"],
        Qualifier="live",
    )
    before = pipeline.simulate(rides=rides, seed=3)
    kinds = {queue: sum(before.dead_lettered[queue].values()) for queue in (DLQ, RULE_DLQ)}
    assert set(before.dead_lettered[DLQ]) == {"QUARANTINED", "RetriesExhausted"}
    assert sum(kinds.values()) == before.published > letters
    assert before.consumers[HISTORY].effects == 0

    for queue, count in kinds.items():
        site = redrive.StackSite(stack, queue)
        done = redrive.carried_out(site, redrive.plan_of(site, release=True))
        assert done.stayed[HELD_BACK] == count - len(done.tried)
        assert Trial.SUCCEEDED not in done.first.values()
    pipeline.settle()
    pipeline.break_history(IDEMPOTENCY_STORE=store)
    found = carride("letters")
    assert sum(failure["count"] for failure in found["failures"]) == before.published, (
        "the first letters are back"
    )
    for queue in kinds:
        site = redrive.StackSite(stack, queue)
        assert redrive.carried_out(site, redrive.plan_of(site, release=True)).succeeded
    after = pipeline.ledger()
    history = after.consumers[HISTORY]
    others = set(after.consumers) - {HISTORY}
    assert (history.effects, history.duplicates_absorbed) == (before.distinct, 0)
    assert all(after.consumers[each] == before.consumers[each] for each in others), (
        "nobody else received an event"
    )
    assert (after.published, after.dead_lettered, after.balanced) == (before.published, {}, True)

    assert [carride("redrive", queue, "--release", "--yes")["sent"] for queue in kinds] == [0, 0]
    assert replace(pipeline.ledger(), span=after.span) == after
