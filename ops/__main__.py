"""The operator's commands: ``python -m ops``, or ``make ops ARGS=…``."""

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NoReturn

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from carride.overdue import LIMIT
from idempotency import release
from ops import fence, records, redrive, replay
from ops.audit import CONSUMERS, DEFAULT_GRACE, audit, gateway_payments
from ops.failover import ARCHIVED_IN, LOST_WINDOW, Failover, Patience, Window, plan, unfence
from ops.regions import RegionsError, configured
from ops.site import Clients, OperatorError, Site, clients

DESCRIPTION: Final = """\
What an operator does to a deployed stack. Each command shows what it will do, and does it
only with --yes; audit changes nothing. It works in the region for which AWS's tools are configured, or in that
of --region; failover and unfence between [primary] and [secondary] of samconfig.toml.

  make ops ARGS="audit --json"                     what is lost, doubled, waiting or overdue
  make ops ARGS="replay --since 2h"                replay the last two hours of the archive
  make ops ARGS="replay --since 2h --only DispatchRule --yes"
  make ops ARGS="failover --since 6h"              show how the secondary would take over
  make ops ARGS="failover --since 6h --yes"        and let it
  make ops ARGS="unfence --yes"                    go back to the primary
  make ops ARGS="redrive RideHistoryDlq"           show which dead letters lie there
  make ops ARGS="redrive RideHistoryDlq --yes"     and send them to where they were going
  make ops ARGS="release dispatch#<key> --yes"     let a quarantined key run again

A time is written as 90m, 6h or 2d (before now), or as 2026-11-21T10:00:00Z."""

FAILOVER: Final = """\
Let the secondary take over: steer producers, fence the primary, wait until it has ended
what it had begun and its tables have caught up, then hand over again what may be lost.

Where the primary cannot be fenced and drained, this refuses, and nothing is handed over:
a primary that is late, not dead, would work on the same events. Waiting for it loses
nothing and doubles nothing. --accept-duplicates hands over at once; what both regions
then work on can take effect twice. docs/runbooks/failover.md goes through it."""

AUDIT: Final = """\
Compare what the bus, tables, queues and log groups of a stack hold, in both regions where
there are two: which events are lost or took effect twice, what waits for redrive, which
rides are broken or overdue, and what the evidence cannot tell.

Status 0: balanced; 1: something is wrong; 3: the evidence is incomplete. An event younger
than --grace counts as in flight, yet EventBridge and Lambda may retry for 30 hours."""

REPLAY: Final = """\
Replay a part of the archive. The replay is named for its region, as the rules of two
regions require, and refused while the other region works on the same events. Consumers
recognise what has taken effect."""

UNFENCE: Final = """\
Undo the fence of a failover: the primary starts again as it was, when its tables have
caught up, and gets the producers back. Choose a quiet time: a ride that is under way
crosses over between its events."""

REDRIVE: Final = """\
Send the messages of a dead-letter queue to the target that they were meant for, and to no
other. Messages that would only come back stay in the queue."""

RELEASE: Final = """\
Release a quarantined key, when the cause of its failure is mended: its next delivery is
attempt 1."""

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_MISUSED: Final = 2

type Say = Callable[[str], None]
type Result = Mapping[str, Any]
type Command = Callable[[argparse.Namespace, Clients, Say], Result]


def main(arguments: Sequence[str] | None = None, make: Clients | None = None) -> None:
    """Run a command.

    Args:
        arguments: left out, those of this process.
        make: makes clients; left out, as the AWS CLI is configured.
    """
    options = command_line().parse_args(arguments)

    def say(text: str) -> None:
        # What a program reads is by itself on standard output.
        print(text, file=sys.stderr if options.json else sys.stdout, flush=True)

    try:
        result = options.command(options, make or clients(), say)
    except (OperatorError, RegionsError) as error:
        _leave(str(error))
    except ClientError as error:
        _leave(f"AWS refused {error.operation_name}: {error.response['Error'].get('Message', error)}")
    except BotoCoreError as error:
        _leave(f"AWS could not be reached: {error}")
    except KeyboardInterrupt:
        _leave("interrupted; run it again to go on")
    if options.json:
        print(json.dumps(result, default=str, indent=2))
    if options.status:
        sys.exit(options.status)


