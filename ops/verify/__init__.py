"""The acceptance run of a deployed stack: every statement that only a deployment can prove.

    for result in verify(Deployment(stack), CHECKS):
        print(result.verdict, result.statement, result.detail)

`checks` has the statements that code can check; docs/on-an-account.md has those that a person has
to.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, NamedTuple

from botocore.exceptions import BotoCoreError, ClientError

from ops.api import Api
from ops.stack import OperatorError, StackRef, reason

_POLL_SECONDS: Final = 2.0
_NOT_ASKED: Final = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "AuthFailure",
        "AuthorizationError",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidClientTokenId",
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "RequestExpired",
        "RequestLimitExceeded",
        "SignatureDoesNotMatch",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
        "UnauthorizedOperation",
        "UnrecognizedClientException",
    }
)
"""AWS's codes for a question that it did not answer. They say nothing about the stack."""
_AWS_FAILED: Final = 500
"""AWS's own failures have this status or a higher one."""


class FailedError(Exception):
    """A statement does not hold, and checking it cannot go on; the message says what is wrong."""


class CannotTellError(Exception):
    """A statement could not be checked to its end; the message says why, and what to do."""


class SkippedError(Exception):
    """A statement is not about this stack; the message says why."""


class Deployment:
    """A stack under verification.

    The simulator publishes so many rides, and a tenth of them are also booked over the API. Events
    may take ``wait`` seconds to reach their end.
    """

    RIDES: Final = 20
    """As many rides as are simulated by default."""

    def __init__(self, stack: StackRef, *, rides: int = RIDES, wait: float = 600) -> None:
        self.stack = stack
        self.rides = rides
        self.began = datetime.now(UTC)
        self.client = stack.client
        self.api = Api(stack)
        self.wrong: list[str] = []
        """What is wrong by the check that runs."""
        self.untold: list[str] = []
        """What the check that runs cannot tell."""
        self._wait = wait

    @cached_property
    def parameters(self) -> Mapping[str, str]:
        """The parameters that the stack was deployed with."""
        given = self.stack.parameters()
        if given is None:
            raise OperatorError(
                f"there is no stack {self.stack.name} in {self.stack.region}: "
                "give --stack and --region"
            )
        return given

    @cached_property
    def tables(self) -> Mapping[str, Any]:
        """DynamoDB's descriptions of the replicated tables, by logical id."""
        dynamodb = self.client("dynamodb")
        found = {}
        for logical, name in self.stack.named("AWS::DynamoDB::GlobalTable").items():
            answer = dynamodb.describe_table(TableName=name)
            found[logical] = answer["Table"]
        return found

    @cached_property
    def configurations(self) -> Mapping[str, Any]:
        """What Lambda says of the functions as they were deployed last, by logical id."""
        functions = self.client("lambda")
        found = {}
        for logical, name in self.functions.items():
            found[logical] = functions.get_function_configuration(FunctionName=name)
        return found

    @property
    def functions(self) -> Mapping[str, str]:
        """The names of the functions, by logical id."""
        return self.stack.named("AWS::Lambda::Function")

    @property
    def stage(self) -> str:
        """The parameter ``Stage``: ``local``, ``dev`` or ``prod``."""
        return self.parameters["Stage"]

    def require(self, only: Mapping[str, Collection[str]]) -> None:
        """Skip the check unless each of these parameters has one of its values."""
        for parameter, values in only.items():
            given = self.parameters[parameter]
            if given not in values:
                raise SkippedError(f"{parameter} is {given or 'not set'}")

    def until[T](self, what: str, look: Callable[[], T | None]) -> T:
        """Return the first answer that is true or not empty.

        Raises:
            FailedError: with ``what``, when the time is up.
        """
        deadline = time.monotonic() + self._wait
        while time.monotonic() < deadline:
            found = look()
            if found:
                return found
            left = max(0.0, deadline - time.monotonic())
            time.sleep(min(_POLL_SECONDS, left))
        raise FailedError(f"{what}, {self._wait:.0f} s after the check began")


