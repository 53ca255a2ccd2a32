"""What checks need of a deployed stack: its parameters, its API, and a way to wait."""

import json
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final

import boto3
import urllib3
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from ops.stack import OperatorError, StackRef

_POLL_SECONDS: Final = 2.0
_ANSWER_SECONDS: Final = 30
_REFUSED: Final = 400


class FailedError(Exception):
    """A statement does not hold; the message says what is wrong."""


class SkippedError(Exception):
    """A statement cannot be checked here; the message says why."""


class Deployment:
    """A stack under verification.

    Args:
        stack: the stack.
        rides: how many rides the simulator publishes; a tenth of them are also booked over the API.
        wait: seconds that events may take to reach their end.
        sleep: pauses for a number of seconds.
    """

    def __init__(
        self, stack: StackRef, *, rides: int = 20, wait: float = 600, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.stack = stack
        self.rides = rides
        self.began = datetime.now(UTC)
        self._wait = wait
        self._sleep = sleep

    @cached_property
    def parameters(self) -> Mapping[str, str]:
        """The parameters that the stack was deployed with."""
        if (given := self.stack.parameters()) is None:
            raise OperatorError(f"there is no stack {self.stack.name} in {self.stack.region}")
        return given

    def require(self, only: Mapping[str, Collection[str]]) -> None:
        """Skip the check unless each of these parameters has one of its values."""
        for parameter, values in only.items():
            if self.parameters[parameter] not in values:
                raise SkippedError(f"{parameter} is {self.parameters[parameter] or 'not set'}")

    def until[T](self, what: str, look: Callable[[], T | None]) -> T:
        """Return the first answer that is true or not empty, of one look every few seconds.

        Raises:
            FailedError: the time is up; ``what`` is the reason.
        """
        deadline = time.monotonic() + self._wait
        while time.monotonic() < deadline:
            if found := look():
                return found
            self._sleep(_POLL_SECONDS)
        raise FailedError(f"{what}, {self._wait:.0f} s after the check began")

    def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, key: str = "", sign: bool = True
    ) -> tuple[int, Any]:
        """Send a request to the API, signed with the credentials of AWS's tools; return status and content."""
        headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key else {})
        url = self._api + path
        request = AWSRequest(method, url, headers=headers, data=json.dumps(body) if body else None)
        if sign:
            SigV4Auth(self._credentials(), "execute-api", self.stack.region).add_auth(request)
        sent: dict[str, Any] = {"body": request.data, "headers": dict(request.headers), "timeout": _ANSWER_SECONDS}
        try:
            answer = urllib3.request(method, url, **sent, retries=False)
        except urllib3.exceptions.HTTPError as error:
            raise FailedError(f"{url} does not answer: {error}") from error
        return answer.status, answer.json() if answer.status < _REFUSED else answer.data.decode(errors="replace")

    def _credentials(self) -> Any:
        if self.stack.local is not None:
            return Credentials("test", "test")
        return boto3.session.Session().get_credentials()

    @property
    def _api(self) -> str:
        """The API's URL; the local engine serves it below its own."""
        endpoint = self.stack.client("apigatewayv2").meta.endpoint_url
        if self.parameters["Stage"] != "local":
            return self.stack.outputs["CarRideApiUrl"]
        return f"{endpoint}/_aws/execute-api/{self.stack.named('AWS::ApiGatewayV2::Api')['CarRideApi']}/$default"