# ── Commands ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _audit(options: argparse.Namespace, make: Clients, say: Say) -> Result:
    site = _site(options, make)
    try:
        payments = None if options.payments is None else gateway_payments(options.payments.read_text())
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise OperatorError(f"{options.payments} is no ledger of the gateway: {error!r}") from error
    sites = [each for each in (site, site.peer()) if each is not None]
    report = audit(*sites, grace=options.grace, payments=payments, overdue_after=options.overdue)
    say(report.to_text())
    options.status = report.status
    return report.to_json()


def _replay(options: argparse.Namespace, make: Clients, say: Say) -> Result:
    site = _site(options, make)
    now = datetime.now(UTC)
    until = options.until or now
    if not options.since < until:
        raise OperatorError(f"--since has to be before --until, which is {until:%Y-%m-%d %H:%M:%S %Z}")
    name = replay.name_for(site.region, now)
    rules = options.only or "every rule"
    say(f"replay {name} of {site.stack} in {site.region}, for {rules}: what has a time from {options.since} to {until}")
    replay.check(site, accept_duplicates=options.accept_duplicates)
    if _is_only_shown(options, say):
        return {"replay": None}
    replay.start(site, name, options.since, until, only=options.only)
    replay.wait(site, name)
    say("it has ended; consumers have recognised what had taken effect")
    return {"replay": name}


def _failover(options: argparse.Namespace, make: Clients, say: Say) -> Result:
    primary, secondary = _pair(options, make)
    window = Window(since=options.since, until=options.until)
    steps = plan(primary, secondary, window)
    for number, step in enumerate(steps, 1):
        say(f"{number}. {step}")
    if _is_only_shown(options, say):
        return {"plan": steps}
    patience = Patience(runs=options.runs_end_in, archive=options.archived_in)
    outcome = Failover(primary, secondary, report=say).run(
        window, patience, accept_duplicates=options.accept_duplicates
    )
    events = f"{outcome.republished} events republished, {outcome.refused} refused"
    done = f"{outcome.compared} items compared, {events}, {outcome.replay} replayed"
    say(f"{secondary.region} has taken over: {done}")
    return outcome._asdict()


def _unfence(options: argparse.Namespace, make: Clients, say: Say) -> Result:
    primary, secondary = _pair(options, make)
    say(f"start {primary.region} again as it was, when it has what {secondary.region} wrote, and steer producers back")
    if _is_only_shown(options, say):
        return {"fencedSince": fence.fenced_since(primary)}
    return unfence(primary, secondary, report=say)


def _redrive(options: argparse.Namespace, make: Clients, say: Say) -> Result:
    site = _site(options, make)
    letters = redrive.waiting(site, options.queue)
    say(f"{letters.total()} letters lie in {options.queue} of {site.stack} in {site.region}: {_counts(letters)}")
    say(f"they go to {redrive.target_of(site, options.queue)}")
    if _is_only_shown(options, say):
        return {"waiting": letters}
    done = redrive.redrive(site, options.queue, release=options.release)
    say(_counts(done))
    return done


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items())) or "nothing"


def _release(options: argparse.Namespace, make: Clients, say: Say) -> Result:
    name, _, key = options.key.partition("#")
    name = name.partition("/")[0]
    known = [consumer.name for consumer in CONSUMERS] + [records.API]
    if name not in known or not key:
        raise OperatorError(f"{options.key!r} is no key: it begins with {' or '.join(f'{each}#' for each in known)}")
    site = _site(options, make)
    store = records.store_of(site)
    table = site.outputs["IdempotencyTableName"]
    say(f"release {options.key} in {table} in {site.region}: its next delivery is attempt 1")
    if _is_only_shown(options, say):
        return {"released": None}
    if not release(store, options.key):
        raise OperatorError(f"{options.key} is not quarantined: there is nothing to release")
    say("released: now redrive its message out of the dead-letter queue (docs/runbooks)")
    return {"released": options.key}


