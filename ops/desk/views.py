"""What each page of the desk shows, and what its buttons do."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from starlette.requests import Request

from carride.facts import FACTS
from carride.history import EVENT_PREFIX, timeline_of
from carride.simulated_faults import Fault
from carride_idempotency.record import Record
from carride_idempotency.record_items import record_of
from ops import records
from ops.audit.evidence import AuditedConsumer
from ops.audit.queues import json_object
from ops.desk import faults
from ops.desk.index import (
    BUCKET_S,
    GROUPS,
    Fact,
    Filter,
)
from ops.desk.pictures import WIDTH, axis
from ops.desk.registry import NotThereError, Said, Seen, act, page
from ops.desk.words import part

_MINUTE_BUCKETS: Final = 60 // BUCKET_S


# ── Pages: each function returns the variables of a template ──────────────────────────────────────


@page("/facts", "facts.html")
def _facts(desk: Seen, request: Request) -> dict[str, Any]:
    wanted = Filter(**{name: request.query_params.get(name, "").strip() for name in Filter._fields})
    asked = request.query_params.get("page", "")
    number = int(asked) if re.fullmatch("[0-9]{1,4}", asked) else 0
    with desk.feed.lock:
        found, more = desk.feed.index.page(wanted, number)
        return {
            "title": f"Ride {wanted.ride}"
            if {each.ride for each in found} == {wanted.ride}
            else "Facts",
            "found": found,
            "wanted": wanted,
            "groups": GROUPS,
            "types": sorted(FACTS),
            "number": number,
            "more": more,
            "older": str(request.url.include_query_params(page=number + 1).query),
            "newer": str(request.url.include_query_params(page=number - 1).query),
            "known": sum(bool(each.copies) for each in desk.feed.index.facts.values()),
        }


@page("/event/{id}", "event.html")
def _event(desk: Seen, request: Request) -> dict[str, Any]:
    fact = _fact(desk, request.path_params["id"])
    feed = desk.feed
    takers = [
        each.name for each in feed.consumers if each.takes(fact.type) and fact.ride is not None
    ]
    found = map(record_of, records.items_at(feed.stack, [f"{name}#{fact.id}" for name in takers]))
    history = {
        record.key.partition("#")[0]: desk.records.add(record.key, record) for record in found
    }
    items = records.tables_of(feed.stack, fact.ride) if fact.ride else {}
    with feed.lock:
        stops = list[dict[str, Any]]()
        for each in feed.consumers:
            effect = _effect(desk, each, fact, items.get(each.table or "", {}))
            stops.append(_stop(each, fact, history.get(each.name, ()), effect))
        bars = [(begin_ms, seen.lease_ms) for stop in stops for begin_ms, seen in stop["leases"]]
        bars += [(began_ms, run.ended_ms) for stop in stops for run, began_ms in stop["runs"]]
        times = [time_ms for bar in bars for time_ms in bar]
        times += [copy.time_ms for copy in fact.copies]
        return {
            "title": fact.type or "An event that breaks the contract",
            "fact": fact,
            "copies": tuple(fact.copies),
            "stops": stops,
            "place": axis(times),
            "axis_width": WIDTH,
            "faults": faults.FAULTS if feed.stack.local and fact.ride else {},
            "content": _indented(json_object(fact.body) or fact.body),
        }


def _stop(
    consumer: AuditedConsumer,
    fact: Fact,
    history: Sequence[Record],
    effect: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return what became of an event at a consumer; ``history`` has the versions of its record."""
    says = None
    if history:
        says = records.explain(history[-1], datetime.now(UTC)).says
    # An invocation of a batch may have begun before the event was published.
    runs = [
        (run, max(run.began_ms, min(fact.time_ms, run.ended_ms)))
        for run in fact.attempts(consumer.name)
    ]
    return {
        "name": consumer.name,
        "takes": consumer.takes(fact.type),
        "runs": runs,
        "letter": fact.letters.get(consumer.name),
        "history": history,
        "says": says,
        "leases": _leases(history),
        "effect": effect,
    }


