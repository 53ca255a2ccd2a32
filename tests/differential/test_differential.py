"""This layer, and AWS Lambda Powertools beside it, in every adversity of the comparison."""

import pytest

from tests.differential.adversities import ADVERSITIES, Adversity
from tests.differential.sides import Here, Powertools
from tests.differential.world import world

# One adversity listens on a loopback socket, which never answers.
pytestmark = pytest.mark.enable_socket

each_adversity = pytest.mark.parametrize("adversity", ADVERSITIES, ids=lambda adversity: adversity.name)


@each_adversity
def test_this_layer_does_as_the_table_says(adversity: Adversity) -> None:
    """What this layer is seen to do is what the comparison claims for it."""
    with world() as new:
        assert adversity.observe(new, Here()) == adversity.here


@each_adversity
def test_powertools_meets_the_same_adversity(adversity: Adversity) -> None:
    """Powertools goes through the whole adversity and is observed; what it does is reported, not judged."""
    with world() as new:
        assert adversity.observe(new, Powertools())


def test_adversities_tell_the_sides_apart() -> None:
    """No two adversities have one name, by which the table's readers and ``--only`` find them."""
    names = [adversity.name for adversity in ADVERSITIES]

    assert len(names) == len(set(names))
