"""The operator's commands: ``python -m ops``, or ``make ops ARGS=…``."""

import argparse
import inspect
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from carride.overdue import LIMIT
from ops import fleet, redrive, replay, verify
from ops import regions as two_regions
from ops.audit import DEFAULT_GRACE, audit, gateway_payments
from ops.failover import ARCHIVED_IN, LOST_WINDOW, Failover, Patience
from ops.stack import ClientFactory, OperatorError, StackRef, aws_clients
from ops.verify.checks import CHECKS

DESCRIPTION: Final = """\
The operator's commands for a deployed stack. Each command shows what it will do, and does
it only with --yes; audit changes nothing, and verify publishes rides. A command works in the region for which AWS's
tools are configured, or in that of --region. deploy-regions, delete-regions, failover and
unfence work on [primary] and [secondary] of samconfig.toml.

  make ops ARGS="audit --json"                     what is lost, doubled, waiting or overdue
  make ops ARGS="replay --since 2h"                replay the last two hours of the archive
  make ops ARGS="replay --since 2h --only DispatchRule --yes"
  make ops ARGS="failover --since 6h"              show how the secondary would take over
  make ops ARGS="failover --since 6h --yes"        let it take over
  make ops ARGS="unfence --yes"                    go back to the primary
  make ops ARGS="redrive RideHistoryDlq"           count its messages by reason
  make ops ARGS="redrive RideHistoryDlq --yes"     send them to their target
  make ops ARGS="release dispatch#<key> --yes"     let a quarantined key run again

A time is written as 90m, 6h or 2d (before now), or as 2026-11-21T10:00:00Z."""

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_FAILED: Final = 2
_VERIFIED: Final = Path(__file__).resolve().parent.parent / ".aws-sam"

type Say = Callable[[str], None]
type Result = Mapping[str, Any]
type Command = Callable[[argparse.Namespace, ClientFactory, Say], Result]


def main(arguments: Sequence[str] | None = None, clients: ClientFactory | None = None) -> None:
    """Run a command.

    Args:
        arguments: the command line; by default that of this process.
        clients: returns the clients to use; by default they are configured as the AWS CLI is.
    """
    options = command_line().parse_args(arguments)

    def say(text: str) -> None:
        # With --json only the result is on standard output.
        print(text, file=sys.stderr if options.json else sys.stdout, flush=True)

    try:
        result = options.command(options, clients or aws_clients(), say)
    except OperatorError as error:
        problem = str(error)
    except ClientError as error:
        problem = f"AWS refused {error.operation_name}: {error.response['Error'].get('Message', error)}"
    except BotoCoreError as error:
        problem = f"AWS could not be reached: {error}"
    except KeyboardInterrupt:
        problem = "interrupted; run it again to continue"
    else:
        if options.json:
            print(json.dumps(result, default=str, indent=2))
        return sys.exit(options.status) if options.status else None
    print(f"error: {problem}", file=sys.stderr)
    sys.exit(_FAILED)


# ── Commands ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _audit(options: argparse.Namespace, clients: ClientFactory, say: Say) -> Result:
    """Show what is lost, doubled, waiting for redrive or overdue.

    The audit compares what the bus, tables, queues and log groups of a stack hold, in both
    regions of a stack that has two. It also shows what the evidence does not cover.

    Status 0: balanced; 1: something is wrong; 3: the evidence is incomplete. An event younger
    than --grace counts as in flight. EventBridge and Lambda may retry for 30 hours.
    """
    stack = _stack(options, clients)
    try:
        payments = None if options.payments is None else gateway_payments(options.payments.read_text())
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise OperatorError(f"{options.payments} is no ledger of the gateway: {error!r}") from error
    stacks = [each for each in (stack, stack.peer()) if each is not None]
    report = audit(*stacks, grace=options.grace, payments=payments, overdue_after=options.overdue)
    say(report.to_text())
    options.status = report.status
    return report.to_json()


def _verify(options: argparse.Namespace, clients: ClientFactory, say: Say) -> Result:
    """Check every statement about a deployed stack that code can check.

    Publish simulated rides, book rides over the API, audit the stack, and go through the
    checklist of docs/on-an-account.md. With --drills, break and mend a few things as well.
    The results are in .aws-sam/verify.json and .aws-sam/verify.md.

    Status 0: no check failed; 1: at least one failed.
    """
    checks = [each for each in CHECKS if options.drills or not each.drill]
    results: list[verify.Result] = []
    for result in verify.verify(verify.Deployment(_stack(options, clients), rides=options.rides), checks):
        results.append(result)
        say(f"{result.verdict}  {result.statement}\n      {result.detail} ({result.seconds:.1f} s)")
    found = verify.to_json(results)
    _VERIFIED.mkdir(exist_ok=True)
    (_VERIFIED / "verify.json").write_text(json.dumps(found, indent=2), encoding="utf-8")
    (_VERIFIED / "verify.md").write_text(verify.to_markdown(results), encoding="utf-8")
    say(f"{found['passed']} passed, {found['failed']} failed, {found['skipped']} skipped")
    options.status = bool(found["failed"])
    return found


