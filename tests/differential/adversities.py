"""What happens to idempotent functions, told once for both sides.

Each adversity is a function of a world and a side. It returns what it saw, in a sentence that is made of nothing but
what it saw; so whatever the table says of a side is what that side did when the table was printed.
"""

import enum
import gc
import itertools
import json
import socket
import sys
import threading
from collections.abc import Callable, Generator
from dataclasses import field, make_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

import pytest

from idempotency import RetryableError
from tests.differential.sides import EventWork, Side
from tests.differential.transports import KilledError, Queue
from tests.differential.world import World

HOUR: Final = 3_600
DAY: Final = 24 * HOUR
ORDER: Final = "order_01"


class Adversity(NamedTuple):
    """One row of the table."""

    name: str
    observe: Callable[[World, Side], str]
    here: str
    """What this layer must be seen to do."""


ADVERSITIES: Final[list[Adversity]] = []


def adversity[F: Callable[[World, Side], str]](name: str, *, here: str) -> Callable[[F], F]:
    """Make a function a row of the table."""

    def add(observe: F) -> F:
        ADVERSITIES.append(Adversity(name, observe, here))
        return observe

    return add


class Payments:
    """Work whose effect is outside of any transaction, and counted."""

    def __init__(self, happen: Callable[[int], object] = lambda number: f"payment {number}") -> None:
        self.runs = 0
        self._happen = happen

    def __call__(self, argument: object) -> object:
        """Charge the card; the result, or what goes wrong, depends on how often it was charged before."""
        self.runs += 1
        return self._happen(self.runs)


def told(call: Callable[[], object]) -> str:
    """Say what a caller is told."""
    try:
        return f"gets {call()!r}"
    except KilledError:
        return "is killed"
    except Exception as error:  # noqa: BLE001 - whatever comes is what is told
        return f"gets {type(error).__name__}"


def times(count: int) -> str:
    """Say how often."""
    return {0: "never charged", 1: "charged once", 2: "charged twice"}.get(count, f"charged {count} times")


def at_once(count: int) -> str:
    """Say how many were at it while the first one still was."""
    return "charged once at a time" if count == 1 else f"charged {count} times at once"


def raising(error: BaseException) -> Any:
    """Raise, where a lambda is wanted."""
    raise error


# ── Two owners ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _overtaken(world: World, side: Side, end: Callable[[], object]) -> tuple[Payments, str]:
    """Have an owner pause past its lease, another take over and complete, and the first one end; then ask again."""
    successor = side.sandbox(world).function("charge", work := Payments())

    def stall(number: int) -> object:
        world.time.advance(40)
        successor(ORDER)
        return end()

    stale = Payments(stall)
    told(lambda: side.sandbox(world).function("charge", stale)(ORDER))
    duplicate = told(lambda: side.sandbox(world).function("charge", work)(ORDER))
    work.runs += stale.runs
    return work, duplicate


@adversity("a stale owner completes after a takeover", here="a duplicate gets 'payment 1', the committed one")
def stale_owner_completes(world: World, side: Side) -> str:
    """The answer that was given to the first duplicate must stay the answer."""
    _, duplicate = _overtaken(world, side, lambda: "stale payment")
    return f"a duplicate {duplicate}{', the committed one' if 'stale' not in duplicate else ', which nobody was given'}"


@adversity("a stale owner raises after a takeover", here="a duplicate gets 'payment 1'; charged twice")
def stale_owner_raises(world: World, side: Side) -> str:
    """A failure that nobody waits for must not undo what has been completed."""
    work, duplicate = _overtaken(world, side, lambda: raising(TimeoutError()))
    return f"a duplicate {duplicate}; {times(work.runs)}"


@adversity("a duplicate while the first one runs", here="the duplicate is refused; charged once at a time")
def busy(world: World, side: Side) -> str:
    """Two deliveries of one event, a second apart."""
    seen: list[str] = []

    def slow(number: int) -> object:
        if number == 1:
            world.time.advance(1)
            duplicate = told(lambda: side.sandbox(world).function("charge", work)(ORDER))
            seen.append(duplicate if "payment" in duplicate else "is refused")
            seen.append(at_once(work.runs))
        return "payment"

    work = Payments(slow)
    told(lambda: side.sandbox(world).function("charge", work)(ORDER))
    return f"the duplicate {'; '.join(seen)}"


