"""Runs the records of one batch: concurrently, each by itself, and none past the deadline."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from carride_idempotency.clock import Clock
from carride_idempotency.delivery import POSTPONED
from carride_idempotency.invocation import LambdaInvocation
from carride_idempotency.messages import Message, MessageHandler
from carride_idempotency.runner import Runner
from carride_idempotency.sources import Raw

_RUNS_REMEMBERED = 20


class Job[E](NamedTuple):
    """One record of a batch."""

    lane: str | None
    """Jobs of one lane (a FIFO group, or one key) run one after another; None is a lane of its
    own."""
    message: Message[E] | Exception | None
    """None if the record was dead-lettered; an exception if it could not be read."""


class Pace:
    """How long the latest runs of one handler have taken."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lately_ms: deque[int] = deque(maxlen=_RUNS_REMEMBERED)
        self.ended = 0
        """How many runs have ended in this process."""

    def measure[**P, T](self, work: Callable[P, T]) -> Callable[P, T]:
        """Return ``work`` with the duration of every call remembered."""

        def measured(*args: P.args, **kwargs: P.kwargs) -> T:
            start_ms = self._clock()
            try:
                return work(*args, **kwargs)
            finally:
                self.ended += 1
                self._lately_ms.append(max(0, self._clock() - start_ms))

        return measured

    def typical_ms(self) -> int:
        """Return the duration that nine of ten runs stayed within; 0 before the first run has ended."""
        lately = sorted(self._lately_ms)
        return lately[math.ceil(0.9 * len(lately)) - 1] if lately else 0


class Batch[E]:
    """The records of one batch.

    A failure stops its lane: of equal keys the first does the work, and the others share its
    outcome. A record is a suspect if its last attempt crashed. Suspects run last, when no other
    record is running, in the smallest groups that the time left allows. On its last attempt a
    suspect runs alone, so that no other record's crash quarantines it.
    """

    def __init__(
        self,
        handler: MessageHandler[E],
        runner: Runner,
        pace: Pace,
        records: Sequence[Raw],
        invocation: LambdaInvocation,
    ) -> None:
        self._handler = handler
        self._runner = runner
        self._pace = pace
        self._invocation = invocation
        self._jobs = [self._job(raw) for raw in records]
        self._ended_before = pace.ended
        self._suspects: list[tuple[int, list[int]]] = []
        """The number of each crashed attempt, and the lane of positions that its next attempt
        begins."""
        self._failures: dict[int, Exception | None] = {}

    def run(self) -> dict[int, Exception | None]:
        """Run what the time allows; return positions and errors of the records to deliver again (None: not started)."""
        lanes: dict[object, list[int]] = {}
        for position, job in enumerate(self._jobs):
            lanes.setdefault(job.lane or position, []).append(position)
        self._run_lanes(list(lanes.values()), postpones=True)
        while self._suspects:
            self._run_lanes(self._next_suspects(), postpones=False)
        return self._failures

    def _job(self, raw: Raw) -> Job[E]:
        """Read one record. If it cannot be read, its own job fails and no other."""
        lane: str | None = None
        source = self._handler.source
        try:
            group = source.group(raw)
            lane = None if group is None else f"group {group}"
            message = self._handler.read(
                raw, self._invocation, source.message_id(raw), postpones=True
            )
        except Exception as error:  # noqa: BLE001 - the record's own job raises it
            return Job(lane, error)
        return Job(message.delivery.key if message and lane is None else lane, message)

    def _run_lanes(self, lanes: list[list[int]], *, postpones: bool) -> None:
        self._runner.concurrency.run_all(
            [partial(self._run_lane, lane, postpones) for lane in lanes],
            self._runner.policy.concurrency,
        )

    def _run_lane(self, lane: list[int], postpones: bool) -> None:
        for done, position in enumerate(lane):
            error: Exception | None = None
            if self._has_time():
                try:
                    crashed = self._run_job(self._jobs[position], postpones=postpones or done > 0)
                except Exception as raised:  # noqa: BLE001 - reported, so that the record is delivered again
                    error = raised
                else:
                    if crashed is None:
                        continue
                    self._suspects.append((crashed, lane[done:]))
                    return
            self._failures.update(dict.fromkeys(lane[done:], error))
            return

    def _run_job(self, job: Job[E], *, postpones: bool) -> int | None:
        """Run one record; with ``postpones``, return the number of its crashed attempt instead of running a suspect."""
        message = job.message
        if isinstance(message, Exception):
            raise message
        if message is None:
            return None
        if not postpones:
            message = message._replace(delivery=message.delivery._replace(postpones=False))
        answer = self._handler.run(message)
        return (
            answer.record.attempt
            if answer.outcome == POSTPONED and answer.record is not None
            else None
        )

    def _has_time(self) -> bool:
        """Whether a job may start. Until a run has ended all may: otherwise one slow record could stop a queue."""
        is_first = self._pace.ended == self._ended_before
        left_ms = self._runner.left_ms(self._invocation.deadline_ms)
        return left_ms >= (1 if is_first else max(1, self._pace.typical_ms()))

    def _next_suspects(self) -> list[list[int]]:
        """Take the lanes that run next: those with the fewest crashes, as few at a time as the time left allows."""
        self._suspects.sort()  # threads found them in any order
        most = self._runner.policy.max_attempts
        in_company = sum(attempt + 1 < most for attempt, _ in self._suspects)
        size = 1
        if in_company > 1 and (typical_ms := self._pace.typical_ms()):
            left_ms = self._runner.left_ms(self._invocation.deadline_ms)
            size = math.ceil(in_company / max(1, left_ms // typical_ms))
        group, self._suspects = self._suspects[:size], self._suspects[size:]
        return [lane for _, lane in group]
