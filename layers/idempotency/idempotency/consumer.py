"""The programming interface: one consumer, and the four ways of having something done once for it."""

import contextvars
import functools
import inspect
import os
import random
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypedDict, Unpack, overload

from idempotency import dead_letters as letters
from idempotency import observation
from idempotency.clock import Clock, epoch_ms, to_ms
from idempotency.concurrency import Concurrency
from idempotency.dead_letters import DeadLetter, DeadLetters
from idempotency.errors import BatchFailedError, ConfigurationError, MissingKeyError, describe
from idempotency.fingerprint import fingerprint
from idempotency.handlers import finished, require_plain
from idempotency.keys import TransportId, check_name, extractor, record_key
from idempotency.observation import Observation, Observer
from idempotency.operation import Operation
from idempotency.policy import Policy
from idempotency.record import Record
from idempotency.runner import POSTPONED, Answer, Delivery, Runner
from idempotency.sources import EVENTBRIDGE, SQS, Raw, Source, event_ms
from idempotency.stores import Store

if TYPE_CHECKING:
    from idempotency.batch import Job, Suspect
    from idempotency.block import Block
    from idempotency.http import HttpHandler, HttpOptions


class _Invocation(NamedTuple):
    """The Lambda invocation that functions and blocks are called in."""

    deadline_ms: int | None = None
    context: Any = None


_invocation: contextvars.ContextVar[_Invocation] = contextvars.ContextVar(
    "idempotency_invocation",
    default=_Invocation(),  # noqa: B039 - a named tuple is immutable
)


class LambdaContext(Protocol):
    """The part of Lambda's context object that is used here."""

    aws_request_id: str

    def get_remaining_time_in_millis(self) -> int:
        """Return how much time is left before the invocation is stopped."""
        ...


class EventResponse(TypedDict):
    """What a decorated event handler returns: of use to whoever invokes it by hand."""

    outcome: str
    key: str | None
    attempt: int


class BatchItemFailure(TypedDict):
    """One record that is to be delivered again."""

    itemIdentifier: str


class BatchResponse(TypedDict):
    """What an event source mapping with ReportBatchItemFailures reads."""

    batchItemFailures: list[BatchItemFailure]


