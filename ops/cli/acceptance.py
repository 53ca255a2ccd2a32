"""The verb that checks a deployed stack."""

import json
from pathlib import Path
from typing import Annotated, Final

from ops.cli.show import as_fields
from ops.regions import ROOT
from ops.stack import OperatorError
from ops.verbs import COUNT, Plan, Session, Steps, acts
from ops.verify import Check, Deployment, Result, Verified, to_markdown, verify
from ops.verify.checks import CHECKS
from ops.verify.record import page, run_of

as_fields(Verified)
_RESULTS: Final = ROOT / ".aws-sam"


def _status_of(found: Verified) -> int:
    return found.status


@acts("verify", "--yes", "--drills --yes", "--record verified.md --yes", status=_status_of)
def verify_stack(
    session: Session,
    *,
    rides: Annotated[int, COUNT] = Deployment.RIDES,
    drills: bool = False,
    record: Path | None = None,
) -> Plan[Verified]:
    """Check every statement about a deployed stack that code can check.

    Publish simulated rides, book rides over the API, audit the stack, and look at what is deployed.
    With --drills, break and mend a few things as well. In stage prod, publish and break nothing.
    docs/on-an-account.md has the rest. The results are in .aws-sam/verify.json and
    .aws-sam/verify.md.

    Status 0: every check passed or does not apply; 1: at least one failed; 3: at least one could
    not be told, because a permission, an answer or time was missing.

    Args:
        rides: Number of simulated rides.
        drills: Also break and mend a few things.
        record: File for one page with account, region, commit, time and results, to attach to an
            issue.
    """
    checks = [each for each in CHECKS if drills or not each.drill]
    if record is not None and not record.absolute().parent.is_dir():
        raise OperatorError(f"{record.parent} is not a folder: make it, or give another --record")

    def examine() -> Verified:
        deployment = Deployment(session.stack, rides=rides)
        found = Verified(tuple(_said(session, deployment, checks)))
        _write(found)
        if record is not None:
            record.write_text(page(run_of(deployment), found.results), encoding="utf-8")
            session.say(f"{record} can be attached to an issue")
        return found

    steps = tuple(f"check: {each.statement}" for each in checks)
    return Plan(Steps(steps), examine, (session.stack,))


def _said(session: Session, deployment: Deployment, checks: list[Check]) -> list[Result]:
    """Run checks, show each result as it comes, and return all."""
    results = []
    for result in verify(deployment, checks):
        results.append(result)
        detail = f"{result.detail} ({result.seconds:.1f} s)"
        session.say(f"{result.verdict}  {result.statement}\n      {detail}")
    return results


def _write(found: Verified) -> None:
    """Write results as JSON and as Markdown."""
    _RESULTS.mkdir(exist_ok=True)
    text = json.dumps(found.to_json(), indent=2)
    (_RESULTS / "verify.json").write_text(text, encoding="utf-8")
    (_RESULTS / "verify.md").write_text(to_markdown(found.results), encoding="utf-8")
