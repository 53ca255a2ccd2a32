"""The promises of both benchmarks that do not depend on the machine."""

import json
from pathlib import Path
from types import ModuleType

import pytest

from tests.idempotency.bench import __main__ as command
from tests.idempotency.bench import measures, publishing
from tests.idempotency.bench.measures import Row
from tests.idempotency.bench.publishing import Measured


def test_round_trips_of_each_path_are_what_is_promised() -> None:
    """Two for a new event, one where its effects are in the commit, one for a duplicate, none for a warm one."""
    rows = {row.name.removeprefix("round trips: "): row.here for row in measures.round_trips()}
    assert rows == {"new": 2, "atomic new": 1, "duplicate": 1, "warm duplicate": 0, "busy": 1, "failure": 2}


def test_both_sides_can_be_measured() -> None:
    """Every measure in this process runs, and finds that both sides did something."""
    rows = [*measures.own_cpu(1), *measures.http_cpu(1), *measures.batches(1)]
    assert all(row.here > 0 and (row.powertools is None or row.powertools > 0) for row in rows)


def test_publishing_takes_the_fewest_requests() -> None:
    """Ten events go into a request, and what is left over into one more."""
    measured = publishing.measure(publishing.simulated(105), 1)
    assert (measured.events, measured.requests, measured.least) == (105, 11, 11)
    assert 0 < measured.outside_ms < measured.total_ms


@pytest.mark.parametrize(
    ("result", "met"),
    [
        (Row("a", "µs", 10.0, 4.0, 0.4), True),
        (Row("a", "µs", 10.0, 4.1, 0.4), False),
        (Row("a", "ms", 100.0, 25.0, 25.0, absolute=True), True),
        (Row("a", "ms", 100.0, 25.1, 25.0, absolute=True), False),
        (Row("a", "µs", None, 4.0, None), True),
        (Measured(100, 10, 10, 100.0, 15.0), True),
        (Measured(100, 10, 10, 100.0, 15.1), False),
        (Measured(100, 11, 10, 100.0, 1.0), False),
    ],
)
def test_a_missed_target_is_marked(result: Row | Measured, *, met: bool) -> None:
    """A target is a ratio or an amount, and the table marks the one that is missed."""
    text = command.table([result]) if isinstance(result, Row) else publishing.text(result)
    assert (result.met, "missed" not in text) == (met, met)


@pytest.mark.parametrize("module", [command, publishing])
def test_the_status_and_the_report_show_a_missed_target(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The report on disk holds what --json prints, and the exit status is 1 for a target that is missed."""
    monkeypatch.setattr(module, "REPORT", tmp_path / "report.json")
    monkeypatch.setattr("sys.argv", ["bench", "--json", *(["--strict"] if module is command else ["--events", "1"])])
    for name in ("round_trips", "own_cpu", "http_cpu", "start_up", "batches"):
        monkeypatch.setattr(command, name, lambda *_: [Row("a", "µs", 10.0, 5.0, 0.4)])
    monkeypatch.setattr(publishing, "measure", lambda *_: Measured(10, 1, 1, 100.0, 20.0))

    assert module.main() == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(module.REPORT.read_text(encoding="utf-8"))
    assert False in {printed.get("met"), *(row["met"] for row in printed.get("rows", ()))}
