"""Handlers are functions that do their work: nothing in the layer runs a generator."""

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from carride_idempotency import ANY_CALLER, ConfigurationError, RetryableError
from carride_idempotency.errors import PayloadMismatchError, UnfinishedWorkError
from carride_idempotency.sources import DYNAMODB_STREAM
from carride_idempotency.testing import dynamodb_stream_event, http_event
from tests.samples import World, event


async def coroutine(*args: Any) -> None:
    """Do nothing until it is awaited."""


def generator(*args: Any) -> Iterator[None]:
    """Do nothing until it is iterated over."""
    yield


async def async_generator(*args: Any) -> AsyncIterator[None]:
    """Do nothing until it is iterated over, in a loop of asyncio's."""
    yield


def wrapped(work: Callable[..., Any]) -> Callable[..., Any]:
    """Hide a function behind a plain one, as decorators do."""

    @functools.wraps(work)
    def wrapper(*args: Any) -> Any:
        return work(*args)

    return wrapper


def future() -> Future[None]:
    """Return what another thread may still work on."""
    return Future()


def mapped() -> Iterator[None]:
    """Return work that nobody has asked for yet."""
    return map(print, "ab")


def several() -> list[Any]:
    """Return coroutines that somebody else was to gather."""
    return [1, coroutine(), coroutine()]


def named() -> dict[str, Any]:
    """Return a future by its name."""
    return {"ride": future()}


RESULTS = pytest.mark.parametrize(
    "kind",
    [coroutine, generator, async_generator, future, mapped, several, named],
    ids=lambda kind: kind.__name__,
)


@pytest.mark.parametrize("kind", [generator, async_generator], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("hidden", [lambda work: work, functools.partial, wrapped])
def test_work_that_a_call_does_not_do_is_refused_where_it_is_decorated(
    world: World, kind: Callable[..., Any], hidden: Callable[..., Any]
) -> None:
    """A generator function cannot be decorated, even behind a partial or wrapper."""
    consumer = world.consumer()
    function: Any = consumer.function(key="args", name="work")
    for decorate in (
        consumer.event_handler,
        consumer.batch_handler,
        consumer.http_handler,
        function,
    ):
        with pytest.raises(ConfigurationError, match="return instead"):
            decorate(hidden(kind))


@RESULTS
@pytest.mark.parametrize("operation", ["book", None], ids=["function", "block"])
def test_unfinished_work_is_a_failure_and_never_a_completion(
    world: World, kind: Callable[..., Any], operation: str | None
) -> None:
    """Returning an awaitable, generator or future, also in a list, fails the attempt only."""
    consumer = world.consumer()
    results = iter([kind, lambda: None])

    def block(key: str) -> None:
        with consumer.operation(key) as block:
            block.complete(next(results)())

    decorate = consumer.function(key="order_id", name="book", payload=())
    call = decorate(lambda order_id: next(results)()) if operation else block
    with pytest.raises(UnfinishedWorkError):
        call("k1")
    failed = consumer.record("k1", operation)
    call("k1")
    done = consumer.record("k1", operation)
    assert (failed and failed.status, done and done.status) == ("FAILED", "COMPLETED")


def test_parentheses_after_the_decorator_are_explained(world: World) -> None:
    """A decorator that takes no arguments says so."""
    with pytest.raises(ConfigurationError, match="@batch_handler without parentheses"):
        world.consumer().batch_handler()


def test_a_method_can_be_decorated(world: World) -> None:
    """Its object says who works; the key and the other arguments say what on."""
    consumer = world.consumer()
    booked: list[str] = []

    class Desk:
        @consumer.function(key="order_id")
        def book(self, order_id: str, seats: int) -> int:
            booked.append(order_id)
            return seats

    assert [Desk().book("k1", 2), Desk().book("k1", seats=2)] == [2, 2]
    assert booked == ["k1"]
    with pytest.raises(PayloadMismatchError):
        Desk().book("k1", 3)


def test_a_block_that_is_left_early_is_completed(world: World) -> None:
    """Only an exception says that its work is undone."""
    consumer = world.consumer()

    def leave() -> object:
        with consumer.operation("k1") as block:
            if not block.done:
                return None
        return block.result

    assert [leave() for _ in range(2)] == [None, None]
    record = consumer.record("k1")
    assert record is not None
    assert (record.status, record.attempt) == ("COMPLETED", 1)


def test_a_retryable_error_of_a_block_uses_up_no_attempt(world: World) -> None:
    """As that of a handler."""
    consumer = world.consumer()
    with pytest.raises(RetryableError), consumer.operation("k1"):
        raise RetryableError("not now")
    record = consumer.record("k1")
    assert record is not None
    assert (record.status, record.attempt) == ("FAILED", 0)


@pytest.mark.parametrize("kind", ["event", "batch", "http", "function"])
def test_an_operation_has_the_message_as_it_was_delivered(world: World, kind: str) -> None:
    """A stream's record says what became of its item: its decoded message does not."""
    seen: list[Any] = []

    def work(_: Any, operation: Any = None) -> None:
        seen.append(operation.message)

    if kind == "event":
        given: Any = event()
        world.consumer().event_handler(work)(given, world.invocation())
    elif kind == "batch":
        given = dynamodb_stream_event({"id": "k1"})
        consumer = world.consumer(key="Keys.id.S", source=DYNAMODB_STREAM)
        consumer.batch_handler(work)(given, world.invocation())
        given = given["Records"][0]
        assert given["eventName"] == "INSERT"
    elif kind == "http":
        given = http_event("POST", "/rides")
        decorate = world.consumer(key=None).http_handler(caller=ANY_CALLER)
        decorate(work)(given, world.invocation())
    else:
        given = None
        world.consumer().function(key="_", name="book")(work)("k1")
    assert seen == [given]
