"""The handlers that are measured, and what stands in for AWS behind them."""

import copy
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import boto3
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent,
    idempotent_function,
)
from botocore.exceptions import ClientError

from idempotency import Consumer, DynamoDBStore, Policy
from idempotency.clock import Clock, epoch_ms
from idempotency.stores.transport import Transport
from idempotency.testing import Invocation
from tests.idempotency.differential.world import POWERTOOLS_TABLE, TABLE

type Handler = Callable[[dict[str, Any], Any], object]

KEY: Final = "detail.idempotencyid"
RESULT: Final = {"accepted": True}
EVENT: Final[dict[str, Any]] = json.loads(
    (Path(__file__).parents[3] / "events/ride_history_live.json").read_text(encoding="utf-8")
)


def invocation() -> Any:
    """Return the context of a new invocation with a Lambda's usual timeout."""
    return Invocation(epoch_ms, timeout_s=30)


# ── The handlers ──────────────────────────────────────────────────────────────────────────────────────────────────────


def powertools_client(session: Any = None) -> Any:
    """Return the client that Powertools makes for itself, of a botocore session."""
    return boto3.session.Session(botocore_session=session).client("dynamodb")


def powertools_handler(client: Any, work: Callable[[], object] = lambda: RESULT, *, cached: bool = False) -> Handler:
    """Make Powertools' handler, which compares payloads as this layer always does."""
    config = IdempotencyConfig(
        event_key_jmespath=KEY, payload_validation_jmespath="detail.data", use_local_cache=cached
    )

    @idempotent(persistence_store=DynamoDBPersistenceLayer(POWERTOOLS_TABLE, boto3_client=client), config=config)
    def handler(event: dict[str, Any], context: Any) -> object:
        return work()

    return handler


def own_handler(
    transport: Transport,
    work: Callable[[], object] = lambda: RESULT,
    *,
    cached: bool = False,
    atomic: bool = False,
    clock: Clock = epoch_ms,
) -> Handler:
    """Make this layer's handler."""
    policy = Policy(atomic=atomic) if cached else Policy(warm_cache=0, atomic=atomic)
    store = DynamoDBStore(TABLE, transport=transport, clock=clock)
    consumer = Consumer("bench", store, key=KEY, policy=policy, region="us-east-1", clock=clock)
    return consumer.event_handler(lambda event, operation: work())


def powertools_batch(client: Any) -> Handler:
    """Make Powertools' handler of an SQS batch, as its documentation has it."""
    config = IdempotencyConfig(event_key_jmespath="messageId")
    processor = BatchProcessor(event_type=EventType.SQS)
    layer = DynamoDBPersistenceLayer(POWERTOOLS_TABLE, boto3_client=client)

    def take(record: Any) -> object:
        return RESULT

    once = idempotent_function(take, data_keyword_argument="record", persistence_store=layer, config=config)

    def handler(event: dict[str, Any], context: Any) -> object:
        config.register_lambda_context(context)
        return process_partial_response(
            event=event, record_handler=lambda record: once(record=record), processor=processor, context=context
        )

    return handler


def own_batch(transport: Transport) -> Handler:
    """Make this layer's handler of an SQS batch."""
    consumer = Consumer("bench", DynamoDBStore(TABLE, transport=transport), key=KEY)
    return consumer.batch_handler(lambda event, operation: RESULT)


def batch(size: int, number: int) -> dict[str, Any]:
    """Return an SQS event of messages that nobody has seen; ``number`` tells one batch from another."""
    records = []
    for position in range(size):
        body = copy.deepcopy(EVENT)
        body["detail"]["idempotencyid"] = f"batch-{number}-{position}"
        attributes = {"ApproximateReceiveCount": "1", "SentTimestamp": str(epoch_ms())}
        record = {"messageId": f"message-{number}-{position}", "body": json.dumps(body), "attributes": attributes}
        records.append(record | {"eventSource": "aws:sqs", "messageAttributes": {}})
    return {"Records": records}


# ── The client ────────────────────────────────────────────────────────────────────────────────────────────────────────


class StubClient:
    """A DynamoDB client that answers after ``latency_s``: writes succeed, or the ``completed`` item refuses them."""

    def __init__(self, completed: Mapping[str, Any] | None = None, *, latency_s: float = 0.0) -> None:
        self.completed = completed
        self._latency_s = latency_s
        self.written: dict[str, Any] = {}
        body = {"Error": {"Code": "ConditionalCheckFailedException", "Message": "refused"}, "Item": completed}
        self._refusal = ClientError(body, "PutItem")  # type: ignore[arg-type] # the item is in the real answer too

    def put_item(self, **request: Any) -> dict[str, Any]:
        """Write, or refuse."""
        self._wait()
        if self.completed is not None:
            raise self._refusal.with_traceback(None)  # else each raise would make its traceback longer
        self.written = request["Item"]
        return {}

    def update_item(self, **request: Any) -> dict[str, Any]:
        """Complete a record of Powertools'."""
        self._wait()
        values = request["ExpressionAttributeValues"]
        names = {"status": ":status", "data": ":response_data", "expiration": ":expiry"}
        self.written = self.written | {name: values[value] for name, value in names.items()}
        return {}

    def get_item(self, **request: Any) -> dict[str, Any]:
        """Answer that there is nothing."""
        self._wait()
        return {}

    def _wait(self) -> None:
        if self._latency_s:
            time.sleep(self._latency_s)

    delete_item = transact_write_items = get_item
