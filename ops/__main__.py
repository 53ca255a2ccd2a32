"""The operator's commands: ``python -m ops``, or ``make ops ARGS=…``."""

import argparse
import inspect
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from carride.overdue import LIMIT
from ops import fence, fleet, outbox, redrive, replay, verify
from ops import regions as two_regions
from ops.audit import DEFAULT_GRACE, audit, gateway_payments
from ops.failover import ARCHIVED_IN, LOST_WINDOW, PATIENCE, Failover, Patience
from ops.stack import ClientFactory, OperatorError, StackRef, aws_clients
from ops.verify.checks import CHECKS

DESCRIPTION: Final = """\
The operator's commands for a deployed stack. Each command shows what it will do, and does
it only with --yes; audit and fenced change nothing, and verify publishes rides at once. A
command works in the region for which AWS's tools are configured, or in that of --region.
deploy-regions, delete-regions, failover and unfence work on [primary] and [secondary] of
samconfig.toml.

  make ops ARGS="audit --json"                     what is lost, doubled, waiting or overdue
  make ops ARGS="replay --since 2h --yes"          replay the last two hours of the archive
  make ops ARGS="failover --since 6h"              show how the secondary would take over
  make ops ARGS="redrive RideHistoryDlq"           count its messages by reason

A time is written as 90m, 6h or 2d (before now), or as 2026-11-21T10:00:00Z."""

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_FAILED: Final = 2
_VERIFIED: Final = Path(__file__).resolve().parent.parent / ".aws-sam"


class Plan(NamedTuple):
    """What a command will do."""

    steps: Sequence[str]
    """In words, for people."""
    do: Callable[[], Mapping[str, Any]]
    """Does it, and returns JSON-ready values."""


def main(arguments: Sequence[str] | None = None, clients: ClientFactory | None = None) -> None:
    """Run a command: that of this process by default, with clients that are configured as the AWS CLI is."""
    options = command_line().parse_args(arguments)
    options.clients = clients or aws_clients()
    # With --json only the result is on standard output.
    options.say = partial(print, file=sys.stderr if options.json else sys.stdout, flush=True)
    try:
        _run(options)
    except OperatorError as error:
        _fail(str(error))
    except ClientError as error:
        _fail(f"AWS refused {error.operation_name}: {error.response['Error'].get('Message', error)}")
    except BotoCoreError as error:
        _fail(f"AWS could not be reached: {error}")
    except KeyboardInterrupt:
        _fail("interrupted; run it again to continue")
    if options.status:
        sys.exit(options.status)


def _run(options: argparse.Namespace) -> None:
    plan: Plan = options.command(options)
    for number, step in enumerate(plan.steps, 1):
        options.say(f"{number}. {step}")
    result = plan.do() if options.yes else {"plan": plan.steps}
    if not options.yes:
        options.say("nothing was done; add --yes to do it")
    elif plan.steps:
        options.say("done: " + (", ".join(f"{name} {value}" for name, value in result.items()) or "nothing"))
    if options.json:
        print(json.dumps(result, default=str, indent=2))


def _fail(problem: str) -> NoReturn:
    print(f"error: {problem}", file=sys.stderr)
    sys.exit(_FAILED)


# ── Commands ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _audit(options: argparse.Namespace) -> Plan:
    """Show what is lost, doubled, waiting for redrive or overdue.

    The audit compares what the bus, tables, queues and log groups of a stack hold, in both
    regions of a stack that has two. It also shows what the evidence does not cover.

    Status 0: balanced; 1: something is wrong; 3: the evidence is incomplete. An event younger
    than --grace counts as in flight. EventBridge and Lambda may retry for 30 hours.
    """
    stack = _stack(options)
    try:
        payments = None if options.payments is None else gateway_payments(options.payments.read_text())
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise OperatorError(f"{options.payments} is no ledger of the gateway: {error!r}") from error
    stacks = [each for each in (stack, stack.peer()) if each is not None]
    report = audit(*stacks, grace=options.grace, payments=payments, overdue_after=options.overdue)
    options.say(report.to_text())
    options.status = report.status
    return Plan([], report.to_json)


