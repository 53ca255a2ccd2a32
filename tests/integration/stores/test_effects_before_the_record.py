"""Effects over Valkey with real servers on either side: a crash between them and the record, and two runs at once."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import boto3
import pytest
from botocore.config import Config

from idempotency import Consumer, Operation, Policy, Update
from idempotency.clock import epoch_ms
from idempotency.effects import Effect
from idempotency.record import COMPLETED
from idempotency.stores.dynamodb_effects import DynamoDBEffects
from idempotency.stores.transport import BotocoreTransport
from idempotency.stores.valkey import ValkeyStore
from idempotency.testing import Invocation

TABLE = "EffectsBeforeTheRecord"
RUNS_AT_ONCE = 8
_CONFIG = Config(connect_timeout=5, read_timeout=30, retries={"total_max_attempts": 1}, max_pool_connections=20)


class KilledError(BaseException):
    """What a killed process looks like to the code that it was running."""


class Writer:
    """Writes effects, and dies just after it when told to."""

    def __init__(self, effects: DynamoDBEffects) -> None:
        self.longest_try_s = 0.5
        self.dies = False
        self._effects = effects

    def write(self, effects: Sequence[Effect], *, until_ms: int | None = None) -> None:
        """Write the effects."""
        self._effects.write(effects, until_ms=until_ms)
        if self.dies:
            self.dies = False
            raise KilledError


@pytest.fixture
def dynamodb(engine_endpoint: str) -> Iterator[Any]:
    """A table for effects."""
    client = boto3.client("dynamodb", endpoint_url=engine_endpoint, config=_CONFIG)
    client.create_table(
        TableName=TABLE,
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    yield client
    client.delete_table(TableName=TABLE)
    client.close()


@pytest.fixture
def writer(dynamodb: Any) -> Writer:
    """What writes the effects into it."""
    return Writer(DynamoDBEffects(transport=BotocoreTransport(dynamodb, 0.5)))


@pytest.fixture
def store(valkey_client: Any, writer: Writer) -> ValkeyStore:
    """Records on an empty server."""
    valkey_client.flushall()
    return ValkeyStore(valkey_client, effect_writer=writer)


@pytest.fixture
def deliver(store: ValkeyStore) -> Callable[..., str]:
    """Deliver the one event to a handler that adds 1, marked, and return the outcome."""
    consumer = Consumer(
        "history",
        store,
        key="id",
        policy=Policy(same_delivery_takes_over=True, warm_cache=0, busy="wait"),
        region="eu-west-1",
    )

    @consumer.event_handler
    def handler(event: dict[str, Any], operation: Operation) -> None:
        mark = f"event#{event['id']}"
        operation.write(
            Update(
                TABLE,
                {"id": "order_01"},
                "SET #mark = :true ADD effects :one",
                names={"#mark": mark},
                values={":true": True, ":one": 1},
                mark=mark,
            )
        )

    def once(request_id: str = "request-1") -> str:
        outcome: str = handler({"id": "e1", "data": {}}, Invocation(epoch_ms, request_id=request_id))["outcome"]
        return outcome

    return once


def effects(dynamodb: Any) -> int:
    """How many effects there were."""
    return int(dynamodb.get_item(TableName=TABLE, Key={"id": {"S": "order_01"}})["Item"]["effects"]["N"])


def test_a_crash_between_effects_and_record_repeats_nothing(
    deliver: Callable[..., str], writer: Writer, store: ValkeyStore, dynamodb: Any
) -> None:
    """The delivery that comes again takes the claim over, finds the mark and completes the record."""
    writer.dies = True
    with pytest.raises(KilledError):
        deliver()
    assert effects(dynamodb) == 1
    assert deliver() == "Takeover"
    record = store.read("history#e1")
    assert record is not None
    assert (record.status, record.attempt, effects(dynamodb)) == (COMPLETED, 2, 1)


def test_a_server_that_forgets_repeats_nothing(deliver: Callable[..., str], valkey_client: Any, dynamodb: Any) -> None:
    """After a failover to a replica that has heard of nothing, the event is new, and its effect is not."""
    assert deliver() == "New"
    valkey_client.flushall()
    assert deliver("request-2") == "New"
    assert effects(dynamodb) == 1


def test_runs_at_once_under_claims_that_are_forgotten_take_effect_once(
    deliver: Callable[..., str], valkey_client: Any, dynamodb: Any
) -> None:
    """Claims that vanish while they are held let several runs through; the mark lets one effect through."""
    start = threading.Barrier(RUNS_AT_ONCE + 1)
    outcomes: list[str] = []

    def run(number: int) -> None:
        start.wait()
        try:
            outcomes.append(deliver(f"request-{number}"))
        except Exception as error:  # noqa: BLE001 - a lost lease is one of the possible ends
            outcomes.append(type(error).__name__)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(RUNS_AT_ONCE)]
    for thread in threads:
        thread.start()
    start.wait()
    while any(thread.is_alive() for thread in threads):
        valkey_client.flushall()
    for thread in threads:
        thread.join()
    assert len(outcomes) == RUNS_AT_ONCE
    deliver("request-last")
    assert effects(dynamodb) == 1