def _replay(options: argparse.Namespace, clients: ClientFactory, say: Say) -> Result:
    """Replay a part of the archive.

    The replay is named for its region, as the rules of two regions require. It is refused
    while the other region works on the same events. Consumers recognise what has taken
    effect.
    """
    stack = _stack(options, clients)
    now = datetime.now(UTC)
    until = options.until or now
    if not options.since < until:
        raise OperatorError(f"--since has to be before --until, which is {until:%Y-%m-%d %H:%M:%S %Z}")
    name = replay.name_for(stack.region, now)
    say(f"replay {name} of {stack.name} in {stack.region}, for {options.only or 'every rule'}:")
    say(f"events with a time from {options.since} to {until}")
    replay.check(stack, accept_duplicates=options.accept_duplicates)
    if _is_only_shown(options, say):
        return {"replay": None}
    replay.start(stack, name, options.since, until, only=options.only)
    replay.wait(stack, name)
    say("it has ended; consumers have recognised what had taken effect")
    return {"replay": name}


def _failover(options: argparse.Namespace, clients: ClientFactory, say: Say) -> Result:
    """Let the secondary region take over.

    Steer producers away, fence the primary, wait until its running work has ended and its
    tables have caught up, then process again in the secondary what may be lost.

    If the primary cannot be fenced and drained, the command refuses, and nothing is
    republished or replayed: a primary that is late, not dead, would work on the same events.
    Waiting for it loses nothing and doubles nothing. --accept-duplicates continues at once;
    what both regions then work on can take effect twice. See docs/runbooks/failover.md.
    """
    pair = two_regions.configured(clients)
    failover = Failover(pair.primary.stack, pair.secondary.stack, say)
    steps = failover.plan(options.since, options.until)
    for number, step in enumerate(steps, 1):
        say(f"{number}. {step}")
    if _is_only_shown(options, say):
        return {"plan": steps}
    patience = Patience(options.runs_end_in, options.archived_in)
    done = failover.run(options.since, options.until, patience, accept_duplicates=options.accept_duplicates)
    events = f"{done.republished} events republished, {done.refused} refused"
    say(f"{pair.secondary.stack.region} has taken over: {done.compared} items compared, {events}, {done.replay} ended")
    return done._asdict()


def _unfence(options: argparse.Namespace, clients: ClientFactory, say: Say) -> Result:
    """Go back to the primary region.

    Undo the fence of a failover: the primary starts as it was before when its tables have
    caught up, and gets the producers back. Choose a quiet time: a ride in progress changes
    regions between its events.
    """
    primary, secondary = (each.stack for each in two_regions.configured(clients))
    say(f"start {primary.region} as it was, when it has what {secondary.region} wrote, and steer producers back")
    if _is_only_shown(options, say):
        return {"started": None}
    return {"started": Failover(primary, secondary, say).undo()}


def _redrive(options: argparse.Namespace, clients: ClientFactory, say: Say) -> Result:
    """Send dead-lettered messages to their target.

    Other targets do not receive them. Messages that would only return stay in the queue.
    """
    stack = _stack(options, clients)
    messages = redrive.waiting(stack, options.queue)
    say(f"{messages.total()} messages in {options.queue} of {stack.name} in {stack.region}: {_counts(messages)}")
    say(f"they go to {redrive.target_of(stack, options.queue)}")
    if _is_only_shown(options, say):
        return {"waiting": messages}
    done = redrive.redrive(stack, options.queue, release=options.release)
    say(_counts(done))
    return done


def _release(options: argparse.Namespace, clients: ClientFactory, say: Say) -> Result:
    """Let a quarantined key run again.

    Release it when the cause of its failure is fixed: its next delivery is attempt 1.
    """
    redrive.check_key(options.key)
    stack = _stack(options, clients)
    say(f"release {options.key} of {stack.name} in {stack.region}: its next delivery is attempt 1")
    if _is_only_shown(options, say):
        return {"released": None}
    redrive.release_key(stack, options.key)
    say("released: now redrive its message from the dead-letter queue (docs/runbooks)")
    return {"released": options.key}


