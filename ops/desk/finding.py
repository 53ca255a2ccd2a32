"""What the search of the desk finds: in the events that it holds, or else as `./carride find`."""

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from carride.facts import FACTS
from ops import search
from ops.desk.endings import Ending
from ops.desk.facts import Fact
from ops.desk.index import Index
from ops.desk.registry import Seen
from ops.desk.words import part
from ops.search import CAR, CUSTOMER, EVENT, KEY, LETTER, PAYMENT, RIDE, TYPE, Match, matches

SEARCHED: Final = (
    "Searched were ids of rides, events, dead letters and keys, of customers, cars and "
    "payments, and the types of events, or how these begin"
)
_PATHS: Final = {
    RIDE: "/ride/",
    EVENT: "/event/",
    TYPE: "/facts?type=",
    LETTER: "/letters?letter=",
}


class Shown(NamedTuple):
    """A match with its page, and what tells it from others."""

    kind: str
    id: str
    path: str
    rides: int = 0
    """How many rides it has; 0 for a kind that belongs to no or one ride."""
    ending: Ending | None = None
    """Where it is, if it is a ride."""
    type: str = ""
    """Its type, if it is an event."""
    ride: str = ""
    """Its ride, if it is an event."""
    newest_ms: int | None = None
    """When its newest event was published; None if the desk holds none."""


class Results(NamedTuple):
    """What a search has found: a page of it, what has the newest event first."""

    shown: list[Shown]
    first: int
    """The number of the first one that is shown, from 1."""
    total: int
    listed: int
    """How many have a place on some page."""
    says: str
    """What was searched besides, if something was."""


def results_of(desk: Seen, text: str, number: int = 0) -> Results:
    """Return a page of what a text means.

    Raises:
        Exception: one of `ops.stack.FAILURES`, if the stack does not answer.
    """
    begin = number * search.MOST
    found = _in_sight(desk, text)
    if found:
        with desk.feed.lock:
            index = desk.feed.index
            found.sort(key=lambda each: _newest_number(index, each), reverse=True)
            shown = [_shown(index, each) for each in found[begin : begin + search.MOST]]
        return Results(shown, begin + 1, len(found), len(found), "")
    older = desk.older.search(text)
    shown = []
    for each in older.found[begin:]:
        rides = each.rides if each.kind in (CUSTOMER, CAR, PAYMENT) else ()
        path = _path(each.kind, each.id, rides)
        shown.append(Shown(each.kind, each.id, path, len(rides)))
    total = len(older.found) + older.more
    return Results(shown, begin + 1, total, len(older.found), older.says)


def rides_of(desk: Seen, name: str) -> list[str]:
    """Return the rides of a customer, a car or a payment, the newest first."""
    found = dict[str, None]()
    with desk.feed.lock:
        for kind in desk.feed.index.naming:
            found |= dict.fromkeys(desk.feed.index.rides_naming(Match(kind, name)))
    if not found:
        for each in desk.older.search(name).found:
            if each.kind in (CUSTOMER, CAR, PAYMENT) and each.id == name:
                found |= dict.fromkeys(each.rides)
    return [*found]


def begun_by(desk: Seen, text: str) -> str:
    """Return the id of a ride or an event that a text may mean; if several may, with an asterisk.

    It is the text itself if it is an id, has an asterisk, or means none that the desk holds.
    """
    if not text or "*" in text:
        return text
    with desk.feed.lock:
        index = desk.feed.index
        found = matches(text, {RIDE: index.rides, EVENT: index.facts})
    ids = [each.id for each in found]
    if text in ids or not ids:
        return text
    if len(ids) == 1:
        return ids[0]
    begins = {each[: len(text)] for each in ids}
    is_beginning = len(begins) == 1 and text.casefold() == min(begins).casefold()
    return f"{min(begins)}*" if is_beginning else text


def _in_sight(desk: Seen, text: str) -> list[Match]:
    """Return what the desk holds."""
    consumer, mark, rest = text.partition("#")
    with desk.feed.lock:
        index = desk.feed.index
        if mark:
            facts = matches(rest, {EVENT: index.facts})
            return [Match(KEY, f"{consumer}#{each.id}") for each in facts] or [Match(KEY, text)]
        ids: dict[str, Collection[str]] = {
            TYPE: FACTS,
            RIDE: index.rides,
            **index.naming,
            EVENT: index.facts,
        }
        found = matches(text, ids) or index.with_copy(text.lower())
    return found or _in_letters(desk, text)


def _in_letters(desk: Seen, text: str) -> list[Match]:
    """Return what dead letters name."""
    named = dict[str, dict[str, None]]()
    for each in desk.letters().found:
        for match in search.named_by_letter(each.letter):
            named.setdefault(match.kind, {}).setdefault(match.id)
    return matches(text, named)


def _newest(index: Index, match: Match) -> Fact | None:
    """Return the newest event of what was found."""
    if match.kind == EVENT:
        return index.facts.get(match.id)
    names: Iterator[str] = iter(())
    if match.kind == RIDE:
        names = reversed(index.rides.get(match.id, ()))
    elif match.kind in index.naming:
        names = reversed(index.naming[match.kind].get(match.id, {}))
    name = next(names, None)
    if name is None:
        return None
    return index.facts[name]


def _newest_number(index: Index, match: Match) -> int:
    newest = _newest(index, match)
    return newest.number if newest else 0


def _shown(index: Index, match: Match) -> Shown:
    newest = _newest(index, match)
    rides = list[str]()
    if match.kind in index.naming:
        rides = index.rides_naming(match)
    shown = Shown(match.kind, match.id, _path(match.kind, match.id, rides), len(rides))
    if match.kind == RIDE:
        shown = shown._replace(ending=index.endings.of(match.id))
    if newest is None or not newest.copies:
        return shown
    shown = shown._replace(newest_ms=newest.time_ms)
    if match.kind == EVENT:
        shown = shown._replace(type=newest.type or "breaks the contract", ride=newest.ride or "")
    return shown


def _path(kind: str, name: str, rides: Collection[str]) -> str:
    """Return the page about something: of a key its event, and of a payment its ride."""
    if kind == KEY:
        consumer, _, fact = name.partition("#")
        return f"/event/{part(fact)}#at-{part(consumer)}"
    if kind in _PATHS:
        return f"{_PATHS[kind]}{part(name)}"
    if kind == PAYMENT and len(rides) == 1:
        return f"/ride/{part(*rides)}"
    return f"/rides?of={part(name)}"
