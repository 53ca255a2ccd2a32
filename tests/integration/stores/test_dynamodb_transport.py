"""What becomes of a DynamoDB that refuses, hangs or is gone."""

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from idempotency import DynamoDBStore
from idempotency.errors import StoreRefusedError
from idempotency.stores.transport import BotocoreTransport, NoAnswerError, botocore_transport
from tests.integration.stores.test_conformance import claim, clock  # noqa: F401 - the clock is a fixture
from tests.stores.backends import Backend

READ = {"TableName": "Missing", "Key": {"idempotencyKey": {"S": "k"}}}


@pytest.fixture
def transport_to(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make the default transport, to another endpoint."""

    def make(endpoint: str, **timeouts: float) -> BotocoreTransport:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        return botocore_transport(**timeouts)

    return make


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_refusal_is_definite_and_has_its_reason(transactional: Backend) -> None:
    """What DynamoDB says of a record that is too large, or a table that is not there, is told; nothing is written."""
    store: Any = transactional.store
    missing = DynamoDBStore("Missing", transport=store._transport)  # noqa: SLF001 - the way to the same server
    for write in (
        missing.put_if_absent,
        lambda record: missing.put_if_absent(record, [transactional.charge("order_01")]),
    ):
        with pytest.raises(StoreRefusedError, match="ResourceNotFoundException"):
            write(claim())
    with pytest.raises(StoreRefusedError, match="ValidationException"):
        store.put_if_absent(claim()._replace(result="x" * 500_000))
    assert (store.read(claim().key), transactional.charges("order_01")) == (None, 0)


def test_hung_service_is_given_up_after_the_stated_time(transport_to: Any, silent_port: int) -> None:
    """A request without an answer ends within ``longest_try_s``, and is sent once: the store retries."""
    transport = transport_to(f"http://127.0.0.1:{silent_port}", connect_timeout_s=0.2, read_timeout_s=0.3)
    assert transport.longest_try_s == pytest.approx(0.5)
    began = time.monotonic()
    with pytest.raises(NoAnswerError):
        transport("GetItem", READ)
    assert time.monotonic() - began < 5


def test_service_that_is_gone_is_no_answer(transport_to: Any) -> None:
    """A refused connection says nothing of whether a request took place."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with pytest.raises(NoAnswerError):
        transport_to(f"http://127.0.0.1:{port}")("GetItem", READ)
