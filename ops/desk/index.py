"""The newest events of a stack and what became of them, as its logs show it.

In memory and bounded. No I/O.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ops.audit.evidence import AuditedConsumer, DeadLettered, Published
from ops.audit.reading import delivered_in, published_in
from ops.desk.endings import ENDED
from ops.desk.facts import (
    BROKEN,
    BUS,
    COPIES,
    DISTINCT,
    REPLAYED,
    SETTLED,
    Copy,
    Fact,
    Run,
)
from ops.desk.outages import Outages
from ops.desk.timeline import Timeline
from ops.search import CAR, CUSTOMER, EVENT, PAYMENT, Match, named_by

_reported: Final = re.compile(r"^REPORT RequestId: .*?\bDuration: ([\d.]+) ms").search


def _kind_of(event: Published, fact: Fact) -> str:
    """Return what a published event is to the bus, before it is added to its fact."""
    if event.replayed:
        return REPLAYED
    if event.fact is None:
        return BROKEN
    if fact.copies:
        return COPIES
    return DISTINCT


class Index:
    """The newest facts of a stack, and counts of what happened."""

    def __init__(self, consumers: Sequence[AuditedConsumer], most: int = 50_000) -> None:
        self.consumers = consumers
        self.facts: dict[str, Fact] = {}
        """By id, the oldest first; one without copies is not known to be published."""
        self.rides: dict[str, list[str]] = {}
        """The ids of a ride's facts, by its id; the ride of the newest fact is the last."""
        self.open_rides: dict[str, None] = {}
        """The rides that have not ended, the oldest first."""
        self._closed = set[str]()
        self.timeline = Timeline()
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
        self._lost = defaultdict[str, set[str]](set)
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
        if not fact.copies:
            fact.type = event.type
            fact.time_ms = time_ms
            if event.named:
                fact.ride = event.named.order_id
                fact.version = event.named.version
                self.rides[fact.ride] = [*self.rides.pop(fact.ride, ()), fact.id]
                self._note_ending(fact.ride, fact.type)
                fact.named = tuple(named_by(event))
                for match in fact.named:
                    self.naming[match.kind].setdefault(match.id, {}).setdefault(fact.id)
            for each in self.consumers if event.fact else ():
                outcomes = {run.outcome for run in fact.runs if run.consumer == each.name}
                is_settled = each.name in fact.letters or not outcomes.isdisjoint(SETTLED)
                if each.takes(fact.type) and not is_settled:
                    self.waiting[each.name].add(fact.id)
        kind = _kind_of(event, fact)
        fact.body = line["message"]
        fact.copies.append(Copy(event.event_id, time_ms, event.replayed))
        self._count(BUS, kind, time_ms)

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
            if fact is not None:
                self._fact(fact).runs.append(run)
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
                if self.facts.get(fact.id) is fact and fact.is_unfinished(each):
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
        return fact

    def _forget(self, fact: Fact) -> None:
        """Take a fact out of whatever it is found by."""
        self._forget_ride_of(fact)
        for match in fact.named:
            naming = self.naming[match.kind][match.id]
            naming.pop(fact.id, None)
            if not naming:
                del self.naming[match.kind][match.id]
        for names in (*self.waiting.values(), *self._lost.values()):
            names.discard(fact.id)

    def _note_ending(self, ride: str, event_type: str | None) -> None:
        """Note whether a ride has ended: events come in any order."""
        if event_type in ENDED:
            self._closed.add(ride)
            self.open_rides.pop(ride, None)
        elif ride not in self._closed:
            self.open_rides.setdefault(ride)

    def _forget_ride_of(self, fact: Fact) -> None:
        """Take a fact out of its ride; a ride without facts is forgotten."""
        if fact.ride is None:
            return
        names = self.rides[fact.ride]
        names.remove(fact.id)
        if not names:
            del self.rides[fact.ride]
            self.open_rides.pop(fact.ride, None)
            self._closed.discard(fact.ride)

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
        self.timeline.add(lane, what, time_ms)

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

    def unfinished(self, consumer: str) -> set[str]:
        """Return the ids of facts that a consumer has to finish; it never will what is lost."""
        return self.waiting[consumer] - self._lost.get(consumer, set())

    def given_up(self) -> list[str]:
        """Return the rides with dead letters, as the last audit has read them, the oldest first."""
        lettered = sorted(self._lettered, key=lambda fact: fact.time_ms)
        return [*dict.fromkeys(fact.ride for fact in lettered if fact.ride in self.rides)]

    def lost(self) -> int:
        """Return how many deliveries the last audit calls lost."""
        return sum(len(names) for names in self._lost.values())
