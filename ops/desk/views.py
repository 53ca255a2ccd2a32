"""What each page of the desk shows."""

import json
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from starlette.requests import Request

from carride.dedup import is_attribute
from carride.history import timeline_of
from idempotency import DynamoDBStore, marshalling, observation
from idempotency.record import Record
from idempotency.stores.transport import BotocoreTransport
from ops.audit.evidence import AuditedConsumer
from ops.desk import faults
from ops.desk.index import BUCKET_S, BUCKETS, BUS, CRASHED, DEAD, Fact, Filter, Index
from ops.desk.pictures import STACKED, WIDTH, Attempt, Chart, attempts, axis, began_ms, chart, chips

if TYPE_CHECKING:
    from ops.desk.app import Desk

VIEWS: Final = (("/", "Flow"), ("/facts", "Facts"), ("/ledger", "Ledger"))
"""The pages of the navigation, in order."""

_ANSWER_SECONDS: Final = 20.0
_MINUTE_BUCKETS: Final = 60 // BUCKET_S
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


class Lane(NamedTuple):
    """A consumer on the page of the flow."""

    consumer: AuditedConsumer
    totals: Mapping[str, int]
    a_minute: Mapping[str, int]
    """Counts of the last minute by part of the chart."""
    chart: Chart
    waiting: int
    letters: Mapping[str, int | None]
    """Messages by dead-letter queue."""
    queue: int | None
    """Messages in the queue in front of it; None if there is none."""


class Stop(NamedTuple):
    """A consumer on the page of one event."""

    consumer: AuditedConsumer
    takes: bool
    attempts: Sequence[Attempt]
    letter: str | None
    record: Record | None
    records: Sequence[Version]
    lease: tuple[float, float] | None
    """Where the lease of a running attempt begins and ends on the axis."""
    before: Mapping[str, Any] | None
    """The consumer's item before the effect, as far as it is known."""
    after: Mapping[str, Any] | None
    """The item with the effect; None if it has none."""
    emitted: Sequence[str]


def flow(desk: "Desk", _request: Request) -> dict[str, Any]:
    """Return counts and charts of the pipeline."""
    feed, now = desk.feed, time.time()
    with feed.lock:
        index = feed.index
        bus = index.recent(BUS, now)
        return {
            "title": "Flow",
            "lanes": [_lane(index, each, feed.queues, now) for each in feed.consumers],
            "sources": {what: count for (lane, what), count in sorted(index.totals.items()) if lane == BUS},
            "published": sum(count for (lane, _), count in index.totals.items() if lane == BUS),
            "a_minute": sum(bucket.total() for bucket in bus[-_MINUTE_BUCKETS:]),
            "bus_chart": chart(bus, {"bus": None}),
            "minutes": BUCKETS * BUCKET_S // 60,
            "other_letters": {
                queue: count
                for queue, count in feed.queues.items()
                if count and queue.endswith("Dlq") and not any(queue in _letters_of(each) for each in feed.consumers)
            },
        }


def _lane(index: Index, consumer: AuditedConsumer, queues: Mapping[str, int], now: float) -> Lane:
    buckets = index.recent(consumer.name, now)
    minute = sum(buckets[-_MINUTE_BUCKETS:], Counter[str]())
    return Lane(
        consumer,
        {what: count for (lane, what), count in index.totals.items() if lane == consumer.name},
        {part: sum(minute[each] for each in outcomes) for part, outcomes in STACKED.items()},
        chart(buckets, STACKED),
        len(index.waiting[consumer.name]),
        {queue: queues.get(queue) for queue in _letters_of(consumer)},
        queues.get(f"{consumer.resources}Queue"),
    )


def _letters_of(consumer: AuditedConsumer) -> tuple[str, str]:
    return f"{consumer.resources}RuleDlq", f"{consumer.resources}Dlq"


def facts(desk: "Desk", request: Request) -> dict[str, Any]:
    """Return a page of published events."""
    wanted = Filter(**{name: request.query_params.get(name, "").strip() for name in Filter._fields})
    number = request.query_params.get("page", "0")
    number = int(number) if number.isascii() and number.isdigit() else 0
    with desk.feed.lock:
        found, more = desk.feed.index.page(wanted, number)
        return {
            "title": "Facts",
            "rows": [(fact, chips(fact, desk.feed.consumers)) for fact in found],
            "wanted": wanted,
            "types": sorted(filter(None, desk.feed.index.types)),
            "number": number,
            "more": more,
            "older": str(request.url.include_query_params(page=number + 1).query),
            "newer": str(request.url.include_query_params(page=number - 1).query),
            "known": len(desk.feed.index.facts),
        }


def event(desk: "Desk", request: Request) -> dict[str, Any]:
    """Return one event with its copies, runs, records and effects."""
    fact = _fact(desk, request.path_params["id"])
    records = {each.name: _record(desk, each, fact) for each in desk.feed.consumers}
    items = {each.name: _item(desk, each, fact) for each in desk.feed.consumers}
    now_ms = time.time() * 1000
    with desk.feed.lock:
        leases = [record.lease_ms for record in records.values() if record and record.lease_ms]
        times = [copy.time_ms for copy in fact.copies] + [run.ended_ms for run in fact.runs] + leases
        place = axis([*times, *(began_ms(run) for run in fact.runs), *([now_ms] if leases else [])])
        stops = [_stop(desk, each, fact, records[each.name], items[each.name], place, now_ms) for each in desk.feed.consumers]
        return {
            "title": fact.type or "An event that breaks the contract",
            "fact": fact,
            "stops": stops,
            "copies": [(copy, place(copy.time_ms)) for copy in fact.copies],
            "width": WIDTH,
            "faults": faults.FAULTS if desk.feed.stack.local and fact.ride else {},
            "content": json.dumps(json.loads(fact.body), indent=2) if fact.body.startswith("{") else fact.body,
            "began_ms": fact.time_ms,
        }


