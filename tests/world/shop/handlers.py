"""The application of one run: a consumer, and handlers that behave as their messages say."""

from collections import Counter, defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

from carride_idempotency import (
    Consumer,
    Operation,
    PermanentError,
    RetryableError,
    Update,
    observation,
)
from carride_idempotency.externals import NOT_DONE, Done
from carride_idempotency.observation import Observation
from carride_idempotency.sources import EVENTBRIDGE, SQS
from carride_idempotency.testing import START_MS
from tests.world.engine.scheduler import Machine, here
from tests.world.shop.network import Network, number_in

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
    return None if at_s is None else datetime.fromtimestamp(START_MS / 1000 + at_s, UTC)


class Shop:
    """Builds handlers, and does their work."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._plan = network.plan
        self._messages = {message.number: message for message in network.plan.messages}
        self._failures: Counter[int] = Counter()
        self._running: dict[int, list[Machine]] = defaultdict(list)
        self._latest: dict[int, Operation] = {}

    def handler(self) -> Handler:
        plan = self._plan
        with self._network.installed():
            consumer: Consumer[Any] = Consumer(
                "shop",
                self._network.store,
                key=order_of,
                payload=content_of,
                occurred=occurred,
                source=EVENTBRIDGE if plan.source == "rule" else SQS,
                policy=plan.policy,
                dead_letters=self._network,
                observe=self._observe,
                region="eu-west-1",
            )
        return (
            consumer.event_handler(self._work)
            if plan.source == "rule"
            else consumer.batch_handler(self._work)
        )

    def _work(self, event: Any, operation: Operation) -> Any:
        network = self._network
        order = order_of(event)
        number = number_in(order)
        assert number is not None
        message = self._messages[number]
        network.runs[number] += 1
        run = network.runs.total()
        with self._alone(number, operation):
            network.simulation.sleep(message.work_s / 2)
            network.call(f"works on {order}", lambda: None, ConnectionError)
            self._check_claim(number, operation)
            steps = (partial(self._take_effect, order), partial(self._misbehave, number))
            for step in steps if number % 2 else reversed(steps):
                if (odd := step(operation)) is not None:
                    return odd
            network.simulation.sleep(message.work_s / 2)
        return {"order": order, "run": run}

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
                network.crash("killed by its handler", by_company=True)
            case "permanent":
                raise HopelessError("poison")
            case "awaitable":
                return (step for step in ("the work", "that nobody does"))
            case "poison":
                raise HandlerError("poison")
        return None

    def _observe(self, seen: Observation) -> None:
        self._network.counts[f"outcome: {seen.outcome}"] += 1
        self._network.say(f"outcome of {seen.key}: {seen.outcome} {seen.reason or ''}")
        if seen.outcome in observation.COMMITTED:
            self._network.measured.add(here())
        if seen.outcome == observation.BUSY:
            self._network.excuse(number_in(seen.key), attempt=False)
