"""The handlers that are measured, and what stands in for AWS behind them."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, IdempotencyConfig, idempotent
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


def powertools_handler(client: Any, *, cached: bool = False) -> Handler:
    """Make Powertools' handler, which compares payloads as this layer always does."""
    config = IdempotencyConfig(
        event_key_jmespath=KEY, payload_validation_jmespath="detail.data", use_local_cache=cached
    )

    @idempotent(persistence_store=DynamoDBPersistenceLayer(POWERTOOLS_TABLE, boto3_client=client), config=config)
    def handler(event: dict[str, Any], context: Any) -> object:
        return RESULT

    return handler


def own_handler(
    transport: Transport, *, cached: bool = False, atomic: bool = False, clock: Clock = epoch_ms
) -> Handler:
    """Make this layer's handler."""
    policy = Policy(atomic=atomic) if cached else Policy(warm_cache=0, atomic=atomic)
    store = DynamoDBStore(TABLE, transport=transport, clock=clock)
    consumer = Consumer("bench", store, key=KEY, policy=policy, region="us-east-1", clock=clock)
    return consumer.event_handler(lambda event, operation: RESULT)


# ── The client ────────────────────────────────────────────────────────────────────────────────────────────────────────


class StubClient:
    """A DynamoDB client that answers at once: writes succeed, or the ``completed`` item refuses them."""

    def __init__(self, completed: Mapping[str, Any] | None = None) -> None:
        self.completed = completed
        self.written: dict[str, Any] = {}
        body = {"Error": {"Code": "ConditionalCheckFailedException", "Message": "refused"}, "Item": completed}
        self._refusal = ClientError(body, "PutItem")  # type: ignore[arg-type] # the item is in the real answer too

    def put_item(self, **request: Any) -> dict[str, Any]:
        """Write, or refuse."""
        if self.completed is not None:
            raise self._refusal.with_traceback(None)  # else each raise would make its traceback longer
        self.written = request["Item"]
        return {}

    def update_item(self, **request: Any) -> dict[str, Any]:
        """Complete a record of Powertools'."""
        values = request["ExpressionAttributeValues"]
        names = {"status": ":status", "data": ":response_data", "expiration": ":expiry"}
        self.written = self.written | {name: values[value] for name, value in names.items()}
        return {}

    def get_item(self, **request: Any) -> dict[str, Any]:
        """Answer that there is nothing."""
        return {}

    delete_item = transact_write_items = get_item
