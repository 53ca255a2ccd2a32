"""``async def`` handlers run to their end, and no request to the store blocks their loop."""

import asyncio
import functools
import subprocess
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

import pytest

from carride_idempotency import (
    ANY_CALLER,
    CANNOT_TELL,
    NOT_DONE,
    AsyncOperation,
    ConfigurationError,
    Consumer,
    Done,
    HttpProblemError,
    Operation,
    Put,
    UnknownOutcomeError,
)
from carride_idempotency.errors import UnfinishedWorkError
from carride_idempotency.protocol.concurrency import Threads
from carride_idempotency.record import Record
from carride_idempotency.sources import SQS
from carride_idempotency.testing import (
    Crash,
    crash_everywhere,
    eventbridge_event,
    http_event,
    sqs_event,
)
from carride_idempotency.testing import World as FaultyWorld
from tests.samples import EFFECT, World, event

type Work = Callable[[Any, Any], Any]

WAYS: Final = pytest.mark.parametrize("way", ["event", "batch", "http"])

COLOUR: Final = ContextVar("colour", default="none")


def decorated(world: World, way: str, work: Work) -> Callable[[], Any]:
    """Return a delivery of one message to a handler, of which each call is another try."""
    if way == "event":
        handler: Any = world.consumer().event_handler(work)
        return lambda: handler(event(), world.invocation())
    if way == "batch":
        handler = world.consumer(key="id", source=SQS).batch_handler(work)
        return lambda: handler(sqs_event({"id": "k1"}, clock=world.clock), world.invocation())
    handler = world.consumer(key=None).http_handler(caller=ANY_CALLER)(work)
    return lambda: handler(http_event("POST", "/rides", {}, key="k1"), world.invocation())


def record(world: World) -> Record | None:
    """Return the only record of a world."""
    items = world.dynamodb.scan(TableName="Idempotency")["Items"]
    if not items:
        return None
    (item,) = items
    return world.store.read(item["idempotencyKey"]["S"])


@WAYS
def test_an_async_handler_runs_to_its_end_once(world: World, way: str) -> None:
    """Its effects are those of all its steps, and a duplicate runs nothing."""
    runs: list[str] = []

    async def work(message: Any, operation: AsyncOperation) -> dict[str, Any]:
        runs.append("begins")
        await asyncio.sleep(0)
        operation.write(EFFECT)
        await asyncio.sleep(0)
        runs.append("ends")
        return {"statusCode": 201}

    deliver = decorated(world, way, work)
    deliver()
    deliver()
    found = record(world)
    assert found is not None
    assert (runs, world.effects, found.status) == (["begins", "ends"], 1, "COMPLETED")


@WAYS
def test_an_error_of_an_async_handler_is_its_failure(world: World, way: str) -> None:
    """It is recorded and raised as the error of a plain function is."""

    async def work(message: Any, operation: AsyncOperation) -> None:
        await asyncio.sleep(0)
        raise KeyError("pickup")

    with pytest.raises(Exception, match=r"pickup|1 of 1 records"):
        decorated(world, way, work)()
    found = record(world)
    assert found is not None
    assert (found.status, found.error) == ("FAILED", "KeyError: 'pickup'")


@pytest.mark.parametrize("hidden", [lambda work: work, functools.partial])
def test_an_object_or_a_partial_can_be_asynchronous(world: World, hidden: Any) -> None:
    """What is called in the end decides."""

    class Booking:
        async def __call__(self, message: Any, operation: AsyncOperation) -> None:
            await asyncio.sleep(0)
            operation.write(EFFECT)

    world.consumer().event_handler(hidden(Booking()))(event(), world.invocation())
    assert world.effects == 1


def test_a_wrapper_may_run_the_handler_itself(world: World) -> None:
    """It is called outside of any loop."""

    async def work(message: Any, operation: AsyncOperation) -> None:
        await asyncio.sleep(0)
        operation.write(EFFECT)

    @functools.wraps(work)
    def runs(message: Any, operation: Any) -> None:
        asyncio.run(work(message, operation))

    handler: Any = runs
    world.consumer().event_handler(handler)(event(), world.invocation())
    assert world.effects == 1


