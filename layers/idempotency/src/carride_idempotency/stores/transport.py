"""Transports, which send requests to DynamoDB.

Anything that can be called like `Transport` will do: a client of another SDK, a fake, a recorder of
round trips.
"""

import os
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from carride_idempotency.errors import ConfigurationError
from carride_idempotency.forks import renew_client, renew_in_children

BOTOCORE_USED: Final = "DynamoDB is reached through botocore"
"""Begins the warning of a process in which the choice is ``auto`` and only botocore will do."""

CONNECT_TIMEOUT_S: Final = 0.7
READ_TIMEOUT_S: Final = 0.8
MOST_CONNECTIONS: Final = 30
"""Of one client of botocore's: as many threads can send a request at the same time."""
_OK: Final = 200


_OF_THE_SIGNATURE: Final = ("authorization", "x-amz-security-token", "aws4-hmac")


def _shown(message: str) -> str:
    """Return a message as it may be shown: not if it repeats what signs a request."""
    lower = message.lower()
    if any(part in lower for part in _OF_THE_SIGNATURE):
        return "what was answered repeats the signed request, so it is not shown"
    return message


class ServiceError(Exception):
    """Raised when DynamoDB answered with an error, or a request could not be signed.

    ``body`` is the answer; ``status`` is 0 for a request that was not sent. A message that repeats
    the headers of the request is left out of the error's text: they have the session token.
    """

    def __init__(self, code: str, status: int, message: str, body: Mapping[str, Any]) -> None:
        super().__init__(f"{code}: {_shown(message)}")
        self.code = code
        self.status = status
        self.body = body


class NoAnswerError(Exception):
    """Raised when no answer came: the request may or may not have taken place."""


class Transport(Protocol):
    """Sends one request, once."""

    longest_try_s: float
    """The seconds after which a request without an answer ends."""

    def __call__(self, operation: str, request: Mapping[str, Any], /) -> Mapping[str, Any]:
        """Send ``request`` and return the answer, both in DynamoDB's wire format.

        Raises:
            ServiceError: DynamoDB answered with an error, or the request was not sent for want of
                credentials.
            NoAnswerError: the connection failed, broke or timed out.
        """
        ...


class BotocoreTransport:
    """Sends through a botocore client that tries once.

    The store retries, because it knows the deadline.
    """

    def __init__(self, client: Any, longest_try_s: float) -> None:
        from botocore import exceptions, parsers, xform_name

        self.longest_try_s = longest_try_s
        self._service_error: type[Any] = exceptions.ClientError
        self._unsigned = (
            exceptions.CredentialRetrievalError,
            exceptions.NoCredentialsError,
            exceptions.PartialCredentialsError,
        )
        self._no_answer = (
            exceptions.HTTPClientError,
            exceptions.ConnectionError,
            parsers.ResponseParserError,
        )
        self._client = client
        self._method = xform_name
        renew_in_children(self, renew_client)

    def __call__(self, operation: str, request: Mapping[str, Any], /) -> Mapping[str, Any]:
        """Send one request."""
        call: Callable[..., Mapping[str, Any]] = getattr(self._client, self._method(operation))
        try:
            return call(**request)
        except self._service_error as error:
            details = error.response["Error"]
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            # Botocore's error would show what `ServiceError` does not.
            raise ServiceError(
                details["Code"], status, details.get("Message", ""), error.response
            ) from None
        except self._unsigned as error:
            raise ServiceError(type(error).__name__, 0, str(error), {}) from None
        except self._no_answer as error:
            raise NoAnswerError(_shown(str(error))) from None
        except UnicodeDecodeError:
            raise NoAnswerError("the answer is not text") from None


def _require_whole(http_response: Any, **_: Any) -> None:
    """Refuse an answer that was cut, damaged or not DynamoDB's: botocore would find "no record"."""
    content = http_response.content
    if http_response.status_code == _OK and not content.startswith(b"{"):
        raise NoAnswerError("the answer is not a JSON object")
    length = http_response.headers.get("content-length", len(content))
    checksum = http_response.headers.get("x-amz-crc32", zlib.crc32(content))
    if int(length) != len(content) or int(checksum) != zlib.crc32(content):
        raise NoAnswerError("the answer was cut or damaged")


def region_of(session: Any) -> str:
    """Return the region of a session, or the one of ``AWS_REGION``, which botocore does not read.

    Raises:
        ConfigurationError: no region is known.
    """
    region: str | None = session.get_config_variable("region") or os.environ.get("AWS_REGION")
    if region is None:
        raise ConfigurationError(
            "the region of AWS is not known: set AWS_REGION, or the region of a profile"
        )
    return region


def botocore_transport(
    *,
    session: Any = None,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    read_timeout_s: float = READ_TIMEOUT_S,
) -> Transport:
    """Make a transport over a new botocore client, by default of the environment's session.

    The timeouts are short, because botocore's default of 60 seconds outlives most functions. The
    client does not validate requests: the store makes them, and its tests send them to DynamoDB.

    Raises:
        ConfigurationError: no region is known.
    """
    from botocore.config import Config
    from botocore.session import get_session

    session = session or get_session()
    region = region_of(session)
    config = Config(
        # Otherwise composed twice for every request, a quarter of its CPU.
        user_agent=session.user_agent(),
        connect_timeout=connect_timeout_s,
        read_timeout=read_timeout_s,
        retries={"mode": "standard", "total_max_attempts": 1},
        parameter_validation=False,
        max_pool_connections=MOST_CONNECTIONS,
        tcp_keepalive=True,
    )
    client = session.create_client("dynamodb", region_name=region, config=config)
    client.meta.events.register("after-call.dynamodb", _require_whole)
    return BotocoreTransport(client, connect_timeout_s + read_timeout_s)
