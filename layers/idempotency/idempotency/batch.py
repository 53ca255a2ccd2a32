"""Runs the records of one batch: concurrently, each by itself, and none past the deadline."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from idempotency.clock import Clock
from idempotency.concurrency import Concurrency

_RUNS_REMEMBERED = 20


class Suspect(NamedTuple):
    """A record of which an earlier attempt ended without an answer: it may be what killed its process."""

    attempt: int
    """The number of that attempt."""
    is_last_chance: bool
    """The next attempt is the last one before the record is quarantined."""


class Job(NamedTuple):
    """One record of a batch."""

    lane: str | None
    """Jobs of one lane (a FIFO group, or one key) run one after another; None is a lane of its own."""
    run: Callable[[bool], Suspect | None]
    """Run the record. Given True, return a suspect instead of running it."""


class Pace:
    """How long the runs of one handler have taken lately."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lately_ms: deque[int] = deque(maxlen=_RUNS_REMEMBERED)
        self.ended = 0
        """How many runs have ended in this process."""

    def measure[**P, T](self, work: Callable[P, T]) -> Callable[P, T]:
        """Return ``work`` such that every call's duration is remembered."""

        def measured(*args: P.args, **kwargs: P.kwargs) -> T:
            start_ms = self._clock()
            try:
                return work(*args, **kwargs)
            finally:
                self.ended += 1
                self._lately_ms.append(max(0, self._clock() - start_ms))

        return measured

    def typical_ms(self) -> int:
        """Return what nine of ten runs stayed within; 0 before the first one has ended."""
        lately = sorted(self._lately_ms)
        return lately[math.ceil(0.9 * len(lately)) - 1] if lately else 0


class Batch:
    """Runs jobs, and collects those that must be delivered again.

    In a lane a failure holds back the jobs behind it: of equal keys the first does the work, and the others share its
    outcome. Suspects run last, when no neighbour is running any more, in the smallest groups for which the time is
    enough. A suspect runs alone on its last chance, so that no neighbour's crash can have it quarantined.

    Args:
        jobs: the records.
        concurrency: how jobs run at the same time.
        limit: how many do at most.
        left_ms: how much time is left for work.
        pace: what the handler's runs have been seen to take.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        *,
        concurrency: Concurrency,
        limit: int,
        left_ms: Callable[[], int],
        pace: Pace,
    ) -> None:
        self._jobs = jobs
        self._concurrency = concurrency
        self._limit = limit
        self._left_ms = left_ms
        self._pace = pace
        self._ended_before = pace.ended
        self._suspects: list[tuple[Suspect, list[int]]] = []
        self._failures: dict[int, Exception | None] = {}

    def run(self) -> dict[int, Exception | None]:
        """Run every job that the time allows, and return those to deliver again: position and error (None: no time)."""
        lanes: dict[object, list[int]] = {}
        for position, job in enumerate(self._jobs):
            lanes.setdefault(job.lane or position, []).append(position)
        self._run_lanes(list(lanes.values()), postpones=True)
        while self._suspects:
            self._run_lanes(self._next_suspects(), postpones=False)
        return self._failures

    def _run_lanes(self, lanes: list[list[int]], *, postpones: bool) -> None:
        self._concurrency.run_all([partial(self._run_lane, lane, postpones) for lane in lanes], self._limit)

    def _run_lane(self, lane: list[int], postpones: bool) -> None:
        for done, position in enumerate(lane):
            error: Exception | None = None
            if self._has_time():
                try:
                    suspect = self._jobs[position].run(postpones or done > 0)
                except Exception as raised:  # noqa: BLE001 - reported, so that the record is delivered again
                    error = raised
                else:
                    if suspect is None:
                        continue
                    self._suspects.append((suspect, lane[done:]))
                    return
            self._failures.update(dict.fromkeys(lane[done:], error))
            return

    def _has_time(self) -> bool:
        """Whether a job may start. Until a run has ended, all may: otherwise a slow one could stop a queue for good."""
        is_first = self._pace.ended == self._ended_before
        return self._left_ms() >= (1 if is_first else max(1, self._pace.typical_ms()))

    def _next_suspects(self) -> list[list[int]]:
        """Take the lanes that run next: those with the fewest crashes, together if that is what the time asks for."""
        self._suspects.sort(key=lambda suspected: (suspected[0].attempt, suspected[1]))  # not as threads found them
        in_company = sum(not suspect.is_last_chance for suspect, _ in self._suspects)
        size = 1
        if in_company > 1 and (typical_ms := self._pace.typical_ms()):
            size = math.ceil(in_company / max(1, self._left_ms() // typical_ms))
        group, self._suspects = self._suspects[:size], self._suspects[size:]
        return [lane for _, lane in group]
