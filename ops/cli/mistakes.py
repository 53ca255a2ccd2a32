"""Says in words what is wrong with a command line."""

from difflib import get_close_matches
from typing import Final

from cyclopts.exceptions import (
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    UnknownCommandError,
    UnusedCliTokensError,
)

from ops.verbs import VERBS

_NUMBERS: Final = {int: "a whole number", float: "a number"}


def mistake(error: CycloptsError) -> str:
    """Return what is wrong with a command line, and what to write instead."""
    match error:
        case MissingArgumentError():
            return _missing(error)
        case UnusedCliTokensError(unused_tokens=[first, *_]):
            return f"{_command(error)} takes no further word, such as {first!r}: {_help(error)}"
        case UnknownCommandError(unused_tokens=[first, *_]):
            return _unknown(error, first)
        case CoercionError(msg=None, token=token) if token and error.target_type in _NUMBERS:
            name = token.keyword or "the argument"
            return f"Invalid value for {name}: {token.value!r} is not {_NUMBERS[error.target_type]}"
    return str(error)


def _missing(error: MissingArgumentError) -> str:
    name = "" if error.argument is None else error.argument.name
    was_named = error.keyword or (error.argument is not None and error.argument.tokens)
    if was_named:
        return f"{name} has no value: write {name}=VALUE; {_help(error)}"
    if name == "QUEUE":
        return f"{name} is missing: `./carride letters` shows the queues with letters"
    return f"{name} is missing: {_help(error)}"


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
