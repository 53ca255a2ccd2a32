"""The default way to DynamoDB: a botocore client that tries once and soon gives up, otherwise as it was configured."""

import os
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import EndpointConnectionError, ReadTimeoutError
from botocore.session import get_session

from idempotency.stores.transport import NoAnswerError, ServiceError, botocore_transport
from tests.idempotency.samples import http_answer


class Network:
    """Answers in place of the network, or raises, and keeps what was sent."""

    def __init__(self, answer: bytes | Exception, status: int = 200) -> None:
        self.sent: list[Any] = []
        self._answer = answer
        self._status = status

    def get(self) -> Any:
        """Read a record by way of this network."""
        session = get_session()
        session.get_component("event_emitter").register_first("before-send.dynamodb", self._send)
        request = {"TableName": "Idempotency", "Key": {"idempotencyKey": {"S": "history#k1"}}}
        return botocore_transport(session=session)("GetItem", request)

    def header(self, name: str) -> str:
        """Return a header of the last request."""
        value: str | bytes = self.sent[-1].headers[name]
        return value.decode() if isinstance(value, bytes) else value

    def _send(self, request: Any, **_: object) -> AWSResponse:
        self.sent.append(request)
        if isinstance(self._answer, Exception):
            raise self._answer
        return http_answer(request, self._status, self._answer)


@pytest.fixture(autouse=True)
def lambda_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in the environment of a function in eu-west-1."""
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "AKIDFIRST"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_DEFAULT_REGION", "eu-west-1"),
        ("AWS_EXECUTION_ENV", "AWS_Lambda_python3.13"),
    ):
        monkeypatch.setenv(name, value)


def test_request_goes_to_the_region_signed_and_says_who_sends_it() -> None:
    """Region and credentials are the environment's, and the user agent names botocore and Lambda."""
    network = Network(b'{"Item": {"status": {"S": "COMPLETED"}}}')
    assert network.get()["Item"] == {"status": {"S": "COMPLETED"}}
    assert network.sent[0].url == "https://dynamodb.eu-west-1.amazonaws.com/"
    assert "Credential=AKIDFIRST/" in network.header("Authorization")
    assert network.header("User-Agent").startswith("Botocore/")
    assert "AWS_Lambda_python3.13" in network.header("User-Agent")


@pytest.mark.parametrize(
    "error",
    [ReadTimeoutError(endpoint_url="https://dynamodb"), EndpointConnectionError(endpoint_url="https://dynamodb")],
    ids=lambda error: type(error).__name__,
)
def test_request_without_an_answer_is_sent_once(error: Exception) -> None:
    """The store decides about another try, because it knows the time left."""
    network = Network(error)
    with pytest.raises(NoAnswerError):
        network.get()
    assert len(network.sent) == 1


def test_throttled_request_is_sent_once() -> None:
    """An error that botocore would retry comes back at once, with its code, status and body."""
    network = Network(b'{"__type": "com.amazonaws.dynamodb.v20120810#ThrottlingException", "message": "slow"}', 400)
    with pytest.raises(ServiceError) as refused:
        network.get()
    assert (refused.value.code, refused.value.status) == ("ThrottlingException", 400)
    assert len(network.sent) == 1


def test_request_without_credentials_is_refused_unsent(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unsigned request was never sent, so it is a definite refusal."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, os.devnull)
    network = Network(b"{}")
    with pytest.raises(ServiceError) as refused:
        network.get()
    assert (refused.value.code, refused.value.status, network.sent) == ("NoCredentialsError", 0, [])
