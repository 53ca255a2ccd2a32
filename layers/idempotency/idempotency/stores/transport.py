"""The seam between the store and DynamoDB: an operation's name and its request in, its answer out.

Anything that can be called like `Transport` will do: a client of another SDK, a fake, a recorder of round trips.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

_CONNECT_TIMEOUT_S: Final = 0.7
_READ_TIMEOUT_S: Final = 0.8
LONGEST_TRY_S: Final = _CONNECT_TIMEOUT_S + _READ_TIMEOUT_S
"""`Transport.longest_try_s` of `botocore_transport` with its default timeouts."""


class ServiceError(Exception):
    """Raised when DynamoDB answered with an error, or a request could not even be signed (``status`` 0).

    ``body`` is DynamoDB's answer, with the item that refused a condition.
    """

    def __init__(self, code: str, status: int, message: str, body: Mapping[str, Any]) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.status = status
        self.body = body


class NoAnswerError(Exception):
    """Raised when no answer came: the request may or may not have taken place."""


class Transport(Protocol):
    """Sends one request, once."""

    longest_try_s: float
    """After how many seconds a request without an answer is given up."""

    def __call__(self, operation: str, request: Mapping[str, Any], /) -> Mapping[str, Any]:
        """Send ``request`` and return the answer, both in DynamoDB's wire format.

        Raises:
            ServiceError: DynamoDB answered with an error, or the request was not sent for want of credentials.
            NoAnswerError: the connection failed, broke or timed out.
        """
        ...


class BotocoreTransport:
    """Sends through a botocore client that makes a single attempt: the store retries, since it knows the deadline."""

    def __init__(self, client: Any, longest_try_s: float) -> None:
        from botocore.exceptions import (
            ClientError,
            ConnectionError,  # noqa: A004 - botocore's name for it
            CredentialRetrievalError,
            HTTPClientError,
            NoCredentialsError,
            PartialCredentialsError,
        )
        from botocore.parsers import ResponseParserError

        self.longest_try_s = longest_try_s
        self._service_error: type[Any] = ClientError
        self._unsigned: tuple[type[Exception], ...] = (
            CredentialRetrievalError,
            NoCredentialsError,
            PartialCredentialsError,
        )
        self._no_answer: tuple[type[Exception], ...] = (HTTPClientError, ConnectionError, ResponseParserError)
        self._calls: dict[str, Callable[..., Mapping[str, Any]]] = {
            "GetItem": client.get_item,
            "PutItem": client.put_item,
            "TransactWriteItems": client.transact_write_items,
        }

    def __call__(self, operation: str, request: Mapping[str, Any], /) -> Mapping[str, Any]:
        """Send one request."""
        try:
            return self._calls[operation](**request)
        except self._service_error as error:
            answer = error.response
            details = answer["Error"]
            status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            raise ServiceError(details["Code"], status, details.get("Message", ""), answer) from error
        except self._unsigned as error:
            raise ServiceError(type(error).__name__, 0, str(error), {}) from error
        except self._no_answer as error:
            raise NoAnswerError(str(error)) from error


def botocore_transport(
    *, session: Any = None, connect_timeout_s: float = _CONNECT_TIMEOUT_S, read_timeout_s: float = _READ_TIMEOUT_S
) -> BotocoreTransport:
    """Make a transport over a new botocore client.

    ``session`` is a botocore session, for who needs another than the environment's profile, region or credentials.

    botocore's default timeouts of 60 seconds outlive most functions. Requests are not validated a second time on the
    client: the store makes them, and its tests run them against DynamoDB's rules.
    """
    from botocore.config import Config
    from botocore.session import get_session

    session = session or get_session()
    config = Config(
        user_agent=session.user_agent(),  # otherwise composed anew, twice, for every request: a quarter of its CPU
        connect_timeout=connect_timeout_s,
        read_timeout=read_timeout_s,
        retries={"mode": "standard", "total_max_attempts": 1},
        parameter_validation=False,
        max_pool_connections=20,
        tcp_keepalive=True,
    )
    client = session.create_client("dynamodb", config=config)
    return BotocoreTransport(client, connect_timeout_s + read_timeout_s)
