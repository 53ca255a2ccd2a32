"""The first page: what flows now, on one axis of time, and what does not."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, Final, NamedTuple

from starlette.requests import Request

from carride.simulated_faults import Fault
from carride_idempotency import observation
from ops.audit.evidence import COPY, OTHER_DLQS, AuditedConsumer
from ops.desk import faults
from ops.desk.counts import DELIVERIES
from ops.desk.endings import Ending, ending_of
from ops.desk.facts import BUS, KINDS, REPLAYED, STUCK, Fact
from ops.desk.feed import Feed
from ops.desk.outages import Outage
from ops.desk.pictures import Stacked, stacked
from ops.desk.registry import Injection, Next, Said, Seen, act, page
from ops.desk.story_known import joined
from ops.desk.timeline import ALL, WINDOWS, Window, window_of
from ops.desk.under_way import under_way
from ops.desk.words import clock_text, moment
from ops.stack import OperatorError, StackRef
from ops.text import counted, rough, span

_MINUTE_BUCKETS: Final = 60 // WINDOWS[0].bucket_s
_DAY_S: Final = 86_400
_MINUTE_MS: Final = 60_000
_MOST_RIDES: Final = 20
_RANGES: Final = (
    *((each.name, each.short) for each in WINDOWS if each.name in ("5m", "1h")),
    (ALL, ALL),
)
"""The windows that are offered, each with its word."""
_CHARTED: Final = {each.kind: each for each in DELIVERIES}
"""The parts of a consumer's strip, from the bottom up."""
_PUBLISHED: Final = frozenset(KINDS) - {REPLAYED}
_ON_BUS: Final = {"pub": _PUBLISHED, "replayed": frozenset({REPLAYED})}
"""The parts of the strip of the bus."""
_ICONS: Final = {"ride-history": "ledger", "dispatch": "car", "payment": "card"}


class Band(NamedTuple):
    """A time in which nothing took effect at a consumer, with its place, from 0 to 100."""

    x: float
    width: float
    says: str
    """From when to when, in words."""


class Strip(NamedTuple):
    """A row of the picture: the bus, or a consumer."""

    name: str
    icon: str
    lines: tuple[str, ...]
    """What is so now, in words."""
    chart: Stacked
    bands: tuple[Band, ...]
    """When it failed."""
    bars: tuple[tuple[float, str], ...]
    """Place of each bucket with anything, from 0 to 100, and what is in it, in words."""
    outage: Outage | None
    """Why it fails now; None if it does not."""
    letters: int | None
    """Messages in its dead-letter queues now; None until they are counted."""
    path: str
    """The page that lists them."""
    quiet: str
    """What stands in place of bars; empty if there are bars."""


@page("/", "flow.html")
def _flow(desk: Seen, request: Request) -> dict[str, Any]:
    feed = desk.feed
    now = time.time()
    with feed.lock:
        window = window_of(request.query_params.get("range", ""), feed.index.begun_ms, now)
        outages = feed.index.outages.now(now * 1000)
        held = _held_rides(feed)
        strips = [_bus(feed, window, now)]
        strips += [_consumer(feed, each, window, now) for each in feed.consumers]
        return {
            "title": _title(outages),
            "outage": outages[0] if outages else None,
            "others": _others(feed, now),
            "strips": strips,
            "legend": _legend(strips),
            "ticks": list(_ticks(window, now)),
            "now_ms": now * 1000,
            "window": window,
            "ranges": _RANGES,
            "bucket": _span_of_bar(window),
            "reach": _reach(feed, window, now),
            "bucket_width": 100 / window.buckets,
            "since_ms": feed.index.begun_ms,
            "rides": _rides(feed, held[:_MOST_RIDES]),
            "more_rides": max(0, len(held) - _MOST_RIDES),
            "lost": feed.index.lost(),
            "is_filling": feed.is_filling,
            "under_way": under_way(feed),
            "recently": _recently(feed, window, now, outages),
            "letters": feed.letters() or 0,
            "quarantined": feed.quarantined or 0,
            "last_injected": desk.injected,
            "injected": _INJECTED if feed.stack.local is not None else (),
        }


def _legend(strips: Sequence[Strip]) -> list[tuple[str, str]]:
    """Return the kinds of bars that are drawn, with their words, and of bands if there are any."""
    drawn = {bar.kind for strip in strips[1:] for bar in strip.chart.bars}
    found = [(kind, each.label) for kind, each in _CHARTED.items() if kind in drawn]
    if any(bar.kind == "replayed" for bar in strips[0].chart.bars):
        found.append(("replayed", "replayed, on the bus"))
    if any(strip.bands for strip in strips):
        found.append(("band", "no delivery takes effect"))
    return found


