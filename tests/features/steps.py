"""The steps of the features, by the interface that a consumer's author uses: over whatever store `backend` opens."""

import json
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
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
        self.rides = {"order_01", "order_02"}
        self.last = Delivered()
        self.pair: list[Delivered] = []
        self.stalled: list[Stalled] = []
        self.ended = Delivered()
        self.charge_if: str | None = None
        self._settings: dict[str, dict[str, Any]] = {}
        self._handlers: dict[str, Callable[[dict[str, Any], Invocation], Any]] = {}
        self._consumers: dict[str, Consumer] = {}
        self._requests = 0
        self._lock = threading.Lock()
        self._current = threading.local()

    # ── Consumers ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def add(self, name: str, *, charges: bool = False, **policy: Any) -> None:
        """Add a consumer, or set it up anew, whose handler does what is queued in ``acts``, and else succeeds."""
        self._settings[name] = {"charges": charges} | policy
        consumer = self._consumers[name] = self.consumer(name, **policy)

        @consumer.event_handler
        def handler(event: dict[str, Any], operation: Operation) -> object:
            with self._lock:
                self.runs[name] += 1
            if charges:
                operation.write(self.backend.charge(event["detail"]["data"]["orderID"], self.charge_if))
            act = self.acts.popleft() if self.acts else succeed
            return act(event, operation)

        self._handlers[name] = handler

    def configure(self, **policy: Any) -> None:
        """Change the policy of every consumer."""
        for name, settings in self._settings.items():
            self.add(name, **(settings | policy))

    def consumer(self, name: str, sleep: Callable[[float], None] | None = None, **policy: Any) -> Consumer:
        """Make a consumer without a warm cache, so that every answer comes from the store."""
        return Consumer(
            name,
            self.backend.store,
            key="detail.idempotencyid",
            expires=_expires,
            policy=Policy(**({"warm_cache": 0, "window": WINDOW_DAYS * 86_400} | policy)),
            dead_letters=self.box,
            observe=self._observe,
            region="eu-west-1",
            clock=self.clock,
            sleep=sleep or self.clock.sleep,
            jitter=lambda: 0.5,
        )

    @property
    def first(self) -> str:
        """The consumer that is meant where none is named."""
        return next(iter(self._consumers))

    def record(self, ride: str) -> Any:
        """The record that the first consumer has of a ride's event."""
        return self._consumers[self.first].record(ride)

    def release(self, ride: str) -> bool:
        """Have an operator release a ride's event."""
        return self._consumers[self.first].release(ride)

    def pass_time(self, seconds: float) -> None:
        """Let time pass for every record."""
        keys = [f"{name}#{ride}" for name in self._consumers for ride in self.rides]
        let_pass(self.backend, self.clock, keys, seconds)

    # ── Deliveries ────────────────────────────────────────────────────────────────────────────────────────────────────

    def deliver(self, key: str | None, to: str | None = None, *, again: bool = False, **event: Any) -> Delivered:
        """Deliver an event, and keep how that ended; ``again`` makes it the same delivery as the last one."""
        request = self.request(again)
        self.last = self.deliver_into(Delivered(), self.event(key, **event), to or self.first, request)
        return self.last

    def request(self, again: bool = False) -> str:
        """The id of a delivery."""
        self._requests += not again
        return f"request-{self._requests}"

    def deliver_into(self, delivered: Delivered, event: dict[str, Any], to: str, request: str) -> Delivered:
        """Deliver an event, and note how that ended."""
        self._current.delivered = delivered
        try:
            response = self._handlers[to](event, Invocation(self.clock, request_id=request))
        except (Exception, Crash) as error:  # noqa: BLE001 - what a transport sees of a failed invocation
            delivered.error = error
        else:
            delivered.outcome = response["outcome"]
        return delivered

    def event(
        self,
        key: str | None,
        *,
        ride: str | None = None,
        destination: str = "sector_03",
        age: timedelta = timedelta(),
        expired: bool = False,
        replay: str | None = None,
    ) -> dict[str, Any]:
        """An event of a ride in EventBridge's envelope; its key is the ride unless that is told apart."""
        now = datetime.fromtimestamp(self.clock() / 1000, UTC)
        expires = now - timedelta(minutes=1) if expired else now + timedelta(days=365)
        envelope = {"id": "e1", "region": "eu-west-1", "time": (now - age).isoformat()}
        detail = {
            "idempotencyid": key,
            "expirytime": expires.isoformat(),
            "data": {"orderID": ride or key, "destination": destination},
        }
        return envelope | {"detail": detail} | ({} if replay is None else {"replay-name": replay})

    def stall(self, ride: str) -> Stalled:
        """Deliver to a handler that stops in the middle."""
        stalled = Stalled()
        self.acts.append(stalled.act)
        event, request = self.event(ride), self.request()
        stalled.start(lambda delivered: self.deliver_into(delivered, event, self.first, request))
        self.stalled.append(stalled)
        return stalled

    def _observe(self, observation: Observation) -> None:
        delivered = getattr(self._current, "delivered", None)
        if delivered is not None:
            delivered.observed = observation.outcome


