"""The promises of the publishing benchmark that do not depend on the machine."""

import json
from pathlib import Path

import pytest

from tests.bench import publishing
from tests.bench.publishing import Measured


def test_publishing_takes_the_fewest_requests() -> None:
    """Ten events go into a request, and what is left over into one more."""
    measured = publishing.measure(publishing.simulated(105), 1)

    assert (measured.events, measured.requests, measured.least) == (105, 11, 11)
    assert 0 < measured.outside_ms < measured.total_ms


@pytest.mark.parametrize(
    ("measured", "met"),
    [
        (Measured(100, 10, 10, 100.0, 15.0), True),
        (Measured(100, 10, 10, 100.0, 15.1), False),
        (Measured(100, 11, 10, 100.0, 1.0), False),
    ],
)
def test_a_missed_target_is_marked(measured: Measured, *, met: bool) -> None:
    """Both targets count, and the one that is missed is marked."""
    assert measured.met is met
    assert ("missed" in publishing.text(measured)) is not met


@pytest.mark.parametrize(("outside_ms", "status"), [(10.0, 0), (20.0, 1)])
def test_the_status_and_the_report_tell_of_the_targets(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    outside_ms: float,
    status: int,
) -> None:
    """The report on disk holds what --json prints, and the exit status is 1 for a target that is missed."""
    monkeypatch.setattr(publishing, "REPORT", tmp_path / "publishing.json")
    monkeypatch.setattr("sys.argv", ["publishing", "--json", "--events", "1"])
    monkeypatch.setattr(publishing, "measure", lambda *_: Measured(10, 1, 1, 100.0, outside_ms))

    assert publishing.main() == status
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(publishing.REPORT.read_text(encoding="utf-8"))
    assert (printed["outside"], printed["met"]) == (outside_ms / 100, status == 0)
