"""Effects over Valkey with real servers on either side, under claims that are forgotten while they are held."""

import threading
from typing import Any

from idempotency import Consumer, Operation, Policy
from idempotency.clock import epoch_ms
from idempotency.stores.dynamodb_effects import DynamoDBEffects
from idempotency.stores.valkey import ValkeyStore
from idempotency.testing import Invocation
from tests.integration.stores.test_conformance import clock  # noqa: F401 - a fixture
from tests.stores.backends import Backend

RUNS_AT_ONCE = 8


def test_a_server_that_forgets_repeats_nothing(transactional: Backend, valkey_client: Any) -> None:
    """Claims that vanish, as in a failover, let several runs through; the mark lets one effect through."""
    transport: Any = transactional.store._transport  # type: ignore[attr-defined]  # noqa: SLF001 - the way to its tables
    store = ValkeyStore(valkey_client, effect_writer=DynamoDBEffects(transport=transport))
    consumer = Consumer("history", store, key="id", policy=Policy(warm_cache=0, busy="wait"), region="eu-west-1")

    @consumer.event_handler
    def handler(event: dict[str, Any], operation: Operation) -> None:
        update, mark = transactional.charge("order_01"), f"event#{event['id']}"
        operation.write(
            update._replace(
                expression="SET #mark = :one ADD charges :one",
                names={"#mark": mark},
                mark=mark,
            )
        )

    start = threading.Barrier(RUNS_AT_ONCE + 1)
    outcomes: list[str] = []

    def deliver(request_id: str) -> None:
        outcomes.append(handler({"id": "e1", "data": {}}, Invocation(epoch_ms, request_id=request_id))["outcome"])

    def run(number: int) -> None:
        start.wait()
        try:
            deliver(f"request-{number}")
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
    valkey_client.flushall()
    deliver("request-last")
    assert outcomes[-1] == "New"
    assert transactional.charges("order_01") == 1