@adversity("two machines, one clock 400 ms ahead", here="charged once at a time")
def clock_ahead(world: World, side: Side) -> str:
    """A lease holds by every clock that is allowed."""
    together: list[int] = []

    def late(number: int) -> object:
        if number == 1:
            world.time.advance(29.8)  # of 30 seconds: the first owner still runs
            with world.clock_ahead(400):
                told(lambda: side.sandbox(world).function("charge", work)(ORDER))
            together.append(work.runs)
        return "payment"

    work = Payments(late)
    told(lambda: side.sandbox(world).function("charge", work)(ORDER))
    return at_once(together[0])


@adversity("a live claim whose window has ended", here="charged once at a time")
def window_shorter_than_run(world: World, side: Side) -> str:
    """A window of ten seconds and a run of twelve: the claim holds until its lease ends."""
    together: list[int] = []

    def slow(number: int) -> object:
        if number == 1:
            world.time.advance(12)
            told(lambda: side.sandbox(world, window_s=10).function("charge", work)(ORDER))
            together.append(work.runs)
        return "payment"

    work = Payments(slow)
    told(lambda: side.sandbox(world, window_s=10).function("charge", work)(ORDER))
    return at_once(together[0])


@adversity("a process dies whose clock was a day ahead", here="a retry after five minutes gets 'payment 2'")
def clock_a_day_ahead(world: World, side: Side) -> str:
    """A lease that ends later than any lease can must not hold its key."""
    work = Payments(lambda number: raising(KilledError()) if number == 1 else f"payment {number}")
    with world.clock_ahead(DAY * 1000):
        told(lambda: side.sandbox(world).function("charge", work)(ORDER))
    world.time.advance(300)
    return f"a retry after five minutes {told(lambda: side.sandbox(world).function('charge', work)(ORDER))}"


@adversity("a claim in Redis is taken over while its owner completes", here="the owner's answer stays the answer")
def redis_takeover(world: World, side: Side) -> str:
    """The owner completes before each command of the takeover in turn; what it was told must stay true."""
    replaced = []
    for number in itertools.count(1):
        order = f"order_{number}"
        owners, duplicate, was_reached = _owner_completes_before(number, order, world, side)
        if not was_reached:
            break
        if "owner" in owners and duplicate != owners:
            replaced.append(number)
    if not replaced:
        return "the owner's answer stays the answer"
    places = ", ".join(map(str, replaced))
    return f"the owner's answer is replaced where it comes before command {places} of {number - 1}"


def _owner_completes_before(number: int, order: str, world: World, side: Side) -> tuple[str, str, bool]:
    """Return what the owner is told, what a later duplicate is told, and whether there was such a command."""
    began, goes_on = threading.Event(), threading.Event()
    owners: list[str] = []

    def stall(_: int) -> object:
        began.set()
        goes_on.wait(timeout=10)
        return "the owner's payment"

    def complete() -> None:
        goes_on.set()
        thread.join()

    def charge(work: Payments) -> str:
        return told(lambda: side.sandbox(world, redis=True).function("charge", work)(order))

    thread = threading.Thread(target=lambda: owners.append(charge(Payments(stall))))
    thread.start()
    began.wait(timeout=10)
    world.time.advance(40)
    world.redis.before(number, complete)
    charge(Payments())
    was_reached = goes_on.is_set()
    complete()
    return owners[0], charge(Payments()), was_reached


# ── Answers that get lost ─────────────────────────────────────────────────────────────────────────────────────────────


@adversity(
    "the answer to a claim is lost",
    here="the caller gets 'payment 1', a retry after a minute gets 'payment 1'; charged once",
)
def claim_answer_lost(world: World, side: Side) -> str:
    """The claim took place: who made it must recognise it."""
    world.wire.lose_answer()
    work = Payments()
    caller = told(lambda: side.sandbox(world).function("charge", work)(ORDER))
    world.time.advance(60)
    retry = told(lambda: side.sandbox(world).function("charge", work)(ORDER))
    return f"the caller {caller}, a retry after a minute {retry}; {times(work.runs)}"