@WAYS
def test_a_handler_in_a_running_loop_says_what_to_do(world: World, way: str) -> None:
    """Nothing has been claimed then, so it costs no attempt; in a thread the handler runs."""

    async def work(message: Any, operation: AsyncOperation) -> dict[str, Any]:
        operation.write(EFFECT)
        return {"statusCode": 201}

    deliver = decorated(world, way, work)

    async def service() -> None:
        with pytest.raises(ConfigurationError, match=r"await asyncio\.to_thread\(work"):
            deliver()
        assert record(world) is None
        await asyncio.to_thread(deliver)

    asyncio.run(service())
    assert world.effects == 1


def test_a_cancelled_handler_has_failed(world: World) -> None:
    """Its work is not done: the attempt is recorded as failed, and not taken for a crash."""

    async def work(message: Any, operation: AsyncOperation) -> None:
        operation.write(EFFECT)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    with pytest.raises(UnfinishedWorkError, match="cancelled before its end"):
        world.consumer().event_handler(work)(event(), world.invocation())
    assert (world.record().status, world.effects) == ("FAILED", 0)


@pytest.mark.parametrize("error", [None, KeyError("pickup")], ids=["returns", "raises"])
def test_a_task_that_a_handler_leaves_is_unfinished_work(
    world: World, error: Exception | None
) -> None:
    """Nobody would finish it: the loop stands still until the next event. So it is cancelled."""
    ends: list[str] = []
    tasks: list[asyncio.Task[None]] = []

    async def forgotten() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    async def work(message: Any, operation: AsyncOperation) -> None:
        operation.write(EFFECT)
        tasks.append(asyncio.create_task(forgotten(), name="confirmation"))
        await asyncio.sleep(0)
        if error:
            raise error

    expected = KeyError if error else UnfinishedWorkError
    with pytest.raises(expected, match=r"pickup|returned before confirmation.*await its tasks"):
        world.consumer().event_handler(work)(event(), world.invocation())
    assert (world.record().status, world.effects, ends) == ("FAILED", 0, ["cancelled"])


def test_a_loop_serves_the_next_invocation(world: World) -> None:
    """A session that was opened in one invocation can be used in the next, also after an error."""
    loops: list[asyncio.AbstractEventLoop] = []

    async def work(message: Any, operation: AsyncOperation) -> None:
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        if len(loops) == 2:
            raise KeyError("pickup")

    handler = world.consumer().event_handler(work)
    handler(event("k1"), world.invocation())
    with pytest.raises(KeyError):
        handler(event("k2"), world.invocation())
    handler(event("k3"), world.invocation())
    assert len(set(loops)) == 1


def test_records_that_run_at_the_same_time_have_a_loop_each(world: World) -> None:
    """One that blocks its loop holds up no other."""
    loops: dict[str, asyncio.AbstractEventLoop] = {}
    both = threading.Barrier(2, timeout=60)

    async def work(message: Any, operation: AsyncOperation) -> None:
        both.wait()  # which blocks the loop until the other record has begun
        loops[message["id"]] = asyncio.get_running_loop()

    consumer = world.consumer(key="id", source=SQS, concurrency=Threads())
    batch = sqs_event({"id": "k1"}, {"id": "k2"}, clock=world.clock)
    answer = consumer.batch_handler(work)(batch, world.invocation())
    assert answer == {"batchItemFailures": []}
    assert loops["k1"] is not loops["k2"]


def test_a_handler_sees_the_variables_of_its_caller(world: World) -> None:
    """Such as the span of a trace. What it sets itself ends with its run."""
    seen: list[str] = []

    async def work(message: Any, operation: AsyncOperation) -> None:
        seen.append(COLOUR.get())
        COLOUR.set("blue")

    handler = world.consumer().event_handler(work)
    for key, colour in (("k1", "red"), ("k2", "green")):
        token = COLOUR.set(colour)
        handler(event(key), world.invocation())
        seen.append(COLOUR.get())
        COLOUR.reset(token)
    assert seen == ["red", "red", "green", "green"]


