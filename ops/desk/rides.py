"""The pages of rides: one ride with all that happened to it, and lists of rides by status."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from starlette.requests import Request

from carride_idempotency import observation
from carride_idempotency.record import FAILED, Record
from carride_idempotency.record_items import record_of
from ops import records
from ops.audit.evidence import COPY
from ops.dead_letters import redriven_at
from ops.desk.changes import changes_about
from ops.desk.deliveries import deliveries_of
from ops.desk.endings import Rides
from ops.desk.facts import BROKEN, BUS, DISTINCT, LOST, STUCK, WAITING, Fact
from ops.desk.finding import rides_of
from ops.desk.index import PAGE, Index
from ops.desk.registry import NotThereError, Seen, newest_shown, page, page_number
from ops.desk.story import story_of
from ops.desk.story_known import Known, joined
from ops.desk.story_state import LATE_MS
from ops.desk.waterfall import picture
from ops.desk.words import clip
from ops.lookup import is_ride
from ops.search import asked_for
from ops.text import counted

_LAMBDA_TRIES_AGAIN_MS: Final = (60_000.0, 120_000.0)
"""After the first and after the second failure of an asynchronous invocation, on AWS."""
DOUBLED: Final = "doubled"
"""In place of a group of rides: those with more effects than events."""
_FIRST: Final = "CarRideCreated"
"""With this event, the index knows a ride from its beginning."""


# ── One ride ──────────────────────────────────────────────────────────────────────────────────────


@page("/ride/{id}", "ride.html")
def _ride(desk: Seen, request: Request) -> dict[str, Any]:
    name = request.path_params["id"]
    known = _known(desk, name)
    story = story_of(known)
    hides = _HIDES.get(request.query_params.get("show", ""))
    shown = picture(
        known.found,
        story.emitters,
        known.now_ms,
        expects=bool(story.nexts),
        hides=hides,
    )
    title = f"Ride {name}"
    if story.state is not None:
        title = f"{name}: {story.state.title}"
    return {
        "title": title,
        "ride": name,
        "story": story,
        "picture": shown,
        "looked_up_events": sum(fact.is_looked_up for fact, _ in known.found),
        "held_since_ms": desk.feed.index.held_since_ms,
        "records": known.records,
        "explain": partial(records.explain, now=desk.now()),
    }


_HIDES: Final[Mapping[str, bool]] = {"unusual": True, "all": False}


def _known(desk: Seen, name: str) -> Known:
    """Read what is known of a ride.

    Raises:
        NotThereError: nothing is.
    """
    if not is_ride(name):
        raise NotThereError(
            f"{clip(name)} cannot be the id of a ride: such an id has letters, digits, '_', '.' "
            "and '-', as order_01 has.",
            title=f"{clip(name, 60)}: nothing found",
        )
    stack = desk.feed.stack
    facts = _facts_of(desk, name)
    keys = [f"{each.name}#{fact.id}" for fact in facts for each in desk.takers(fact)]
    tables = records.tables_of(stack, name)
    if not facts and not any(tables.values()):
        raise NotThereError(
            f"No ride has the id {name}. Search for it above: cars, customers and payments lead to "
            "their rides, too. A ride may be older than the logs, or not logged yet.",
            title=f"{name}: nothing found",
        )
    seen = {record.key: record for record in map(record_of, records.items_at(stack, keys))}
    report = desk.feed.report
    changes = changes_about({name, *keys})
    with desk.feed.lock:
        retries = dict(_retries(desk, seen))
        found = [(fact, deliveries_of(fact, desk.takers(fact), retries, changes)) for fact in facts]
    lettered = [
        f"{each.consumer}#{fact.id}"
        for fact, delivered in found
        for each in delivered
        if each.has_letter
    ]
    return Known(
        ride=name,
        found=found,
        tables=tables,
        records=seen,
        problems=report.saga.problems.get(name, ()) if report else (),
        changes=changes,
        limit=desk.overdue_limit,
        retries_on_aws=stack.local is None,
        now_ms=desk.now().timestamp() * 1000,
        redriven=redriven_at(stack, lettered),
    )


def _facts_of(desk: Seen, name: str) -> list[Fact]:
    """Return the events of a ride: those of the index, and older ones if it has begun before."""
    with desk.feed.lock:
        facts = desk.feed.index.of_ride(name)
    if COPY in name or any(fact.type == _FIRST for fact in facts):
        return facts
    known = {fact.id: fact for fact in (*desk.older.ride(name), *facts)}
    return sorted(known.values(), key=lambda fact: fact.time_ms)


def _retries(desk: Seen, seen: Mapping[str, Record]) -> Iterator[tuple[str, float]]:
    """Yield when keys that failed are tried again, as far as that is known.

    A local engine has delays of its own.
    """
    queued = {
        each.name for each in desk.feed.consumers if f"{each.resources}Queue" in desk.feed.queues
    }
    for key, record in seen.items():
        consumer = key.partition("#")[0]
        tries = record.attempt
        if record.status != FAILED or desk.feed.stack.local is not None or consumer in queued:
            continue
        if 1 <= tries <= len(_LAMBDA_TRIES_AGAIN_MS):
            yield key, record.updated_ms + _LAMBDA_TRIES_AGAIN_MS[tries - 1]


# ── All rides ─────────────────────────────────────────────────────────────────────────────────────


class Listed(NamedTuple):
    """A ride in a list."""

    ride: str
    status: str
    kind: str
    icon: str
    last: Fact | None
    """Its newest event; None if the desk holds none."""
    events: int
    why: str
    """What holds it; empty if nothing."""


class Tab(NamedTuple):
    """A choice of rides."""

    name: str
    """As the address has it; empty for all."""
    word: str
    rides: int


_OPEN: Final = ("requested", "accepted", "started", "completed")
"""Where a ride is that still needs something."""
_STATUSES: Final[Mapping[str, Sequence[str]]] = {
    "open": _OPEN,
    "paid": ("paid",),
    "cancelled": ("cancelled",),
    "unserved": ("unserved",),
    "declined": ("declined",),
    "settled": ("settled",),
}
"""The words of `ending_of` that are asked for together."""


@page("/rides", "rides.html")
def _rides(desk: Seen, request: Request) -> dict[str, Any]:
    number = page_number(request)
    asked = request.query_params
    of = asked_for(asked.get("of", ""))
    status = asked.get("status", "") if asked.get("status") in _STATUSES else ""
    chosen = asked.get("only", "") if asked.get("only") in {"stuck", "processing", DOUBLED} else ""
    doubled = _doubled(desk, asked.get("at", "")) if chosen == DOUBLED else {}
    wanted = rides_of(desk, of) if of else None
    with desk.feed.lock:
        index = desk.feed.index
        broken, stuck, under_way = _groups(desk)
        needy = [*broken, *stuck]
        every: Collection[str] = index.rides
        if wanted is not None:
            every = {*wanted}
            needy = [name for name in needy if name in every]
            under_way = [name for name in under_way if name in every]
        newest = newest_shown(request, index.newest)
        begin = number * PAGE
        names: Sequence[str] | None = None
        if chosen == "stuck":
            names = needy
        elif chosen == "processing":
            names = under_way
        elif chosen == DOUBLED:
            names = [name for name in doubled if wanted is None or name in every]
        elif wanted is not None:
            names = wanted
        if names is None:
            shown = index.endings.rides(newest, begin, PAGE, _STATUSES.get(status))
        else:
            names = _with_status(index, names, status)
            shown = Rides(names[begin : begin + PAGE], len(names), 0)
        listed = []
        for name in shown.names:
            ride = _listed(desk, name, broken)
            if name in doubled:
                ride = ride._replace(why=_surplus(doubled[name]))
            listed.append(ride)
        counts = index.endings.count(wanted)
    tabs = [
        Tab("", "All", len(every)),
        Tab("stuck", "Broken or given up" if broken else "Given up", len(needy)),
        Tab("processing", "Processing", len(under_way)),
    ]
    statuses = by_status(counts)
    fixed = request.url.include_query_params(newest=newest)
    return {
        "title": f"Rides of {of}" if of else "Rides",
        "of": of,
        "listed": listed,
        "has_reasons": any(each.why for each in listed),
        "tabs": tabs,
        "statuses": [each for each in statuses if each.rides or each.name == status],
        "chosen": chosen,
        "held": index.known,
        "held_since_ms": index.held_since_ms,
        "published": index.totals[BUS][DISTINCT] + index.totals[BUS][BROKEN],
        "letters": desk.feed.letters() or 0,
        "surplus": sum(sum(each.values()) for each in doubled.values()),
        "status": status,
        "number": number,
        "first": begin + 1,
        "total": shown.total,
        "newest": newest,
        "newer": shown.newer,
        "newer_page": str(fixed.include_query_params(page=number - 1).query),
        "older_page": str(fixed.include_query_params(page=number + 1).query),
    }


def _doubled(desk: Seen, at: str) -> dict[str, dict[str, int]]:
    """Return the rides with more effects than events, and how many are too many by consumer.

    As of the last audit, at one consumer if ``at`` names it.
    """
    found: dict[str, dict[str, int]] = {}
    report = desk.feed.report
    for consumer, account in report.ledger.consumers.items() if report else ():
        for name, surplus in account.doubled_rides.items() if at in {"", consumer} else ():
            found.setdefault(name, {})[consumer] = surplus
    return found


def _surplus(by_consumer: Mapping[str, int]) -> str:
    """Return how many effects of a ride are too many, in words."""
    parts = [f"{counted(count, 'effect')} too many at {at}" for at, count in by_consumer.items()]
    return joined(parts)


def by_status(counts: Mapping[str, int]) -> list[Tab]:
    """Return the statuses with their numbers of rides, from those of each word of `ending_of`."""
    return [
        Tab(name, name.capitalize(), sum(counts.get(word, 0) for word in words))
        for name, words in _STATUSES.items()
    ]


def _with_status(index: Index, names: Sequence[str], status: str) -> list[str]:
    """Return the rides that have a status of `_STATUSES`; all if it is empty."""
    if not status:
        return [*names]
    found = []
    for name in names:
        ending = index.endings.of(name)
        if ending is not None and ending.word in _STATUSES[status]:
            found.append(name)
    return found


def _groups(desk: Seen) -> tuple[dict[str, Sequence[str]], list[str], list[str]]:
    """Return broken rides with their problems, those given up, and those under way.

    The newest of each group is the first.
    """
    index = desk.feed.index
    report = desk.feed.report
    broken = dict(report.saga.problems) if report else {}
    given_up = dict[str, None]()
    for fact in reversed(index.given_up()):
        if fact.ride is not None and fact.ride not in broken:
            given_up[fact.ride] = None
    waiting = {name for names in index.waiting.values() for name in names}
    facts = [index.facts[name] for name in waiting if name in index.facts]
    facts.sort(key=lambda fact: -fact.time_ms)
    under_way = dict.fromkeys(fact.ride for fact in facts if fact.ride is not None)
    return broken, [*given_up], [*under_way]


def _listed(desk: Seen, name: str, broken: Mapping[str, Sequence[str]]) -> Listed:
    facts = desk.feed.index.of_ride(name)
    ending = desk.feed.index.endings.of(name)
    if ending is None:
        return Listed(name, "older", "wait", "clock", None, 0, next(iter(broken.get(name, ())), ""))
    now_ms = desk.now().timestamp() * 1000
    status, kind, icon = ending
    problems = broken.get(name, ())
    why = ""
    if problems:
        why = problems[0] + (f"; and {len(problems) - 1} more" if len(problems) > 1 else "")
        status = "broken"
        kind = "fail"
        icon = "cross"
    for reason in _REASONS:
        for fact in facts:
            for each in desk.takers(fact):
                why = why or reason(fact, each.name, fact.outcome(each), now_ms)
    return Listed(name, status, kind, icon, facts[-1], len(facts), why)


def _given_up(fact: Fact, consumer: str, outcome: str | None, _now_ms: float) -> str:
    return f"{consumer} gave up {fact.type}" if outcome in STUCK else ""


def _failing(fact: Fact, consumer: str, outcome: str | None, _now_ms: float) -> str:
    return f"{consumer} fails on {fact.type}" if outcome == observation.FAILED else ""


def _late(fact: Fact, consumer: str, outcome: str | None, now_ms: float) -> str:
    is_late = outcome == WAITING and now_ms - fact.time_ms >= LATE_MS
    return f"{fact.type} waits for {consumer}" if is_late else ""


def _lost(fact: Fact, consumer: str, outcome: str | None, _now_ms: float) -> str:
    return f"{fact.type} is lost at {consumer}" if outcome == LOST else ""


_REASONS: Final = (_lost, _given_up, _failing, _late)
"""What holds a ride; the first that does is said."""
