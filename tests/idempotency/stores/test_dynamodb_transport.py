"""The default transport over real sockets."""

import socket

import pytest

from idempotency.stores.transport import NoAnswerError, botocore_transport


@pytest.mark.parametrize("listens", [True, False], ids=["silent", "gone"])
def test_service_without_an_answer_is_given_up(monkeypatch: pytest.MonkeyPatch, *, listens: bool) -> None:
    """A request that nobody answers ends after the timeouts, and is sent once: the store retries."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if listens:
            listener.listen()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{listener.getsockname()[1]}")
        transport = botocore_transport(connect_timeout_s=0.2, read_timeout_s=0.3)
        assert transport.longest_try_s == pytest.approx(0.5)
        with pytest.raises(NoAnswerError):
            transport("GetItem", {"TableName": "Missing", "Key": {"idempotencyKey": {"S": "k"}}})
