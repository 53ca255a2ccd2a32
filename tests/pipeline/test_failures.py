"""Every failure ends where it belongs, with the reason, and nothing is lost on the way."""

import re

from local.demo import stack_ref
from local.local_aws import LocalAws
from ops import redrive
from tests.pipeline.pipeline import HISTORY, Pipeline

BROKEN = ["data.passengers", "idempotencyid", "idempotencyid", "type"]


def test_events_that_break_the_contract_are_dead_lettered_with_the_reason(pipeline: Pipeline) -> None:
    """What the bus refuses stays with the producer, what it accepts goes to the consumer's queue; none is retried."""
    ledger = pipeline.simulate(rides=1, seed=1, malformed=6)
    assert ledger.dead_lettered == {
        "ProducerDlq": {"EntryTooLarge": 1, "MalformedDetail": 1},
        "RideHistoryDlq": {"CONTRACT": 4},
    }
    assert ledger.balanced
    assert ledger.consumers[HISTORY].failed == 0
    reasons = [letter["message"].split(": ")[:2] for letter in pipeline.dead_letters("RideHistoryDlq")]
    assert sorted(reasons) == [["ContractError", field] for field in BROKEN]


def test_an_expired_event_is_dropped_and_counted(pipeline: Pipeline) -> None:
    """Nobody wants it any more: it has no effect and is no dead letter."""
    ledger = pipeline.simulate(rides=2, seed=2, late=3)
    history = ledger.consumers[HISTORY]
    assert history.expired == 3
    assert history.effects == history.distinct - 3
    assert ledger.dead_lettered == {}
    assert ledger.balanced


def test_poison_is_quarantined_and_harms_nobody_else(pipeline: Pipeline) -> None:
    """An event that no attempt survives ends in the consumer's queue; every other event takes effect."""
    ledger = pipeline.simulate(rides=4, seed=3, poison=1)
    history = ledger.consumers[HISTORY]
    assert ledger.dead_lettered["RideHistoryDlq"] == {"QUARANTINED": 1}
    assert history.effects == history.distinct - 1
    assert ledger.balanced
    (letter,) = pipeline.dead_letters("RideHistoryDlq")
    assert letter["attempt"] == 3


def test_an_event_that_cannot_be_handed_over_lies_in_the_rules_queue(pipeline: Pipeline) -> None:
    """Without the permission to invoke the consumer, the rule keeps it; redriven, it reaches that consumer only."""
    functions = pipeline.cloud.client("lambda")
    function = pipeline.stack.resources["RideHistoryFunction"]
    functions.remove_permission(
        FunctionName=function, StatementId=pipeline.stack.resources["RideHistoryRulePermission"]
    )
    before = pipeline.simulate(rides=2, seed=4)
    assert before.dead_lettered["RideHistoryRuleDlq"] == {"NO_PERMISSIONS": before.published}
    assert before.consumers[HISTORY].effects == 0
    assert before.balanced

    site = stack_ref(pipeline.cloud, pipeline.stack)
    rule = pipeline.cloud.client("events").describe_rule(
        Name=site.named("AWS::Events::Rule")["RideHistoryRule"], EventBusName=pipeline.stack.outputs["CarRideBusName"]
    )
    functions.add_permission(
        FunctionName=function,
        StatementId="again",
        Action="lambda:InvokeFunction",
        Principal="events.amazonaws.com",
        SourceArn=rule["Arn"],
    )
    assert redrive.Job(site, redrive.plan(site, "RideHistoryRuleDlq")).run().sent == before.published
    after = pipeline.ledger()
    assert after.dead_lettered == {}
    assert after.consumers[HISTORY].effects == before.distinct
    assert after.published == before.published, "the bus has had no event again"
    assert after.balanced


def test_an_event_whose_consumer_cannot_start_lies_in_the_consumers_queue(pipeline: Pipeline) -> None:
    """A function that raises before it can tell anybody is retried by Lambda, which then keeps the event."""
    pipeline.break_history()
    (event_id,) = pipeline.put({"specversion": "1.0"})
    ledger = pipeline.ledger()
    assert ledger.dead_lettered["RideHistoryDlq"] == {"RetriesExhausted": 1}
    assert ledger.balanced
    (letter,) = pipeline.dead_letters("RideHistoryDlq")
    assert letter["requestPayload"]["id"] == event_id
    assert letter["requestContext"]["approximateInvokeCount"] == 3
    assert "RIDE_TABLE" in letter["responsePayload"]["errorMessage"]


def test_what_is_deployed_injects_no_faults(cloud: LocalAws) -> None:
    """No built module or template has code or a setting for faults; only the simulator's events name them."""
    with cloud.built() as build:
        texts = {path: path.read_text(encoding="utf-8") for path in [*build.rglob("*.py"), build / "template.yaml"]}
    marks = r"inject_fault|SimulatedFault|simulatedfault|FAULTS:"
    assert {path.name for path, text in texts.items() if re.search(marks, text)} == {"simulation.py"}
