"""One attempt at one operation, as an ``async def`` handler, function or block sees it."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from carride_idempotency.async_steps import in_thread
from carride_idempotency.externals import Step, steps_of
from carride_idempotency.keys import downstream_key
from carride_idempotency.operation import AnyOperation
from carride_idempotency.record import Record
from carride_idempotency.unfinished import finished

if TYPE_CHECKING:
    from carride_idempotency.externals import Answer, Done, Steps


class AsyncOperation(AnyOperation):
    """The attempt that is running, for ``async def``: what asks the store is awaited.

    No request to the store is sent from the thread of the event loop.
    """

    def __init__(self, operation: AnyOperation) -> None:
        self.__dict__.update(operation.__dict__)  # the same attempt, with the same effects

    async def heartbeat(self) -> bool:
        """Renew the lease now, as `Operation.heartbeat` does."""
        return await in_thread(self._held.renew)

    async def external[T](
        self,
        name: str,
        call: Callable[[str], Awaitable[T]],
        probe: "Callable[[str], Awaitable[Done[T] | Answer]] | None" = None,
    ) -> T:
        """Make a call to another system, as `Operation.external` does.

        ``call`` and ``probe`` are asynchronous functions. If the task is cancelled during the call,
        nobody knows whether it took effect: its intent stands.
        """
        key = downstream_key(self.key, name)
        claim = self._held

        async def take(step: Record | Step) -> Any:
            if isinstance(step, Record):
                return await in_thread(lambda: claim.write(step, claim.request.deadline_ms))
            if probe is not None and step is Step.PROBE:
                return finished(await probe(key))
            return finished(await call(key))

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
