"""This layer, and AWS Lambda Powertools beside it, in every adversity of the comparison."""

import pytest

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
