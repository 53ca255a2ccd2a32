"""Keeps the plans that acting commands have shown, so that `--yes` does what was shown, or nothing.

A preview is written to a file. The same words with `--yes` find it, make the plan again, and
compare: only a plan that is still the same is carried out. An expired plan is refused, and so is a
file that was edited: without them `--yes` would do what nobody was shown.
"""

import json
import re
import secrets
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

LIVES: Final = timedelta(hours=1)
"""How long a plan can be carried out."""
_KEPT: Final = timedelta(days=1)
"""How long the file of an expired plan refuses the same words with `--yes`."""
_DO_NOT_CHANGE_THE_PLAN: Final = {"--yes", "--json"}
_MOST_DIFFERENCES: Final = 10
_LONGEST_VALUE: Final = 80
_RECORD: Final = " record: "
_VERDICT: Final = " verdict "
_owners = re.compile(r", owner \S+")
is_plan_id = re.compile(r"[0-9a-f]{8}").fullmatch


class PlanError(Exception):
    """Raised when a plan cannot be carried out. The message says why, and what to do."""


class PlanChangedError(PlanError):
    """Raised when what a plan has shown is not so any more.

    Args:
        plan: the plan that was shown.
        changes: each difference, in words.
    """

    def __init__(self, plan: "SavedPlan", changes: Sequence[str]) -> None:
        super().__init__(_refusal(plan, changes))
        self.changes = [*changes]


class SavedPlan(NamedTuple):
    """A plan that was shown."""

    id: str
    made: datetime
    words: tuple[str, ...]
    """The command, without the options that do not change what is planned."""
    places: tuple[str, ...] = ()
    """What it changes: stores, queues or stacks."""
    exact: Any = None
    """What has to be the same when it is carried out, as JSON."""
    is_empty: bool = False
    """Whether it would change nothing. It waits for nobody, but `--yes` is still bound to it."""
    shown: tuple[tuple[str, ...], ...] = ()
    """The lines of its preview, in layouts from the widest to the narrowest."""


class Place(NamedTuple):
    """What a plan changes: a store, a queue or a stack."""

    name: str
    has_known_owner: bool = True
    """False if it is on AWS, where nobody says in which account."""


def place_on_aws(name: str, region: str, account: str | None) -> Place:
    """Return a place whose name is that of one in each region and account.

    The account is None if AWS does not say it.
    """
    if account is None:
        return Place(f"{name} in {region} of an unknown account", has_known_owner=False)
    return Place(f"{name} in {region} of account {account}")


def _refuse_unseen() -> None:
    """Refuse, on a terminal, to carry out what no plan has shown.

    Raises:
        PlanError: standard input is a terminal.
    """
    if sys.stdin is not None and sys.stdin.isatty():
        raise PlanError(
            "nothing was done: no plan of this command was shown. Run it without --yes, read the "
            "plan, and add --yes within an hour; a script names the plan with --plan. If the "
            "preview names no plan id, make the folder of plans writable"
        )


def _refuse_unknown(places: Iterable[Place]) -> None:
    """Refuse to carry out a plan where nobody can tell whether it was shown for this account.

    Raises:
        PlanError: AWS does not say whose account one of the places is in.
    """
    if not all(place.has_known_owner for place in places):
        raise PlanError(
            "nothing was done: AWS does not say whose account it is, so nobody can tell whether "
            "the plan was shown for it; when `aws sts get-caller-identity` answers, run the "
            "command without --yes again"
        )


def what_yes_does(plan_id: str | None) -> str:
    """Return the last line of a preview. The id is None if no plan can be kept."""
    if plan_id is None:
        return "nothing was done; add --yes to do it"
    return f"nothing was done; add --yes to do it: exactly this plan, {plan_id}, or nothing"


def new_plan_id() -> str:
    """Return the id of a new plan."""
    return secrets.token_hex(4)


