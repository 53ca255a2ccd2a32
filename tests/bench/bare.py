"""The wiring of consumers without protection, in the place of `carride.consumer`.

It shows the limit: what a function costs that decides, and makes one conditional write of its
effects and the event's id, over the transport of this project. A duplicate is the write that is
refused. Nothing else is there: no lease, no attempts, no fingerprint, no dead letters, no stored
result.
"""

import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import NAMESPACE_OID, uuid5

from carride.events import RideEvent, parse_event
from carride.telemetry import observe
from carride_idempotency import marshalling
from carride_idempotency.effects import Keep, action_of
from carride_idempotency.observation import Observation
from carride_idempotency.stores.default_transport import dynamodb_transport
from carride_idempotency.stores.transport import ServiceError, Transport
from tests.bench.stand_ins import ConsumerSettings, Operation, SagaSettings, Table, ride_events

__all__ = ["ConsumerSettings", "SagaSettings", "ride_events"]

REFUSED = {"ConditionalCheckFailedException", "TransactionCanceledException"}


class Bare(NamedTuple):
    name: str
    table: str
    transport: Transport

    def event_handler(self, work: Callable[[RideEvent, Any], None]) -> Any:
        return lambda event, _: self.run(event, work)

    def batch_handler(self, work: Callable[[RideEvent, Any], None]) -> Any:
        def handler(event: dict[str, Any], _: object) -> dict[str, Any]:
            for record in event["Records"]:
                self.run(json.loads(record["body"]), work)
            return {"batchItemFailures": []}

        return handler

    def run(self, event: dict[str, Any], work: Callable[[RideEvent, Any], None]) -> None:
        parsed = parse_event(event)
        operation = Operation(f"{self.name}-{parsed.idempotencyid}", [])
        work(parsed, operation)
        self.commit(parsed.idempotencyid, operation)

    def commit(self, key: str, operation: Operation) -> bool:
        """Write the effects of an operation with its key, and return whether it is a new one."""
        item: dict[str, object] = {"idempotencyKey": f"{self.name}#{key}"}
        actions = []
        for effect in operation.effects:
            if isinstance(effect, Keep):
                item |= effect.attributes
            else:
                actions.append(action_of(effect))
        put = {
            "TableName": self.table,
            "Item": marshalling.item(item),
            "ConditionExpression": "attribute_not_exists(idempotencyKey)",
        }
        try:
            if actions:
                self.transport("TransactWriteItems", {"TransactItems": [{"Put": put}, *actions]})
            else:
                self.transport("PutItem", put)
        except ServiceError as error:
            if error.code not in REFUSED:
                raise
            self.report("Duplicate", key)
            return False
        self.report("New", key)
        return True

    def report(self, outcome: str, key: str) -> None:
        observe(Observation(self.name, outcome, f"{self.name}#{key}", 1, None))


class Consumer:
    """Takes the place of `carride_idempotency.Consumer`; its store is a `Table`, or the API's."""

    def __init__(
        self, name: str, store: Any, *, parse: Callable[[Any], Any], **_others: Any
    ) -> None:
        self.parse = parse
        table = store if isinstance(store, Table) else Table(os.environ["IDEMPOTENCY_TABLE"])
        self.bare = Bare(name, table.name, table.transport or dynamodb_transport())
        self.event_handler = self.bare.event_handler
        self.batch_handler = self.bare.batch_handler

    def http_handler(self, **_: Any) -> Any:
        def decorate(work: Callable[[Any, Any], Any]) -> Any:
            def handler(event: dict[str, Any], _: object) -> dict[str, Any]:
                key = event["headers"]["idempotency-key"]
                operation = Operation(str(uuid5(NAMESPACE_OID, key)), [])
                answer: dict[str, Any] = work(self.parse(event), operation)
                if not self.bare.commit(key, operation):
                    return {"statusCode": 409}
                return {**answer, "body": json.dumps(answer["body"])}

            return handler

        return decorate