def _verify(options: argparse.Namespace) -> Plan:
    """Check every statement about a deployed stack that code can check.

    Publish simulated rides, book rides over the API, audit the stack, and go through the
    checklist of docs/on-an-account.md. With --drills, break and mend a few things as well.
    The results are in .aws-sam/verify.json and .aws-sam/verify.md.

    Status 0: no check failed; 1: at least one failed.
    """
    checks = [each for each in CHECKS if options.drills or not each.drill]
    results: list[verify.Result] = []
    for result in verify.verify(verify.Deployment(_stack(options), rides=options.rides), checks):
        results.append(result)
        options.say(f"{result.verdict}  {result.statement}\n      {result.detail} ({result.seconds:.1f} s)")
    found = verify.to_json(results)
    _VERIFIED.mkdir(exist_ok=True)
    (_VERIFIED / "verify.json").write_text(json.dumps(found, indent=2), encoding="utf-8")
    (_VERIFIED / "verify.md").write_text(verify.to_markdown(results), encoding="utf-8")
    options.say(f"{found['passed']} passed, {found['failed']} failed, {found['skipped']} skipped")
    options.status = bool(found["failed"])
    return Plan([], lambda: found)


def _replay(options: argparse.Namespace) -> Plan:
    """Replay a part of the archive.

    The replay is named for its region, as the rules of two regions require. It is refused
    while the other region works on the same events. Consumers recognise what has taken
    effect.
    """
    stack, until = _stack(options), _until(options)
    replay.check(stack, accept_duplicates=options.accept_duplicates)
    name = replay.name_for(stack.region, datetime.now(UTC))
    what = f"replay events of {stack.name} in {stack.region} with a time from {options.since} to {until}"
    step = f"{what}, for {options.only or 'every rule'}, as {name}"
    return Plan([step], lambda: {"replay": replay.run(stack, name, options.since, until, only=options.only)})


def _republish(options: argparse.Namespace) -> Plan:
    """Publish again the events in the outbox of a region that its pipe may not have published.

    Consumers recognise published events by their ids. Partners receive them again.
    """
    stack, until = _stack(options), _until(options)
    step = f"publish what was written to the outbox in {stack.region} from {options.since} to {until}"
    window = (stack.region, options.since, until)
    return Plan([step], lambda: outbox.republish(stack, *window, options.say)._asdict())


def _failover(options: argparse.Namespace) -> Plan:
    """Let the secondary region take over.

    Steer producers away, fence the primary, wait until its running work has ended and its
    tables have caught up, then process again in the secondary what may be lost.

    If the primary cannot be fenced and drained, the command refuses, and nothing is
    republished or replayed: a primary that is late, not dead, would work on the same events.
    Waiting for it loses nothing and doubles nothing. --accept-duplicates continues at once;
    what both regions then work on can take effect twice. See docs/runbooks/failover.md.
    """
    primary, secondary = (each.stack for each in two_regions.configured(options.clients))
    failover, patience = (
        Failover(primary, secondary, options.say),
        Patience(options.runs_end_in, options.archived_in, options.catches_up_in),
    )
    accepted = options.accept_duplicates
    return Plan(
        failover.plan(options.since, options.until),
        lambda: failover.run(options.since, options.until, patience, accept_duplicates=accepted)._asdict(),
    )


def _fenced(options: argparse.Namespace) -> Plan:
    """Fail if the region is fenced: then the stack must not be deployed.

    A deployment enables rules that the fence has disabled. There need not be a stack.
    """
    fence.refuse_deployment(_stack(options))
    return Plan([], lambda: {"fenced": False})


