"""What each page of the desk shows."""

import json
import re
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from starlette.requests import Request

from carride.dedup import is_attribute
from carride.history import timeline_of
from idempotency import observation
from idempotency.record import STATUSES, Record
from idempotency.stores.dynamodb import record_of
from ops import letters as dead
from ops import records, replay
from ops.audit.evidence import OTHER_DLQS, AuditedConsumer
from ops.audit.queues import read
from ops.desk import faults
from ops.desk.feed import Feed
from ops.desk.index import BUCKET_S, BUCKETS, BUS, GROUPS, WAITING, Fact, Filter
from ops.desk.pictures import STACKED, WIDTH, attempts, axis, began_ms, chart, chips

if TYPE_CHECKING:
    from ops.desk.app import Desk

VIEWS: Final = (
    ("/", "Flow"),
    ("/facts", "Facts"),
    ("/letters", "Dead letters"),
    ("/keys", "Keys"),
    ("/replays", "Replay"),
    ("/ledger", "Ledger"),
)
"""The pages of the navigation, in order."""

_PARTS: Final = (
    ("new", observation.NEW, "effect"),
    ("duplicate", observation.DUPLICATE, "skipped"),
    ("takeover", observation.TAKEOVER, observation.TAKEOVER),
    ("failed", observation.FAILED, "failure"),
)
"""The outcomes in a consumer's box: part of the chart, an outcome with its sign, and what to filter by."""
_PRODUCER_DLQS: Final = ("ProducerDlq", "OutboxPipeDlq")
_HAS_EFFECT: Final = "has effect"
_MINUTE_BUCKETS: Final = 60 // BUCKET_S
_MOST_RECORDS: Final = 200
_MOST_WATCHED: Final = 500
_MOST_VERSIONS: Final = 20


class NotThereError(LookupError):
    """Raised for a page about something that the desk does not know. The message is a sentence for the page."""


class Version(NamedTuple):
    """A state of a record or an item, and when the desk first saw it."""

    time_ms: int
    value: Mapping[str, Any]


