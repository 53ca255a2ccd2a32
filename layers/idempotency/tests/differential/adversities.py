"""The adversities, each written once for both sides.

Each adversity is a function of a case. It returns a sentence that describes what this side did in
this run.
"""

import asyncio
import enum
import gc
import json
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from carride_idempotency.protocol.externals import NOT_DONE, Done
from carride_idempotency.testing import Crash, http_event, sqs_event
from tests.differential.sides import EventWork, Side, Work
from tests.differential.world import LOST, World, inside
from tests.samples import event

MINUTE: Final = 60
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
VISIBILITY_TIMEOUTS: Final = 6
"""AWS's advice: a queue hides a message for six times the function's timeout."""
MAX_RECEIVES: Final = 5


class Case(World):
    """One side in a world of its own. Each call is made in a new process."""

    def __init__(self, side: Side) -> None:
        super().__init__()
        self.process = partial(side, self)

    def charge(self, work: Work) -> str:
        return got(lambda: self.process().function("charge", work)("order_01"))

    def handle(self, work: EventWork, given: dict[str, Any] | None = None, **options: Any) -> str:
        return got(lambda: self.process().handler(work, **options)(given or event()))


class Adversity(NamedTuple):
    name: str
    here: str
    """What this layer must be seen to do."""
    seen: Callable[[Case], str]

    def observe(self, side: Side) -> str:
        with inside(Case(side)) as case:
            return self.seen(case)


ADVERSITIES: Final[list[Adversity]] = []


def adversity[F: Callable[[Case], str]](name: str, *, here: str) -> Callable[[F], F]:
    """Make a function a row of the table."""

    def add(seen: F) -> F:
        ADVERSITIES.append(Adversity(name, here, seen))
        return seen

    return add


class Payments:
    """Work whose effect is outside of any transaction, and counted."""

    def __init__(
        self, happen: Callable[[int], object] = lambda number: f"payment {number}"
    ) -> None:
        self.runs = 0
        self._happen = happen

    def __call__(self, argument: object) -> object:
        self.runs += 1
        return self._happen(self.runs)

    @property
    def times(self) -> str:
        return {0: "never charged", 1: "charged once", 2: "charged twice"}.get(
            self.runs, f"charged {self.runs} times"
        )


def first(happen: Callable[[], object]) -> Payments:
    """Return work in whose first run something happens."""

    def run(number: int) -> object:
        if number == 1:
            happen()
        return f"payment {number}"

    return Payments(run)


def got(call: Callable[[], object], show: Callable[[object], str] = repr) -> str:
    """Say what a caller gets."""
    try:
        return f"gets {show(call())}"
    except Crash:
        return "is killed"
    except Exception as error:  # noqa: BLE001 - this is what the caller gets
        return f"gets {type(error).__name__}"


def raising(error: BaseException) -> Any:
    """Raise, where a lambda is wanted."""
    raise error


def _overtaken(case: Case, end: Callable[[], object]) -> tuple[Payments, str]:
    """Let an owner pause past its lease while another takes over and completes; end the first.

    Then ask again.
    """
    work = Payments()

    def stall(_: object) -> object:
        case.clock.advance(40)
        case.charge(work)
        return end()

    case.charge(Payments(stall))
    return work, case.charge(work)


@adversity(
    "a stale owner completes after a takeover",
    here="a duplicate gets 'payment 1', the committed one",
)
def stale_owner_completes(case: Case) -> str:
    _, duplicate = _overtaken(case, lambda: "stale payment")
    origin = "which nobody was given" if "stale" in duplicate else "the committed one"
    return f"a duplicate {duplicate}, {origin}"


@adversity(
    "a stale owner raises after a takeover",
    here="a duplicate gets 'payment 1'; the successor charged once",
)
def stale_owner_raises(case: Case) -> str:
    work, duplicate = _overtaken(case, lambda: raising(TimeoutError()))
    return f"a duplicate {duplicate}; the successor {work.times}"


@adversity("two machines, one clock 400 ms ahead", here="charged once at a time")
def clock_ahead(case: Case) -> str:
    together: list[int] = []

    def meet() -> None:
        case.clock.advance(29.8)
        with patch.object(case.clock, "ahead_ms", 400):
            case.charge(work)
        together.append(work.runs)

    work = first(meet)
    case.charge(work)
    return "charged once at a time" if together == [1] else f"charged {together[0]} times at once"


@adversity(
    "a process dies whose clock was a day ahead", here="a retry after five minutes gets 'payment 2'"
)
def clock_a_day_ahead(case: Case) -> str:
    work = first(lambda: raising(Crash()))
    with patch.object(case.clock, "ahead_ms", DAY * 1000):
        case.charge(work)
    case.clock.advance(5 * MINUTE)
    return f"a retry after five minutes {case.charge(work)}"


@adversity(
    "the answer to a claim is lost",
    here="the caller gets 'payment 1', a retry after a minute gets 'payment 1'",
)
def claim_answer_lost(case: Case) -> str:
    case.wire.faults.append(LOST)
    work = Payments()
    caller = case.charge(work)
    case.clock.advance(MINUTE)
    return f"the caller {caller}, a retry after a minute {case.charge(work)}"