def _fact(desk: "Desk", name: str) -> Fact:
    with desk.feed.lock:
        fact = desk.feed.index.facts.get(name)
    if fact is None:
        raise NotThereError(f"The desk knows no event {name}. It may be older than what the desk has read, or not logged yet.")
    return fact


def _record(desk: "Desk", consumer: AuditedConsumer, fact: Fact) -> Record | None:
    if fact.ride is None or not consumer.takes(fact.type):
        return None
    transport = BotocoreTransport(desk.feed.stack.client("dynamodb"), _ANSWER_SECONDS)
    table = desk.feed.stack.outputs["IdempotencyTableName"]
    return DynamoDBStore(table, transport=transport).read(f"{consumer.name}#{fact.id}")


def _item(desk: "Desk", consumer: AuditedConsumer, fact: Fact) -> dict[str, Any]:
    if fact.ride is None or consumer.table is None or not consumer.takes(fact.type):
        return {}
    table = desk.feed.stack.outputs[f"{consumer.table}Name"]
    key = {"orderID": {"S": fact.ride}}
    answer = desk.feed.stack.client("dynamodb").get_item(TableName=table, Key=key, ConsistentRead=True)
    return marshalling.values(answer.get("Item", {}))


def _stop(
    desk: "Desk",
    consumer: AuditedConsumer,
    fact: Fact,
    record: Record | None,
    item: Mapping[str, Any],
    place: Any,
    now_ms: float,
) -> Stop:
    name = consumer.name
    versions: Sequence[Version] = ()
    if record is not None:
        versions = desk.watched.add(f"record {record.key}", _told(record))
    before, after, emitted = _effect(desk, name, fact, item)
    lease = None
    if record is not None and record.lease_ms is not None:
        lease = (place(record.updated_ms), place(record.lease_ms))
    shown = attempts(fact.of(name), place)
    return Stop(consumer, consumer.takes(fact.type), shown, fact.letters.get(name), record, versions, lease, before, after, emitted)


def _told(record: Record) -> dict[str, Any]:
    """Return the parts of a record that tell its history."""
    told = record._asdict()
    return {name: told[name] for name in ("status", "attempt", "owner", "lease_ms", "delivery", "error", "updated_ms")}


def _effect(
    desk: "Desk", consumer: str, fact: Fact, item: Mapping[str, Any]
) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None, Sequence[str]]:
    """Return a consumer's item before and after an event took effect, and what was emitted with it."""
    entry = item.get(f"event#{fact.id}")
    plain = {name: value for name, value in item.items() if not is_attribute(name)}
    seen = desk.watched.add(f"item {consumer} {fact.ride}", plain | {"": entry is not None})
    if entry is None:
        return None, None, ()
    if "data" in entry:  # the ride history keeps what every event said
        timeline = timeline_of(item)
        earlier = [each.data for each in timeline if each.sequence < entry["sequence"]]
        return (earlier[-1] if earlier else {}), entry["data"], ()
    without = [version.value for version in seen if not version.value[""]]
    before = {name: value for name, value in without[-1].items() if name} if without else None
    return before, plain, tuple(entry.get("emitted", ()))


def ride(desk: "Desk", request: Request) -> dict[str, Any]:
    """Return all events of a ride."""
    name = request.path_params["ride"]
    with desk.feed.lock:
        found = sorted(desk.feed.index.rides.get(name, ()), key=lambda fact: (fact.version or 0, fact.time_ms))
        if not found:
            raise NotThereError(f"The desk knows no ride {name}.")
        return {"title": f"Ride {name}", "ride": name, "rows": [(each, chips(each, desk.feed.consumers)) for each in found]}


def ledger(desk: "Desk", _request: Request) -> dict[str, Any]:
    """Return the newest audit."""
    return {"title": "Ledger", "report": desk.feed.report, "rows": _ROWS}


def audit_now(desk: "Desk", _form: Mapping[str, str]) -> tuple[str, str]:
    """Have the stack audited."""
    desk.feed.audit_soon()
    return "/ledger", "The audit has begun."


_ROWS: Final = (
    ("events to act on", "distinct", ""),
    ("deliveries", "deliveries", ""),
    ("skipped duplicates", "duplicates_absorbed", observation.DUPLICATE),
    ("retried after a failure", "retried", observation.RETRIED),
    ("taken over after a crash", "takeovers", observation.TAKEOVER),
    ("failed, retried later", "failed", observation.FAILED),
    ("dropped as expired", "expired", observation.EXPIRED),
    ("in flight", "in_flight", "Waiting"),
    ("effects", "effects", ""),
    ("lost", "lost", ""),
    ("doubled", "doubled", ""),
)
"""The rows of the ledger: label, the account's attribute, and the outcome of the events behind it."""

PAGES: Final = (
    ("/", "flow.html", flow),
    ("/facts", "facts.html", facts),
    ("/event/{id}", "event.html", event),
    ("/ride/{ride:path}", "ride.html", ride),
    ("/ledger", "ledger.html", ledger),
)
ACTS: Final = (("/audit", audit_now),)
__all__ = ["ACTS", "CRASHED", "DEAD", "PAGES", "VIEWS", "NotThereError", "Watched"]
