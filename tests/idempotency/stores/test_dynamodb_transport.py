"""What becomes of a DynamoDB that refuses, hangs or is gone."""

import socket
from typing import Any

import pytest

from idempotency import DynamoDBStore
from idempotency.errors import StoreRefusedError
from idempotency.stores.transport import NoAnswerError, botocore_transport
from tests.idempotency.stores.backends import Backend
from tests.idempotency.stores.test_conformance import claim, clock  # noqa: F401 - the clock is a fixture


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


@pytest.mark.parametrize("listens", [True, False], ids=["silent", "gone"])
def test_service_without_an_answer_is_given_up(monkeypatch: pytest.MonkeyPatch, *, listens: bool) -> None:
    """A request that nobody answers ends by itself, and is sent once: the store retries."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if listens:
            listener.listen()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{listener.getsockname()[1]}")
        transport = botocore_transport(connect_timeout_s=0.2, read_timeout_s=0.3)
        assert transport.longest_try_s == pytest.approx(0.5)
        with pytest.raises(NoAnswerError):
            transport("GetItem", {"TableName": "Missing", "Key": {"idempotencyKey": {"S": "k"}}})
