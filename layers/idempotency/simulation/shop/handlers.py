"""The application of one run: a consumer, and handlers that behave as their messages say."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from carride_idempotency import (
    Consumer,
    Operation,
    PermanentError,
    RetryableError,
    Update,
    observation,
)
from carride_idempotency.http import ANY_CALLER, HttpProblemError
from carride_idempotency.observation import Observation
from carride_idempotency.protocol.externals import NOT_DONE, Done
from carride_idempotency.sources import DYNAMODB_STREAM, EVENTBRIDGE, KINESIS, SQS, Source
from carride_idempotency.stores.dynamodb import DynamoDBStore
from carride_idempotency.testing import START_MS
from shop.network import Call, ShopNetwork, SignedTransport, number_in
from shop.plan import REFUSED, UNSENDABLE, Message
from virtual_time.scheduler import Machine, here

type Handler = Callable[[Any, Any], Any]
type Behind = Callable[[Call, int], int | None]
"""Returns which message of its group a message of a call has overtaken."""

_SOURCES: Final[Mapping[str, Source | None]] = {
    "queue": SQS,
    "fifo": SQS,
    "rule": EVENTBRIDGE,
    "kinesis": KINESIS,
    "stream": DYNAMODB_STREAM,
    "http": None,
}
SESSION: Final = "session=secret"
"""A cookie of the first answer, which no replay may have."""


class HandlerError(Exception):
    """A handler's own failure."""


class HopelessError(PermanentError):
    """A handler's failure that no retry can help."""


def content_of(event: Any) -> Any:
    """Return what a producer or a client wrote."""
    if "detail" in event:
        return event["detail"]["data"]
    if "NewImage" in event:
        return json.loads(event["NewImage"]["body"]["S"])
    if "requestContext" in event:
        return json.loads(event["body"])
    return event


def order_of(event: Any) -> Any:
    """Return the key of an event. It raises AttributeError if the order is not a string."""
    order = content_of(event).get("order")
    return None if order is None else order.strip()


def occurred(event: Any) -> datetime | None:
    at_s = content_of(event).get("occurred")
    return None if at_s is None else datetime.fromtimestamp(START_MS / 1000 + at_s, UTC)


