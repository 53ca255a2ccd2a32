"""One operation worked on in a ``with`` block."""

from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Self

from idempotency.delivery import Answer, Delivery
from idempotency.handlers import finished
from idempotency.observation import COMMITTED
from idempotency.operation import Operation
from idempotency.runner import Runner, Started


class Block:
    """An operation that is either ``done`` already, or worked on and completed in this block.

    The end of the block completes the operation with the result given to `complete`. An exception that leaves the block
    is recorded as a failure and propagates.
    """

    def __init__(self, runner: Runner, delivery: Delivery) -> None:
        self._runner = runner
        self._delivery = delivery
        self._started: Started | None = None
        self._answer: Answer | None = None
        self._result: object = None
        self._heartbeat: AbstractContextManager[object] = nullcontext()

    def __enter__(self) -> Self:
        begun = self._runner.reports.observed(self._delivery, self._runner.begin, self._delivery)
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
        if self._started is None:
            return
        self._heartbeat.__exit__(kind, error, trace)
        reports = self._runner.reports
        if error is None:
            self._answer = reports.observed(self._delivery, self._runner.finish, self._started, self._result)
        elif isinstance(error, Exception):  # anything else stops the process: for the record that is a crash
            answer = self._runner.fail(self._started, error)
            reports.report(self._delivery, answer._replace(error=None))

    @property
    def done(self) -> bool:
        """Whether the operation was completed before: skip the work, and use ``result``."""
        return self._started is None and self._answer is not None

    @property
    def operation(self) -> Operation:
        """The attempt that is running; a RuntimeError if the operation was done before."""
        if self._started is None:
            raise RuntimeError("nothing is running: the operation was done before")
        return self._started.operation

    @property
    def result(self) -> Any:
        """The result of the committed run, which may be that of another attempt; or a ResultOmittedError."""
        if self._answer is None or self._answer.outcome in COMMITTED:
            return self._result
        return self._answer.value()

    def complete(self, result: object) -> None:
        """Set the result; the end of the block completes the operation with it."""
        self._result = finished(result)
