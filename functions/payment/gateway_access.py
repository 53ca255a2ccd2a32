"""How payment proves to its gateway who it is: not at all, with a signature, or with a secret."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gateway import GatewayUnavailableError

if TYPE_CHECKING:
    from botocore.session import Session

type Headers = dict[str, str]

_CONNECT_TIMEOUT_S = 1
_READ_TIMEOUT_S = 3


class Open:
    """Sends requests as they are.

    Attributes:
        longest_ms: How long it can take to get ready for a request.
    """

    longest_ms = 0

    def headers(self, method: str, url: str, headers: Headers, content: bytes | None) -> Mapping[str, str]:  # noqa: ARG002 - of the others
        """Return the headers of a request.

        Raises:
            GatewayUnavailableError: they could not be made.
        """
        return headers

    def refused(self) -> None:
        """Take note that the gateway answered a request with 401."""


class Signed(Open):
    """Signs requests to a Lambda function URL with the credentials of the function's role (Signature Version 4)."""

    def __init__(self, session: "Session", region: str) -> None:
        self._session = session
        self._region = region

    def headers(self, method: str, url: str, headers: Headers, content: bytes | None) -> Mapping[str, str]:
        """Return the headers of a request and its signature."""
        from botocore.auth import SigV4Auth  # noqa: PLC0415 - only this gateway needs it
        from botocore.awsrequest import AWSRequest  # noqa: PLC0415

        credentials: Any = self._session.get_credentials()
        request: Any = AWSRequest(method, url, headers=headers, data=content)
        SigV4Auth(credentials, "lambda", self._region).add_auth(request)
        return dict(request.headers.items())


class Bearer(Open):
    """Sends a secret of Secrets Manager, which it reads at the first request and again after a 401.

    Args:
        session: makes the client.
        secret_arn: the secret; its text is sent as it is, in one line of printable ASCII.
    """

    longest_ms = 1000 * (_CONNECT_TIMEOUT_S + _READ_TIMEOUT_S)

    def __init__(self, session: "Session", secret_arn: str) -> None:
        self._session = session
        self._arn = secret_arn
        self._client: Any = None
        self._secret: str | None = None

    def headers(self, method: str, url: str, headers: Headers, content: bytes | None) -> Mapping[str, str]:  # noqa: ARG002 - of the others
        """Return the headers of a request and the secret."""
        self._secret = self._secret or self._read()
        return {**headers, "Authorization": f"Bearer {self._secret}"}

    def refused(self) -> None:
        """Forget the secret: it may have been rotated."""
        self._secret = None

    def _read(self) -> str:
        from botocore.config import Config  # noqa: PLC0415 - once in a process, and not for every gateway
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

        if self._client is None:
            config = Config(
                connect_timeout=_CONNECT_TIMEOUT_S, read_timeout=_READ_TIMEOUT_S, retries={"total_max_attempts": 1}
            )
            self._client = self._session.create_client("secretsmanager", config=config)
        try:
            secret: str = self._client.get_secret_value(SecretId=self._arn).get("SecretString", "").strip()
        except (BotoCoreError, ClientError) as error:
            raise GatewayUnavailableError(f"the gateway's secret cannot be read: {error}") from error
        if not (secret and secret.isascii() and secret.isprintable()):
            raise GatewayUnavailableError("the gateway's secret is not one line of printable ASCII")
        return secret
