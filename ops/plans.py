"""Plans of the command line: `--yes` does what was shown, or nothing.

The library keeps and compares them. The same words with `--yes` find a plan, make it again as of
the time of the preview, and carry it out only if it is still the same.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from carride_idempotency.operators.plans import (
    LIVES,
    Place,
    PlanChangedError,
    PlanError,
    PlanFolder,
    Planning,
    SavedPlan,
    new_plan_id,
    place_on_aws,
)
from ops.regions import ROOT
from ops.stack import OperatorError, StackRef, account_of

__all__ = [
    "LIVES",
    "PLANS",
    "StalePlanError",
    "named",
    "new_id",
    "now",
    "refused_at",
    "save",
    "saved",
    "take",
    "typed",
    "waits",
    "without_secrets",
]

PLANS: Final = Path(os.environ.get("CARRIDE_PLANS", ROOT / ".carride" / "plans"))
"""The folder of the plans. Where it cannot be one, as /dev/null, no plan is kept."""
_CHOOSING: Final = {"--stack", "--region"}
"""Options that choose the stack. A plan is bound to the stack itself."""


class StalePlanError(OperatorError):
    """Raised when what a plan has shown is not so any more: the message says what has changed.

    ``changed`` are all the differences, each in words; long values are cut.
    """

    def __init__(self, error: PlanChangedError) -> None:
        super().__init__(str(error))
        self.changed = error.changes


_command: ContextVar[Planning | None] = ContextVar("command", default=None)


def now() -> datetime:
    """Return the time as of which verbs plan: that of the preview, if one is carried out."""
    command = _command.get()
    return datetime.now(UTC) if command is None else command.plan.made


def new_id() -> str:
    """Return an id that a verb may show in its plan: it is the same when the plan is made again."""
    command = _command.get()
    return new_plan_id() if command is None else command.plan.id


@contextmanager
def typed(arguments: Sequence[str]) -> Iterator[None]:
    """Have verbs plan for a command line: for a plan of its own, or for one that was shown.

    Raises:
        OperatorError: ``--plan`` names a plan that is not there.
    """
    with _told():
        planning = Planning(_folder(), without_secrets(arguments), _CHOOSING)
    token = _command.set(planning)
    try:
        yield
    finally:
        _command.reset(token)


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


def _folder() -> PlanFolder:
    return PlanFolder(PLANS, "./carride")


@contextmanager
def _told() -> Iterator[None]:
    """Tell why a plan cannot be carried out, as verbs do."""
    try:
        yield
    except PlanChangedError as error:
        raise StalePlanError(error) from error
    except PlanError as error:
        raise OperatorError(str(error)) from error


def named(name: str) -> SavedPlan:
    """Return a plan that can be carried out, by its id.

    Raises:
        OperatorError: there is none.
    """
    with _told():
        return _folder().named(name)


def saved() -> list[SavedPlan]:
    """Return the plans that change something and can be carried out, the newest first.

    Older ones are deleted.
    """
    _forget_marks()
    return _folder().saved()


def waits(plan: SavedPlan) -> bool:
    """Return whether a plan waits for somebody: it changes something, and was not refused."""
    return not plan.is_empty and refused_at(plan.id) is None


def refused_at(name: str) -> datetime | None:
    """Return when a plan was last refused because what it had shown had changed; None if never.

    It may still be carried out once everything is as it was shown.
    """
    try:
        return datetime.fromtimestamp(_mark_of(name).stat().st_mtime, UTC)
    except OSError:
        return None


def _file_of(name: str) -> Path:
    """Return the file of a plan: it is taken out of the folder when the plan is carried out."""
    return PLANS / f"{name}.json"


def _mark_of(name: str) -> Path:
    """Return the file whose time says when a plan was refused."""
    return PLANS / f"{name}.refused"


def _unmark(name: str) -> None:
    """Forget that a plan was refused."""
    with suppress(OSError):  # where no plan is kept, none was refused
        _mark_of(name).unlink()


def save(
    exact: Any,
    stacks: Iterable[StackRef],
    *,
    is_empty: bool = False,
    shown: Iterable[tuple[str, ...]] = (),
) -> str | None:
    """Keep the plan of this command, and return its id; None if plans cannot be kept.

    ``shown`` are the lines of its preview, in layouts from the widest to the narrowest.
    """
    command = _command.get()
    if command is None:
        return None
    _unmark(command.plan.id)
    return command.save(exact, _places_of(stacks), is_empty=is_empty, shown=tuple(shown))


def take(exact: Any, stacks: Iterable[StackRef], *, must_be_shown: bool = False) -> str | None:
    """Take the plan that was shown for this command out of the folder, and return its id.

    Return None if none was shown: then what is planned now is carried out, unless ``must_be_shown``
    and standard input is a terminal.

    Raises:
        OperatorError: what was shown has changed, or nobody can tell for which account it was
            shown, and the plan stays; or nothing was shown.
    """
    command = _command.get()
    if command is None:
        return None
    try:
        with _told():
            name = command.take(exact, lambda: _places_of(stacks), must_be_shown=must_be_shown)
    except StalePlanError:
        _mark_of(command.plan.id).touch()
        raise
    _unmark(command.plan.id)
    return name


def _forget_marks() -> None:
    """Delete the marks of refusals of plans that are not there any more."""
    for path in PLANS.glob("*.refused"):
        if not _file_of(path.stem).exists():
            path.unlink(missing_ok=True)


def _places_of(stacks: Iterable[StackRef]) -> list[Place]:
    """Return what a plan is bound to: each stack's name, region, and account or endpoint."""
    known = [*stacks]
    local = next((stack.local for stack in known if stack.local is not None), None)
    endpoint = os.environ.get("AWS_ENDPOINT_URL", "" if local is None else local.endpoint)
    if endpoint:
        return [Place(f"{stack.name} in {stack.region} at {endpoint}") for stack in known]
    account = account_of(known)
    return [place_on_aws(stack.name, stack.region, account) for stack in known]
