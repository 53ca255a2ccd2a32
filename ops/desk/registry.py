"""The pages and the buttons of the desk: modules of views register them here."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Final, NamedTuple

from starlette.requests import Request

from carride.overdue import LIMIT
from carride_idempotency.record import Record
from ops.audit import Report
from ops.audit.evidence import AuditedConsumer
from ops.change_log import changed_ms
from ops.desk.facts import Fact
from ops.desk.feed import Feed
from ops.desk.letterbox import Letterbox, Reading
from ops.desk.older import Older

_MOST_WATCHED: Final = 500
_MOST_VERSIONS: Final = 20
_MOST_DIGITS: Final = 4


class NotThereError(LookupError):
    """Raised for a page about something that the desk does not know.

    The message is a sentence for the page.
    """

    def __init__(self, sentence: str, *, title: str = "Not known") -> None:
        super().__init__(sentence)
        self.title = title


class Watched[T](dict[str, list[T]]):
    """The versions of records or items, by name, that the desk saw while their pages were open.

    Bounded.
    """

    def add(self, name: str, value: T) -> list[T]:
        """Add a state, unless it is the last one, and return all versions, the oldest first."""
        versions = self.get(name, [])
        if versions[-1:] != [value]:
            versions = self[name] = [*versions, value][-_MOST_VERSIONS:]
        if len(self) > _MOST_WATCHED:
            del self[next(iter(self))]
        return versions


class Explanation(NamedTuple):
    """What the ledger is explained by; until the next audit it stays the same."""

    report: Report
    context: Mapping[str, Any]
    """Variables of its template."""


class Injection(NamedTuple):
    """The newest fault that this desk has injected: on a local stack only."""

    time_ms: float
    said: "Said"


class Seen:
    """What the views read: the feed, and the records that the desk has watched."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.letterbox = Letterbox(feed.stack)
        self.older = Older(feed.stack)
        self.explained: Explanation | None = None
        self.records = Watched[Record]()
        self.items = Watched[Mapping[str, Any]]()
        self.injected: Injection | None = None

    def now(self) -> datetime:
        """Return the time."""
        return datetime.now(UTC)

    def letters(self, *, again: bool = False) -> Reading:
        """Return a reading of the dead letters that no command on this machine has made old."""
        return self.letterbox.read(self.feed.queues, again=again, since_ms=changed_ms())

    def takers(self, fact: Fact) -> list[AuditedConsumer]:
        """Return the consumers that take an event."""
        return [each for each in self.feed.consumers if each.takes(fact.type)]

    @cached_property
    def where(self) -> str:
        """Where the stack is."""
        return "on this machine" if self.feed.stack.local else "on AWS"

    @cached_property
    def overdue_limit(self) -> timedelta:
        """How long a ride may stand still before the reconciler settles it."""
        hours = (self.feed.stack.parameters() or {}).get("OverdueHours")
        return timedelta(hours=float(hours)) if hours else LIMIT


class Said(NamedTuple):
    """What a button has done, or why it has done nothing, in a sentence."""

    sentence: str
    path: str = ""
    """The page to look at next; empty if there is none."""
    link: str = ""
    """What it is called."""
    is_refusal: bool = False


type View = Callable[[Seen, Request], Mapping[str, Any]]
"""Returns the variables of a template, ``title`` among them.

``answers`` is the HTTP status if it is not 200: 404 if a page says that it has not found something.
"""
type Next = tuple[str, Said | None]
"""The path of the page to show after an act, and what was done."""
type Act = Callable[[Seen, Mapping[str, str]], Next]
"""Does what a button says."""


class Page(NamedTuple):
    """A page of the desk."""

    path: str
    template: str
    view: View
    still: bool
    """It does not change by itself: reading takes long or hides messages, or somebody edits it."""


class Entry(NamedTuple):
    """A page in the navigation."""

    path: str
    name: str
    icon: str
    key: str
    """Leads there after ``g``."""
    phone: str
    """Its name in the bar of a phone."""


PLACES: Final = (
    Entry("/", "Flow", "flow", "f", "Flow"),
    Entry("/letters", "Dead letters", "mail", "d", "Letters"),
    Entry("/ledger", "Ledger", "ledger", "l", "Ledger"),
)
PAGES: Final[list[Page]] = []
ACTS: Final[dict[str, Act]] = {}
"""By path."""


def page(path: str, template: str, *, still: bool = False) -> Callable[[View], View]:
    """Register a view as a page."""

    def register(view: View) -> View:
        PAGES.append(Page(path, template, view, still))
        return view

    return register


def act(path: str) -> Callable[[Act], Act]:
    """Register what a button does."""

    def register(function: Act) -> Act:
        ACTS[path] = function
        return function

    return register


def page_number(request: Request) -> int:
    """Return the number of the page of a list that is asked for, from 0."""
    asked = request.query_params.get("page", "")
    is_number = asked.isascii() and asked.isdecimal() and len(asked) <= _MOST_DIGITS
    return int(asked) if is_number else 0
