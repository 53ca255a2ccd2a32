"""What consumers are handed."""

import pytest

import assignments
import payments
from carride.facts import Fact
from tests.template.stack import source


def types_of(rule: str) -> list[set[str]]:
    """Return the types that a rule lets through, for each envelope."""
    alternatives = source()["Resources"][rule]["Properties"]["EventPattern"]["detail"]["$or"]
    return [set(alternative.get("type") or alternative["attributes"]["type"]) for alternative in alternatives]


@pytest.mark.parametrize(
    ("rule", "consumed", "emitted"),
    [
        ("DispatchRule", assignments.CONSUMED, assignments.EMITTED),
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
