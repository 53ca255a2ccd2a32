"""How records come to a side: from an SQS queue in batches, whose records may run at the same time."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from typing import Any, Final

from idempotency.testing import ManualClock

VISIBILITY_TIMEOUTS: Final = 6
"""AWS's advice: a queue hides a message for six times the function's timeout."""

type BatchHandler = Callable[[dict[str, Any]], Mapping[str, Any]]


class KilledError(BaseException):
    """What a killed process looks like to the code that it was running: nothing after it is executed."""


class Process:
    """One process's threads in virtual time: one runs at a time, until it says how much time its work takes."""

    def __init__(self, time: ManualClock) -> None:
        self.deadline_ms = 0
        self._time = time
        self._running: _Task | None = None
        self._dead = False

    def spend(self, seconds: float) -> None:
        """Let work take time. At the invocation's deadline, Lambda kills the process."""
        wake_ms = self._time() + round(seconds * 1000)
        killed = wake_ms > self.deadline_ms
        wake_ms = min(wake_ms, self.deadline_ms)
        if self._running is None:
            self._time.now_ms = wake_ms
        else:
            self._running.sleep(wake_ms)
        if killed or self._dead:
            raise KilledError

    def run_all(self, tasks: Sequence[Callable[[], None]], limit: int) -> None:
        """Run the tasks, at most ``limit`` at once; when one is killed, all that are under way are."""
        waiting = [_Task(task) for task in tasks]
        asleep: list[_Task] = []
        self._dead = False
        while (waiting and not self._dead) or asleep:
            if waiting and not self._dead and len(asleep) < limit:
                task = waiting.pop(0)
            else:
                task = min(asleep, key=lambda task: task.wake_ms)
                asleep.remove(task)
                self._time.now_ms = max(self._time(), 0 if self._dead else task.wake_ms)
            self._running = task
            task.go_on()
            self._running = None
            if not task.ended:
                asleep.append(task)
            self._dead = self._dead or task.killed
        if self._dead:
            raise KilledError

    def repeat(self, beat: Callable[[], bool], interval_s: float) -> AbstractContextManager[object]:
        """Beat never: a lease outlasts the invocations here."""
        return nullcontext()


class _Task:
    """A thread that runs only while somebody waits in `go_on`."""

    def __init__(self, run: Callable[[], None]) -> None:
        self.wake_ms = 0
        self.ended = False
        self.killed = False
        self._run = run
        self._turn = threading.Semaphore(0)
        self._pause = threading.Semaphore(0)
        self._thread = threading.Thread(target=copy_context().run, args=(self._main,), daemon=True)

    def go_on(self) -> None:
        """Let it run until it sleeps or ends."""
        if self._thread.ident is None:
            self._thread.start()
        self._turn.release()
        self._pause.acquire()
        if self.ended:
            self._thread.join()

    def sleep(self, wake_ms: int) -> None:
        """Pause until whoever decides about time lets it go on; called by the thread itself."""
        self.wake_ms = wake_ms
        self._pause.release()
        self._turn.acquire()

    def _main(self) -> None:
        self._turn.acquire()
        try:
            self._run()
        except KilledError:
            self.killed = True
        finally:
            self.ended = True
            self._pause.release()


class Queue:
    """An SQS queue, read by an event source mapping in batches of all that is visible.

    Attributes:
        receives: how often each message was received.
        dead: the messages that SQS moved to its dead-letter queue.
    """

    def __init__(
        self, time: ManualClock, bodies: Sequence[str], *, reports: bool = True, max_receives: int = 5
    ) -> None:
        self.receives = [0] * len(bodies)
        self.dead: list[int] = []
        self._time = time
        self._sent_ms = time()
        self._bodies = bodies
        self._reports = reports
        self._max_receives = max_receives

    def drain(self, handler: BatchHandler, timeout_s: float) -> None:
        """Deliver until every message is deleted or dead. Without ``reports`` a response's failures are not read."""
        waiting = list(range(len(self._bodies)))
        while waiting:
            failed = self._deliver(handler, waiting)
            self.dead += [number for number in failed if self.receives[number] >= self._max_receives]
            waiting = [number for number in failed if number not in self.dead]
            self._time.advance(VISIBILITY_TIMEOUTS * timeout_s)

    def _deliver(self, handler: BatchHandler, numbers: list[int]) -> list[int]:
        for number in numbers:
            self.receives[number] += 1
        try:
            response = handler({"Records": [self._record(number) for number in numbers]})
        except (Exception, KilledError):  # noqa: BLE001 - the invocation failed, and with it all records
            return numbers
        if not self._reports:
            return []
        failures = {failure["itemIdentifier"] for failure in response["batchItemFailures"]}
        return [number for number in numbers if f"message-{number}" in failures]

    def _record(self, number: int) -> dict[str, Any]:
        return {
            "messageId": f"message-{number}",
            "body": self._bodies[number],
            "attributes": {
                "ApproximateReceiveCount": str(self.receives[number]),
                "SentTimestamp": str(self._sent_ms),
            },
            "eventSource": "aws:sqs",
        }