def _recently(feed: Feed, window: Window, now: float, outages: Sequence[Outage]) -> str:
    """Return in words who fails, and what has failed or was given up in the time of the picture."""
    failed = 0
    reach = _reach(feed, window, now) if window.name == ALL else f"in {window.words}"
    given_up = dict[str, int]()
    for each in feed.consumers:
        total = sum(feed.index.timeline.recent(each.name, now, window), Counter[str]())
        failed += _CHARTED["fail"].of(total)
        count = _CHARTED["dead"].of(total)
        if count:
            given_up[each.name] = count
    said = [f"{outages[0].consumer} fails"] if outages else []
    if failed and not given_up:
        said.append(f"{counted(failed, 'failed run')} {reach}, none given up")
    elif given_up:
        said.append(f"{_given_up(given_up)} {reach}")
    said += _without_effect(feed, now)
    return ", ".join(said) or "no consumer fails"


def _without_effect(feed: Feed, now: float) -> Iterator[str]:
    """Yield in words which consumers gave up, and have not shown since that they work again."""
    for outage in _unended(feed, now):
        if not outage.is_on(now * 1000):
            since = clock_text(outage.since_ms, now * 1000)
            yield f"nothing has taken effect at {outage.consumer} since {since}"


def _unended(feed: Feed, now: float) -> Iterator[Outage]:
    """Yield the newest outage of each consumer at which nothing has taken effect since."""
    for each in feed.consumers:
        for outage in feed.index.outages.of(each.name, now * 1000)[-1:]:
            if outage.until_ms is None:
                yield outage


def _given_up(counts: Mapping[str, int]) -> str:
    """Return how many deliveries consumers gave up, in words."""
    if len(counts) == 1:
        ((name, count),) = counts.items()
        return f"{name} gave up {counted(count, 'delivery')}"
    most_first = sorted(counts.items(), key=itemgetter(1), reverse=True)
    names = joined([f"{count:,} by {name}" for name, count in most_first])
    return f"{counted(sum(counts.values()), 'delivery')} given up ({names})"


def _span_of_bar(window: Window) -> str:
    """Return the length of a bar in words: a whole number of seconds, or longer."""
    length_ms = 1000 * window.bucket_s
    return rough(length_ms) if length_ms < _MINUTE_MS else span(length_ms)


def _reach(feed: Feed, window: Window, now: float) -> str:
    """Return in words how far back the picture shows events."""
    begun_ms = feed.index.begun_ms
    if begun_ms is None:
        return f"the last {window.words}"
    since = f"since {clock_text(begun_ms, now * 1000)}"
    is_younger = begun_ms > 1000 * window.begin_s(now)
    return since if window.name == ALL or is_younger else f"the last {window.words}"


def _title(outages: Sequence[Outage]) -> str:
    return f"{outages[0].consumer} fails · Flow" if outages else "Flow"


def _others(feed: Feed, now: float) -> str:
    """Return which consumers are not affected, in a sentence."""
    failing = {each.consumer for each in _unended(feed, now)}
    well = [each.name for each in feed.consumers if each.name not in failing]
    if not well:
        return "No consumer is spared."
    return f"{' and '.join(well)} {'is' if len(well) == 1 else 'are'} not affected."


def _ticks(window: Window, now: float) -> Iterator[tuple[float, str]]:
    """Yield place and text of each tick before now: the time of day, or the day."""
    first = window.begin_s(now) // window.tick_s + 1
    end_s = window.end_s(now)
    for second in range(first * window.tick_s, end_s, window.tick_s):
        time_ms = 1000 * second
        place = window.place(time_ms, now)
        yield place, _tick_text(window, time_ms)


def _tick_text(window: Window, time_ms: float) -> str:
    at = moment(time_ms)
    if window.tick_s >= _DAY_S:
        return f"{at.day} {at:%b}"
    return f"{at:%H:%M}"


def _in_the_last_minute(feed: Feed, lane: str, now: float) -> int:
    newest = feed.index.timeline.recent(lane, now)[-_MINUTE_BUCKETS:]
    return sum(bucket.total() for bucket in newest)


def _bus(feed: Feed, window: Window, now: float) -> Strip:
    recent = feed.index.timeline.recent(BUS, now, window)
    minute = _in_the_last_minute(feed, BUS, now)
    chart = stacked(recent, _ON_BUS)
    return Strip(
        name="CarRideBus",
        icon="bolt",
        lines=_lines((minute, "event", "in the last minute")),
        chart=chart,
        bands=(),
        bars=tuple(_bars(recent, {"published": _PUBLISHED, "replayed": {REPLAYED}}, window, now)),
        outage=None,
        letters=_letters(feed, OTHER_DLQS),
        path="/letters?at=bus",
        quiet=_quiet(chart, window),
    )


