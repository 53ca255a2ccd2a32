"""This layer, and AWS Lambda Powertools beside it, in every adversity of the comparison."""

import pytest

from tests.idempotency.differential.adversities import ADVERSITIES, Adversity
from tests.idempotency.differential.sides import Here, Powertools

each_adversity = pytest.mark.parametrize("adversity", ADVERSITIES, ids=lambda adversity: adversity.name)


@each_adversity
def test_this_layer_does_as_the_table_says(adversity: Adversity) -> None:
    """What this layer is seen to do is what the comparison claims for it."""
    assert adversity.observe(Here) == adversity.here


@each_adversity
def test_powertools_meets_the_same_adversity(adversity: Adversity) -> None:
    """Powertools goes through the whole adversity, and ends in another way."""
    assert adversity.observe(Powertools) not in {"", adversity.here}
