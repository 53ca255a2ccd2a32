"""The newest events of a stack and what became of them, as its logs show it. In memory and bounded. No I/O."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
PRODUCERS: Final = "producers"
REPLAYED: Final = "replayed"
BROKEN: Final = "break the contract"
COPY: Final = "copies"
DISTINCT: Final = "distinct"
"""What an event on the bus counts as; `ops.audit.ledger.Ledger` counts the same."""
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

_started: Final = re.compile(r"^START RequestId: (\S+)").search
_reported: Final = re.compile(r"^REPORT RequestId: .*?\bDuration: ([\d.]+) ms").search
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
    duration_ms: float = 0.0
    """How long the invocation took; 0 until its report is read."""
    guessed: bool = False
    """Whether only a later attempt's number shows that there was this run."""

    @property
    def began_ms(self) -> float:
        """When the invocation began, as far as its report says."""
        return self.ended_ms - self.duration_ms


@dataclass(slots=True)
class Fact:
    """A published event with its copies and deliveries. Its runs may be known before the event is."""

    id: str
    """Its idempotency id; EventBridge's id if the event breaks the contract."""
    type: str | None = None
    ride: str | None = None
    version: int | None = None
    time_ms: int = 0
    body: str = ""
    """The newest copy as EventBridge delivers it, in JSON."""
    copies: list[Copy] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    letters: dict[str, str] = field(default_factory=dict)
    """The reasons of its dead letters, by consumer."""

    def attempts(self, consumer: str) -> list[Run]:
        """Return a consumer's runs, the oldest first, with the crashed ones that only a takeover's number shows."""
        found: list[Run] = []
        for run in sorted((each for each in self.runs if each.consumer == consumer), key=lambda each: each.began_ms):
            if run.outcome == observation.TAKEOVER:
                for number in range(1 + sum(each.outcome in FAILURES for each in found), run.attempt):
                    told = (number, None, "it logged nothing", int(run.began_ms))
                    found.append(Run(consumer, CRASHED, *told, guessed=True))
            found.append(run)
        return found

    def outcome(self, consumer: AuditedConsumer) -> str | None:
        """Return the outcome that counts at a consumer; None if the consumer does not take the event."""
        outcomes = [run.outcome for run in self.runs if run.consumer == consumer.name]
        for each in outcomes:
            if each in observation.COMMITTED:
                return each
        if consumer.name in self.letters:
            return observation.DEAD_LETTERED
        if outcomes:
            return next((each for each in outcomes if each in _SETTLED), outcomes[-1])
        return WAITING if consumer.takes(self.type) else None

    def absorbed(self, consumer: str, outcome: str) -> int:
        """Return how many deliveries a consumer skipped, besides the one whose outcome counts."""
        skipped = sum(run.outcome in ABSORBED for run in self.runs if run.consumer == consumer)
        return skipped - (outcome in ABSORBED)


class Filter(NamedTuple):
    """Which facts to show; empty parts match everything."""

    ride: str = ""
    """Its id, or how that begins and an asterisk; or the id of an event."""
    type: str = ""
    at: str = ""
    """A consumer's name."""
    outcome: str = ""
    """An outcome, or the name of a group of them."""


