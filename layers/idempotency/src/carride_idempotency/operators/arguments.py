"""The words of the operator's command line."""

import argparse
import os
import re
from datetime import timedelta
from typing import Final

from carride_idempotency.operators.choosing import Choice
from carride_idempotency.operators.redriving import LetterChoice
from carride_idempotency.record import STATUSES

PROGRAM: Final = "python -m carride_idempotency"
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class UsageError(Exception):
    """A command that cannot be carried out. The message says why, and what to do."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line.

    It takes no abbreviation of an option: a plan is looked for by the whole words that were typed.
    """
    top = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Find the records of idempotent operations, and change them. A command that "
        "changes something shows what it would do; --yes does it.",
        allow_abbrev=False,
    )
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, about, build in (
        ("list", "show records, and why keys do not succeed", _list_options),
        ("show", "show one record, and what its next delivery does", _show_options),
        ("release", "let quarantined, crashed or corrupt keys run again", _change_options),
        ("forget", "forget keys: their next delivery runs as the first", _change_options),
        ("settle", "record what became of an external call, and release", _settle_options),
        ("redrive", "deliver dead letters again; first one of each failure", _redrive_options),
    ):
        description = f"{about[0].upper()}{about[1:]}."
        verb = verbs.add_parser(name, help=about, description=description, allow_abbrev=False)
        _common_options(verb)
        build(verb)
    return top


def _common_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--store",
        default=os.environ.get("IDEMPOTENCY_STORE"),
        metavar="ADDRESS",
        help="dynamodb:<table>, valkey://<host> … (default: $IDEMPOTENCY_STORE)",
    )
    verb.add_argument("--json", action="store_true", help="print JSON")


def _choice_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--consumer", help="records of this consumer, or CONSUMER/OPERATION")
    verb.add_argument("--status", help=", ".join(sorted(STATUSES)))
    verb.add_argument("--older", metavar="SPAN", help="written longer ago: 90s, 10m, 6h, 2d")
    verb.add_argument("--younger", metavar="SPAN", help="written since")
    verb.add_argument("--cause", help="the id of a cause that `list` shows, or words of it")
    verb.add_argument(
        "--index",
        help="a DynamoDB table's index by unsettledSince: read it, and not the whole table",
    )


def _list_options(verb: argparse.ArgumentParser) -> None:
    _choice_options(verb)
    verb.add_argument("--limit", type=int, default=100, help="the most records (default: 100)")


def _show_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("key", metavar="KEY", help="CONSUMER#KEY, from a dead letter or a log line")


def _change_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("keys", metavar="KEY", nargs="*", help="CONSUMER#KEY; or choose with options")
    _choice_options(verb)
    _yes_options(verb)


def _yes_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--yes", action="store_true", help="do what was shown, or nothing")
    verb.add_argument("--plan", metavar="ID", help="with --yes: the plan that was shown")


def _settle_options(verb: argparse.ArgumentParser) -> None:
    _change_options(verb)
    verb.add_argument("--call", help="the call's name (default: the first unknown one)")
    answer = verb.add_mutually_exclusive_group(required=True)
    answer.add_argument(
        "--done",
        metavar="JSON",
        help="it took effect: its result, as the call returns it. JSON comes back as JSON. A "
        "dataclass, Decimal or another type is what carride_idempotency.recovery.stored_form"
        "(result) returns, such as "
        '\'{"$": ["fields", "module:Class", {"id": "7"}]}\'',
    )
    answer.add_argument("--not-done", action="store_true", help="it did not, and never will")


def _redrive_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--queue",
        default=os.environ.get("DEAD_LETTER_QUEUE_URL"),
        metavar="URL",
        help="the dead-letter queue (default: $DEAD_LETTER_QUEUE_URL)",
    )
    verb.add_argument(
        "--to",
        required=True,
        metavar="TARGET",
        help="a function's name or ARN, which is invoked and waited for; or a queue's URL",
    )
    verb.add_argument("--key", help="only the letters of this key, CONSUMER#KEY")
    verb.add_argument("--consumer", help="only letters of this consumer")
    verb.add_argument("--reason", help="only letters with this reason, such as QUARANTINED")
    verb.add_argument("--cause", help="only one failure: its id, or words of its error")
    verb.add_argument("--older", metavar="SPAN", help="sent longer ago: 90s, 10m, 6h, 2d")
    verb.add_argument("--younger", metavar="SPAN", help="sent since")
    verb.add_argument("--limit", type=int, help="the most letters; the oldest go")
    verb.add_argument("--rate", type=float, help="the most letters a second")
    verb.add_argument(
        "--release", action="store_true", help="release quarantined keys: it is fixed"
    )
    verb.add_argument("--all-at-once", action="store_true", help="do not try one letter first")
    verb.add_argument(
        "--wait",
        default="5m",
        metavar="SPAN",
        help="how long the outcome of a first letter may take, if it goes to a queue (default: "
        "5m); more than the queue's maxReceiveCount times its visibility timeout",
    )
    _yes_options(verb)


def letter_choice_of(options: argparse.Namespace, now_ms: int) -> LetterChoice:
    """Return which letters are meant."""
    return LetterChoice(
        key=options.key,
        consumer=options.consumer,
        reason=options.reason,
        cause=options.cause,
        before_ms=_ago(options.older, now_ms),
        after_ms=_ago(options.younger, now_ms),
    )


def choice_of(options: argparse.Namespace, now_ms: int) -> Choice:
    """Return which records are meant."""
    status = None if options.status is None else options.status.upper()
    if status is not None and status not in STATUSES:
        raise UsageError(f"there is no status {status}: give one of {', '.join(sorted(STATUSES))}")
    return Choice(
        keys=frozenset(getattr(options, "keys", ())),
        consumer=options.consumer,
        status=status,
        before_ms=_ago(options.older, now_ms),
        after_ms=_ago(options.younger, now_ms),
        cause=options.cause,
    )


def _ago(text: str | None, now_ms: int) -> int | None:
    return None if text is None else now_ms - round(seconds_of(text) * 1000)


def seconds_of(text: str) -> float:
    """Read a span of time, such as ``90s``, ``10m``, ``6h`` or ``2d``."""
    match = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if match is None:
        raise UsageError(f"{text!r} is not a span of time: write 90s, 10m, 6h or 2d")
    return timedelta(**{_UNITS[match[2]]: int(match[1])}).total_seconds()
