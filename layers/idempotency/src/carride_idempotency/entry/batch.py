"""Runs the records of one batch: concurrently, each by itself, and none past the deadline."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from carride_idempotency.clock import Clock
from carride_idempotency.entry.messages import Message, MessageHandler, RejectedMessageError
from carride_idempotency.invocation import LambdaInvocation
from carride_idempotency.protocol.delivery import POSTPONED
from carride_idempotency.protocol.run import Runner
from carride_idempotency.record import Record
from carride_idempotency.sources import Raw

_RUNS_REMEMBERED = 20
_QUANTILE = 0.9
_UNUSED = 0.9


class Job[E](NamedTuple):
    """One record of a batch."""

    lane: str | None
    """Jobs of one lane (a FIFO group, or one key) run one after another; None is a lane of its
    own."""
    message: Message[E] | Exception
    """An exception if the record could not be read."""


class Suspect(NamedTuple):
    """A record whose last attempt crashed. Suspects sort by their crashes, then by position."""

    crashes: int
    lane: list[int]
    """Its position, and those of its lane that wait behind it."""
    had_ms: int
    """The time that the crashed attempt had, from its claim to the end of its invocation."""


class Pace:
    """How long the latest runs of one handler have taken.

    A run that fails at once does not say how long the work takes. So failures count only while no
    run has ended normally.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lately_ms: deque[int] = deque(maxlen=_RUNS_REMEMBERED)
        self._failed_ms: deque[int] = deque(maxlen=_RUNS_REMEMBERED)
        self.ended = 0
        """How many runs have ended in this process, in whatever way."""

    def measure[**P, T](self, work: Callable[P, T]) -> Callable[P, T]:
        """Return ``work`` with the duration of every call remembered."""

        def measured(*args: P.args, **kwargs: P.kwargs) -> T:
            start_ms = self._clock()
            durations_ms = self._failed_ms
            try:
                result = work(*args, **kwargs)
                durations_ms = self._lately_ms
                return result
            finally:
                self.ended += 1
                durations_ms.append(max(0, self._clock() - start_ms))

        return measured

    def typical_ms(self) -> int:
        """Return what nine of ten runs stayed within; 0 before the first run has ended."""
        durations_ms = sorted(self._lately_ms or self._failed_ms)
        if not durations_ms:
            return 0
        return durations_ms[math.ceil(_QUANTILE * len(durations_ms)) - 1]


