"""A partner's application: the same consumer over every store."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import boto3
import fakeredis
import pytest
from moto import mock_aws

from idempotency import DynamoDBStore, MemoryStore
from idempotency.clock import epoch_ms
from idempotency.stores import Store
from idempotency.stores.valkey import ValkeyStore
from idempotency.testing import Invocation
from local.partner import Partner

type Open = Callable[[], AbstractContextManager[Store]]


def memory() -> AbstractContextManager[Store]:
    """Records in this process."""
    return nullcontext(MemoryStore())


def valkey() -> AbstractContextManager[Store]:
    """Records in Valkey."""
    return nullcontext(ValkeyStore(fakeredis.FakeValkey(socket_timeout=1)))


@contextmanager
def dynamodb() -> Iterator[Store]:
    """Records in DynamoDB."""
    with mock_aws():
        boto3.client("dynamodb").create_table(
            TableName="Idempotency",
            KeySchema=[{"AttributeName": "idempotencyKey", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "idempotencyKey", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        yield DynamoDBStore("Idempotency")


def message(number: int, *, receives: int = 1, order_id: str = "order_01") -> dict[str, Any]:
    """Return a message of the queue with an event in the older envelope."""
    event = {"attributes": {"type": "CarRideCreated", "idempotencyId": f"fact-{number}"}, "data": {"orderID": order_id}}
    return {
        "messageId": f"message-{number}-{receives}",
        "body": json.dumps(event),
        "attributes": {"SentTimestamp": str(epoch_ms()), "ApproximateReceiveCount": str(receives)},
    }


@pytest.mark.parametrize("opened", [memory, valkey, dynamodb])
def test_the_same_consumer_takes_each_event_once_over_every_store(opened: Open) -> None:
    """Copies in one batch and in the next one give no further point, wherever the records are."""
    with opened() as store:
        partner = Partner(store)
        for _ in range(2):
            assert partner.receive({"Records": [message(1), message(1)]}, Invocation(epoch_ms)) == {
                "batchItemFailures": []
            }
        partner.receive({"Records": [message(2)]}, Invocation(epoch_ms))
        assert partner.points == {"fact-1": 1, "fact-2": 1}


@pytest.mark.parametrize("opened", [memory, valkey, dynamodb])
def test_an_attempt_that_fails_comes_again_by_itself(opened: Open) -> None:
    """The message that failed is reported, its neighbour is not, and the next attempt gives the point."""

    def stumble(event: Mapping[str, Any], attempt: int) -> None:
        if event["attributes"]["idempotencyId"] == "fact-1" and attempt == 1:
            raise ConnectionError("try again")

    with opened() as store:
        partner = Partner(store, before=stumble)
        batch = {
            "Records": [message(1, receives=2), message(2, receives=2)]
        }  # one after the other: moto isolates nothing
        first = partner.receive(batch, Invocation(epoch_ms))
        assert first == {"batchItemFailures": [{"itemIdentifier": "message-1-2"}]}
        assert partner.receive(batch, Invocation(epoch_ms)) == {"batchItemFailures": []}
        assert partner.points == {"fact-1": 1, "fact-2": 1}