@adversity("the answer to a completion is lost", here="the caller gets 'payment 1'; charged once")
def completion_answer_lost(world: World, side: Side) -> str:
    """The completion took place."""

    def lose(number: int) -> object:
        world.wire.lose_answer()
        return f"payment {number}"

    work = Payments(lose)
    caller = told(lambda: side.sandbox(world).function("charge", work)(ORDER))
    told(lambda: side.sandbox(world).function("charge", work)(ORDER))
    return f"the caller {caller}; {times(work.runs)}"


@adversity("four refusals by throttling before a claim", here="the caller gets 'payment 1'")
def claim_throttled(world: World, side: Side) -> str:
    """A hot partition recovers within a second."""
    world.wire.refuse("ProvisionedThroughputExceededException", times=4)
    return f"the caller {told(lambda: side.sandbox(world).function('charge', Payments())(ORDER))}"


@adversity("four refusals by throttling before a completion", here="the caller gets 'payment 1'; charged once")
def completion_throttled(world: World, side: Side) -> str:
    """The card is charged: giving up now means charging it again."""

    def throttle(number: int) -> object:
        if number == 1:
            world.wire.refuse("ProvisionedThroughputExceededException", times=4)
        return f"payment {number}"

    work = Payments(throttle)
    caller = told(lambda: side.sandbox(world).function("charge", work)(ORDER))
    world.wire.mend()
    world.time.advance(60)  # Lambda's first retry
    told(lambda: side.sandbox(world).function("charge", work)(ORDER))
    return f"the caller {caller}; {times(work.runs)}"


@adversity("the handler raises, and that cannot be recorded", here="the caller gets CardDeclinedError")
def failure_not_recorded(world: World, side: Side) -> str:
    """Who looks for the fault must be shown the handler's error."""

    def decline(_: int) -> object:
        world.wire.refuse("InternalServerError", times=99)
        raise CardDeclinedError

    return f"the caller {told(lambda: side.sandbox(world).function('charge', Payments(decline))(ORDER))}"


class CardDeclinedError(Exception):
    """The handler's own error."""


@adversity("completions are refused (no permission), ten deliveries", here="charged 3 times, then set aside")
def completion_refused(world: World, side: Side) -> str:
    """What is refused for good must not be charged at every delivery."""

    def refuse(_: int) -> object:
        world.wire.refuse("AccessDeniedException", times=1)
        return "payment"

    return _delivered_ten_times(world, side, Payments(refuse))


def _delivered_ten_times(world: World, side: Side, work: Payments, **settings: Any) -> str:
    last = ""
    for _ in range(10):
        last = told(lambda: side.sandbox(world, **settings).handler(work)(event()))
        world.wire.mend()
        world.time.advance(300)
    return times(work.runs) + (", then set aside" if "Quarantined" in last else "")


# ── One store object ──────────────────────────────────────────────────────────────────────────────────────────────────


@adversity("a function calls another one over the same store object", here="a duplicate gets 'done'; charged once")
def nested(world: World, side: Side) -> str:
    """The outer call's record must be completed under the outer call's key."""
    sandbox = side.sandbox(world)
    work = Payments()
    charge = sandbox.function("charge", work)
    book = sandbox.function("book", lambda order: charge(order) and "done")
    book(ORDER)
    return f"a duplicate {told(lambda: book(ORDER))}; {times(work.runs)}"


@adversity("two threads over the same store object", here="a duplicate gets 'sent'; charged once")
def threaded(world: World, side: Side) -> str:
    """One thread's function begins, another one's runs from end to end, the first one ends; then it is called again."""
    sandbox = side.sandbox(world)
    other_done = threading.Event()
    work = Payments()
    charge = sandbox.function("charge", work)
    began = threading.Event()

    def send(_: str) -> object:
        began.set()
        other_done.wait(timeout=10)
        return "sent"

    mail = sandbox.function("mail", send)
    thread = threading.Thread(target=lambda: told(lambda: mail(ORDER)))
    thread.start()
    began.wait(timeout=10)
    charge(ORDER)
    other_done.set()
    thread.join()
    return f"a duplicate {told(lambda: mail(ORDER))}; {times(work.runs)}"


