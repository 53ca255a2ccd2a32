"""The command line of the explorer."""

import json

import pytest

from tests.explorer.__main__ import main
from tests.explorer.mutations import MUTATIONS
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


def test_a_broken_promise_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken promise exits with 1, and its story is printed."""
    next(mutation for mutation in MUTATIONS if mutation.name == "the TTL ends inside the lease").apply(monkeypatch)
    assert main(["--quick", "--scenario", "claims"]) == 1
    assert "BROKEN: a live claim is not taken over" in capsys.readouterr().out


def test_a_rule_can_be_taken_out(capsys: pytest.CaptureFixture[str]) -> None:
    """The story of what a rule prevents can be read."""
    assert main(["--without", "quarantined key expires"]) == 0
    assert "BROKEN: a quarantined key is forgotten only when an operator says so" in capsys.readouterr().out


def test_the_list_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    """Every world and every mutation is listed by the name by which it can be asked for."""
    assert main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert all(item.name in listed for item in (*SCENARIOS, *MUTATIONS))
    assert [scenario.name for scenario in LARGER] == [scenario.name for scenario in SCENARIOS]


@pytest.mark.parametrize("wrong", [["--scenario", "nowhere"], ["--without", "nothing of the kind"]])
def test_a_wrong_name_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A name that does not exist is answered with where the names are."""
    with pytest.raises(SystemExit):
        main(wrong)
    assert "see --list" in capsys.readouterr().err
