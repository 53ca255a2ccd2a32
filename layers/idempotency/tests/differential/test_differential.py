"""This layer beside Powertools or a lock in Redis, in every adversity of the comparison."""

from collections.abc import Callable

import pytest

from tests.differential import locks
from tests.differential.adversities import ADVERSITIES, Adversity, first, got
from tests.differential.sides import Here, Powertools, Work, get_then_put
from tests.differential.world import World, inside

pytestmark = pytest.mark.proof

each_adversity = pytest.mark.parametrize(
    "adversity", ADVERSITIES, ids=lambda adversity: adversity.name
)


@each_adversity
def test_this_layer_does_as_the_table_says(adversity: Adversity) -> None:
    """This layer behaves as the comparison's table says."""
    assert adversity.observe(Here) == adversity.here


@each_adversity
def test_powertools_meets_the_same_adversity(adversity: Adversity) -> None:
    """Powertools behaves differently in the same adversity."""
    assert adversity.observe(Powertools) not in {"", adversity.here}


@pytest.mark.parametrize(
    ("make", "times"),
    [
        (get_then_put, "charged twice"),
        (lambda place, *function: Powertools(place).function(*function), "charged once"),
        (lambda place, *function: Here(place).function(*function), "charged once"),
    ],
    ids=["get then put", "Powertools", "here"],
)
def test_two_calls_at_once(make: Callable[..., Work], times: str) -> None:
    """A conditional write lets one of two calls through.

    Reading the key before writing it lets both.
    """
    with inside(World()) as place:
        work = first(lambda: got(lambda: make(place, "charge", work)("order_01")))
        make(place, "charge", work)("order_01")
        assert work.times == times
        make(place, "charge", work)("order_01")
        assert work.times == times


@pytest.mark.parametrize("adversity", locks.ADVERSITIES, ids=lambda adversity: adversity.name)
def test_a_released_lock_forgets_what_this_layer_remembers(adversity: locks.Adversity) -> None:
    """Both sides behave as the table says."""
    assert adversity.observe(locks.LOCK) == adversity.lock
    assert adversity.observe(locks.HERE) == adversity.here
