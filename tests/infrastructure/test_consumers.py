"""What consumers are handed, and that each of their queues is seen."""

import json
import re
from typing import Any

import pytest

import fleet
import payments
from carride.events import Fact
from tests.infrastructure.stack import source


def types_of(rule: str) -> list[set[str]]:
    """Return the types that a rule lets through, for each envelope."""
    alternatives = source()["Resources"][rule]["Properties"]["EventPattern"]["detail"]["$or"]
    return [set(alternative.get("type") or alternative["attributes"]["type"]) for alternative in alternatives]


@pytest.mark.parametrize(
    ("rule", "consumed", "emitted"),
    [
        ("DispatchRule", fleet.CONSUMED, fleet.EMITTED),
        ("PaymentRule", payments.CONSUMED, payments.EMITTED),
    ],
)
def test_a_rule_hands_over_what_its_consumer_acts_on(
    rule: str, consumed: frozenset[type[Fact]], emitted: frozenset[type[Fact]]
) -> None:
    """In both envelopes the same types, and none that the consumer emits: it would feed itself for ever."""
    names = {fact.__name__ for fact in consumed}
    assert types_of(rule) == [names, names]
    assert names.isdisjoint(fact.__name__ for fact in emitted)


def dashboard(template: dict[str, Any]) -> str:
    """Return the dashboard, which has to be JSON once names have been filled in."""
    body = str(template["Resources"]["CarRideDashboard"]["Properties"]["DashboardBody"]["Fn::Sub"])
    json.loads(body)
    return body


def test_every_queue_is_on_the_dashboard() -> None:
    """A dead-letter queue shows how much lies in it, a working queue how long it waits."""
    template = source()
    body = dashboard(template)
    for name, resource in template["Resources"].items():
        if resource["Type"] == "AWS::SQS::Queue":
            metric = "ApproximateAgeOfOldestMessage" if "RedrivePolicy" in resource["Properties"] else "MessagesVisible"
            assert re.search(rf'{metric}", "QueueName", "\$\{{{name}\.QueueName\}}"', body), name
