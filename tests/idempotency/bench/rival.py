"""The wiring of consumers on Powertools, with the names of `carride.consumer`.

A function that is imported after it decides as it always does. Powertools recognises duplicates,
and takes batches apart. A transaction of boto3's writes the effects, without the record: Powertools
cannot have both in one. Deliveries are logged and counted as here, duplicates too.
"""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

from aws_lambda_powertools.utilities.batch import (
    BatchProcessor,
    EventType,
    process_partial_response,
)
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent,
    idempotent_function,
)
from msgspec import Struct

from carride.events import RideEvent, parse_event
from carride.items import Outbox
from carride.telemetry import observe
from carride_idempotency import marshalling
from carride_idempotency.effects import Keep, action_of
from carride_idempotency.observation import Observation

shared: Any = None
"""A client for everything; None: each part makes its own, as documented."""


class ConsumerSettings(Struct, frozen=True, kw_only=True):
    idempotency_store: str
    dead_letter_queue_url: str


class SagaSettings(ConsumerSettings, frozen=True, kw_only=True):
    outbox_table: str
    aws_region: str

    def outbox(self) -> Outbox:
        return Outbox(self.outbox_table, self.aws_region, timedelta(days=7))


class Operation(NamedTuple):
    downstream_key: str
    effects: list[Any]
    deadline_ms: int | None = None
    lost: bool = False

    def write(self, *effects: Any) -> None:
        self.effects.extend(effects)


def client() -> Any:
    import boto3  # noqa: PLC0415 - a function imports it after all else

    return shared or boto3.client("dynamodb")


class Powertools(NamedTuple):
    name: str
    store: DynamoDBPersistenceLayer
    dynamodb: Any

    def event_handler(self, work: Callable[[RideEvent, Any], None]) -> Any:
        protect = idempotent(persistence_store=self.store, config=self.config())
        return protect(lambda event, context: self.run(event, work))

    def batch_handler(self, work: Callable[[RideEvent, Any], None]) -> Any:
        config = self.config()
        processor = BatchProcessor(EventType.SQS)

        protect = idempotent_function(
            data_keyword_argument="event", persistence_store=self.store, config=config
        )
        once = protect(lambda event: self.run(event, work))

        def record_handler(record: Any) -> None:
            once(event=json.loads(record.body))

        def handler(event: dict[str, Any], context: Any) -> Any:
            config.register_lambda_context(context)
            return process_partial_response(event, record_handler, processor, context)

        return handler

    def run(self, event: dict[str, Any], work: Callable[[RideEvent, Any], None]) -> None:
        parsed = parse_event(event)
        operation = Operation(f"{self.name}-{parsed.idempotencyid}", [])
        work(parsed, operation)
        for effect in operation.effects:
            if isinstance(effect, Keep):  # which needs no transaction here either
                item = {"idempotencyKey": parsed.idempotencyid, **effect.attributes}
                self.dynamodb.put_item(TableName="timelines", Item=marshalling.item(item))
        if actions := [
            action_of(effect) for effect in operation.effects if not isinstance(effect, Keep)
        ]:
            self.dynamodb.transact_write_items(TransactItems=actions)
        self.report("New", parsed.idempotencyid)

    def report(self, outcome: str, key: str) -> None:
        observe(Observation(self.name, outcome, f"{self.name}#{key}", 1, None))

    def config(self) -> IdempotencyConfig:
        """Return what identifies an event, and what is done about a duplicate."""
        return IdempotencyConfig(
            event_key_jmespath="detail.idempotencyid",
            payload_validation_jmespath="detail.data",
            response_hook=lambda response, record: (
                self.report("Duplicate", record.idempotency_key) or response
            ),
        )


def ride_consumer(
    name: str, settings: ConsumerSettings, policy: object, transport: Any = None
) -> Powertools:
    table = settings.idempotency_store.partition(":")[2]
    store = DynamoDBPersistenceLayer(table, key_attr="idempotencyKey", boto3_client=shared)
    return Powertools(name, store, client())
