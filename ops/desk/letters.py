"""The pages that mend: dead letters, and the keys that wait for an operator."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from carride_idempotency.operators.explaining import Explained
from carride_idempotency.record import COMPLETED, QUARANTINED, STATUSES, Record
from carride_idempotency.record_items import record_of
from ops import records
from ops.desk.index import Fact
from ops.desk.letterbox import Found, Group, chosen_in, groups_of
from ops.desk.registry import Seen, page
from ops.desk.words import indented
from ops.lookup import is_ride
from ops.text import visible

_MOST_OF_GROUP: Final = 100
"""Letters of a group that are listed."""
_MOST_RECORDS: Final = 100


@page("/letters", "letters.html", still=True)
def _letters(desk: Seen, request: Request) -> dict[str, Any]:
    asked = request.query_params
    reading = desk.letterbox.read(desk.feed.queues, again="again" in asked)
    groups = groups_of(reading.found)
    chosen = chosen_in(reading.found, asked)
    is_asked_for = "letter" in asked or "event" in asked
    shown = chosen
    if shown is None and groups and not is_asked_for:
        shown = groups[0].letters[0]
    total = sum(reading.counts.values())
    return {
        "title": _title(shown, total, is_chosen=chosen is not None),
        "reading": reading,
        "total": total,
        "sections": _sections(groups),
        "chosen": shown,
        "is_asked_for": is_asked_for,
        "group": _group_of(shown, groups),
        "most": _MOST_OF_GROUP,
        **(_detail(desk, shown) if shown else {}),
    }


def _title(shown: Found | None, total: int, *, is_chosen: bool) -> str:
    if is_chosen and shown is not None:
        return f"{shown.letter.type or 'Letter'} of {shown.letter.ride or 'no ride'} · Dead letters"
    return f"({total:,}) Dead letters" if total else "Dead letters"


class Section(NamedTuple):
    """Groups of letters below a heading."""

    title: str
    note: str
    icon: str
    groups: list[Group]

    @property
    def total(self) -> int:
        """How many letters they have."""
        return sum(len(group.letters) for group in self.groups)


def _sections(groups: list[Group]) -> list[Section]:
    """Return the groups below their headings."""
    goes = [each for each in groups if each.goes]
    stays = [each for each in groups if not each.goes]
    found = [
        Section("Can be redriven", "a delivery may succeed now", "right", goes),
        Section("Would come back", "until their sender is mended", "cross", stays),
    ]
    return [each for each in found if each.groups]


def _group_of(shown: Found | None, groups: list[Group]) -> Group | None:
    return next((each for each in groups if shown is not None and shown in each.letters), None)


def _detail(desk: Seen, found: Found) -> dict[str, Any]:
    letter = found.letter
    with desk.feed.lock:
        fact = desk.feed.index.facts.get(found.event_id or "")
        runs = fact.attempts(letter.consumer)[-20:] if fact and letter.consumer else []
    says = records.explain(found.record, desk.now()).says if found.record else None
    text = indented(letter.event) if letter.event is not None else ""
    return {
        "letter": letter,
        "found": found,
        "fact": fact if fact is not None and fact.copies else None,
        "runs": runs,
        "says": says,
        "is_ride": is_ride(letter.ride),
        "sent_ms": letter.sent.timestamp() * 1000,
        "payload": text,
        "needs_release": found.verdict.releases,
    }


def raw_letter(desk: Seen, request: Request) -> Response:
    """Return the event of a letter in full, as text."""
    reading = desk.letterbox.read(desk.feed.queues)
    found = chosen_in(reading.found, request.query_params)
    if found is None:
        return PlainTextResponse("This letter is not in its queue any more.", 404)
    return PlainTextResponse(visible(indented(found.letter.event)))


# ── Keys ──────────────────────────────────────────────────────────────────────────────────────────


@page("/keys", "keys.html", still=True)
def _keys(desk: Seen, request: Request) -> dict[str, Any]:
    wanted = dict[str, str]()
    for name in ("ride", "key", "status"):
        wanted[name] = request.query_params.get(name, "").strip()
    asked = {name: value for name, value in wanted.items() if value}
    stack = desk.feed.stack
    if asked:
        found = records.records(stack, **asked, limit=_MOST_RECORDS)
    else:
        found = records.quarantined(stack)
    shown = [*found.records[:_MOST_RECORDS]]
    given_up = _given_up(desk, shown)
    if not asked:
        shown = sorted(shown, key=lambda each: -given_up[each.key].updated_ms)
    with desk.feed.lock:
        rides = {each.key: _ride_of(desk, each.key) for each in shown}
    return {
        "title": "Keys" if not found.records or asked else f"({len(found.records):,}) Keys",
        "wanted": wanted,
        "asked": asked,
        "found": found,
        "shown": shown,
        "more": len(found.records) - len(shown),
        "rides": rides,
        "given_up": given_up,
        "statuses": sorted(STATUSES),
        "quarantined": QUARANTINED,
        "completed": COMPLETED,
    }


def _given_up(desk: Seen, shown: Sequence[Explained]) -> dict[str, Record]:
    """Return the records of the quarantined keys among those that are shown."""
    keys = [each.key for each in shown if each.status == QUARANTINED]
    return {each.key: each for each in map(record_of, records.items_at(desk.feed.stack, keys))}


def _ride_of(desk: Seen, key: str) -> Fact | None:
    return desk.feed.index.facts.get(key.partition("#")[2])
