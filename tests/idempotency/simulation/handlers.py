"""The application of one run: a consumer, and handlers that behave as their messages say."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from idempotency import Consumer, Operation, PermanentError, Policy, RetryableError, Update, observation
from idempotency.externals import NOT_DONE, Done
from idempotency.observation import Observation
from idempotency.sources import EVENTBRIDGE, SQS, Source
from tests.idempotency.simulation.engine import EPOCH_MS, Machine, running
from tests.idempotency.simulation.network import Network, Part, number_in

SOURCES: Final[Mapping[str, Source]] = {"queue": SQS, "rule": EVENTBRIDGE}

type Handler = Callable[[Any, Any], Any]


class HandlerError(Exception):
    """A handler's own failure."""


class HopelessError(PermanentError):
    """A handler's failure that no retry can help."""


def content_of(event: Any) -> Any:
    return event["detail"]["data"] if "detail" in event else event


def order_of(event: Any) -> Any:
    """Return the key of an event. It raises AttributeError if the order is not a string."""
    order = content_of(event).get("order")
    return None if order is None else order.strip()


def occurred(event: Any) -> datetime | None:
    at_s = content_of(event).get("occurred")
    return None if at_s is None else datetime.fromtimestamp(EPOCH_MS / 1000 + at_s, UTC)


class Shop(Part):
    """Builds handlers, and does their work."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self._messages = {message.number: message for message in network.plan.messages}
        self._claims = not network.plan.atomic
        self._failures: Counter[int] = Counter()
        self._running: dict[int, list[tuple[Machine, Operation]]] = defaultdict(list)
        self._latest: dict[int, Operation] = {}

    def handler(self) -> Handler:
        plan = self._plan
        policy = Policy(
            window=plan.window_s,
            max_attempts=plan.max_attempts,
            atomic=plan.atomic,
            concurrency=plan.concurrency,
            lease=plan.lease,
        )
        consumer: Consumer[Any] = Consumer(
            "shop",
            self._network.dynamodb.store,
            key=order_of,
            payload=content_of,
            occurred=occurred,
            source=SOURCES[plan.world],
            policy=policy,
            dead_letters=self._network,
            observe=self._observe,
            region="eu-west-1",
            clock=self._simulation.clock,
            sleep=self._simulation.sleep,
            jitter=self._simulation.roll,
            concurrency=self._simulation,
        )
        return consumer.event_handler(self._work) if plan.world == "rule" else consumer.batch_handler(self._work)

    def _work(self, event: Any, operation: Operation) -> Any:
        order = order_of(event)
        number = number_in(order)
        assert number is not None
        message = self._messages[number]
        self._notes.runs[number] += 1
        run = self._notes.runs.total()
        with self._alone(number, operation):
            self._simulation.sleep(message.work_s / 2)
            self._network.request("works", order, lambda: None, ConnectionError)
            self._check_claim(number, operation)
            steps = (partial(self._take_effect, order), partial(self._misbehave, number))
            for step in steps if number % 2 else reversed(steps):
                if (odd := step(operation)) is not None:
                    return odd
            self._simulation.sleep(message.work_s / 2)
        return {"order": order, "run": run}

    @contextmanager
    def _alone(self, number: int, operation: Operation) -> Iterator[None]:
        """Check that no other process works on this order now."""
        machine, here = running().machine, self._running[number]
        others = [there.name for there, _ in here if there.alive]
        unbeaten = self._plan.timeout_s > 170 and number in self._notes.killed  # heartbeats met faults
        if others and self._claims and not unbeaten:
            self._notes.broken.append((number, f"two attempts at one key run at once, here and in {others[0]}"))
        here.append((machine, operation))
        self._latest[number] = operation
        try:
            yield
            self._check_claim(number, operation)
        finally:
            here.remove((machine, operation))

    def _check_claim(self, number: int, operation: Operation) -> None:
        """Check that an operation knows when its claim was taken over."""
        taken_over = self._latest[number] is not operation and self._claims
        if taken_over and not operation.lost:
            self._notes.broken.append((number, "its claim was taken over, and operation.lost does not say so"))

    def _take_effect(self, order: str, operation: Operation) -> None:
        """Register an effect, or call an external system that honours idempotency keys."""
        if self._plan.work == "effects":
            operation.write(Update("Orders", {"id": order}, "ADD charges :one", values={":one": 1}))
            return

        def perform() -> None:
            known = self._notes.ledger.setdefault(operation.downstream_key, order)
            if known != order:
                self._notes.broken.append((number_in(order), f"the downstream key of {known} was used for {order}"))

        def call(_: str) -> None:
            self._network.request(f"charges {order}", order, perform, ConnectionError)

        def probe(_: str) -> Any:
            known = self._network.request(
                f"asks about {order}", order, lambda: dict(self._notes.ledger), ConnectionError
            )
            return Done(None) if operation.downstream_key in known else NOT_DONE

        operation.external("charge", call, probe) if self._plan.seed % 2 else call("")

    def _misbehave(self, number: int, operation: Operation) -> Any:
        """Fail as the message says, or return an odd result."""
        message, call = self._messages[number], self._network.call()
        match "ok" if self._network.healed else message.behaviour:
            case "flaky" if self._failures[number] < message.times:
                self._failures[number] += 1
                self._notes.excuse(call, number, f"failure {self._failures[number]} of its own")
                raise HandlerError("flaky")
            case "retryable" if self._failures[number] < message.times:
                self._failures[number] += 1
                self._notes.excuse(call, number)
                raise RetryableError("not now")
            case "crasher":
                self._network.say(number, "the handler kills its process")
                self._network.crash("killed by its handler", by_company=True)
            case "permanent":
                raise HopelessError("poison")
            case "awaitable":
                return (step for step in ("the work", "that nobody does"))
            case "poison":
                raise HandlerError("poison")
        return None

    def _observe(self, seen: Observation) -> None:
        number = number_in(seen.key)
        self._notes.counts[f"outcome: {seen.outcome}"] += 1
        self._network.say(number, f"outcome {seen.outcome}: {seen.reason or ''}")
        if seen.outcome == observation.BUSY:
            self._notes.excuse(self._network.call(), number)
