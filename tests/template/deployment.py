"""The stack's functions in this process, each made from the environment that is deployed for it."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final

import msgspec

import carride_api
import dispatch
import payment
import reconciler
import ride_history
from api.service import Settings
from carride.consumer import ConsumerSettings
from carride.dynamodb import DynamoDB
from carride.events import SOURCE, RideEvent
from carride.facts import Fact
from carride.settings import from_environment
from carride_idempotency import marshalling, testing
from carride_idempotency.dead_letters import DeadLetter
from carride_idempotency.testing import ManualClock, eventbridge_event, sqs_event
from carride_idempotency.testing.worlds import NO_FAULT, Fault
from tests.functions.gateways import FakeGateway
from tests.functions.world import STAFF, request
from tests.kit.rides import NOW
from tests.world.wiring import wiring

_DAY_S: Final = 86_400


def environment(function: str, parameters: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables of a function, as they are deployed with these parameters."""
    return wiring(**parameters).functions[function].environment


class Queues:
    """A client of SQS that keeps the queue and the reason of each dead letter."""

    def __init__(self) -> None:
        self.letters: list[tuple[str, str]] = []

    def send_message(self, *, QueueUrl: str, MessageBody: str, **_: object) -> None:  # noqa: N803 - botocore's names
        self.letters.append((QueueUrl, DeadLetter.from_body(MessageBody).reason))


class Deployment(testing.World):
    """The stack's functions over its tables, as the template deploys them with some parameters.

    Attributes:
        asked: the requests to DynamoDB, with their operations.
        letters: the queue and the reason of each dead letter.
        started: the function of each simulation that was started.
    """

    timed = (DynamoDB,)

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self._wired = wiring(**parameters)
        tables = self._wired.tables.values()
        indexes = dict[str, tuple[str, ...]]()
        for table in tables:
            indexes |= table.indexes
        clock = ManualClock(int(NOW.timestamp() * 1000))
        super().__init__({each.name: each.keys for each in tables}, clock=clock, indexes=indexes)
        self.asked: list[tuple[str, Mapping[str, Any]]] = []
        self.dead_letters = queues = Queues()  # type: ignore[assignment] # a client of SQS alone
        self.letters = queues.letters
        self.started: list[str] = []
        self._parameters = parameters

    def request(self, operation: str, request: Any, send: Any) -> Mapping[str, Any]:
        self.asked.append((operation, request))
        return super().request(operation, request, send)

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock() / 1000, UTC)

    def settings[S: msgspec.Struct](self, function: str, kind: type[S]) -> S:
        return from_environment(kind, environment(function, self._parameters))

    @cached_property
    def functions(self) -> Mapping[str, Callable[[Any, Any], Any]]:
        """The handlers, by logical id."""
        make: Mapping[str, Callable[[], Any]] = {
            "CarRideApiFunction": lambda: carride_api.make_handler(
                self.settings("CarRideApiFunction", Settings),
                transport=self.dynamodb,
                start_simulator=lambda function, _: self.started.append(function),
                now=self.now,
            ),
            "RideHistoryFunction": lambda: ride_history.make_handler(
                self.settings("RideHistoryFunction", ConsumerSettings)
            ),
            "DispatchFunction": lambda: dispatch.make_handler(
                self.settings("DispatchFunction", dispatch.Settings), now=self.now
            ),
            "PaymentFunction": lambda: payment.make_handler(
                self.settings("PaymentFunction", payment.Settings), FakeGateway(), now=self.now
            ),
            "ReconcilerFunction": lambda: reconciler.make_handler(
                self.settings("ReconcilerFunction", reconciler.Settings), clock=self.clock
            ),
        }
        with self.installed():
            return {name: made() for name, made in make.items()}

    def run(self, function: str, event: Any, fault: Fault = NO_FAULT) -> Any:
        """Invoke a function; return its answer, or None if it fails or is killed."""
        timeout_s = self._wired.functions[function].timeout_s
        with self.installed():
            handler = self.functions[function]
            return self.invoke(handler, event, timeout_s=timeout_s, fault=fault).answer

    def event(self, fact: Fact, *, sent: datetime = NOW) -> dict[str, Any]:
        """Return the event of a fact, as the bus sends it."""
        detail = RideEvent.of(fact, source=SOURCE, time=sent).to_detail()
        event = eventbridge_event(detail, source=SOURCE, clock=self.clock)
        return event | {"time": sent.isoformat()}

    def deliver(
        self, function: str, fact: Fact, *, sent: datetime = NOW, fault: Fault = NO_FAULT
    ) -> None:
        """Deliver the event of a fact to a consumer."""
        event = self.event(fact, sent=sent)
        self.run(function, sqs_event(event) if function == "DispatchFunction" else event, fault)

    def ask(self, method: str, path: str, body: object = None, **options: Any) -> int:
        """Send the API a request as staff; return the status."""
        asked = request(method, path, body, **{"authorizer": STAFF, **options})
        status: int = self.run("CarRideApiFunction", asked)["statusCode"]
        return status

    def items(self, table: str) -> list[dict[str, Any]]:
        """Return the items of a table, by its logical id."""
        return [*map(marshalling.values, self.dynamodb.all(self._wired.tables[table].name))]

    def put(self, table: str, item: Mapping[str, object]) -> None:
        name = self._wired.tables[table].name
        self.dynamodb.put_item(TableName=name, Item=marshalling.item(item))

    def with_attribute(self, attribute: str) -> list[str]:
        """Return the names of the tables that hold items with an attribute."""
        return [
            table.name
            for table in self._wired.tables.values()
            if any(attribute in item for item in self.dynamodb.all(table.name))
        ]

    def queried(self, index: str) -> list[str]:
        """Return the names of the tables whose index was queried, in the order of first use."""
        names = [each["TableName"] for _, each in self.asked if each.get("IndexName") == index]
        return list(dict.fromkeys(names))

    def with_keys_of(self, consumer: str) -> list[str]:
        """Return the names of the tables that hold records of a consumer."""
        found = list[str]()
        for name, table in self._wired.tables.items():
            keys = [str(item.get("idempotencyKey")) for item in self.items(name)]
            if any(key.startswith(consumer) for key in keys):
                found.append(table.name)
        return found

    def days_kept(self, items: Sequence[Mapping[str, Any]] | None = None) -> set[int]:
        """Return for how many days the outbox keeps these items, or all of its items."""
        now_s = self.clock() // 1000
        kept = self.items("OutboxTable") if items is None else items
        return {round((item["expiryTimestamp"] - now_s) / _DAY_S) for item in kept}