class Batch[E]:
    """The records of one batch.

    A failure stops its lane: of equal keys the first does the work, and the others share its
    outcome. A suspect is a record whose last attempt crashed. The order is:

    1. Suspects on their last attempt, one by one, as far as receive counts show them. No other
       record's crash can quarantine them, nor can the time that others take: each has at least the
       time that its crashed attempt had.
    2. All other records, concurrently. Those that turn out to be suspects are postponed.
    3. The postponed suspects: on their last attempt alone, the others in the smallest groups that
       the time left allows.
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
        self._records = records
        self._invocation = invocation
        self._jobs = [self._job(raw) for raw in records]
        self._ended_before = pace.ended
        self._left_at_first_ms = self._left_ms()
        self._suspects: list[Suspect] = []
        self._failures: dict[int, Exception | None] = {}

    def run_records(self) -> dict[int, Exception | None]:
        """Run what the time allows; return positions and errors of the records to deliver again.

        The error of a record that was not started is None.
        """
        lanes = self._lanes()
        on_last_attempt = self._on_last_attempt(lanes)
        for suspect in on_last_attempt:
            lanes.remove(suspect.lane)
        self._suspects = on_last_attempt
        self._run_suspects()
        self._run_lanes(lanes, postpones=True)
        self._run_suspects()
        return self._failures

    # ── Reading ───────────────────────────────────────────────────────────────────────────────────

    def _job(self, raw: Raw) -> Job[E]:
        """Read one record. If it cannot be read, its own job fails and no other."""
        lane: str | None = None
        source = self._handler.source
        try:
            group = source.group(raw)
            lane = None if group is None else f"group {group}"
            message = self._handler.read_message(
                raw, self._invocation, self._handler.record_id(raw), postpones=True
            )
        except Exception as error:  # noqa: BLE001 - the record's own job raises it
            return Job(lane, error)
        return Job(message.delivery.key if lane is None else lane, message)

    def _lanes(self) -> list[list[int]]:
        lanes: dict[object, list[int]] = {}
        for position, job in enumerate(self._jobs):
            lanes.setdefault(job.lane or position, []).append(position)
        return list(lanes.values())

    # ── Lanes ─────────────────────────────────────────────────────────────────────────────────────

    def _run_lanes(self, lanes: list[list[int]], *, postpones: bool) -> None:
        self._runner.concurrency.run_all(
            [partial(self._run_lane, lane, postpones) for lane in lanes],
            self._runner.policy.concurrency,
        )

    def _run_lane(self, lane: list[int], postpones: bool) -> None:
        for done, position in enumerate(lane):
            rest = lane[done:]
            if not self._has_time():
                self._fail(rest, None)
                return
            try:
                crashed = self._run_job(position, postpones=postpones or done > 0)
            except Exception as error:  # noqa: BLE001 - reported: the record is delivered again
                self._fail(rest, error)
                return
            if crashed is not None:
                self._suspects.append(self._suspect(crashed, rest))
                return

    def _run_job(self, position: int, *, postpones: bool) -> Record | None:
        """Run one record; with ``postpones``, return a suspect's crashed claim instead."""
        message = self._jobs[position].message
        if isinstance(message, RejectedMessageError):
            raw = self._records[position]
            delivery_id = self._handler.record_id(raw)
            self._handler.reject(message, self._invocation, raw, delivery_id)
            return None
        if isinstance(message, Exception):
            raise message
        if not postpones:
            message = message._replace(delivery=message.delivery._replace(postpones=False))
        answer = self._handler.run_message(message)
        return answer.record if answer.outcome == POSTPONED else None

    def _fail(self, lane: list[int], error: Exception | None) -> None:
        self._failures.update(dict.fromkeys(lane, error))

    # ── Time ──────────────────────────────────────────────────────────────────────────────────────

    def _left_ms(self) -> int:
        return self._runner.left_ms(self._invocation.deadline_ms)

    def _time_is_unused(self) -> bool:
        """Return whether a job has nearly as much time as the first one of the batch.

        A run has used time, and so has whatever else takes long: a letter, a slow store.
        """
        has_run = self._pace.ended > self._ended_before
        return not has_run and self._left_ms() >= _UNUSED * self._left_at_first_ms

    def _has_time(self) -> bool:
        """Return whether a job may start.

        While the time is unused all may: otherwise one slow record could stop a queue.
        """
        needed_ms = 0 if self._time_is_unused() else self._pace.typical_ms()
        return self._left_ms() >= max(1, needed_ms)

    # ── Suspects ──────────────────────────────────────────────────────────────────────────────────

    def _suspect(self, crashed: Record, lane: list[int]) -> Suspect:
        deadline_ms = (crashed.lease_ms or 0) - int(self._runner.policy.margin * 1000)
        return Suspect(crashed.attempt, lane, deadline_ms - crashed.updated_ms)

    def _is_last_attempt(self, suspect: Suspect) -> bool:
        return suspect.crashes + 1 >= self._runner.policy.max_attempts

    def _on_last_attempt(self, lanes: list[list[int]]) -> list[Suspect]:
        """Return the suspects on their last attempt, as far as receive counts show them.

        Only the records of messages that were received often enough are looked up.
        """
        found: list[Suspect] = []
        self._runner.concurrency.run_all(
            [partial(self._look_up, lane, found) for lane in lanes if self._may_be_last(lane)],
            self._runner.policy.concurrency,
        )
        return found

    def _may_be_last(self, lane: list[int]) -> bool:
        received = self._handler.source.attempts(self._records[lane[0]])
        return received is not None and received >= self._runner.policy.max_attempts

    def _look_up(self, lane: list[int], found: list[Suspect]) -> None:
        message = self._jobs[lane[0]].message
        if isinstance(message, Exception):
            return
        try:
            crashed = self._runner.crashed(message.delivery)
        except Exception:  # noqa: BLE001 - its own job meets the store again
            return
        if crashed is None:
            return
        suspect = self._suspect(crashed, lane)
        if self._is_last_attempt(suspect):
            found.append(suspect)

    def _run_suspects(self) -> None:
        while self._suspects:
            self._suspects.sort()  # threads found them in any order
            size = self._group_size()
            group = self._suspects[:size]
            self._suspects = self._suspects[size:]
            lanes = []
            for suspect in group:
                if self._has_time_for(suspect):
                    lanes.append(suspect.lane)
                else:
                    self._fail(suspect.lane, None)
            self._run_lanes(lanes, postpones=False)

    def _group_size(self) -> int:
        """Return how many suspects run at once: as few as the time left allows."""
        in_company = sum(not self._is_last_attempt(suspect) for suspect in self._suspects)
        typical_ms = self._pace.typical_ms()
        if in_company <= 1 or not typical_ms:
            return 1
        rounds = max(1, self._left_ms() // typical_ms)
        return math.ceil(in_company / rounds)

    def _has_time_for(self, suspect: Suspect) -> bool:
        """Return whether a suspect may run; its last attempt needs the time that it had before."""
        if not self._is_last_attempt(suspect) or self._time_is_unused():
            return True
        return self._left_ms() >= suspect.had_ms
