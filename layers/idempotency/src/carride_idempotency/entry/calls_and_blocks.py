"""The direct ways to run an operation: calls of a decorated function, and the ``with`` block."""

import gc
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn
from weakref import ReferenceType, ref

from carride_idempotency.entry.handlers import is_asynchronous
from carride_idempotency.entry.messages import Reader
from carride_idempotency.errors import ConfigurationError, MissingKeyError
from carride_idempotency.observation import COMMITTED
from carride_idempotency.protocol.call_steps import AnyBlock, ReadCall, fail_run, take_step
from carride_idempotency.protocol.concurrency import is_in_a_loop
from carride_idempotency.protocol.delivery import Delivery, DeliveryAnswer
from carride_idempotency.protocol.operation import Operation
from carride_idempotency.protocol.run import Runner, Started
from carride_idempotency.protocol.unfinished import finished

if TYPE_CHECKING:
    from carride_idempotency.aio.calls import AsyncBlock, AsyncClaim


class Block(AnyBlock):
    """An operation that is either ``done`` already, or worked on and completed in this block."""

    @property
    def operation(self) -> Operation:
        """The attempt that is running; a RuntimeError if the operation was done before."""
        return self._running()


class BlockContext(AbstractContextManager[Block], AbstractAsyncContextManager["AsyncBlock"]):
    """Claims a delivery's key for a block; completes it, or records its failure, at the end.

    It is entered once, with ``with``, or in an event loop with ``async with``.
    """

    def __init__(self, runner: Runner, delivery: Delivery) -> None:
        self._runner = runner
        self._delivery = delivery
        self._is_entered = False
        self._block: Block | None = None
        self._heartbeat: AbstractContextManager[object] = nullcontext()
        self._in_loop: AsyncClaim | None = None

    def __enter__(self) -> Block:
        if is_in_a_loop():
            from carride_idempotency.errors.misuse import block_in_a_loop

            raise block_in_a_loop()
        self._enter_once()
        begun = take_step(self._runner, self._delivery, self._begin)
        if isinstance(begun, DeliveryAnswer):
            self._block = Block(None, begun)
            return self._block
        self._block = Block(begun, None)
        try:
            self._heartbeat = self._runner.heartbeat(begun)
            self._heartbeat.__enter__()
        except Exception as error:
            fail_run(self._runner, begun, error)
            raise
        return self._block

    def _enter_once(self) -> None:
        if self._is_entered:
            raise RuntimeError("a block is entered once: call consumer.operation(...) again")
        self._is_entered = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        block = self._block
        if block is None or block._started is None:
            return
        self._heartbeat.__exit__(kind, error, trace)
        if error is None:
            finish = partial(self._runner.finish, block._started, block._result)
            block._answer = take_step(self._runner, self._delivery, finish)
        elif isinstance(error, Exception):
            # Other exceptions stop the process: for the record, that is a crash.
            fail_run(self._runner, block._started, error)

    def _begin(self) -> Started | DeliveryAnswer:
        return self._runner.begin(self._delivery)

    async def __aenter__(self) -> "AsyncBlock":
        from carride_idempotency.aio.calls import AsyncClaim

        self._enter_once()
        self._in_loop = AsyncClaim(self._runner, self._delivery)
        return await self._in_loop.enter()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._in_loop is not None:
            await self._in_loop.leave(error)

    def __call__(self, *_: object) -> NoReturn:
        """Refuse to be a decorator: a duplicate call would run again."""
        from carride_idempotency.errors.misuse import not_a_decorator

        raise not_a_decorator()

    def __getattr__(self, name: str) -> NoReturn:
        """Explain the attributes of a block that was not entered."""
        from carride_idempotency.errors.misuse import not_entered

        raise not_entered(name)


