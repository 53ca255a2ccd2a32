"""One attempt at one operation, as an ``async def`` handler, function or block sees it."""

from collections.abc import Awaitable, Callable, Coroutine
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from carride_idempotency.aio.steps import in_thread
from carride_idempotency.keys import downstream_key
from carride_idempotency.protocol.externals import Step, require_call, steps_of
from carride_idempotency.protocol.operation import AnyOperation
from carride_idempotency.protocol.unfinished import finished
from carride_idempotency.record import Record

if TYPE_CHECKING:
    from carride_idempotency.protocol.externals import Answer, Done, Steps


class AsyncOperation(AnyOperation):
    """The attempt that is running, for ``async def``: what asks the store is awaited.

    No request to the store is sent from the thread of the event loop. Its attributes are those of
    `Operation`.
    """

    def __init__(self, operation: AnyOperation) -> None:
        self.__dict__.update(operation.__dict__)  # the same attempt, with the same effects

    async def heartbeat(self) -> bool:
        """Renew the lease now, as `Operation.heartbeat` does."""
        return await in_thread(self._held.renew)

    def external[T](
        self,
        name: str,
        call: Callable[[str], Awaitable[T]],
        probe: "Callable[[str], Awaitable[Done[T] | Answer]] | None" = None,
    ) -> Coroutine[Any, Any, T]:
        """Make a call to another system, as `Operation.external` does: ``await`` it.

        ``call`` and ``probe`` are asynchronous functions. If the task is cancelled during the call,
        nobody knows whether it took effect: its intent stands. A run that has not awaited it fails.
        """
        require_call(name, call, probe)
        self._held.promised_calls.add(name)
        return self._external(name, call, probe)

    async def _external[T](
        self,
        name: str,
        call: Callable[[str], Awaitable[T]],
        probe: "Callable[[str], Awaitable[Done[T] | Answer]] | None",
    ) -> T:
        key = downstream_key(self.key, name)
        claim = self._held
        claim.promised_calls.discard(name)

        async def take(step: Record | Step) -> Any:
            if isinstance(step, Record):
                return await in_thread(lambda: claim.write(step, claim.request.deadline_ms))
            if probe is not None and step is Step.PROBE:
                return finished(await _awaited(probe(key)))
            return finished(await _awaited(call(key)))

        steps: Steps[T] = steps_of(claim, name, probes=probe is not None)
        try:
            step = next(steps)
            while True:
                # `perform` has a function for this. A coroutine cannot raise StopIteration.
                try:
                    answer = await take(step)
                except BaseException as error:  # noqa: BLE001 - raised again where it was asked for
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result


async def _awaited(answer: Any) -> Any:
    """Return the answer of a call. A plain function has given it already: the call was made."""
    return await answer if isawaitable(answer) else answer