class PlanFolder:
    """A folder of plans. If the path cannot be a folder, such as /dev/null, no plan is kept.

    Args:
        folder: where the files are.
        program: begins a command line in messages, such as ``./carride``.
    """

    def __init__(self, folder: Path, program: str) -> None:
        self.folder = folder
        self.program = program

    def saved(self) -> list[SavedPlan]:
        """Return the plans that change something and can be carried out, the newest first.

        Those of yesterday are deleted.
        """
        kept = self._kept()
        return [plan for plan in kept if not plan.is_empty and not _has_expired(plan)]

    def named(self, name: str) -> SavedPlan:
        """Return a plan that can be carried out, by its id.

        Raises:
            PlanError: there is none.
        """
        for plan in self._kept():
            if plan.id == name:
                self._refuse_expired(plan)
                return plan
        self._refuse_damaged(file for file in self._files() if file.stem == name)
        raise PlanError(
            f"there is no plan {name}: it was carried out, or is more than an hour old; "
            "run the command without --yes for a new one"
        )

    def shown(
        self, words: tuple[str, ...], name: str | None, choosing: Collection[str] = ()
    ) -> SavedPlan | None:
        """Return the plan to carry out, or None if none was shown for these words.

        One that is named may have been shown with other ``choosing`` options, which say where:
        `take` refuses it elsewhere.

        Raises:
            PlanError: ``name`` is not a plan of these words; or what was shown has expired, or
                cannot be read any more.
        """
        if name is None:
            return self._newest(words)
        plan = self.named(name)
        if _without(plan.words, choosing) != _without(words, choosing):
            raise PlanError(
                f"the plan {name} is one of `{self.program} {shlex.join(plan.words)}`: "
                "run that with --yes"
            )
        return plan

    def _newest(self, words: tuple[str, ...]) -> SavedPlan | None:
        """Return the newest plan of these words, or None."""
        plan = next((plan for plan in self._kept() if plan.words == words), None)
        # One that cannot be read may have been of these words.
        self._refuse_damaged(self._files())
        if plan is not None:
            self._refuse_expired(plan)
        return plan

    def _refuse_expired(self, plan: SavedPlan) -> None:
        if _has_expired(plan):
            raise PlanError(
                f"nothing was done: the plan {plan.id} has expired, because it was shown more than "
                "an hour ago; run the command without --yes to see what it would do now"
            )

    def _refuse_damaged(self, files: Iterable[Path]) -> None:
        for file in files:
            if file.exists() and _read(file) is None:
                raise PlanError(
                    f"nothing was done: {file} is not as it was written, so nobody can tell what "
                    "was shown; delete it, and run the command without --yes for a new plan"
                )

    def save(self, plan: SavedPlan) -> str | None:
        """Keep a plan, and return its id; None if plans cannot be kept."""
        fields = plan._asdict() | {"made": plan.made.isoformat()}
        file = self._file_of(plan)
        unfinished = file.with_suffix(".new")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            as_read = json.loads(json.dumps(fields))
            written = json.dumps(as_read | {"checksum": _checksum(as_read)})
            unfinished.write_text(written, encoding="utf-8")
            # Another command sees the whole file, or none.
            unfinished.replace(file)
        except OSError:
            return None
        return plan.id

    def take(self, plan: SavedPlan, exact: Any, places: Iterable[str]) -> str:
        """Remove a plan from the folder in order to carry it out; return its id.

        Expired plans of the same words go too: what they showed has been shown again.

        Raises:
            PlanChangedError: what was shown has changed. The plan stays in the folder.
            PlanError: another command has carried it out.
        """
        then = {"places": list(plan.places), "plan": plan.exact}
        today = {"places": list(places), "plan": exact}
        changes = list(differences(then, today))
        if changes:
            raise PlanChangedError(plan, changes)
        try:
            self._file_of(plan).unlink()
        except FileNotFoundError:
            raise PlanError(
                f"nothing was done: another command has carried out the plan {plan.id}"
            ) from None
        for other in self._kept():
            if other.words == plan.words and _has_expired(other):
                self._file_of(other).unlink(missing_ok=True)
        return plan.id

    def _kept(self) -> list[SavedPlan]:
        """Return all plans, expired ones too, the newest first; delete those of yesterday."""
        found = []
        for file in self._files():
            if _is_of_yesterday(file):
                file.unlink(missing_ok=True)
            elif (plan := _read(file)) is not None:
                found.append(plan)
        return sorted(found, key=lambda plan: plan.made, reverse=True)

    def _files(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return [file for file in self.folder.glob("*.json") if is_plan_id(file.stem)]

    def _file_of(self, plan: SavedPlan) -> Path:
        return self.folder / f"{plan.id}.json"


def _without(words: Iterable[str], options: Collection[str]) -> list[str]:
    """Return the words of a command without some options and their values."""
    found = list[str]()
    left = iter(words)
    for word in left:
        if word == "--":
            return [*found, word, *left]
        name, is_one_word, _ = word.partition("=")
        if name not in options:
            found.append(word)
        elif not is_one_word:
            next(left, "")
    return found


def _has_expired(plan: SavedPlan) -> bool:
    return not timedelta() <= datetime.now(UTC) - plan.made <= LIVES


def _is_of_yesterday(file: Path) -> bool:
    try:
        written = datetime.fromtimestamp(file.stat().st_mtime, UTC)
    except FileNotFoundError:
        return True
    return datetime.now(UTC) - written > _KEPT


def _read(file: Path) -> SavedPlan | None:
    """Return the plan in a file; None if it is gone, or not as it was written."""
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
        if fields.pop("checksum") != _checksum(fields) or fields["id"] != file.stem:
            return None
        return SavedPlan(
            id=fields["id"],
            made=datetime.fromisoformat(fields["made"]),
            words=tuple(fields["words"]),
            places=tuple(fields["places"]),
            exact=fields["exact"],
            # A file of an older version does not have these.
            is_empty=fields.get("is_empty", False),
            shown=tuple(map(tuple, fields.get("shown", ()))),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _checksum(fields: Mapping[str, Any]) -> str:
    """Return what tells an edited file from one that was written here."""
    return sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _refusal(plan: SavedPlan, changes: Sequence[str]) -> str:
    told = [_without_owners(change) for change in _causes(changes)]
    lines = [f"  {change}" for change in told[:_MOST_DIFFERENCES]]
    if len(told) > _MOST_DIFFERENCES:
        lines.append(f"  and {len(told) - _MOST_DIFFERENCES} more")
    return "\n".join(
        [
            f"nothing was done, because this has changed since the plan {plan.id} was shown:",
            *lines,
            "Run the command without --yes to see what it would do now",
        ]
    )


def _causes(changes: Sequence[str]) -> list[str]:
    """Return differences without verdicts on letters whose records have changed."""
    changed = {name for name, found, _ in (each.partition(_RECORD) for each in changes) if found}
    return [each for each in changes if each.partition(_VERDICT)[0] not in changed]


def _without_owners(change: str) -> str:
    """Return a difference without the tokens of owners, which only tell two writes apart."""
    told = _owners.sub("", change)
    owners = {*_owners.findall(change)}
    return f"{told}, by another owner" if len(owners) > 1 else told


# ── A command ─────────────────────────────────────────────────────────────────────────────────────


class Planning:
    """A command line that was typed, and the plan that it makes or carries out.

    With ``--yes`` that is the plan that ``--plan`` names, or else the newest of the same words.

    Args:
        folder: keeps the plans.
        typed: the command line, without anything secret.
        choosing: options that choose what is changed. A plan is bound to that itself.

    Raises:
        PlanError: ``--plan`` names a plan that is not there, or what was shown has expired.
    """

    def __init__(
        self, folder: PlanFolder, typed: Iterable[str], choosing: Collection[str] = ()
    ) -> None:
        words, options = _apart(typed)
        name = options.get("--plan")
        if name is not None and not is_plan_id(name):
            raise PlanError(f"{name} cannot be the id of a plan: write eight digits from 0 to f")
        shown = folder.shown(words, name, choosing) if "--yes" in options else None
        self._folder = folder
        self.was_shown = shown is not None
        """Whether the plan was shown before, and is to be carried out now."""
        self.plan = shown or SavedPlan(name or new_plan_id(), datetime.now(UTC), words)
        """Its time is that as of which is planned: that of the preview, if it is carried out."""

    def save(self, exact: Any, places: Iterable[Place], **shown: Any) -> str | None:
        """Keep what is shown, and return the plan's id; None if plans cannot be kept.

        ``shown`` are further fields of `SavedPlan`.
        """
        names = tuple(place.name for place in places)
        return self._folder.save(self.plan._replace(exact=exact, places=names, **shown))

    def take(
        self, exact: Any, places: Callable[[], Collection[Place]], *, must_be_shown: bool
    ) -> str | None:
        """Take the plan that was shown out of the folder, and return its id.

        The ``places`` are asked for only then. Return None if none was shown: then what is planned
        now is carried out, unless it ``must_be_shown`` and standard input is a terminal.

        Raises:
            PlanError: what was shown has changed, or nobody can tell for which account it was
                shown, and the plan stays; or nothing was shown.
        """
        if self.was_shown:
            found = places()
            _refuse_unknown(found)
            return self._folder.take(self.plan, exact, [place.name for place in found])
        if must_be_shown:
            _refuse_unseen()
        return None


def _apart(typed: Iterable[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the words that say what is planned, and the other options with their values."""
    words = list[str]()
    options = dict[str, str]()
    left = iter(typed)
    for word in left:
        if word == "--":
            words += [word, *left]
        elif word in _DO_NOT_CHANGE_THE_PLAN:
            options[word] = ""
        elif word == "--plan":
            options[word] = next(left, "")
        elif word.startswith("--plan="):
            options["--plan"] = word.removeprefix("--plan=")
        else:
            words.append(word)
    return tuple(words), options


# ── Differences ───────────────────────────────────────────────────────────────────────────────────


def differences(before: Any, after: Any, name: str = "") -> Iterator[str]:
    """Yield what differs between two JSON documents, in words.

    Entries of a list that have ids are compared by them.
    """
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        yield from _differences_by_name(before, after, name)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _differences_in_lists(before, after, name)
    elif _json(before) != _json(after):
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
    """Return entries by their ids; None unless each has an id that is a text and its own."""
    found = {}
    for each in entries:
        if not isinstance(each, Mapping) or not isinstance(each.get("id"), str):
            return None
        found[each["id"]] = each
    return found if len(found) == len(entries) else None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else _json(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
