"""What authorises requests to a gateway: a signature by AWS credentials, or a secret."""

from collections.abc import Callable
from typing import Any

from gateway import GatewayUnavailableError

type Headers = dict[str, str]
type Access = Callable[[str, str, Headers, bytes | None], Headers]
"""Takes method, URL, headers and content of a request; returns the headers that authorise it."""


def signed(session: Any, region: str) -> Access:
    """Return what signs requests to a Lambda function URL in a region.

    ``session`` is the botocore session that has the credentials.
    """

    def access(method: str, url: str, headers: Headers, content: bytes | None) -> Headers:
        from botocore.auth import SigV4Auth  # noqa: PLC0415 - not every gateway needs it
        from botocore.awsrequest import AWSRequest  # noqa: PLC0415

        request: Any = AWSRequest(method, url, headers=headers, data=content)
        SigV4Auth(session.get_credentials(), "lambda", region).add_auth(request)
        return dict(request.headers.items())

    return access


class Bearer:
    """Add a secret to requests.

    ``read`` returns the secret. It is called at the first request, and at the next one after
    `forget`.
    """

    def __init__(self, read: Callable[[], str]) -> None:
        self._read = read
        self._secret = ""

    def __call__(self, method: str, url: str, headers: Headers, content: bytes | None) -> Headers:  # noqa: ARG002 - Access
        """Return the headers and the secret."""
        self._secret = self._secret or self._read()
        return {**headers, "Authorization": f"Bearer {self._secret}"}

    def forget(self) -> None:
        """Forget the secret: the gateway refused it, so it may have been rotated."""
        self._secret = ""


def read_secret(session: Any, secret_arn: str) -> str:
    """Return a secret of Secrets Manager.

    Raises:
        GatewayUnavailableError: The secret cannot be read, or cannot be sent in a header.
    """
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - not every gateway needs it

    from carride.clients import SINGLE_ATTEMPT  # noqa: PLC0415

    client = session.create_client("secretsmanager", config=SINGLE_ATTEMPT)
    try:
        secret: str = client.get_secret_value(SecretId=secret_arn).get("SecretString", "").strip()
    except (BotoCoreError, ClientError) as error:
        raise GatewayUnavailableError(
            f"the secret of PaymentGatewaySecretArn cannot be read: {error}"
        ) from error
    if not (secret and secret.isascii() and secret.isprintable()):
        raise GatewayUnavailableError(
            "the secret of PaymentGatewaySecretArn is not one line of printable ASCII: store it again"
        )
    return secret
