"""The operator's command line: finds records and changes them, over any store.

A command that changes something shows what it would do. The same words with `--yes` do exactly
that, or nothing if it has changed since.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import get_session

from carride_idempotency.errors import ConfigurationError, StoreError
from carride_idempotency.keys import downstream_key
from carride_idempotency.operators.arguments import (
    PROGRAM,
    UsageError,
    choice_of,
    letter_choice_of,
    parser,
    seconds_of,
)
from carride_idempotency.operators.changing import (
    MUST_BE_SHOWN,
    ChangeRefusedError,
    Planned,
    plan_forget,
    plan_release,
    plan_settle,
)
from carride_idempotency.operators.choosing import cause_of
from carride_idempotency.operators.explaining import sent_keys, text_of
from carride_idempotency.operators.letters import Letter
from carride_idempotency.operators.plans import (
    Place,
    PlanError,
    PlanFolder,
    Planning,
    place_on_aws,
    what_yes_does,
)
from carride_idempotency.operators.records import (
    NoRecordError,
    Planner,
    Preview,
    Records,
    answer_of,
)
from carride_idempotency.operators.redriving import (
    Redrive,
    RedriveError,
    Redriven,
    RedrivePlan,
    groups_of,
    plan_redrive,
    released_keys,
)
from carride_idempotency.operators.targets import FunctionTarget, QueueSite, QueueTarget, Target
from carride_idempotency.record import Record
from carride_idempotency.stores import Store
from carride_idempotency.stores.factory import open_store
from carride_idempotency.stores.transport import botocore_transport, region_of

type Clients = Callable[[str], Any]
"""Makes a client of botocore's for a service."""

_REFUSED: Final = (
    UsageError,
    ChangeRefusedError,
    NoRecordError,
    PlanError,
    RedriveError,
    ConfigurationError,
    StoreError,
)
_SHOWN: Final = 20
"""Keys that a preview names; `--json` has all."""
_LEFT_TO_DO: Final = 1
_WRONG: Final = 2
_INTERRUPTED: Final = 130
_PASSWORD: Final = re.compile(r"(?<=://)([^@/\s]*):([^@/\s]*)@")


class Finished(NamedTuple):
    """What a command has found or done."""

    shown: Any
    """As JSON."""
    text: str
    status: int = 0


# ── Showing ───────────────────────────────────────────────────────────────────────────────────────


def _list(records: Records, options: argparse.Namespace, now_ms: int) -> Finished:
    if options.limit < 1:
        raise UsageError("--limit has to be 1 or more")
    found: list[Record] = []
    complete = True
    choice = choice_of(options, now_ms)
    for record in records.chosen(choice, now_ms, index=options.index):
        if len(found) == options.limit:
            complete = False
            break
        found.append(record)
    found.sort(key=lambda record: (record.updated_ms, record.key))
    rows = [_row(record, now_ms) for record in found]
    shown = {"records": rows, "complete": complete}
    if not rows:
        return Finished(shown, "there are no such records")
    lines = _table(*_cells(rows))
    if not complete:
        lines.append(f"There may be more than {options.limit}: --limit shows more of them.")
    return Finished(shown, "\n".join(lines))


def _row(record: Record, now_ms: int) -> dict[str, Any]:
    cause = cause_of(record, now_ms)
    return {
        "key": record.key,
        "status": str(record.status),
        "attempt": record.attempt,
        "written": text_of(record.updated_ms),
        "cause": "" if cause is None else cause.id,
        "says": "" if cause is None else cause.says,
        "downstream_keys": sent_keys(record),
    }


def _cells(rows: Sequence[Mapping[str, Any]]) -> tuple[list[list[object]], list[str]]:
    """Return the table and its titles. Its last column, if any, has what unknown calls sent."""
    table = []
    for row in rows:
        *cells, sent = row.values()
        table.append([*cells, _calls_in_words(sent)])
    titles = list(rows[0])
    if any(cells[-1] for cells in table):
        return table, titles
    return [cells[:-1] for cells in table], titles[:-1]


