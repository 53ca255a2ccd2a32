"""The ledger: how many events were published, what became of them, and which are lost or duplicated. No I/O.

A published event is accounted for at a consumer that subscribes to it if its effect is in the
consumer's table, if it lies in a dead-letter queue of that consumer, or if the consumer dropped it
after its expiry time. Any other published event is lost, and so is a committed event that was never
published. An event that took effect more than once is duplicated. An effect of an event that was
never published is wrong as well.

Only what the log of events covers is judged: nothing older than the log, and nothing that may still
be in flight.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Final

from carride.events import idempotency_id
from carride.facts import FACTS, RideChange
from carride_idempotency import Policy, observation
from ops.audit.evidence import ALWAYS, NEVER, AuditedConsumer, Evidence
from ops.text import counted, grouped, row

_CHANGES: Final = frozenset(name for name, fact in FACTS.items() if issubclass(fact, RideChange))
"""The types of facts that make a new version of a ride."""
_CLOCK_SKEW: Final = timedelta(seconds=Policy().clock_skew)
_MOST_NAMES: Final = 10
ROWS: Final = {
    "distinct": "events to act on",
    "deliveries": "deliveries",
    "duplicates_absorbed": "skipped duplicates",
    "retried": "retried after a failure",
    "takeovers": "taken over after a crash",
    "failed": "failed, retried later",
    "expired": "dropped as expired",
    "in_flight": "in flight",
    "effects": "effects",
}
"""The rows of the table for an account, with their labels."""


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
    expired: int
    dropped_early: tuple[str, ...]
    """Events that were dropped before their expiry time. They are lost."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The counts, and which events do not add up. Counts that name no consumer are sums over all consumers."""

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
        early = sum(len(account.dropped_early) for account in accounts)
        unpublished = sum(len(account.effects_unpublished) for account in accounts)
        counts = {
            f"lost {self.lost}{f' ({early} dropped before their expiry time)' if early else ''}": self.lost,
            f"doubled {self.doubled}": self.doubled,
            f"{counted(unpublished, 'effect')} of events that were never published": unpublished,
            f"{counted(len(self.two_ids), 'fact')} under two ids": len(self.two_ids),
        }
        return [text for text, count in counts.items() if count]

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
            return "; ".join([*self.wrong, *(f"cannot tell: {reason}" for reason in self.blind)])
        notes = {
            f"{counted(self.in_flight, 'event')} in flight": self.in_flight,
            f"{counted(self.waiting, 'message')} waiting for redrive": self.waiting,
        }
        return ", ".join(["balanced", *(note for note, count in notes.items() if count)])

    def to_json(self) -> dict[str, object]:
        """Return the ledger and its sums as JSON-ready values."""
        sums = {name: self._sum(name) for name in ROWS if name != "distinct"}
        totals = {
            "lost": self.lost,
            "doubled": self.doubled,
            "balanced": self.balanced,
            "verdict": self.verdict,
        }
        return asdict(self) | sums | totals

    def to_text(self) -> str:
        """Return the ledger as a table."""
        first, last, judged = (self.span[name] for name in ("first", "last", "since"))
        lines = [
            row(
                "published events",
                self.published,
                note=f"logged from {first} to {last}" if first else "",
            )
        ]
        if self.replayed:
            lines.append(row("replayed", self.replayed, note="events from the archive"))
        lines.append(
            row(
                "distinct",
                self.distinct,
                note="events among them that honour the contract, without copies",
            )
        )
        if judged:
            lines.append(f"judged: events since {judged}, when the log begins")
        lines += ["", row("", *self.consumers)]
        for name, label in ROWS.items():
            lines.append(
                row(label, *(getattr(account, name) for account in self.consumers.values()))
            )
        lines += ["", row("waiting for redrive", self.waiting)]
        for queue, reasons in self.dead_lettered.items():
            lines.append(
                row(
                    f"  {queue}",
                    sum(reasons.values()),
                    note=", ".join(f"{w} {n}" for w, n in reasons.items()),
                )
            )
        for queue, count in self.unread.items():
            lines.append(
                row(f"  {queue}", count, note="hidden by another reader, or about to be received")
            )
        lines += [f"{route}: {state}" for route, state in self.routes.items()]
        lines += [row("lost", self.lost), row("doubled", self.doubled)]
        names = self.named()
        return "\n".join(
            lines
            + [f"  {name}" for name in names[:_MOST_NAMES]]
            + ["  …"] * (len(names) > _MOST_NAMES)
        )

    def named(self) -> list[str]:
        """Return everything that does not add up, by consumer."""
        fields = {
            "lost_events": "lost",
            "doubled_rides": "doubled",
            "effects_unpublished": "effect of unpublished",
        }
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

    def _sum(self, name: str) -> int:
        return sum(getattr(account, name) for account in self.consumers.values())


