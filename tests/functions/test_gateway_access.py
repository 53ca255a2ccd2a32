"""Authorised requests to a gateway: signatures hold, and secrets rotate."""

import hashlib
import hmac
from functools import partial
from typing import Final

import boto3
import pytest
from botocore.session import get_session
from moto import mock_aws

from gateway import GatewayUnavailableError
from gateway_access import Bearer, read_secret, signed

NAME: Final = "gateway"
URL: Final = "https://abc.lambda-url.eu-west-1.on.aws"


def signature(secret_key: str, method: str, target: str, headers: dict[str, str], content: bytes) -> str:
    """Return the signature that a request has to have: Signature Version 4, as AWS documents it."""
    _, credential, names, _ = headers["authorization"].replace(",", "").split()
    path, _, query = target.partition("?")
    names = names.removeprefix("SignedHeaders=")
    canonical = [method, path, query, *(f"{name}:{headers[name]}" for name in names.split(";")), "", names]
    digest = hashlib.sha256("\n".join([*canonical, hashlib.sha256(content).hexdigest()]).encode()).hexdigest()
    key = f"AWS4{secret_key}".encode()
    scope = credential.split("/", 1)[1]
    for part in [*scope.split("/"), "\n".join(["AWS4-HMAC-SHA256", headers["x-amz-date"], scope, digest])]:
        key = hmac.digest(key, part.encode(), "sha256")
    return key.hex()


@pytest.mark.parametrize(
    ("method", "target", "content"), [("GET", "/payments?reference=order_01", None), ("POST", "/payments", b"{}")]
)
def test_a_function_url_can_verify_what_it_gets(
    method: str, target: str, content: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signature is of the whole request, host, key and body included, for Lambda in this region."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    access = signed(get_session(), "eu-west-1")
    headers = access(method, URL + target, {"Idempotency-Key": "key"}, content)
    arrived = {name.lower(): value for name, value in headers.items()} | {"host": URL.removeprefix("https://")}
    authorization = arrived["authorization"]
    assert authorization.endswith(f"Signature={signature('secret', method, target, arrived, content or b'')}")
    assert "/eu-west-1/lambda/aws4_request, SignedHeaders=host;idempotency-key;" in authorization
    assert arrived["x-amz-security-token"] == "token"


def test_a_secret_is_read_once_and_again_after_a_refusal() -> None:
    """A rotated secret needs no new process."""
    with mock_aws():
        manager = boto3.client("secretsmanager")
        secret = manager.create_secret(Name=NAME, SecretString="one\n")["ARN"]
        bearer = Bearer(partial(read_secret, get_session(), secret))

        def sent() -> dict[str, str]:
            return bearer("GET", URL, {"Idempotency-Key": "key"}, None)

        assert sent() == {"Idempotency-Key": "key", "Authorization": "Bearer one"}
        manager.put_secret_value(SecretId=NAME, SecretString="two")
        assert sent()["Authorization"] == "Bearer one"
        bearer.forget()
        assert sent()["Authorization"] == "Bearer two"


@pytest.mark.parametrize("text", [None, "two\nlines", "ü"])
def test_a_secret_that_cannot_be_read_or_sent_is_a_passing_failure(text: str | None) -> None:
    """The request is not sent and the event is retried; the error names the parameter and not the secret."""
    with mock_aws():
        if text is not None:
            boto3.client("secretsmanager").create_secret(Name=NAME, SecretString=text)
        with pytest.raises(GatewayUnavailableError, match="PaymentGatewaySecretArn") as caught:
            read_secret(get_session(), NAME)
    assert text is None or text not in str(caught.value)
