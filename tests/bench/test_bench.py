"""What the benchmark promises on any machine."""

import re

import pytest

from tests.bench import imports, loops, measures
from tests.bench.__main__ import table
from tests.bench.measures import Row

pytestmark = pytest.mark.proof


@pytest.mark.thorough
@pytest.mark.enable_socket  # the whole processes speak to servers on this machine
def test_every_side_can_be_measured() -> None:
    """Every side takes new events and duplicates, and does something; here without botocore."""
    rows = measures.consumers(0, ["dispatch", "carride_api"])
    assert all(row.here > 0 and row.powertools > 0 and row.shared and row.bare for row in rows)


def test_operations_in_a_loop_are_measured() -> None:
    """The lines have the times of operations, and what a slow store and a burst hold up."""
    times, slow, burst = loops.lines(1)
    assert re.search(r"plain \d+\.\d+ ms, async \d+\.\d+ ms, async and 100 at once \d", times)
    assert re.search(r"stands still for at most \d+\.\d ms", slow)
    assert re.search(r"renewed in \d+ ms, and committed in \d+ ms", burst)


def test_imports_are_measured() -> None:
    """The line has the time of each import that the decision on Powertools weighs."""
    found = re.findall(r"([A-Za-z ]+) (\d+) ms", imports.line(1))
    assert len(found) == len(imports.PARTS)
    assert all(int(time) > 0 for _, time in found)


@pytest.mark.parametrize(
    ("most", "most_shared", "met"),
    [(0.41, 0.21, True), (0.39, 0.21, False), (0.41, 0.19, False), (None, None, True)],
)
def test_a_missed_target_is_marked(
    most: float | None, most_shared: float | None, *, met: bool
) -> None:
    """The table marks a ratio that misses its target, whichever side it is about."""
    row = Row("a", "ms", 4.0, 10.0, 20.0, most, most_shared)
    assert row.met is met
    assert ("missed" in table([row])) is not met