@adversity(
    "four refusals by throttling before a completion",
    here="the caller gets 'payment 1'; charged once",
)
def completion_throttled(case: Case) -> str:
    work = first(lambda: case.wire.faults.extend(["ProvisionedThroughputExceededException"] * 4))
    caller = case.charge(work)
    case.wire.faults.clear()
    case.clock.advance(MINUTE)  # Lambda's first retry
    case.charge(work)
    return f"the caller {caller}; {work.times}"


class CardDeclinedError(Exception):
    """The handler's own error."""


@adversity(
    "the handler raises, and that cannot be recorded", here="the caller gets CardDeclinedError"
)
def failure_not_recorded(case: Case) -> str:
    def decline(_: object) -> object:
        case.wire.faults.extend(["InternalServerError"] * 99)
        raise CardDeclinedError

    return f"the caller {case.charge(decline)}"


def _delivered_ten_times(case: Case, work: Payments) -> str:
    last = ""
    for _ in range(10):
        last = case.handle(work)
        case.wire.faults.clear()
        case.clock.advance(5 * MINUTE)
    return work.times + (", then set aside" if "Quarantined" in last else "")


@adversity(
    "completions are refused (no permission), ten deliveries",
    here="charged 3 times, then set aside",
)
def completion_refused(case: Case) -> str:
    return _delivered_ten_times(
        case, Payments(lambda _: case.wire.faults.append("AccessDeniedException"))
    )


@adversity(
    "an event that kills every process, delivered ten times", here="charged 3 times, then set aside"
)
def poison(case: Case) -> str:
    return _delivered_ten_times(case, Payments(lambda _: raising(Crash())))


@adversity(
    "a function calls another one over the same store object",
    here="a duplicate gets 'done'; charged once",
)
def nested(case: Case) -> str:
    sandbox = case.process()
    work = Payments()
    charge = sandbox.function("charge", work)
    book = sandbox.function("book", lambda order: charge(order) and "done")
    book("order_01")
    return f"a duplicate {got(lambda: book('order_01'))}; {work.times}"


@adversity("the handler is an async def function", here="charged once")
def coroutine_function(case: Case) -> str:
    work = Payments()

    async def charge(given: dict[str, Any]) -> object:
        await asyncio.sleep(0)
        return work(given)

    decorated = case.process().handler(charge)
    for _ in range(2):
        got(lambda: decorated(event()))
    gc.collect()  # a coroutine that nobody awaited warns when it is freed
    return work.times


def _bodies(count: int) -> list[str]:
    return [json.dumps(event(f"id-{number}", number=number)) for number in range(count)]


def _number(of: Any) -> int:
    number: int = of["detail"]["data"]["number"]
    return number


def _drained(case: Case, bodies: list[str], charge: EventWork) -> tuple[int, list[int], int]:
    """Have an event source mapping empty a queue, in batches of all messages that are visible.

    Returns how many messages were charged, how often each was received, and how many were set
    aside.
    """
    charged = set[int]()
    receives = [0] * len(bodies)
    dead = 0
    sent_ms = case.clock()

    def work(given: dict[str, Any]) -> object:
        charge(given)
        charged.add(_number(given))
        return "payment"

    waiting = list(range(len(bodies)))
    while waiting:
        records = {}
        for number in waiting:
            receives[number] += 1
            batch = sqs_event(bodies[number], clock=lambda: sent_ms, received=receives[number])
            records[f"message-{number}"] = batch["Records"][0] | {"messageId": f"message-{number}"}
        failed = [*records]
        with suppress(Exception, Crash):  # an invocation that failed has failed for all records
            response = case.process(timeout_s=MINUTE).batch(work)({"Records": [*records.values()]})
            failed = [failure["itemIdentifier"] for failure in response["batchItemFailures"]]
        tried = [number for number in waiting if f"message-{number}" in failed]
        waiting = [number for number in tried if receives[number] < MAX_RECEIVES]
        dead += len(tried) - len(waiting)
        case.clock.advance(VISIBILITY_TIMEOUTS * MINUTE)
    return len(charged), receives, dead + len(case.dead_letters.letters)


@adversity(
    "one of three records of a batch cannot be read",
    here="2 of 2 neighbours charged; set aside at receive 1",
)
def unreadable_record(case: Case) -> str:
    before, after = _bodies(2)
    charged, receives, dead = _drained(case, [before, "[" * 20_000, after], lambda _: None)
    poison = f"set aside at receive {receives[1]}" if dead == 1 else "lost"
    return f"{charged} of 2 neighbours charged; {poison}"


@adversity(
    "the first of ten records kills its process", here="9 of 9 neighbours charged; 1 set aside"
)
def crasher_in_a_batch(case: Case) -> str:
    def charge(given: dict[str, Any]) -> None:
        case.concurrency.spend(0.5)
        if _number(given) == 0:
            raise Crash
        case.concurrency.spend(0.5)

    charged, _, dead = _drained(case, _bodies(10), charge)
    return f"{charged} of 9 neighbours charged; {dead} set aside"


