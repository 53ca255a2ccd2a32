"""What operators did about a ride or a key, by the log of changes of this machine."""

import json
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
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


RETRIED: Final = "retried"
"""How a letter went whose consumer has failed and has attempts left."""
_RANKS: Final = ("succeeded", "failed", RETRIED, "unknown")
"""Trials: of two letters of one event, the one that comes earlier here says how that went."""


def by_event(tried: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the first letters of a redrive's groups, one for each event.

    Letters of one event are in several groups if they came back for several reasons. One whose
    event is not known stands alone.
    """
    found = dict[object, Mapping[str, Any]]()
    for number, each in enumerate(tried):
        event = each.get("key") or each.get("fact") or number
        known = found.setdefault(event, each)
        if _RANKS.index(each["trial"]) < _RANKS.index(known["trial"]):
            found[event] = each
    return [*found.values()]


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


class Letter(NamedTuple):
    """A letter that a redrive was to send, which is no change of its own."""

    letter: str
    """SQS's id of it."""
    time_ms: float
    plan: str
    """Id of the plan that the redrive carried out; empty if it had none."""
    key: str
    """Of its consumer's record; empty if it has none."""
    what: str
    """Its event, and its ride; empty if neither is known."""
    trial: str
    """How its key went: ``succeeded``, ``failed``, ``unknown``; empty if nobody waited for it."""
    error: str
    """Why the redrive ended early; empty if it did not."""


def letters_sent(text: str) -> list[Letter]:
    """Return the letters of redrives whose ids begin with a text, the earliest redrive first.

    Case does not count. A redrive that sent nothing has none.
    """
    begin = text.casefold()
    found = list[Letter]()
    for line in newest_lines():
        if begin not in line.casefold():
            continue
        try:
            letters = [*_letters(json.loads(line))]
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # a line of another version, or one that is cut
        found += [each for each in letters if each.letter.casefold().startswith(begin)]
    return found


def _letters(line: Mapping[str, Any]) -> Iterator[Letter]:
    change = _change(line)
    if _sent_nothing(line.get("result") or {}):
        return
    trials = {each.key: each.trial for each in change.sent}
    for each in (line.get("exact") or {}).get("letters", ()):
        if not each["verdict"]["goes"]:
            continue
        key = str(each.get("key") or "")
        kind = each.get("type")
        yield Letter(
            letter=str(each["id"]),
            time_ms=change.time_ms,
            plan=change.plan,
            key=key,
            what=clip(f"{kind} of {each.get('ride')}") if kind else "",
            trial=trials.get(key, ""),
            error=change.error,
        )


def changes_about(names: Collection[str]) -> list[Change]:
    """Return the changes that name one of these rides, keys or plans, the oldest first."""
    found = []
    for line in newest_lines():
        if not any(name in line for name in names):
            continue
        try:
            found.append(_change(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # a line of another version, or one that is cut
    return found


def carried_out(plans: Collection[str]) -> set[str]:
    """Return which of these plans were carried out, by their ids."""
    return {each.plan for each in changes_about(plans)} & {*plans}


def done_ms(plan: str) -> float | None:
    """Return when a command began to carry a plan out; None if the log does not have it."""
    times = [each.time_ms for each in changes_about({plan}) if each.plan == plan]
    return times[-1] if times else None


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
    if _sent_nothing(result):
        return
    trials = {each["key"]: str(each["trial"]) for each in by_event(result.get("tried", ()))}
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


def _sent_nothing(result: Mapping[str, Any]) -> bool:
    """Return whether a redrive has ended, and left all letters where they were."""
    return result.get("sent") == 0
