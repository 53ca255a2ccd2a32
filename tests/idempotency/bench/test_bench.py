"""What the benchmark promises on any machine."""

import json
from pathlib import Path

import pytest

from tests.idempotency.bench import __main__ as command
from tests.idempotency.bench import measures
from tests.idempotency.bench.measures import Row


def test_both_sides_can_be_measured() -> None:
    """Each path costs as many round trips as promised, and every other measure finds that both sides did something."""
    trips = measures.round_trips()
    assert [row.here for row in trips] == [row.most for row in trips]
    rows = [*measures.own_cpu(1), *measures.start_up(1), *measures.batches(1)]
    assert all(row.here > 0 and (row.powertools is None or row.powertools > 0) for row in rows)


@pytest.mark.parametrize(
    ("row", "met"),
    [
        (Row("a", "µs", 10.0, 4.0, 0.4), True),
        (Row("a", "µs", 10.0, 4.1, 0.4), False),
        (Row("a", "ms", 100.0, 25.0, 25.0, absolute=True), True),
        (Row("a", "ms", 100.0, 25.1, 25.0, absolute=True), False),
        (Row("a", "µs", None, 4.0, None), True),
    ],
)
def test_a_missed_target_is_shown(
    row: Row, *, met: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The table, the report on disk and the exit status of --strict show a target that was missed."""
    monkeypatch.setattr(command, "REPORT", tmp_path / "report.json")
    monkeypatch.setattr("sys.argv", ["bench", "--strict"])
    monkeypatch.setattr(command, "round_trips", lambda: [row])
    for name in ("own_cpu", "start_up", "batches"):
        monkeypatch.setattr(command, name, lambda _: [])
    assert command.main() == (0 if met else 1)
    assert ("missed" not in capsys.readouterr().out) is met
    (reported,) = json.loads(command.REPORT.read_text())["rows"]
    assert reported["met"] is met
