"""What the benchmark promises on any machine."""

import pytest

from tests.idempotency.bench import measures
from tests.idempotency.bench.__main__ import table
from tests.idempotency.bench.measures import Row


def test_both_sides_can_be_measured() -> None:
    """Every measure finds that both sides did something."""
    rows = [*measures.whole(1), *measures.own_cpu(1), *measures.start_up(1)]
    assert all(row.here > 0 and row.powertools > 0 for row in rows)


@pytest.mark.parametrize(("most", "met"), [(0.41, True), (0.39, False), (None, True)])
def test_a_missed_target_is_marked(most: float | None, *, met: bool) -> None:
    """The table marks a ratio that misses its target."""
    row = Row("a", "µs", 10.0, 4.0, most)
    assert ("missed" not in table([row])) is row.met is met
