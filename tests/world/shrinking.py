"""Cuts a story that breaks a promise down to the fewest rides and faults that still break it."""

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tests.world.run import Report, run
from tests.world.story import Story
from tests.world.wiring import Wiring

_NAMES: Final = re.compile(r"[0-9a-f]{6,}[0-9a-f-]*|\d+")
_MOST_RUNS: Final = 200


class Shrunk(NamedTuple):
    """The smallest story that was found."""

    report: Report
    runs: int


def shrink(report: Report, wired: Wiring | None = None) -> Shrunk:
    """Return the fewest rides, lasting faults and single ones that still break the same promise.

    Every draw is named by what it decides, so leaving one out changes no other.
    """
    return _Shrinking(report, wired).shrunk()


def kinds_of(broken: Sequence[str]) -> set[str]:
    """Return what was broken, without the names of rides and events."""
    return {_NAMES.sub("…", each)[:60] for each in broken}


class _Shrinking:
    def __init__(self, report: Report, wired: Wiring | None) -> None:
        self._best = report
        self._kept: list[str] = list(report.used)
        self._kinds = kinds_of(report.broken[:1])
        self._wired = wired
        self._runs = 0

    def shrunk(self) -> Shrunk:
        """Leave out what can be left out: the largest things first."""
        self._leave_out_lives()
        self._leave_out_windows()
        self._leave_out_acts()
        self._leave_out_faults()
        self._leave_out_lives()
        return Shrunk(self._best, self._runs)

    def _breaks(self, story: Story, kept: Sequence[str]) -> bool:
        """Live a smaller story; keep it if it breaks the same promise."""
        if self._runs >= _MOST_RUNS:
            return False
        self._runs += 1
        report = run(story, self._wired, frozenset(kept))
        if not self._kinds & kinds_of(report.broken):
            return False
        self._best = report
        self._kept = list(report.used)
        return True

    def _leave_out_lives(self) -> None:
        for life in self._best.story.lives:
            story = self._best.story
            others = tuple(each for each in story.lives if each != life)
            if others:
                self._breaks(story._replace(lives=others), self._kept)

    def _leave_out_windows(self) -> None:
        for window in self._best.story.windows:
            story = self._best.story
            others = tuple(each for each in story.windows if each != window)
            self._breaks(story._replace(windows=others), self._kept)

    def _leave_out_acts(self) -> None:
        for act in self._best.story.acts:
            story = self._best.story
            others = tuple(each for each in story.acts if each != act)
            self._breaks(story._replace(acts=others), self._kept)

    def _leave_out_faults(self) -> None:
        """Leave out all, then ever smaller parts, as long as any can go."""
        if self._breaks(self._best.story, ()):
            return
        size = len(self._kept)
        while size > 1 and self._runs < _MOST_RUNS:
            size = (size + 1) // 2
            self._leave_out_parts(size)

    def _leave_out_parts(self, size: int) -> None:
        for part in _parts(self._kept, size):
            gone = set(part)
            self._breaks(self._best.story, [each for each in self._kept if each not in gone])


def _parts(whole: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for begin in range(0, len(whole), size):
        yield whole[begin : begin + size]
