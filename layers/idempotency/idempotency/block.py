"""One operation worked on in a ``with`` block."""

from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Self

from idempotency.handlers import finished
from idempotency.observation import COMMITTED
from idempotency.operation import Operation
from idempotency.runner import Answer, Delivery, Runner, Started


class Block:
    """An operation that was either ``done`` before, or is to be worked on and completed in this block.

    Leaving the block completes the operation with what was given to `complete`; an exception that leaves it is recorded
    as a failure and goes on.
    """

    def __init__(self, runner: Runner, delivery: Delivery) -> None:
        self._runner = runner
        self._delivery = delivery
        self._started: Started | None = None
        self._answer: Answer | None = None
        self._result: object = None
        self._heartbeat: AbstractContextManager[object] = nullcontext()

    def __enter__(self) -> Self:
        begun = self._runner.told(self._delivery, self._runner.begin, self._delivery)
        if isinstance(begun, Answer):
            self._answer = begun
        else:
            self._started = begun
            self._heartbeat = self._runner.heartbeat(begun)
            self._heartbeat.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        started = self._started
        if started is None:
            return
        self._heartbeat.__exit__(kind, error, trace)
        if error is None:
            self._answer = self._runner.told(self._delivery, self._runner.finish, started, self._result)
        elif isinstance(error, Exception):  # anything else stops the process: to the record that is a crash
            try:
                self._runner.told(self._delivery, self._runner.fail, started, error)
            except Exception as raised:
                if raised is not error:
                    raise

    @property
    def done(self) -> bool:
        """Whether the operation was completed before: skip the work and use ``result``."""
        return self._started is None and self._answer is not None

    @property
    def operation(self) -> Operation:
        """The attempt that is running.

        Raises:
            RuntimeError: the operation was done before, so nothing is running.
        """
        if self._started is None:
            raise RuntimeError("nothing is running: the operation was done before")
        return self._started.operation

    @property
    def result(self) -> Any:
        """The result of the committed run, which may be another's that took over.

        Raises:
            ResultOmittedError: it was committed without its value.
        """
        if self._answer is None or self._answer.outcome in COMMITTED:
            return self._result
        return self._answer.value()

    def complete(self, result: object) -> None:
        """Set the result with which the end of the block completes the operation.

        Raises:
            UnfinishedWorkError: it is an awaitable or a generator.
        """
        self._result = finished(result)
