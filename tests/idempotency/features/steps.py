"""The steps of the feature, by the interface that a consumer's author uses: over whatever store `backend` opens."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pytest_bdd import given, parsers, then, when

from idempotency import Consumer, Operation, Policy
from idempotency.testing import DeadLetterBox, Invocation, ManualClock
from tests.idempotency.samples import event
from tests.idempotency.stores.backends import Backend, let_pass

PATIENCE_S = 30.0


class RideError(Exception):
    """A handler's own error."""


class Crash(BaseException):
    """The end of a handler's process."""


class World:
    """One consumer, what its handler is going to do, and how the deliveries ended."""

    def __init__(self, backend: Backend, clock: ManualClock) -> None:
        self.clock = clock
        self.box = DeadLetterBox()
        self.runs = self.request = 0
        self.errors: list[type[BaseException]] = []
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.ends: list[str] = []
        """The outcome that acknowledged each delivery, or the error that did not."""
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
        self._handler = self.consumer.event_handler(self._work)

    def _work(self, event: dict[str, Any], operation: Operation) -> None:
        self.runs += 1
        self.goes_on.wait(PATIENCE_S)
        if self.errors:
            raise self.errors.pop()

    def deliver(self, request: int) -> None:
        """Deliver the event."""
        try:
            answer = self._handler(event("order_01"), Invocation(self.clock, request_id=f"request-{request}"))
            self.ends.append(answer["outcome"])
        except (Exception, Crash) as error:  # noqa: BLE001 - what a transport sees of a failed invocation
            self.ends.append(type(error).__name__)


@pytest.fixture
def clock() -> ManualClock:
    """Time that the steps move."""
    return ManualClock()


@pytest.fixture(autouse=True)
def world(backend: Backend, clock: ManualClock) -> World:
    """What one scenario is about."""
    return World(backend, clock)


@given(parsers.re(r"a handler that (?P<ends>fails|crashes) (?P<times>\d+) times?"), converters={"times": int})
def _(world: World, ends: str, times: int) -> None:
    world.errors = [RideError if ends == "fails" else Crash] * times


@when("the event is delivered")
def _(world: World) -> None:
    world.request += 1
    world.deliver(world.request)


@when("the delivery is retried")
def _(world: World) -> None:
    world.deliver(world.request)


@when("the event is delivered to two handlers at the same moment")
def _(world: World) -> None:
    together = threading.Barrier(2)
    world.goes_on.clear()  # the winner works until the other has its answer

    def deliver(request: int) -> None:
        together.wait(PATIENCE_S)
        world.deliver(request)
        world.goes_on.set()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(deliver, range(2)))


@when("the lease has ended")
def _(world: World, backend: Backend) -> None:
    let_pass(backend, world.clock, ["history#order_01"], 60)


@when("an operator releases the event")
def _(world: World) -> None:
    assert world.consumer.release("order_01")


@then(parsers.re(r'the delivery (is acknowledged as|fails with) "(?P<end>\w+)"'))
def _(world: World, end: str) -> None:
    assert world.ends[-1] == end


@then("one delivery runs, and the other finds the key busy")
def _(world: World) -> None:
    assert world.ends in (["Busy", "New"], ["BusyError", "New"])  # only the larger id may be acknowledged


@then(parsers.re(r"the handler has run (?P<times>\d+) times?"), converters={"times": int})
def _(world: World, times: int) -> None:
    assert world.runs == times


@then(parsers.parse("the record is {status} at attempt {attempt:d}"))
def _(world: World, status: str, attempt: int) -> None:
    record = world.consumer.record("order_01")
    assert record is not None
    assert (record.status, record.attempt) == (status, attempt)


@then("the dead-letter queue has 1 event")
def _(world: World) -> None:
    assert [letter.reason for letter in world.box.letters] == ["QUARANTINED"]
