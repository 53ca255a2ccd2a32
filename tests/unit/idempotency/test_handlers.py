"""Rule 21: handlers are plain functions, since nothing in the layer runs a coroutine or a generator."""

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from idempotency import ConfigurationError, Consumer, MemoryStore, Policy, UnfinishedWorkError
from idempotency.testing import Invocation, ManualClock
from tests.unit.idempotency.samples import SQS_ATTRIBUTES, event


async def coroutine(*args: Any) -> None:
    """Do nothing until it is awaited."""


def generator(*args: Any) -> Iterator[None]:
    """Do nothing until it is iterated over."""
    yield


async def async_generator(*args: Any) -> AsyncIterator[None]:
    """Do nothing until it is iterated over, in a loop of asyncio's."""
    yield


class Object:
    """Is called like a function."""

    def __init__(self, work: Callable[..., Any]) -> None:
        """Take its ``__call__`` from a class of its own."""
        self.__class__ = type("Object", (Object,), {"__call__": work})

    def __call__(self, *args: Any) -> Any:
        """Is replaced."""


def wrapped(work: Callable[..., Any]) -> Callable[..., Any]:
    """Hide a function behind a plain one, as decorators do."""

    @functools.wraps(work)
    def wrapper(*args: Any) -> Any:
        return work(*args)

    return wrapper


def consumer(clock: ManualClock, **policy: Any) -> Consumer:
    """A consumer over memory."""
    store = MemoryStore(clock=clock, apply=lambda effects: None)
    return Consumer("history", store, key=lambda _: "k1", policy=Policy(**policy), clock=clock)


def through_event(clock: ManualClock, work: Any, **policy: Any) -> Any:
    """Deliver an event."""
    decorated = consumer(clock, **policy)
    handler = decorated.event_handler(work)
    return decorated, None, lambda: handler(event(), Invocation(clock))


def through_batch(clock: ManualClock, work: Any) -> Any:
    """Deliver a batch of one."""
    decorated = consumer(clock)
    handler = decorated.batch_handler(work)
    record = {"messageId": "m1", "body": "{}", "attributes": SQS_ATTRIBUTES}
    return decorated, None, lambda: handler({"Records": [record]}, Invocation(clock))


def through_function(clock: ManualClock, work: Any) -> Any:
    """Call a function."""
    decorated = consumer(clock)
    call = decorated.function(key="order_id", name="book")(lambda order_id: work(order_id, None))
    return decorated, "book", lambda: call("k1")


def through_block(clock: ManualClock, work: Any) -> Any:
    """Complete a block."""
    decorated = consumer(clock)

    def call() -> None:
        with decorated.operation("k1") as block:
            block.complete(work(None, None))

    return decorated, None, call


ROADS: dict[str, Callable[..., Any]] = {
    "event": through_event,
    "atomic": functools.partial(through_event, atomic=True),
    "batch": through_batch,
    "function": through_function,
    "block": through_block,
}


@pytest.mark.parametrize("kind", [coroutine, generator, async_generator], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("hidden", [lambda work: work, functools.partial, wrapped, Object])
@pytest.mark.parametrize("decorator", ["event_handler", "batch_handler", "function"])
def test_work_that_a_call_does_not_do_is_refused_where_it_is_decorated(
    kind: Callable[..., Any], hidden: Callable[..., Any], decorator: str
) -> None:
    """A coroutine or generator function, also behind a partial, a wrapper or an object, cannot be decorated."""
    decorated = consumer(ManualClock())
    decorate: Any = decorated.function(key="args", name="work") if decorator == "function" else decorated
    decorate = decorate if decorator == "function" else getattr(decorated, decorator)

    with pytest.raises(ConfigurationError, match=r"asyncio\.run|return instead"):
        decorate(hidden(kind))


@pytest.mark.parametrize("kind", [coroutine, generator, async_generator], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("road", ROADS)
def test_unfinished_work_is_a_failure_and_never_a_completion(kind: Callable[..., Any], road: str) -> None:
    """An awaitable or a generator that is returned fails the attempt, by every road; it is run again."""
    clock = ManualClock()
    unfinished = [True]
    decorated, operation, call = ROADS[road](clock, lambda *args: kind() if unfinished else None)

    with pytest.raises(Exception, match=r"1 of the batch|has not been done") as raised:
        call()
    assert isinstance(raised.value.__cause__ or raised.value, UnfinishedWorkError)
    assert decorated.record("k1", operation).status == "FAILED"

    unfinished.clear()
    call()
    assert decorated.record("k1", operation).status == "COMPLETED"


@pytest.mark.parametrize("decorator", ["event_handler", "batch_handler"])
def test_parentheses_after_the_decorator_are_explained(decorator: str) -> None:
    """A decorator that takes no arguments says so."""
    with pytest.raises(ConfigurationError, match=f"@{decorator} without parentheses"):
        getattr(consumer(ManualClock()), decorator)()
