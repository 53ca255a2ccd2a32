"""What authorises requests to a gateway: a signature by AWS credentials, or a secret."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from carride.forks import renew_credentials, renew_in_children
from gateway import GatewayUnavailableError

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.parameters import SecretsProvider

SECRET_AGE_S: Final = 900
"""For so long a secret is used before it is read again. A refused one is read at once."""

type Headers = dict[str, str]
type Access = Callable[[str, str, Headers, bytes | None], Headers]
"""Takes method, URL, headers and content of a request; returns the headers that authorise it."""


def signed(session: Any, region: str) -> Access:
    """Return what signs requests to a Lambda function URL in a region.

    ``session`` is the botocore session that has the credentials.
    """
    renew_in_children(session, renew_credentials)

    def access(method: str, url: str, headers: Headers, content: bytes | None) -> Headers:
        from botocore.auth import SigV4Auth  # noqa: PLC0415 - not every gateway needs it
        from botocore.awsrequest import AWSRequest  # noqa: PLC0415

        request: Any = AWSRequest(method, url, headers=headers, data=content)
        SigV4Auth(session.get_credentials(), "lambda", region).add_auth(request)
        return dict(request.headers.items())

    return access


class Bearer:
    """Add a secret of Secrets Manager to requests.

    It is read at the first request, and again once it is `SECRET_AGE_S` old, or after `forget`.

    Args:
        secret_arn: the secret's ARN or name.
    """

    def __init__(self, secret_arn: str) -> None:
        self._secret_arn = secret_arn
        self._secrets: SecretsProvider | None = None
        self._must_read = False
        renew_in_children(self, Bearer._renew)

    def _renew(self) -> None:
        self._secrets = None

    def __call__(self, method: str, url: str, headers: Headers, content: bytes | None) -> Headers:  # noqa: ARG002 - Access
        """Return the headers and the secret.

        Raises:
            GatewayUnavailableError: The secret cannot be read, or cannot be sent in a header.
        """
        secret = self._read()
        if not _is_sendable(secret):
            self.forget()  # it may have been stored again when the event comes again
            raise GatewayUnavailableError(
                "the secret of PaymentGatewaySecretArn is not one line of printable ASCII: "
                "store it again"
            )
        self._must_read = False
        return {**headers, "Authorization": f"Bearer {secret}"}

    def forget(self) -> None:
        """Have the secret read anew: the gateway refused it, so it may have been rotated."""
        self._must_read = True

    def _read(self) -> str:
        from aws_lambda_powertools.utilities.parameters import SecretsProvider  # noqa: PLC0415 - not every gateway needs it
        from aws_lambda_powertools.utilities.parameters.exceptions import GetParameterError  # noqa: PLC0415

        from carride.clients import SINGLE_ATTEMPT  # noqa: PLC0415

        if self._secrets is None:
            self._secrets = SecretsProvider(boto_config=SINGLE_ATTEMPT)
        try:
            secret = self._secrets.get(
                self._secret_arn, max_age=SECRET_AGE_S, force_fetch=self._must_read
            )
        except GetParameterError as error:
            raise GatewayUnavailableError(
                f"the secret of PaymentGatewaySecretArn cannot be read: {error}"
            ) from error
        return secret.strip() if isinstance(secret, str) else ""


def _is_sendable(secret: str) -> bool:
    """Return whether a header can hold a secret."""
    return secret != "" and secret.isascii() and secret.isprintable()
