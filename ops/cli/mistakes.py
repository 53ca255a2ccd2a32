"""Says in words what is wrong with a command line."""

from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

from cyclopts.exceptions import (
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    UnknownCommandError,
    UnusedCliTokensError,
)

from ops.audit.evidence import CONSUMERS
from ops.dead_letters import BUS, counts_of, name_of
from ops.finding import find
from ops.stack import FAILURES, ClientFactory, StackRef
from ops.text import counted
from ops.verbs import VERBS

_NUMBERS: Final = {int: "a whole number", float: "a number"}


def mistake(
    error: CycloptsError, typed: Sequence[str] = (), clients: ClientFactory | None = None
) -> str:
    """Return what is wrong with a command line, and what to write instead.

    ``typed`` are its words, which may choose a stack, and ``clients`` reach it.
    """
    match error:
        case MissingArgumentError():
            return _missing(error, typed, clients)
        case UnusedCliTokensError(unused_tokens=[first, *_]):
            return f"{_command(error)} takes no further word, such as {first!r}: {_help(error)}"
        case UnknownCommandError(unused_tokens=[first, *_]):
            return _unknown(error, first)
        case CoercionError(msg=None, token=token) if token and error.target_type in _NUMBERS:
            name = token.keyword or "the argument"
            return f"Invalid value for {name}: {token.value!r} is not {_NUMBERS[error.target_type]}"
    return str(error)


def _missing(
    error: MissingArgumentError, typed: Sequence[str], clients: ClientFactory | None
) -> str:
    name = "" if error.argument is None else error.argument.name
    was_named = error.keyword or (error.argument is not None and error.argument.tokens)
    if was_named:
        return f"{name} has no value: write {name}=VALUE; {_help(error)}"
    if name == "NAME" and "redrive" in (error.command_chain or ()):
        return f"{name} is missing: {_queues(_command(error), typed, clients)}"
    return f"{name} is missing: {_example(error, name)}{_help(error)}"


def _example(error: CycloptsError, name: str) -> str:
    """Return an example of the command that has an option, to copy; empty if there is none."""
    verb = VERBS.get(" ".join(error.command_chain or ()))
    for arguments in () if verb is None else verb.examples:
        if name in arguments:
            return f"write it like `{_command(error)} {arguments}`; "
    return ""


def _queues(command: str, typed: Sequence[str], clients: ClientFactory | None) -> str:
    """Return which names there are, how many letters each has, and what to write next.

    Without an answer of the stack, the names are those that every stack has.
    """
    try:
        counts = _counts(find(**_chosen(typed), clients=clients))
    except FAILURES:
        names = ", ".join([*(each.name for each in CONSUMERS), BUS])
        return f"it is one of {names}; `./carride letters` shows which of them have letters"
    empty = ", ".join(name for name, count in counts.items() if not count)
    if not counts.total():
        return f"no queue has a letter, of {empty}"
    says = []
    for name, count in counts.most_common():
        if count:
            says.append(f"{name} has {counted(count, 'letter')}")
    if empty:
        says.append(f"none are in {empty}")
    ((fullest, _),) = counts.most_common(1)
    return f"{', '.join(says)}; `{command} {fullest}` shows what it would do"


def _counts(stack: StackRef) -> Counter[str]:
    """Return how many letters each name has that a redrive takes."""
    counts = Counter[str]()
    for queue, count in counts_of(stack).items():
        counts[name_of(queue)] += count
    return counts


def _chosen(typed: Sequence[str]) -> dict[str, str | None]:
    """Return the options of a command line that choose its stack."""
    found: dict[str, str | None] = {"stack": None, "region": None}
    left = iter(typed)
    for word in left:
        name, is_one_word, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and name in found:
            found[name] = value if is_one_word else next(left, None)
    return found


def _unknown(error: CycloptsError, word: str) -> str:
    """Return that there is no such command, and which ones have a name like it."""
    group = "".join(f"{each} " for each in error.command_chain or ())
    verbs = [name for name in VERBS if name.startswith(group)]
    names = [name.removeprefix(group) for name in verbs]
    alike = get_close_matches(word, names, n=1)
    hint = ""
    if alike:
        hint = f"did you mean {alike[0]}? "
    command = _command(error)
    return f"there is no command {group}{word}: {hint}`{command} --help` lists them"


def _command(error: CycloptsError) -> str:
    return " ".join(["./carride", *(error.command_chain or ())])


def _help(error: CycloptsError) -> str:
    return f"`{_command(error)} --help` explains it"
