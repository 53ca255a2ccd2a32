"""Says at the end of a test run how much was explored."""

from typing import Final

import pytest

EXPLORED: Final = "states explored"
"""The property with which a test reports it: properties reach the end of the run from every worker."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many states were explored, and whether each search was complete."""
    for outcome, how in (("passed", "each search complete, every promise kept"), ("failed", "NOT complete")):
        for report in terminalreporter.stats.get(outcome, ()):
            for name, states in getattr(report, "user_properties", ()):
                if name == EXPLORED:
                    terminalreporter.write_line(f"explorer: {states:,} states in {report.duration:.0f} s, {how}")