def _unfence(options: argparse.Namespace) -> Plan:
    """Go back to the primary region.

    Undo the fence of a failover: the primary starts as it was before when its tables have
    caught up, and gets the producers back. Choose a quiet time: a ride in progress changes
    regions between its events.
    """
    primary, secondary = (each.stack for each in two_regions.configured(options.clients))
    step = f"start {primary.region} as it was, when it has what {secondary.region} wrote, and steer producers back"
    return Plan([step], partial(Failover(primary, secondary, options.say).undo, options.catches_up_in))


def _redrive(options: argparse.Namespace) -> Plan:
    """Send dead letters to their target.

    Other targets do not receive them. Messages that would only return stay in the queue.
    """
    stack = _stack(options)
    plan = redrive.plan(stack, options.queue, release=options.release)
    for verdict, count in plan.totals.items():
        options.say(f"{count} {'go' if verdict.goes else 'stay'}: {verdict.why}")
    step = f"send those that go to {plan.target}"
    return Plan([step], lambda: redrive.redrive(stack, plan, report=options.say)._asdict())


def _release(options: argparse.Namespace) -> Plan:
    """Let a quarantined key run again.

    Release it when the cause of its failure is fixed, then redrive its message from the
    dead-letter queue: its next delivery is attempt 1.
    """
    key, stack = redrive.checked_key(options.key), _stack(options)
    return Plan(
        [f"release {key} of {stack.name} in {stack.region}"], lambda: {"released": redrive.release_key(stack, key)}
    )


def _cars(options: argparse.Namespace) -> Plan:
    """Park cars all over the city, for dispatch to assign. Existing cars are left as they are."""
    stack = _stack(options)
    dynamodb, table = stack.client("dynamodb"), stack.outputs["CarTableName"]
    step = f"park cars in {table} until there are {options.count}"
    return Plan([step], lambda: {"added": fleet.seed(dynamodb, table, options.count)})


def _deploy_regions(options: argparse.Namespace) -> Plan:
    """Deploy the stack to two regions.

    Both deploy what was built last: run `sam build` first. The first deployment takes four
    steps, later ones two. An interrupted deployment continues when it is run again.
    While a region is fenced, it is refused.
    """
    pair = two_regions.configured(options.clients, overrides=dict(map(two_regions.assignment, options.overrides)))
    for each in pair:
        fence.refuse_deployment(each.stack)
    return _changes(two_regions.deployment(*pair), pair, options)


def _delete_regions(options: argparse.Namespace) -> Plan:
    """Delete the stack from both regions, with all of its data."""
    pair = two_regions.configured(options.clients)
    return _changes(two_regions.removal(*pair), pair, options)


def _changes(steps: Sequence[two_regions.Step], pair: two_regions.Pair, options: argparse.Namespace) -> Plan:
    deployer = two_regions.Deployer()
    return Plan([*map(str, steps)], lambda: {"steps": two_regions.carry_out(steps, pair, deployer, options.say)})


