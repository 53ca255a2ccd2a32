"""The steps of the feature, by the interface that a consumer's author uses: over whatever store `backend` opens."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import pytest
from pytest_bdd import given, parsers, then, when

from idempotency import BusyError, Consumer, Operation, Policy
from idempotency.testing import DeadLetterBox, Invocation, ManualClock
from tests.stores.backends import Backend, let_pass
from tests.unit.idempotency.samples import event

KEY: Final = "order_01"
LONGER_THAN_A_LEASE_S: Final = 60
PATIENCE_S: Final = 30.0
MOST_TRIES: Final = 10


class RideError(Exception):
    """A handler's own error."""


class Crash(BaseException):
    """The end of a handler's process."""


class World:
    """One consumer, what its handler is going to do, and how the deliveries ended."""

    def __init__(self, backend: Backend, clock: ManualClock) -> None:
        self.clock = clock
        self.box = DeadLetterBox()
        self.runs = 0
        self.acts: deque[Callable[[], object]] = deque()
        self.request = 0
        self.last: str | BaseException = ""
        self.pair: list[str | BaseException] = []
        self.consumer: Consumer = Consumer(
            "history",
            backend.store,
            key="detail.idempotencyid",
            policy=Policy(warm_cache=0),  # every answer comes from the store
            dead_letters=self.box,
            region="eu-west-1",
            clock=clock,
            sleep=clock.sleep,
        )
        self._backend = backend
        self._handler = self.consumer.event_handler(self._work)

    def _work(self, event: dict[str, Any], operation: Operation) -> None:
        self.runs += 1
        if self.acts:
            self.acts.popleft()()

    def deliver(self, request: int) -> str | BaseException:
        """Deliver the event, and return the outcome that acknowledges it, or the error that does not."""
        try:
            return self._handler(event(KEY), Invocation(self.clock, request_id=f"request-{request}"))["outcome"]
        except (Exception, Crash) as error:  # noqa: BLE001 - what a transport sees of a failed invocation
            return error

    def end_lease(self) -> None:
        """Let more time pass than a lease lasts."""
        let_pass(self._backend, self.clock, [f"history#{KEY}"], LONGER_THAN_A_LEASE_S)


@pytest.fixture
def clock() -> ManualClock:
    """Time that the steps move."""
    return ManualClock()


@pytest.fixture(autouse=True)
def world(backend: Backend, clock: ManualClock) -> World:
    """What one scenario is about."""
    return World(backend, clock)


def fail() -> None:
    """Fail, as anything can."""
    raise RideError


def crash() -> None:
    """End with the process."""
    raise Crash


ENDS: Final[dict[str, Callable[[], None]]] = {"succeeds": lambda: None, "fails": fail, "crashes": crash}


@given(parsers.re(r"a handler that (?P<ends>fails|crashes) (?P<times>\d+) times?"), converters={"times": int})
def _(world: World, ends: str, times: int) -> None:
    world.acts.extend([ENDS[ends]] * times)


@given(parsers.parse("a handler that stalls until another one has finished, and then {ends}"))
def _(world: World, ends: str) -> None:
    def stall() -> None:
        world.end_lease()
        assert world.deliver(0) == "Takeover"
        ENDS[ends]()

    world.acts.append(stall)


@when("the event is delivered")
def _(world: World) -> None:
    world.request += 1
    world.last = world.deliver(world.request)


@when("the delivery is retried")
def _(world: World) -> None:
    world.last = world.deliver(world.request)


@when("the event is delivered, and retried until it is acknowledged")
def _(world: World) -> None:
    for _ in range(MOST_TRIES):
        world.last = world.deliver(world.request)
        if isinstance(world.last, str):
            return
        world.end_lease()


@when("the event is delivered to two handlers at the same moment")
def _(world: World) -> None:
    together, answered = threading.Barrier(2), threading.Event()

    def deliver(request: int) -> None:
        together.wait(PATIENCE_S)
        world.pair.append(world.deliver(request))
        answered.set()

    world.acts.append(lambda: answered.wait(PATIENCE_S))  # the winner is at work until the other has its answer
    threads = [threading.Thread(target=deliver, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)


@when("the lease has ended")
def _(world: World) -> None:
    world.end_lease()


@when("an operator releases the event")
def _(world: World) -> None:
    assert world.consumer.release(KEY)


@then(parsers.parse('the delivery is acknowledged as "{outcome}"'))
def _(world: World, outcome: str) -> None:
    assert world.last == outcome


@then(parsers.parse("the delivery fails with a {error}"))
def _(world: World, error: str) -> None:
    assert type(world.last).__name__ == error


@then(parsers.parse('one delivery is acknowledged as "{outcome}", and the other finds the key busy'))
def _(world: World, outcome: str) -> None:
    assert outcome in world.pair
    (other,) = [ended for ended in world.pair if ended != outcome]
    assert other == "Busy" or isinstance(other, BusyError)  # only the delivery with the larger id may be forgotten


@then(parsers.re(r"the handler has run (?P<times>\d+) times?"), converters={"times": int})
def _(world: World, times: int) -> None:
    assert world.runs == times


@then(parsers.parse("the record is {status} at attempt {attempt:d}"))
def _(world: World, status: str, attempt: int) -> None:
    record = world.consumer.record(KEY)
    assert record is not None
    assert (record.status, record.attempt) == (status, attempt)


@then(parsers.parse('the dead-letter queue has 1 event, because of "{reason}"'))
def _(world: World, reason: str) -> None:
    assert [letter.reason for letter in world.box.letters] == [reason]
