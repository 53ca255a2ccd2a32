"""The application of one run: a consumer of each version, and handlers that behave as their messages say."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from idempotency import Consumer, Operation, PermanentError, Policy, RetryableError, Update, observation
from idempotency.consumer import within
from idempotency.observation import Observation
from idempotency.sources import DYNAMODB_STREAM, EVENTBRIDGE, KAFKA, KINESIS, SQS, Source
from tests.simulation.engine import EPOCH_MS, Machine, Simulation, current
from tests.simulation.network import LostError, Network, number_in
from tests.simulation.plan import BATCHES, CALLS, Plan, Version

SOURCES: Final[Mapping[str, Source]] = {
    "queue": SQS,
    "fifo": SQS,
    "rule": EVENTBRIDGE,
    "async": EVENTBRIDGE,
    "kinesis": KINESIS,
    "stream": DYNAMODB_STREAM,
    "kafka": KAFKA,
}
NAME: Final = "shop"

type Handler = Callable[[Any, Any], Any]


class HandlerError(Exception):
    """A handler's own failure."""


class HopelessError(PermanentError):
    """A handler's failure that no retry can help."""


def order_of(event: Any) -> Any:
    """Return the key of an event. An order that is no string makes it fail in a way of its own."""
    order = body_of(event).get("order")
    return None if order is None else order.strip()


def body_of(event: Any) -> Any:
    """Return what the producer wrote."""
    if "NewImage" in event:
        return json.loads(event["NewImage"]["body"]["S"])
    return event["detail"]["data"] if "detail" in event else event


def time_in(name: str) -> Callable[[Any], datetime | None]:
    """Return a function that finds a time in an event."""

    def find(event: Any) -> datetime | None:
        at_s = body_of(event).get(name)
        return None if at_s is None else datetime.fromtimestamp(EPOCH_MS / 1000 + at_s, UTC)

    return find