def _fact(desk: Seen, name: str) -> Fact:
    with desk.feed.lock:
        fact = desk.feed.index.facts.get(name)
    if fact is None or not fact.copies:
        raise NotThereError(
            f"The desk does not know the event {name}. It may be older than what the desk has "
            "read, or not logged yet."
        )
    return fact


def _leases(versions: Sequence[Record]) -> list[tuple[int, Record]]:
    """Return when the lease of each attempt began, and the newest record with it.

    Heartbeats make a lease longer.
    """
    found: dict[str | None, tuple[int, Record]] = {}
    for each in versions:
        if each.lease_ms:
            begin_ms, _ = found.get(each.owner, (each.updated_ms, each))
            found[each.owner] = begin_ms, each
    return list(found.values())


def _indented(found: object) -> str:
    return found if isinstance(found, str) else json.dumps(found, indent=2)


def _effect(
    desk: Seen, consumer: AuditedConsumer, fact: Fact, item: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return an event's effect on a consumer's item.

    None if it has none, or the consumer has no items.

    ``before`` is the item before it, None if the desk has not seen that; ``emitted`` are types of
    events.
    """
    name = f"{consumer.name} {fact.id}"
    entry = item.get(f"event#{fact.id}")
    plain = {field: value for field, value in item.items() if not field.startswith(EVENT_PREFIX)}
    if entry is None:
        desk.items.add(name, plain)
        return None
    if "data" in entry:  # the ride history keeps what every event said
        earlier = [each.data for each in timeline_of(item) if each.sequence < entry["sequence"]]
        return {"before": earlier[-1] if earlier else {}, "after": entry["data"], "emitted": ()}
    before = desk.items.get(name, [None])[-1]
    return {"before": before, "after": plain, "emitted": entry.get("emitted", ())}


@page("/event/{id}/edit", "edit.html", still=True)
def _edit(desk: Seen, request: Request) -> dict[str, Any]:
    fact = _fact(desk, request.path_params["id"])
    return {
        "title": "Edit and send",
        "fact": fact,
        "detail": _indented((json_object(fact.body) or {}).get("detail")),
    }


@page("/more", "more.html")
def _more(_desk: Seen, _request: Request) -> dict[str, Any]:
    return {"title": "More"}


# ── Buttons: each returns the page to show, and what was done in a sentence ───────────────────────


@act("/send")
def _send(desk: Seen, form: Mapping[str, str]) -> tuple[str, Said | None]:
    """Put an edited event on the bus."""
    derives_id = "derive" in form
    detail = faults.edited(form["detail"], derive=derives_id)
    faults.send(desk.feed.stack, detail)
    name = detail.get("idempotencyid")
    page = "/facts"
    if name:
        page = f"/event/{part(str(name))}"
    return page, Said("The event was put on the bus.")


@act("/deliver")
def _deliver(desk: Seen, form: Mapping[str, str]) -> tuple[str, Said | None]:
    """Deliver an event again, or a copy of it with a fault."""
    fact = _fact(desk, form["id"])
    how = form["how"]
    (consumer,) = [each for each in desk.feed.consumers if each.name == form["consumer"]]
    if how in faults.FAULTS:
        copy = faults.send_with_fault(desk.feed.stack, consumer, fact.body, Fault(how))
        what = faults.FAULTS[Fault(how)]
        said = Said(
            f"A copy was sent as the event of the new ride {copy.subject}: {what}, at "
            f"{consumer.name}."
        )
        return f"/event/{copy.idempotencyid}", said
    times = 2 if how == "twice" else 1
    faults.deliver(desk.feed.stack, consumer, fact.body, times)
    again = "twice" if times > 1 else "again"
    return f"/event/{fact.id}", Said(f"The event was put at {consumer.name} {again}.")
