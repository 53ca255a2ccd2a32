"""Authorised requests to a gateway: signatures hold, and secrets rotate."""

from datetime import datetime
from functools import partial
from itertools import product
from typing import Final

import boto3
import pytest
from botocore.session import get_session
from moto import mock_aws

from gateway import GatewayUnavailableError
from gateway_access import Bearer, read_secret, signed

NAME: Final = "gateway"
URL: Final = "https://abc.lambda-url.eu-west-1.on.aws"


def test_a_function_url_can_verify_what_it_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signature is of the whole request, host, key and body included, for Lambda in this region."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: datetime(2026, 11, 22))  # noqa: DTZ001 - botocore's
    access = signed(get_session(), "eu-west-1")
    requests = product(
        ("GET", "POST"), ("/payments", "/payments?reference=order_01"), ("1", "2"), (None, b"{}")
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
    """The request is not sent and the event is retried.

    The error names the parameter and not the secret.
    """
    with mock_aws():
        if text is not None:
            boto3.client("secretsmanager").create_secret(Name=NAME, SecretString=text)
        with pytest.raises(GatewayUnavailableError, match="PaymentGatewaySecretArn") as caught:
            read_secret(get_session(), NAME)
    assert text is None or text not in str(caught.value)
