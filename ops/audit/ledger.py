"""What was published, what became of it, and whether anything is lost or duplicated. No I/O.

For each consumer, a published event that it subscribes to is accounted for when its effect is in the consumer's table,
when it lies in a dead-letter queue of that consumer, or when the consumer dropped it after its expiry time. Every other
published event is lost, and so is a committed fact that was never published. A fact that took effect more than once is
duplicated; an effect of a fact that was never published is wrong as well.

Only what the evidence covers is judged: not what is older than the log of events, and not what is too young.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Final

from carride.events import idempotency_id
from carride.facts import FACTS, RideChange
from idempotency import Policy, observation
from ops.audit.evidence import ALWAYS, NEVER, AuditedConsumer, DeadLettered, Evidence, Named

_CHANGES: Final = frozenset(name for name, fact in FACTS.items() if issubclass(fact, RideChange))
"""The types of facts of which each makes a new version of a ride."""
_CLOCK_SKEW: Final = timedelta(seconds=Policy().clock_skew)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What became of the events of one consumer.

    Facts are named by their ids, and events that break the contract by EventBridge's. A killed delivery logs nothing;
    its retry does. `retried` and `takeovers` are effects of a later attempt, after a failure or a crash.
    """

    distinct: int
    deliveries: int
    duplicates_absorbed: int
    retried: int
    takeovers: int
    failed: int
    expired: int
    dropped_early: tuple[str, ...]
    """Facts that were dropped before their expiry time; they are lost."""
    effects: int
    in_flight: int
    """Facts that nothing accounts for, and that are too young to be lost."""
    undecided: tuple[str, ...]
    """Facts that nothing accounts for, while messages of the consumer's queues cannot be read."""
    lost_events: tuple[str, ...]
    """Facts and events that nothing accounts for."""
    doubled_rides: Mapping[str, int]
    """Superfluous effects by ride."""
    effects_unpublished: tuple[str, ...]
    """Facts that took effect and were never published."""

    @property
    def lost(self) -> int:
        """How many events left no trace."""
        return len(self.lost_events)

    @property
    def doubled(self) -> int:
        """How many effects there are beyond one for each fact."""
        return sum(self.doubled_rides.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The counts, and which events do not add up. Counts that name no consumer are sums over all of them."""

    published: int
    """Events that the bus accepted, copies included, replays not."""
    replayed: int
    distinct: int
    """Different facts among the published events that honour the contract."""
    unpublished: tuple[str, ...]
    """Committed facts that never reached the bus."""
    publishing: int
    """Committed facts that have not reached the bus, and that are too young to be lost."""
    two_ids: Mapping[str, Sequence[str]]
    """Facts that were published under more than one id."""
    dead_lettered: Mapping[str, Mapping[str, int]]
    """Messages by queue and reason."""
    consumers: Mapping[str, Account]
    unread: Mapping[str, int]
    """Messages that could not be read, by queue."""
    routes: Mapping[str, str]
    """The state of the routes whose deliveries the audit cannot count."""
    blind: tuple[str, ...]
    """Why the audit cannot tell whether something is lost."""
    span: Mapping[str, str | None]
    """Times of the audit, of the oldest event that is judged, and of the first and last event in the log."""

    @property
    def lost(self) -> int:
        """How many events are lost, each for each consumer that should have had it."""
        return len(self.unpublished) + sum(account.lost for account in self.consumers.values())

    @property
    def doubled(self) -> int:
        """How many effects there are beyond one for each fact and consumer."""
        return sum(account.doubled for account in self.consumers.values())

    @property
    def in_flight(self) -> int:
        """How many events are too young to be lost, each for each consumer that has not processed it."""
        return self.publishing + sum(account.in_flight for account in self.consumers.values())

    @property
    def wrong(self) -> list[str]:
        """What is certainly wrong, in words."""
        accounts = self.consumers.values()
        early = sum(len(account.dropped_early) for account in accounts)
        unpublished = sum(len(account.effects_unpublished) for account in accounts)
        counts = {
            f"lost {self.lost}{f' ({early} dropped before their expiry time)' if early else ''}": self.lost,
            f"doubled {self.doubled}": self.doubled,
            f"{unpublished} effects of events that were never published": unpublished,
            f"{len(self.two_ids)} facts under two ids": len(self.two_ids),
        }
        return [text for text, count in counts.items() if count]

    @property
    def waiting(self) -> int:
        """How many messages lie in dead-letter queues."""
        return sum(sum(reasons.values()) for reasons in self.dead_lettered.values())

    @property
    def balanced(self) -> bool:
        """Whether every event is accounted for, once, and the evidence is complete."""
        return not self.wrong and not self.blind

    @property
    def verdict(self) -> str:
        """What the audit has found, in one line."""
        if self.wrong or self.blind:
            return "; ".join([*self.wrong, *(f"cannot tell: {reason}" for reason in self.blind)])
        notes = {"events in flight": self.in_flight, "messages waiting for redrive": self.waiting}
        return ", ".join(["balanced", *(f"{count} {what}" for what, count in notes.items() if count)])

    def to_json(self) -> dict[str, object]:
        """Return the ledger as JSON-ready values, with what the counts add up to."""
        accounts = self.consumers.values()
        sums = {name: sum(getattr(account, name) for account in accounts) for name, _ in _ROWS if name != "distinct"}
        totals = {"lost": self.lost, "doubled": self.doubled, "balanced": self.balanced, "verdict": self.verdict}
        return asdict(self) | sums | totals

    def to_text(self) -> str:
        """Return the ledger as a table."""
        first, last, judged = (self.span[name] for name in ("first", "last", "since"))
        lines = [
            _row("published events", self.published, note=f"logged from {first} to {last}" if first else ""),
            *([_row("replayed", self.replayed, note="events out of the archive")] if self.replayed else []),
            _row("distinct", self.distinct, note="facts among them that honour the contract"),
            *([f"judged: events since {judged}, when the log begins"] if judged else []),
            "",
            _row("", *self.consumers),
            *(_row(label, *(getattr(account, name) for account in self.consumers.values())) for name, label in _ROWS),
            "",
            _row("waiting for redrive", self.waiting),
            *(
                _row(f"  {queue}", sum(reasons.values()), note=", ".join(f"{why} {n}" for why, n in reasons.items()))
                for queue, reasons in self.dead_lettered.items()
            ),
            *(_row(f"  {queue}", count, note="hidden, or about to be taken") for queue, count in self.unread.items()),
            *(f"{route}: {seen}" for route, seen in self.routes.items()),
            _row("lost", self.lost),
            _row("doubled", self.doubled),
            *(f"  {name}" for name in self.named()[:_MOST_NAMES]),
            *(["  …"] if len(self.named()) > _MOST_NAMES else []),
        ]
        return "\n".join(lines)

    def named(self) -> list[str]:
        """Return everything that does not add up, by consumer."""
        fields = {"lost_events": "lost", "doubled_rides": "doubled", "effects_unpublished": "effect of unpublished"}
        return [
            *(f"outbox: lost {fact}" for fact in self.unpublished),
            *(
                f"{consumer}: {word} {name}"
                for consumer, account in self.consumers.items()
                for field, word in fields.items()
                for name in getattr(account, field)
            ),
            *(f"two ids: {name}" for name in self.two_ids),
        ]


def balance(evidence: Evidence) -> Ledger:
    """Compute the ledger."""
    events = evidence.published
    facts = {event.fact for event in events if event.fact is not None}
    committed = {name: time for name, time in _committed(evidence) if time >= evidence.since}
    missing = {} if evidence.log_is_gone else {name: time for name, time in committed.items() if name not in facts}
    ids: dict[Named, set[str]] = {}
    for event in events:
        if event.named is not None and event.fact is not None:
            ids.setdefault(event.named, set()).add(event.fact)
    times = [event.time for event in events if event.time != ALWAYS]
    consumers = {consumer.name: _account(evidence, consumer, facts) for consumer in evidence.consumers}
    return Ledger(
        published=sum(not event.replayed for event in events),
        replayed=sum(event.replayed for event in events),
        distinct=len(facts),
        unpublished=tuple(sorted(name for name, time in missing.items() if not evidence.is_young(time))),
        publishing=sum(evidence.is_young(time) for time in missing.values()),
        two_ids={"/".join(map(str, named)): sorted(found) for named, found in ids.items() if len(found) > 1},
        dead_lettered=_count(evidence.dead_letters),
        consumers=consumers,
        unread=dict(evidence.unread),
        routes=dict(evidence.routes),
        blind=tuple(_blind(evidence, consumers)),
        span={
            "at": _text(evidence.at),
            "since": None if evidence.since == ALWAYS else _text(evidence.since),
            "first": _text(min(times)) if times else None,
            "last": _text(max(times)) if times else None,
        },
    )


def _committed(evidence: Evidence) -> Iterator[tuple[str, datetime]]:
    """Yield each fact that a producer committed, with its time, by every table that shows it.

    The outbox forgets its items after some days. What follows from the tables is not forgotten: each effect names the
    facts that were emitted with it, and each version of a booked ride is one fact.
    """
    for item in evidence.items:
        for effect in item.effects:
            if effect.named is not None:
                for fact_type in effect.emitted:
                    yield idempotency_id(item.order_id, fact_type, effect.named.version), effect.time
    seen = {
        (event.named.order_id, event.named.version)
        for event in evidence.published
        if event.type in _CHANGES and event.named
    }
    for ride in evidence.bookings:
        for version in range(1, ride.version + 1):
            possible = (idempotency_id(ride.order_id, fact_type, version) for fact_type in _CHANGES)
            if (ride.order_id, version) not in seen and evidence.outbox.keys().isdisjoint(possible):
                yield f"{ride.order_id} version {version}", ride.booked
    yield from evidence.outbox.items()


def _account(evidence: Evidence, consumer: AuditedConsumer, facts: set[str]) -> Account:
    name = consumer.name
    wanted = [event for event in evidence.published if consumer.takes(event.type)]
    deliveries = [delivery for delivery in evidence.deliveries if delivery.consumer == name]
    letters = [letter for letter in evidence.dead_letters if letter.consumer == name]
    items = [item for item in evidence.items if item.consumer == name]

    outcomes = Counter(delivery.outcome for delivery in deliveries)
    applied = frozenset[str]().union(*(item.facts for item in items))
    dropped: dict[str | None, datetime] = {}
    for delivery in deliveries:
        if delivery.outcome == observation.EXPIRED:
            dropped.setdefault(delivery.fact, delivery.time)
    expires: dict[str | None, datetime] = {}
    for event in wanted:
        expires[event.fact] = min(expires.get(event.fact, NEVER), event.expires or NEVER)
    # The consumer decides by its own clock; when it logged that is known by CloudWatch's.
    early = {
        fact
        for fact, time in dropped.items()
        if fact in expires and (expires[fact] == NEVER or time + _CLOCK_SKEW < expires[fact])
    } - applied
    expired = dropped.keys() - applied - early
    dead_events = {letter.event_id for letter in letters}
    accounted = applied | expired | {letter.fact for letter in letters}
    missing: dict[str, bool] = {}
    for event in wanted:
        if event.event_id not in dead_events and (event.fact is None or event.fact not in accounted):
            name_of = event.fact or event.event_id
            missing[name_of] = missing.get(name_of, True) and evidence.is_young(event.time)
    old = sorted(missing_name for missing_name, young in missing.items() if not young)
    hidden = sum(evidence.unread.get(f"{consumer.resources}{queue}", 0) for queue in ("Queue", "RuleDlq", "Dlq"))
    undecided = old if len(old) <= hidden else []  # each message holds one event
    # An effect counts once, whatever id its fact came with.
    surplus = {item.order_id: item.total - len({each.named or each.fact for each in item.effects}) for item in items}
    return Account(
        distinct=len({event.fact for event in wanted} - {None}),
        deliveries=len(deliveries),
        duplicates_absorbed=outcomes[observation.DUPLICATE] + outcomes[observation.BUSY],
        retried=outcomes[observation.RETRIED],
        takeovers=outcomes[observation.TAKEOVER],
        failed=outcomes[observation.FAILED] + outcomes[observation.LOST_LEASE],
        expired=len(expired),
        dropped_early=tuple(sorted(map(str, early - accounted))),
        effects=sum(item.total for item in items),
        in_flight=len(missing) - len(old),
        undecided=tuple(undecided),
        lost_events=() if undecided else tuple(old),
        doubled_rides={order_id: extra for order_id, extra in surplus.items() if extra > 0},
        effects_unpublished=() if evidence.log_is_gone else tuple(sorted(_unpublished(evidence, name, facts))),
    )


def _unpublished(evidence: Evidence, consumer: str, facts: set[str]) -> Iterator[str]:
    """Yield the facts that took effect and are not in the log, unless they are older than the log, or too young."""
    oldest: dict[str, datetime] = {}
    for effect in (effect for item in evidence.items for effect in item.effects):
        oldest[effect.fact] = min(effect.time, oldest.get(effect.fact, effect.time))
    applied = {effect.fact for item in evidence.items if item.consumer == consumer for effect in item.effects}
    return (fact for fact in applied - facts if evidence.judges(oldest[fact]))


def _blind(evidence: Evidence, consumers: Mapping[str, Account]) -> Iterator[str]:
    """Yield the reasons for which the evidence does not show whether something is lost."""
    yield from evidence.broken_routes
    if evidence.log_is_gone:
        effects = sum(account.effects for account in consumers.values())
        yield (
            f"the log of events holds nothing, though consumers have {effects} effects and the archive holds "
            f"{evidence.archived} events"
        )
    for name, account in consumers.items():
        if account.undecided:
            hidden = ", ".join(f"{count} in {queue}" for queue, count in evidence.unread.items())
            yield f"{len(account.undecided)} events of {name} may be among messages that could not be read: {hidden}"


_MOST_NAMES: Final = 10
_ROWS: Final = (
    ("distinct", "events to act on"),
    ("deliveries", "deliveries"),
    ("duplicates_absorbed", "skipped duplicates"),
    ("retried", "retried after a failure"),
    ("takeovers", "taken over after a crash"),
    ("failed", "failed, retried later"),
    ("expired", "dropped as expired"),
    ("in_flight", "in flight"),
    ("effects", "effects"),
)
"""What the table shows of an account, and under which label."""


def _count(letters: Sequence[DeadLettered]) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for (queue, reason), count in sorted(Counter((letter.queue, letter.reason) for letter in letters).items()):
        counts.setdefault(queue, {})[reason] = count
    return counts


def _row(label: str, *values: int | str, note: str = "") -> str:
    cells = "".join(f" {value:>13,}" if isinstance(value, int) else f" {value:>13}" for value in values)
    return f"{label:<26}{cells}  {note}".rstrip()


def _text(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S %Z}"
