"""The acceptance run of a deployed stack: every statement that only a deployment can prove, checked one by one.

    for result in verify(Deployment(stack), CHECKS):
        print(result.verdict, result.statement, result.detail)

`checks` has the statements that code can check; docs/on-an-account.md has those that a person has to.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from ops.stack import FAILURES, reason
from ops.verify.deployment import Deployment, FailedError, SkippedError

__all__ = ["CHECKS", "Check", "Deployment", "Result", "Verdict", "check", "to_json", "to_markdown", "verify"]


class Verdict(StrEnum):
    """What came of a check."""

    PASSED = "pass"
    FAILED = "FAIL"
    SKIPPED = "skip"


class Check(NamedTuple):
    """A statement about a deployed stack, and the code that checks it."""

    statement: str
    run: Callable[[Deployment], str]
    """Returns what it found. Raises `FailedError` or `SkippedError` with the reason."""
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


CHECKS: Final[list[Check]] = []


def check[F: Callable[[Deployment], str]](
    statement: str, *, drill: bool = False, **only: tuple[str, ...]
) -> Callable[[F], F]:
    """Register a function as the check of a statement; arguments as in `Check`."""

    def register(run: F) -> F:
        CHECKS.append(Check(statement, run, drill, only))
        return run

    return register


def verify(
    deployment: Deployment, checks: Iterable[Check], clock: Callable[[], float] = time.monotonic
) -> Iterator[Result]:
    """Run checks in order, and yield each result. A check that fails does not stop those after it."""
    for each in checks:
        began = clock()
        try:
            deployment.require(each.only)
            verdict, detail = Verdict.PASSED, each.run(deployment)
        except SkippedError as error:
            verdict, detail = Verdict.SKIPPED, str(error)
        except (FailedError, *FAILURES) as error:
            verdict, detail = Verdict.FAILED, reason(error)
        yield Result(each.statement, verdict, detail, clock() - began)


def to_json(results: Iterable[Result]) -> dict[str, Any]:
    """Return results as JSON-ready values, with the number of each verdict."""
    listed = list(results)
    counts = {verdict.name.lower(): sum(each.verdict is verdict for each in listed) for verdict in Verdict}
    return counts | {"checks": [each._asdict() | {"verdict": each.verdict.name.lower()} for each in listed]}


def to_markdown(results: Iterable[Result]) -> str:
    """Return results as a table in Markdown."""
    rows = (f"| {each.verdict} | {each.statement} | {each.detail.replace('|', '\\|')} |" for each in results)
    return "\n".join(["| result | statement | detail |", "| --- | --- | --- |", *rows, ""])