class Shop:
    """Builds handlers, and does their work."""

    def __init__(self, plan: Plan, simulation: Simulation, network: Network) -> None:
        self._plan = plan
        self._simulation = simulation
        self._network = network
        self._notes = network.notes
        self._messages = {message.number: message for message in plan.messages}
        self._failures: Counter[int] = Counter()
        self._running: dict[tuple[int, str], list[tuple[Machine, Operation]]] = defaultdict(list)
        self._latest: dict[tuple[int, str], Operation] = {}
        self._cut_short: set[tuple[int, str]] = set()
        """Of which a run ended with its process."""

    def consumer(self, version: Version) -> Consumer[Any]:
        """Make a version's consumer, as a new process does."""
        policy = Policy(
            window=self._plan.window_s,
            max_attempts=version.max_attempts,
            atomic=version.atomic,
            concurrency=version.concurrency,
            lease=version.lease,
            busy="wait" if version.waits else "raise",
            on_crash="quarantine" if version.once else "retry",
        )
        return Consumer(
            NAME,
            self._network.backend.store,
            key=order_of,
            payload=body_of,
            occurred=time_in("occurred"),
            expires=time_in("expires"),
            source=SOURCES.get(self._plan.world),
            policy=policy,
            dead_letters=self._network if self._plan.world not in CALLS else None,
            observe=self._observe,
            region="eu-west-1",
            clock=self._simulation.clock,
            sleep=self._simulation.sleep,
            jitter=self._simulation.roll,
            concurrency=self._simulation,
        )

    def handler(self, version: Version) -> Handler:
        """Make a version's Lambda handler, or what a container calls."""
        consumer = self.consumer(version)

        @consumer.function(key="order")
        def charge(order: str, operation: Operation | None = None) -> Any:
            return self._work(order, "charge", operation)

        @consumer.function(key="order")
        def ship(order: str, operation: Operation | None = None) -> Any:
            return self._work(order, "ship", operation)

        def both(order: str) -> list[Any]:
            return [charge(order), ship(order)]

        def block(order: str) -> list[Any]:
            with consumer.operation(order, {"order": order}) as block:
                if not block.done:
                    block.complete(self._work(order, "order", block.operation))
            return [block.result]

        call = both if self._plan.work == "functions" else block

        def work(event: Any, operation: Operation) -> Any:
            order = order_of(event)
            return both(order) if self._plan.work == "functions" else self._work(order, "order", operation)

        if self._plan.world == "service":
            return lambda event, context: call(event["order"])
        if self._plan.world == "callers":

            def called(event: Any, context: Any) -> Any:
                with within(context, self._simulation.clock):
                    return call(event["order"])

            return called
        return consumer.batch_handler(work) if self._plan.world in BATCHES else consumer.event_handler(work)

    def facts(self) -> tuple[str, ...]:
        """Return which parts of each order have to be done."""
        return ("charge", "ship") if self._plan.work == "functions" else ("order",)

    # ── The work ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _work(self, order: str, part: str, operation: Operation | None) -> Any:
        """Do one part of an order, once more."""
        assert operation is not None
        message = self._messages[number_in(order)]  # type: ignore[index] - a readable message has a number
        self._notes.runs[message.number, part] += 1
        run = self._notes.runs.total()
        with self._alone(message.number, part, operation):
            self._simulation.sleep(message.work_s / 2)
            self._step(order, part)
            early = message.number % 2 == 0
            if early and (odd := self._misbehave(message.number, part, operation)) is not None:
                return odd
            if self._plan.work in ("external", "both", "functions", "block"):
                self._charge(operation.downstream_key, f"{part} of {order}", order)
            if self._plan.work in ("effects", "both"):
                operation.write(Update("Orders", {"id": order}, "ADD charges :one", values={":one": 1}))
            if not early and (odd := self._misbehave(message.number, part, operation)) is not None:
                return odd
            self._simulation.sleep(message.work_s / 2)
        result: Any = {"part": part, "order": order, "run": run}
        if message.behaviour == "bad result" and not self._network.healed:
            for _ in range(20_000):
                result = [result]
        return result

    @contextmanager
    def _alone(self, number: int, part: str, operation: Operation) -> Iterator[None]:
        """Hold that nobody else works on this now; a sandbox that has no room for one more run dies."""
        machine = current().machine
        here = self._running[number, part]
        others = [there.name for there, _ in here if there.alive]
        claimed = not any(version.atomic for version in self._plan.versions)
        long = not 0 < self._plan.timeout_s <= 170 and number in self._notes.killed  # its heartbeats met faults
        if others and claimed and not long and number not in self._notes.may_overlap:
            self._notes.broken.append(
                (number, f"two attempts at one key run at once, in {others[0]} and {machine.name}")
            )
        if (number, part) in self._cut_short and self._plan.versions[0].once and not self._network.healed:
            self._notes.broken.append((number, "it was run again after a crash, which its policy forbids"))
        here.append((machine, operation))
        self._latest[number, part] = operation
        try:
            crowd = sum(each is machine for runs in self._running.values() for each, _ in runs)
            if 0 < self._plan.room <= crowd and not self._network.healed:
                self._network.crash("out of memory", "out of memory")
            yield
            in_bounds = claimed and number not in self._notes.wild
            if self._latest[number, part] is not operation and in_bounds and not operation.lost:
                self._notes.broken.append((number, "its claim was taken over, and operation.lost does not say so"))
        finally:
            here.remove((machine, operation))
            if not machine.alive:
                self._cut_short.add((number, part))

    def _step(self, order: str, part: str) -> None:
        """A line of the handler: a place to crash at."""
        self._network.request(f"works on {part}", order, lambda: None, lost=LostError)

    def _charge(self, downstream_key: str, fact: str, order: str) -> None:
        """Call an external system which honours idempotency keys."""

        def perform() -> None:
            known = self._notes.ledger.setdefault(downstream_key, fact)
            if known != fact:
                self._notes.broken.append((number_in(order), f"the downstream key of {known!r} was used for {fact!r}"))

        self._network.request(f"charges {fact}", order, perform, lost=LostError)

    def _misbehave(self, number: int, part: str, operation: Operation) -> Any:
        """Do what the message has its handler do; return a result where that is odd."""
        message = self._messages[number]
        behaviour = "ok" if self._network.healed else message.behaviour
        invocation = self._network.invocation()
        if behaviour in ("flaky", "retryable") and self._failures[number] < message.times:
            self._failures[number] += 1
            if behaviour == "retryable":
                self._notes.excuse(invocation, number)
                raise RetryableError("not now")
            self._notes.excuse(invocation, number, f"failure {self._failures[number]} of its own")
            raise HandlerError("flaky")
        if behaviour == "crasher":
            self._network.say(number, "the handler kills its process")
            self._network.crash("killed by its handler", f"crasher {number}")
        if behaviour == "poison" or (behaviour == "bad write" and self._plan.work not in ("effects", "both")):
            raise HandlerError("poison")
        if behaviour == "permanent":
            raise HopelessError("poison")
        if behaviour == "awaitable":
            return (step for step in ("the work", "that nobody does"))
        if behaviour == "bad write":
            operation.write("UPDATE Orders")  # type: ignore[arg-type] - that is what is wrong with it
        return None

    def _observe(self, seen: Observation) -> None:
        number = number_in(seen.key)
        self._notes.counts[f"outcome: {seen.outcome}"] += 1
        self._network.say(number, f"outcome {seen.outcome}: {seen.reason or ''}")
        if seen.outcome == observation.BUSY:
            self._notes.excuse(self._network.invocation(), number)
        if seen.outcome == observation.EXPIRED and number is not None:
            self._notes.expired.add(number)
