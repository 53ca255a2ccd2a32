"""What the benchmark promises on any machine."""

import pytest

from tests.idempotency.bench import measures
from tests.idempotency.bench.__main__ import table
from tests.idempotency.bench.measures import Row


def test_both_sides_can_be_measured() -> None:
    """Each path costs as many round trips as promised, and every other measure finds that both sides did something."""
    trips = measures.round_trips(1)
    assert [row.here for row in trips] == [row.most for row in trips]
    rows = [*measures.own_cpu(1), *measures.start_up(1)]
    assert all(row.here > 0 and (row.powertools is None or row.powertools > 0) for row in rows)


@pytest.mark.parametrize(
    ("row", "met"),
    [
        (Row("a", "µs", 10.0, 4.0, 0.4), True),
        (Row("a", "µs", 10.0, 4.1, 0.4), False),
        (Row("a", "", 100.0, 2.0, 2.0, absolute=True), True),
        (Row("a", "", 100.0, 3.0, 2.0, absolute=True), False),
        (Row("a", "µs", None, 4.0, None), True),
    ],
)
def test_a_missed_target_is_marked(row: Row, *, met: bool) -> None:
    """The table marks a ratio or an amount that misses its target."""
    assert ("missed" not in table([row])) is row.met is met
