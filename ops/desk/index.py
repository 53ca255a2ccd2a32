"""The newest events of a stack and what became of them, as its logs show it.

In memory and bounded. No I/O.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from carride_idempotency import observation
from ops.audit.evidence import AuditedConsumer, DeadLettered, Published
from ops.audit.queues import json_object
from ops.audit.reading import delivered_in, published_in
from ops.desk.endings import Endings
from ops.desk.facts import (
    BROKEN,
    BUS,
    COPIES,
    CRASHED,
    DISTINCT,
    EFFECT,
    FATES,
    GROUPS,
    KEPT,
    LOST,
    PRODUCERS,
    REPLAYED,
    SETTLED,
    STUCK,
    UNFINISHED,
    WAITING,
    Copy,
    Fact,
    Run,
)
from ops.desk.outages import Outages
from ops.desk.timeline import Timeline
from ops.search import CAR, CUSTOMER, EVENT, PAYMENT, Match, named_by

_FEW: Final = 4
"""A search looks at all facts in their order, unless fewer than one in so many may match."""
PAGE: Final = 30
"""Events on one page."""
COUNTED: Final = 1_000
"""Matches of a search are counted up to so many."""

_reported: Final = re.compile(r"^REPORT RequestId: .*?\bDuration: ([\d.]+) ms").search


class Filter(NamedTuple):
    """Which facts to show; empty parts match everything."""

    ride: str = ""
    """The id of a ride or of an event, or how that begins and an asterisk."""
    type: str = ""
    """A type of the contract, or `BROKEN`."""
    at: str = ""
    """A consumer's name."""
    outcome: str = ""
    """An outcome, the name of a group of them, or one of `FATES`."""
    contract: str = ""
    """`KEPT` leaves out the events that break the contract."""

    def runs(self, fact: Fact) -> int:
        """Return how many deliveries of a fact have the outcome that is asked for.

        What became of an event in the end is no outcome of a delivery.
        """
        if self.outcome == EFFECT or self.outcome in FATES:
            return 0
        outcomes = GROUPS.get(self.outcome, {self.outcome})
        count = 0
        for run in fact.runs:
            count += self.at in {"", run.consumer} and run.outcome in outcomes
        return count

    def matches(self, fact: Fact, consumers: Iterable[AuditedConsumer]) -> bool:
        """Return whether a fact is to be shown."""
        begin, asterisk, _ = self.ride.partition("*")
        if asterisk:
            is_named = (fact.ride or "").startswith(begin) or fact.id.startswith(begin)
        else:
            is_named = self.ride in {"", fact.ride, fact.id}
        types = {BROKEN} if fact.ride is None else {fact.type}
        if not is_named or (self.type and self.type not in types):
            return False
        # A delivery of an event that breaks the contract is a duplicate of its letter.
        is_for_kept = self.contract == KEPT or self.outcome == EFFECT
        if is_for_kept and fact.ride is None:
            return False
        if not self.at and not self.outcome:
            return True
        if self.outcome in FATES:
            at = [each for each in consumers if self.at in {"", each.name}]
            return any(fact.has_fate(self.outcome, each) for each in at)
        outcomes = GROUPS.get(self.outcome, {self.outcome})
        for each in consumers:
            if self.at in {"", each.name} and (decisive := fact.outcome(each)) is not None:
                seen = {decisive, *(run.outcome for run in fact.attempts(each.name))}
                if not self.outcome or not seen.isdisjoint(outcomes):
                    return True
        return False


class Matches(NamedTuple):
    """A page of the events that a search finds."""

    facts: list[Fact]
    """The newest first."""
    total: int
    """All that match, without the newer ones."""
    is_counted: bool
    """Whether ``total`` is exact; otherwise there are more."""
    newer: int
    """Matches that are newer than the newest event that was asked for."""
    runs: int = 0
    """Deliveries of the events of ``total`` with an outcome that was asked for."""
    broken: int = 0
    """Events of ``total`` that break the contract."""
    unnamed: int = 0
    """Deliveries with such an outcome whose log line names no event."""

    @property
    def deliveries(self) -> int:
        """All deliveries with an outcome that was asked for, as the ledger counts them."""
        return self.runs + self.unnamed


def _kind_of(event: Published, fact: Fact) -> str:
    """Return what a published event is to the bus, before it is added to its fact."""
    if event.replayed:
        return REPLAYED
    if event.fact is None:
        return BROKEN
    if fact.copies:
        return COPIES
    return DISTINCT