def balance(evidence: Evidence) -> Ledger:
    """Compute the ledger."""
    events = evidence.published
    facts = {event.fact for event in events if event.fact is not None}
    committed = {name: time for name, time in _committed(evidence) if time >= evidence.since}
    missing = (
        {}
        if evidence.log_is_gone
        else {name: time for name, time in committed.items() if name not in facts}
    )
    ids = grouped(
        (each.named, each.fact) for each in events if each.named and each.fact and not each.adopted
    )
    letters = grouped(sorted((each.queue, each.reason) for each in evidence.dead_letters))
    times = [event.time for event in events if event.time != ALWAYS]
    consumers = {
        consumer.name: _account(evidence, consumer, facts) for consumer in evidence.consumers
    }
    return Ledger(
        published=sum(not event.replayed for event in events),
        replayed=sum(event.replayed for event in events),
        distinct=len(facts),
        unpublished=tuple(
            sorted(name for name, time in missing.items() if not evidence.is_young(time))
        ),
        publishing=sum(evidence.is_young(time) for time in missing.values()),
        two_ids={
            "/".join(map(str, named)): sorted({*found})
            for named, found in ids.items()
            if len({*found}) > 1
        },
        dead_lettered={queue: dict(Counter(reasons)) for queue, reasons in letters.items()},
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
    """Yield each event that a producer committed, with its time, from every table that shows it.

    Items of the outbox expire after some days. The other tables keep their evidence: each effect
    names the events that were emitted with it, and each version of a booked ride is one event.
    """
    for item in evidence.items:
        for effect in item.effects:
            if effect.named is not None:
                for fact_type in effect.emitted:
                    yield (
                        idempotency_id(item.order_id, fact_type, effect.named.version),
                        effect.time,
                    )
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
    dead_letters = [message for message in evidence.dead_letters if message.consumer == name]
    items = [item for item in evidence.items if item.consumer == name]

    outcomes = Counter(delivery.outcome for delivery in deliveries)
    applied = frozenset[str]().union(*(item.facts for item in items))
    dropped = grouped(
        (each.fact, each.time) for each in deliveries if each.outcome == observation.EXPIRED
    )
    expires = grouped((event.fact, event.expires or NEVER) for event in wanted)
    # The consumer decided by its own clock. CloudWatch's clock shows when it did.
    early = {
        fact
        for fact in dropped.keys() & expires
        if dropped[fact][0] + _CLOCK_SKEW < min(expires[fact])
    }
    expired = dropped.keys() - applied - early
    dead_events = {message.event_id for message in dead_letters}
    accounted = applied | expired | {message.fact for message in dead_letters}
    missing = grouped(
        (event.fact or event.event_id, event.time)
        for event in wanted
        if event.event_id not in dead_events and (event.fact is None or event.fact not in accounted)
    )
    old = sorted(
        name_of for name_of, times in missing.items() if not all(map(evidence.is_young, times))
    )
    hidden = sum(
        evidence.unread.get(f"{consumer.resources}{queue}", 0)
        for queue in ("Queue", "RuleDlq", "Dlq")
    )
    undecided = old if len(old) <= hidden else []  # each message holds one event
    # A fact that was published under two ids counts as one effect; facts of another producer have
    # its ids.
    adopted = {event.fact for event in evidence.published if event.adopted}
    known = {
        item.order_id: {
            (each.fact not in adopted and each.named) or each.fact for each in item.effects
        }
        for item in items
    }
    surplus = {item.order_id: item.total - len(known[item.order_id]) for item in items}
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
        effects_unpublished=()
        if evidence.log_is_gone
        else tuple(sorted(_unpublished(evidence, name, facts))),
    )


def _unpublished(evidence: Evidence, consumer: str, facts: set[str]) -> Iterator[str]:
    """Yield the events that took effect and are not in the log, although the log covers their time."""
    times = grouped(
        (effect.fact, effect.time) for item in evidence.items for effect in item.effects
    )
    applied = {fact for item in evidence.items if item.consumer == consumer for fact in item.facts}
    oldest = {fact: min(times[fact]) for fact in applied - facts}
    return (
        fact
        for fact, time in oldest.items()
        if evidence.since <= time and not evidence.is_young(time)
    )


def _blind(evidence: Evidence, consumers: Mapping[str, Account]) -> Iterator[str]:
    """Yield the reasons why the evidence does not show whether something is lost."""
    yield from evidence.broken_routes
    if evidence.log_is_gone:
        effects = sum(account.effects for account in consumers.values())
        yield (
            f"the log of events holds nothing, though consumers have {counted(effects, 'effect')} and the archive "
            f"holds {counted(evidence.archived, 'event')}"
        )
    for name, account in consumers.items():
        if account.undecided:
            hidden = ", ".join(f"{count} in {queue}" for queue, count in evidence.unread.items())
            events = counted(len(account.undecided), "event")
            yield f"{events} of {name} may be among messages that could not be read: {hidden}"


def _text(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S %Z}"
