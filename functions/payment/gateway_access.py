"""How payment proves to its gateway who it is: not at all, with a signature, or with a secret."""

from typing import TYPE_CHECKING, Any, Final

from gateway import GatewayUnavailableError

if TYPE_CHECKING:
    from botocore.session import Session

type Headers = dict[str, str]

_TIMEOUTS: Final[dict[str, Any]] = {"connect_timeout": 1, "read_timeout": 3, "retries": {"total_max_attempts": 1}}


class Open:
    """Sends requests as they are."""

    longest_ms = 0
    """How long it can take to make the headers of a request."""

    def headers(self, method: str, url: str, headers: Headers, content: bytes | None) -> Headers:  # noqa: ARG002 - for others
        """Return the headers of a request; raise GatewayUnavailableError if they cannot be made now."""
        return headers

    def refused(self) -> None:
        """Take note of an answer of 401."""


class Signed(Open):
    """Signs requests to a Lambda function URL of a region with the credentials of the function's role."""

    def __init__(self, session: "Session", region: str) -> None:
        self._session: Any = session
        self._region = region

    def headers(self, method: str, url: str, headers: Headers, content: bytes | None) -> Headers:
        """Return the headers and the signature."""
        from botocore.auth import SigV4Auth  # noqa: PLC0415 - not every gateway needs it
        from botocore.awsrequest import AWSRequest  # noqa: PLC0415

        request: Any = AWSRequest(method, url, headers=headers, data=content)
        SigV4Auth(self._session.get_credentials(), "lambda", self._region).add_auth(request)
        return dict(request.headers.items())


class Bearer(Open):
    """Sends a secret of Secrets Manager, which it reads at the first request and again after a 401."""

    longest_ms = 4_000

    def __init__(self, session: "Session", secret_arn: str) -> None:
        self._session: Any = session
        self._arn = secret_arn
        self._client: Any = None
        self._secret = ""

    def headers(self, method: str, url: str, headers: Headers, content: bytes | None) -> Headers:  # noqa: ARG002 - for others
        """Return the headers and the secret."""
        self._secret = self._secret or self._read()
        return {**headers, "Authorization": f"Bearer {self._secret}"}

    def refused(self) -> None:
        """Forget the secret: it may have been rotated."""
        self._secret = ""

    def _read(self) -> str:
        from botocore.config import Config  # noqa: PLC0415 - not every gateway needs it
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

        self._client = self._client or self._session.create_client("secretsmanager", config=Config(**_TIMEOUTS))
        try:
            secret: str = self._client.get_secret_value(SecretId=self._arn).get("SecretString", "").strip()
        except (BotoCoreError, ClientError) as error:
            raise GatewayUnavailableError(f"the gateway's secret cannot be read: {error}") from error
        if not (secret and secret.isascii() and secret.isprintable()):
            raise GatewayUnavailableError("the gateway's secret is not one line of printable ASCII")
        return secret