@adversity("two functions are called with one key", here="both do their work")
def two_functions(world: World, side: Side) -> str:
    """A refund is no duplicate of the charge."""
    sandbox, charges, refunds = side.sandbox(world), Payments(), Payments()
    for name, work in (("charge", charges), ("refund", refunds)):
        sandbox.function(name, work)(ORDER)
    return "both do their work" if charges.runs == refunds.runs == 1 else "the second gets the first one's answer"


# ── Handlers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _coroutine(event: dict[str, Any]) -> object:
    return event


def _generator(event: dict[str, Any]) -> Generator[object]:
    yield event


def _never_done(handler: EventWork) -> Callable[[World, Side], str]:
    def observe(world: World, side: Side) -> str:
        """Work that does not happen when it is called must not pass for done."""
        try:
            decorated = side.sandbox(world).handler(handler)
        except ValueError:
            return "refused when it is decorated"
        caller = told(lambda: decorated(event()))
        gc.collect()  # a coroutine that nobody awaited warns when it is freed
        return f"decorated; every delivery {caller}"

    return observe


adversity("the handler is an async def function", here="refused when it is decorated")(_never_done(_coroutine))
adversity("the handler is a generator function", here="refused when it is decorated")(_never_done(_generator))


@adversity("a handler that asks five times to be tried later", here="done at delivery 6")
def retryable(world: World, side: Side) -> str:
    """Waiting for something is no failure of the event."""
    work = Payments(lambda number: raising(RetryableError()) if number <= 5 else "payment")
    for number in range(1, 9):
        last = told(lambda: side.sandbox(world).handler(work)(event()))
        if "RetryableError" not in last:
            return f"done at delivery {number}" if work.runs == number else f"given up at delivery {number}"
        world.time.advance(60)
    return "never done"


@adversity("a crash of work that must not be repeated", here="charged once, then set aside")
def crash_of_work_that_must_not_be_repeated(world: World, side: Side) -> str:
    """After a crash nobody knows whether the card was charged."""
    work = Payments(lambda number: raising(KilledError()) if number == 1 else "payment")
    return _delivered_ten_times(world, side, work, repeats=False)


# ── Batches ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _bodies(count: int) -> list[str]:
    return [json.dumps(event(f"id-{number}", number=number)) for number in range(count)]


def _number(of: Any) -> int:
    number: int = of["detail"]["data"]["number"]
    return number


class Batch:
    """A queue's messages, and which of them were charged."""

    def __init__(self, world: World, bodies: list[str], *, reports: bool = True) -> None:
        self.charged: set[int] = set()
        self.queue = Queue(world.time, bodies, reports=reports)
        self._world = world

    def drain(self, side: Side, charge: EventWork, timeout_s: float = 60) -> None:
        """Deliver until the queue is empty, each time to a new process."""

        def work(event: dict[str, Any]) -> object:
            charge(event)
            self.charged.add(_number(event))
            return "payment"

        def deliver(batch: dict[str, Any]) -> Any:
            return side.sandbox(self._world, timeout_s=timeout_s).batch(work)(batch)

        self.queue.drain(deliver, timeout_s)

    def set_aside(self) -> int:
        """Return how many messages are in a dead-letter queue."""
        return len(self.queue.dead) + len(self._world.box.letters)


@adversity(
    "one of three records of a batch cannot be read", here="2 of 2 neighbours charged; set aside at its receive 1"
)
def unreadable_record(world: World, side: Side) -> str:
    """Nobody else pays for a broken message, and no retry mends it."""
    first, second = _bodies(2)
    batch = Batch(world, [first, "[" * 20_000, second])
    batch.drain(side, lambda event: None)
    fate = f"set aside at its receive {batch.queue.receives[1]}" if batch.set_aside() == 1 else "lost"
    return f"{len(batch.charged)} of 2 neighbours charged; {fate}"


@adversity("ten records of 25 s, timeout 60 s, one failed round", here="10 of 10 charged; 0 dead letters")
def failed_round(world: World, side: Side) -> str:
    """A dependency that is down for a moment must not drive healthy messages into the dead-letter queue."""
    is_down = world.time.now_ms + 30_000

    def charge(_: object) -> None:
        if world.time() < is_down:
            world.process.spend(1)
            raise ConnectionError
        world.process.spend(25)

    batch = Batch(world, _bodies(10))
    batch.drain(side, charge)
    return f"{len(batch.charged)} of 10 charged; {batch.set_aside()} dead letters"


