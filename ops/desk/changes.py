"""What operators did about a ride or a key, by the log of changes of this machine."""

import json
import shlex
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from ops.change_log import newest_lines
from ops.desk.words import clip

_COMMON: Final = ("--yes", "--json", "--stack", "--region", "--plan")
"""Options that say how a command was run, and not what it did."""
TRIALS: Final[Mapping[str, str]] = {
    "succeeded": "it succeeded",
    "failed": "its first attempt failed",
    "unknown": "it had not answered when the redrive ended",
}
"""How the letter of a redrive went while the redrive waited: it may have attempts left."""
_RANKS: Final = ("succeeded", "failed", "unknown")
"""Trials: of several letters of one key, the one that comes earlier here says how that went."""


class Sent(NamedTuple):
    """A key whose letter a redrive was to send."""

    key: str
    releases: bool
    """Whether its key was released first."""
    trial: str
    """How it went: ``succeeded``, ``failed``, ``unknown``; empty if nobody waited for it."""


class Change(NamedTuple):
    """A command that has changed a stack."""

    time_ms: float
    verb: str
    """Its first word."""
    words: str
    """What was typed, without the options that every command has."""
    plan: str
    """Id of the plan that it carried out; empty if it had none."""
    key: str
    """The key that it released; empty for other commands."""
    sent: tuple[Sent, ...]
    error: str
    """Why it ended early; empty if it did not."""


def changes_about(names: Collection[str]) -> list[Change]:
    """Return the changes that name one of these rides or keys, the oldest first."""
    found = []
    for line in newest_lines():
        if not any(name in line for name in names):
            continue
        try:
            found.append(_change(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # a line of another version, or one that is cut
    return found


def _change(line: Mapping[str, Any]) -> Change:
    words = [*_own_words(str(line["command"]))]
    exact = line.get("exact") or {}
    return Change(
        time_ms=datetime.fromisoformat(line["time"]).timestamp() * 1000,
        verb=words[1] if len(words) > 1 else "",
        words=clip(shlex.join(words)),
        plan=str(line.get("plan") or ""),
        key=str(exact.get("key") or ""),
        sent=tuple(_sent(exact, line.get("result") or {})),
        error=clip(str(line.get("error") or "")),
    )


def _own_words(command: str) -> Iterator[str]:
    """Yield the words of a command line that say what it did."""
    is_value = False
    for word in shlex.split(command):
        name, is_one_word, _ = word.partition("=")
        if is_value:
            is_value = False
        elif name in _COMMON:
            is_value = not is_one_word and name not in ("--yes", "--json")
        else:
            yield word


def _sent(exact: Mapping[str, Any], result: Mapping[str, Any]) -> Iterator[Sent]:
    """Yield the keys of the letters that a redrive was to send, each once; none if it sent none."""
    if result.get("sent") == 0:  # it has ended, and left all letters where they were
        return
    trials = dict[str | None, str]()
    for each in result.get("tried", ()):
        trial = str(each["trial"])
        trials[each["key"]] = min(trials.get(each["key"], trial), trial, key=_RANKS.index)
    by_key: dict[str, Sent] = {}
    for letter in exact.get("letters", ()):
        key = letter.get("key")
        verdict = letter["verdict"]
        if key and verdict["goes"]:
            by_key[key] = Sent(
                key=key,
                releases=bool(verdict.get("releases")),
                trial=trials.get(key, ""),
            )
    yield from by_key.values()
