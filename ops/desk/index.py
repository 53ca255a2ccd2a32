"""The newest events of a stack and what became of them, as its logs show it. In memory and bounded. No I/O."""

import re
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, Final, NamedTuple

from idempotency import observation
from ops.audit.evidence import AuditedConsumer, DeadLettered
from ops.audit.queues import read
from ops.audit.reading import delivered_in, published_in

MOST_EVENTS: Final = 50_000
PAGE: Final = 100
"""Events on one page."""
BUCKET_S: Final = 5
BUCKETS: Final = 60
"""The charts show this many buckets."""

CRASHED: Final = "Crashed"
"""The outcome of a run that ended without a line of its own."""
WAITING: Final = "Waiting"
"""An event without an outcome so far."""
BUS: Final = "bus"
ABSORBED: Final = frozenset({observation.DUPLICATE, observation.BUSY})
DEAD: Final = frozenset({observation.DEAD_LETTERED, observation.QUARANTINED})
FAILURES: Final = frozenset({observation.FAILED, observation.LOST_LEASE, observation.UNPROTECTED, CRASHED})
GROUPS: Final[Mapping[str, frozenset[str]]] = {
    "effect": observation.COMMITTED,
    "skipped": ABSORBED,
    "failure": FAILURES,
    "dead letter": DEAD,
}
"""Outcomes that can be asked for together."""
_SETTLED: Final = observation.COMMITTED | DEAD | {observation.DUPLICATE, observation.EXPIRED}

_invocation: Final = re.compile(r"^(START|REPORT) RequestId: (\S+)(?:.*?\bDuration: ([\d.]+) ms)?").search
_ended: Final = re.compile(r"Runtime exited|Task timed out").search


class Copy(NamedTuple):
    """An event on the bus. Copies of a fact share its idempotency id."""

    event_id: str
    """EventBridge's id."""
    time_ms: int
    replayed: bool


@dataclass(slots=True)
class Run:
    """One delivery to a consumer."""

    consumer: str
    outcome: str
    attempt: int
    delivery: str | None
    reason: str | None
    ended_ms: int
    duration_ms: float | None = None
    """How long the invocation took; None until its report is read."""


@dataclass(slots=True)
class Fact:
    """A published event with its copies and deliveries."""

    id: str
    """Its idempotency id; EventBridge's id if the event breaks the contract."""
    type: str | None
    ride: str | None
    version: int | None
    time_ms: int
    body: str
    """The newest copy as EventBridge delivers it, in JSON."""
    copies: list[Copy] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    letters: dict[str, str] = field(default_factory=dict)
    """The reasons of its dead letters, by consumer."""

    def of(self, consumer: str) -> list[Run]:
        """Return the runs of one consumer in the order in which they ended."""
        return sorted((run for run in self.runs if run.consumer == consumer), key=lambda run: run.ended_ms)

    def outcome(self, consumer: AuditedConsumer) -> str | None:
        """Return the outcome that counts at a consumer; None if the consumer does not take the event."""
        outcomes = [run.outcome for run in self.of(consumer.name)]
        committed = [each for each in outcomes if each in observation.COMMITTED]
        if committed:
            return committed[0]
        if consumer.name in self.letters:
            return observation.DEAD_LETTERED
        if outcomes:
            return next((each for each in outcomes if each in _SETTLED), outcomes[-1])
        return WAITING if consumer.takes(self.type) else None

    def absorbed(self, consumer: str) -> int:
        """Return how many deliveries a consumer skipped because another one did the work."""
        return sum(run.outcome in ABSORBED for run in self.runs if run.consumer == consumer)


class Filter(NamedTuple):
    """Which facts to show; empty parts match everything."""

    ride: str = ""
    """Its id, or how that begins; or the id of an event."""
    type: str = ""
    at: str = ""
    """A consumer's name."""
    outcome: str = ""
    """An outcome, or the name of a group of them."""


