"""The ledger: how many events were published, what became of them, and what is wrong. No I/O.

A published event is accounted for at a consumer that subscribes to it if its effect is in the
consumer's table, if it lies in a dead-letter queue of that consumer, or if the consumer dropped it
after its expiry time. Any other published event is lost, and so is a committed event that was never
published. An event that took effect more than once is duplicated. An effect of an event that was
never published is wrong as well.

Only what the log of events covers is judged: nothing older than the log, and nothing that may still
be in flight.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final, NamedTuple

from carride.events import idempotency_id
from carride_idempotency import observation
from carride_idempotency.dead_letters import CONTRACT
from ops.audit.evidence import (
    ALWAYS,
    CHANGES,
    WITHHELD,
    AuditedConsumer,
    Evidence,
    RideItem,
    grouped,
)
from ops.audit.missing import applied_facts, hidden_messages, missing_at
from ops.text import Row, at_most, command, counted, laid_out, row

ROWS: Final = {
    "distinct": "events to act on",
    "deliveries": "deliveries",
    "duplicates_absorbed": "skipped duplicates",
    "retried": "took effect on a retry",
    "takeovers": "taken over after a crash",
    "failed": "failed runs",
    "fenced": "late writes fenced off",
    "expired": "dropped as expired",
    "lettered": "waiting as dead letters",
    "in_flight": "in flight",
    "effects": "effects",
}
"""The rows of the table for an account, with their labels."""
_ALWAYS: Final = frozenset({"distinct", "deliveries", "effects"})
"""The rows that a report has even if all their numbers are zero."""
_FOLDED: Final = frozenset({"retried", "failed", "fenced"})
"""Kinds of deliveries that a report leaves out: they say nothing about what became of events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What became of the events of one consumer.

    Events are named by their idempotency ids; those that break the contract by EventBridge's id. A
    killed delivery logs nothing; its retry does. `retried` and `takeovers` count effects of a later
    attempt, after a failure or a crash.
    """

    distinct: int
    deliveries: int
    duplicates_absorbed: int
    retried: int
    takeovers: int
    failed: int
    fenced: int
    """Runs that ended after their lease, and so wrote nothing."""
    outcomes: Mapping[str, int]
    """The deliveries by outcome."""
    expired: int
    dropped_early: tuple[str, ...]
    """Events that were dropped before their expiry time. They are lost."""
    lettered: int
    """Events without an effect that wait for a redrive, or whose letter an operator has deleted."""
    effects: int
    in_flight: int
    """Events that are not accounted for, and too young to be lost."""
    undecided: tuple[str, ...]
    """Events that are not accounted for, while messages of the consumer's queues cannot be read."""
    lost_events: tuple[str, ...]
    doubled_rides: Mapping[str, int]
    """Effects beyond one for each event, by ride."""
    effects_unpublished: tuple[str, ...]
    """Events that took effect and were never published."""

    @property
    def lost(self) -> int:
        """The number of lost events."""
        return len(self.lost_events)

    @property
    def doubled(self) -> int:
        """The number of superfluous effects."""
        return sum(self.doubled_rides.values())


LOST: Final = "lost"
DOUBLED: Final = "doubled"
WITHOUT_LETTER: Final = "key without a letter"
UNPUBLISHED: Final = "effect of unpublished"
TWO_IDS: Final = "two ids"
TWO_FACTS: Final = "two facts"
VERSION: Final = " version "
"""Between a ride and its version, of which no event is known."""