@adversity("the first of ten records kills its process", here="9 of 9 neighbours charged; 1 dead letter")
def crasher_in_a_batch(world: World, side: Side) -> str:
    """After five receives of everything, only the crasher may be in the dead-letter queue."""

    def charge(event: dict[str, Any]) -> None:
        world.process.spend(0.5)
        if _number(event) == 0:
            raise KilledError
        world.process.spend(0.5)

    batch = Batch(world, _bodies(10))
    batch.drain(side, charge)
    dead = batch.set_aside()
    return f"{len(batch.charged)} of 9 neighbours charged; {dead} dead letter{'' if dead == 1 else 's'}"


def _lost_without_reports(failing: int) -> Callable[[World, Side], str]:
    def observe(world: World, side: Side) -> str:
        """A mapping without ReportBatchItemFailures reads nothing but whether the invocation failed."""
        rounds: list[int] = []

        def charge(event: dict[str, Any]) -> None:
            rounds.append(_number(event))
            if rounds.count(_number(event)) == 1 and _number(event) < failing:
                raise ConnectionError

        batch = Batch(world, _bodies(3), reports=False)
        batch.drain(side, charge)
        return f"{3 - len(batch.charged) - batch.set_aside()} of 3 lost"

    return observe


adversity("ReportBatchItemFailures is forgotten, all three fail once", here="0 of 3 lost")(_lost_without_reports(3))
adversity("ReportBatchItemFailures is forgotten, one of three fails", here="1 of 3 lost")(_lost_without_reports(1))


# ── HTTP ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def request(body: str = '{"seats": 1}') -> dict[str, Any]:
    """Return a request as an HTTP API hands it over."""
    return {
        "version": "2.0",
        "rawPath": "/rides",
        "rawQueryString": "",
        "headers": {"idempotency-key": "key-1", "content-type": "application/json"},
        "requestContext": {"http": {"method": "POST", "path": "/rides"}},
        "body": body,
        "isBase64Encoded": False,
    }


def _status(world: World, side: Side, work: EventWork, body: str = '{"seats": 1}') -> str:
    """Say what a client gets: an invocation that fails is a 502 of API Gateway's."""
    try:
        response: Any = side.sandbox(world).http(work)(request(body))
    except Exception:  # noqa: BLE001 - whatever it is
        return "gets 502"
    return f"gets {response['statusCode']}"


def _answering(*statuses: int) -> Payments:
    return Payments(lambda number: {"statusCode": statuses[min(number, len(statuses)) - 1], "body": "{}"})


@adversity("an HTTP key comes again with another body", here="the second client gets 422; charged once")
def http_other_body(world: World, side: Side) -> str:
    """A client's mistake is answered as one."""
    work = _answering(201)
    _status(world, side, work)
    return f"the second client {_status(world, side, work, '{}')}; {times(work.runs)}"


@adversity("an HTTP retry while the first request is at work", here="the retry gets 409; charged once")
def http_busy(world: World, side: Side) -> str:
    """The client is told to come again."""
    seen: list[str] = []

    def slow(number: int) -> object:
        if number == 1:
            seen.append(_status(world, side, work))
        return {"statusCode": 201, "body": "{}"}

    work = Payments(slow)
    _status(world, side, work)
    return f"the retry {seen[0] if seen else 'never comes'}; {times(work.runs)}"


@adversity("an HTTP handler answers 503, and the client tries again", here="the retry gets 201")
def http_server_error(world: World, side: Side) -> str:
    """An answer of 5xx is a failure, and no result."""
    work = _answering(503, 201)
    _status(world, side, work)
    return f"the retry {_status(world, side, work)}"


# ── Time ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _redelivered(world: World, side: Side, after_s: int) -> str:
    work = Payments()
    for pause_s in (0, after_s):
        world.time.advance(pause_s)
        told(lambda: side.sandbox(world).handler(work)(event()))
    return times(work.runs)


