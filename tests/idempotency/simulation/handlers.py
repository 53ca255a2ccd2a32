"""The application of one run: a consumer, and handlers that behave as their messages say."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from idempotency import Consumer, Operation, PermanentError, Policy, RetryableError, Update, observation
from idempotency.invocation import lambda_deadline
from idempotency.observation import Observation
from idempotency.sources import EVENTBRIDGE, KAFKA, KINESIS, SQS, Source
from tests.idempotency.simulation.engine import EPOCH_MS, Machine, running
from tests.idempotency.simulation.network import Network, Part, number_in
from tests.idempotency.simulation.plan import BATCHES, CALLS

SOURCES: Final[Mapping[str, Source]] = {
    "queue": SQS,
    "fifo": SQS,
    "rule": EVENTBRIDGE,
    "kinesis": KINESIS,
    "kafka": KAFKA,
}

type Handler = Callable[[Any, Any], Any]


class HandlerError(Exception):
    """A handler's own failure."""


class HopelessError(PermanentError):
    """A handler's failure that no retry can help."""


def content_of(event: Any) -> Any:
    """Return what the producer wrote."""
    return event["detail"]["data"] if "detail" in event else event


def order_of(event: Any) -> Any:
    """Return the key of an event. It raises AttributeError where the order is not a string."""
    order = content_of(event).get("order")
    return None if order is None else order.strip()


def time_in(name: str) -> Callable[[Any], datetime | None]:
    """Return a function that finds a time in an event."""

    def find(event: Any) -> datetime | None:
        at_s = content_of(event).get(name)
        return None if at_s is None else datetime.fromtimestamp(EPOCH_MS / 1000 + at_s, UTC)

    return find