def _expires(event: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(event["detail"]["expirytime"])


@pytest.fixture
def clock() -> ManualClock:
    """Time that the features move."""
    return ManualClock()


@pytest.fixture(autouse=True)
def world(backend: Backend, clock: ManualClock) -> Iterator[World]:
    """What one scenario is about; it leaves no handler behind."""
    world = World(backend, clock)
    yield world
    for stalled in world.stalled:
        stalled.finish()


# ── Given ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(parsers.parse('the consumer "{name}"'))
def _(world: World, name: str) -> None:
    world.add(name)


@given(parsers.parse('the consumer "{name}", which charges the ride'))
def _(world: World, name: str) -> None:
    world.add(name, charges=True)


@given(parsers.parse('the consumer "{name}", which charges the ride without a claim'))
def _(world: World, name: str) -> None:
    world.add(name, charges=True, atomic=True)


@given(parsers.parse("the event of {ride} was processed"))
def _(world: World, ride: str) -> None:
    world.deliver(ride)
    assert world.record(ride).status == "COMPLETED"


@given(parsers.parse("the event of {ride} was dead-lettered"))
def _(world: World, ride: str) -> None:
    assert world.deliver(ride).acknowledged_as("DeadLettered")


@given(parsers.re(r"a handler that fails (?P<times>\d+) times?"), converters={"times": int})
def _(world: World, times: int) -> None:
    world.acts.extend([fail] * times)


@given("a handler that gives up")
def _(world: World) -> None:
    world.acts.append(give_up)


@given(parsers.parse("a handler that returns {result}"))
def _(world: World, result: str) -> None:
    world.acts.append(lambda event, operation: json.loads(result))


@given(parsers.parse("a handler that crashed in the middle of {ride}"))
def _(world: World, ride: str) -> None:
    world.acts.append(crash)
    assert isinstance(world.deliver(ride).error, Crash)


@given(parsers.parse("a handler that is in the middle of {ride}"))
@given(parsers.parse("a second handler that is in the middle of {ride}"))
def _(world: World, ride: str) -> None:
    world.stall(ride)


@given(parsers.parse("the lease of {ride} has run out"))
def _(world: World, ride: str) -> None:
    world.pass_time(LONGER_THAN_A_LEASE_S)


@given("a dead-letter queue that takes nothing")
def _(world: World) -> None:
    world.box.error = DeadLetterError("the queue is gone")


@given(parsers.parse("a back-off of {seconds:d} seconds"))
def _(world: World, seconds: int) -> None:
    world.configure(backoff=lambda attempt: seconds)


@given(parsers.parse("{ride} was charged by someone else"))
def _(world: World, ride: str) -> None:
    assert world.deliver(f"another event of {ride}", ride=ride).acknowledged_as("New")
    world.charge_if = FIRST_CHARGE


# ── When ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@when(parsers.re(r"the event of (?P<ride>\w+) is delivered"))
def _(world: World, ride: str) -> None:
    world.deliver(ride)


@when(parsers.parse('the event of {ride} is delivered to "{consumer}"'))
def _(world: World, ride: str, consumer: str) -> None:
    assert world.deliver(ride, consumer).acknowledged_as("New")


@when(parsers.parse("the same delivery of {ride} comes again"))
def _(world: World, ride: str) -> None:
    world.deliver(ride, again=True)


@when(parsers.parse("the event of {ride} is delivered by a replay"))
def _(world: World, ride: str) -> None:
    world.deliver(ride, replay="eu-west-1.lost-hour")


@when(parsers.parse("the event of {ride} is delivered with another destination"))
def _(world: World, ride: str) -> None:
    world.deliver(ride, destination="sector_09")


@when("an event without an idempotency key is delivered")
def _(world: World) -> None:
    world.deliver(None)


@when(parsers.parse("the event of {ride} is delivered after it has expired"))
def _(world: World, ride: str) -> None:
    world.deliver(ride, expired=True)


@when(parsers.parse("the event of {ride} is delivered {days:d} days late"))
def _(world: World, ride: str, days: int) -> None:
    world.deliver(ride, age=timedelta(days=days))


@when(parsers.parse("the event of {ride} is delivered to two handlers at the same moment"))
def _(world: World, ride: str) -> None:
    together, answered = threading.Barrier(2), threading.Event()

    def wait_for_the_other(event: dict[str, Any], operation: Operation) -> object:
        if world.runs[world.first] == 1:
            assert answered.wait(_PATIENCE_S)
        return succeed(event, operation)

    def deliver(request: str) -> None:
        delivered = Delivered()
        world.pair.append(delivered)
        together.wait(_PATIENCE_S)
        world.deliver_into(delivered, world.event(ride), world.first, request)
        answered.set()

    world.acts.extend([wait_for_the_other] * 2)
    threads = [threading.Thread(target=deliver, args=(world.request(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_PATIENCE_S)
    world.acts.clear()


@when(parsers.parse("{seconds:d} seconds pass"))
def _(world: World, seconds: int) -> None:
    world.pass_time(seconds)


@when(parsers.parse("{days:d} days pass"))
def _(world: World, days: int) -> None:
    world.pass_time(days * 86_400)


@when(parsers.parse("the window of {ride} has ended"))
def _(world: World, ride: str) -> None:
    world.pass_time((WINDOW_DAYS + 1) * 86_400)


@when("the dead-letter queue is back")
def _(world: World) -> None:
    world.box.error = None


@when(parsers.parse("an operator releases {ride}"))
def _(world: World, ride: str) -> None:
    assert world.release(ride)


@when(parsers.parse("the handler in the middle of {ride} goes on"))
@when(parsers.parse("the second handler in the middle of {ride} goes on"))
def _(world: World, ride: str) -> None:
    world.ended = world.stalled.pop(0).finish()


@when(parsers.parse("the handler in the middle of {ride} fails"))
def _(world: World, ride: str) -> None:
    world.stalled[0].fails = True
    world.ended = world.stalled.pop(0).finish()


# ── Then ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@then(parsers.parse('the delivery is acknowledged as "{outcome}"'))
def _(world: World, outcome: str) -> None:
    assert world.last.acknowledged_as(outcome)


@then(parsers.parse('its delivery is acknowledged as "{outcome}"'))
def _(world: World, outcome: str) -> None:
    assert world.ended.acknowledged_as(outcome)


@then("its delivery fails because the lease was lost")
def _(world: World) -> None:
    assert isinstance(world.ended.error, LostLeaseError)


@then("the delivery fails with the handler's own error")
def _(world: World) -> None:
    assert isinstance(world.last.error, RideError)


@then("the delivery fails because the key is busy")
def _(world: World) -> None:
    assert isinstance(world.last.error, BusyError)


@then("the delivery fails because of the dead-letter queue")
def _(world: World) -> None:
    assert isinstance(world.last.error, DeadLetterError)


@then("the delivery fails because of the conflict")
def _(world: World) -> None:
    assert isinstance(world.last.error, EffectConflictError)


@then("the delivery is put off")
def _(world: World) -> None:
    assert isinstance(world.last.error, RetryLaterError)


@then(parsers.parse('one delivery is "{one}" and the other "{other}"'))
def _(world: World, one: str, other: str) -> None:
    assert {delivered.observed for delivered in world.pair} == {one, other}


@then(parsers.re(r'"(?P<consumer>\w+)" has run its handler (?P<times>\d+) times?'), converters={"times": int})
def _(world: World, consumer: str, times: int) -> None:
    assert world.runs[consumer] == times


@then(parsers.parse("the record of {ride} is {status} at attempt {attempt:d}"))
def _(world: World, ride: str, status: str, attempt: int) -> None:
    record = world.record(ride)
    assert (record.status, record.attempt) == (status, attempt)


@then(parsers.parse("the stored result of {ride} is {result}"))
def _(world: World, ride: str, result: str) -> None:
    stored, expected = codec.decode(world.record(ride).result), json.loads(result)
    assert stored == expected
    assert type(stored) is type(expected)


@then(
    parsers.re(r'the dead-letter queue has (?P<count>\d+) events?, because of "(?P<reason>\w+)"'),
    converters={"count": int},
)
def _(world: World, count: int, reason: str) -> None:
    assert [letter.reason for letter in world.box.letters] == [reason] * count


@then(parsers.re(r"(?P<ride>\w+) was charged (?P<times>\d+) times?"), converters={"times": int})
def _(world: World, ride: str, times: int) -> None:
    assert world.backend.charges(ride) == times


# ── A function, and its callers ───────────────────────────────────────────────────────────────────────────────────────


class Pricing:
    """A function that prices a ride once, for a caller in the middle of it and another who comes meanwhile."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stalled = Stalled()
        self._first: Callable[[str], object] = self._function(world.clock.sleep)
        self.prices: list[object] = []
        self.error: BusyError | None = None
        self.runs = 0

    def _function(self, sleep: Callable[[float], None]) -> Callable[[str], object]:
        consumer = self._world.consumer("pricing", sleep, busy="wait", wait_limit=5)

        @consumer.function(key="ride")
        def price(ride: str) -> dict[str, object]:
            self.runs += 1
            self._stalled.began.set()
            assert self._stalled.go_on.wait(_PATIENCE_S)
            return {"ride": ride, "price": f"{self.runs}.50"}

        return price

    def call_first(self, ride: str) -> None:
        """Have the first caller stop in the middle."""
        self._stalled.start(lambda delivered: self.prices.append(self._first(ride)))
        self._world.stalled.append(self._stalled)

    def call_second(self, ride: str, sleep: Callable[[float], None]) -> None:
        """Have the second caller ask, who spends its waiting on ``sleep``."""
        try:
            self.prices.append(self._function(sleep)(ride))
        except BusyError as error:
            self.error = error

    def finish_first(self, seconds: float = 0) -> None:
        """Let the first caller come to its end; a way to spend a waiting time."""
        self._stalled.finish()


@given("a function that prices a ride once", target_fixture="pricing")
def _(world: World) -> Pricing:
    return Pricing(world)


@given(parsers.parse("a caller that is in the middle of pricing {ride}"))
def _(pricing: Pricing, ride: str) -> None:
    pricing.call_first(ride)


@when(parsers.re(r"a second caller, who may wait, prices (?P<ride>\w+)"))
def _(pricing: Pricing, ride: str) -> None:
    pricing.call_second(ride, pricing.finish_first)


@when(parsers.parse("a second caller, who may wait, prices {ride} and the first takes too long"))
def _(world: World, pricing: Pricing, ride: str) -> None:
    pricing.call_second(ride, world.clock.sleep)
    pricing.finish_first()


@then("both callers have the same price")
def _(pricing: Pricing) -> None:
    assert pricing.prices == [{"ride": "order_01", "price": "1.50"}] * 2


@then("the second caller is told that the key is busy")
def _(pricing: Pricing) -> None:
    assert pricing.error is not None
    assert pricing.error.lease_left_ms > 0


@then("the ride was priced 1 time")
def _(pricing: Pricing) -> None:
    assert pricing.runs == 1