def test_an_unprotected_request_runs_without_an_operation(world: World) -> None:
    """A GET is answered each time, and a problem is answered as one."""

    async def work(request: Any, operation: AsyncOperation | None) -> dict[str, Any]:
        await asyncio.sleep(0)
        if operation is None:
            raise HttpProblemError(405)
        return {"statusCode": 201}

    handler = world.consumer(key=None).http_handler(caller=ANY_CALLER)(work)
    assert handler(http_event("GET", "/rides"), world.invocation())["statusCode"] == 405


# ── Operations ────────────────────────────────────────────────────────────────────────────────────


class Desk:
    """A handler of one external call, which notes the threads of requests to the store."""

    def __init__(self, world: World, *, probes: bool = False, cancels: bool = False) -> None:
        self.charges: list[str] = []
        self.probes = probes
        self.cancels = cancels
        self.in_the_loop: list[str] = []
        self.loop_thread: threading.Thread | None = None
        self.handler = world.consumer().event_handler(self.work)
        update = world.store.update_if_owner

        def watched(*args: Any, **options: Any) -> Any:
            if threading.current_thread() is self.loop_thread:
                self.in_the_loop.append(args[0].status)
            return update(*args, **options)

        world.store.update_if_owner = watched  # type: ignore[method-assign]

    async def work(self, message: Any, operation: AsyncOperation) -> None:
        self.loop_thread = threading.current_thread()
        try:
            await operation.external("charge", self.charge, self.probe if self.probes else None)
            assert await operation.heartbeat()
        finally:
            self.loop_thread = None

    async def charge(self, key: str) -> str:
        self.charges.append(key)
        if self.cancels:
            raise asyncio.CancelledError
        await asyncio.sleep(0)
        if len(self.charges) == 1:
            raise Crash
        return "receipt"

    async def probe(self, key: str) -> Any:
        await asyncio.sleep(0)
        return Done("receipt") if key in self.charges else NOT_DONE


def test_a_later_attempt_asks_what_became_of_a_call(world: World) -> None:
    """After a crash the probe is awaited, and the call is not made again."""
    desk = Desk(world, probes=True)
    with pytest.raises(Crash):
        desk.handler(event(), world.invocation())
    world.clock.advance(60)
    assert desk.handler(event(), world.invocation())["outcome"] == "Takeover"
    assert len(desk.charges) == 1


def test_intents_and_heartbeats_are_sent_from_other_threads(world: World) -> None:
    """The thread of the loop never waits for the store."""
    desk = Desk(world)
    desk.charges.append("an earlier one, of another key")
    assert desk.handler(event(), world.invocation())["outcome"] == "New"
    assert desk.in_the_loop == []


def test_a_call_that_is_cancelled_is_unknown(world: World) -> None:
    """It may have taken effect, so the next attempt may not make it again."""
    desk = Desk(world, cancels=True)
    with pytest.raises(UnfinishedWorkError):
        desk.handler(event(), world.invocation())
    desk.cancels = False
    desk.handler(event(), world.invocation())
    assert world.reasons == ["UNKNOWN"]
    assert len(desk.charges) == 1


@pytest.mark.parametrize(
    "wrong", [CANNOT_TELL, "a text"], ids=["cannot tell", "something else than an answer"]
)
def test_a_probe_that_gives_no_answer_fails_the_attempt(world: World, wrong: Any) -> None:
    """As it does in a plain function."""

    async def work(message: Any, operation: AsyncOperation) -> None:
        async def call(key: str) -> None: ...
        async def probe(key: str) -> Any:
            return wrong

        await operation.external("charge", call, probe)

    world.crash()
    world.clock.advance(60)
    handler = world.consumer(dead_letters=None).event_handler(work)
    with pytest.raises(UnknownOutcomeError if wrong is CANNOT_TELL else ConfigurationError):
        handler(event(), world.invocation())


