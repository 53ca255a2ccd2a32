"""The programming interface: one consumer, and the ways to run an operation once for it."""

import functools
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Never, TypedDict, overload

from carride_idempotency import observation
from carride_idempotency.clock import REAL_TIME, Timing
from carride_idempotency.dead_letters import DeadLetters
from carride_idempotency.entry.handlers import checked, lambda_handler, plain
from carride_idempotency.entry.messages import MessageHandler, Reader, RejectedMessageError
from carride_idempotency.errors import BatchFailedError, ConfigurationError
from carride_idempotency.invocation import LambdaContext, LambdaInvocation
from carride_idempotency.keys import TransportId, check_name, record_key
from carride_idempotency.observation import Observers
from carride_idempotency.policy import Policy
from carride_idempotency.protocol.concurrency import Concurrency
from carride_idempotency.protocol.operation import Operation
from carride_idempotency.protocol.run import Runner
from carride_idempotency.record import Record
from carride_idempotency.sources import EVENTBRIDGE, SQS, Source
from carride_idempotency.stores import Store

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # type checkers have it; Python 3.12's own has no default

    from carride_idempotency.aio.operation import AsyncOperation
    from carride_idempotency.entry.calls_and_blocks import BlockContext
    from carride_idempotency.http import AnyCaller, HttpHandler, HttpWork

    E = TypeVar("E", default=dict[str, Any])
else:
    from typing import TypeVar

    E = TypeVar("E")


class EventResponse(TypedDict):
    """What a decorated event handler returns, for callers that invoke it by hand."""

    outcome: str
    key: str | None
    attempt: int


class BatchResponse(TypedDict):
    """What an event source mapping with ReportBatchItemFailures reads."""

    batchItemFailures: list[dict[str, Any]]
    """For each record to deliver again, its ``itemIdentifier``: an id, for Kafka a position."""


type MessageWork[E] = (
    Callable[[E, Operation], object] | Callable[[E, "AsyncOperation"], Awaitable[object]]
)
"""What is decorated as an event or batch handler."""
type EventHandler = Callable[[dict[str, Any], LambdaContext], EventResponse]
type BatchHandler = Callable[[dict[str, Any], LambdaContext], BatchResponse]