def _cars(options: argparse.Namespace, clients: ClientFactory, say: Say) -> Result:
    """Park cars all over the city, for dispatch to assign. Existing cars are left as they are."""
    stack = _stack(options, clients)
    table = stack.outputs["CarTableName"]
    say(f"park cars in {table} until there are {options.count}")
    if _is_only_shown(options, say):
        return {"added": None}
    return {"added": fleet.seed(stack.client("dynamodb"), table, options.count)}


def _deploy_regions(options: argparse.Namespace, clients: ClientFactory, say: Say) -> Result:
    """Deploy the stack to two regions.

    Both deploy what was built last: run `sam build` first. The first deployment takes four
    steps, later ones two. An interrupted deployment continues when it is run again.
    """
    pair = two_regions.configured(clients, overrides=dict(map(two_regions.assignment, options.overrides)))
    return _carry_out(two_regions.deployment(pair), pair, options, say)


def _delete_regions(options: argparse.Namespace, clients: ClientFactory, say: Say) -> Result:
    """Delete the stack from both regions, with all of its data."""
    pair = two_regions.configured(clients)
    return _carry_out(two_regions.removal(pair), pair, options, say)


def _carry_out(steps: list[two_regions.Step], pair: two_regions.Pair, options: argparse.Namespace, say: Say) -> Result:
    if options.yes:
        two_regions.carry_out(steps, pair, two_regions.Deployer(), say)
    else:
        for number, step in enumerate(steps, 1):
            say(f"{number}. {step}")
        _is_only_shown(options, say)
    return {"steps": [f"{step.environment.role}: {step.what}" for step in steps]}


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items())) or "nothing"


# ── Options ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def command_line() -> argparse.ArgumentParser:
    """Return the parser of the commands."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m ops", description=DESCRIPTION, formatter_class=raw)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    span: dict[str, Any] = {"type": _duration, "metavar": "TIME"}
    moment: dict[str, Any] = {"type": _time, "metavar": "TIME"}

    def command(run: Command, *, regions: int = 1) -> argparse.ArgumentParser:
        name, text = run.__name__.strip("_").replace("_", "-"), str(inspect.getdoc(run))
        added = commands.add_parser(name, help=text.partition(".\n")[0], description=text, formatter_class=raw)
        added.set_defaults(command=run, status=0)
        added.add_argument("--json", action="store_true", help="print the result as JSON, the rest to standard error")
        if regions == 1:
            added.add_argument("--stack", help="name of the stack (that of samconfig.toml)")
            added.add_argument("--region", help="region of the stack (that for which AWS's tools are configured)")
        if run not in (_audit, _verify):
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
    again.add_argument("--since", **moment, required=True, help="time of the oldest event")
    again.add_argument("--until", **moment, help="time of the newest event (now)")
    again.add_argument("--only", metavar="RULE", help="logical id of the one rule that receives the events")
    again.add_argument("--accept-duplicates", action="store_true", help="do not ask the other region")

    over = command(_failover, regions=2)
    began = datetime.now(UTC) - LOST_WINDOW
    over.add_argument("--since", **moment, default=began, help="begin of the lost window (24h: EventBridge's retries)")
    over.add_argument("--until", **moment, help="its end (when the primary has been drained)")
    over.add_argument("--accept-duplicates", action="store_true", help="continue if the primary cannot be fenced")
    over.add_argument("--runs-end-in", **span, help="how long running invocations may take (the longest timeout)")
    over.add_argument("--archived-in", **span, default=ARCHIVED_IN, help="how long archiving an event may take (10m)")

    command(_unfence, regions=2)

    on = command(_redrive)
    on.add_argument("queue", metavar="QUEUE", help="logical id: RideHistoryDlq, DispatchRuleDlq, ProducerDlq, …")
    on.add_argument("--release", action="store_true", help="release quarantined keys first; their cause is fixed")

    command(_release).add_argument("key", metavar="CONSUMER#KEY", help="from a dead-lettered message or a log line")
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


def _is_only_shown(options: argparse.Namespace, say: Say) -> bool:
    if not options.yes:
        say("nothing was done; add --yes to do it")
    return not options.yes


def _stack(options: argparse.Namespace, clients: ClientFactory) -> StackRef:
    region = options.region or boto3.session.Session().region_name
    if not region:
        raise OperatorError("no region is configured: give --region, or set AWS_REGION")
    return StackRef(options.stack or two_regions.configured(clients).primary.stack.name, region, clients)


if __name__ == "__main__":
    main()
