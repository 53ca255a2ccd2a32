"""The page of dead letters."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from carride_idempotency import observation
from carride_idempotency.operators.explaining import explain
from ops.audit.evidence import CONSUMERS
from ops.dead_letters import (
    PRODUCER_DLQ,
    READERS,
    DeadLetter,
    Redrives,
    redrive_command,
    redrive_of,
    redriven_at,
    verdicts_in,
)
from ops.desk.advice import MEND_FIRST, has_failed_again
from ops.desk.deliveries import began_ms
from ops.desk.facts import BUS, KEPT, Fact, Run
from ops.desk.letterbox import (
    Found,
    Group,
    Reading,
    at_consumer,
    chosen_in,
    groups_in,
    without_effect,
)
from ops.desk.pictures import look
from ops.desk.registry import Seen, page
from ops.desk.words import clip, indented
from ops.lookup import is_ride
from ops.payloads import readable
from ops.policies import MOST_ATTEMPTS
from ops.text import span, visible

_FEW: Final = 5
"""Letters of a group that are listed: the others are folded."""
_MOST_OF_GROUP: Final = 100


@page("/letters", "letters.html", still=True)
def _letters(desk: Seen, request: Request) -> dict[str, Any]:
    asked = request.query_params
    reading = desk.letters(again="again" in asked)
    chosen = chosen_in(reading.found, asked)
    is_asked_for = "letter" in asked or "event" in asked
    at = "" if is_asked_for else asked.get("at", "")
    contract = not is_asked_for and asked.get("contract") == KEPT
    listed = at_consumer(reading.found, at) if at else reading.found
    groups = groups_in(without_effect(listed) if contract else listed)
    opened = next((each for each in groups if each.id == asked.get("group")), None)
    if opened is None and groups:
        opened = groups[0]
    total = sum(reading.counts.values())
    letters = sum(len(group.letters) for group in groups)
    return {
        "title": _title(chosen, total),
        "reading": reading,
        "total": total,
        "at": at,
        "contract": contract,
        "listed": letters,
        "events": len({each.event_id for group in groups for each in group.letters}),
        "why_none": None if letters else _why_none(at, total),
        "sections": _sections(groups),
        "chosen": chosen,
        "is_asked_for": is_asked_for,
        "answers": 404 if is_asked_for and chosen is None else 200,
        "few": _FEW,
        "most": _MOST_OF_GROUP,
        "mend_first": MEND_FIRST,
        **(_of_group(opened) if opened and not is_asked_for else {}),
        **(_of_letter(desk, chosen, reading) if chosen else {}),
    }


def _of_group(group: Group) -> dict[str, Any]:
    """Return what is said of all letters of a group."""
    letter = group.oldest.letter
    releases = any(each.verdict.releases for each in group.letters)
    again = [has_failed_again(each.letter.redriven, each.record) for each in group.letters]
    return {
        "group": group,
        "failed_again": any(again),
        "verdicts": verdicts_in(each.verdict for each in reversed(group.letters)),
        "advice": _ADVICE.get(letter.reason, _RUNBOOK),
        "redrive": redrive_command(letter.queue, "group", letter.group, releases=releases),
    }


class Empty(NamedTuple):
    """What stands in the place of a list without a letter."""

    title: str
    text: str


def _why_none(at: str, total: int) -> Empty:
    """Return why no letter is listed, at a consumer if one is named; ``total`` are those of all."""
    names = [each.name for each in CONSUMERS]
    if at == BUS:
        return Empty("No dead letters beside those of consumers", _COMES)
    if at in names:
        return Empty(f"No dead letters of {at}", _COMES)
    if at:
        return Empty(f"No consumer is called {clip(at, 80)}", f"There are {', '.join(names)}.")
    if total:
        return Empty("No letter could be read", "Read again in a minute.")
    return Empty("No dead letters", _COMES)


_COMES: Final = (
    "An event waits here if its consumer has failed on it as often as it may, or if it breaks the "
    "contract."
)
"""When an event becomes a dead letter."""


def _title(chosen: Found | None, total: int) -> str:
    if chosen is not None:
        ride = chosen.letter.ride or "no ride"
        return f"{chosen.letter.type or 'Letter'} of {ride} · Dead letters"
    return f"({total:,}) Dead letters" if total else "Dead letters"


class Section(NamedTuple):
    """Groups of letters below a heading."""

    title: str
    note: str
    icon: str
    groups: list[Group]

    @property
    def total(self) -> int:
        """How many of their letters a redrive sends, or how many stay if it sends none."""
        return sum(group.goes or len(group.letters) for group in self.groups)


def _sections(groups: list[Group]) -> list[Section]:
    """Return the groups below their headings."""
    goes = [each for each in groups if each.goes]
    stays = [each for each in groups if not each.goes]
    found = [
        Section("Can be redriven", "once their cause is mended", "right", goes),
        Section("Would come back", "until their sender is mended", "cross", stays),
    ]
    return [each for each in found if each.groups]


def _of_letter(desk: Seen, found: Found, reading: Reading) -> dict[str, Any]:
    """Return what is said of a letter."""
    letter = found.letter
    redriven = redriven_at(desk.feed.stack, [letter.key]) if letter.key else {}
    with desk.feed.lock:
        fact = desk.feed.index.facts.get(found.event_id or "")
        runs = fact.attempts(letter.consumer)[-_MOST_PAST:] if fact and letter.consumer else []
        past = [*of_bus(fact), *_of_consumer(fact, runs, letter), *_of_operators(redriven.values())]
    sent_ms = letter.sent.timestamp() * 1000
    past.append(Past(sent_ms, "in its queue", "dead", "mail", letter.queue))
    past.sort(key=lambda each: each.time_ms)
    says = None
    if found.record is not None:
        says = explain(found.record, desk.now(), MOST_ATTEMPTS).says
    text = indented(readable(letter.event)) if letter.event is not None else ""
    same = [
        each
        for each in reading.found
        if letter.key and each.letter.key == letter.key and each.letter.id != letter.id
    ]
    return {
        "letter": letter,
        "reason": found.title,
        "found": found,
        "fact": fact if fact is not None and fact.copies else None,
        "past": past[-_MOST_PAST:],
        "same": same[:_MOST_SAME],
        "failed_again": has_failed_again(letter.redriven, found.record),
        "advice": _ADVICE.get(letter.reason, _RUNBOOK),
        "runbook": _runbook_of(letter.queue),
        "gone_ms": sent_ms + _KEPT_MS,
        "says": says,
        "is_ride": is_ride(letter.ride),
        "sent_ms": sent_ms,
        "payload": text,
        "redrive": redrive_of(letter, releases=found.verdict.releases),
    }


_MOST_PAST: Final = 30
_MOST_SAME: Final = 5
_KEPT_MS: Final = 14 * 24 * 3_600_000.0
"""How long a queue keeps a letter."""
_RUNBOOK: Final = "The runbook of its queue says what can be done."
_ADVICE: Final[Mapping[str, str]] = {
    "CONTRACT": "Whoever sends it has to mend it, and to publish the corrected event.",
    "PAYLOAD_MISMATCH": "Whoever sends it has to give each event an id of its own.",
    "BEYOND_WINDOW": "Look at its ride: if the event has not taken effect, it can be published "
    "again as a new one.",
    "EntryTooLarge": "Whoever sends it has to publish a smaller event.",
    "MalformedDetail": "Whoever sends it has to mend it, and to publish the corrected event.",
}
"""What helps if a redrive does not, by the letter's reason."""


