"""Forks handlers while they run, and prints what a child could do to the run of its parent.

`test_forks.py` starts it: ``within_a_run.py URL FIRST COUNT``. All that is random in a run follows
from its number. A child tries steps of the run; then it ends, returns from the handler, or raises.
"""

import os
import random
import signal
import sys
import threading
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from carride_idempotency import (
    NOT_DONE,
    Consumer,
    DynamoDBStore,
    Operation,
    Policy,
    Update,
)
from carride_idempotency.errors import UnfinishedWorkError
from carride_idempotency.stores.lean import LeanTransport
from carride_idempotency.stores.signing import Credentials
from carride_idempotency.testing import eventbridge_event, lambda_context

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S: Final = 60


class Run:
    """One run of a handler, which forks."""

    def __init__(self, number: int) -> None:
        self.chance = random.Random(number)  # noqa: S311 - an experiment, not a secret
        self.key = f"k{number}"
        self.process = os.getpid()
        self.children: list[int] = []
        self.charges = 0
        self.probes = self.chance.random() < 0.5

    def __call__(self, _: Any, operation: Operation) -> None:
        steps: list[Callable[[Operation], object]] = [self.write, self.charge, self.fork, self.fork]
        self.chance.shuffle(steps)
        for step in steps:
            step(operation)
            if os.getpid() != self.process:
                return  # a child, which goes on as if it were its parent

    def write(self, operation: Operation) -> None:
        operation.write(Update("Effects", {"id": self.key}, "ADD charges :n", None, {":n": 1}))

    def charge(self, operation: Operation) -> None:
        """Make a call, which forks as well, perhaps."""

        def call(_: str) -> str:
            self.charges += 1
            if os.getpid() != self.process:
                print(f"{self.key}: a child makes the call", flush=True)
            elif self.chance.random() < 0.3:
                self.fork(operation)
            return "receipt"

        operation.external("charge", call, (lambda _: NOT_DONE) if self.probes else None)

    def fork(self, operation: Operation) -> None:
        """Fork a child while another thread has the run's lock, perhaps."""
        is_locked = self.chance.random() < 0.3
        lock = operation._held.lock if is_locked else threading.Lock()  # noqa: SLF001 - as a thread has it
        lock.acquire()
        child = os.fork()
        if child:
            lock.release()
            self.children.append(child)
            return
        signal.alarm(PATIENCE_S)
        self.chance = random.Random(self.chance.random())  # noqa: S311 - as above
        for step in self.chance.sample([self.write, self.charge], 2):
            with suppress(UnfinishedWorkError):
                step(operation)
                print(f"{self.key}: a child takes a step", flush=True)
        if operation.heartbeat():
            print(f"{self.key}: a child holds the claim", flush=True)
        fate = self.chance.random()
        if fate < 0.3:
            os._exit(0)
        if fate < 0.6:
            raise KeyError(self.key)


def main(url: str, first: str, count: str) -> None:
    """Run some handlers, one after the other."""
    warnings.simplefilter("ignore", DeprecationWarning)  # about forks of a process with threads
    signal.alarm(2 * PATIENCE_S)
    transport = LeanTransport(
        url, "us-east-1", lambda **_: Credentials("test", "test"), read_timeout_s=PATIENCE_S
    )
    consumer: Consumer = Consumer(
        "forks",
        DynamoDBStore("Records", transport=transport),
        key="detail.id",
        policy=Policy(max_attempts=1),
    )
    for number in range(int(first), int(first) + int(count)):
        run = Run(number)
        handler = consumer.event_handler(run)
        outcome = "nothing"
        try:
            outcome = handler(eventbridge_event({"id": run.key}), lambda_context())["outcome"]
        except Exception as error:  # noqa: BLE001 - printed
            outcome = type(error).__name__
        if os.getpid() != run.process:
            if outcome != "UnfinishedWorkError":
                print(f"{run.key}: a child is answered with {outcome}", flush=True)
            os._exit(0)
        for child in run.children:
            _, status = os.waitpid(child, 0)
            if status:
                print(f"{run.key}: a child ends with {status}", flush=True)
        if (outcome, run.charges) != ("New", 1):
            print(f"{run.key}: {outcome} after {run.charges} calls", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
