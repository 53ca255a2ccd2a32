"""The acceptance run of a deployed stack: every statement that only a deployment can prove, checked one by one.

    for result in verify(Deployment(stack), CHECKS):
        print(result.verdict, result.statement, result.detail)

`checks` has the statements that code can check; docs/on-an-account.md has those that a person has
to.
"""

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, NamedTuple

import boto3
import urllib3
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from ops.stack import FAILURES, OperatorError, StackRef, reason

_POLL_SECONDS: Final = 2.0
_ANSWER_SECONDS: Final = 30
_REFUSED: Final = 400


class FailedError(Exception):
    """A statement does not hold, and checking it cannot go on; the message says what is wrong."""


class SkippedError(Exception):
    """A statement cannot be checked here; the message says why."""


class Deployment:
    """A stack under verification.

    The simulator publishes so many rides, and a tenth of them are also booked over the API. Events
    may take ``wait`` seconds to reach their end.
    """

    def __init__(self, stack: StackRef, *, rides: int = 20, wait: float = 600) -> None:
        self.stack, self.rides = stack, rides
        self.began = datetime.now(UTC)
        self.client = stack.client
        self.wrong: list[str] = []
        """What is wrong by the check that runs."""
        self._wait = wait

    @cached_property
    def parameters(self) -> Mapping[str, str]:
        """The parameters that the stack was deployed with."""
        if (given := self.stack.parameters()) is None:
            raise OperatorError(f"there is no stack {self.stack.name} in {self.stack.region}")
        return given

    @cached_property
    def tables(self) -> Mapping[str, Any]:
        """DynamoDB's descriptions of the replicated tables, by logical id."""
        describe = self.client("dynamodb").describe_table
        names = self.stack.named("AWS::DynamoDB::GlobalTable")
        return {logical: describe(TableName=name)["Table"] for logical, name in names.items()}

    @property
    def functions(self) -> Mapping[str, str]:
        """The names of the functions, by logical id."""
        return self.stack.named("AWS::Lambda::Function")

    def require(self, only: Mapping[str, Collection[str]]) -> None:
        """Skip the check unless each of these parameters has one of its values."""
        for parameter, values in only.items():
            if self.parameters[parameter] not in values:
                raise SkippedError(f"{parameter} is {self.parameters[parameter] or 'not set'}")

    def until[T](self, what: str, look: Callable[[], T | None]) -> T:
        """Return the first answer that is true or not empty; raise `FailedError` with ``what`` if the time is up."""
        deadline = time.monotonic() + self._wait
        while time.monotonic() < deadline:
            if found := look():
                return found
            time.sleep(_POLL_SECONDS)
        raise FailedError(f"{what}, {self._wait:.0f} s after the check began")

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        key: str = "",
        sign: bool = True,
    ) -> tuple[int, Any]:
        """Send a request to the API, signed with the credentials of AWS's tools; return status and content."""
        headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key else {})
        url = self._api + path
        request = AWSRequest(method, url, headers=headers, data=json.dumps(body) if body else None)
        if sign:
            is_local = self.stack.local is not None
            known: Any = (
                Credentials("test", "test")
                if is_local
                else boto3.session.Session().get_credentials()
            )
            SigV4Auth(known, "execute-api", self.stack.region).add_auth(request)
        sent: dict[str, Any] = {
            "body": request.data,
            "headers": dict(request.headers),
            "timeout": _ANSWER_SECONDS,
        }
        try:
            answer = urllib3.request(method, url, **sent, retries=False)
        except urllib3.exceptions.HTTPError as error:
            raise FailedError(f"{url} does not answer: {error}") from error
        return answer.status, answer.json() if answer.status < _REFUSED else answer.data.decode(
            errors="replace"
        )

    @property
    def _api(self) -> str:
        """The API's URL; the local engine serves it below its own."""
        if self.parameters["Stage"] != "local":
            return self.stack.outputs["CarRideApiUrl"]
        endpoint = self.client("apigatewayv2").meta.endpoint_url
        return f"{endpoint}/_aws/execute-api/{self.stack.named('AWS::ApiGatewayV2::Api')['CarRideApi']}/$default"


class Verdict(StrEnum):
    """What came of a check."""

    PASSED = "pass"
    FAILED = "FAIL"
    SKIPPED = "skip"


class Check(NamedTuple):
    """A statement about a deployed stack, and the code that checks it."""

    statement: str
    run: Callable[[Deployment], str]
    """Returns what it found, and adds what is wrong to the deployment's list. May raise an
    exception of this module."""
    drill: bool = False
    """Whether it disrupts the stack for a while."""
    only: Mapping[str, tuple[str, ...]] = {}
    """Values of the template's parameters; with others the check is skipped."""


class Result(NamedTuple):
    """What came of a check, and why."""

    statement: str
    verdict: Verdict
    detail: str
    seconds: float


def verify(deployment: Deployment, checks: Iterable[Check]) -> Iterator[Result]:
    """Run checks in order, and yield each result. A check that fails does not stop those after it."""
    for each in checks:
        began, deployment.wrong, verdict = time.monotonic(), [], Verdict.PASSED
        try:
            deployment.require(each.only)
            detail = each.run(deployment)
        except SkippedError as error:
            verdict, detail = Verdict.SKIPPED, str(error)
        except (FailedError, *FAILURES) as error:
            deployment.wrong.append(reason(error))
        if deployment.wrong:
            verdict, detail = Verdict.FAILED, ", ".join(deployment.wrong)
        yield Result(each.statement, verdict, detail, time.monotonic() - began)


def to_json(results: Iterable[Result]) -> dict[str, Any]:
    """Return results as JSON-ready values, with the number of each verdict."""
    listed = list(results)
    counts = {
        verdict.name.lower(): sum(each.verdict is verdict for each in listed) for verdict in Verdict
    }
    return counts | {
        "checks": [each._asdict() | {"verdict": each.verdict.name.lower()} for each in listed]
    }


def to_markdown(results: Iterable[Result]) -> str:
    """Return results as a table in Markdown."""
    rows = (
        f"| {each.verdict} | {each.statement} | {each.detail.replace('|', '\\|')} |"
        for each in results
    )
    return "\n".join(["| result | statement | detail |", "| --- | --- | --- |", *rows, ""])