def _runbook_of(queue: str) -> str:
    """Return the runbook of a dead-letter queue."""
    if queue == PRODUCER_DLQ:
        return "ops/docs/runbooks/producer-dlq.md"
    if queue not in READERS:
        return "ops/docs/runbooks/README.md"
    kind = "rule-dlq" if queue.endswith("RuleDlq") else "consumer-dlq"
    return f"ops/docs/runbooks/{kind}.md"


# ── The history of a letter ───────────────────────────────────────────────────────────────────────


class Past(NamedTuple):
    """Something that happened to a letter's event."""

    time_ms: float
    """When it began."""
    word: str
    kind: str
    icon: str
    text: str
    more: str = ""


def of_bus(fact: Fact | None) -> Iterator[Past]:
    """Yield when an event was published."""
    for number, copy in enumerate(fact.copies if fact else ()):
        word = "published"
        text = "on the bus" if number == 0 else "a copy of the same event, on the bus"
        if copy.replayed:
            word = "replayed"
            text = "from the archive"
        yield Past(copy.time_ms, word, "pub", "right", text)


def _of_consumer(fact: Fact | None, runs: Sequence[Run], letter: DeadLetter) -> Iterator[Past]:
    """Yield the deliveries of an event to a consumer: attempts, and what ran nothing."""
    deliveries = [*dict.fromkeys(run.delivery for run in runs if run.delivery)]
    for run in runs:
        found = look(run.outcome)
        parts = []
        if run.outcome == observation.QUARANTINED:
            parts.append("its key is quarantined")
        elif run.attempt:
            parts.append(f"attempt {run.attempt}")
        if run.duration_ms:
            parts.append(span(run.duration_ms))
        if len(deliveries) > 1 and run.delivery:
            parts.append(f"delivery {deliveries.index(run.delivery) + 1} of {len(deliveries)}")
        reason = run.reason or ""
        is_told = reason in letter.error or reason == letter.reason
        more = "" if is_told else reason
        time_ms = began_ms(fact, run) if fact else run.began_ms
        yield Past(time_ms, found.word, found.kind, found.icon, " · ".join(parts), more)


def _of_operators(redriven: Iterable[Redrives]) -> Iterator[Past]:
    """Yield when operators sent the event of a letter again."""
    for each in redriven:
        more = f"the last of {each.times:,} times" if each.times > 1 else ""
        yield Past(each.last_ms, "redriven", "pub", "wrench", "by an operator", more)


def raw_letter(desk: Seen, request: Request) -> Response:
    """Return the event of a letter in full, as text."""
    reading = desk.letters()
    found = chosen_in(reading.found, request.query_params)
    if found is None:
        return PlainTextResponse("This letter is not in its queue any more.", 404)
    return PlainTextResponse(visible(indented(found.letter.event)))
