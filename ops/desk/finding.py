"""What the search of the desk finds: in the events that it holds, or else as `ops.search.find`."""

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from ops import search
from ops.desk.endings import Ending, ending_of
from ops.desk.facts import Fact
from ops.desk.index import Index
from ops.desk.registry import Seen
from ops.desk.words import part
from ops.search import CAR, CUSTOMER, EVENT, KEY, LETTER, PAYMENT, RIDE, TYPE, Match, matches

SEARCHED: Final = (
    "Searched were ids of rides, events, dead letters and keys, of customers, cars and payments, "
    "or how these begin"
)
_NAMED: Final = frozenset({CUSTOMER, CAR, PAYMENT})
"""What has no page: a search for it lists its rides."""
_PATHS: Final = {RIDE: "/ride/", EVENT: "/event/", LETTER: "/letters?letter="}


class Shown(NamedTuple):
    """A match with its page, and what tells it from others."""

    kind: str
    id: str
    path: str
    """Empty if there is nothing to lead to."""
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
    """Return a page of what a text means; of a customer, a car or a payment its rides.

    Raises:
        Exception: one of `ops.stack.FAILURES`, if the stack does not answer.
    """
    begin = number * search.MOST
    found = _in_sight(desk, text)
    if found:
        with desk.feed.lock:
            index = desk.feed.index
            if len(found) == 1 and found[0].kind in _NAMED:
                found = [Match(RIDE, name) for name in index.rides_naming(found[0])]
            found.sort(key=lambda each: _newest_number(index, each), reverse=True)
            shown = [_shown(index, each) for each in found[begin : begin + search.MOST]]
        return Results(shown, begin + 1, len(found), len(found), "")
    older = desk.older.search(text)
    known = [each for each in older.found if each.kind != TYPE]
    listed = []
    for each in known:
        rides = each.rides if each.kind in _NAMED else ()
        listed.append(Shown(each.kind, each.id, _path(each.kind, each.id, len(rides)), len(rides)))
    if len(known) == 1 and known[0].kind in _NAMED and known[0].rides:
        listed = [Shown(RIDE, name, _path(RIDE, name)) for name in known[0].rides]
    total = len(listed) + older.more
    return Results(listed[begin:], begin + 1, total, len(listed), older.says)


def _in_sight(desk: Seen, text: str) -> list[Match]:
    """Return what the desk holds."""
    consumer, mark, rest = text.partition("#")
    with desk.feed.lock:
        index = desk.feed.index
        if mark:
            facts = matches(rest, {EVENT: index.facts})
            return [Match(KEY, f"{consumer}#{each.id}") for each in facts] or [Match(KEY, text)]
        ids: dict[str, Collection[str]] = {RIDE: index.rides, **index.naming, EVENT: index.facts}
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
    names = [*_events_of(index, match)]
    return index.facts.get(names[-1]) if names else None


def _events_of(index: Index, match: Match) -> Iterable[str]:
    """Return the ids of the events of what was found, the newest last."""
    if match.kind == EVENT:
        return [match.id]
    if match.kind == RIDE:
        return index.rides.get(match.id, ())
    return index.naming.get(match.kind, {}).get(match.id, ())


def _newest_number(index: Index, match: Match) -> int:
    newest = _newest(index, match)
    return newest.number if newest else 0


def _shown(index: Index, match: Match) -> Shown:
    newest = _newest(index, match)
    rides = len(index.rides_naming(match)) if match.kind in index.naming else 0
    shown = Shown(match.kind, match.id, _path(match.kind, match.id, rides), rides)
    if match.kind == RIDE and match.id in index.rides:
        types = [fact.type for fact in index.of_ride(match.id)]
        shown = shown._replace(ending=ending_of(types))
    if newest is None or not newest.copies:
        return shown
    shown = shown._replace(newest_ms=newest.time_ms)
    if match.kind == EVENT:
        shown = shown._replace(type=newest.type or "breaks the contract", ride=newest.ride or "")
    return shown


def _path(kind: str, name: str, rides: int = 0) -> str:
    """Return the page about something: of a key its event; of what has rides, their list."""
    if kind == KEY:
        consumer, _, fact = name.partition("#")
        return f"/event/{part(fact)}#at-{part(consumer)}"
    if kind in _PATHS:
        return f"{_PATHS[kind]}{part(name)}"
    return f"/find?q={part(name)}" if rides else ""