class Consumer(Generic[E]):  # noqa: UP046 - Python 3.12 has no default in brackets
    """Makes every operation take effect once for one consumer, however often it is delivered.

    Args:
        name: the consumer's name. Consumers of one event have different names, and so different
            records.
        store: holds the records.
        key: the idempotency key, for handlers: a function of the (parsed) event, a JMESPath
            expression over the raw message, or `TRANSPORT_ID`. Several parts (a tuple, or a
            JMESPath list) make a composite key.
        parse: turns a raw message into the event that the handler takes. A ValueError means that
            the message breaks the contract. Any other error while a message is read is the code's
            fault: the message is delivered again.
        payload: what is fingerprinted, in the same forms as ``key``. Default: the event's ``data``.
        occurred: when the event happened: a function of the (parsed) event. The oldest of this, the
            time in EventBridge's envelope and the transport's own time decides whether the window
            still covers a delivery.
        expires: when the event is no longer worth processing: a function of the (parsed) event.
        source: what delivers the messages. Default: EventBridge for an event handler, SQS for a
            batch handler.
        policy: limits, times and choices.
        dead_letters: takes events that must not run again. Without it their errors are raised.
        observe: is called with the outcome of every delivery: `emf`, `logged`, a function of your
            own, or a list of several.
        labels: more about the event for ``observe``, such as a correlation id: a function of the
            (parsed) event.
        region: where this process runs. Default: ``AWS_REGION``.
        concurrency: how records of a batch and heartbeats run at the same time. Default: in
            threads.

    Raises:
        ConfigurationError: the settings cannot work together.
    """

    _time: Timing = REAL_TIME

    def __init__(
        self,
        name: str,
        store: Store,
        *,
        key: str | TransportId | Callable[[E], object] | None = None,
        parse: Callable[[Any], E] | None = None,
        payload: str | Callable[[E], object] | None = None,
        occurred: Callable[[E], datetime | None] | None = None,
        expires: Callable[[E], datetime | None] | None = None,
        source: Source | None = None,
        policy: Policy | None = None,
        dead_letters: DeadLetters | None = None,
        observe: Observers = observation.ignore,
        labels: Callable[[E], Mapping[str, str]] | None = None,
        region: str | None = None,
        concurrency: Concurrency | None = None,
    ) -> None:
        policy = Policy() if policy is None else policy
        check_name(name, "a consumer's name")
        _check_kinds(name, store, dead_letters)
        _check_choices(name, policy, source, observe)
        if parse is not None and payload is None:
            raise ConfigurationError(
                f"{name}: with parse=, say which part of the event is its payload="
            )
        if policy.atomic and not store.transactional:
            raise ConfigurationError(
                f"{name}: an atomic policy needs a store with transactions: "
                "use DynamoDBStore, or atomic=False"
            )
        self.name = name
        self._store = store
        self._source = source
        time = self._time
        self._clock = time.clock
        self._policy = policy
        self._reader = Reader(
            name,
            policy,
            key=key,
            parse=parse,
            payload=payload,
            occurred=occurred,
            expires=expires,
            labels=labels,
        )
        self._runner = Runner(
            name,
            store,
            policy,
            dead_letters=dead_letters,
            observe=observe,
            region=region,
            clock=time.clock,
            sleep=time.sleep,
            jitter=time.jitter,
            concurrency=concurrency,
        )

    def event_handler(self, work: "MessageWork[E] | None" = None) -> EventHandler:
        """Decorate ``work(event, operation)`` as a Lambda handler of single messages.

        The handler raises if the message is to be delivered again. What ``work`` returns is not
        stored, and no caller gets it: for one that waits, such as a Task of Step Functions,
        decorate a `function`. An ``async def`` gets an `AsyncOperation`, and runs to its end.
        """
        run = self._checked(work, "event_handler")
        messages = MessageHandler(self._reader, self._runner, self._source or EVENTBRIDGE, run)

        @functools.wraps(run)
        def handler(event: dict[str, Any], context: LambdaContext) -> EventResponse:
            invocation = LambdaInvocation.of(context, self._clock)
            delivery_id = context.aws_request_id
            messages.check(event, delivery_id)
            try:
                message = messages.read_message(event, invocation, delivery_id)
            except RejectedMessageError as rejected:
                outcome = messages.reject(rejected, invocation, event, delivery_id)
                return {"outcome": outcome, "key": None, "attempt": 0}
            answer = messages.run_message(message)
            return {
                "outcome": answer.outcome,
                "key": message.delivery.key,
                "attempt": answer.attempt,
            }

        return lambda_handler(run, handler)

    def batch_handler(self, work: "MessageWork[E] | None" = None) -> BatchHandler:
        """Decorate ``work(event, operation)`` as a Lambda handler of batches.

        Records run concurrently, each by itself. The response names those to deliver again, so the
        event source mapping needs ``FunctionResponseTypes: [ReportBatchItemFailures]``. What
        ``work`` returns is not stored. The handler raises BatchFailedError if all records failed,
        or any record of a source that cannot report single ones. An ``async def`` gets an
        `AsyncOperation`; records that run at the same time have an event loop each.
        """
        from carride_idempotency.entry.batch import Batch, Pace

        run = self._checked(work, "batch_handler")
        source = self._source or SQS
        pace = Pace(self._clock)
        messages = MessageHandler(self._reader, self._runner, source, pace.measure(run))

        @functools.wraps(run)
        def handler(event: dict[str, Any], context: LambdaContext) -> BatchResponse:
            invocation = LambdaInvocation.of(context, self._clock)
            request_id = context.aws_request_id
            messages.check(event, request_id)
            records = messages.records(event, request_id)
            batch = Batch(messages, self._runner, pace, records, invocation)
            failures = batch.run_records()
            failed = [records[position] for position in sorted(failures)]
            names = _names_of(failed, source)
            if failures and (names is None or len(failures) == len(records)):
                # A record that was not started has no error.
                first_error = next(filter(None, failures.values()), None)
                raise BatchFailedError(
                    f"{len(failures)} of {len(records)} records have to be delivered again"
                ) from first_error
            return {"batchItemFailures": [{"itemIdentifier": name} for name in names or ()]}

        return lambda_handler(run, handler)

    @overload
    def http_handler(self, work: "HttpWork[E]", /) -> "HttpHandler": ...
    @overload
    def http_handler(
        self,
        /,
        *,
        caller: "str | Callable[[E], object] | AnyCaller | None" = ...,
        methods: Collection[str] = ...,
        problem_types: str = ...,
    ) -> "Callable[[HttpWork[E]], HttpHandler]": ...
    def http_handler(self, work: "HttpWork[E] | None" = None, /, **options: Any) -> Any:
        """Decorate ``work(request, operation)`` as a Lambda handler of HTTP requests.

        ``work`` returns a response. The key is what ``key=`` gives, or the Idempotency-Key header.

        A response below 500 is stored, except refusals that the same request may not get later: see
        `HttpProblemError`. A refusal decides for itself with ``"stored": True`` or ``False``. The
        stored response is replayed without cookies, and with the header ``Idempotency-Replayed:
        true``. Any other response, and an exception, is a failure of the attempt.

        ``caller`` finds who sends the (parsed) request, as a function or an expression. It becomes
        a part of the key. Without ``key=`` it is required; `ANY_CALLER` says that all callers may
        share keys.

        ``methods`` are those whose requests take effect once, by default POST, PUT, PATCH and
        DELETE. Other requests run each time, without a record, and get None as their operation.

        ``problem_types`` is the prefix of a problem's ``type`` that is not a URI, by default
        ``urn:problem-type:``.
        """
        from carride_idempotency.http.handler import make_handler

        def decorate(work: "HttpWork[E]") -> "HttpHandler":
            return make_handler(self._reader, self._runner, work, **options)

        return decorate if work is None else decorate(work)

    def _checked(
        self, work: "MessageWork[E] | None", decorator: str
    ) -> Callable[[E, Operation], object]:
        """Return ``work`` as a plain function, if it can be decorated."""
        if work is not None and self._reader.key is None:
            raise ConfigurationError(
                f"{self.name}: @{decorator} needs key=, which names the operation"
            )
        return checked(work, decorator)

    @overload
    def function[**P, R](
        self, *, key: str, name: str | None = None, payload: str | Sequence[str] | None = None
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
    @overload
    def function(self, work: Never, /) -> Never: ...
    def function(  # noqa: D417 - what is undecorated is refused
        self,
        *undecorated: Any,
        key: str | None = None,
        name: str | None = None,
        payload: str | Sequence[str] | None = None,
    ) -> Any:
        """Decorate any function: a call whose key is completed returns the stored result.

        Args:
            key: the name of the argument that holds the idempotency key. For a composite key the
                argument is a tuple.
            name: the operation's name, a part of its record keys: functions of one consumer never
                share a record. Default: the function's ``__name__``.
            payload: names of the arguments that are fingerprinted. Default: all that do not equal
                their defaults.

        If the function has an argument ``operation`` with a default, it gets the operation. The
        arguments ``self`` and ``cls`` of a method are not fingerprinted. An ``async def`` is
        awaited, and gets an `AsyncOperation`.

        Raises:
            ConfigurationError: the function cannot be decorated, or has no such argument.
        """
        from carride_idempotency.entry.calls_and_blocks import decorated, registered

        if undecorated or key is None:
            from carride_idempotency.errors.misuse import bare_function

            raise bare_function(undecorated)
        if not isinstance(key, str) or "," in key:
            from carride_idempotency.errors.misuse import not_one_argument

            raise not_one_argument(self.name, key)

        def decorate[**P, R](work: Callable[P, R]) -> Callable[P, R]:
            compared = (payload,) if isinstance(payload, str) else payload
            work = plain(work, "function(key=...)")
            operation = self._operation_name(work, name)
            call = decorated(
                self._reader, self._runner, work, name=operation, key=key, payload=compared
            )
            if name is not None:
                return call
            return registered(self, self.name, operation, call)

        return decorate

    def _operation_name(self, work: Callable[..., object], name: str | None) -> str:
        """Return the name of a function's operation.

        Two functions share one only if ``name=`` says so.
        """
        if name is not None:
            check_name(name, "an operation's name")
            return name
        name = getattr(work, "__name__", "")
        if not name.isidentifier():
            raise ConfigurationError(
                f"{self.name}: give {work!r} a name=, which keeps its records apart"
            )
        return name

    def operation(
        self, key: object, payload: object = None, *, name: str | None = None
    ) -> "BlockContext":
        """Return a ``with`` block, or in an event loop an ``async with``, for one operation.

        ``key`` is the idempotency key itself (a tuple for a composite one), and ``payload`` is
        fingerprinted::

            with consumer.operation(order_id, order) as block:
                if not block.done:
                    block.complete(charge(order, block.operation.downstream_key))
            return block.result
        """
        if self._policy.atomic:
            raise ConfigurationError(
                f"{self.name}: a block needs a claim, so its policy cannot be atomic: decorate a "
                "function with @consumer.function(key=...), or take a consumer without atomic=True"
            )
        if name is not None:
            check_name(name, "an operation's name")
        from carride_idempotency.entry.calls_and_blocks import BlockContext

        return BlockContext(self._runner, self._reader.call(key, payload, name))

    def record(self, key: object, operation: str | None = None) -> Record | None:
        """Return the record of an idempotency key.

        ``operation`` is a function's or block's name.
        """
        return self._store.read(record_key(self.name, key, operation))

    def release(self, key: object, operation: str | None = None) -> bool:
        """Release a key, as `carride_idempotency.release` does; return whether that was needed."""
        from carride_idempotency.recovery import release

        name = record_key(self.name, key, operation)
        return release(self._store, name, window=self._policy.window_s, clock=self._clock)


def _names_of(failed: Iterable[Any], source: Source) -> list[object] | None:
    """Return what records are reported by; None if the source cannot report each of them."""
    if source.failure_id is None:
        return None
    try:
        names = [source.failure_id(record) for record in failed]
    except (KeyError, IndexError, TypeError):
        return None
    return None if None in names else names


def _check_kinds(name: str, store: object, dead_letters: object) -> None:
    """Check what holds records and takes dead letters; otherwise raise a ConfigurationError."""
    if not _has(store, "update_if_owner"):
        from carride_idempotency.errors.misuse import not_a_store

        raise not_a_store(name, store)
    if dead_letters is not None and not _has(dead_letters, "send"):
        from carride_idempotency.errors.misuse import not_dead_letters

        raise not_dead_letters(name, dead_letters)


def _check_choices(name: str, policy: object, source: object, observe: object) -> None:
    """Check the types of a consumer's other settings; otherwise raise a ConfigurationError."""
    if not isinstance(policy, Policy):
        from carride_idempotency.errors.misuse import not_a_policy

        raise not_a_policy(name, policy)
    if source is not None and not isinstance(source, Source):
        from carride_idempotency.errors.misuse import not_a_source

        raise not_a_source(name, source)
    observers = observe if isinstance(observe, (list, tuple)) else (observe,)
    for observer in observers:
        if not callable(observer) or _makes_observers(observer):
            from carride_idempotency.errors.misuse import not_an_observer

            raise not_an_observer(name, observer)


def _makes_observers(observer: object) -> bool:
    """Return whether it is `emf` or `logged` itself, which would observe nothing."""
    return getattr(observer, "__module__", None) == "carride_idempotency.observers" and (
        getattr(observer, "__qualname__", None) in {"emf", "logged"}
    )


def _has(value: object, method: str) -> bool:
    """Return whether a value, which is not a class, has a method."""
    return hasattr(value, method) and not isinstance(value, type)