class Checked(StrEnum):
    """What came of a check."""

    PASSED = "pass"
    FAILED = "FAIL"
    UNTOLD = "cannot tell"
    """It could not be checked to its end: a permission, an answer or time is missing."""
    SKIPPED = "skip"
    """The statement is not about this stack."""


class Check(NamedTuple):
    """A statement about a deployed stack, and the code that checks it."""

    statement: str
    examine: Callable[[Deployment], str]
    """Returns what it found, and adds what is wrong or untold to the deployment's lists. May raise
    an exception of this module."""
    drill: bool = False
    """Whether it disrupts the stack for a while."""
    only: Mapping[str, tuple[str, ...]] = {}
    """Values of the template's parameters; with others the check is skipped."""


class Result(NamedTuple):
    """What came of a check, and why."""

    statement: str
    verdict: Checked
    detail: str
    seconds: float


def verify(deployment: Deployment, checks: Iterable[Check]) -> Iterator[Result]:
    """Run checks in order, and yield each result. One that fails does not stop those after it."""
    for check in checks:
        began = time.monotonic()
        verdict, detail = _outcome(deployment, check)
        yield Result(check.statement, verdict, detail, time.monotonic() - began)


def _outcome(deployment: Deployment, check: Check) -> tuple[Checked, str]:
    """Run a check, and return its verdict and why. What is wrong counts before what is untold."""
    deployment.wrong = []
    deployment.untold = []
    detail = ""
    try:
        deployment.require(check.only)
        detail = check.examine(deployment)
    except SkippedError as error:
        return Checked.SKIPPED, str(error)
    except CannotTellError as error:
        deployment.untold.append(str(error))
    except FailedError as error:
        deployment.wrong.append(str(error))
    except OperatorError as error:
        told = deployment.untold if _is_unanswered(error.__cause__) else deployment.wrong
        told.append(str(error))
    except BotoCoreError as error:
        deployment.untold.append(reason(error))
    except ClientError as error:
        told = deployment.untold if _is_unanswered(error) else deployment.wrong
        told.append(reason(error))
    if deployment.wrong:
        return Checked.FAILED, ", ".join(deployment.wrong)
    if deployment.untold:
        return Checked.UNTOLD, ", ".join(deployment.untold)
    return Checked.PASSED, detail


def _is_unanswered(error: BaseException | None) -> bool:
    """Return whether an error of AWS refused the question rather than answered it."""
    if not isinstance(error, ClientError):
        return False
    if error.response["Error"]["Code"] in _NOT_ASKED:
        return True
    answer = error.response.get("ResponseMetadata", {})
    return answer.get("HTTPStatusCode", 0) >= _AWS_FAILED


class Verified(NamedTuple):
    """The results of all checks."""

    results: tuple[Result, ...]

    @property
    def status(self) -> int:
        """The exit status: 1 if a check failed, 3 if one cannot tell."""
        verdicts = {each.verdict for each in self.results}
        if Checked.FAILED in verdicts:
            return 1
        if Checked.UNTOLD in verdicts:
            return 3
        return 0

    def to_json(self) -> dict[str, Any]:
        """Return the results as JSON-ready values, with the number of each verdict."""
        checks = list[dict[str, Any]]()
        numbers = {verdict.name.lower(): 0 for verdict in Checked}
        for each in self.results:
            verdict = each.verdict.name.lower()
            numbers[verdict] += 1
            checks.append(each._asdict() | {"verdict": verdict})
        return {**numbers, "checks": checks}


def to_markdown(results: Iterable[Result]) -> str:
    """Return results as a table in Markdown."""
    lines = ["| result | statement | detail |", "| --- | --- | --- |"]
    for each in results:
        detail = each.detail.replace("|", "\\|")
        lines.append(f"| {each.verdict} | {each.statement} | {detail} |")
    return "\n".join([*lines, ""])