class Shop(Part):
    """Builds handlers, and does their work."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        plan = network.plan
        self.parts = ("charge", "ship") if plan.work == "functions" else ("order",)
        """What has to be done for each order."""
        self._messages = {message.number: message for message in plan.messages}
        self._claims = not plan.atomic
        self._failures: Counter[int] = Counter()
        self._running: dict[tuple[int, str], list[tuple[Machine, Operation]]] = defaultdict(list)
        self._latest: dict[tuple[int, str], Operation] = {}
        self._cut_short: set[tuple[int, str]] = set()
        """Of which a run ended with its process."""

    def handler(self) -> Handler:
        """Make the Lambda handler, or what a container calls, as a new process does."""
        plan = self._plan
        policy = Policy(
            window=plan.window_s,
            max_attempts=plan.max_attempts,
            atomic=plan.atomic,
            concurrency=plan.concurrency,
            lease=plan.lease,
            busy="wait" if plan.waits else "raise",
            on_crash="quarantine" if plan.once else "retry",
        )
        consumer: Consumer[Any] = Consumer(
            "shop",
            self._network.dynamodb.store,
            key=order_of,
            payload=content_of,
            occurred=time_in("occurred"),
            expires=time_in("expires"),
            source=SOURCES.get(self._plan.world),
            policy=policy,
            dead_letters=None if self._plan.world in CALLS else self._network,
            observe=self._observe,
            region="eu-west-1",
            clock=self._simulation.clock,
            sleep=self._simulation.sleep,
            jitter=self._simulation.roll,
            concurrency=self._simulation,
        )

        @consumer.function(key="order")
        def charge(order: str, operation: Operation | None = None) -> Any:
            return self._work(order, "charge", operation)

        @consumer.function(key="order")
        def ship(order: str, operation: Operation | None = None) -> Any:
            return self._work(order, "ship", operation)

        def call(event: Any, context: Any = None) -> list[Any]:
            order = order_of(event)
            with lambda_deadline(context, self._simulation.clock) if self._plan.world == "callers" else nullcontext():
                if self._plan.work == "functions":
                    return [charge(order), ship(order)]
                with consumer.operation(order, {"order": order}) as block:
                    if not block.done:
                        block.complete(self._work(order, "order", block.operation))
                return [block.result]

        def work(event: Any, operation: Operation) -> Any:
            return call(event) if self._plan.work == "functions" else self._work(order_of(event), "order", operation)

        if self._plan.world in CALLS:
            return call
        return consumer.batch_handler(work) if self._plan.world in BATCHES else consumer.event_handler(work)

    # ── The work ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _work(self, order: str, part: str, operation: Operation | None) -> Any:
        """Do one part of an order, once more."""
        assert operation is not None
        number = number_in(order)
        assert number is not None
        message = self._messages[number]
        self._notes.runs[number, part] += 1
        run = self._notes.runs.total()
        with self._alone(number, part, operation):
            self._simulation.sleep(message.work_s / 2)
            self._network.request(f"works on {part}", order, lambda: None, ConnectionError)
            self._check_claim(number, part, operation)
            steps = (partial(self._take_effect, f"{part} of {order}", order), partial(self._misbehave, number))
            for step in steps if number % 2 else reversed(steps):
                if (odd := step(operation)) is not None:
                    return odd
            self._simulation.sleep(message.work_s / 2)
        result: Any = {"part": part, "order": order, "run": run}
        for _ in range(20_000 if message.behaviour == "bad result" and not self._network.healed else 0):
            result = [result]
        return result

    @contextmanager
    def _alone(self, number: int, part: str, operation: Operation) -> Iterator[None]:
        """Check that nobody else works on this now."""
        machine, here, healed = running().machine, self._running[number, part], self._network.healed
        others = [there.name for there, _ in here if there.alive]
        unbeaten = not 0 < self._plan.timeout_s <= 170 and number in self._notes.killed  # heartbeats met faults
        if others and self._claims and not unbeaten and number not in self._notes.may_overlap:
            self._notes.broken.append((number, f"two attempts at one key run at once, here and in {others[0]}"))
        if (number, part) in self._cut_short and self._plan.once and not healed:
            self._notes.broken.append((number, "it was run again after a crash, which its policy forbids"))
        here.append((machine, operation))
        self._latest[number, part] = operation
        try:
            yield
            self._check_claim(number, part, operation)
        finally:
            here.remove((machine, operation))
            if not machine.alive:
                self._cut_short.add((number, part))

    def _check_claim(self, number: int, part: str, operation: Operation) -> None:
        """Check that an operation knows when its claim was taken over."""
        taken_over = self._latest[number, part] is not operation and self._claims
        if taken_over and not operation.lost and number not in self._notes.wild:
            self._notes.broken.append((number, "its claim was taken over, and operation.lost does not say so"))

    def _take_effect(self, charge: str, order: str, operation: Operation) -> None:
        """Register an effect, or call an external system which honours idempotency keys."""
        if self._plan.work == "effects":
            operation.write(Update("Orders", {"id": order}, "ADD charges :one", values={":one": 1}))
            return

        def perform() -> None:
            known = self._notes.ledger.setdefault(operation.downstream_key, charge)
            if known != charge:
                self._notes.broken.append(
                    (number_in(order), f"the downstream key of {known!r} was used for {charge!r}")
                )

        self._network.request(f"charges {charge}", order, perform, ConnectionError)

    def _misbehave(self, number: int, operation: Operation) -> Any:
        """Fail as the message says; return a result where it is an odd one."""
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
            case "bad write" if self._plan.work == "effects":
                operation.write("UPDATE Orders")  # type: ignore[arg-type] # that is what is wrong with it
            case "poison" | "bad write":
                raise HandlerError("poison")
        return None

    def _observe(self, seen: Observation) -> None:
        number = number_in(seen.key)
        self._notes.counts[f"outcome: {seen.outcome}"] += 1
        self._network.say(number, f"outcome {seen.outcome}: {seen.reason or ''}")
        if seen.outcome == observation.BUSY:
            self._notes.excuse(self._network.call(), number)
        if seen.outcome == observation.EXPIRED and number is not None:
            self._notes.expired.add(number)