@adversity("redelivery after 2 hours (Lambda retries for 6)", here="charged once")
def redelivered_after_hours(world: World, side: Side) -> str:
    """Lambda keeps an asynchronous event for up to six hours."""
    return _redelivered(world, side, 2 * HOUR)


@adversity("redrive from a dead-letter queue after 8 days", here="charged once")
def redelivered_after_days(world: World, side: Side) -> str:
    """A dead-letter queue keeps an event for up to fourteen days."""
    return _redelivered(world, side, 8 * DAY)


@adversity("a process that is killed by its event, delivered ten times", here="killed 3 times, then set aside")
def poison(world: World, side: Side) -> str:
    """What kills every process that touches it must be put out of the way."""
    work = Payments(lambda _: raising(KilledError()))
    for _ in range(10):
        last = told(lambda: side.sandbox(world).handler(work)(event()))
        world.time.advance(5 * 60)
    return f"killed {work.runs} times" + ("" if last == "is killed" else ", then set aside")


@adversity("an endpoint that hangs, with 3 seconds left", here="the caller is told in time")
def hung_endpoint(world: World, side: Side) -> str:
    """A server that takes the connection and says nothing: the caller must hear of it before Lambda kills it."""
    outcome: list[str] = []
    left_s = 3.0
    with socket.create_server(("127.0.0.1", 0)) as server, world.endpoint(server.getsockname()[1]):
        charge = side.sandbox(world, timeout_s=left_s).function("charge", Payments())
        thread = threading.Thread(target=lambda: outcome.append(told(lambda: charge(ORDER))))
        thread.start()
        thread.join(left_s)
        in_time = bool(outcome)
    thread.join()  # the closed socket ends the wait
    return "the caller is told in time" if in_time else "the invocation is killed while it waits"


# ── Keys and payloads ─────────────────────────────────────────────────────────────────────────────────────────────────


def event(key: str | None = "id-1", **data: object) -> dict[str, Any]:
    """Return an event of EventBridge's."""
    return {
        "version": "0",
        "id": "e1",
        "source": "acr.com.car-ride",
        "detail-type": "CarRideEvent",
        "account": "123456789012",
        "resources": [],
        "time": "2027-01-15T08:00:00Z",
        "region": "eu-west-1",
        "detail": {"idempotencyid": key, "tenant": "acr", "data": {"orderID": ORDER} | data},
    }


def _two(side: Side, world: World, work: EventWork, first: Any, second: Any, key: str) -> str:
    handler = side.sandbox(world).handler(work, key=key)
    told(lambda: handler(first))
    return told(lambda: handler(second))


@adversity("two orders, the composite key of both lacks its order", here="both go to the dead-letter queue")
def partly_missing_key(world: World, side: Side) -> str:
    """The key [tenant, order] of an event without an order would be shared by all of its tenant's."""
    work = Payments()
    second = _two(side, world, work, event(amount=1), event(amount=2), "[detail.tenant, detail.order]")
    if "DeadLettered" in second and not work.runs:
        return "both go to the dead-letter queue"
    return f"the second {second}; {times(work.runs)}"


@adversity("two orders, neither has a key", here="both go to the dead-letter queue")
def missing_key(world: World, side: Side) -> str:
    """Without a key nothing can be recognised: no delivery of such an event may run unnoticed."""
    work = Payments()
    second = _two(side, world, work, event(None), event(None), "detail.idempotencyid")
    if "DeadLettered" in second and not work.runs:
        return "both go to the dead-letter queue"
    return f"the second {second}; {times(work.runs)}"


@adversity("a known key comes with another payload", here="the second goes to the dead-letter queue; charged once")
def other_payload(world: World, side: Side) -> str:
    """Two operations under one key: the second one must not be taken for done."""
    work = Payments()
    second = _two(side, world, work, event(amount=1), event(amount=2), "detail.idempotencyid")
    if "DeadLettered" in second:
        second = "goes to the dead-letter queue"
    return f"the second {second}; {times(work.runs)}"


@adversity("a duplicate in Redis, while payloads are compared", here="the second gets 'Duplicate'; charged once")
def redis_duplicate(world: World, side: Side) -> str:
    """The same payload is no mismatch."""
    work = Payments(lambda number: f"payment {number}")
    handler = side.sandbox(world, redis=True).handler(work, payload="detail.data")
    handler(event())
    return f"the second {told(lambda: handler(event()))}; {times(work.runs)}"