def decorated[**P, R](
    reader: Reader[Any],
    runner: Runner,
    work: Callable[P, R],
    *,
    name: str,
    key: str,
    payload: Sequence[str] | None,
) -> Callable[P, R]:
    """Return the decorated function: `Consumer.function` explains the arguments."""
    signature = inspect.signature(work)
    takes_operation = "operation" in signature.parameters
    if takes_operation and signature.parameters["operation"].default is inspect.Parameter.empty:
        from carride_idempotency.errors.misuse import operation_without_default

        raise operation_without_default(reader.consumer, name)
    read_call = _call_reader(reader, work, signature, name=name, key=key, payload=payload)
    if is_asynchronous(work):
        from carride_idempotency.aio.calls import async_function

        return async_function(runner, work, read_call, takes_operation=takes_operation)

    @wraps(work)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if is_in_a_loop():
            from carride_idempotency.errors.misuse import function_in_a_loop

            raise function_in_a_loop(name)
        bound, delivery = read_call(args, kwargs)
        results: list[R] = []  # one for each run: after a conflict there may be another one

        def run(operation: Operation) -> object:
            if takes_operation:
                bound.arguments["operation"] = operation
            results.append(finished(work(*bound.args, **bound.kwargs)))
            return results[-1]

        answer = runner.run_delivery(delivery, run)
        if answer.outcome in COMMITTED:
            return results[-1]  # the object itself, which may have no stored form
        stored: R = answer.value()
        return stored

    return call


def _call_reader(
    reader: Reader[Any],
    work: Callable[..., object],
    signature: inspect.Signature,
    *,
    name: str,
    key: str,
    payload: Sequence[str] | None,
) -> Callable[[Sequence[Any], Mapping[str, Any]], ReadCall]:
    """Return the function that reads the arguments of calls; check its settings now."""
    left_out = {"operation", _receiver_of(work, signature)}
    defaults = {
        each.name: each.default
        for each in signature.parameters.values()
        if each.name not in left_out
    }
    for argument in (key, *(payload or ())):
        if argument not in defaults:
            raise ConfigurationError(
                f"{reader.consumer}: key= and payload= name arguments, "
                f"but {name} has no argument {argument!r}: it has {list(defaults)}"
            )

    def read_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> ReadCall:
        bound = signature.bind(*args, **kwargs)
        given = bound.arguments
        own_key = given.get(key, defaults[key])
        if own_key is inspect.Parameter.empty:
            own_key = None
        compared = {
            argument: given[argument]
            for argument in payload or defaults
            if argument in given and not _equals(given[argument], defaults[argument])
        }
        try:
            return bound, reader.call(own_key, compared, name)
        except MissingKeyError as error:
            raise MissingKeyError(f"{error}; it is the argument {key} of {name}") from error

    return read_call


def _receiver_of(work: Callable[..., Any], signature: inspect.Signature) -> str | None:
    """Return the name of a method's first argument: its object, which is not what it works on."""
    first = next(iter(signature.parameters), None)
    is_method = first in ("self", "cls") and "." in getattr(work, "__qualname__", "")
    return first if is_method else None


class _Registered(NamedTuple):
    """A function whose operation has its own name. It is forgotten with the function."""

    call: ReferenceType[Callable[..., Any]]
    consumer: ReferenceType[object]
    place: tuple[str, str]


_functions: Final[dict[tuple[str, str], _Registered]] = {}
"""By the names of consumer and operation, in the whole process: these make the keys of records."""


def registered[C: Callable[..., Any]](
    consumer: object, consumer_name: str, operation: str, call: C
) -> C:
    """Return a decorated function, unless another one would share its keys.

    One place in the code may be decorated again for another consumer object: it does the same.

    Raises:
        ConfigurationError: another function has this name, or a factory has made this one twice.
    """
    names = (consumer_name, operation)
    place = (call.__module__, call.__qualname__)
    if _is_taken(names, consumer, place, call):
        gc.collect()  # only a circle of references may keep the other one alive
    if _is_taken(names, consumer, place, call):
        raise ConfigurationError(
            f"{consumer_name}: two functions are called {operation}: "
            "give one another name=, so that they share no keys"
        )
    _functions[names] = _Registered(ref(call), ref(consumer), place)
    return call


def _is_taken(
    names: tuple[str, str],
    consumer: object,
    place: tuple[str, str],
    call: Callable[..., Any],
) -> bool:
    """Return whether another living function has these names, and may do something else."""
    registered_before = _functions.get(names)
    if registered_before is None:
        return False
    other = registered_before.call()
    if other is None or inspect.unwrap(other) is inspect.unwrap(call):
        return False
    return registered_before.place != place or registered_before.consumer() is consumer


def _equals(value: object, default: object) -> bool:
    """Return whether an argument equals its default, with the same type."""
    if value is default:
        return True
    try:
        return type(value) is type(default) and bool(value == default)
    except Exception:  # noqa: BLE001 - raised by the values' own comparison: they differ
        return False
