"""This layer, and AWS Lambda Powertools or durable functions beside it, in every adversity of the comparison."""

import pytest

from tests.idempotency.bench.measures import ROOT
from tests.idempotency.differential import durable
from tests.idempotency.differential.adversities import ADVERSITIES, Adversity
from tests.idempotency.differential.sides import Here, Powertools

each_adversity = pytest.mark.parametrize("adversity", ADVERSITIES, ids=lambda adversity: adversity.name)


@each_adversity
def test_this_layer_does_as_the_table_says(adversity: Adversity) -> None:
    """This layer behaves as the comparison's table says."""
    assert adversity.observe(Here) == adversity.here


@each_adversity
def test_powertools_meets_the_same_adversity(adversity: Adversity) -> None:
    """Powertools behaves differently in the same adversity."""
    assert adversity.observe(Powertools) not in {"", adversity.here}


@pytest.mark.enable_socket  # the durable functions' runner has an event loop of its own
@pytest.mark.parametrize("adversity", durable.ADVERSITIES, ids=lambda adversity: adversity.name)
def test_durable_functions_do_as_the_table_says(adversity: durable.Adversity) -> None:
    """Durable functions behave as the table says, as documented and with this layer."""
    assert adversity.observe(durable.DOCUMENTED) == adversity.documented
    assert adversity.observe(durable.WITH) == adversity.here


@pytest.mark.enable_socket  # as above
def test_an_atomic_consumer_costs_less_than_an_execution() -> None:
    """The costs of a million events are those of what was seen to happen."""
    assert durable.dollars(durable.ALONE) < durable.dollars(durable.DOCUMENTED) < durable.dollars(durable.WITH)


@pytest.mark.parametrize("adversity", durable.ADVERSITIES, ids=lambda adversity: adversity.name)
def test_the_page_shows_what_was_seen(adversity: durable.Adversity) -> None:
    """The table of docs/durable-functions.md is that of `make compare`."""
    row = f"| {adversity.name} | {adversity.documented} | {adversity.here} |"
    assert row in (ROOT / "docs/durable-functions.md").read_text(encoding="utf-8").splitlines()