class Kind(str, enum.Enum):  # noqa: UP042 - a StrEnum is written as its value; this is the other kind
    """What is ordered."""

    RIDE = "ride"


@adversity("the key is a (str, Enum), then its plain value", here="the second gets 'payment 1'; charged once")
def enum_key(world: World, side: Side) -> str:
    """One key, however the caller has it."""
    work = Payments()
    charge = side.sandbox(world).function("charge", work)
    charge(Kind.RIDE)
    return f"the second {told(lambda: charge('ride'))}; {times(work.runs)}"


@adversity("a deployment gives the function another parameter", here="the call again gets 'payment 1'; charged once")
def parameter_added(world: World, side: Side) -> str:
    """A parameter with a default changes nothing about the calls before it."""
    work = Payments()

    def before(order: str) -> object:
        return work(order)

    def after(order: str, currency: str = "EUR") -> object:
        return work(order)

    side.sandbox(world).function("charge", before)(ORDER)
    again = told(lambda: side.sandbox(world).function("charge", after)(ORDER))
    return f"the call again {again}; {times(work.runs)}"


@adversity("a deployment renames the handler", here="a redelivery is not charged again")
def renamed(world: World, side: Side) -> str:
    """What was done before a refactoring stays done."""
    work = Payments()
    for name in ("handler", "payment_handler"):
        told(lambda name=name: side.sandbox(world).handler(work, name=name)(event()))  # type: ignore[misc] # bound now
    return f"a redelivery is {'not ' if work.runs == 1 else ''}charged again"


# ── Results ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Receipt:
    """A value that has no stored form."""


def _answer(call: Callable[[], object], value: object) -> str:
    try:
        got = call()
        return "gets it" if type(got) is type(value) and got == value else f"gets {got!r} ({type(got).__name__})"
    except Exception as error:  # noqa: BLE001 - whatever comes is what is told
        return f"gets {type(error).__name__}"


def _returned(value: object) -> Callable[[World, Side], str]:
    def observe(world: World, side: Side) -> str:
        work = Payments(lambda _: value)
        charge = side.sandbox(world).function("charge", work)
        caller = _answer(lambda: charge(ORDER), value)
        world.time.advance(60)  # whatever claim was left behind has ended
        return f"the caller {caller}, a duplicate {_answer(lambda: charge(ORDER), value)}; {times(work.runs)}"

    return observe


_KEPT: Final[dict[str, object]] = {
    "0": 0,
    "False": False,
    "[]": [],
    "None": None,
    "a Decimal": Decimal("12.50"),
    "a datetime": datetime(2027, 1, 15, 8, tzinfo=UTC),
    "a (str, Enum)": Kind.RIDE,
}
_OMITTED: Final[dict[str, object]] = {"of a type that cannot be stored": Receipt(), "500 KB": "x" * 500_000}

for _name, _value in _KEPT.items():
    adversity(f"the result is {_name}", here="the caller gets it, a duplicate gets it; charged once")(_returned(_value))
for _name, _value in _OMITTED.items():
    adversity(f"the result is {_name}", here="the caller gets it, a duplicate gets ResultOmittedError; charged once")(
        _returned(_value)
    )


@adversity("the class of a result has gained a field", here="a duplicate gets it, with the new field's default")
def result_gained_a_field(world: World, side: Side) -> str:
    """A result that was stored before a deployment can be read after it."""
    before = make_dataclass("Invoice", [("number", str)], module=__name__)
    after = make_dataclass("Invoice", [("number", str), ("paid", list, field(default_factory=list))], module=__name__)
    answers = []
    with pytest.MonkeyPatch.context() as patch:
        for invoice in (before, after):
            patch.setattr(sys.modules[__name__], "Invoice", invoice, raising=False)
            charge = side.sandbox(world).function("charge", Payments(lambda _: before("inv_1")), returns=invoice)
            answers.append(_answer(lambda charge=charge: charge(ORDER), after("inv_1")))  # type: ignore[misc] # bound now
    return f"a duplicate {answers[1]}, with the new field's default"