# ── Options ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def command_line() -> argparse.ArgumentParser:
    """Return the parser of the commands."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m ops", description=DESCRIPTION, formatter_class=raw)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    span: dict[str, Any] = {"type": _duration, "metavar": "TIME"}
    moment: dict[str, Any] = {"type": _time, "metavar": "TIME"}

    def command(run: Callable[[argparse.Namespace], Plan], *, regions: int = 1) -> argparse.ArgumentParser:
        name, text = run.__name__.strip("_").replace("_", "-"), str(inspect.getdoc(run))
        added = commands.add_parser(name, help=text.partition(".\n")[0], description=text, formatter_class=raw)
        added.set_defaults(command=run, status=0)
        added.add_argument("--json", action="store_true", help="print the result as JSON, the rest to standard error")
        if regions == 1:
            added.add_argument("--stack", help="name of the stack (that of samconfig.toml)")
            added.add_argument("--region", help="region of the stack (that for which AWS's tools are configured)")
        if run in (_audit, _fenced, _verify):
            added.set_defaults(yes=True)
        else:
            added.add_argument("--yes", action="store_true", help="do it; without this, only show what would be done")
        return added

    look = command(_audit)
    look.add_argument("--grace", **span, default=DEFAULT_GRACE, help="age from which an event is judged (15m)")
    look.add_argument("--overdue", **span, default=LIMIT, help="how long a ride may need something (4h)")
    look.add_argument("--payments", type=Path, metavar="FILE", help="the gateway's ledger, as JSON, to compare with")

    prove = command(_verify)
    prove.add_argument("--rides", type=int, default=20, metavar="N", help="number of simulated rides (20)")
    prove.add_argument("--drills", action="store_true", help="also break and mend what the checklist calls a drill")

    again = command(_replay)
    again.add_argument("--only", metavar="RULE", help="logical id of the one rule that receives the events")
    again.add_argument("--accept-duplicates", action="store_true", help="do not ask the other region")

    for each in (again, command(_republish)):
        each.add_argument("--since", **moment, required=True, help="time of the oldest event")
        each.add_argument("--until", **moment, help="time of the newest event (now)")

    over = command(_failover, regions=2)
    began = datetime.now(UTC) - LOST_WINDOW
    over.add_argument("--since", **moment, default=began, help="begin of the lost window (24h: EventBridge's retries)")
    over.add_argument("--until", **moment, help="its end (when the primary has been drained)")
    over.add_argument("--accept-duplicates", action="store_true", help="continue if the primary cannot be fenced")
    over.add_argument("--runs-end-in", **span, help="how long running invocations may take (the longest timeout)")
    over.add_argument("--archived-in", **span, default=ARCHIVED_IN, help="how long archiving an event may take (10m)")

    command(_fenced)
    back = command(_unfence, regions=2)
    for each in (over, back):
        limit = "how long comparing both regions' tables may take (30m)"
        each.add_argument("--catches-up-in", **span, default=PATIENCE.catching_up, help=limit)

    on = command(_redrive)
    on.add_argument("queue", metavar="QUEUE", help="logical id: RideHistoryDlq, DispatchRuleDlq, ProducerDlq, …")
    on.add_argument("--release", action="store_true", help="release quarantined keys first; their cause is fixed")

    command(_release).add_argument("key", metavar="CONSUMER#KEY", help="from a dead letter or a log line")
    command(_cars).add_argument("--count", type=int, default=64, metavar="N", help="size of the fleet (64)")
    command(_deploy_regions, regions=2).add_argument(
        "--set", action="append", default=[], dest="overrides", metavar="NAME=VALUE",
        help="a parameter of the template, for both regions; it takes precedence over samconfig.toml",
    )  # fmt: skip
    command(_delete_regions, regions=2)
    return parser


def _duration(text: str) -> timedelta:
    match = re.fullmatch(r"(\d+)([smhd])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no span of time: write 90s, 10m, 6h or 2d")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def _time(text: str) -> datetime:
    if re.fullmatch(r"\d+[smhd]", text):
        return datetime.now(UTC) - _duration(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write 6h, or 2026-11-21T10:00:00Z") from None
    if time.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text!r} has no time zone: write {text}Z for UTC")
    return time


def _until(options: argparse.Namespace) -> datetime:
    until: datetime = options.until or datetime.now(UTC)
    if not options.since < until:
        raise OperatorError(f"--since has to be before --until, which is {until:%Y-%m-%d %H:%M:%S %Z}")
    return until


def _stack(options: argparse.Namespace) -> StackRef:
    region = options.region or boto3.session.Session().region_name
    if not region:
        raise OperatorError("no region is configured: give --region, or set AWS_REGION")
    name = options.stack or two_regions.configured(options.clients)[0].stack.name
    return StackRef(name, region, options.clients)


if __name__ == "__main__":
    main()
