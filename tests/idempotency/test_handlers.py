"""Rule 21: handlers are plain functions, since nothing in the layer runs a coroutine or a generator."""

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from idempotency import ConfigurationError, UnfinishedWorkError
from tests.idempotency.samples import SQS_ATTRIBUTES, World, event


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


def through(road: str, world: World, work: Callable[..., Any]) -> Callable[[], object]:
    """Return what has a consumer run the work for the key k1, by one of the ways in."""
    consumer = world.consumer(key=lambda _: "k1", policy={"atomic": road == "atomic"})
    match road:
        case "event" | "atomic":
            handler = consumer.event_handler(work)
            return lambda: handler(event(), world.invocation())
        case "batch":
            batch_handler = consumer.batch_handler(work)
            record = {"messageId": "m1", "body": "{}", "attributes": SQS_ATTRIBUTES}
            return lambda: batch_handler({"Records": [record]}, world.invocation())
        case "function":
            call = consumer.function(key="order_id", name="book", payload=())(lambda order_id: work())
            return lambda: call("k1")

    def block() -> None:
        with consumer.operation("k1") as block:
            block.complete(work())

    return block


@pytest.mark.parametrize("kind", [coroutine, generator, async_generator], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("hidden", [lambda work: work, functools.partial, wrapped])
@pytest.mark.parametrize("decorator", ["event_handler", "batch_handler", "function"])
def test_work_that_a_call_does_not_do_is_refused_where_it_is_decorated(
    local: World, kind: Callable[..., Any], hidden: Callable[..., Any], decorator: str
) -> None:
    """A coroutine or generator function, also behind a partial or a wrapper, cannot be decorated."""
    consumer = local.consumer()
    decorate: Any = (
        consumer.function(key="args", name="work") if decorator == "function" else getattr(consumer, decorator)
    )
    with pytest.raises(ConfigurationError, match=r"asyncio\.run|return instead"):
        decorate(hidden(kind))


@pytest.mark.parametrize("kind", [coroutine, generator, async_generator], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("road", ["event", "atomic", "batch", "function", "block"])
def test_unfinished_work_is_a_failure_and_never_a_completion(local: World, kind: Callable[..., Any], road: str) -> None:
    """Returning an awaitable or a generator fails the attempt, in every kind of handler; the retry may succeed."""
    unfinished = [True]
    call = through(road, local, lambda *args: kind() if unfinished else None)
    consumer, operation = local.consumer(), "book" if road == "function" else None

    def status() -> str | None:
        record = consumer.record("k1", operation)
        return record and record.status

    with pytest.raises(Exception, match=r"1 of the batch|has not been done") as raised:
        call()
    assert isinstance(raised.value.__cause__ or raised.value, UnfinishedWorkError)
    assert status() == "FAILED"
    unfinished.clear()
    call()
    assert status() == "COMPLETED"


@pytest.mark.parametrize("decorator", ["event_handler", "batch_handler"])
def test_parentheses_after_the_decorator_are_explained(local: World, decorator: str) -> None:
    """A decorator that takes no arguments says so."""
    with pytest.raises(ConfigurationError, match=f"@{decorator} without parentheses"):
        getattr(local.consumer(), decorator)()
