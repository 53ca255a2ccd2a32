"""What has changed since a plan was shown, in a sentence for each change. No I/O."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeIs

from carride_idempotency.operators.plans import differences
from carride_idempotency.record import COMPLETED, FAILED, IN_PROGRESS, QUARANTINED
from ops.text import counted

_MOST: Final = 10
_uuid = re.compile(r"([0-9a-f]{8})-(?:[0-9a-f]{4}-){3}[0-9a-f]{8}([0-9a-f]{4})")
_revision = re.compile(r"(\w+), attempt (\d+), owner .*", re.DOTALL).fullmatch


def changes(before: Any, after: Any) -> list[str]:
    """Return a sentence for each change between two plans of a command, without its full stop.

    They name letters and keys by the short forms of their ids. The last one counts those that are
    left out.
    """
    # Several letters may have the same key.
    found = [*dict.fromkeys(_changes(before, after))] or [*differences(before, after)]
    if len(found) > _MOST:
        return [*found[:_MOST], f"and {counted(len(found) - _MOST, 'more change')}"]
    return found


def _changes(before: Any, after: Any) -> Iterator[str]:
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        yield from differences(before, after, "the plan")
        return
    for name in [*before, *(after.keys() - before.keys())]:
        then = before.get(name)
        today = after.get(name)
        if then == today and (name in before) == (name in after):
            continue
        if name == "letters" and _are_letters(then) and _are_letters(today):
            yield from _of_letters(then, today)
        elif name == "record" and _is_record(then) and _is_record(today):
            key = str(after.get("key") or "its key")
            yield _of_record(short(key), _revision_in(then), _revision_in(today))
        elif name in _OTHERS:
            yield _OTHERS[name](then, today)
        else:
            yield from differences(_only(before, name), _only(after, name))


def _only(plan: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {name: plan[name]} if name in plan else {}


def short(name: str) -> str:
    """Return an id or a key with the beginning and the end of its UUID."""
    return _uuid.sub(r"\1…\2", name)


_OTHERS: Final[Mapping[str, Callable[[Any, Any], str]]] = {
    "target": lambda _, today: f"the letters would go to {today} now",
    "rules": lambda _, today: f"other rules take the replay: {_listed(today)}",
    "archive": lambda _, today: f"the archive is {today} now",
    "cancel": lambda _, today: f"the replay to cancel is {today} now",
    "events": lambda then, today: f"{_many(then)} were to be published, and {_many(today)} are now",
}
"""What has changed besides letters and records, by its name in the plan."""


def _listed(names: Any) -> str:
    if not isinstance(names, list) or not names:
        return "every rule" if names == [] else str(names)
    return ", ".join(str(name).rpartition("/")[2] for name in names)


def _many(events: Any) -> str:
    return counted(len(events), "event") if isinstance(events, list) else str(events)


# ── Letters ───────────────────────────────────────────────────────────────────────────────────────


def _are_letters(value: Any) -> TypeIs[list[Mapping[str, Any]]]:
    return isinstance(value, list) and all(
        isinstance(each, Mapping) and isinstance(each.get("id"), str) for each in value
    )


def _of_letters(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    then = {each["id"]: each for each in before}
    today = {each["id"]: each for each in after}
    for name, letter in then.items():
        if name not in today:
            yield f"{_letter(letter)} is gone: it was redriven or deleted, or is hidden by a reader"
        elif letter != today[name]:
            yield from _of_letter(letter, today[name])
    for name, letter in today.items():
        if name not in then:
            yield f"{_letter(letter)} is new"
    stayed = [name for name in then if name in today]
    if stayed != [name for name in today if name in then]:
        yield f"the letters have another order: {short(next(iter(today)))} is the first now"


def _letter(letter: Mapping[str, Any]) -> str:
    """Return a letter's name as a subject: its event, if that is known, and its id."""
    kind = letter.get("type")
    ride = letter.get("ride")
    of_what = f" of {kind}" if kind else ""
    if kind and ride:
        of_what += f" of {ride}"
    return f"the letter {short(letter['id'])}{of_what}"


def _of_letter(then: Mapping[str, Any], today: Mapping[str, Any]) -> Iterator[str]:
    """Yield what has changed of a letter. What a redrive would do follows from it."""
    is_told = False
    if then.get("event") != today.get("event"):
        is_told = True
        yield f"the event in {_letter(today)} is another one"
    if then.get("record") != today.get("record"):
        is_told = True
        key = short(str(today.get("key") or today["id"]))
        yield _of_record(key, str(then.get("record")), str(today.get("record")))
    if is_told:
        return
    verdict = today.get("verdict")
    was = then.get("verdict")
    if verdict != was and isinstance(verdict, Mapping):
        yield f"{_letter(today)} would be judged otherwise: {verdict.get('why')}"
    else:
        yield from differences(then, today, _letter(today))


# ── Records ───────────────────────────────────────────────────────────────────────────────────────


def _is_record(value: Any) -> TypeIs[Mapping[str, Mapping[str, Any]]]:
    if not isinstance(value, Mapping) or "status" not in value:
        return False
    return all(isinstance(each, Mapping) for each in value.values())


def _revision_in(stored: Mapping[str, Any]) -> str:
    """Return the revision in the attributes of a record as DynamoDB has them."""
    values = {name: next(iter(value.values()), "") for name, value in stored.items()}
    status, attempt, owner = (values.get(name) for name in ("status", "attempt", "owner"))
    return f"{status}, attempt {attempt}, owner {owner}"


def _of_record(key: str, then: str, today: str) -> str:
    """Return what has become of a record, from what it was and what it is: ``none`` without one."""
    if today == "none":
        return f"{key} was forgotten: it has no record any more"
    found = _revision(today)
    if found is None:
        return f"the record of {key} was {then}, and is {today}"
    status, digits = found.groups()
    attempt = int(digits)
    if status == COMPLETED:
        return f"{key} took effect"
    if status == QUARANTINED:
        return f"{key} was quarantined, after {counted(attempt, 'attempt')}"
    if then == today:
        return f"attempt {attempt} of {key} has renewed its lease"
    if status == IN_PROGRESS:
        return f"attempt {attempt} of {key} has begun"
    if status == FAILED and attempt == 0:
        return f"{key} was released"
    if status == FAILED:
        return f"attempt {attempt} of {key} failed"
    return f"the record of {key} was {then}, and is {today}"
