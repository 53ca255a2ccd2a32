"""The steps of the features, by the interface that a consumer's author uses: over whatever store `backend` opens."""

import json
import threading
from collections import Counter, deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from pytest_bdd import given, parsers, then, when

from idempotency import (
    BusyError,
    Consumer,
    EffectConflictError,
    Observation,
    Operation,
    PermanentError,
    Policy,
    codec,
)
from idempotency.dead_letters import DeadLetterError
from idempotency.errors import LostLeaseError, RetryLaterError
from idempotency.testing import DeadLetterBox, Invocation, ManualClock
from tests.stores.backends import FIRST_CHARGE, Backend, let_pass

WINDOW_DAYS: Final = 30
LONGER_THAN_A_LEASE_S: Final = 60
_PATIENCE_S: Final = 30.0

type Act = Callable[[dict[str, Any], Operation], object]


class RideError(Exception):
    """A handler's own error."""


class UselessError(PermanentError):
    """An error that no retry can help."""


class Crash(BaseException):
    """The end of a handler's process."""


class Delivered:
    """How one delivery ended: a response, or an error that the transport sees."""

    def __init__(self) -> None:
        self.outcome: str | None = None
        self.error: BaseException | None = None
        self.observed: str | None = None

    def acknowledged_as(self, outcome: str) -> bool:
        """Whether the transport may forget it, for this reason."""
        if self.error is not None:
            raise self.error
        return self.outcome == outcome == self.observed


class Stalled:
    """A handler that is in the middle of its work, in a thread of its own."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.go_on = threading.Event()
        self.fails = False
        self.delivered = Delivered()
        self.thread: threading.Thread | None = None

    def act(self, event: dict[str, Any], operation: Operation) -> object:
        """Stop in the middle, and go on when told to."""
        self.began.set()
        assert self.go_on.wait(_PATIENCE_S)
        if self.fails:
            raise RideError
        return succeed(event, operation)

    def start(self, deliver: Callable[[Delivered], object]) -> None:
        """Deliver to this handler, and return when it is in the middle."""
        self.thread = threading.Thread(target=deliver, args=(self.delivered,))
        self.thread.start()
        assert self.began.wait(_PATIENCE_S)

    def finish(self) -> Delivered:
        """Let it go on, and return when its delivery has ended."""
        assert self.thread is not None
        self.go_on.set()
        self.thread.join(_PATIENCE_S)
        assert not self.thread.is_alive()
        return self.delivered


def succeed(event: dict[str, Any], operation: Operation) -> object:
    """Do what a handler does when nothing is wrong."""
    return {"order": event["detail"]["data"]["orderID"], "attempt": operation.attempt}


def fail(event: dict[str, Any], operation: Operation) -> object:
    """Fail, as anything can."""
    raise RideError


def give_up(event: dict[str, Any], operation: Operation) -> object:
    """Fail for good."""
    raise UselessError


def crash(event: dict[str, Any], operation: Operation) -> object:
    """End with the process."""
    raise Crash


class World:
    """Consumers over one store, what their handlers are going to do, and what came of it."""

    def __init__(self, backend: Backend, clock: ManualClock) -> None:
        self.backend = backend
        self.clock = clock
        self.box = DeadLetterBox()
        self.runs: Counter[str] = Counter()
        self.acts: deque[Act] = deque()
        self.last = Delivered()
        self.stalled: list[Stalled] = []
        self.stopped = Delivered()
        self.rides: set[str] = set()
        self.prices: list[object] = []
        self._consumers: dict[str, Consumer] = {}
        self._handlers: dict[str, Callable[[dict[str, Any], Invocation], Any]] = {}
        self._options: dict[str, Any] = {}
        self._requests = 0
        self._lock = threading.Lock()
        self._observed = threading.local()

    # ── Consumers ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def add(self, name: str, act: Act = succeed, **options: Any) -> None:
        """Add a consumer whose handler does ``act`` unless another act is queued."""
        self._options[name] = (act, options)
        consumer = self.consumer(name, **options)

        @consumer.event_handler
        def handler(event: dict[str, Any], operation: Operation) -> object:
            with self._lock:
                self.runs[name] += 1
                queued = self.acts.popleft() if self.acts else None
            if queued is not None and queued is not succeed:
                act_first = act if isinstance(getattr(queued, "__self__", None), Stalled) else succeed
                if act_first is not succeed:
                    act_first(event, operation)
                return queued(event, operation)
            return act(event, operation)

        self._consumers[name] = consumer
        self._handlers[name] = handler