class Shop:
    """Builds handlers, and does their work.

    Attributes:
        overtaken: says which message another one of its group has overtaken.
    """

    def __init__(self, network: ShopNetwork) -> None:
        self.overtaken: Behind = lambda call, number: None
        self._network = network
        self._plan = network.plan
        self._messages = {message.number: message for message in network.plan.messages}
        self._failures: Counter[int] = Counter()
        self._running: dict[int, list[Machine]] = defaultdict(list)
        self._latest: dict[int, Operation] = {}

    def running_on(self, machine: Machine) -> list[Message]:
        """Return the messages that a machine works on."""
        numbers = [number for number, on in self._running.items() if machine in on]
        return [self._messages[number] for number in numbers]

    def handler(self) -> Handler:
        plan = self._plan
        network = self._network
        with network.installed():
            store = network.store
            if plan.credentials_s:
                store = DynamoDBStore("Idempotency", transport=SignedTransport(network))
            is_http = plan.source == "http"
            consumer: Consumer[Any] = Consumer(
                "shop",
                store,
                key=None if is_http else order_of,
                payload=content_of,
                occurred=None if is_http else occurred,
                source=_SOURCES[plan.source],
                policy=plan.policy,
                dead_letters=None if is_http else network.letters(),
                observe=self._observe,
                region="eu-west-1",
            )
        if is_http:
            return consumer.http_handler(caller=ANY_CALLER)(self._serve)
        if plan.source == "rule":
            return consumer.event_handler(self._work)
        return consumer.batch_handler(self._work)

    def _serve(self, request: Any, operation: Operation | None) -> Any:
        """Work on a client's order, and answer."""
        assert operation is not None
        done = self._work(request, operation)
        if not isinstance(done, dict):
            return done
        number = number_in(done["order"])
        if self._messages[number or 0].behaviour == UNSENDABLE and not self._network.healed:
            return {"statusCode": 201, "body": object()}
        return {"statusCode": 201, "body": done, "cookies": [SESSION]}

    def _work(self, event: Any, operation: Operation) -> Any:
        network = self._network
        order = order_of(event)
        number = number_in(order)
        assert number is not None
        message = self._messages[number]
        network.runs[number] += 1
        run = network.runs.total()
        call = network.calls[here()]
        call.started.add(number)
        before = self.overtaken(call, number)
        if before is not None:
            words = f"it ran before order-{before} of its group was done"
            network.broken.append((number, words))
        with self._alone(number, operation), self._busy(call):
            network.simulation.sleep(message.work_s / 2)
            network.call(f"works on {order}", lambda: None, ConnectionError)
            self._check_claim(number, operation)
            if message.behaviour == REFUSED:
                raise HttpProblemError(422, "No such goods", order=order)
            steps = (partial(self._take_effect, order), partial(self._misbehave, number))
            for step in steps if number % 2 else reversed(steps):
                if (odd := step(operation)) is not None:
                    return odd
            network.simulation.sleep(message.work_s / 2)
        return {"order": order, "run": run}

    @contextmanager
    def _busy(self, call: Call) -> Generator[None]:
        """Note for how long a call runs handlers."""
        if not call.running:
            call.busy_since_s = self._network.now_s
        call.running += 1
        try:
            yield
        finally:
            call.running -= 1
            if not call.running:
                call.busy_s += self._network.now_s - call.busy_since_s

    @contextmanager
    def _alone(self, number: int, operation: Operation) -> Generator[None]:
        """Check that no other process works on this order now."""
        running = self._running[number]
        killed = number in self._network.killed
        others = [machine.name for machine in running if machine.alive]
        unbeaten = self._plan.timeout_s > 170 and killed  # heartbeats met faults
        if others and not self._plan.policy.atomic and not unbeaten:
            self._network.broken.append(
                (number, f"two attempts at one key run at once, here and in {others[0]}")
            )
        running.append(here())
        self._latest[number] = operation
        try:
            yield
            self._check_claim(number, operation)
        finally:
            running.remove(here())

    def _check_claim(self, number: int, operation: Operation) -> None:
        """Check that an operation knows when its claim was taken over."""
        if (
            self._latest[number] is not operation
            and not self._plan.policy.atomic
            and not operation.lost
        ):
            self._network.broken.append(
                (number, "its claim was taken over, and operation.lost does not say so")
            )

    def _take_effect(self, order: str, operation: Operation) -> None:
        """Register an effect, or call an external system that honours idempotency keys."""
        if self._plan.work == "effects":
            operation.write(Update("Orders", {"id": order}, "ADD charges :one", values={":one": 1}))
            return
        key = operation.downstream_key
        external = partial(self._network.external, lost=ConnectionError)
        charge = external(f"charges {order}", lambda key: None, key=lambda key: key)
        known = self._network.effects[f"external charges {order}"]
        ask = external(
            f"asks about {order}",
            lambda: Done(None) if key in known else NOT_DONE,
            key=lambda: None,
        )
        if self._plan.seed % 2:
            operation.external("charge", lambda _: charge(key), lambda _: ask())
        else:
            charge(key)

    def _misbehave(self, number: int, operation: Operation) -> Any:
        """Fail as the message says, or return an odd result."""
        message = self._messages[number]
        network = self._network
        failing = self._failures[number] < message.times
        match "ok" if network.healed else message.behaviour:
            case "flaky" if failing:
                self._failures[number] += 1
                network.excuse(number, f"failure {self._failures[number]} of its own")
                raise HandlerError("flaky")
            case "retryable" if failing:
                self._failures[number] += 1
                network.excuse(number, attempt=False)
                raise RetryableError("not now")
            case "crasher":
                network.say(f"the handler of order-{number} kills its process")
                network.kill_here("killed by its handler", by_company=True)
            case "permanent":
                raise HopelessError("poison")
            case "awaitable":
                return (step for step in ("the work", "that nobody does"))
            case "poison":
                raise HandlerError("poison")
        return None

    def _observe(self, seen: Observation) -> None:
        network = self._network
        network.counts[f"outcome: {seen.outcome}"] += 1
        network.say(f"outcome of {seen.key}: {seen.outcome} {seen.reason or ''}")
        number = number_in(seen.key)
        call = network.calls.get(here())
        if call is not None and number is not None:
            call.started.add(number)
            if seen.outcome in observation.COMMITTED:
                call.committed.add(number)
        if number is not None and seen.outcome in observation.COMMITTED:
            network.lately[here()].append(self._messages[number].work_s)
        if seen.outcome == observation.BUSY:
            network.excuse(number, attempt=False)
        if self._plan.observer_raises and not network.healed:
            raise HandlerError("the observer's own failure")
