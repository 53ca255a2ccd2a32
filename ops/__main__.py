"""The operator's commands: ``python -m ops``, or ``make ops ARGS=…``."""

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NoReturn

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from idempotency import release
from ops import fence, records, redrive, replay
from ops.audit import CONSUMERS
from ops.failover import ARCHIVED_IN, LOST_WINDOW, Failover, Patience, Window, plan, unfence
from ops.regions import RegionsError, configured
from ops.site import Clients, OperatorError, Site, clients

DESCRIPTION: Final = """\
What an operator does to a deployed stack. Each command says what it will do, and does it
only with --yes. It works in the region for which AWS's tools are configured, or in that
of --region; failover and unfence between [primary] and [secondary] of samconfig.toml.

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

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_MISUSED: Final = 2

type Say = Callable[[str], None]
type Result = Mapping[str, Any]


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


# ── Commands ──────────────────────────────────────────────────────────────────────────────────────────────────────────


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
    return asdict(outcome)


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
    """Return what understands the commands."""
    parser = argparse.ArgumentParser(
        prog="python -m ops", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--stack", help="name of the stack (that of samconfig.toml)")
    common.add_argument("--yes", action="store_true", help="do it; without this, only what would be done is shown")
    common.add_argument("--json", action="store_true", help="print the result as JSON, and the rest to standard error")
    one = argparse.ArgumentParser(add_help=False)
    one.add_argument("--region", help="region of the stack (that for which AWS's tools are configured)")
    two = argparse.ArgumentParser(add_help=False)
    two.add_argument("--primary", metavar="REGION", help="(that of [primary] in samconfig.toml)")
    two.add_argument("--secondary", metavar="REGION", help="(that of [secondary] in samconfig.toml)")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    again = commands.add_parser(
        "replay",
        parents=[common, one],
        help="replay a part of the archive",
        description="Replay a part of the archive. It is named for its region, as rules of two regions ask for, and "
        "refused while the other region works on the same events. What has taken effect is recognised.",
    )
    again.add_argument("--since", type=_time, required=True, metavar="TIME", help="time of the oldest event")
    again.add_argument("--until", type=_time, metavar="TIME", help="time of the newest event (now)")
    again.add_argument("--only", metavar="RULE", help="logical id of the one rule that is to have the events")
    again.add_argument("--accept-duplicates", action="store_true", help="do not ask the other region")
    again.set_defaults(command=_replay)

    over = commands.add_parser(
        "failover",
        parents=[common, two],
        help="let the secondary region take over",
        description=FAILOVER,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    over.add_argument(
        "--since",
        type=_time,
        default=datetime.now(UTC) - LOST_WINDOW,
        metavar="TIME",
        help="when the lost window begins (24h: for as long as EventBridge tries to deliver)",
    )
    over.add_argument("--until", type=_time, metavar="TIME", help="when it ends (when the primary has been drained)")
    over.add_argument("--accept-duplicates", action="store_true", help="go on where the primary cannot be fenced")
    over.add_argument(
        "--runs-end-in",
        type=_duration,
        metavar="TIME",
        help="how long invocations that have begun may take (the longest timeout of the functions)",
    )
    over.add_argument(
        "--archived-in",
        type=_duration,
        default=ARCHIVED_IN,
        metavar="TIME",
        help="how long the last events may take to be in the archive (10m)",
    )
    over.set_defaults(command=_failover)

    back = commands.add_parser(
        "unfence",
        parents=[common, two],
        help="go back to the primary",
        description="Undo the fence of a failover: the primary starts again as it was, when its tables have caught up, "
        "and gets the producers back. Choose a quiet time: a ride that is under way crosses over between its events.",
    )
    back.set_defaults(command=_unfence)

    on = commands.add_parser(
        "redrive",
        parents=[common, one],
        help="send dead letters to where they were going",
        description="Send the letters of a dead-letter queue to the target that they were meant for, and to no other. "
        "What no redrive changes stays, as does what would be acknowledged because its key is quarantined.",
    )
    on.add_argument("queue", metavar="QUEUE", help="logical id: RideHistoryDlq, DispatchRuleDlq, ProducerDlq, …")
    on.add_argument("--release", action="store_true", help="release quarantined keys first; their cause is mended")
    on.set_defaults(command=_redrive)

    free = commands.add_parser(
        "release",
        parents=[common, one],
        help="let a quarantined key run again",
        description="Release a quarantined key, when what made it fail is mended: its next delivery is attempt 1.",
    )
    free.add_argument("key", metavar="CONSUMER#KEY", help="as dead letters and log lines have it")
    free.set_defaults(command=_release)
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