class Wrong(NamedTuple):
    """Something that does not add up."""

    kind: str
    at: str | None
    """The consumer; None if it is the bus or the outbox."""
    id: str
    """What is lost or unpublished is an event; what is doubled, a ride; or a key, or a fact."""
    types: tuple[str, ...] = ()
    """The types that were published as one version of a ride."""

    @property
    def what(self) -> str:
        """What is wrong, and where."""
        at = f"{self.at}: " if self.at else ""
        if self.at is None and self.kind == LOST:
            at = "outbox: "  # it was committed, and no consumer could get it
        return f"{at}{self.kind}"

    @property
    def says(self) -> str:
        """All of it in a line."""
        types = f": {', '.join(self.types)}" if self.types else ""
        return f"{self.what} {self.id}{types}"

    @property
    def subject(self) -> str:
        """The event, ride or key that it is about: of the version or fact of a ride, the ride."""
        return self.id.partition(VERSION)[0].partition("/")[0]

    @property
    def line(self) -> str:
        """What is wrong, after the command that shows its event, ride or key."""
        shown = self._command()
        return f"  {shown}  {self.what if self.id in shown else self.says}"

    def _command(self) -> str:
        if self.kind == WITHOUT_LETTER:
            return command("keys", self.subject)
        if self.kind in (LOST, UNPUBLISHED) and VERSION not in self.id:
            return command("event", self.subject)
        return command("ride", self.subject)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The counts, and which events do not add up. A count without a consumer is a sum over all."""

    published: int
    """Events that the bus accepted, with copies and without replays."""
    replayed: int
    distinct: int
    """Published events without copies, as far as they honour the contract."""
    unpublished: tuple[str, ...]
    """Committed events that never reached the bus."""
    publishing: int
    """Committed events that have not reached the bus, and are too young to be lost."""
    two_ids: Mapping[str, Sequence[str]]
    """Facts that were published under more than one idempotency id."""
    two_facts: Mapping[str, Sequence[str]]
    """Versions of rides that were published with more than one change of the ride."""
    dead_lettered: Mapping[str, Mapping[str, int]]
    """Messages by queue and reason."""
    consumers: Mapping[str, Account]
    keys_without_letter: tuple[str, ...]
    """Keys that are quarantined, and whose letter has left its queue: it expired, was deleted, or
    was redriven before."""
    unread: Mapping[str, int]
    """Messages that could not be read, by queue."""
    routes: Mapping[str, str]
    """The state of the routes whose deliveries the audit cannot count."""
    blind: tuple[str, ...]
    """Why the audit cannot tell whether something is lost."""
    span: Mapping[str, str | None]
    """Times of the audit, of the oldest event that is judged, and of the first and last event in
    the log."""

    @property
    def lost(self) -> int:
        """The number of lost events, counted at each consumer."""
        return len(self.unpublished) + self._sum("lost")

    @property
    def doubled(self) -> int:
        """The number of effects beyond one for each event and consumer."""
        return self._sum("doubled")

    @property
    def in_flight(self) -> int:
        """The number of events that are too young to be lost, counted at each consumer."""
        return self.publishing + self._sum("in_flight")

    @property
    def wrong(self) -> list[str]:
        """What is certainly wrong, in words."""
        accounts = self.consumers.values()
        early = sum(len(account.dropped_early) for account in accounts if account.lost_events)
        unpublished = sum(len(account.effects_unpublished) for account in accounts)
        sentences = []
        if self.lost:
            note = f" ({early} dropped before their expiry time)" if early else ""
            sentences.append(f"lost {self.lost:,}{note}")
        if self.doubled:
            sentences.append(f"doubled {self.doubled:,}")
        if unpublished:
            sentences.append(
                f"{counted(unpublished, 'effect')} of events that were never published"
            )
        if self.two_ids:
            sentences.append(f"{counted(len(self.two_ids), 'fact')} under two ids")
        if self.two_facts:
            sentences.append(f"{counted(len(self.two_facts), 'version')} with two facts")
        return sentences

    @property
    def waiting(self) -> int:
        """The number of messages in dead-letter queues."""
        return sum(sum(reasons.values()) for reasons in self.dead_lettered.values())

    @property
    def balanced(self) -> bool:
        """Whether every event is accounted for once, and the evidence is complete."""
        return not self.wrong and not self.blind

    @property
    def verdict(self) -> str:
        """The result in one line."""
        if not self.balanced:
            untold = [f"cannot tell: {reason}" for reason in self.blind]
            return "; ".join([*self.wrong, *untold])
        parts = ["balanced"]
        if self.in_flight:
            parts.append(f"{counted(self.in_flight, 'event')} in flight")
        if self.waiting:
            parts.append(f"{counted(self.waiting, 'dead letter')}{self._why_they_stay()}")
        return ", ".join(parts)

    def _why_they_stay(self) -> str:
        """Return how many dead letters no redrive can help; empty if there are none."""
        breaking = sum(reasons.get(CONTRACT, 0) for reasons in self.dead_lettered.values())
        if not breaking:
            return ""
        verb = "breaks" if breaking == 1 else "break"
        return f" ({breaking:,} {verb} the contract)"

    def to_json(self) -> dict[str, object]:
        """Return the ledger and its sums as JSON-ready values; ``lost`` and ``doubled`` are lists.

        A committed event that never reached the bus is lost without a consumer.
        """
        sums = {name: self._sum(name) for name in ROWS if name != "distinct"}
        totals = {
            "lost": [{"consumer": each.at, "event": each.id} for each in self.of_kind(LOST)],
            "doubled": [{"consumer": each.at, "ride": each.id} for each in self.of_kind(DOUBLED)],
            "balanced": self.balanced,
            "verdict": self.verdict,
        }
        return asdict(self) | sums | totals

    def of_kind(self, kind: str) -> list[Wrong]:
        """Return what does not add up of a kind."""
        return [each for each in self.named() if each.kind == kind]

    def named(self) -> list[Wrong]:
        """Return everything that does not add up, by kind."""
        lost = [Wrong(LOST, None, fact) for fact in self.unpublished]
        doubled = list[Wrong]()
        unpublished = list[Wrong]()
        for consumer, account in self.consumers.items():
            lost += [Wrong(LOST, consumer, fact) for fact in account.lost_events]
            doubled += [Wrong(DOUBLED, consumer, ride) for ride in account.doubled_rides]
            for fact in account.effects_unpublished:
                unpublished.append(Wrong(UNPUBLISHED, consumer, fact))
        keys = [Wrong(WITHOUT_LETTER, None, key) for key in self.keys_without_letter]
        two_ids = [Wrong(TWO_IDS, None, name) for name in self.two_ids]
        two_facts = [
            Wrong(TWO_FACTS, None, name, tuple(types)) for name, types in self.two_facts.items()
        ]
        return [*lost, *doubled, *keys, *unpublished, *two_ids, *two_facts]

    def to_text(self) -> str:
        """Return what does not add up, and the ledger as tables."""
        return laid_out([*self.lines_of_named(), *self.lines()])

    def lines_of_named(self) -> list[str]:
        """Return a line for each thing that does not add up, with its command."""
        by_kind = grouped((each.kind, each.line) for each in self.named())
        return [line for lines in by_kind.values() for line in at_most(lines)]

    def lines(self) -> list[Row | str]:
        """Return the ledger as the lines of a report, without what is zero or as it should be."""
        lines: list[Row | str] = [*self._events(), "", *self._accounts()]
        queues = [*self._queues()]
        if queues:
            lines += ["", *queues]
        for route, state in self.routes.items():
            if route.endswith(WITHHELD):
                lines.append(f"{route}: {state}")
        return lines

    def _events(self) -> Iterator[Row | str]:
        """Yield the lines about published events."""
        first = self.span["first"]
        last = self.span["last"]
        judged = self.span["since"]
        logged = f"logged {first} to {last}" if first else ""
        yield row("published events", self.published, note=logged)
        if self.replayed:
            yield row("replayed", self.replayed, note="events from the archive")
        if judged:
            yield f"judged: events since {judged}, when the log begins"

    def _accounts(self) -> Iterator[Row]:
        """Yield the lines about what became of events, with a column for each consumer."""
        yield row("", *self.consumers)
        for name, label in ROWS.items():
            counts = [getattr(account, name) for account in self.consumers.values()]
            if name in _ALWAYS or (name not in _FOLDED and any(counts)):
                yield row(label, *counts)

    def _queues(self) -> Iterator[Row]:
        """Yield the lines about messages in queues."""
        if self.waiting:
            yield row("dead letters", self.waiting)
        for queue, reasons in self.dead_lettered.items():
            count = sum(reasons.values())
            yield row(f"  {queue}", count, note=_listed(reasons))
        unreadable = "not read: hidden by another reader, about to be received, or too many"
        for queue, count in self.unread.items():
            yield row(f"  {queue}", count, note=unreadable)

    def _sum(self, name: str) -> int:
        return sum(getattr(account, name) for account in self.consumers.values())


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def balance(evidence: Evidence) -> Ledger:
    """Compute the ledger."""
    events = evidence.published
    facts = {event.fact for event in events if event.fact is not None}
    unpublished = _never_published(evidence, facts)
    young = [name for name, time in unpublished.items() if evidence.is_young(time)]
    consumers = {
        consumer.name: _account(evidence, consumer, facts) for consumer in evidence.consumers
    }
    return Ledger(
        published=sum(not event.replayed for event in events),
        replayed=sum(event.replayed for event in events),
        distinct=len(facts),
        unpublished=tuple(sorted(unpublished.keys() - set(young))),
        publishing=len(young),
        two_ids=_two_ids(evidence),
        two_facts=_two_facts(evidence),
        dead_lettered=_reasons(evidence),
        consumers=consumers,
        keys_without_letter=tuple(_without_letter(evidence)),
        unread=dict(evidence.unread),
        routes=dict(evidence.routes),
        blind=tuple(_blind(evidence, consumers)),
        span=_span(evidence),
    )


def _without_letter(evidence: Evidence) -> Iterator[str]:
    """Yield the keys whose letter was sent, and is in no queue of the consumer any more.

    One that was redriven lately is under way, and one among hidden messages may be there.
    """
    letters = {f"{each.consumer}#{each.fact}" for each in evidence.dead_letters}
    hidden = {each.name: hidden_messages(evidence, each) for each in evidence.consumers}
    for key in sorted(evidence.given_up):
        consumer, _, _ = key.partition("#")
        is_under_way = evidence.is_young(evidence.redriven.get(key, ALWAYS))
        if key not in letters and not is_under_way and hidden.get(consumer) == 0:
            yield key


def _never_published(evidence: Evidence, facts: set[str]) -> dict[str, datetime]:
    """Return the committed events that are not in the log, although it covers their time."""
    if evidence.log_is_gone:
        return {}
    return {
        name: time
        for name, time in _committed(evidence)
        if time >= evidence.since and name not in facts
    }


def _committed(evidence: Evidence) -> Iterator[tuple[str, datetime]]:
    """Yield each event that a producer committed, with its time, from every table that shows it.

    Items of the outbox expire after some days. The other tables keep their evidence: each effect
    names the events that were emitted with it, and each version of a booked ride is one event.
    """
    for item in evidence.items:
        yield from _emitted(item)
    yield from _booked(evidence)
    yield from evidence.outbox.items()


def _emitted(item: RideItem) -> Iterator[tuple[str, datetime]]:
    """Yield the events that were committed with the effects of an item."""
    for effect in item.effects:
        if effect.named is None:
            continue
        for fact_type in effect.emitted:
            fact = idempotency_id(item.order_id, fact_type, effect.named.version)
            yield fact, effect.time


def _booked(evidence: Evidence) -> Iterator[tuple[str, datetime]]:
    """Yield the versions of booked rides of which no event is known."""
    published = set[tuple[str, int]]()
    for event in evidence.published:
        if event.type in CHANGES and event.named:
            published.add((event.named.order_id, event.named.version))
    for ride in evidence.bookings:
        for version in range(1, ride.version + 1):
            if (ride.order_id, version) in published:
                continue
            possible = {idempotency_id(ride.order_id, change, version) for change in CHANGES}
            if evidence.outbox.keys().isdisjoint(possible):
                yield f"{ride.order_id}{VERSION}{version}", ride.booked


def _two_ids(evidence: Evidence) -> dict[str, list[str]]:
    """Return the ids of each fact that has several. A producer may give its own facts any ids."""
    ids = defaultdict[str, set[str]](set)
    for event in evidence.published:
        if event.named and event.fact and not event.adopted:
            named = event.named
            ids[f"{named.order_id}/{named.type}/{named.version}"].add(event.fact)
    return _several(ids)


def _two_facts(evidence: Evidence) -> dict[str, list[str]]:
    """Return the changes of each version of a ride that has several.

    Another producer may give every event the same version, so its events do not count.
    """
    changes = defaultdict[str, set[str]](set)
    for event in evidence.published:
        if event.named and event.named.type in CHANGES and not event.adopted:
            named = event.named
            changes[f"{named.order_id}/{named.version}"].add(named.type)
    return _several(changes)


def _several(found: Mapping[str, set[str]]) -> dict[str, list[str]]:
    """Return what has several values, with the values in order."""
    return {name: sorted(values) for name, values in found.items() if len(values) > 1}


def _reasons(evidence: Evidence) -> dict[str, dict[str, int]]:
    """Return how many messages each dead-letter queue has, by reason."""
    found = Counter((each.queue, each.reason) for each in evidence.dead_letters)
    counts: dict[str, dict[str, int]] = {}
    for (queue, reason), count in sorted(found.items()):
        in_queue = counts.setdefault(queue, {})
        in_queue[reason] = count
    return counts


def _span(evidence: Evidence) -> dict[str, str | None]:
    span = dict[str, str | None].fromkeys(("at", "since", "first", "last"))
    span["at"] = _text(evidence.at)
    if evidence.since != ALWAYS:
        span["since"] = _text(evidence.since)
    logged = [event.time for event in evidence.published if event.time != ALWAYS]
    if logged:
        span["first"] = _text(min(logged))
        span["last"] = _text(max(logged))
    return span


def _account(evidence: Evidence, consumer: AuditedConsumer, facts: set[str]) -> Account:
    """Return what became of the events of a consumer; ``facts`` were published."""
    wanted = {event.fact for event in evidence.published if consumer.takes(event.type)}
    deliveries = [each for each in evidence.deliveries if each.consumer == consumer.name]
    outcomes = Counter(delivery.outcome for delivery in deliveries)
    items = [item for item in evidence.items if item.consumer == consumer.name]
    missing = missing_at(evidence, consumer)
    return Account(
        distinct=len(wanted - {None}),
        deliveries=len(deliveries),
        duplicates_absorbed=outcomes[observation.DUPLICATE] + outcomes[observation.BUSY],
        retried=outcomes[observation.RETRIED],
        takeovers=outcomes[observation.TAKEOVER],
        failed=outcomes[observation.FAILED] + outcomes[observation.UNPROTECTED],
        fenced=outcomes[observation.LOST_LEASE],
        outcomes=dict(outcomes),
        expired=missing.expired,
        dropped_early=missing.dropped_early,
        lettered=missing.lettered,
        effects=sum(item.total for item in items),
        in_flight=len(missing.in_flight),
        undecided=missing.undecided,
        lost_events=missing.lost,
        doubled_rides=_doubled(evidence, items),
        effects_unpublished=tuple(_unpublished(evidence, consumer.name, facts)),
    )


def _doubled(evidence: Evidence, items: Sequence[RideItem]) -> dict[str, int]:
    """Return how many effects of each ride are superfluous.

    A fact that was published under two ids counts as one effect. Facts of another producer are told
    apart by their ids.
    """
    adopted = {event.fact for event in evidence.published if event.adopted}
    surplus = dict[str, int]()
    for item in items:
        distinct = set[object]()
        for effect in item.effects:
            has_own_id = effect.named is None or effect.fact in adopted
            distinct.add(effect.fact if has_own_id else effect.named)
        if item.total > len(distinct):
            surplus[item.order_id] = item.total - len(distinct)
    return surplus


def _unpublished(evidence: Evidence, consumer: str, facts: set[str]) -> list[str]:
    """Return the events that took effect and are not in the log, although it covers their time."""
    if evidence.log_is_gone:
        return []
    first = dict[str, datetime]()
    for item in evidence.items:
        for effect in item.effects:
            known = first.get(effect.fact, effect.time)
            first[effect.fact] = min(known, effect.time)
    unknown = applied_facts(evidence, consumer) - facts
    return sorted(
        fact
        for fact in unknown
        if first[fact] >= evidence.since and not evidence.is_young(first[fact])
    )


def _blind(evidence: Evidence, consumers: Mapping[str, Account]) -> Iterator[str]:
    """Yield the reasons why the evidence does not show whether something is lost."""
    yield from evidence.broken_routes.values()
    if evidence.log_is_gone:
        effects = counted(sum(account.effects for account in consumers.values()), "effect")
        archived = counted(evidence.archived, "event")
        yield (
            f"the log of events holds nothing, though consumers have {effects} and the archive "
            f"holds {archived}"
        )
    hidden = ", ".join(f"{count} in {queue}" for queue, count in evidence.unread.items())
    for name, account in consumers.items():
        if account.undecided:
            events = counted(len(account.undecided), "event")
            yield f"{events} of {name} may be among messages that could not be read: {hidden}"


def _text(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S %Z}"