class Watched:
    """The versions of records and items that the desk saw while their pages were open. Bounded."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, list[Version]] = OrderedDict()

    def add(self, name: str, value: Mapping[str, Any]) -> Sequence[Version]:
        """Add a state, unless it is the last one, and return all versions, the oldest first."""
        versions = self._seen.setdefault(name, [])
        if not versions or versions[-1].value != value:
            versions.append(Version(int(time.time() * 1000), value))
            del versions[:-_MOST_VERSIONS]
        if len(self._seen) > _MOST_WATCHED:
            self._seen.popitem(last=False)
        return tuple(versions)


class Effect(NamedTuple):
    """What an event did to the item of a consumer."""

    before: Mapping[str, Any] | None
    """The item before it; None if the desk has not seen it."""
    after: Mapping[str, Any]
    emitted: Sequence[str]
    """Types of the events that were emitted with it."""


def flow(desk: "Desk", _request: Request) -> dict[str, Any]:
    """Return counts and charts of the pipeline."""
    feed, now = desk.feed, time.time()
    with feed.lock:
        bus = feed.index.recent(BUS, now)
        sources = {what: count for (lane, what), count in sorted(feed.index.totals.items()) if lane == BUS}
        return {
            "title": "Flow",
            "lanes": [_lane(feed, each, now) for each in feed.consumers],
            "sources": sources,
            "published": sum(sources.values()),
            "a_minute": sum(bucket.total() for bucket in bus[-_MINUTE_BUCKETS:]),
            "bus_chart": chart(bus, {"bus": None}),
            "minutes": BUCKETS * BUCKET_S // 60,
            "producer_letters": {queue: feed.queues.get(queue) for queue in _PRODUCER_DLQS},
            "bus_letters": {
                queue: feed.queues[queue] for queue in {*OTHER_DLQS} - {*_PRODUCER_DLQS} if feed.queues.get(queue)
            },
        }


def _lane(feed: Feed, consumer: AuditedConsumer, now: float) -> dict[str, Any]:
    buckets = feed.index.recent(consumer.name, now)
    minute = sum(buckets[-_MINUTE_BUCKETS:], Counter[str]())
    totals = Counter({what: count for (lane, what), count in feed.index.totals.items() if lane == consumer.name})
    dlqs = (f"{consumer.resources}RuleDlq", f"{consumer.resources}Dlq")
    return {
        "name": consumer.name,
        "deliveries": totals.total(),
        "parts": [
            (name, sign, wanted, *(sum(counts[each] for each in STACKED[name]) for counts in (totals, minute)))
            for name, sign, wanted in _PARTS
        ],
        "chart": chart(buckets, STACKED),
        "waiting": len(feed.index.waiting[consumer.name]),
        "queue": feed.queues.get(f"{consumer.resources}Queue"),
        "letters": {queue: feed.queues.get(queue) for queue in dlqs},
    }


def facts(desk: "Desk", request: Request) -> dict[str, Any]:
    """Return a page of published events."""
    wanted = Filter(**{name: request.query_params.get(name, "").strip() for name in Filter._fields})
    asked = request.query_params.get("page", "")
    number = int(asked) if re.fullmatch("[0-9]{1,4}", asked) else 0
    with desk.feed.lock:
        found, more = desk.feed.index.page(wanted, number)
        return {
            "title": "Facts",
            "found": [(fact, chips(fact, desk.feed.consumers)) for fact in found],
            "wanted": wanted,
            "groups": GROUPS,
            "types": sorted(filter(None, desk.feed.index.types)),
            "number": number,
            "more": more,
            "older": str(request.url.include_query_params(page=number + 1).query),
            "newer": str(request.url.include_query_params(page=number - 1).query),
            "known": len(desk.feed.index.facts),
        }


def event(desk: "Desk", request: Request) -> dict[str, Any]:
    """Return one event with its copies, runs, records and effects."""
    fact, feed = _fact(desk, request.path_params["id"]), desk.feed
    takers = [each for each in feed.consumers if each.takes(fact.type) and fact.ride is not None]
    found = map(record_of, records.read(feed.stack, [f"{each.name}#{fact.id}" for each in takers]))
    held = {record.key.partition("#")[0]: record for record in found}
    items = records.items_of(feed.stack, fact.ride) if fact.ride else {}
    seen = {name: desk.watched.add(f"record {record.key}", _told(record)) for name, record in held.items()}
    with feed.lock:
        leases = {name: _leases(versions) for name, versions in seen.items()}
        times = [copy.time_ms for copy in fact.copies] + [run.ended_ms for run in fact.runs]
        times += [time_ms for found in leases.values() for lease in found for time_ms in lease[2:]]
        place = axis([*times, *(began for began in map(began_ms, fact.runs) if began > fact.time_ms)])
        stops = [
            {
                "name": each.name,
                "takes": each.takes(fact.type),
                "attempts": attempts([run for run in fact.runs if run.consumer == each.name], place),
                "letter": fact.letters.get(each.name),
                "says": records.explain(held[each.name], datetime.now(UTC)).says if each.name in held else None,
                "history": seen.get(each.name, ()),
                "leases": [(*lease, place(lease[2]), place(lease[3])) for lease in leases.get(each.name, ())],
                "effect": _effect(desk, each, fact, items.get(each.table or "", {})),
            }
            for each in feed.consumers
        ]
        return {
            "title": fact.type or "An event that breaks the contract",
            "fact": fact,
            "stops": stops,
            "copies": [(copy, place(copy.time_ms)) for copy in fact.copies],
            "width": WIDTH,
            "faults": faults.FAULTS if feed.stack.local and fact.ride else {},
            "content": _indented(fact.body),
        }


def _fact(desk: "Desk", name: str) -> Fact:
    with desk.feed.lock:
        fact = desk.feed.index.facts.get(name)
    if fact is None:
        raise NotThereError(
            f"The desk knows no event {name}. It may be older than what the desk has read, or not logged yet."
        )
    return fact


def _leases(versions: Sequence[Version]) -> list[tuple[str, int, int, int]]:
    """Return each lease that was seen: owner token, attempt, begin and end. Heartbeats make a lease longer."""
    found: dict[str, tuple[str, int, int, int]] = {}
    for _, value in versions:
        if value["lease_ms"] and (owner := value["owner"]):
            begin = found[owner][2] if owner in found else value["updated_ms"]
            found[owner] = (owner, value["attempt"], begin, value["lease_ms"])
    return list(found.values())


def _indented(text: str) -> str:
    found = read(text)
    return text if found is None else json.dumps(found, indent=2)


def _told(record: Record) -> dict[str, Any]:
    """Return the parts of a record that tell its history."""
    told = record._asdict()
    return {name: told[name] for name in ("status", "attempt", "owner", "lease_ms", "error", "updated_ms")}


def _effect(desk: "Desk", consumer: AuditedConsumer, fact: Fact, item: Mapping[str, Any]) -> Effect | None:
    """Return an event's effect on a consumer's item; None if it has none, or the consumer has no items."""
    entry = item.get(f"event#{fact.id}")
    plain = {name: value for name, value in item.items() if not is_attribute(name)}
    seen = desk.watched.add(f"item {consumer.name} {fact.ride} {fact.id}", plain | {_HAS_EFFECT: entry is not None})
    if entry is None:
        return None
    if "data" in entry:  # the ride history keeps what every event said
        earlier = [each.data for each in timeline_of(item) if each.sequence < entry["sequence"]]
        return Effect(earlier[-1] if earlier else {}, entry["data"], ())
    without = [each.value for each in seen if not each.value[_HAS_EFFECT]]
    before = {name: value for name, value in without[-1].items() if name != _HAS_EFFECT} if without else None
    return Effect(before, plain, tuple(entry.get("emitted", ())))


def ride(desk: "Desk", request: Request) -> dict[str, Any]:
    """Return all events of a ride."""
    name = request.path_params["ride"]
    with desk.feed.lock:
        found = sorted(desk.feed.index.rides.get(name, ()), key=lambda fact: (fact.version or 0, fact.time_ms))
        if not found:
            raise NotThereError(f"The desk has not read of a ride {name}. If it is logged now, this page shows it.")
        return {
            "title": f"Ride {name}",
            "ride": name,
            "found": [(each, chips(each, desk.feed.consumers)) for each in found],
        }


def ledger(desk: "Desk", _request: Request) -> dict[str, Any]:
    """Return the newest audit."""
    return {"title": "Ledger", "report": desk.feed.report, "rows": _ROWS}


def letters(desk: "Desk", _request: Request) -> dict[str, Any]:
    """Return the dead letters by failure."""
    return {"title": "Dead letters", "found": dead.letters(desk.feed.stack)}


def keys(desk: "Desk", request: Request) -> dict[str, Any]:
    """Return the records that a search finds."""
    wanted = {name: request.query_params.get(name, "").strip() for name in ("ride", "key", "status")}
    asked = {name: value for name, value in wanted.items() if value}
    found = records.records(desk.feed.stack, **asked, limit=_MOST_RECORDS) if asked else None
    return {"title": "Keys", "wanted": wanted, "found": found, "statuses": sorted(STATUSES)}


def replays(desk: "Desk", _request: Request) -> dict[str, Any]:
    """Return the newest replays of the archive."""
    return {"title": "Replay", "found": replay.status(desk.feed.stack)}


def job(desk: "Desk", request: Request) -> dict[str, Any]:
    """Return a command with what it has printed."""
    name = request.path_params["id"]
    found = desk.jobs.get(name)
    if found is None:
        raise NotThereError("This command is not known here any more.")
    return {"title": found.verb.capitalize(), "job": found, "name": name}


def start(desk: "Desk", form: Mapping[str, str]) -> tuple[str, str | None]:
    """Start the dry run of a command."""
    arguments = {name.removeprefix("argument"): value for name, value in form.items() if name not in {"verb", "back"}}
    return f"/job/{desk.jobs.start(form['verb'], arguments)}", None


def confirm(desk: "Desk", form: Mapping[str, str]) -> tuple[str, str | None]:
    """Do what a dry run has shown."""
    return f"/job/{desk.jobs.confirm(form['job'])}", None


def interrupt(desk: "Desk", form: Mapping[str, str]) -> tuple[str, str | None]:
    """Interrupt a command as Ctrl-C does."""
    if found := desk.jobs.get(form["job"]):
        found.interrupt()
    return f"/job/{form['job']}", None


def audit_now(desk: "Desk", _form: Mapping[str, str]) -> tuple[str, str | None]:
    """Have the stack audited."""
    desk.feed.audit_soon()
    return "/ledger", "The audit has begun."


def edit(desk: "Desk", request: Request) -> dict[str, Any]:
    """Return the detail of an event for editing."""
    fact = _fact(desk, request.path_params["id"])
    detail = (read(fact.body) or {}).get("detail")
    return {"title": "Edit and send", "fact": fact, "detail": json.dumps(detail, indent=2)}


def send_edited(desk: "Desk", form: Mapping[str, str]) -> tuple[str, str | None]:
    """Put an edited event on the bus."""
    detail = faults.edited(form["detail"], derive="derive" in form)
    faults.send(desk.feed.stack, detail)
    name = detail.get("idempotencyid")
    return f"/event/{name}" if name else "/facts", "The event was put on the bus."


def deliver(desk: "Desk", form: Mapping[str, str]) -> tuple[str, str | None]:
    """Deliver an event again, or a copy of it with a fault."""
    fact, how = _fact(desk, form["id"]), form["how"]
    (consumer,) = [each for each in desk.feed.consumers if each.name == form["consumer"]]
    if how in faults.FAULTS:
        copy = faults.with_fault(desk.feed.stack, consumer, fact.body, how)
        said = f"A copy was sent as the event of the new ride {copy.subject}: {faults.FAULTS[how]}, at {consumer.name}."
        return f"/event/{copy.idempotencyid}", said
    times = 2 if how == "twice" else 1
    faults.deliver(desk.feed.stack, consumer, fact.body, times)
    return f"/event/{fact.id}", f"The event was put at {consumer.name} {'twice' if times > 1 else 'again'}."


_ROWS: Final = (
    ("events to act on", "distinct", ""),
    ("deliveries", "deliveries", ""),
    ("skipped duplicates", "duplicates_absorbed", "skipped"),
    ("retried after a failure", "retried", observation.RETRIED),
    ("taken over after a crash", "takeovers", observation.TAKEOVER),
    ("failed, retried later", "failed", "failure"),
    ("dropped as expired", "expired", observation.EXPIRED),
    ("in flight", "in_flight", WAITING),
    ("effects", "effects", "effect"),
    ("lost", "lost", WAITING),
    ("doubled", "doubled", "effect"),
)
"""The rows of the ledger: label, the account's attribute, and the outcome of the events behind it."""

PAGES: Final = (
    ("/", "flow.html", flow),
    ("/facts", "facts.html", facts),
    ("/event/{id}", "event.html", event),
    ("/event/{id}/edit", "edit.html", edit),
    ("/ride/{ride:path}", "ride.html", ride),
    ("/letters", "letters.html", letters),
    ("/keys", "keys.html", keys),
    ("/replays", "replays.html", replays),
    ("/job/{id}", "job.html", job),
    ("/ledger", "ledger.html", ledger),
)
STILL: Final = frozenset({"edit.html", "letters.html", "keys.html", "replays.html"})
"""The pages that do not change by themselves."""
ACTS: Final = (
    ("/audit", audit_now),
    ("/deliver", deliver),
    ("/send", send_edited),
    ("/start", start),
    ("/confirm", confirm),
    ("/interrupt", interrupt),
)
