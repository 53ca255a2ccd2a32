"""The ledger of a run: what was published, what became of it, and whether anything is lost or doubled. No I/O.

For each consumer, a published fact that it subscribes to is accounted for when its effect is in the consumer's table,
when it lies in a dead-letter queue of that consumer, or when the consumer reported that it had expired. Whatever else
was published is lost; so is a fact in the outbox that never came to the bus. Whatever took effect more than once is
doubled.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple

from idempotency import observation

OUTBOX: Final = "outbox"


class Published(NamedTuple):
    """One ride event that the bus accepted."""

    event_id: str
    """The id that EventBridge gave it."""
    type: str | None
    """Its type, as rules see it."""
    fact: str | None
    """Its idempotency id: the same for every copy of one fact. None where the event breaks the contract."""
    replayed: bool = False


class Subscription(NamedTuple):
    """What a consumer is to act on."""

    consumer: str
    types: frozenset[str] | None = None
    """Types of events; None is all of them, broken ones included."""

    def takes(self, event: Published) -> bool:
        """Whether the event is for this consumer."""
        return self.types is None or event.type in self.types


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


class State(NamedTuple):
    """What a consumer's table holds of one ride."""

    consumer: str
    order_id: str
    facts: frozenset[str]
    """Which facts took effect."""
    effects: int
    """How many effects there were: each one adds 1, a doubled one too."""


class Evidence(NamedTuple):
    """Everything that tables, queues and log groups have to say."""

    subscriptions: Sequence[Subscription]
    published: Sequence[Published]
    deliveries: Sequence[Delivered] = ()
    dead_letters: Sequence[DeadLettered] = ()
    states: Sequence[State] = ()
    outbox: Collection[str] = ()
    """Facts that were committed to be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What became of the events of one consumer."""

    distinct: int
    """Different facts that it subscribes to, among the published events that honour the contract."""
    deliveries: int
    """Deliveries that it reported on. One that was killed half-way reports nothing; its retry does."""
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
    """Effects in its table."""
    lost_events: tuple[str, ...]
    """Facts (or, where the contract is broken, ids of events) that nothing accounts for."""
    doubled_rides: Mapping[str, int]
    """Superfluous effects by ride."""

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
    """The counts, and which events do not add up. What is not by consumer is the sum over all of them."""

    published: int
    """Events that the bus accepted, copies included, replays not."""
    replayed: int
    """Events that it accepted once more, out of the archive."""
    distinct: int
    """Different facts among the published events that honour the contract."""
    untold: tuple[str, ...]
    """Facts in the outbox that never came to the bus."""
    dead_lettered: Mapping[str, Mapping[str, int]]
    """Messages by queue and reason."""
    consumers: Mapping[str, Account]
    """The account of each consumer, by its name."""

    @property
    def lost(self) -> int:
        """How many events are lost, each for each consumer that should have had it."""
        return len(self.untold) + sum(account.lost for account in self.consumers.values())

    @property
    def doubled(self) -> int:
        """How many effects there are beyond one for each fact and consumer."""
        return sum(account.doubled for account in self.consumers.values())

    @property
    def balanced(self) -> bool:
        """Whether every event is accounted for, once."""
        return self.lost == 0 and self.doubled == 0

    def to_json(self) -> dict[str, object]:
        """Return the ledger as JSON-ready values, with what the counts add up to."""
        accounts = self.consumers.values()
        sums = {name: sum(getattr(account, name) for account in accounts) for name, _ in _ROWS if name != "distinct"}
        return asdict(self) | sums | {"lost": self.lost, "doubled": self.doubled, "balanced": self.balanced}

    def to_text(self) -> str:
        """Return the ledger as a table."""
        dead = {queue: sum(reasons.values()) for queue, reasons in self.dead_lettered.items()}
        lines = [
            _row("published", self.published, note="events that the bus accepted"),
            *([_row("replayed", self.replayed, note="events out of the archive")] if self.replayed else []),
            _row("distinct", self.distinct, note="facts among them that honour the contract"),
            "",
            _row("", *self.consumers),
            *(_row(label, *(getattr(account, name) for account in self.consumers.values())) for name, label in _ROWS),
            "",
            _row("dead-lettered", sum(dead.values())),
            *(_row(f"  {queue}", count, note=_by_reason(self.dead_lettered[queue])) for queue, count in dead.items()),
            _row("lost", self.lost, note=_some(self._lost_events())),
            _row("doubled", self.doubled, note=_some(self._doubled_rides())),
        ]
        return "\n".join(lines)

    def _lost_events(self) -> list[str]:
        of_consumers = [f"{name}: {event}" for name, account in self.consumers.items() for event in account.lost_events]
        return [f"{OUTBOX}: {fact}" for fact in self.untold] + of_consumers

    def _doubled_rides(self) -> list[str]:
        return [f"{name}: {ride}" for name, account in self.consumers.items() for ride in account.doubled_rides]


def balance(evidence: Evidence) -> Ledger:
    """Compute the ledger."""
    facts = {event.fact for event in evidence.published} - {None}
    return Ledger(
        published=sum(not event.replayed for event in evidence.published),
        replayed=sum(event.replayed for event in evidence.published),
        distinct=len(facts),
        untold=tuple(sorted(set(evidence.outbox) - facts)),
        dead_lettered=_count(evidence.dead_letters),
        consumers={subscription.consumer: _account(evidence, subscription) for subscription in evidence.subscriptions},
    )


def _account(evidence: Evidence, subscription: Subscription) -> Account:
    name = subscription.consumer
    wanted = [event for event in evidence.published if subscription.takes(event)]
    deliveries = [delivery for delivery in evidence.deliveries if delivery.consumer == name]
    kept = [letter for letter in evidence.dead_letters if letter.consumer == name]
    states = [state for state in evidence.states if state.consumer == name]

    outcomes = Counter(delivery.outcome for delivery in deliveries)
    applied = frozenset[str]().union(*(state.facts for state in states))
    expired = {delivery.fact for delivery in deliveries if delivery.outcome == observation.EXPIRED} - applied
    kept_events = {letter.event_id for letter in kept}
    accounted = applied | expired | {letter.fact for letter in kept}
    lost = {
        event.fact or event.event_id
        for event in wanted
        if event.event_id not in kept_events and (event.fact is None or event.fact not in accounted)
    }
    surplus = {state.order_id: state.effects - len(state.facts) for state in states}
    return Account(
        distinct=len({event.fact for event in wanted} - {None}),
        deliveries=len(deliveries),
        duplicates_absorbed=outcomes[observation.DUPLICATE] + outcomes[observation.BUSY],
        retried=outcomes[observation.RETRIED],
        takeovers=outcomes[observation.TAKEOVER],
        failed=outcomes[observation.FAILED] + outcomes[observation.LOST_LEASE],
        expired=len(expired),
        effects=sum(state.effects for state in states),
        lost_events=tuple(sorted(lost)),
        doubled_rides={order_id: extra for order_id, extra in surplus.items() if extra > 0},
    )


_ROWS: Final = (
    ("distinct", "facts to act on"),
    ("deliveries", "deliveries"),
    ("duplicates_absorbed", "duplicates absorbed"),
    ("retried", "retried after a failure"),
    ("takeovers", "taken over after a crash"),
    ("failed", "handed back, to come again"),
    ("expired", "expired, dropped"),
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


def _by_reason(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in reasons.items())


def _some(names: Sequence[str], most: int = 3) -> str:
    shown = ", ".join(names[:most])
    return f"{shown}, …" if len(names) > most else shown