def _status(case: Case, work: EventWork, body: object = "a seat") -> str:
    """Say what a client gets: an invocation that fails is a 502 of API Gateway's."""
    request = http_event("POST", "/rides", body)
    try:
        response: Any = case.process().http(work)(request)
    except Exception:  # noqa: BLE001 - whatever it is
        return "gets 502"
    return f"gets {response['statusCode']}"


def _answering(*statuses: int) -> Payments:
    return Payments(
        lambda number: {"statusCode": statuses[min(number, len(statuses)) - 1], "body": "{}"}
    )


@adversity(
    "an HTTP key comes again with another body", here="the second client gets 422; charged once"
)
def http_other_body(case: Case) -> str:
    work = _answering(201)
    _status(case, work)
    return f"the second client {_status(case, work, 'two seats')}; {work.times}"


@adversity(
    "an HTTP retry while the first request is at work", here="the retry gets 409; charged once"
)
def http_busy(case: Case) -> str:
    seen: list[str] = []

    def slow(number: int) -> object:
        if number == 1:
            seen.append(_status(case, work))
        return {"statusCode": 201, "body": "{}"}

    work = Payments(slow)
    _status(case, work)
    return f"the retry {seen[0]}; {work.times}"


@adversity("an HTTP handler answers 503, and the client tries again", here="the retry gets 201")
def http_server_error(case: Case) -> str:
    work = _answering(503, 201)
    _status(case, work)
    return f"the retry {_status(case, work)}"


@adversity(
    "a crash after the call that charged the card, whose system can be asked",
    here="charged once; it is done",
)
def crash_after_a_call(case: Case) -> str:
    work, probe = first(lambda: raising(Crash())), lambda _: Done(1) if work.runs else NOT_DONE
    for _ in range(2):
        last = case.handle(work, probe=probe)
        case.clock.advance(HOUR)
    return f"{work.times}; it is {'not ' * ('killed' in last)}done"


def _redelivered(after_s: int) -> Callable[[Case], str]:
    def seen(case: Case) -> str:
        work = Payments()
        case.handle(work)
        case.clock.advance(after_s)
        case.handle(work)
        return work.times

    return seen


adversity("redelivery after 2 hours (Lambda retries for 6)", here="charged once")(
    _redelivered(2 * HOUR)
)
adversity("redrive from a dead-letter queue after 8 days", here="charged once")(
    _redelivered(8 * DAY)
)


def _two(key: str, *events: dict[str, Any]) -> Callable[[Case], str]:
    def seen(case: Case) -> str:
        work = Payments()
        second = [case.handle(work, given, key=key) for given in events][1]
        return f"the second {'is set aside' if 'DeadLettered' in second else second}; {work.times}"

    return seen


_ONE = event(amount=1)
_OTHER = event(amount=2)

adversity(
    "two orders, the composite key of both lacks its order",
    here="the second is set aside; never charged",
)(_two("[detail.data.orderID, detail.order]", _ONE, _OTHER))
adversity("a known key comes with another payload", here="the second is set aside; charged once")(
    _two("detail.idempotencyid", _ONE, _OTHER)
)


@adversity("a deployment renames the handler", here="a redelivery is not charged again")
def renamed(case: Case) -> str:
    work = Payments()
    for name in ("handler", "payment_handler"):
        case.handle(work, name=name)
    return f"a redelivery is {'not ' if work.runs == 1 else ''}charged again"


class Kind(str, enum.Enum):  # noqa: UP042 - a StrEnum is written as its value; this is the other kind
    RIDE = "ride"


class Receipt:
    """A value that has no stored form."""


def _returned(value: object) -> Callable[[Case], str]:
    def show(result: object) -> str:
        same = type(result) is type(value) and result == value
        return "it" if same else f"{result!r} ({type(result).__name__})"

    def seen(case: Case) -> str:
        work = Payments(lambda _: value)
        charge = case.process().function("charge", work)
        caller = got(lambda: charge("order_01"), show)
        case.clock.advance(MINUTE)  # whatever claim was left behind has ended
        duplicate = got(lambda: charge("order_01"), show)
        return f"the caller {caller}, a duplicate {duplicate}; {work.times}"

    return seen


_KEPT: Final = "gets it"
_OMITTED: Final = "gets ResultOmittedError"

for _name, _value, _duplicate in (
    ("0", 0, _KEPT),
    ("a Decimal", Decimal("12.50"), _KEPT),
    ("a datetime", datetime(2027, 1, 15, 8, tzinfo=UTC), _KEPT),
    ("a (str, Enum)", Kind.RIDE, _KEPT),
    ("of a type that cannot be stored", Receipt(), _OMITTED),
    ("500 KB", "x" * 500_000, _OMITTED),
):
    adversity(
        f"the result is {_name}", here=f"the caller gets it, a duplicate {_duplicate}; charged once"
    )(_returned(_value))