def _origin_of(event: Published, fields: Mapping[str, Any]) -> str:
    """Return the producer of an event; a replay comes from the archive."""
    if event.replayed:
        return REPLAYED
    return str(fields.get("source"))


class Index:
    """The newest facts of a stack, and counts of what happened."""

    def __init__(self, consumers: Sequence[AuditedConsumer], most: int = 50_000) -> None:
        self.consumers = consumers
        self.facts: dict[str, Fact] = {}
        """By id, the oldest first; one without copies is not known to be published."""
        self.known = 0
        """How many of the facts are known to be published."""
        self.rides: dict[str, list[str]] = {}
        """The ids of a ride's facts, by its id; the ride of the newest fact is the last."""
        self.endings = Endings()
        """Where the rides are."""
        self.totals = defaultdict[str, Counter[str]](Counter)
        """How often an outcome was seen at a consumer; at the bus, kinds of events, and at the
        producers, sources."""
        self.timeline = Timeline()
        self.unnamed = defaultdict[str, Counter[str]](Counter)
        """How often an outcome was seen at a consumer in a line that names no event."""
        self.waiting: dict[str, set[str]] = {each.name: set() for each in consumers}
        """Ids of the facts without an outcome, by consumer."""
        self.outages = Outages()
        self.begun_ms: int | None = None
        """When the oldest event was published that was read; None without any."""
        self.version = 0
        """Grows with every change."""
        self._most = most
        self._number = 0
        self._lettered: list[Fact] = []
        # What the facts are searched by: ids by type, ids by consumer and outcome of a run, and
        # the ids of those that break the contract.
        self._of_type = defaultdict[str | None, set[str]](set)
        self._ran = defaultdict[tuple[str, str], set[str]](set)
        self._broken: set[str] = set()
        self._unpublished: set[str] = set()
        self._lost = defaultdict[str, set[str]](set)
        self._runs = Counter[tuple[str, str]]()
        # How many runs the facts have, by consumer and outcome.
        self.naming: dict[str, dict[str, dict[str, None]]] = {CUSTOMER: {}, CAR: {}, PAYMENT: {}}
        """The ids of the facts that name a customer, a car or a payment, by its kind and id."""
        # The runs of the invocation that each log stream is in.
        self._open = defaultdict[str, list[Run]](list)

    def add_published(self, line: Mapping[str, Any]) -> None:
        """Add a line of the bus's log."""
        event = published_in(line)
        if event is None:
            return
        time_ms = int(line["timestamp"])
        self.begun_ms = min(time_ms, self.begun_ms or time_ms)
        fact = self._fact(event.fact or event.event_id)
        fields = json_object(line["message"]) or {}
        if not fact.copies:
            self.known += 1
            self._unpublished.discard(fact.id)
            fact.type = event.type
            self._of_type[fact.type].add(fact.id)
            if event.fact is None:
                self._broken.add(fact.id)
            fact.time_ms = time_ms
            if event.named:
                fact.ride = event.named.order_id
                fact.version = event.named.version
                self.rides[fact.ride] = [*self.rides.pop(fact.ride, ()), fact.id]
                self.endings.add(fact.ride, fact.number, fact.type)
                fact.named = tuple(named_by(event))
                for match in fact.named:
                    self.naming[match.kind].setdefault(match.id, {}).setdefault(fact.id)
            for each in self.consumers if event.fact else ():
                settled = any(
                    run.outcome in SETTLED for run in fact.runs if run.consumer == each.name
                )
                if each.takes(fact.type) and not settled:
                    self.waiting[each.name].add(fact.id)
        kind = _kind_of(event, fact)
        fact.body = line["message"]
        fact.copies.append(Copy(event.event_id, time_ms, event.replayed))
        self._count(BUS, kind, time_ms)
        self._count(PRODUCERS, _origin_of(event, fields), time_ms)

    def add_line(self, line: Mapping[str, Any]) -> None:
        """Add a line of a consumer's log: a delivery, or the begin or the end of an invocation."""
        text = line["message"]
        stream = line["logStreamName"]
        if text.startswith("START "):
            self._open.pop(stream, None)
        elif match := _reported(text):
            for run in self._open.pop(stream, ()):
                run.duration_ms = float(match[1])
            self.version += 1
        elif text.startswith("{") and (found := delivered_in(line)):
            run = Run(
                *found[:2], found.attempt or 0, found.delivery, found.reason, int(line["timestamp"])
            )
            self._open[stream].append(run)
            self._count(run.consumer, run.outcome, run.ended_ms)
            fact = found.fact or found.event_id
            self.outages.add(run.consumer, run.outcome, fact, run.reason, run.ended_ms)
            if fact is None:
                self.unnamed[run.consumer][run.outcome] += 1
            else:
                self._fact(fact).runs.append(run)
                self._ran[run.consumer, run.outcome].add(fact)
                self._runs[run.consumer, run.outcome] += 1
                if run.outcome in SETTLED:
                    self.waiting.get(run.consumer, set()).discard(fact)

    def add_letters(self, letters: Iterable[DeadLettered]) -> None:
        """Replace what is known of dead letters."""
        before = self._lettered
        for fact in before:
            fact.letters.clear()
            fact.letter_counts.clear()
        self._lettered = []
        by_event = {copy.event_id: fact for fact in self.facts.values() for copy in fact.copies}
        for letter in letters:
            found = self.facts.get(letter.fact or "") or by_event.get(letter.event_id or "")
            if found is not None and letter.consumer is not None:
                if not found.letters:
                    self._lettered.append(found)
                found.letters[letter.consumer] = letter
                found.letter_counts[letter.consumer] += 1
                self.waiting[letter.consumer].discard(found.id)
        # What has no letter any more may be delivered again.
        for fact in before:
            for each in self.consumers:
                if self.facts.get(fact.id) is fact and fact.has_fate(UNFINISHED, each):
                    self.waiting[each.name].add(fact.id)
        self.version += 1

    def add_lost(self, names: Mapping[str, Iterable[str]]) -> None:
        """Replace what is known to be lost, by the names of consumers."""
        for fact in map(self.facts.get, set().union(*self._lost.values())):
            if fact is not None:
                fact.lost.clear()
        self._lost.clear()
        for consumer, lost in names.items():
            for name in lost:
                if name in self.facts:
                    self.facts[name].lost.add(consumer)
                    self._lost[consumer].add(name)

    def _fact(self, name: str) -> Fact:
        """Return a fact, a new one if it is not known; the oldest one is forgotten for it."""
        fact = self.facts.get(name)
        if fact is not None:
            return fact
        if len(self.facts) >= self._most:
            self._forget(self.facts.pop(next(iter(self.facts))))
        self._number += 1
        fact = self.facts[name] = Fact(name, number=self._number)
        self._unpublished.add(name)
        return fact

    def _forget(self, fact: Fact) -> None:
        """Take a fact out of whatever it is found by."""
        self._forget_ride_of(fact)
        self._of_type[fact.type].discard(fact.id)
        self._broken.discard(fact.id)
        for match in fact.named:
            naming = self.naming[match.kind][match.id]
            naming.pop(fact.id, None)
            if not naming:
                del self.naming[match.kind][match.id]
        self._unpublished.discard(fact.id)
        for run in fact.runs:
            self._ran[run.consumer, run.outcome].discard(fact.id)
            self._runs[run.consumer, run.outcome] -= 1
        for names in (*self.waiting.values(), *self._lost.values()):
            names.discard(fact.id)

    def _forget_ride_of(self, fact: Fact) -> None:
        """Take a fact out of its ride; a ride without facts is forgotten."""
        self.known -= bool(fact.copies)
        if fact.ride is None:
            return
        self.endings.forget(fact.ride, fact.number, fact.type)
        names = self.rides[fact.ride]
        names.remove(fact.id)
        if not names:
            del self.rides[fact.ride]

    def given_up(self) -> list[Fact]:
        """Return the published facts that some consumer has given up, the oldest first.

        By the log, and by the dead letters that the last audit has read.
        """
        names = {fact.id for fact in self._lettered}
        for each in self.consumers:
            for outcome in STUCK:
                names |= self._ran.get((each.name, outcome), set())
        facts = [self.facts[name] for name in names if name in self.facts]
        found = []
        for fact in facts:
            outcomes = {fact.outcome(each) for each in self.consumers}
            if fact.copies and not outcomes.isdisjoint(STUCK):
                found.append(fact)
        return sorted(found, key=lambda fact: fact.time_ms)

    def of_ride(self, ride: str) -> list[Fact]:
        """Return the published facts of a ride in the order of their times."""
        found = [self.facts[name] for name in self.rides.get(ride, ())]
        return sorted(found, key=lambda fact: fact.time_ms)

    def rides_naming(self, match: Match) -> list[str]:
        """Return the rides of a customer, a car or a payment, that of the newest event first."""
        names = self.naming[match.kind].get(match.id, {})
        found = dict[str, None]()
        for name in reversed(names):
            ride = self.facts[name].ride
            if ride is not None:
                found.setdefault(ride)
        return [*found]

    def with_copy(self, event_id: str) -> list[Match]:
        """Return the fact that EventBridge has put on the bus under an id of its own."""
        for fact in self.facts.values():
            if any(copy.event_id == event_id for copy in fact.copies):
                return [Match(EVENT, fact.id)]
        return []

    def _count(self, lane: str, what: str, time_ms: int) -> None:
        self.version += 1
        self.totals[lane][what] += 1
        self.timeline.add(lane, what, time_ms)

    @property
    def newest(self) -> int:
        """The number of the newest fact."""
        return self._number

    @property
    def has_forgotten(self) -> bool:
        """Whether it has forgotten facts, because it holds the newest ones only."""
        return self._number > len(self.facts)

    @property
    def held_since_ms(self) -> int | None:
        """Since when it holds facts; None if it has forgotten none."""
        return self.oldest_ms if self.has_forgotten else None

    @property
    def oldest_ms(self) -> int | None:
        """When the oldest fact that it holds was published; None without any."""
        return next((fact.time_ms for fact in self.facts.values() if fact.copies), None)

    def page(self, wanted: Filter, number: int = 0, newest: int | None = None) -> Matches:
        """Return a page of published facts, the newest first.

        Its first page begins with the fact of the number ``newest``, so that facts that follow
        move no row; by default with the newest one.
        """
        first = self._number if newest is None else newest
        names = self._exact(wanted)
        if names is not None:
            return self._page_of(names, wanted, number, first)
        published = (fact for fact in self._candidates(wanted) if fact.copies)
        matching = (fact for fact in published if wanted.matches(fact, self.consumers))
        newer = 0
        found = list[Fact]()
        begin = number * PAGE
        most = max(COUNTED, begin + PAGE)
        for fact in matching:
            if fact.number > first:
                newer += 1
                continue
            if len(found) == most:
                is_every = not any(wanted)
                total = self.known - newer if is_every else most
                return Matches(found[begin : begin + PAGE], total, is_every, newer)
            found.append(fact)
        runs = sum(map(wanted.runs, found))
        broken = sum(fact.ride is None for fact in found)
        rows = found[begin : begin + PAGE]
        return Matches(rows, len(found), True, newer, runs, broken, self._unnamed(wanted))

    def _page_of(self, names: set[str], wanted: Filter, number: int, first: int) -> Matches:
        """Return a page of the facts with these ids."""
        late = list(self._newer(first))
        newer = [fact for fact in late if fact.id in names]
        begin = number * PAGE
        older = (fact for fact in self._newest_first(names) if fact.number <= first)
        rows = [*islice(older, begin, begin + PAGE)]
        is_of_all = not wanted.type and wanted.contract != KEPT
        if is_of_all and wanted.outcome not in FATES:
            runs = self._runs_with(wanted)
            runs -= sum(wanted.runs(self.facts[name]) for name in self._unpublished)
        else:
            runs = sum(wanted.runs(self.facts[name]) for name in names)
        runs -= sum(map(wanted.runs, newer))
        broken = len(names & self._broken) - sum(fact.ride is None for fact in newer)
        total = len(names) - len(newer)
        return Matches(rows, total, True, len(newer), runs, broken, self._unnamed(wanted))

    def _newer(self, first: int) -> Iterator[Fact]:
        """Yield the facts with a number above this one, the newest first."""
        for fact in reversed(self.facts.values()):
            if fact.number <= first:
                return
            yield fact

    def _newest_first(self, names: set[str]) -> Iterable[Fact]:
        """Return the facts with these ids, the newest first."""
        if len(names) > len(self.facts) // _FEW:
            return (fact for fact in reversed(self.facts.values()) if fact.id in names)
        found = [self.facts[name] for name in names if name in self.facts]
        return sorted(found, key=lambda fact: fact.number, reverse=True)

    def _runs_with(self, wanted: Filter) -> int:
        """Return how many runs of all facts have the outcome that is asked for."""
        if wanted.outcome == EFFECT:
            return 0
        outcomes = GROUPS.get(wanted.outcome, {wanted.outcome})
        count = 0
        for (consumer, outcome), runs in self._runs.items():
            if wanted.at in {"", consumer} and outcome in outcomes:
                count += runs
        return count

    def _exact(self, wanted: Filter) -> set[str] | None:
        """Return the ids of the published facts that match; None: only a look at each can tell."""
        if wanted.ride or not any(wanted):
            return None
        found: set[str] | None
        if wanted.at or wanted.outcome:
            found = set[str]()
            for each in self.consumers:
                at = self._at(each, wanted.outcome) if wanted.at in {"", each.name} else set()
                if at is None:
                    return None
                found |= at
        else:
            found = {*self.facts}
        if wanted.type == BROKEN:
            found &= self._broken
        elif wanted.type:
            found &= self._of_type.get(wanted.type, set()) - self._broken
        if wanted.contract == KEPT or wanted.outcome == EFFECT:
            found -= self._broken
        return found - self._unpublished

    def _at(self, consumer: AuditedConsumer, outcome: str) -> set[str] | None:
        """Return the ids of facts with an outcome or a fate at a consumer; all without one."""
        name = consumer.name
        lettered = [each for each in self._lettered if self.facts.get(each.id) is each]
        if not outcome:
            found = {each.id for each in lettered if name in each.letters}
            for kind, names in self._of_type.items():
                if consumer.takes(kind):
                    found |= names
            return found.union(*(ids for (at, _), ids in self._ran.items() if at == name))
        if outcome in FATES:
            return self._with_fate(name, outcome)
        outcomes = GROUPS.get(outcome, {outcome})
        if not outcomes.isdisjoint({CRASHED, WAITING}):
            return None
        found = self._ran_with(name, outcomes)
        if observation.DEAD_LETTERED in outcomes:
            for each in lettered:
                if each.outcome(consumer) == observation.DEAD_LETTERED:
                    found.add(each.id)
        return found

    def unfinished(self, consumer: str) -> set[str]:
        """Return the ids of facts that a consumer has to finish; it never will what is lost."""
        return self.waiting[consumer] - self._lost.get(consumer, set())

    def lost(self) -> int:
        """Return how many deliveries the last audit calls lost."""
        return sum(len(names) for names in self._lost.values())

    def _with_fate(self, consumer: str, fate: str) -> set[str]:
        """Return the ids of facts with a fate at a consumer."""
        if fate == LOST:
            return {*self._lost.get(consumer, set())}
        if fate == UNFINISHED:
            return self.unfinished(consumer)
        have_effects = self._ran_with(consumer, GROUPS[EFFECT])
        return self._ran_with(consumer, {observation.EXPIRED}) - have_effects

    def _ran_with(self, consumer: str, outcomes: Iterable[str]) -> set[str]:
        """Return the ids of facts with a run of such an outcome."""
        return set[str]().union(*(self._ran.get((consumer, each), set()) for each in outcomes))

    def _unnamed(self, wanted: Filter) -> int:
        """Return how many deliveries that name no event have an outcome that is asked for."""
        is_of_others = wanted.type not in {"", BROKEN} or wanted.contract == KEPT
        if wanted.ride or is_of_others or wanted.outcome in {EFFECT, *FATES}:
            return 0
        outcomes = GROUPS.get(wanted.outcome, {wanted.outcome})
        count = 0
        for consumer, seen in self.unnamed.items():
            if wanted.at in {"", consumer}:
                count += sum(seen[outcome] for outcome in outcomes)
        return count

    def _candidates(self, wanted: Filter) -> Iterable[Fact]:
        """Return facts that may match, all that do among them, the newest first."""
        names = self._names(wanted)
        if names is None:
            return reversed(self.facts.values())
        return self._newest_first(names)

    def _names(self, wanted: Filter) -> set[str] | None:
        """Return the ids of facts that may match; None: any may."""
        if wanted.ride and "*" not in wanted.ride:
            return {*self.rides.get(wanted.ride, ()), wanted.ride}
        if wanted.outcome:
            return self._with_outcome(wanted)
        if wanted.type:
            return self._broken if wanted.type == BROKEN else self._of_type.get(wanted.type, set())
        return None

    def _with_outcome(self, wanted: Filter) -> set[str]:
        found = set[str]()
        if wanted.outcome in FATES:
            at = [each.name for each in self.consumers if wanted.at in {"", each.name}]
            return found.union(*(self._with_fate(name, wanted.outcome) for name in at))
        outcomes = set(GROUPS.get(wanted.outcome, {wanted.outcome}))
        if observation.DEAD_LETTERED in outcomes:
            found.update(fact.id for fact in self._lettered)
        if CRASHED in outcomes:
            outcomes.add(observation.TAKEOVER)  # which shows the crash
        for each in self.consumers:
            if wanted.at not in {"", each.name}:
                continue
            if WAITING in outcomes:
                found |= self.waiting[each.name] | self._broken
            for outcome in outcomes:
                found |= self._ran.get((each.name, outcome), set())
        return found
