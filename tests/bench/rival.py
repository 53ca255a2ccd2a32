"""The wiring of consumers on Powertools, with the names of `carride.consumer`.

A function that is imported after it decides as it always does. Powertools recognises duplicates,
and takes batches apart. A transaction of boto3's writes the effects, without the record: Powertools
cannot have both in one. Deliveries are logged and counted as here, duplicates too.
"""

import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import NAMESPACE_OID, uuid5

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

from carride.events import RideEvent, parse_event
from carride.telemetry import observe
from carride_idempotency import marshalling
from carride_idempotency.effects import Keep, action_of
from carride_idempotency.observation import Observation
from tests.bench.stand_ins import ConsumerSettings, Operation, SagaSettings, Table, ride_events

__all__ = ["ConsumerSettings", "SagaSettings", "ride_events"]

shared: Any = None
"""A client for everything; None: each part makes its own, as documented."""


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
        self.commit(parsed.idempotencyid, operation)

    def commit(self, key: str, operation: Operation) -> None:
        """Write the effects of an operation in one transaction, without the record."""
        effects = [effect for effect in operation.effects if not isinstance(effect, Keep)]
        if effects:
            actions = [action_of(effect) for effect in effects]
            self.dynamodb.transact_write_items(TransactItems=actions)
        self.report("New", key)

    def report(self, outcome: str, key: str) -> None:
        observe(Observation(self.name, outcome, f"{self.name}#{key}", 1, None))

    def config(
        self, key: str = "detail.idempotencyid", payload: str = "detail.data"
    ) -> IdempotencyConfig:
        """Return what identifies an event, and what is done about a duplicate."""
        return IdempotencyConfig(
            event_key_jmespath=key,
            payload_validation_jmespath=payload,
            response_hook=lambda response, record: (
                self.report("Duplicate", record.idempotency_key) or response
            ),
        )


class Consumer:
    """Takes the place of `carride_idempotency.Consumer`; its store is a `Table`, or the API's."""

    def __init__(
        self, name: str, store: Any, *, parse: Callable[[Any], Any], **_others: Any
    ) -> None:
        self.parse = parse
        table = store.name if isinstance(store, Table) else os.environ["IDEMPOTENCY_TABLE"]
        layer = DynamoDBPersistenceLayer(table, key_attr="idempotencyKey", boto3_client=shared)
        self.powertools = Powertools(name, layer, client())
        self.event_handler = self.powertools.event_handler
        self.batch_handler = self.powertools.batch_handler

    def http_handler(self, **_: Any) -> Any:
        config = self.powertools.config('headers."idempotency-key"', "body")
        protect = idempotent(persistence_store=self.powertools.store, config=config)

        def decorate(work: Callable[[Any, Any], Any]) -> Any:
            def handler(event: dict[str, Any], _: object) -> dict[str, Any]:
                key = event["headers"]["idempotency-key"]
                operation = Operation(str(uuid5(NAMESPACE_OID, key)), [])
                answer: dict[str, Any] = work(self.parse(event), operation)
                self.powertools.commit(key, operation)
                return {**answer, "body": json.dumps(answer["body"])}

            return protect(handler)

        return decorate
