"""The programming interface: one consumer, and the four ways of having something done once for it."""

import contextvars
import functools
import inspect
import random
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Protocol, TypedDict, Unpack, overload

from idempotency import dead_letters as letters
from idempotency import observation
from idempotency.clock import Clock, epoch_ms
from idempotency.dead_letters import DeadLetter, DeadLetters
from idempotency.decision import released
from idempotency.errors import ConfigurationError, MissingKeyError, OutOfTimeError
from idempotency.fingerprint import fingerprint
from idempotency.keys import TransportId, extractor, record_key
from idempotency.observation import Observation, Observer
from idempotency.operation import Operation
from idempotency.policy import Policy
from idempotency.record import QUARANTINED, Record
from idempotency.runner import Answer, Delivery, Runner
from idempotency.sources import EVENTBRIDGE, SQS, Raw, Source, event_ms, payload_of
from idempotency.stores import Store

if TYPE_CHECKING:
    from idempotency.batch import Job
    from idempotency.block import Block
    from idempotency.http import HttpHandler, HttpOptions

_BROKEN: Final = (ValueError, LookupError, TypeError)
"""What reading a message may raise: the message is at fault, and no retry will mend it."""

_deadline: contextvars.ContextVar[int | None] = contextvars.ContextVar("idempotency_deadline_ms", default=None)


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
        parse: turns a raw message into the event that the handler takes. A ValueError, LookupError or TypeError from it
            says that the message breaks the contract, and sends it to the dead-letter queue at once.
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
    ) -> None:
        policy = policy or Policy()
        if not name or "#" in name:
            raise ConfigurationError(f"a consumer's name cannot be empty or contain '#': {name!r}")
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
        self._payload = extractor(payload or payload_of, "payload")
        self._payload_of_message = isinstance(payload, str)
        self._occurred = occurred
        self._expires = expires
        self._dead_letters = dead_letters
        self._observe = observe
        self._labels = labels
        self._clock = clock
        self._policy = policy
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
        )

    # ── Lambda handlers ───────────────────────────────────────────────────────────────────────────────────────────────

    def event_handler(
        self, work: Callable[[E, Operation], object]
    ) -> Callable[[dict[str, Any], LambdaContext], EventResponse]:
        """Decorate ``work(event, operation)`` as the Lambda handler of a source that delivers messages one by one.

        The handler raises what is to be delivered again.
        """
        source = self._source or EVENTBRIDGE
        self._require_key("an event handler")

        @functools.wraps(work)
        def handler(event: dict[str, Any], context: LambdaContext) -> EventResponse:
            deadline_ms = self._deadline_of(context)
            try:
                parsed, delivery = self._read(source, event, context.aws_request_id, deadline_ms)
            except (MissingKeyError, *_BROKEN) as error:
                return self._reject(error, event, context.aws_request_id)
            answer = self._run(work, parsed, delivery)
            attempt = 0 if answer.record is None else answer.record.attempt
            return {"outcome": answer.outcome, "key": delivery.key, "attempt": attempt}

        return handler

    def batch_handler(
        self, work: Callable[[E, Operation], object]
    ) -> Callable[[dict[str, Any], LambdaContext], BatchResponse]:
        """Decorate ``work(event, operation)`` as the Lambda handler of a source that delivers batches.

        Records run concurrently, each by itself; those that are to be delivered again are reported, so that the event
        source mapping needs ``FunctionResponseTypes: [ReportBatchItemFailures]``. For a source that cannot report them
        one by one the handler raises the first failure, and the whole batch is delivered again.
        """
        from idempotency.batch import run_jobs  # noqa: PLC0415 - who handles no batches does not pay for it

        source = self._source or SQS
        self._require_key("a batch handler")

        @functools.wraps(work)
        def handler(event: dict[str, Any], context: LambdaContext) -> BatchResponse:
            deadline_ms = self._deadline_of(context)
            records = source.records(event)
            failures = run_jobs(
                [self._job(source, raw, work, deadline_ms) for raw in records],
                concurrency=self._policy.concurrency,
                has_time=functools.partial(self._runner.has_time, deadline_ms),
            )
            if failures and source.failure_id is None:
                raise next(filter(None, failures.values()), None) or OutOfTimeError("the batch took too long")
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

    def _job(self, source: Source, raw: Raw, work: Callable[[E, Operation], object], deadline_ms: int) -> "Job":
        from idempotency.batch import Job  # noqa: PLC0415 - as above

        received_before = source.attempts(raw) > 1
        group = source.group(raw)
        message_id = source.message_id(raw)
        try:
            event, delivery = self._read(source, raw, message_id, deadline_ms)
        except (MissingKeyError, *_BROKEN) as error:
            return Job(group, received_before, functools.partial(self._reject, error, raw, message_id))
        lane = delivery.key if group is None else f"group {group}"
        return Job(lane, received_before, functools.partial(self._run, work, event, delivery))

    def _run(self, work: Callable[[E, Operation], object], event: E, delivery: Delivery) -> Answer:
        token = _deadline.set(delivery.deadline_ms)
        try:
            return self._runner.run(delivery, functools.partial(work, event))
        finally:
            _deadline.reset(token)

    def _read(self, source: Source, raw: Raw, delivery_id: str, deadline_ms: int) -> tuple[E, Delivery]:
        """Read one message: the event that the handler takes, and what the protocol must know of it."""
        message = source.message(raw)
        event: E = message if self._parse is None else self._parse(message)
        if isinstance(self._key, TransportId):
            key: object = source.message_id(raw)
        else:
            key = None if self._key is None else self._key(message if self._key_of_message else event)
        times = [source.sent_ms(raw), event_ms(message)]
        if self._occurred is not None:
            times.append(_ms(self._occurred(event)))
        return event, Delivery(
            key=record_key(self.name, key),
            fingerprint=fingerprint(self._payload(message if self._payload_of_message else event)),
            id=delivery_id,
            deadline_ms=deadline_ms,
            acknowledges=True,
            replayed=source.replayed(raw),
            sent_ms=min([at_ms for at_ms in times if at_ms is not None], default=None),
            expires_ms=None if self._expires is None else _ms(self._expires(event)),
            event=raw,
            labels=observation.NO_LABELS if self._labels is None else self._labels(event),
        )

    def _reject(self, error: Exception, raw: Raw, delivery_id: str) -> EventResponse:
        """Hand a message that cannot be read to the dead-letter queue; it has no record."""
        reason = letters.MISSING_KEY if isinstance(error, MissingKeyError) else letters.CONTRACT
        if self._dead_letters is None:
            self._observe(Observation(self.name, observation.FAILED, None, 0, delivery_id, reason))
            raise error
        self._dead_letters.send(DeadLetter(reason, f"{type(error).__name__}: {error}", self.name, None, 0, raw))
        self._observe(Observation(self.name, observation.DEAD_LETTERED, None, 0, delivery_id, reason))
        return {"outcome": observation.DEAD_LETTERED, "key": None, "attempt": 0}

    def _deadline_of(self, context: LambdaContext) -> int:
        return self._clock() + int(context.get_remaining_time_in_millis())

    def _require_key(self, what: str) -> None:
        if self._key is None:
            raise ConfigurationError(f"{self.name}: {what} needs key=, which says what names an operation")

    # ── Any function, any block ───────────────────────────────────────────────────────────────────────────────────────

    def function[**P, R](self, *, key: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate any function: a call whose key is completed returns the stored result.

        ``key`` names the argument that holds the idempotency key. All arguments are fingerprinted. An argument named
        ``operation``, for which the function has a default, is given the operation.
        """

        def decorate(work: Callable[P, R]) -> Callable[P, R]:
            signature = inspect.signature(work)
            names = [name for name in signature.parameters if name != "operation"]
            if key not in names:
                raise ConfigurationError(f"{self.name}: {work.__qualname__} has no argument {key!r}, but {names}")
            takes_operation = "operation" in signature.parameters

            @functools.wraps(work)
            def call(*args: P.args, **kwargs: P.kwargs) -> R:
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                arguments = {name: bound.arguments[name] for name in names}

                returned: list[R] = []  # of the latest run: a conflict may have it run again

                def once(operation: Operation) -> object:
                    if takes_operation:
                        bound.arguments["operation"] = operation
                    returned[:] = [work(*bound.args, **bound.kwargs)]
                    return returned[0]

                answer = self._runner.run(self._call(arguments[key], arguments), once)
                if answer.outcome in observation.COMMITTED:
                    return returned[0]  # as it is: it may be one that could not be stored
                stored: R = answer.value()
                return stored

            return call

        return decorate

    def operation(self, key: object, payload: object = None) -> "Block":
        """Work on one operation in a ``with`` block.

        ``key`` is the idempotency key itself (a tuple for a composite one), ``payload`` what is fingerprinted::

            with consumer.operation(order_id, order) as block:
                if not block.done:
                    block.complete(charge(order, block.operation.downstream_key))
            return block.result
        """
        if self._policy.atomic:
            raise ConfigurationError(f"{self.name}: a block cannot be run without a claim, so it cannot be atomic")
        from idempotency.block import Block  # noqa: PLC0415 - who needs no blocks does not pay for them

        return Block(self._runner, self._call(key, payload))

    def _call(self, key: object, payload: object) -> Delivery:
        return Delivery(
            key=record_key(self.name, key),
            fingerprint=fingerprint(payload),
            id=None,
            deadline_ms=_deadline.get(),
            acknowledges=False,
            event=payload,
        )

    # ── For operators ─────────────────────────────────────────────────────────────────────────────────────────────────

    def record(self, key: object) -> Record | None:
        """Return the record of an idempotency key, as it is now."""
        return self._store.read(record_key(self.name, key))

    def release(self, key: object) -> bool:
        """Give a quarantined key back: its next delivery is attempt 1. Return whether it was quarantined until now."""
        seen = self.record(key)
        if seen is None or seen.status != QUARANTINED:
            return False
        free = released(seen, self._runner.new_owner(), self._clock(), self._policy.window)
        found = self._store.swap(seen, free)
        return found is not None and found.owner == free.owner


def _ms(time: datetime | None) -> int | None:
    return None if time is None else int(time.timestamp() * 1000)


@contextmanager
def within(context: LambdaContext, clock: Clock = epoch_ms) -> Generator[None]:
    """Let the functions and blocks that are called inside know the deadline of a Lambda invocation.

    Event and batch handlers do so by themselves.
    """
    token = _deadline.set(clock() + int(context.get_remaining_time_in_millis()))
    try:
        yield
    finally:
        _deadline.reset(token)
