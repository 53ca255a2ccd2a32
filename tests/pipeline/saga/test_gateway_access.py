"""Authorised requests to a gateway, over a real connection: signatures hold, and secrets rotate."""

import hashlib
import hmac
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final

import boto3
import pytest
from botocore.session import get_session
from moto import mock_aws

import payment
from gateway import Call, GatewayUnavailableError, NoGatewayError
from gateway_access import Bearer
from gateway_client import HttpGateway

CALL: Final = Call("operation-1", None, lambda: False)
ARGUMENTS: Final[Any] = {"order_id": "order_01", "customer_id": "customer_a", "amount": 1250, "currency": "EUR"}
NAME: Final = "gateway"
PAYMENT: Final = str(Path(payment.__file__).parent)


class Recorder(ThreadingHTTPServer):
    """A gateway that keeps its requests, and answers 401 to a token that is not its own."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.token: str | None = None
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Recorder

    def do_GET(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        content = self.rfile.read(int(headers.get("content-length", 0)))
        self.server.requests.append((self.command, self.path, headers, content))
        admitted = self.server.token is None or headers.get("authorization") == f"Bearer {self.server.token}"
        self.send_response(200 if admitted else 401)
        self.end_headers()
        made = b'{"id": "pay_1", "status": "authorized", "amount": 1250, "currency": "EUR"}'
        self.wfile.write(made if self.command == "POST" else b'{"payments": []}')

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def gateway() -> Iterator[Recorder]:
    """A gateway that listens."""
    with Recorder() as server:
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def settings(**variables: Any) -> payment.Settings:
    """Return the settings of payment."""
    return payment.Settings(
        idempotency_store="dynamodb:idempotency",
        dead_letter_queue_url="queue",
        outbox_table="outbox",
        aws_region="eu-west-1",
        payment_table="payments",
        **variables,
    )


def signature(secret_key: str, method: str, target: str, headers: dict[str, str], content: bytes) -> str:
    """Return the signature that a request has to have: Signature Version 4, as AWS documents it."""
    _, credential, signed, _ = headers["authorization"].replace(",", "").split()
    path, _, query = target.partition("?")
    names = signed.removeprefix("SignedHeaders=").split(";")
    canonical = [method, path, query, *(f"{name}:{headers[name]}" for name in names), "", ";".join(names)]
    digest = hashlib.sha256("\n".join([*canonical, hashlib.sha256(content).hexdigest()]).encode()).hexdigest()
    key = f"AWS4{secret_key}".encode()
    scope = credential.split("/", 1)[1]
    for part in [*scope.split("/"), "\n".join(["AWS4-HMAC-SHA256", headers["x-amz-date"], scope, digest])]:
        key = hmac.digest(key, part.encode(), "sha256")
    return key.hex()


def test_a_function_url_can_verify_what_it_gets(gateway: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signature is of the request as it arrives, host, key and body included, for Lambda in this region."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    client = payment.http_gateway(settings(payment_gateway_url=f"{gateway.url}/", payment_gateway_signed=True))
    client.authorize(CALL, **ARGUMENTS)
    assert [request[:2] for request in gateway.requests] == [
        ("GET", "/payments?reference=order_01"),
        ("POST", "/payments"),
    ]
    for request in gateway.requests:
        authorization = request[2]["authorization"]
        assert authorization.endswith(f"Signature={signature('secret', *request)}")
        assert "/eu-west-1/lambda/aws4_request, " in authorization
        assert "host;" in authorization
        assert request[2]["x-amz-security-token"] == "token"


def test_a_secret_is_read_once_and_again_after_a_refusal(gateway: Recorder) -> None:
    """A rotated secret needs no new process; no request is sent without one."""
    with mock_aws():
        manager = boto3.client("secretsmanager")
        secret = manager.create_secret(Name=NAME, SecretString="one\n")["ARN"]
        gateway.token = "one"  # noqa: S105 - no secret
        client = payment.http_gateway(settings(payment_gateway_url=gateway.url, payment_gateway_secret_arn=secret))
        client.authorize(CALL, **ARGUMENTS)
        manager.put_secret_value(SecretId=secret, SecretString="two")
        client.find(CALL, order_id="order_01")  # does not read it again
        gateway.token = "two"  # noqa: S105 - no secret
        client.find(CALL, order_id="order_01")
    sent = [headers["authorization"] for _, _, headers, _ in gateway.requests]
    assert sent == ["Bearer one"] * 4 + ["Bearer two"]


@pytest.mark.parametrize("text", [None, " ", "two\nlines", "ü", "nul\0"])
def test_a_secret_that_cannot_be_read_or_sent_is_a_passing_failure(gateway: Recorder, text: str | None) -> None:
    """No request is sent, the event is retried, and the error does not show the secret."""
    with mock_aws():
        if text is not None:
            boto3.client("secretsmanager").create_secret(Name=NAME, SecretString=text)
        client = HttpGateway(gateway.url, Bearer(get_session(), NAME), sleep=lambda _: None)
        with pytest.raises(GatewayUnavailableError, match="secret") as caught:
            client.find(CALL, order_id="order_01")
    assert gateway.requests == []
    assert not text or not text.strip() or text not in str(caught.value)


def test_time_for_reading_the_secret_is_part_of_a_try() -> None:
    """Nothing is begun that could not end before the deadline: a secret, two requests, and the commit."""
    client = HttpGateway("http://127.0.0.1:9", Bearer(get_session(), NAME), clock=lambda: 0)
    with mock_aws(), pytest.raises(GatewayUnavailableError, match="there was none left"):
        client.find(CALL._replace(deadline_ms=13_999), order_id="order_01")


def test_only_who_signs_or_has_a_secret_loads_what_for_it() -> None:
    """The modules of the gateway's client import nothing of botocore."""
    code = "import sys, gateway_access; print('botocore' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env={"PYTHONPATH": PAYMENT})
    assert done.stdout == b"False\n"


def test_without_a_gateway_only_its_requests_fail() -> None:
    """The function starts; asking fails at once, without a retry."""
    waits: list[float] = []
    assert payment.http_gateway(settings()) is not None
    with pytest.raises(NoGatewayError, match="no payment gateway"):
        HttpGateway("", sleep=waits.append).find(CALL, order_id="order_01")
    assert sum(waits) == 0