# ── Options ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def command_line() -> argparse.ArgumentParser:
    """Return the parser of the commands."""
    parser = argparse.ArgumentParser(
        prog="python -m ops", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    span: dict[str, Any] = {"type": _duration, "metavar": "TIME"}
    moment: dict[str, Any] = {"type": _time, "metavar": "TIME"}

    def command(name: str, run: Command, what: str, description: str, *, regions: int = 1) -> Any:
        added = commands.add_parser(
            name, help=what, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        added.set_defaults(command=run, status=0)
        added.add_argument("--stack", help="name of the stack (that of samconfig.toml)")
        added.add_argument("--json", action="store_true", help="print the result as JSON, the rest to standard error")
        if regions == 1:
            added.add_argument("--region", help="region of the stack (that for which AWS's tools are configured)")
        else:
            added.add_argument("--primary", metavar="REGION", help="(that of [primary] in samconfig.toml)")
            added.add_argument("--secondary", metavar="REGION", help="(that of [secondary] in samconfig.toml)")
        if run is not _audit:
            added.add_argument("--yes", action="store_true", help="do it; without this, only show what would be done")
        return added

    look = command("audit", _audit, "show what is lost, doubled, waiting for redrive or overdue", AUDIT)
    look.add_argument("--grace", **span, default=DEFAULT_GRACE, help="age from which an event is judged (15m)")
    look.add_argument("--overdue", **span, default=LIMIT, help="how long a ride may need something (4h)")
    look.add_argument("--payments", type=Path, metavar="FILE", help="the gateway's ledger, as JSON, to compare with")

    again = command("replay", _replay, "replay a part of the archive", REPLAY)
    again.add_argument("--since", **moment, required=True, help="time of the oldest event")
    again.add_argument("--until", **moment, help="time of the newest event (now)")
    again.add_argument("--only", metavar="RULE", help="logical id of the one rule that gets the events")
    again.add_argument("--accept-duplicates", action="store_true", help="do not ask the other region")

    over = command("failover", _failover, "let the secondary region take over", FAILOVER, regions=2)
    began = datetime.now(UTC) - LOST_WINDOW
    over.add_argument("--since", **moment, default=began, help="begin of the lost window (24h: EventBridge's retries)")
    over.add_argument("--until", **moment, help="its end (when the primary has been drained)")
    over.add_argument("--accept-duplicates", action="store_true", help="go on where the primary cannot be fenced")
    over.add_argument("--runs-end-in", **span, help="how long running invocations may take (the longest timeout)")
    over.add_argument("--archived-in", **span, default=ARCHIVED_IN, help="how long archiving an event may take (10m)")

    command("unfence", _unfence, "go back to the primary", UNFENCE, regions=2)

    on = command("redrive", _redrive, "send dead-lettered messages to their target", REDRIVE)
    on.add_argument("queue", metavar="QUEUE", help="logical id: RideHistoryDlq, DispatchRuleDlq, ProducerDlq, …")
    on.add_argument("--release", action="store_true", help="release quarantined keys first; their cause is mended")

    free = command("release", _release, "let a quarantined key run again", RELEASE)
    free.add_argument("key", metavar="CONSUMER#KEY", help="as dead-lettered messages and log lines have it")
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


def _site(options: argparse.Namespace, make: Clients) -> Site:
    region = options.region or boto3.session.Session().region_name
    if not region:
        raise OperatorError("no region is configured: give --region, or set AWS_REGION")
    return Site(options.stack or configured().primary.stack, region, make)


def _pair(options: argparse.Namespace, make: Clients) -> tuple[Site, Site]:
    pair = configured()
    stack = options.stack or pair.primary.stack
    primary, secondary = options.primary or pair.primary.region, options.secondary or pair.secondary.region
    return Site(stack, primary, make), Site(stack, secondary, make)


def _leave(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(_MISUSED)


if __name__ == "__main__":
    main()