def _quiet(chart: Stacked, window: Window) -> str:
    if chart.bars:
        return ""
    return "quiet" if window.name == ALL else f"quiet for {window.words}"


def _consumer(feed: Feed, consumer: AuditedConsumer, window: Window, now: float) -> Strip:
    buckets = feed.index.timeline.recent(consumer.name, now, window)
    minute = _in_the_last_minute(feed, consumer.name, now)
    begin_ms = window.begin_s(now) * 1000
    outages = feed.index.outages.of(consumer.name, begin_ms)
    on = [each for each in outages if each.is_on(now * 1000)]
    chart = stacked(buckets, {kind: each.outcomes for kind, each in _CHARTED.items()})
    dlqs = (f"{consumer.resources}RuleDlq", f"{consumer.resources}Dlq")
    return Strip(
        name=consumer.name,
        icon=_ICONS.get(consumer.name, "right"),
        lines=_lines(
            (minute, "run", "in the last minute"),
            (len(feed.index.unfinished(consumer.name)), "event", "in flight"),
            (feed.queues.get(f"{consumer.resources}Queue", 0), "message", "in its queue"),
        ),
        chart=chart,
        bands=tuple(_bands(outages, window, now)),
        bars=tuple(_bars(buckets, {each.label: each.outcomes for each in DELIVERIES}, window, now)),
        outage=on[0] if on else None,
        letters=_letters(feed, dlqs),
        path=f"/letters?at={consumer.name}",
        quiet=_quiet(chart, window),
    )


def _lines(*counts: tuple[int, str, str]) -> tuple[str, ...]:
    """Return counts above zero in words, each of a thing and where it is."""
    return tuple(f"{counted(count, thing)} {where}" for count, thing, where in counts if count)


def _bars(
    buckets: Sequence[Counter[str]],
    parts: Mapping[str, Iterable[str]],
    window: Window,
    now: float,
) -> Iterator[tuple[float, str]]:
    """Yield the place of each bucket with anything, and what is in it, in words."""
    step = 100 / len(buckets)
    begin = window.begin_s(now)
    for number, bucket in enumerate(buckets):
        said = []
        for name, outcomes in parts.items():
            count = sum(bucket[outcome] for outcome in outcomes)
            if count:
                said.append(f"{count:,} {name}")
        if said:
            at = moment(1000 * (begin + number * window.bucket_s))
            yield number * step, f"{at:%H:%M:%S}: {', '.join(said)}"


def _bands(outages: Sequence[Outage], window: Window, now: float) -> Iterator[Band]:
    """Yield the times in which a consumer failed, without past ones that are shorter than a bar."""
    for each in outages:
        if each.until_ms is not None and each.until_ms - each.since_ms < 1000 * window.bucket_s:
            continue
        x = window.place(each.since_ms, now)
        end = window.place(each.until_ms or now * 1000, now)
        since = f"{moment(each.since_ms):%H:%M:%S}"
        if each.until_ms is not None:
            says = f"no effect {since} to {moment(each.until_ms):%H:%M:%S}"
        else:
            says = f"no effect since {since}"
        yield Band(x, max(0.6, end - x), says)


def _letters(feed: Feed, queues: Sequence[str]) -> int | None:
    """Return how many messages are in queues; None until they are counted."""
    if not feed.queues:
        return None
    return sum(feed.queues.get(queue, 0) for queue in queues)


class Held(NamedTuple):
    """Events that a consumer has not processed, or has given up, with the same outcome."""

    consumer: str
    outcome: str
    types: tuple[str, ...]


class OpenRide(NamedTuple):
    """A ride that is open, or of which a consumer has given up an event."""

    ride: str
    ending: Ending
    """Where it is."""
    held: tuple[Held, ...]
    begun_ms: int


def _held_rides(feed: Feed) -> list[str]:
    """Return the rides that are given up or open, those first and then the oldest first."""
    return [*dict.fromkeys((*feed.index.given_up(), *feed.index.open_rides))]


def _rides(feed: Feed, names: Iterable[str]) -> list[OpenRide]:
    """Return where rides are, and what they wait for."""
    found = []
    for name in names:
        facts = feed.index.of_ride(name)
        ending = ending_of([fact.type for fact in facts])
        found.append(OpenRide(name, ending, tuple(_held(feed, facts)), facts[0].time_ms))
    return found


