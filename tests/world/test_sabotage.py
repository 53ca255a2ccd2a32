"""The audit names what a saboteur planted, and raises no alarm about an honest story."""

import json

import pytest

from tests.world import __main__ as command
from tests.world.sabotage.kinds import AT_REST, IN_FLIGHT, KINDS
from tests.world.sabotage.telling import NAMES, kind_of, sabotage
from tests.world.story import Tier

pytestmark = pytest.mark.proof

MOST_SEEDS = 12
"""In which a kind has to find its place."""
ONE_IN = 3
"""Of how many kinds `make test` plants one; the others are planted with the long tests."""


def test_there_are_kinds_enough() -> None:
    """Things go wrong while rides are lived, and afterwards."""
    whens = [each.when for each in KINDS.values()]
    assert len(whens) >= 25
    assert min(whens.count(AT_REST), whens.count(IN_FLIGHT)) >= 9


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(name, marks=[pytest.mark.thorough] if number % ONE_IN else [])
        for number, name in enumerate(NAMES)
    ],
)
def test_the_audit_names_what_was_planted(kind: str) -> None:
    """One wrong thing, in the first story that has a place for it, and nothing before."""
    tier = Tier.CALM if KINDS[kind].when == AT_REST else None
    for seed in range(MOST_SEEDS):
        found = sabotage(seed, kind, tier, rides=2)
        assert found.is_right, (found.expected, found.said)
        if found.expected is not None:
            return
    pytest.fail(f"no story of {MOST_SEEDS} has a place for {kind}")


def test_each_kind_has_its_turn() -> None:
    """As many seeds as kinds plant all of them."""
    assert {kind_of(seed) for seed in range(len(NAMES))} == set(NAMES)


def test_the_command_prints_a_table_for_machines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside it, it says how to see a story again."""
    assert _commanded(monkeypatch, "a second charge", "--seed", "1", "--json", "--explain") == 0
    shown = capsys.readouterr()
    table = json.loads(shown.out)
    assert (table["stories"], table["planted"], table["named"], table["falseAlarms"]) == (
        1,
        1,
        1,
        0,
    )
    assert table["kinds"]["a second charge"] == {"when": AT_REST, "planted": 1, "named": 1}
    assert "to be named: " in shown.err
    assert "PLANTED" in shown.err
    assert """make simulate ARGS="--sabotage 'a second charge' --seed 1 --explain\"""" in shown.err


def test_stories_are_lived_until_a_kind_was_planted_so_often(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some have no place for it. They count as honest, and others follow."""
    kind = "a payment that the gateway lost"
    assert _commanded(monkeypatch, kind, "--each", "2", "--first", "3", "--json") == 0
    table = json.loads(capsys.readouterr().out)
    assert table["kinds"][kind] == {"when": AT_REST, "planted": 2, "named": 2}
    assert table["stories"] == table["honest"] + 2 > 2


def test_a_kind_that_does_not_exist_is_refused_with_the_list(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A misspelt name is the user's mistake."""
    assert _commanded(monkeypatch, "a third charge") == 2
    assert "a second charge" in capsys.readouterr().err


def _commanded(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the command in this process, whose environment is there already."""
    monkeypatch.setattr(command, "prepare", lambda: None)
    return command.main(["--sabotage", *arguments])
