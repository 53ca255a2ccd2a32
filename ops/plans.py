"""Keeps the plans that acting verbs have shown, so that `--yes` does what was shown, or nothing.

A preview is written to a file. The same words with `--yes` find it, make the plan again as of the
time of the preview, and compare: only a plan that is still the same is carried out.
"""

import os
import re
import secrets
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from ops.regions import ROOT
from ops.stack import OperatorError, StackRef

PLANS: Final = Path(os.environ.get("CARRIDE_PLANS", ROOT / ".carride" / "plans"))
"""The folder of the plans. Where it cannot be one, as /dev/null, no plan is kept."""
LIVES: Final = timedelta(hours=1)
"""How long a plan can be carried out."""
_MOST_DIFFERENCES: Final = 10
_LONGEST_VALUE: Final = 80
_COMMON: Final = {"--yes", "--json"}
"""Options that do not change what is planned."""
_is_id = re.compile(r"[0-9a-f]{8}").fullmatch


class SavedPlan(Struct, frozen=True):
    """A plan that was shown."""

    id: str
    made: datetime
    words: tuple[str, ...]
    """The command, without ``--yes``, ``--json`` and ``--plan``."""
    stacks: tuple[str, ...] = ()
    """The stacks that it changes, each with its region and endpoint."""
    exact: Any = None
    """What has to be the same when it is carried out."""


class Command(NamedTuple):
    """A command line that was typed, and the plan that it makes or carries out."""

    plan: SavedPlan
    was_shown: bool
    """Whether the plan was shown before, and is to be carried out now."""


_command: ContextVar[Command | None] = ContextVar("command", default=None)


def now() -> datetime:
    """Return the time as of which verbs plan: that of the preview, if one is carried out."""
    command = _command.get()
    return datetime.now(UTC) if command is None else command.plan.made


def new_id() -> str:
    """Return an id that a verb may show in its plan: it is the same when the plan is made again."""
    command = _command.get()
    return secrets.token_hex(4) if command is None else command.plan.id


@contextmanager
def typed(arguments: Sequence[str]) -> Iterator[None]:
    """Have verbs plan for a command line: for a plan of its own, or for one that was shown.

    With ``--yes`` that is the plan that ``--plan`` names, or else the newest of the same words.

    Raises:
        OperatorError: ``--plan`` names a plan that is not there.
    """
    words, options = _apart(arguments)
    name = options.get("--plan")
    if name is not None and not _is_id(name):
        raise OperatorError(f"{name} cannot be the id of a plan: write eight digits from 0 to f")
    shown = _shown(words, name) if "--yes" in options else None
    plan = shown or SavedPlan(name or secrets.token_hex(4), datetime.now(UTC), words)
    token = _command.set(Command(plan, was_shown=shown is not None))
    try:
        yield
    finally:
        _command.reset(token)


