"""The types of evidence: who consumes what, and what the bus, tables, queues and gateway hold.

No I/O.

A ``fact`` is an idempotency id, the same for every copy of an event; None if the event breaks the
contract. An ``event_id`` is EventBridge's id, and ``order_id`` the ride's.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Final, NamedTuple

import assignments
import payments
from carride.facts import FACTS, RideChange

DISPATCH: Final = "dispatch"
PAYMENT: Final = "payment"
RECORDS: Final = "IdempotencyTable"
"""The records of every consumer but the ride history."""
HISTORY: Final = "RideHistoryTable"
"""The records of the ride history, which keep its entries."""
RECORD_TABLES: Final = (RECORDS, HISTORY)
MARKS: Final = "OperatorTable"
"""What operators leave behind: a fence, redrive counts, and the keys of deleted records."""


class AuditedConsumer(NamedTuple):
    """A consumer, and how the stack names its resources."""

    name: str
    resources: str
    """Prefix of the logical ids of its resources."""
    table: str | None = None
    """Logical id of the table with its effects: an item per ride, with an attribute per event and a
    counter of effects; or `HISTORY`, whose records keep them. A consumer without such a table is
    audited by its log."""
    acts_on: frozenset[type] | None = None
    """The types of facts that it acts on; None is every event of the bus, broken ones included."""

    def takes(self, event_type: str | None) -> bool:
        """Return whether the consumer acts on events of a type."""
        return self.acts_on is None or event_type in _names(self.acts_on)


@cache
def _names(facts: frozenset[type]) -> frozenset[str]:
    return frozenset(fact.__name__ for fact in facts)


CONSUMERS: Final = (
    AuditedConsumer("ride-history", "RideHistory", HISTORY),
    AuditedConsumer("dispatch", "Dispatch", "AssignmentTable", assignments.CONSUMED),
    AuditedConsumer("payment", "Payment", "PaymentTable", payments.CONSUMED),
)

LOG_RULE: Final = "CarRideLogRule"
"""It logs every event."""
LOG_RULE_DLQ: Final = f"{LOG_RULE}Dlq"
"""Its messages are events that the bus accepted and could not log."""
OTHER_DLQS: Final = (
    LOG_RULE_DLQ,
    "OutboxPipeDlq",
    "PartnersRuleDlq",
    "ProducerDlq",
    "ReconcilerDlq",
)
"""Dead-letter queues that belong to no consumer."""
WITHHELD: Final = "events that fit no partners' rule"
"""The name under which the routes of evidence have them."""

NEVER: Final = datetime.max.replace(tzinfo=UTC)
ALWAYS: Final = datetime.min.replace(tzinfo=UTC)


CHANGES: Final = frozenset(name for name, fact in FACTS.items() if issubclass(fact, RideChange))
"""The types of facts that make a new version of a ride."""
COPY: Final = "_copy_"
"""In a ride's id: the ride is the copy of one event of another ride."""


class Named(NamedTuple):
    """What a fact states, whatever its id: a ride, a type and the ride's version."""

    order_id: str
    type: str
    version: int


class Published(NamedTuple):
    """A ride event that the bus accepted."""

    event_id: str
    type: str | None
    """Its type, in this contract's words; None if it has none."""
    fact: str | None
    named: Named | None = None
    expires: datetime | None = None
    time: datetime = ALWAYS
    """When it was logged, by CloudWatch's clock."""
    replayed: bool = False
    region: str | None = None
    """The region that ingested it."""
    adopted: bool = False
    """Whether its producer gave it an id: then a ride, type and version may have several facts."""
    fingerprint: str | None = None
    """Of its payload, as consumers compute it."""
    price: int | None = None
    """The price of the ride that it states, in cents."""
    outcome: str | None = None
    """How the ride ended, by a `CarRideOverdue`."""
    customer: str | None = None
    car: str | None = None
    payment: str | None = None
    """The ids that it states besides its ride's."""
    sent: datetime | None = None
    """EventBridge's time of it, by which a replay chooses it: its publisher may have given it."""
    missing_for_partners: str | None = None
    """What the partners' rules read and it does not have: then partners do not get it."""


class Delivered(NamedTuple):
    """A delivery to a consumer, as the consumer logged it."""

    consumer: str
    outcome: str
    fact: str | None
    time: datetime = NEVER
    """When the line was logged, by CloudWatch's clock."""
    attempt: int | None = None
    delivery: str | None = None
    """The transport's id of the delivery."""
    reason: str | None = None
    type: str | None = None
    ride: str | None = None
    """The event's correlation id, which is the ride's id in events of this project."""
    event_id: str | None = None
    """EventBridge's id of one that breaks the contract; None for others and in older lines."""