class Index:
    """The newest facts of a stack, and counts of what happened."""

    def __init__(self, consumers: Sequence[AuditedConsumer], most: int = MOST_EVENTS) -> None:
        self.consumers = consumers
        self.facts: OrderedDict[str, Fact] = OrderedDict()
        """By id, the oldest first."""
        self.rides: dict[str, list[Fact]] = {}
        self.types: Counter[str] = Counter()
        self.totals: Counter[tuple[str, str]] = Counter()
        """How often an outcome was seen at a consumer; at the bus, events by their source."""
        self.buckets: dict[int, Counter[tuple[str, str]]] = {}
        """The same by the number of the time bucket."""
        self.waiting: dict[str, set[str]] = {each.name: set() for each in consumers}
        """Ids of the facts without an outcome, by consumer."""
        self.version = 0
        """Grows with every change."""
        self._most = most
        self._known = 0
        self._orphans: dict[str, list[Run]] = {}  # runs of facts that the bus's log has not shown yet, by id
        self._open: dict[str, tuple[str, list[Run]]] = {}  # the invocation of each log stream, with its deliveries
        self._crashed: dict[str, Run] = {}  # by the request's id

    # ---- Adding ------------------------------------------------------------------------------------------------------

    def add_published(self, line: Mapping[str, Any]) -> None:
        """Add a line of the bus's log."""
        event = published_in(line)
        if event is None:
            return
        time_ms = int(line["timestamp"])
        name = event.fact or event.event_id
        fact = self.facts.get(name)
        if fact is None:
            named = event.named
            ride, version = (named.order_id, named.version) if named else (None, None)
            fact = Fact(name, event.type, ride, version, time_ms, line["message"])
            fact.runs = self._orphans.pop(name, [])
            self._insert(fact, consumers_wait=event.fact is not None)
        fact.body = line["message"]
        fact.copies.append(Copy(event.event_id, time_ms, event.replayed))
        source = str((read(line["message"]) or {}).get("source"))
        self._count(BUS, "replayed" if event.replayed else source, time_ms)

    def add_line(self, consumer: str, line: Mapping[str, Any]) -> None:
        """Add a line of a consumer's log: a delivery, the begin or the end of an invocation, or a crash."""
        text, stream, time_ms = line["message"], line["logStreamName"], int(line["timestamp"])
        if text.startswith("{"):
            if found := delivered_in(line):
                told: Any = read(text)
                run = Run(*found[:2], found.attempt or 0, found.delivery, found.reason, _own_time(told) or time_ms)
                self._add_run(run, found.fact, stream)
        elif match := _invocation(text):
            kind, request, duration = match.groups()
            if kind == "START":
                self._open[stream] = (request, [])
            elif stream in self._open:
                self._report(stream, request, float(duration or 0), time_ms)
        elif _ended(text):
            request = self._open[stream][0] if stream in self._open else ""
            self._crashed[request] = Run(consumer, CRASHED, 0, request, text.strip()[:200], time_ms)
            self._count(consumer, CRASHED, time_ms)

    def add_letters(self, letters: Iterable[DeadLettered]) -> None:
        """Replace what is known of dead letters."""
        for fact in self.facts.values():
            fact.letters.clear()
        by_event = {copy.event_id: fact for fact in self.facts.values() for copy in fact.copies}
        for letter in letters:
            found = self.facts.get(letter.fact or "") or by_event.get(letter.event_id or "")
            if found is not None and letter.consumer is not None:
                found.letters[letter.consumer] = letter.reason
                self.waiting[letter.consumer].discard(found.id)
        self.version += 1

    def _insert(self, fact: Fact, *, consumers_wait: bool) -> None:
        self.facts[fact.id] = fact
        self.rides.setdefault(fact.ride or "", []).append(fact)
        self.types[fact.type or ""] += 1
        if consumers_wait:
            for each in self.consumers:
                if each.takes(fact.type) and not any(run.outcome in _SETTLED for run in fact.of(each.name)):
                    self.waiting[each.name].add(fact.id)
        if len(self.facts) > self._most:
            _, oldest = self.facts.popitem(last=False)
            left = self.rides[oldest.ride or ""]
            left.remove(oldest)
            if not left:
                del self.rides[oldest.ride or ""]
            for names in self.waiting.values():
                names.discard(oldest.id)

    def _add_run(self, run: Run, name: str | None, stream: str) -> None:
        self._count(run.consumer, run.outcome, run.ended_ms)
        self._open.setdefault(stream, ("", []))[1].append(run)
        if name is None:
            return
        fact = self.facts.get(name)
        runs = fact.runs if fact else self._orphans.setdefault(name, [])
        if crashed := self._crashed.pop(run.delivery or "", None):  # a retry keeps the id of the request
            runs.append(crashed)
        runs.append(run)
        if run.outcome in _SETTLED and run.consumer in self.waiting:
            self.waiting[run.consumer].discard(name)
        while len(self._orphans) > self._most:
            del self._orphans[next(iter(self._orphans))]
        while len(self._crashed) > self._most:
            del self._crashed[next(iter(self._crashed))]

    def _report(self, stream: str, request: str, duration_ms: float, time_ms: int) -> None:
        opened, runs = self._open.pop(stream)
        crashed = self._crashed.get(request)
        for run in [*runs, *([crashed] if crashed else [])]:
            run.duration_ms = duration_ms
        if opened == request and not runs and crashed:
            crashed.ended_ms = time_ms
        self.version += 1

    def _count(self, lane: str, what: str, time_ms: int) -> None:
        self.version += 1
        self.totals[lane, what] += 1
        bucket = time_ms // (1000 * BUCKET_S)
        self.buckets.setdefault(bucket, Counter())[lane, what] += 1
        if len(self.buckets) > 4 * BUCKETS:
            for old in sorted(self.buckets)[:-BUCKETS]:
                del self.buckets[old]

    # ---- Asking ------------------------------------------------------------------------------------------------------

    def page(self, wanted: Filter, number: int = 0) -> tuple[list[Fact], bool]:
        """Return a page of facts, the newest first, and whether there are older ones."""
        found = list(islice(self._found(wanted), number * PAGE, (number + 1) * PAGE + 1))
        return found[:PAGE], len(found) > PAGE

    def _found(self, wanted: Filter) -> Iterator[Fact]:
        for fact in reversed(self.facts.values()):
            if wanted.ride and not (fact.ride or "").startswith(wanted.ride) and fact.id != wanted.ride:
                continue
            if wanted.type and (fact.type or "") != wanted.type:
                continue
            if (wanted.at or wanted.outcome) and not self._happened(fact, wanted):
                continue
            yield fact

    def _happened(self, fact: Fact, wanted: Filter) -> bool:
        outcomes = GROUPS.get(wanted.outcome, {wanted.outcome})
        for each in self.consumers:
            if wanted.at in {"", each.name} and (decisive := fact.outcome(each)) is not None:
                seen = {decisive, *(run.outcome for run in fact.runs if run.consumer == each.name)}
                if not wanted.outcome or not seen.isdisjoint(outcomes):
                    return True
        return False

    def recent(self, lane: str, now_s: float) -> list[Counter[str]]:
        """Return the counts of a lane by time bucket, the oldest first; the newest bucket is the current one."""
        last = int(now_s) // BUCKET_S
        found = []
        for bucket in range(last - BUCKETS + 1, last + 1):
            counts = self.buckets.get(bucket, Counter())
            found.append(Counter({what: count for (at, what), count in counts.items() if at == lane}))
        return found


def _own_time(told: Mapping[str, Any]) -> int | None:
    """Return the time that a log line states, in milliseconds. CloudWatch may have got it at the invocation's end."""
    try:
        return int(datetime.strptime(str(told["timestamp"]), "%Y-%m-%d %H:%M:%S,%f%z").timestamp() * 1000)
    except (KeyError, ValueError):
        return None