def _held(feed: Feed, facts: Iterable[Fact]) -> Iterator[Held]:
    """Yield the consumers that have not processed events of a ride, or have given them up."""
    found: dict[tuple[str, str], list[str]] = {}
    for fact in facts:
        for consumer in feed.consumers:
            outcome = fact.outcome(consumer)
            is_stuck = outcome in STUCK or consumer.name in fact.letters
            if outcome is None or outcome in observation.COMMITTED:
                continue
            if is_stuck or fact.is_unfinished(consumer):
                found.setdefault((consumer.name, outcome), []).append(fact.type or "")
    for (name, outcome), types in found.items():
        yield Held(name, outcome, tuple(types))


# ── Faults, on a local stack ──────────────────────────────────────────────────────────────────────


class Injected(NamedTuple):
    """A fault with a button."""

    id: str
    icon: str
    title: str
    text: str
    consumer: str
    fault: Fault | None
    """None: copies of an event, without a fault."""
    times: int = 1


_INJECTED: Final = (
    Injected(
        "kill",
        "bolt",
        "Kill dispatch",
        "in the middle of its next event: another delivery takes over",
        "dispatch",
        Fault.CRASH,
    ),
    Injected(
        "stall",
        "shield",
        "Stall payment past its lease",
        "its late write is fenced off",
        "payment",
        Fault.STALL,
    ),
    Injected(
        "lose",
        "send",
        "Lose the answer of dispatch's commit",
        "it is committed, and dispatch never hears of it",
        "dispatch",
        Fault.LOSE_ANSWER,
    ),
    Injected(
        "fail",
        "cross",
        "Fail payment five times",
        "five events fail at once, and are retried",
        "payment",
        Fault.FAIL,
        5,
    ),
    Injected(
        "copies",
        "same",
        "Send 50 copies",
        "of one event: each consumer recognises them",
        "dispatch",
        None,
        50,
    ),
)
"""The faults that Flow offers."""


@act("/inject")
def _inject(desk: Seen, form: Mapping[str, str]) -> Next:
    """Send copies of a past event of a consumer, as those of new rides, with a fault."""
    (chosen,) = [each for each in _INJECTED if each.id == form["fault"]]
    (consumer,) = [each for each in desk.feed.consumers if each.name == chosen.consumer]
    with desk.feed.lock:
        fact = _newest(desk.feed, consumer)
    stack = desk.feed.stack
    said = _injected(stack, chosen, consumer, fact)
    desk.injected = Injection(desk.now().timestamp() * 1000, said)
    return "/", said


def _injected(stack: StackRef, chosen: Injected, consumer: AuditedConsumer, fact: Fact) -> Said:
    """Send the copies of a fault, and return what was sent and where to watch it."""
    if chosen.fault is None:
        faults.send_copies(stack, fact.body, chosen.times)
        return Said(
            f"{chosen.times} copies of {fact.type} were sent.",
            path=f"/event/{fact.id}",
            link="See them",
        )
    copies = [
        faults.send_with_fault(stack, consumer, fact.body, chosen.fault)
        for _ in range(chosen.times)
    ]
    sent = "1 copy" if len(copies) == 1 else f"{len(copies)} copies"
    rides = "a new ride" if len(copies) == 1 else "new rides"
    link = "Watch it" if len(copies) == 1 else "Watch the first"
    said = f"{sent} of a past {fact.type} sent as {rides}."
    return Said(said, path=f"/ride/{copies[0].subject}", link=link)


def _newest(feed: Feed, consumer: AuditedConsumer) -> Fact:
    """Return the newest event that took effect at a consumer, of a kind that shows a fault best.

    Its ride went well, so that its copy has a car to get, or money to reserve.

    Raises:
        OperatorError: there is none.
    """
    second: Fact | None = None
    now = datetime.now(UTC)
    for fact in reversed(feed.index.facts.values()):
        is_whole = fact.ride is not None and bool(fact.copies)
        if not is_whole or not consumer.takes(fact.type):
            continue
        if fact.outcome(consumer) != observation.NEW or faults.has_expired(fact.body, now):
            continue
        second = second or fact
        is_well = _ending_of(feed, fact.ride) in _WELL
        if fact.type in _SHOWN_WELL and COPY not in (fact.ride or "") and is_well:
            return fact
    if second is not None:
        return second
    raise OperatorError(
        f"no event has taken effect at {consumer.name} yet: a fault is met by a copy of one. run "
        "`./carride drive simulate` and try again"
    )


def _ending_of(feed: Feed, ride: str | None) -> str:
    """Return where a ride is, in a word."""
    return ending_of([fact.type for fact in feed.index.of_ride(ride or "")]).word


_SHOWN_WELL: Final = frozenset({"CarRideAccepted", "CarAssigned"})
"""Events whose copies show a fault: a car is taken, or money is reserved."""
_WELL: Final = frozenset({"accepted", "started", "completed", "paid"})
"""Where rides are that were neither declined nor called off."""
