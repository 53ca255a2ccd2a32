"""What the search of the desk finds: in the events that it holds, or else as `./carride find`."""

from collections.abc import Collection
from typing import Final, NamedTuple

from carride.facts import FACTS
from ops import search
from ops.desk.registry import Seen
from ops.desk.words import part
from ops.search import CAR, CUSTOMER, EVENT, JOB, KEY, LETTER, PAYMENT, RIDE, TYPE, Match, matches

SEARCHED: Final = (
    "Searched were ids of rides, events, dead letters, keys and jobs, of customers, cars and "
    "payments, and the types of events, or how these begin"
)
_PATHS: Final = {
    RIDE: "/ride/",
    EVENT: "/event/",
    TYPE: "/facts?type=",
    LETTER: "/letters?letter=",
    KEY: "/keys?key=",
    JOB: "/job/",
}


class Shown(NamedTuple):
    """A match with its page."""

    kind: str
    id: str
    rides: int
    """How many rides it has; 0 for a kind that belongs to no or one ride."""
    path: str


class Results(NamedTuple):
    """What a search has found."""

    shown: list[Shown]
    total: int
    says: str
    """What was searched besides, if something was."""


def results_of(desk: Seen, text: str) -> Results:
    """Return what a text means.

    Raises:
        Exception: one of `ops.stack.FAILURES`, if the stack does not answer.
    """
    found = _in_sight(desk, text)
    if found:
        shown = [_shown(desk, each) for each in found[: search.MOST]]
        return Results(shown, len(found), "")
    older = desk.older.search(text)
    shown = []
    for each in older.found:
        rides = each.rides if each.kind in (CUSTOMER, CAR, PAYMENT) else ()
        shown.append(Shown(each.kind, each.id, len(rides), _path(each.kind, each.id, rides)))
    return Results(shown, len(shown) + older.more, older.says)


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


def _in_sight(desk: Seen, text: str) -> list[Match]:
    """Return what the desk holds."""
    consumer, mark, rest = text.partition("#")
    with desk.feed.lock:
        index = desk.feed.index
        if mark:
            facts = matches(rest, {EVENT: index.facts}) if "…" in rest else []
            return [Match(KEY, f"{consumer}#{each.id}") for each in facts] or [Match(KEY, text)]
        ids: dict[str, Collection[str]] = {
            TYPE: FACTS,
            RIDE: index.rides,
            JOB: desk.jobs.names,
            **index.naming,
            EVENT: index.facts,
        }
        found = matches(text, ids) or index.with_copy(text.lower())
    if not found and search.is_hex(text.lower()):
        reading = desk.letterbox.read(desk.feed.queues)
        found = matches(text, {LETTER: [each.letter.id for each in reading.found]})
    return found


def _shown(desk: Seen, match: Match) -> Shown:
    rides = list[str]()
    if match.kind in (CUSTOMER, CAR, PAYMENT):
        with desk.feed.lock:
            rides = desk.feed.index.rides_naming(match)
    return Shown(match.kind, match.id, len(rides), _path(match.kind, match.id, rides))


def _path(kind: str, name: str, rides: Collection[str]) -> str:
    """Return the page about something; a payment is of one ride."""
    if kind in _PATHS:
        return f"{_PATHS[kind]}{part(name)}"
    if kind == PAYMENT and len(rides) == 1:
        return f"/ride/{part(*rides)}"
    return f"/rides?of={part(name)}"
