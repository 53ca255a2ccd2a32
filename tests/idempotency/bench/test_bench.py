"""What the benchmark promises on any machine."""

import pytest

from tests.idempotency.bench import measures
from tests.idempotency.bench.__main__ import table
from tests.idempotency.bench.measures import Row


@pytest.mark.enable_socket  # the whole processes speak to servers on this machine
@pytest.mark.parametrize("function", measures.FUNCTIONS)
def test_every_side_can_be_measured(function: str) -> None:
    """Every side takes new events and duplicates, and does something."""
    rows = measures.consumers(1, [function])
    assert all(row.here > 0 and row.powertools > 0 and row.shared for row in rows)


@pytest.mark.parametrize(("most", "most_shared"), [(0.41, 0.21), (0.39, 0.21), (0.41, 0.19), (None, None)])
def test_a_missed_target_is_marked(most: float | None, most_shared: float | None) -> None:
    """The table marks a ratio that misses its target, whichever side it is about."""
    row = Row("a", "ms", 4.0, 10.0, 20.0, most, most_shared)
    assert ("missed" in table([row])) is not row.met is (most == 0.39 or most_shared == 0.19)