class DeadLettered(NamedTuple):
    """A message in a dead-letter queue."""

    queue: str
    reason: str
    consumer: str | None
    """The consumer that did not process the event; None if the queue belongs to no consumer."""
    event_id: str | None
    """None if the bus never accepted the event."""
    fact: str | None


class Effect(NamedTuple):
    """An event that took effect in an item."""

    fact: str
    named: Named | None = None
    time: datetime = ALWAYS
    """When it was committed, by the consumer's clock. The event's own time is its producer's
    word."""
    emitted: tuple[str, ...] = ()
    """Types of the events that were emitted in the same transaction, about the same version of the
    ride."""


class RideItem(NamedTuple):
    """A ride in the table of a consumer."""

    consumer: str
    order_id: str
    effects: tuple[Effect, ...]
    total: int
    """The item's counter. Each effect adds 1, a duplicated one too."""
    state: str | None = None
    detail: str | int | None = None
    """The car, or the amount in cents."""
    open_since: datetime | None = None
    """Since when the ride needs something; None if it needs nothing."""
    raise_refused: bool = False
    """Whether the gateway refused to reserve more, so that less than the price was captured."""

    @property
    def facts(self) -> frozenset[str]:
        """The ids of the facts that took effect."""
        return frozenset(effect.fact for effect in self.effects)


class BookedRide(NamedTuple):
    """A ride in the API's table. Each of its versions is one fact."""

    order_id: str
    version: int
    booked: datetime = ALWAYS
    open_since: datetime | None = None
    status: str | None = None
    price: int | None = None
    """In cents."""


class GatewayPayment(NamedTuple):
    """A payment in the gateway's ledger."""

    order_id: str
    status: str
    amount: int
    """In cents."""
    captures: int
    """How often its money was taken."""
    refunds: int
    """How often its money was returned or released."""


class Evidence(NamedTuple):
    """Everything that was read."""

    consumers: Sequence[AuditedConsumer]
    published: Sequence[Published] = ()
    deliveries: Sequence[Delivered] = ()
    dead_letters: Sequence[DeadLettered] = ()
    items: Sequence[RideItem] = ()
    outbox: Mapping[str, datetime] = {}
    """The facts in the outbox, with their times."""
    bookings: Sequence[BookedRide] = ()
    cars: Mapping[str, str | None] = {}
    """The ride of each car, by the car's id."""
    unlisted_cars: Collection[str] = ()
    """Free cars that are not in the index of free cars: dispatch never finds them."""
    copies: Collection[str] = ()
    """Rides of a local stack that consist of the copy of one event, made to meet a fault. Nothing
    else of their rides happened, so they are not judged."""
    fingerprints: Mapping[str, str] = {}
    """Of the payloads that took effect, by the keys of the records."""
    given_up: Collection[str] = ()
    """The keys that are quarantined, and whose letter their consumer has sent."""
    forgotten: Collection[str] = ()
    """The keys of records that an operator has deleted."""
    redriven: Mapping[str, datetime] = {}
    """When a dead letter was last sent to its consumer again, by the key of the record."""
    payments: Sequence[GatewayPayment] | None = None
    """None if the gateway was not asked."""
    unread: Mapping[str, int] = {}
    """Messages that could not be read, by queue: another reader hides them, or a consumer is about
    to receive them."""
    routes: Mapping[str, str] = {}
    """The state of each route whose deliveries the audit cannot count, by name."""
    broken_routes: Mapping[str, str] = {}
    """Why such a route delivers nothing, by name."""
    archived: int = 0
    """Events in the bus's archive, as far as EventBridge has counted them."""
    at: datetime = NEVER
    """When the reading began, by AWS's clock."""
    grace: timedelta = timedelta()
    """How old an event must be before it is judged."""
    since: datetime = ALWAYS
    """Since when the log of events is complete. Older events are not judged."""

    @property
    def log_is_gone(self) -> bool:
        """Whether the log of events is empty, although other evidence shows events."""
        return not self.published and bool(self.archived or any(item.total for item in self.items))

    def is_young(self, time: datetime) -> bool:
        """Return whether something of that time may still be in flight."""
        return time >= self.at - self.grace


def grouped[K, V](pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, in their order."""
    by_key: dict[K, list[V]] = {}
    for key, value in pairs:
        by_key.setdefault(key, []).append(value)
    return by_key
