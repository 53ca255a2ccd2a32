"""What failures say: nothing that signs a request, whoever repeats it."""

import json
import logging
import re
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

import pytest

from carride_idempotency import DynamoDBStore
from carride_idempotency.clock import epoch_ms
from carride_idempotency.errors import StoreError
from carride_idempotency.stores.lean import Guarded, LeanTransport
from carride_idempotency.stores.signing import ContainerCredentials, Credentials
from carride_idempotency.stores.transport import ServiceError, Transport, botocore_transport
from tests.stores.test_lean_transport import TIMEOUTS, Answer, Service, answer

pytestmark = pytest.mark.integration

SECRET: Final = "secret+of/the+access/key"  # noqa: S105 - of this test
TOKEN: Final = "session+token/of/a+role"  # noqa: S105 - of this test
AGENTS_TOKEN: Final = "token+for/the+agent"  # noqa: S105 - of this test
CODES: Final = (
    "AccessDeniedException",
    "ConditionalCheckFailedException",
    "ExpiredTokenException",
    "IncompleteSignatureException",
    "InternalServerError",
    "InvalidSignatureException",
    "MissingAuthenticationTokenException",
    "RequestExpired",
    "ResourceNotFoundException",
    "SignatureDoesNotMatch",
    "ThrottlingException",
    "TransactionCanceledException",
    "UnrecognizedClientException",
    "ValidationException",
)


def lines_of(exchange: BaseHTTPRequestHandler) -> str:
    """Return the headers that were received, as AWS repeats them."""
    return "\n".join(f"{name.lower()}:{value}" for name, value in exchange.headers.items())


def refusing(code: str, status: int = 400) -> Answer:
    """Refuse a request as AWS refuses a signature: with the canonical string."""

    def refuse(exchange: BaseHTTPRequestHandler) -> None:
        message = f"The Canonical String should have been\n'POST\n/\n\n{lines_of(exchange)}'"
        now = format_datetime(datetime.now(UTC), usegmt=True)
        body = {"__type": f"com.amazon.coral.service#{code}", "message": message}
        exchange.wfile.write(answer(body, status, f"Date: {now}"))

    return refuse


def repeating(begin: bytes, status: int | None = None) -> Answer:
    """Answer with the headers in one line, as it is or as the content of an answer."""

    def repeat(exchange: BaseHTTPRequestHandler) -> None:
        content = begin + lines_of(exchange).replace("\n", " ").encode()
        exchange.wfile.write(content if status is None else answer(content, status))

    return repeat


ANSWERS: Final[dict[str, Answer]] = {
    **{code: refusing(code) for code in CODES},
    "a server's error": refusing("InternalFailure", 500),
    "a page": repeating(b"<html>", 200),
    "a page that refuses": repeating(b"<html>", 403),
    "a page of a server's error": repeating(b"<html>", 503),
    "not HTTP": repeating(b""),
    "not UTF-8": repeating(b"\xff", 200),
}
WHOLE: Final = (b"", b"[]", b"null")
CREDENTIALS: Final[dict[str, dict[str, Any]]] = {
    "no secret": {"SecretAccessKey": None},
    "no expiry": {"Expiration": None},
    "another expiry": {"Expiration": SECRET},
    "a number": {"SecretAccessKey": 5},
    "a list": {"Token": [TOKEN]},
    "no key": {"AccessKeyId": None},
}


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A service, and an environment whose credentials are secret."""
    with Service().running() as running:
        for name, value in {
            "AWS_ENDPOINT_URL": running.url,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_SESSION_TOKEN": TOKEN,
        }.items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture(params=["lean", "botocore", "auto"])
def transport(request: pytest.FixtureRequest, service: Service) -> Iterator[Transport]:
    lean = lean_transport(service, Credentials("test", SECRET, TOKEN))
    botocore: Any = botocore_transport(**TIMEOUTS)
    guarded = Guarded(lean, lambda: botocore)
    kinds: dict[str, Transport] = {"lean": lean, "botocore": botocore, "auto": guarded}
    yield kinds[request.param]
    lean.close()
    botocore._client.close()  # noqa: SLF001 - a function's is never closed


def lean_transport(service: Service, credentials: Any) -> LeanTransport:
    """Return a lean transport with given credentials, or with what returns them."""
    get = credentials if callable(credentials) else lambda **_: credentials
    timeouts: Any = TIMEOUTS
    return LeanTransport(service.url, "us-east-1", get, **timeouts)


def said(transport: Transport, caplog: pytest.LogCaptureFixture) -> str:
    """Return what a failing request logs, and what is printed of its error."""
    store = DynamoDBStore("Idempotency", transport=transport, sleep=lambda _: None)
    caplog.clear()
    with caplog.at_level(logging.INFO), pytest.raises((StoreError, ServiceError)) as failed:
        store.read("history#k1")
    return caplog.text + "".join(traceback.format_exception(failed.value))


def assert_silent(text: str, service: Service) -> None:
    """Assert that a text has nothing that signs a request."""
    for secret in (SECRET, TOKEN, AGENTS_TOKEN, "AWS4-HMAC-SHA256"):
        assert secret not in text
    for headers, _ in service.requests:
        for signature in re.findall("Signature=([0-9a-f]+)", headers.get("authorization", "")):
            assert signature not in text


@pytest.mark.parametrize("reply", ANSWERS.values(), ids=ANSWERS)
def test_no_failure_says_what_signs_a_request(
    service: Service, transport: Transport, reply: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither secret, session token nor signature is in a log line or an error with its causes."""
    service.answers += [reply] * 30
    assert_silent(said(transport, caplog), service)
    assert service.requests


@pytest.mark.parametrize(
    "damage", [*CREDENTIALS.values(), b"\xff", b"{", b"null", b"[]", b""], ids=str
)
def test_credentials_that_cannot_be_read_are_named_and_not_repeated(
    service: Service, damage: dict[str, Any] | bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The error advises to look where they come from, and not at the table."""
    found = {"AccessKeyId": "test", "SecretAccessKey": SECRET, "Token": TOKEN}
    found["Expiration"] = "2100-01-01T00:00:00Z"
    if isinstance(damage, bytes):
        reply = answer(damage if damage in WHOLE else damage + json.dumps(found).encode())
    else:
        reply = answer(found | damage)
    service.answers.append(reply)
    environment = {"AWS_CONTAINER_AUTHORIZATION_TOKEN": AGENTS_TOKEN}
    credentials = ContainerCredentials(f"{service.url}/credentials", environment, epoch_ms)
    text = said(lean_transport(service, credentials), caplog)
    assert_silent(text, service)
    *_, last = text.splitlines()
    assert "check where the function's credentials come from" in last
    assert "table" not in last


def test_a_token_for_the_agent_that_cannot_be_sent_is_not_repeated(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    """It may have a line break, as of a file."""
    environment = {"AWS_CONTAINER_AUTHORIZATION_TOKEN": f"{AGENTS_TOKEN}\nmore"}
    credentials = ContainerCredentials(f"{service.url}/credentials", environment, epoch_ms)
    assert_silent(said(lean_transport(service, credentials), caplog), service)


def test_credentials_that_cannot_be_sent_are_not_repeated(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    """HTTP has no such letters."""
    credentials = Credentials("test", SECRET, f"{TOKEN}\u2603")
    assert_silent(said(lean_transport(service, credentials), caplog), service)
