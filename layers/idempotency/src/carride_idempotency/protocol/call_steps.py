"""What calls and blocks have in common, in plain code and in an event loop."""

from collections.abc import Callable
from inspect import BoundArguments
from typing import Any

from carride_idempotency.observation import COMMITTED
from carride_idempotency.protocol.delivery import Delivery, DeliveryAnswer
from carride_idempotency.protocol.operation import Operation
from carride_idempotency.protocol.run import Runner, Started
from carride_idempotency.protocol.unfinished import finished


class AnyBlock:
    """What `Block` and `AsyncBlock` have in common.

    The end of the block completes the operation with the result given to `complete`, or with None.
    ``return``, ``break`` and ``continue`` are such ends too, because a context cannot tell them
    apart. To leave the operation undone, raise: the exception is recorded as a failure, and
    propagates.
    """

    def __init__(self, started: Started | None, answer: DeliveryAnswer | None) -> None:
        self._started = started
        self._answer = answer
        self._result: object = None

    @property
    def done(self) -> bool:
        """Whether the operation was completed before: skip the work, and use ``result``."""
        return self._started is None

    @property
    def result(self) -> Any:
        """The result of the committed run, which may be another attempt's.

        Raises:
            ResultOmittedError: the run was committed without its result.
        """
        if self._answer is None or self._answer.outcome in COMMITTED:
            return self._result
        return self._answer.value()

    def complete(self, result: object) -> None:
        """Set the result; the end of the block completes the operation with it.

        Raises:
            RuntimeError: the operation was done before, so its work has now been done again.
        """
        self._running()
        self._result = finished(result)

    def _running(self) -> Operation:
        if self._started is None:
            raise RuntimeError(
                "the operation was done before: write `if not block.done:` before its work"
            )
        return self._started.operation


def take_step[B](
    runner: Runner, delivery: Delivery, step: Callable[[], B | DeliveryAnswer]
) -> B | DeliveryAnswer:
    """Take a step of a delivery. Report an error that it raises, and an answer that it returns.

    An answer ends the delivery.
    """
    try:
        begun = step()
    except Exception as error:
        runner.reports.raised(delivery, error)
        raise
    if isinstance(begun, DeliveryAnswer):
        return runner.reports.report(delivery, begun)
    return begun


def fail_run(runner: Runner, started: Started, error: Exception) -> None:
    """Record and report the failure of a run; its caller raises the error."""
    answer = runner.end_failed(started, error)
    runner.reports.report(started.delivery, answer._replace(error=None))


type ReadCall = tuple[BoundArguments, Delivery]
"""One call of a decorated function: its arguments, and the delivery that they make."""
