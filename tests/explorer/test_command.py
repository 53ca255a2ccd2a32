"""The command line of the explorer."""

import json

import pytest

from idempotency import decision
from idempotency.decision import released
from idempotency.record import Record
from tests.explorer import world
from tests.explorer.__main__ import main
from tests.explorer.scenarios import LARGER, SCENARIOS


def test_a_complete_search_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    """A search to the end in which every promise holds exits with 0, and says what it saw."""
    assert main(["--quick", "--scenario", "deadlines", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["scenario"], found["complete"], found["story"]) == ("deadlines", True, None)
    assert found["states"] > 9_000
    assert "New" in found["outcomes"]


def test_a_capped_search_does_not_succeed(capsys: pytest.CaptureFixture[str]) -> None:
    """A search that was stopped has proved nothing, and says so."""
    assert main(["--scenario", "claims", "--max-states", "500"]) == 1
    assert "capped" in capsys.readouterr().out


def test_a_broken_promise_is_told_step_by_step(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken promise exits with 1; its story can be read from the first step, without the code."""

    def keep_attempts(seen: Record, owner: str, now_ms: int, window_s: int) -> Record:
        return released(seen, owner, now_ms, window_s)._replace(attempt=seen.attempt)

    for module in (decision, world):
        if hasattr(module, "released"):
            monkeypatch.setattr(module, "released", keep_attempts)
    assert main(["--quick", "--scenario", "quarantine"]) == 1
    story = (
        "    0.0 s  D1 is delivered to a machine",
        "    0.0 s  #1 (D1, a machine): insert [IN_PROGRESS of #1, attempt 1, lease to 6.0 s] takes place",
        "    0.0 s  #1 (D1, a machine): handler raises a permanent error",
        "    0.0 s  #1 (D1, a machine): advance [QUARANTINED of #1, attempt 1] takes place",
        "    0.0 s  operator releases the key",
        "BROKEN: a key that was given back is run again",
    )
    assert "\n".join(story) in capsys.readouterr().out


def test_the_list_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    """Every world is listed by the name by which it can be asked for."""
    assert main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert all(item.name in listed for item in SCENARIOS)
    assert [scenario.name for scenario in LARGER] == [scenario.name for scenario in SCENARIOS]


def test_a_wrong_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A name that does not exist is answered with where the names are."""
    with pytest.raises(SystemExit):
        main(["--scenario", "nowhere"])
    assert "see --list" in capsys.readouterr().err
