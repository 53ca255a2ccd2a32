"""Explores each world once for all tests, and says at the end of the run how much was seen."""

from collections.abc import Callable
from typing import Final

import pytest

from tests.explorer.search import Result, explore
from tests.explorer.world import Scenario

type Explored = Callable[[Scenario], Result]

_RESULTS: Final = pytest.StashKey[dict[str, Result]]()


@pytest.fixture(scope="session")
def explored(pytestconfig: pytest.Config) -> Explored:
    """Return what the search of a world found."""
    results = pytestconfig.stash.setdefault(_RESULTS, {})

    def once(scenario: Scenario) -> Result:
        if scenario.name not in results:
            results[scenario.name] = explore(scenario)
        return results[scenario.name]

    return once


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print how many states were explored, and whether each search was complete."""
    results = config.stash.get(_RESULTS, {}).values()
    if results:
        states = sum(result.states for result in results)
        seconds = sum(result.seconds for result in results)
        capped = [result.scenario for result in results if not result.complete]
        how = f"NOT complete: {', '.join(capped)}" if capped else "each search complete"
        terminalreporter.write_line(f"explorer: {states:,} states in {len(results)} worlds in {seconds:.0f} s, {how}")
