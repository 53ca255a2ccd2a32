"""The default way to DynamoDB: a botocore client that tries once and soon gives up, otherwise as it was configured."""

import json
import os
from datetime import UTC, datetime
from io import BytesIO
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from botocore.credentials import CredentialProvider, RefreshableCredentials
from botocore.exceptions import EndpointConnectionError, ReadTimeoutError
from botocore.session import Session, get_session

from idempotency.stores.transport import NoAnswerError, ServiceError, botocore_transport

GET = {"TableName": "Idempotency", "Key": {"idempotencyKey": {"S": "history#k1"}}}


class Network:
    """Answers in place of the network, and keeps what was sent.

    Attributes:
        error: raised in place of an answer.
    """

    def __init__(self, body: dict[str, Any] | None = None, *, status: int = 200) -> None:
        self.sent: list[Any] = []
        self.error: Exception | None = None
        self._status = status
        self._body = json.dumps(body or {}).encode()

    def session(self) -> Session:
        """Return a session whose clients are answered here."""
        session = get_session()
        session.get_component("event_emitter").register_first("before-send.dynamodb", self._send)
        return session

    def header(self, name: str) -> str:
        """Return a header of the last request."""
        value: str | bytes = self.sent[-1].headers[name]
        return value.decode() if isinstance(value, bytes) else value

    def _send(self, request: Any, **_: object) -> AWSResponse:
        self.sent.append(request)
        if self.error is not None:
            raise self.error
        headers = HTTPHeaders()
        headers["content-type"] = "application/x-amz-json-1.0"
        return AWSResponse(request.url, self._status, headers, _Body(self._body))


class _Body(BytesIO):
    """A body, as botocore reads it from urllib3."""

    def stream(self, **_: object) -> list[bytes]:
        """Return the body in one piece."""
        return [self.read()]


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
    network = Network({"Item": {"status": {"S": "COMPLETED"}}})

    answer = botocore_transport(session=network.session())("GetItem", GET)

    assert answer["Item"] == {"status": {"S": "COMPLETED"}}
    assert network.sent[0].url == "https://dynamodb.eu-west-1.amazonaws.com/"
    assert "Credential=AKIDFIRST/" in network.header("Authorization")
    assert network.header("User-Agent").startswith("Botocore/")
    assert "AWS_Lambda_python3.13" in network.header("User-Agent")


def test_credentials_that_run_out_are_replaced() -> None:
    """A request that finds its credentials at their end is signed with new ones."""

    class Rotating(CredentialProvider):
        METHOD = "rotating"

        def load(self) -> RefreshableCredentials:
            def renew() -> dict[str, str]:
                return {
                    "access_key": "AKIDSECOND",
                    "secret_key": "s",
                    "token": "t",
                    "expiry_time": "2999-01-01T00:00:00Z",
                }

            ended = datetime(2020, 1, 1, tzinfo=UTC)
            return RefreshableCredentials("AKIDFIRST", "s", "t", ended, renew, self.METHOD)

    network = Network()
    session = network.session()
    session.get_component("credential_provider").insert_before("env", Rotating(session))

    botocore_transport(session=session)("GetItem", GET)

    assert "Credential=AKIDSECOND/" in network.header("Authorization")


@pytest.mark.parametrize(
    "error",
    [ReadTimeoutError(endpoint_url="https://dynamodb"), EndpointConnectionError(endpoint_url="https://dynamodb")],
    ids=lambda error: type(error).__name__,
)
def test_request_without_an_answer_is_sent_once(error: Exception) -> None:
    """Whether it took place is not known; the store, which knows the time that is left, decides on another try."""
    network = Network()
    network.error = error

    with pytest.raises(NoAnswerError):
        botocore_transport(session=network.session())("GetItem", GET)
    assert len(network.sent) == 1


def test_throttled_request_is_sent_once() -> None:
    """An error that botocore would retry comes back at once, with its code, status and body."""
    network = Network({"__type": "com.amazonaws.dynamodb.v20120810#ThrottlingException", "message": "slow"}, status=400)

    with pytest.raises(ServiceError) as refused:
        botocore_transport(session=network.session())("GetItem", GET)

    assert (refused.value.code, refused.value.status) == ("ThrottlingException", 400)
    assert len(network.sent) == 1


def test_request_without_credentials_is_refused_unsent(monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be signed did not take place, which is more than no answer says."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    network = Network()

    with pytest.raises(ServiceError) as refused:
        botocore_transport(session=network.session())("GetItem", GET)

    assert (refused.value.code, refused.value.status, network.sent) == ("NoCredentialsError", 0, [])
