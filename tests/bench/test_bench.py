"""The benchmark's own promises that do not depend on the machine."""

import json
from pathlib import Path

import pytest

from tests.bench import __main__ as command
from tests.bench import measures
from tests.bench.measures import Row


def test_round_trips_of_each_path_are_what_is_promised() -> None:
    """Two for a new event, one where its effects are in the commit, one for a duplicate, none for a warm one."""
    rows = {row.name.removeprefix("round trips: "): row for row in measures.round_trips()}

    assert {name: row.here for name, row in rows.items()} == {
        "new": 2,
        "atomic new": 1,
        "duplicate": 1,
        "warm duplicate": 0,
        "busy": 1,
        "failure": 2,
    }
    assert all(row.met for row in rows.values())


def test_both_sides_can_be_measured() -> None:
    """Every measure in this process runs, and finds that both sides did something."""
    rows = [*measures.own_cpu(1), *measures.http_cpu(1), *measures.batches(1)]

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
def test_target_is_a_ratio_or_an_amount(row: Row, *, met: bool) -> None:
    """A row says whether its target is met, and the table marks it where it is not."""
    assert row.met is met
    assert ("missed" in command.table([row])) is not met


def test_numbers_are_kept_for_machines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The report on disk holds what --json prints, and the exit status tells of a target that is missed."""
    report = tmp_path / "bench.json"
    monkeypatch.setattr(command, "REPORT", report)
    monkeypatch.setattr("sys.argv", ["bench", "--json", "--strict"])
    for name in ("round_trips", "own_cpu", "http_cpu", "start_up", "batches"):
        monkeypatch.setattr(command, name, lambda *_: [Row("a", "µs", 10.0, 5.0, 0.4)])

    assert command.main() == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(report.read_text(encoding="utf-8"))
    assert printed["rows"][0] | {"ratio": 0.5, "met": False} == printed["rows"][0]
