"""The explorer finds no broken promise, and its reductions are sound."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import pytest

from carride_idempotency import observation
from tests.explorer.__main__ import main
from tests.explorer.scenarios import SCENARIOS, machine
from tests.explorer.world import Scenario, State, explore

pytestmark = pytest.mark.proof

SMALL: Final[Mapping[str, Scenario]] = {
    "claims": replace(SCENARIOS["claims"], tries=1, times_ms=(0, 7_500)),
    "heartbeats": replace(SCENARIOS["heartbeats"], beats=1, times_ms=(0, 4_000, 8_000)),
    "atomic": replace(SCENARIOS["mixed"], machines=(machine(atomic=True),), times_ms=(0,)),
    "poison": replace(
        SCENARIOS["quarantine"],
        machines=(machine(max_attempts=1, timeout_ms=5_000),),
        times_ms=(0,),
    ),
    "calls": SCENARIOS["calls-without-a-probe"],
    "copies": replace(SCENARIOS["copies"], tries=1),
    "removed": replace(SCENARIOS["removed"], times_ms=(0,)),
    "redriven": replace(SCENARIOS["redriven"], times_ms=(0,)),
    "window": replace(
        SCENARIOS["window"], machines=(machine(window=100),), times_ms=(0, 101_500), leap=1
    ),
}


@pytest.mark.thorough
def test_every_promise_holds_in_every_state(subtests: pytest.Subtests) -> None:
    """No promise of the protocol is broken in any of 700,000 states."""
    states = 0
    outcomes = frozenset[str]()
    for name, scenario in SCENARIOS.items():
        with subtests.test(name):
            result = explore(scenario)
            states = states + len(result.visited)
            outcomes = outcomes | result.outcomes
            assert result.timeline is None, f"\n{result.timeline}"
            assert bool(result.overlaps) == (not scenario.skew_is_bounded), (
                "only wrong clocks end live claims"
            )
    assert states > 700_000
    assert outcomes == observation.PROTECTED - {observation.EXPIRED}, (
        "each promise had its occasion"
    )


@pytest.mark.parametrize("name", SMALL)
def test_what_is_omitted_makes_no_difference(name: str) -> None:
    """A search without the reductions reaches the same final states."""
    assert ends(SMALL[name], reduced=False) == ends(SMALL[name], reduced=True)


def ends(scenario: Scenario, *, reduced: bool) -> set[str]:
    """Return the states in which no process runs, with tokens numbered as they appear.

    A delivery just before a removal, whose first request comes after it, is like one after it. The
    reduced search has the latter only, of which the judge asks more.
    """
    return {
        _without_tokens(state)
        for state in explore(scenario, reduced=reduced).visited
        if not state.workers
    }


def _without_tokens(state: State) -> str:
    """Return a state as text, with numbers for tokens. Sandboxes are in an order without tokens."""
    same = {
        "dead_lettered": sorted(state.dead_lettered),
        "committed": sorted(state.committed),
        "under_way": sorted(map(repr, state.under_way)),
        "answered": [],
        "sandboxes": [],
    }
    text = str(state._asdict() | same)
    outside = {token: f"owner {number}" for number, token in enumerate(_tokens(text))}
    sandboxes = sorted(_renamed(str(each), outside) for each in state.sandboxes)
    whole = f"{_renamed(text, outside)} {sandboxes}"
    inside = {token: f"forgotten {number}" for number, token in enumerate(_tokens(whole))}
    return _renamed(whole, inside)


def _tokens(text: str) -> list[str]:
    return list(dict.fromkeys(re.findall(r"#\d+", text)))


def _renamed(text: str, names: Mapping[str, str]) -> str:
    return re.sub(r"#\d+", lambda token: names.get(token[0], token[0]), text)


def test_a_broken_promise_is_shown_step_by_step(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken promise exits with status 1 and prints a readable timeline."""
    assert main(["--scenario", "deadlines"]) == 0
    monkeypatch.setattr("carride_idempotency.stores.may_put_if_absent", lambda found: True)
    assert main(["--scenario", "deadlines"]) == 1
    claim = "[IN_PROGRESS of %s, attempt 1, lease 6000 ms] takes place"
    timeline = (
        "    0.0 s  D1 on a machine is delivered",
        f"    0.0 s  #1 (D1, a machine): put if absent {claim % '#1'}, answer delayed",
        "    0.0 s  D2 on a machine is delivered",
        f"    0.0 s  #2 (D2, a machine): put if absent {claim % '#2'}",
        "BROKEN: every run counts as an attempt",
    )
    assert "\n".join(timeline) in capsys.readouterr().out