def _calls_in_words(sent: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {key}" for name, key in sent.items())


def _table(rows: Sequence[Sequence[object]], titles: Sequence[str]) -> list[str]:
    """Return lines with columns that are as wide as their widest cell."""
    cells = [list(map(str, row)) for row in (titles, *rows)]
    columns = zip(*cells, strict=True)
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for row in cells:
        padded = map(str.ljust, row, widths)
        line = "  ".join(padded)
        lines.append(line.rstrip())
    return lines


def _show(records: Records, options: argparse.Namespace, now_ms: int) -> Finished:
    (record,) = records.named([options.key])
    found = records.explain(record, datetime.fromtimestamp(now_ms / 1000, UTC))
    values = record._asdict()
    values["says"] = found.says
    cause = cause_of(record, now_ms)
    if cause is not None:
        values["cause"] = cause.id
    values["downstream_key"] = downstream_key(record.key)
    values["unknown_calls"] = sent_keys(record)
    shown = {name: value for name, value in values.items() if value not in (None, False, {})}
    width = max(map(len, shown))
    lines = []
    for name, value in shown.items():
        words = _in_words(name, value)
        lines.append(f"{name:<{width}}  {words}")
    return Finished(shown, "\n".join(lines))


def _in_words(name: str, value: Any) -> str:
    if name == "unknown_calls":
        return _calls_in_words(value)
    if name.endswith("_ms"):
        return text_of(value)
    if name == "expiry":
        return text_of(value * 1000)
    return str(value)


# ── Changing ──────────────────────────────────────────────────────────────────────────────────────


def _preview(records: Records, options: argparse.Namespace, now_ms: int) -> Preview:
    choice = choice_of(options, now_ms)
    if choice.is_everything:
        raise UsageError(
            "name the keys, or choose records by --consumer, --status, --older, --younger or "
            "--cause: everything at once is not offered"
        )
    return records.preview(choice, _planner(options), now_ms, index=options.index)


def _planner(options: argparse.Namespace) -> Planner:
    if options.verb == "release":
        return plan_release
    if options.verb == "forget":
        return plan_forget
    answer = answer_of(options.done, not_done=options.not_done)
    return partial(plan_settle, answer=answer, call=options.call)


def _change(
    records: Records, options: argparse.Namespace, command: "_Command", now_ms: int
) -> Finished:
    """Show what would change, or change exactly what was shown."""
    action = options.verb
    preview = _preview(records, options, now_ms)
    exact = preview.exact(action)
    if options.yes and preview.planned:
        command.take(exact, must_be_shown=action in MUST_BE_SHOWN)
        return _carried_out(records, action, preview.planned)
    shown = _shown_of(action, preview)
    lines = _lines_of(action, preview)
    if not preview.planned:
        return Finished(shown, "\n".join(lines), _LEFT_TO_DO)
    shown["plan"] = command.save(exact)
    lines.append(what_yes_does(shown["plan"]))
    return Finished(shown, "\n".join(lines))


def _carried_out(records: Records, action: str, planned: Sequence[Planned]) -> Finished:
    """Change each record that is still as it was shown."""
    changed = [each.seen.key for each in planned if not records.carry_out(each)]
    number = len(planned)
    done = number - len(changed)
    result = {"action": action, "done": done, "changed_meanwhile": changed}
    said = [f"{action}: {done} of {number} done"]
    said += [f"{key} has changed since it was read, and was left alone" for key in changed]
    status = _LEFT_TO_DO if changed else 0
    return Finished(result, "\n".join(said), status)


def _shown_of(action: str, preview: Preview) -> dict[str, Any]:
    """Return a preview as JSON."""
    records = []
    for each in preview.planned:
        says = each.change.record.says
        records.append({"key": each.seen.key, "says": says, "then": each.change.then})
    return {"action": action, "records": records, "left_alone": dict(preview.left_alone)}


def _lines_of(action: str, preview: Preview) -> list[str]:
    lines = []
    for each in preview.planned[:_SHOWN]:
        lines += [f"{action} {each.seen.key}", f"  {each.change.record.says}"]
    if len(preview.planned) > _SHOWN:
        lines.append(f"… and {len(preview.planned) - _SHOWN} more; --json shows all")
    for then in dict.fromkeys(each.change.then for each in preview.planned):
        lines.append(f"Then {then}.")
    if not preview.planned:
        lines.append(f"there is nothing to {action}")
    for why, count in preview.left_alone.most_common():
        lines.append(f"{count} left alone: {why}")
    return lines


# ── Redriving ─────────────────────────────────────────────────────────────────────────────────────


def _redrive(
    store: Store, options: argparse.Namespace, command: "_Command", clients: Clients
) -> Finished:
    """Show what a redrive would send, or send exactly what was shown."""
    _check_redrive(options)
    wait_s = seconds_of(options.wait)
    target = _target(options.to, clients)
    site = QueueSite(clients("sqs"), options.queue, store, target)
    plan = plan_redrive(
        site,
        letter_choice_of(options, command.now_ms),
        limit=options.limit,
        releases=options.release,
        now_ms=command.now_ms,
    )
    shown: dict[str, Any] = plan.exact() | {"others": plan.others, "hidden": plan.hidden}
    lines = _lines_of_letters(plan)
    if not plan.goes:
        return Finished(shown, "\n".join([*lines, "There is nothing to redrive."]), _LEFT_TO_DO)
    if not options.yes:
        shown["plan"] = command.save(plan.exact())
        return Finished(shown, "\n".join([*lines, what_yes_does(shown["plan"])]))
    command.take(plan.exact(), must_be_shown=options.release)
    redrive = Redrive(
        site,
        plan,
        tries_one=not options.all_at_once,
        rate=options.rate,
        wait_s=wait_s,
        report=lambda text: print(text, file=sys.stderr, flush=True),
    )
    return _told(redrive.carry_out())


def _check_redrive(options: argparse.Namespace) -> None:
    if options.queue is None:
        raise UsageError("name the dead-letter queue: --queue URL, or set DEAD_LETTER_QUEUE_URL")
    for given in (options.limit, options.rate):
        if given is not None and given <= 0:
            raise UsageError("--limit and --rate have to be more than 0")


def _told(done: Redriven) -> Finished:
    """Say what a redrive has done."""
    said = [f"redrive: {done.sent} of {done.planned} sent"]
    said += [f"{count} stayed: {why}" for why, count in done.stayed.items()]
    if done.gone:
        said.append(f"{done.gone} were no longer in the queue, or hidden by another reader")
    return Finished(done.to_json(), "\n".join(said), 0 if done.succeeded else _LEFT_TO_DO)


def _target(name: str, clients: Clients) -> Target:
    """Return the function or the queue of this name."""
    if "://" in name:
        return QueueTarget(clients("sqs"), name)
    if name.startswith("arn:") and name.split(":")[2:3] == ["sqs"]:
        _, _, _, _, account, queue = name.split(":")
        url = clients("sqs").get_queue_url(QueueName=queue, QueueOwnerAWSAccountId=account)
        return QueueTarget(clients("sqs"), url["QueueUrl"])
    return FunctionTarget(clients("lambda"), name)


def _lines_of_letters(plan: RedrivePlan[Letter]) -> list[str]:
    lines = [f"to {plan.target}"]
    for each, count in groups_of(plan.letters):
        letter = each.letter
        verb = "send" if each.verdict.goes else "keep"
        from_whom = letter.consumer or "another service"
        lines.append(f"{verb} {count} of group {letter.group}: {letter.reason} of {from_whom}")
        lines += [f"  {text}" for text in (letter.error, each.verdict.says) if text]
    lines += [f"releases {key}" for key in released_keys(plan.letters)]
    if plan.others:
        lines.append(f"{plan.others} other letters were not chosen")
    if plan.hidden:
        lines.append(
            f"messages hidden by another reader: {plan.hidden}; run the command again later"
        )
    if plan.unread:
        lines.append(
            f"about {plan.unread} letters wait behind these: a FIFO queue shows ten of a group at "
            "once, so run the command again afterwards"
        )
    return lines


def _client(service: str) -> Any:
    """Make a client with the shell's own settings. An invocation may take 15 minutes."""
    config = Config(connect_timeout=5, read_timeout=910, retries={"total_max_attempts": 1})
    if service != "lambda":
        config = Config(connect_timeout=5, read_timeout=25, retries={"mode": "standard"})
    session = get_session()
    return session.create_client(service, region_name=region_of(session), config=config)


# ── The command ───────────────────────────────────────────────────────────────────────────────────


def _plans() -> PlanFolder:
    """Return the folder of plans: `IDEMPOTENCY_PLANS`, or one in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    named = os.environ.get("IDEMPOTENCY_PLANS")
    return PlanFolder(Path(named) if named else cache / "carride-idempotency" / "plans", PROGRAM)


class _Command:
    """A command line as it was typed, and the store that it changes."""

    def __init__(self, typed: Sequence[str], options: argparse.Namespace, clients: Clients) -> None:
        self._store = without_password(options.store)
        self._clients = clients
        self._planning = Planning(_plans(), map(without_password, typed))
        self.now_ms = int(self._planning.plan.made.timestamp() * 1000)
        """The time as of which it is planned: that of the preview, if one is carried out."""

    def save(self, exact: Any) -> str | None:
        """Keep what was shown, and return the plan's id; None if that is not possible."""
        return self._planning.save(_plain(exact), self._places())

    def take(self, exact: Any, *, must_be_shown: bool) -> None:
        """Check that what was shown is still so; on a terminal, that it was, if it must be.

        Raises:
            PlanError: it is not; or nobody can tell whether it was shown for this account.
        """
        self._planning.take(_plain(exact), self._places, must_be_shown=must_be_shown)

    def _places(self) -> list[Place]:
        """Return what a plan is bound to: the store; of a table also its region and account."""
        if not self._store.startswith("dynamodb:"):
            return [Place(self._store)]
        endpoints = ("AWS_ENDPOINT_URL_DYNAMODB", "AWS_ENDPOINT_URL")
        endpoint = next(filter(None, map(os.environ.get, endpoints)), None)
        if endpoint is not None:
            return [Place(f"{self._store} at {endpoint}")]
        return [place_on_aws(self._store, region_of(get_session()), self._account())]

    def _account(self) -> str | None:
        """Return the account that the shell's credentials are of; None if STS does not say it."""
        try:
            return str(self._clients("sts").get_caller_identity()["Account"])
        except (BotoCoreError, ClientError):
            return None


def without_password(word: str) -> str:
    """Return an address with a fingerprint in the place of its password."""

    def masked(found: re.Match[str]) -> str:
        return f"{found[1]}:…{sha256(found[2].encode()).hexdigest()[:8]}@"

    return _PASSWORD.sub(masked, word)


def _plain(data: Any) -> Any:
    return json.loads(json.dumps(data, default=str))


def run(typed: Sequence[str], store: Store | None = None, clients: Clients = _client) -> Finished:
    """Carry out a command, and return what it has found or done.

    Raises:
        UsageError, ChangeRefusedError, NoRecordError, PlanError, RedriveError: it cannot be carried
            out.
        ConfigurationError, StoreError: the store cannot be opened, or does not answer.
    """
    options = parser().parse_args(typed)
    if options.store is None and store is None:
        raise UsageError("name the store: --store dynamodb:<table>, or set IDEMPOTENCY_STORE")
    options.store = options.store or "the given store"
    command = _Command(typed, options, clients)
    store = store or _opened(options.store)
    records = Records(store)
    if options.verb == "list":
        return _list(records, options, command.now_ms)
    if options.verb == "show":
        return _show(records, options, command.now_ms)
    if options.verb == "redrive":
        return _redrive(store, options, command, clients)
    return _change(records, options, command, command.now_ms)


def _opened(address: str) -> Store:
    """Open a store with the shell's own settings of AWS, profiles included."""
    if not address.startswith("dynamodb:"):
        return open_store(address)
    try:
        transport = botocore_transport(connect_timeout_s=5, read_timeout_s=20)
    except BotoCoreError as error:
        raise UsageError(f"{error}: set AWS_REGION, and AWS_PROFILE or credentials") from error
    return open_store(address, transport=transport)


def main(
    typed: Sequence[str] | None = None, store: Store | None = None, clients: Clients = _client
) -> int:
    """Run a command, by default that of this process; return its status."""
    typed = sys.argv[1:] if typed is None else typed
    try:
        done = run(typed, store, clients)
    except _REFUSED as error:
        print(f"error: {error}", file=sys.stderr)
        return _WRONG
    except (BotoCoreError, ClientError) as error:
        print(f"error: {error}; check AWS_PROFILE and AWS_REGION", file=sys.stderr)
        return _WRONG
    except KeyboardInterrupt as error:
        print(str(error) or "interrupted; run it again to continue", file=sys.stderr)
        return _INTERRUPTED
    text = json.dumps(done.shown, indent=2, default=str) if "--json" in typed else done.text
    try:
        print(text, flush=True)
    except BrokenPipeError:  # whoever reads it, such as `head`, has read enough
        _discard_output()
    return done.status


def _discard_output() -> None:
    """Let the end of the process flush to nowhere what a closed pipe did not take."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