def test_an_async_operation_is_immutable(world: World) -> None:
    """It is the attempt itself, with the same key and the same effects."""
    seen: list[AsyncOperation] = []

    async def work(message: Any, operation: AsyncOperation) -> None:
        seen.append(operation)

    world.consumer().event_handler(work)(event(), world.invocation())
    (operation,) = seen
    assert (operation.key, operation.attempt) == ("history#k1", 1)
    assert not isinstance(operation, Operation)
    with pytest.raises(AttributeError, match="immutable"):
        operation.key = "another"


@pytest.mark.filterwarnings("ignore:.*time-machine")
def test_an_async_handler_takes_effect_once_whatever_happens() -> None:
    """A fault at each call of an async handler, external ones too, leaves one effect."""

    def build(world: FaultyWorld) -> Any:
        consumer: Consumer = Consumer(
            "rides", world.store, key="detail.id", dead_letters=world.dead_letters
        )
        charged = world.external("charge", lambda key: "receipt", key=lambda key: key)

        @consumer.event_handler
        async def handler(message: Any, operation: AsyncOperation) -> None:
            async def call(key: str) -> Any:
                await asyncio.sleep(0)
                return charged(key)

            async def probe(key: str) -> Any:
                return NOT_DONE  # the other system recognises the key

            receipt = await operation.external("charge", call, probe)
            operation.write(Put("Rides", {"id": message["detail"]["id"], "receipt": receipt}))

        return handler

    message = eventbridge_event({"id": "k1"})
    runs = crash_everywhere(build, message, world=lambda: FaultyWorld({"Rides": ["id"]}))
    assert runs > 12


# ── The process ───────────────────────────────────────────────────────────────────────────────────

_CONSUMER: Final = """
import sys
from carride_idempotency import Consumer, MemoryStore
from carride_idempotency.invocation import LambdaContext
class Context:
    aws_request_id = "r"
    def get_remaining_time_in_millis(self): return 30_000
consumer = Consumer("rides", MemoryStore(), key="id")
@consumer.event_handler
{kind} handler(event, operation): pass
@consumer.function(key="key")
def charge(key): return 1
with consumer.operation("k2") as block: pass
charge("k3")
assert handler({{"id": "k1", "detail-type": "x", "detail": {{}}}}, Context())["outcome"] == "New"
print("asyncio" in sys.modules)
"""


@pytest.mark.parametrize(("kind", "imported"), [("def", "False"), ("async def", "True")])
def test_a_plain_handler_does_not_pay_for_asyncio(kind: str, imported: str) -> None:
    """A cold start imports it for async handlers only; a process ends without a warning."""
    command = [sys.executable, "-X", "dev", "-c", _CONSUMER.format(kind=kind)]
    run = subprocess.run(
        command, check=True, capture_output=True, text=True, env={"PYTHONPATH": _path()}
    )
    assert (run.stdout.strip(), run.stderr) == (imported, "")


_LEFT_OPEN: Final = """
from carride_idempotency import Consumer, MemoryStore
class Context:
    aws_request_id = "r"
    def get_remaining_time_in_millis(self): return 30_000
consumer = Consumer("rides", MemoryStore(), key="id")
async def session():
    try:
        yield
    finally:
        print("closed")
opened = session()
@consumer.event_handler
async def handler(event, operation): await anext(opened)
handler({"id": "k1", "detail-type": "x", "detail": {}}, Context())
"""


def test_what_a_handler_keeps_open_in_its_loop_is_closed_when_the_process_ends() -> None:
    """A session that lives from one invocation to the next says good-bye to its server."""
    command = [sys.executable, "-X", "dev", "-c", _LEFT_OPEN]
    run = subprocess.run(
        command, check=True, capture_output=True, text=True, env={"PYTHONPATH": _path()}
    )
    assert (run.stdout, run.stderr) == ("closed\n", "")


def _path() -> str:
    return ":".join(each for each in sys.path if each)