class Index:
    """The newest facts of a stack, and counts of what happened."""

    def __init__(self, consumers: Sequence[AuditedConsumer], most: int = MOST_EVENTS) -> None:
        self.consumers = consumers
        self.facts: dict[str, Fact] = {}
        """By id, the oldest first; one without copies is not known to be published."""
        self.totals = defaultdict[str, Counter[str]](Counter)
        """How often an outcome was seen at a consumer; at the bus, kinds of events, and at the producers, sources."""
        self._buckets = defaultdict[int, defaultdict[str, Counter[str]]](lambda: defaultdict(Counter))
        self.waiting: dict[str, set[str]] = {each.name: set() for each in consumers}
        """Ids of the facts without an outcome, by consumer."""
        self.version = 0
        """Grows with every change."""
        self._most = most
        self._open: dict[str, tuple[str, list[Run]]] = {}  # the invocation of each log stream, with its runs
        self._crashed: dict[str, Run] = {}  # by the request's id

    # ---- Adding ------------------------------------------------------------------------------------------------------

    def add_published(self, line: Mapping[str, Any]) -> None:
        """Add a line of the bus's log."""
        event = published_in(line)
        if event is None:
            return
        time_ms = int(line["timestamp"])
        fact = self._fact(event.fact or event.event_id)
        if not fact.copies:
            fact.type, fact.time_ms = event.type, time_ms
            if event.named:
                fact.ride, fact.version = event.named.order_id, event.named.version
            for each in self.consumers if event.fact else ():
                if each.takes(fact.type) and not self._is_settled(fact, each.name):
                    self.waiting[each.name].add(fact.id)
        kind = REPLAYED if event.replayed else BROKEN if event.fact is None else COPY if fact.copies else DISTINCT
        fact.body = line["message"]
        fact.copies.append(Copy(event.event_id, time_ms, event.replayed))
        self._count(BUS, kind, time_ms)
        self._count(PRODUCERS, REPLAYED if event.replayed else str((read(fact.body) or {}).get("source")), time_ms)

    def add_line(self, consumer: str, line: Mapping[str, Any]) -> None:
        """Add a line of a consumer's log: a delivery, the begin or the end of an invocation, or a crash."""
        text, stream, time_ms = line["message"], line["logStreamName"], int(line["timestamp"])
        if text.startswith("{"):
            if found := delivered_in(line):
                run = Run(*found[:2], found.attempt or 0, found.delivery, found.reason, time_ms)
                self._add_run(run, found.fact, stream)
        elif match := _started(text):
            self._open[stream] = (match[1], [])
        elif match := _reported(text):
            for run in self._open.pop(stream, ("", []))[1]:
                run.duration_ms = float(match[1])
            self.version += 1
        elif _ended(text):
            request, runs = self._open.setdefault(stream, ("", []))
            run = Run(consumer, CRASHED, 0, request, text.strip()[:200], time_ms)
            runs.append(run)
            self._crashed[request] = run
            if len(self._crashed) > self._most:
                del self._crashed[next(iter(self._crashed))]
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

    def _fact(self, name: str) -> Fact:
        """Return a fact, a new one if it is not known; the oldest one is forgotten for it."""
        if name not in self.facts and len(self.facts) >= self._most:
            oldest = next(iter(self.facts))
            del self.facts[oldest]
            for names in self.waiting.values():
                names.discard(oldest)
        return self.facts.setdefault(name, Fact(name))

    def _add_run(self, run: Run, name: str | None, stream: str) -> None:
        self._count(run.consumer, run.outcome, run.ended_ms)
        self._open.setdefault(stream, ("", []))[1].append(run)
        if name is None:
            return
        fact = self._fact(name)
        if crashed := self._crashed.pop(run.delivery or "", None):  # a retry keeps the id of the request
            fact.runs.append(crashed)
        fact.runs.append(run)
        if self._is_settled(fact, run.consumer):
            self.waiting.get(run.consumer, set()).discard(name)

    def _is_settled(self, fact: Fact, consumer: str) -> bool:
        return any(run.outcome in _SETTLED for run in fact.runs if run.consumer == consumer)

    def _count(self, lane: str, what: str, time_ms: int) -> None:
        self.version += 1
        self.totals[lane][what] += 1
        self._buckets[time_ms // (1000 * BUCKET_S)][lane][what] += 1
        if len(self._buckets) > 4 * BUCKETS:
            for old in sorted(self._buckets)[:-BUCKETS]:
                del self._buckets[old]

    # ---- Asking ------------------------------------------------------------------------------------------------------

    def page(self, wanted: Filter, number: int = 0) -> tuple[list[Fact], bool]:
        """Return a page of published facts, the newest first, and whether there are older ones."""
        matching = (fact for fact in reversed(self.facts.values()) if fact.copies and self._matches(fact, wanted))
        found = list(islice(matching, number * PAGE, (number + 1) * PAGE + 1))
        return found[:PAGE], len(found) > PAGE

    def _matches(self, fact: Fact, wanted: Filter) -> bool:
        begin, asterisk, _ = wanted.ride.partition("*")
        is_named = (fact.ride or "").startswith(begin) if asterisk else wanted.ride in {"", fact.ride, fact.id}
        if not is_named or wanted.type not in {"", fact.type}:
            return False
        if not wanted.at and not wanted.outcome:
            return True
        outcomes = GROUPS.get(wanted.outcome, {wanted.outcome})
        for each in self.consumers:
            if wanted.at in {"", each.name} and (decisive := fact.outcome(each)) is not None:
                seen = {decisive, *(run.outcome for run in fact.runs if run.consumer == each.name)}
                if not wanted.outcome or not seen.isdisjoint(outcomes):
                    return True
        return False

    def recent(self, lane: str, now_s: float) -> list[Counter[str]]:
        """Return the totals of a lane by time bucket, the oldest first; the newest bucket is the current one."""
        end, none = int(now_s) // BUCKET_S + 1, dict[str, Counter[str]]()
        return [self._buckets.get(each, none).get(lane, Counter()) for each in range(end - BUCKETS, end)]
