"""Events, and a world in which consumers receive them, for tests of the layer."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from carride_idempotency import (
    Consumer,
    DynamoDBStore,
    Observation,
    Operation,
    Policy,
    Store,
    Update,
)
from carride_idempotency.clock import Clock, Timing, epoch_ms
from carride_idempotency.record import Record
from carride_idempotency.testing import (
    Crash,
    DeadLetterBox,
    FakeDynamoDB,
    FaultyTransport,
    Invocation,
    ManualClock,
    eventbridge_event,
)

TABLE = "Idempotency"
RIDES = "Rides"
EFFECT = Update(RIDES, {"id": "order_01"}, "ADD n :one", values={":one": 1})


def event(key: str | None = "k1", **data: object) -> dict[str, Any]:
    """An event of EventBridge's with an idempotency id and data."""
    return eventbridge_event(
        {"idempotencyid": key, "data": {"orderID": "order_01"} | data}, event_id="e1"
    )


def create_tables(dynamodb: Any, keys: Mapping[str, str | Sequence[str]], kind: str = "S") -> None:
    """Create tables by their key attributes: partition key, sort key. All are of one type."""
    for table, key in keys.items():
        names = [key] if isinstance(key, str) else key
        dynamodb.create_table(
            TableName=table,
            KeySchema=[
                {"AttributeName": name, "KeyType": place}
                for name, place in zip(names, ("HASH", "RANGE"), strict=False)
            ],
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": kind} for name in names],
            BillingMode="PAY_PER_REQUEST",
        )


class Text(str):
    """A string that prints as another one."""

    __slots__ = ()

    def __str__(self) -> str:
        return "another"


def crash(_: object) -> None:
    raise Crash


def fail_with(error: Exception) -> Callable[[object], None]:
    def fail(_: object) -> None:
        raise error

    return fail


class Work:
    """A handler that counts its runs by an effect in DynamoDB."""

    def __init__(self) -> None:
        self.runs: list[Operation] = []
        self.step: Callable[[Operation], object] = lambda _: None
        """What else happens in a run: it raises, time passes, another delivery comes."""

    def __call__(self, message: Any, operation: Operation) -> object:
        self.runs.append(operation)
        operation.write(EFFECT)
        return self.step(operation)


def consumer_of(
    name: str,
    store: Store,
    *,
    clock: Clock = epoch_ms,
    sleep: Callable[[float], None] = time.sleep,
    jitter: Callable[[], float] = random.random,
    **settings: Any,
) -> Consumer[Any]:
    """Make a consumer whose time is the test's; settings are the consumer's own."""
    timed: type[Consumer[Any]] = type(
        "Consumer", (Consumer,), {"_time": Timing(clock, sleep, jitter)}
    )
    return timed(name, store, **settings)


class World:
    """Consumers over DynamoDB in this process, what they are delivered, and what they leave.

    Time stands still, and moves in pauses. ``transport`` loses and refuses what the test says.
    """

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.dynamodb: Any = FakeDynamoDB({TABLE: ("idempotencyKey",), RIDES: ("id",)})
        self.transport = FaultyTransport(self.dynamodb)
        own_time: Any = {"clock": self.clock, "sleep": self.clock.sleep, "jitter": lambda: 0.5}
        self.store = DynamoDBStore(TABLE, transport=self.transport, **own_time)
        self.box = DeadLetterBox()
        self.seen: list[Observation] = []
        self.work = Work()
        self._settings = {
            "key": "detail.idempotencyid",
            "dead_letters": self.box,
            "observe": self.seen.append,
            "region": "eu-west-1",
            **own_time,
        }

    def consumer(
        self, name: str = "history", *, policy: Mapping[str, Any] | None = None, **settings: Any
    ) -> Consumer[Any]:
        """Make a consumer of EventBridge events; settings are the consumer's own."""
        chosen = Policy(**(policy or {}))
        return consumer_of(name, self.store, **({"policy": chosen} | self._settings | settings))

    def invocation(self, request_id: str = "request-1", timeout_s: float = 30.0) -> Invocation:
        return Invocation(self.clock, request_id=request_id, timeout_s=timeout_s)

    def deliver(
        self,
        message: Any = None,
        *,
        by: str = "request-1",
        timeout_s: float = 30.0,
        region: str = "eu-west-1",
        **policy: Any,
    ) -> Any:
        """Deliver an event to the work, in a process of its own with this policy."""
        handler = self.consumer(policy=policy, region=region).event_handler(self.work)
        return handler(message or event(), self.invocation(by, timeout_s))

    def fail(self, error: Exception, message: Any = None, **delivery: Any) -> None:
        """Deliver an event whose handler raises ``error``, which comes out.

        The next runs succeed.
        """
        self.work.step = fail_with(error)
        with pytest.raises(type(error)):
            self.deliver(message, **delivery)
        self.work.step = lambda _: None

    def crash(self, message: Any = None, **delivery: Any) -> None:
        """Deliver an event whose handler dies; the next runs succeed."""
        self.work.step = crash
        with pytest.raises(Crash):
            self.deliver(message, **delivery)
        self.work.step = lambda _: None

    def record(self, key: str = "k1") -> Record:
        record = self.consumer().record(key)
        assert record is not None
        return record

    @property
    def reasons(self) -> list[str]:
        return [letter.reason for letter in self.box.letters]

    @property
    def effects(self) -> int:
        """How often the work's effect was committed."""
        item = self.dynamodb.get_item(TableName=RIDES, Key={"id": {"S": "order_01"}}).get("Item")
        return int(item["n"]["N"]) if item else 0