def _apart(arguments: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the words that say what is planned, and the other options with their values."""
    words = list[str]()
    options = dict[str, str]()
    left = iter(without_secrets(arguments))
    for word in left:
        if word == "--":
            words += [word, *left]
        elif word in _COMMON:
            options[word] = ""
        elif word == "--plan":
            options[word] = next(left, "")
        elif word.startswith("--plan="):
            options["--plan"] = word.removeprefix("--plan=")
        else:
            words.append(word)
    return tuple(words), options


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """Return a command line with a fingerprint in the place of a token."""
    words = list[str]()
    left = iter(arguments)
    for word in left:
        name, is_one_word, value = word.partition("=")
        if name == "--token":
            value = value if is_one_word else next(left, "")
            word = f"{name}=…{sha256(value.encode()).hexdigest()[:8]}"  # noqa: PLW2901
        words.append(word)
    return words


def _shown(words: tuple[str, ...], name: str | None) -> SavedPlan | None:
    """Return the plan to carry out, or None if none was shown for these words."""
    if name is None:
        return next((plan for plan in saved() if plan.words == words), None)
    plan = named(name)
    if plan.words != words:
        raise OperatorError(
            f"the plan {name} is one of `./carride {shlex.join(plan.words)}`: run that with --yes"
        )
    return plan


def named(name: str) -> SavedPlan:
    """Return a plan that can be carried out, by its id.

    Raises:
        OperatorError: there is none.
    """
    for plan in saved():
        if plan.id == name:
            return plan
    raise OperatorError(
        f"there is no plan {name}: it was carried out, or is more than an hour old; "
        "run the command without --yes for a new one"
    )


def saved() -> list[SavedPlan]:
    """Return the plans that can be carried out, the newest first; delete older ones."""
    found = []
    for file in _files():
        try:
            plan = msgspec.json.decode(file.read_bytes(), type=SavedPlan)
        except (OSError, msgspec.DecodeError):
            continue  # another command has just removed it, or it is of another version
        if datetime.now(UTC) - plan.made > LIVES:
            file.unlink(missing_ok=True)
        else:
            found.append(plan)
    return sorted(found, key=lambda plan: plan.made, reverse=True)


def _files() -> Iterable[Path]:
    return PLANS.glob("*.json") if PLANS.is_dir() else ()


def save(exact: Any, stacks: Iterable[StackRef]) -> str | None:
    """Keep the plan of this command, and return its id; None if plans cannot be kept."""
    command = _command.get()
    if command is None:
        return None
    plan = msgspec.structs.replace(command.plan, exact=exact, stacks=tuple(map(_place_of, stacks)))
    try:
        PLANS.mkdir(parents=True, exist_ok=True)
        _file_of(plan).write_bytes(msgspec.json.encode(plan))
    except OSError:
        return None
    return plan.id


def take(exact: Any, stacks: Iterable[StackRef]) -> str | None:
    """Take the plan that was shown for this command out of the folder, and return its id.

    Return None if none was shown: then what is planned now is carried out.

    Raises:
        OperatorError: what was shown has changed. The plan stays.
    """
    command = _command.get()
    if command is None or not command.was_shown:
        return None
    plan = command.plan
    then = {"stacks": list(plan.stacks), "plan": plan.exact}
    today = {"stacks": [_place_of(each) for each in stacks], "plan": exact}
    changes = list(differences(then, today))
    if changes:
        raise OperatorError(_refusal(plan, changes))
    try:
        _file_of(plan).unlink()
    except FileNotFoundError:
        raise OperatorError(
            f"nothing was done: another command has carried out the plan {plan.id}"
        ) from None
    return plan.id


def _refusal(plan: SavedPlan, changes: Sequence[str]) -> str:
    told = [f"  {change}" for change in changes[:_MOST_DIFFERENCES]]
    if len(changes) > _MOST_DIFFERENCES:
        told.append(f"  and {len(changes) - _MOST_DIFFERENCES} more")
    return "\n".join(
        [
            f"nothing was done, because this has changed since the plan {plan.id} was shown:",
            *told,
            "Run the command without --yes to see what it would do now",
        ]
    )


def _file_of(plan: SavedPlan) -> Path:
    return PLANS / f"{plan.id}.json"


def _place_of(stack: StackRef) -> str:
    endpoint = stack.local.endpoint if stack.local is not None else "AWS"
    return f"{stack.name} in {stack.region} at {os.environ.get('AWS_ENDPOINT_URL', endpoint)}"


def differences(before: Any, after: Any, name: str = "") -> Iterator[str]:
    """Yield what differs between two JSON documents, in words.

    Entries of a list that have ids are compared by them.
    """
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        yield from _differences_by_name(before, after, name)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _differences_in_lists(before, after, name)
    elif msgspec.json.encode(before) != msgspec.json.encode(after):
        yield f"{name}: {_short(before)} is now {_short(after)}"


def _differences_by_name(
    before: Mapping[str, Any], after: Mapping[str, Any], name: str
) -> Iterator[str]:
    for key in [*before, *(after.keys() - before.keys())]:
        inner = f"{name} {key}".strip()
        if key not in after:
            yield f"{inner} is gone"
        elif key not in before:
            yield f"{inner} is new"
        else:
            yield from differences(before[key], after[key], inner)


def _differences_in_lists(before: list[Any], after: list[Any], name: str) -> Iterator[str]:
    then = _by_id(before)
    today = _by_id(after)
    if then is None or today is None:
        then = _by_place(before)
        today = _by_place(after)
    yield from _differences_by_name(then, today, name)
    stayed_then = [entry_id for entry_id in then if entry_id in today]
    stayed_today = [entry_id for entry_id in today if entry_id in then]
    if stayed_then != stayed_today:
        yield f"the order of {name} has changed"


def _by_place(entries: Sequence[Any]) -> dict[str, Any]:
    """Return entries by their places, which count from 1."""
    return {str(place): entry for place, entry in enumerate(entries, 1)}


def _by_id(entries: Sequence[Any]) -> dict[str, Any] | None:
    """Return entries by their ids; None unless each has one of its own, which is a text."""
    found = {}
    for each in entries:
        if not isinstance(each, Mapping) or not isinstance(each.get("id"), str):
            return None
        found[each["id"]] = each
    return found if len(found) == len(entries) else None


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
