"""Runs the records of one batch: concurrently, each by itself, and none past the deadline."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from idempotency.concurrency import Concurrency


class Job(NamedTuple):
    """One record of a batch."""

    lane: str | None
    """Jobs of one lane (a FIFO group, or one key) run one after another; None is a lane of its own."""
    received_before: bool
    run: Callable[[], object]


def run_jobs(jobs: Sequence[Job], *, limit: int, concurrency: Concurrency, has_time: Callable[[], bool]) -> dict[int, Exception | None]:
    """Run every job, and return those that are to be delivered again: their positions, and why (None: no time).

    In a lane a failure holds back the jobs behind it: of equal keys the first does the work, and the others share its
    outcome. A record that was received before may be the one that killed the process: such jobs run alone and last, so
    that they take no other with them. All threads have ended when this returns.
    """
    lanes: dict[object, list[int]] = {}
    for position, job in enumerate(jobs):
        lanes.setdefault(job.lane or position, []).append(position)
    together = [lane for lane in lanes.values() if not any(jobs[position].received_before for position in lane)]
    alone = [lane for lane in lanes.values() if any(jobs[position].received_before for position in lane)]
    failures: dict[int, Exception | None] = {}

    def run_lane(lane: list[int]) -> None:
        for done, position in enumerate(lane):
            error: Exception | None = None
            if has_time():
                try:
                    jobs[position].run()
                    continue
                except Exception as raised:  # noqa: BLE001 - reported, so that the record is delivered again
                    error = raised
            failures.update(dict.fromkeys(lane[done:], error))
            return

    if len(together) > 1:
        concurrency.run_all([partial(run_lane, lane) for lane in together], limit)
    else:
        alone = together + alone
    for lane in alone:
        run_lane(lane)
    return failures
