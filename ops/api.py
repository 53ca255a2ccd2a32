"""Requests to the API of a deployed stack: signed, with a token, or without credentials."""

import json
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import boto3
import urllib3
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError, NoCredentialsError

from ops.stack import OperatorError, StackRef, reason

STAFF_ROLE: Final = "StaffRoleArn"
"""The output with the role that staff assume; only a stack that makes the role has it."""
_THIS_MACHINE: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_SESSION: Final = "carride-operator"
_ANSWER_SECONDS: Final = 30
_REFUSED: Final = 400

type Authorize = Callable[[AWSRequest], None]
"""Adds to a request what says who sends it."""


class NoAnswerError(OperatorError):
    """The API did not answer. Nobody knows whether the request had an effect."""


class ApiAnswer(NamedTuple):
    """What the API answered: the status, and the content of JSON, or the text of a refusal."""

    status: int
    content: Any


class Api:
    """The API of a stack."""

    def __init__(self, stack: StackRef) -> None:
        self._stack = stack

    @cached_property
    def _knows_nobody(self) -> bool:
        """Whether the stage is `local`, in which every caller is staff."""
        return (self._stack.parameters() or {}).get("Stage") == "local"

    @cached_property
    def url(self) -> str:
        """The API's URL; the local engine serves it below its own."""
        endpoint = self._stack.client("apigatewayv2").meta.endpoint_url
        if urlsplit(endpoint).hostname not in _THIS_MACHINE:
            return self._stack.outputs["CarRideApiUrl"]
        api = self._stack.named("AWS::ApiGatewayV2::Api")["CarRideApi"]
        return f"{endpoint}/_aws/execute-api/{api}/$default"

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        key: str = "",
        authorize: Authorize,
    ) -> ApiAnswer:
        """Send a request, with ``key`` as its Idempotency-Key.

        Raises:
            NoAnswerError: the API did not answer.
        """
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Idempotency-Key"] = key
        content = json.dumps(body) if body else None
        url = self.url + path
        request = AWSRequest(method, url, headers=headers, data=content)
        authorize(request)
        try:
            answer = urllib3.request(
                method,
                url,
                body=request.data,
                headers=dict(request.headers),
                timeout=_ANSWER_SECONDS,
                retries=False,
            )
        except urllib3.exceptions.HTTPError as error:
            raise NoAnswerError(f"{url} does not answer: {error}") from error
        if answer.status < _REFUSED:
            return ApiAnswer(answer.status, answer.json())
        return ApiAnswer(answer.status, answer.data.decode(errors="replace"))

    def customer(self, token: str | None = None) -> Authorize:
        """Return what authorizes a customer: a token, or a signature with your own credentials."""
        if token is not None:
            return bearer(token)
        return self._signature(self._own_credentials())

    @cached_property
    def staff(self) -> Authorize:
        """Signs as the stack's staff role; as yourself if the stack makes no such role.

        Raises:
            OperatorError: you may not assume the role.
        """
        role = self._stack.outputs.get(STAFF_ROLE)
        if not role or self._knows_nobody:
            return self.customer()
        try:
            assumed = self._stack.client("sts").assume_role(RoleArn=role, RoleSessionName=_SESSION)
        except ClientError as error:
            raise OperatorError(
                f"you may not act as staff, who assume {role}: you need a policy that allows it. "
                f"{reason(error)}"
            ) from error
        given = assumed["Credentials"]
        return self._signature(
            Credentials(given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"])
        )

    def _own_credentials(self) -> Credentials:
        if self._knows_nobody:
            return Credentials("test", "test")  # the engine's own
        found: Any = boto3.session.Session().get_credentials()
        if found is None:
            raise NoCredentialsError
        return Credentials(*found.get_frozen_credentials()[:3])

    def _signature(self, credentials: Credentials) -> Authorize:
        signer: Any = SigV4Auth(credentials, "execute-api", self._stack.region)

        def sign(request: AWSRequest) -> None:
            signer.add_auth(request)

        return sign


def bearer(token: str) -> Authorize:
    """Return what authorizes the holder of a token of the JWT issuer."""

    def add_token(request: AWSRequest) -> None:
        request.headers["Authorization"] = f"Bearer {token}"

    return add_token


def nobody(_request: AWSRequest) -> None:
    """Send a request without credentials."""
