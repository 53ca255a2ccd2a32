"""This layer beside Powertools or durable functions, in every adversity of the comparison."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.idempotency.differential import durable, locks
from tests.idempotency.differential.adversities import ADVERSITIES, Adversity, first, got
from tests.idempotency.differential.sides import Here, Powertools, Work, get_then_put
from tests.idempotency.differential.world import World, inside

pytestmark = pytest.mark.proof

PAGE: Final = Path(__file__).parents[3] / "docs/durable-functions.md"

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


@pytest.mark.enable_socket  # the durable functions' runner has an event loop of its own
@pytest.mark.parametrize("adversity", durable.ADVERSITIES, ids=lambda adversity: adversity.name)
def test_durable_functions_do_as_the_table_says(adversity: durable.Adversity) -> None:
    """Durable functions behave as the table says, as documented and with this layer."""
    assert adversity.observe(durable.DOCUMENTED) == adversity.documented
    assert adversity.observe(durable.WITH) == adversity.here


@pytest.mark.enable_socket  # as above
def test_the_page_shows_the_same() -> None:
    """The rows and the costs in docs/durable-functions.md are those that are seen here."""
    page = PAGE.read_text(encoding="utf-8")
    assert {
        f"| {each.name} | {each.documented} | {each.here} |" for each in durable.ADVERSITIES
    } <= {*page.splitlines()}
    for side in (durable.DOCUMENTED, durable.WITH, durable.ALONE):
        assert f"${durable.dollars(side):.2f}" in page


def test_the_page_has_the_strategy_that_the_comparison_runs() -> None:
    """The retry strategy in docs/durable-functions.md is the comparison's own."""
    assert inspect.getsource(durable.wait_for_lease) in PAGE.read_text(encoding="utf-8")