class Consumer[E = dict[str, Any]]:
    """Has every operation take effect once for one consumer, however often it is delivered.

    Args:
        name: the consumer. Consumers of one event have different names, and so different records.
        store: where the records are.
        key: what names an operation, for handlers: a function of the (parsed) event, a JMESPath expression over the raw
            message, or `TRANSPORT_ID`. Several parts (a tuple, or a JMESPath list) make a composite key.
        parse: turns a raw message into the event that the handler takes. A ValueError from it says that the message
            breaks the contract, and sends it to the dead-letter queue at once. Whatever else goes wrong while a message
            is read is taken for the code's fault, and the transport delivers the message again.
        payload: what is fingerprinted, in the same forms as ``key``. Left out, it is the event's ``data``.
        occurred: when the event happened: a function of the (parsed) event. The oldest of this, the time in
            EventBridge's envelope and the transport's own time decides whether the window still covers a delivery.
        expires: when the event is no longer worth processing: a function of the (parsed) event.
        source: what delivers the messages. Left out: EventBridge for an event handler, SQS for a batch handler.
        policy: limits, times and choices.
        dead_letters: takes events that must not be run again. Left out, they raise, and the transport's own dead-letter
            queue takes them when its retries are used up.
        observe: is told what became of every delivery.
        labels: what it is told of the event besides, such as a correlation id: a function of the (parsed) event.
        region: where this process runs; left out, ``AWS_REGION``.
        clock, sleep, jitter: epoch milliseconds, waiting in seconds, a number from 0 to 1.
        concurrency: how records of a batch and heartbeats run at the same time; left out, in threads.

    Raises:
        ConfigurationError: the settings cannot work together.
    """

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
        observe: Observer = observation.ignore,
        labels: Callable[[E], Mapping[str, str]] | None = None,
        region: str | None = None,
        clock: Clock = epoch_ms,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
        concurrency: Concurrency | None = None,
    ) -> None:
        policy = policy or Policy()
        check_name(name, "a consumer's name")
        if parse is not None and payload is None:
            raise ConfigurationError(f"{name}: with parse=, say which part of the event is its payload=")
        if policy.atomic and not store.transactional:
            if store.effect_writer is None:
                raise ConfigurationError(
                    f"{name}: an atomic policy needs a store with transactions, or an effect_writer"
                )
            policy = replace(policy, atomic=False, same_delivery_takes_over=True)
        self.name = name
        self._store = store
        self._source = source
        self._parse = parse
        self._key = key if key is None or isinstance(key, TransportId) else extractor(key, "key")
        self._key_of_message = isinstance(key, str)
        self._payload = None if payload is None else extractor(payload, "payload")
        self._payload_of_message = isinstance(payload, str)
        self._occurred = occurred
        self._expires = expires
        self._dead_letters = dead_letters
        self._observe = observe
        self._labels = labels
        self._clock = clock
        self._policy = policy
        self._functions: dict[str, tuple[str, str]] = {}
        self._runner = Runner(
            name,
            store,
            policy,
            dead_letters=dead_letters,
            observe=observe,
            region=region,
            clock=clock,
            sleep=sleep,
            jitter=jitter,
            concurrency=concurrency,
        )

    # ── Lambda handlers ───────────────────────────────────────────────────────────────────────────────────────────────

    def event_handler(
        self, work: Callable[[E, Operation], object] | None = None
    ) -> Callable[[dict[str, Any], LambdaContext], EventResponse]:
        """Decorate ``work(event, operation)`` as the Lambda handler of a source that delivers messages one by one.

        The handler raises what is to be delivered again. What ``work`` returns is not stored: nobody reads it.
        """
        run = self._handler_of(work, "event_handler")
        source = self._source or EVENTBRIDGE

        @functools.wraps(run)
        def handler(event: dict[str, Any], context: LambdaContext) -> EventResponse:
            invocation = self._invocation_of(context)
            read = self._read(source, event, invocation, context.aws_request_id)
            if not isinstance(read, _Message):
                return read
            answer = self._run(run, read)
            attempt = 0 if answer.record is None else answer.record.attempt
            return {"outcome": answer.outcome, "key": read.delivery.key, "attempt": attempt}

        return handler

    def batch_handler(
        self, work: Callable[[E, Operation], object] | None = None
    ) -> Callable[[dict[str, Any], LambdaContext], BatchResponse]:
        """Decorate ``work(event, operation)`` as the Lambda handler of a source that delivers batches.

        Records run concurrently, each by itself; those that are to be delivered again are reported, so that the event
        source mapping needs ``FunctionResponseTypes: [ReportBatchItemFailures]``. What ``work`` returns is not stored.

        The handler raises BatchFailedError where all records failed, so that a mapping without that setting loses
        nothing, and where any failed of a source that cannot report them one by one.
        """
        from idempotency.batch import Batch, Pace  # noqa: PLC0415 - who handles no batches does not pay for it

        run = self._handler_of(work, "batch_handler")
        source = self._source or SQS
        pace = Pace(self._clock)

        @functools.wraps(run)
        def handler(event: dict[str, Any], context: LambdaContext) -> BatchResponse:
            invocation = self._invocation_of(context)
            records = source.records(event)
            batch = Batch(
                [self._job(source, raw, pace.measure(run), invocation) for raw in records],
                concurrency=self._runner.concurrency,
                limit=self._policy.concurrency,
                left_ms=functools.partial(self._runner.left_ms, invocation.deadline_ms),
                pace=pace,
            )
            failures = batch.run()
            if failures and (source.failure_id is None or len(failures) == len(records)):
                raise BatchFailedError(len(failures), len(records)) from next(filter(None, failures.values()), None)
            report = source.failure_id or source.message_id
            return {
                "batchItemFailures": [{"itemIdentifier": report(records[position])} for position in sorted(failures)]
            }

        return handler

    @overload
    def http_handler(self, work: Callable[[E, Operation], object], /) -> "HttpHandler": ...
    @overload
    def http_handler(
        self, /, **options: Unpack["HttpOptions"]
    ) -> "Callable[[Callable[[E, Operation], object]], HttpHandler]": ...
    def http_handler(self, work: Callable[[E, Operation], object] | None = None, /, **options: Any) -> Any:
        """Decorate ``work(request, operation)``, which returns a response, as a Lambda handler of HTTP requests.

        For API Gateway (payload formats 1.0 and 2.0), function URLs and load balancers. The key is what ``key=`` gives,
        or the Idempotency-Key header. Requests of other methods than ``methods=`` run each time and without a record,
        and are given None as their operation. A first response below 500 is stored, and replayed with the header
        ``Idempotency-Replayed: true``. One from 500 on is a failure, and so is what the handler raises.
        """
        from idempotency.http import make_handler  # noqa: PLC0415 - who answers no requests does not pay for it

        if work is None:
            return functools.partial(make_handler, self, **options)
        return make_handler(self, work, **options)

    def _handler_of(
        self, work: Callable[[E, Operation], object] | None, decorator: str
    ) -> Callable[[E, Operation], None]:
        """Return ``work`` without its result, if it can be decorated at all."""
        require_plain(work, decorator)
        assert work is not None  # noqa: S101 - require_plain has refused it
        if self._key is None:
            raise ConfigurationError(f"{self.name}: @{decorator} needs key=, which says what names an operation")

        @functools.wraps(work)
        def run(event: E, operation: Operation) -> None:
            finished(work(event, operation))

        return run

    def _job(self, source: Source, raw: Raw, work: Callable[[E, Operation], None], invocation: _Invocation) -> "Job":
        """Return the job of one record. Whatever is wrong with the record fails this job, and no other."""
        from idempotency.batch import Job  # noqa: PLC0415 - as above

        group: str | None = None
        try:
            group = source.group(raw)
            read = self._read(source, raw, invocation, source.message_id(raw), postpones=True)
        except Exception as error:  # noqa: BLE001 - raised again by the record's own job
            return Job(None if group is None else f"group {group}", functools.partial(_raise, error))
        lane = None if group is None else f"group {group}"
        if not isinstance(read, _Message):
            return Job(lane, _done)
        return Job(lane or read.delivery.key, functools.partial(self._run_record, work, read))

    def _run_record(
        self,
        work: Callable[[E, Operation], None],
        read: "_Message[E]",
        postpones: bool,
    ) -> "Suspect | None":
        if not postpones:
            read = _Message(read.event, read.delivery._replace(postpones=False))
        answer = self._run(work, read)
        if answer.outcome != POSTPONED or answer.record is None:
            return None
        from idempotency.batch import Suspect  # noqa: PLC0415 - as above

        return Suspect(answer.record.attempt, answer.record.attempt + 1 >= self._policy.max_attempts)

    def _run(self, work: Callable[[E, Operation], None], read: "_Message[E]") -> Answer:
        token = _invocation.set(_Invocation(read.delivery.deadline_ms, read.delivery.context))
        try:
            return self._runner.run(read.delivery, functools.partial(work, read.event))
        finally:
            _invocation.reset(token)

    def _read(
        self, source: Source, raw: Raw, invocation: _Invocation, delivery_id: str, *, postpones: bool = False
    ) -> "_Message[E] | EventResponse":
        """Read one message, or hand it to the dead-letter queue if the message itself is at fault.

        Raises:
            Exception: reading failed for another reason, or there is no dead-letter queue: it is to be delivered again.
        """
        try:
            return self._message(source, raw, invocation, delivery_id, postpones=postpones)
        except _BrokenMessageError as broken:
            return self._reject(broken.reason, broken.cause, raw, delivery_id)
        except Exception as error:
            self._observe(Observation(self.name, observation.FAILED, None, 0, delivery_id, describe(error)))
            raise

    def _message(
        self, source: Source, raw: Raw, invocation: _Invocation, delivery_id: str, *, postpones: bool
    ) -> "_Message[E]":
        message = self._decoded(source, raw)
        try:
            event: E = message if self._parse is None else self._parse(message)
        except ValueError as error:
            raise _BrokenMessageError(letters.CONTRACT, error) from error
        key = self._record_key(source, raw, message, event)
        if self._payload is None:
            payload = source.payload(message)
        else:
            payload = self._payload(message if self._payload_of_message else event)
        # A message in EventBridge's envelope that came through something else may be older than that transport knows.
        times = [source.sent_ms(raw), None if message is raw else event_ms(message), _ms(self._occurred, event)]
        received = source.attempts(raw)
        return _Message(
            event,
            Delivery(
                key=key or self._unprotected_key(),
                fingerprint=fingerprint(payload),
                id=delivery_id,
                deadline_ms=invocation.deadline_ms,
                acknowledges=True,
                comes_again=source.comes_again(raw),
                postpones=postpones,
                claims=postpones and received != 1,
                protected=key is not None,
                context=invocation.context,
                replayed=source.replayed(raw),
                sent_ms=min([at_ms for at_ms in times if at_ms is not None], default=None),
                expires_ms=_ms(self._expires, event),
                event=raw,
                labels=observation.NO_LABELS if self._labels is None else self._labels(event),
            ),
        )

    def _decoded(self, source: Source, raw: Raw) -> Any:
        try:
            return source.message(raw)
        except (ValueError, RecursionError) as error:  # no JSON, or JSON that is nested too deeply
            if isinstance(self._key, TransportId) and self._parse is None:
                text = source.text(raw)
                if text is not None:
                    return text
            raise _BrokenMessageError(letters.CONTRACT, error) from error

    def _record_key(self, source: Source, raw: Raw, message: Any, event: E) -> str | None:
        """Return the record's key, or None where the message has none and runs unprotected."""
        try:
            if isinstance(self._key, TransportId):
                return record_key(self.name, source.message_id(raw))
            return record_key(self.name, self._key and self._key(message if self._key_of_message else event))
        except MissingKeyError as error:
            if self._policy.missing_key == "run":
                return None
            raise _BrokenMessageError(letters.MISSING_KEY, error) from error

    def _unprotected_key(self) -> str:
        """Return a record key that nothing else has."""
        return f"{self.name}#%none:{os.urandom(16).hex()}"

    def _reject(self, reason: str, error: Exception, raw: Raw, delivery_id: str) -> EventResponse:
        """Hand a message that cannot be read to the dead-letter queue; it has no record."""
        if self._dead_letters is None:
            self._observe(Observation(self.name, observation.FAILED, None, 0, delivery_id, reason))
            raise error
        self._dead_letters.send(DeadLetter(reason, describe(error), self.name, None, 0, raw))
        self._observe(Observation(self.name, observation.DEAD_LETTERED, None, 0, delivery_id, reason))
        return {"outcome": observation.DEAD_LETTERED, "key": None, "attempt": 0}

    def _invocation_of(self, context: LambdaContext) -> _Invocation:
        return _Invocation(_deadline_of(context, self._clock), context)

    # ── Any function, any block ───────────────────────────────────────────────────────────────────────────────────────

    def function[**P, R](
        self, *, key: str, name: str | None = None, payload: str | Sequence[str] | None = None
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate any function: a call whose key is completed returns the stored result.

        Args:
            key: name of the argument that holds the idempotency key.
            name: the operation's name, a part of its record keys: functions of one consumer never share a record. Left
                out, the function's ``__name__``.
            payload: names of the arguments that are fingerprinted; left out, all of them. An argument that equals its
                default counts as not given.

        An argument named ``operation``, for which the function has a default, is given the operation.

        Raises:
            ConfigurationError: the function cannot be decorated so.
        """

        def decorate(work: Callable[P, R]) -> Callable[P, R]:
            require_plain(work, "function(key=...)")
            operation_name = self._operation_name(work, name)
            signature = inspect.signature(work)
            defaults = {
                parameter.name: parameter.default
                for parameter in signature.parameters.values()
                if parameter.name != "operation"
            }
            chosen = (payload,) if isinstance(payload, str) else payload
            for argument in (key, *(chosen or ())):
                if argument not in defaults:
                    raise ConfigurationError(
                        f"{self.name}: {operation_name} has no argument {argument!r}, but {list(defaults)}"
                    )
            takes_operation = "operation" in signature.parameters
            fingerprinted = chosen or defaults

            @functools.wraps(work)
            def call(*args: P.args, **kwargs: P.kwargs) -> R:
                bound = signature.bind(*args, **kwargs)
                given = {
                    argument: bound.arguments[argument]
                    for argument in fingerprinted
                    if argument in bound.arguments and not _equals(bound.arguments[argument], defaults[argument])
                }
                returned: list[R] = []  # of the latest run: a conflict may have it run again

                def once(operation: Operation) -> object:
                    if takes_operation:
                        bound.arguments["operation"] = operation
                    returned[:] = [finished(work(*bound.args, **bound.kwargs))]
                    return returned[0]

                key_given = bound.arguments.get(key, defaults[key])
                key_given = None if key_given is inspect.Parameter.empty else key_given
                answer = self._runner.run(self._call(key_given, given, operation_name), once)
                if answer.outcome in observation.COMMITTED:
                    return returned[0]  # as it is: it may be one that could not be stored
                stored: R = answer.value()
                return stored

            return call

        return decorate

    def _operation_name(self, work: Callable[..., object], name: str | None) -> str:
        """Return the name of a function's operation. Two functions share one only where ``name=`` says so."""
        if name is not None:
            check_name(name, "an operation's name")
            return name
        name = getattr(work, "__name__", "")
        if not name.isidentifier():
            raise ConfigurationError(f"{self.name}: give {work!r} a name=, by which its records are told from others'")
        place = (work.__module__, work.__qualname__)
        if self._functions.setdefault(name, place) != place:
            raise ConfigurationError(
                f"{self.name}: two functions are called {name}: give one another name=, so that they share no keys"
            )
        return name

    def operation(self, key: object, payload: object = None, *, name: str | None = None) -> "Block":
        """Work on one operation in a ``with`` block.

        ``key`` is the idempotency key itself (a tuple for a composite one), ``payload`` what is fingerprinted, ``name``
        the operation's name, where one consumer has several::

            with consumer.operation(order_id, order) as block:
                if not block.done:
                    block.complete(charge(order, block.operation.downstream_key))
            return block.result
        """
        if self._policy.atomic:
            raise ConfigurationError(f"{self.name}: a block cannot be run without a claim, so it cannot be atomic")
        if name is not None:
            check_name(name, "an operation's name")
        from idempotency.block import Block  # noqa: PLC0415 - who needs no blocks does not pay for them

        return Block(self._runner, self._call(key, payload, name))

    def _call(self, key: object, payload: object, operation: str | None) -> Delivery:
        invocation = _invocation.get()
        protected = True
        try:
            name = record_key(self.name, key, operation)
        except MissingKeyError:
            if self._policy.missing_key != "run":
                raise
            name, protected = self._unprotected_key(), False
        return Delivery(
            key=name,
            fingerprint=fingerprint(payload),
            id=None,
            deadline_ms=invocation.deadline_ms,
            acknowledges=False,
            protected=protected,
            context=invocation.context,
            event=payload,
        )

    # ── For operators ─────────────────────────────────────────────────────────────────────────────────────────────────

    def record(self, key: object, operation: str | None = None) -> Record | None:
        """Return the record of an idempotency key as it is now; ``operation`` is a function's or block's name."""
        return self._store.read(record_key(self.name, key, operation))

    def release(self, key: object, operation: str | None = None) -> bool:
        """Give back a key that is quarantined, or whose record is corrupt: its next delivery is attempt 1.

        Return whether there was something to release.
        """
        from idempotency.operators import release  # noqa: PLC0415 - for operators: no event pays for it

        return release(
            self._store, record_key(self.name, key, operation), window=self._policy.window, clock=self._clock
        )


class _Message[E](NamedTuple):
    """One message that could be read: the event that the handler takes, and what the protocol must know of it."""

    event: E
    delivery: Delivery


class _BrokenMessageError(Exception):
    """Raised for a message that is at fault itself, so that no retry can mend it."""

    def __init__(self, reason: str, cause: Exception) -> None:
        super().__init__(reason)
        self.reason = reason
        self.cause = cause


def _raise(error: Exception, postpones: bool) -> None:  # noqa: ARG001 - the one argument of a job
    raise error


def _done(postpones: bool) -> None:
    """Do nothing: the message was dead-lettered while it was read."""


def _ms[E](find: Callable[[E], datetime | None] | None, event: E) -> int | None:
    time = None if find is None else find(event)
    return None if time is None else to_ms(time)


def _equals(value: object, default: object) -> bool:
    """Whether an argument equals its default. True is no 1, and what cannot be compared is not equal."""
    if value is default:
        return True
    try:
        return type(value) is type(default) and bool(value == default)
    except Exception:  # noqa: BLE001 - the values' own comparison; without an answer the argument is fingerprinted
        return False


def _deadline_of(context: LambdaContext, clock: Clock) -> int:
    try:
        return clock() + int(context.get_remaining_time_in_millis())
    except AttributeError as error:
        raise ConfigurationError(
            f"a handler needs Lambda's context, not {context!r}; a test passes idempotency.testing.Invocation(clock)"
        ) from error


@contextmanager
def lambda_deadline(context: LambdaContext, clock: Clock = epoch_ms) -> Generator[None]:
    """Let the functions and blocks that are called inside know the deadline of a Lambda invocation.

    Event, batch and HTTP handlers do so by themselves.
    """
    token = _invocation.set(_Invocation(_deadline_of(context, clock), context))
    try:
        yield
    finally:
        _invocation.reset(token)
