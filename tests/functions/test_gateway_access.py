"""Authorised requests to a gateway: signatures hold, and secrets rotate."""

from datetime import datetime, timedelta, tzinfo
from itertools import product
from typing import Final, Self

import boto3
import pytest
from aws_lambda_powertools.utilities.parameters import base
from botocore.session import get_session
from moto import mock_aws

from gateway import GatewayUnavailableError
from gateway_access import SECRET_AGE_S, Bearer, signed

NAME: Final = "gateway"
URL: Final = "https://abc.lambda-url.eu-west-1.on.aws"


def test_a_function_url_can_verify_what_it_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signature covers the whole request, host, key and body, for Lambda in this region."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: datetime(2026, 11, 22))  # noqa: DTZ001 - botocore's
    access = signed(get_session(), "eu-west-1")
    requests = product(
        ("GET", "POST"),
        ("/v1/refunds", "/v1/payment_intents?customer=cus_a"),
        ("1", "2"),
        (None, b"{}"),
    )
    found = [
        access(method, URL + target, {"Idempotency-Key": key}, body)
        for method, target, key, body in requests
    ]
    assert len({headers["Authorization"] for headers in found}) == len(found)
    for headers in found:
        assert (
            "/eu-west-1/lambda/aws4_request, SignedHeaders=host;idempotency-key;"
            in headers["Authorization"]
        )
        assert headers["X-Amz-Security-Token"] == "token"


def sent(bearer: Bearer) -> str:
    """Return what a request is authorised by."""
    headers = bearer("GET", URL, {"Idempotency-Key": "key"}, None)
    assert headers["Idempotency-Key"] == "key"
    return headers["Authorization"]


def test_a_secret_is_read_once_and_again_after_a_refusal() -> None:
    """A rotated secret needs no new process."""
    with mock_aws():
        manager = boto3.client("secretsmanager")
        secret = manager.create_secret(Name=NAME, SecretString="one\n")["ARN"]
        bearer = Bearer(secret)
        assert sent(bearer) == "Bearer one"
        manager.put_secret_value(SecretId=NAME, SecretString="two")
        assert sent(bearer) == "Bearer one"
        bearer.forget()
        assert sent(bearer) == "Bearer two"
        manager.put_secret_value(SecretId=NAME, SecretString="three")
        assert sent(bearer) == "Bearer two", "one refusal, one read"


def test_a_secret_is_read_again_when_it_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is not refused follows a rotation too."""
    now = datetime(2026, 11, 23)  # noqa: DTZ001 - Powertools' own

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:  # noqa: ARG003
            return cls(now.year, now.month, now.day, now.hour, now.minute, now.second)

    monkeypatch.setattr(base, "datetime", Clock)
    with mock_aws():
        manager = boto3.client("secretsmanager")
        bearer = Bearer(manager.create_secret(Name=NAME, SecretString="one")["ARN"])
        assert sent(bearer) == "Bearer one"
        manager.put_secret_value(SecretId=NAME, SecretString="two")
        now += timedelta(seconds=SECRET_AGE_S - 1)
        assert sent(bearer) == "Bearer one"
        now += timedelta(seconds=2)
        assert sent(bearer) == "Bearer two"


@pytest.mark.parametrize("text", [None, "two\nlines", "ü", b"binary"])
def test_a_secret_that_cannot_be_read_or_sent_is_a_passing_failure(
    text: str | bytes | None,
) -> None:
    """The request is not sent and the event is retried, until the secret is mended.

    The error names the parameter and not the secret.
    """
    with mock_aws():
        manager = boto3.client("secretsmanager")
        match text:
            case str():
                manager.create_secret(Name=NAME, SecretString=text)
            case bytes():
                manager.create_secret(Name=NAME, SecretBinary=text)
        bearer = Bearer(NAME)
        with pytest.raises(GatewayUnavailableError, match="PaymentGatewaySecretArn") as caught:
            sent(bearer)
        assert text is None or str(text) not in str(caught.value)
        if text is None:
            manager.create_secret(Name=NAME)
        manager.put_secret_value(SecretId=NAME, SecretString="mended")
        assert sent(bearer) == "Bearer mended"
