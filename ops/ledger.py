"""The ledger of a run: what was published, what became of it, and whether anything is lost or doubled. No I/O.

An event is accounted for when its effect is in the read model, when it lies in a dead-letter queue of its consumer, or
when the consumer reported that it had expired. Whatever else was published is lost. Whatever took effect more than once
is doubled.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from idempotency import observation


class Published(NamedTuple):
    """One event that the bus accepted and that the audited consumers subscribe to."""

    event_id: str
    """The id that EventBridge gave it."""
    fact: str | None
    """Its idempotency id: the same for every copy of one fact. None where the event breaks the contract."""
    replayed: bool = False


class Delivered(NamedTuple):
    """One delivery to a consumer, by the consumer's own report."""

    consumer: str
    outcome: str
    fact: str | None


class DeadLettered(NamedTuple):
    """One message in a dead-letter queue."""

    queue: str
    reason: str
    consumer: str | None
    """For whom the event lies here; None where no consumer has had a chance at it."""
    event_id: str | None
    """EventBridge's id of the event; None where the bus never accepted it."""
    fact: str | None


class Ride(NamedTuple):
    """What the read model holds of one ride."""

    order_id: str
    facts: frozenset[str]
    """Which facts took effect."""
    effects: int
    """How many effects there were: each one adds 1, a doubled one too."""


class Evidence(NamedTuple):
    """Everything that tables, queues and log groups have to say."""

    published: Sequence[Published]
    deliveries: Sequence[Delivered]
    dead_letters: Sequence[DeadLettered]
    rides: Sequence[Ride]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The counts, and which events do not add up. Counts are of events unless they say otherwise."""

    published: int
    """Accepted by the bus, copies included, replays not."""
    replayed: int
    """Accepted once more, out of the archive."""
    distinct: int
    """Different facts among the published events that honour the contract."""
    deliveries: int
    """Deliveries that a consumer reported on. One that was killed half-way reports nothing; its retry does."""
    duplicates_absorbed: int
    """Deliveries of a fact that had taken effect already, or that another delivery was busy with."""
    retried: int
    """Effects that took a further attempt after a failure."""
    takeovers: int
    """Effects of an attempt that took over from one that was killed."""
    failed: int
    """Deliveries that were handed back, to come again."""
    expired: int
    """Facts that were dropped because nobody wanted them any more."""
    effects: int
    """Effects in the read model."""
    dead_lettered: Mapping[str, Mapping[str, int]]
    """Messages by queue and reason."""
    lost_events: tuple[str, ...]
    """Facts (or, where the contract is broken, ids of events) that nothing accounts for."""
    doubled_rides: Mapping[str, int]
    """Superfluous effects by ride."""

    @property
    def lost(self) -> int:
        """How many published facts left no trace."""
        return len(self.lost_events)

    @property
    def doubled(self) -> int:
        """How many effects there are beyond one for each fact."""
        return sum(self.doubled_rides.values())

    @property
    def balanced(self) -> bool:
        """Whether every event is accounted for, once."""
        return self.lost == 0 and self.doubled == 0

    def to_json(self) -> dict[str, object]:
        """Return the ledger as JSON-ready values, with what the counts add up to."""
        return asdict(self) | {"lost": self.lost, "doubled": self.doubled, "balanced": self.balanced}

    def to_text(self) -> str:
        """Return the ledger as a table."""
        rows = [
            ("published", self.published, "events that the bus accepted"),
            ("replayed", self.replayed, "accepted once more, out of the archive"),
            ("distinct", self.distinct, "facts among them that honour the contract"),
            ("deliveries", self.deliveries, "that the consumer reported on"),
            ("duplicates absorbed", self.duplicates_absorbed, "deliveries without a further effect"),
            ("retried", self.retried, "effects of a further attempt after a failure"),
            ("takeovers", self.takeovers, "effects of an attempt that took over from a killed one"),
            ("expired", self.expired, "facts past their expiry time, dropped"),
            ("effects", self.effects, "in the read model"),
            ("dead-lettered", sum(sum(reasons.values()) for reasons in self.dead_lettered.values()), ""),
            *(
                (f"  {queue}", sum(reasons.values()), _by_reason(reasons))
                for queue, reasons in self.dead_lettered.items()
            ),
            ("lost", self.lost, _some(self.lost_events)),
            ("doubled", self.doubled, _some(self.doubled_rides)),
        ]
        width = max(len(name) for name, _, _ in rows)
        return "\n".join(f"{name:<{width}}  {count:>7,}  {note}".rstrip() for name, count, note in rows)


def balance(evidence: Evidence) -> Ledger:
    """Compute the ledger."""
    outcomes = Counter(delivery.outcome for delivery in evidence.deliveries)
    applied = frozenset[str]().union(*(ride.facts for ride in evidence.rides))
    expired = {delivery.fact for delivery in evidence.deliveries if delivery.outcome == observation.EXPIRED} - applied
    kept = [letter for letter in evidence.dead_letters if letter.consumer is not None]
    kept_events = {letter.event_id for letter in kept}
    accounted = applied | expired | {letter.fact for letter in kept}
    lost = {
        event.fact or event.event_id
        for event in evidence.published
        if event.event_id not in kept_events and (event.fact is None or event.fact not in accounted)
    }
    surplus = {ride.order_id: ride.effects - len(ride.facts) for ride in evidence.rides}
    return Ledger(
        published=sum(not event.replayed for event in evidence.published),
        replayed=sum(event.replayed for event in evidence.published),
        distinct=len({event.fact for event in evidence.published} - {None}),
        deliveries=len(evidence.deliveries),
        duplicates_absorbed=outcomes[observation.DUPLICATE] + outcomes[observation.BUSY],
        retried=outcomes[observation.RETRIED],
        takeovers=outcomes[observation.TAKEOVER],
        failed=outcomes[observation.FAILED] + outcomes[observation.LOST_LEASE],
        expired=len(expired),
        effects=sum(ride.effects for ride in evidence.rides),
        dead_lettered=_count(evidence.dead_letters),
        lost_events=tuple(sorted(lost)),
        doubled_rides={order_id: extra for order_id, extra in surplus.items() if extra > 0},
    )


def _count(letters: Sequence[DeadLettered]) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for (queue, reason), count in sorted(Counter((letter.queue, letter.reason) for letter in letters).items()):
        counts.setdefault(queue, {})[reason] = count
    return counts


def _by_reason(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in reasons.items())


def _some(names: Collection[str], most: int = 3) -> str:
    shown = ", ".join(list(names)[:most])
    return f"{shown}, …" if len(names) > most else shown
