"""Handlers are plain functions: nothing in the layer runs a coroutine or a generator."""

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from carride_idempotency import ConfigurationError, UnfinishedWorkError
from tests.idempotency.samples import World


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


KINDS = pytest.mark.parametrize(
    "kind", [coroutine, generator, async_generator], ids=lambda kind: kind.__name__
)


@KINDS
@pytest.mark.parametrize("hidden", [lambda work: work, functools.partial, wrapped])
def test_work_that_a_call_does_not_do_is_refused_where_it_is_decorated(
    world: World, kind: Callable[..., Any], hidden: Callable[..., Any]
) -> None:
    """A coroutine or generator function, also behind a partial or a wrapper, cannot be decorated."""
    consumer = world.consumer()
    function: Any = consumer.function(key="args", name="work")
    for decorate in (
        consumer.event_handler,
        consumer.batch_handler,
        consumer.http_handler,
        function,
    ):
        with pytest.raises(ConfigurationError, match=r"asyncio\.run|return instead"):
            decorate(hidden(kind))


@KINDS
@pytest.mark.parametrize("operation", ["book", None], ids=["function", "block"])
def test_unfinished_work_is_a_failure_and_never_a_completion(
    world: World, kind: Callable[..., Any], operation: str | None
) -> None:
    """Returning an awaitable or a generator fails the attempt; the retry may succeed."""
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
