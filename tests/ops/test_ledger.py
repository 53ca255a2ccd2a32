"""The ledger of a small world: each test plants one loss, and the ledger names it."""

import json
from datetime import timedelta
from typing import Any, Final

import pytest

from carride.events import idempotency_id
from idempotency import observation
from ops.audit.evidence import (
    CONSUMERS,
    LOG_RULE_DLQ,
    AuditedConsumer,
    BookedRide,
    DeadLettered,
    Delivered,
    Effect,
    Evidence,
    Named,
    Published,
    RideItem,
)
from ops.audit.ledger import balance
from tests.ops.world import NOW

HOUR: Final = timedelta(hours=1)
BEFORE: Final = NOW - 2 * HOUR
RIDE: Final = "order_01"
CREATED, ACCEPTED, ASSIGNED = ALL = (
    Named(RIDE, "CarRideCreated", 1),
    Named(RIDE, "CarRideAccepted", 2),
    Named(RIDE, "CarAssigned", 2),
)
HISTORY, DISPATCH, PAYMENT = "ride-history", "dispatch", "payment"
AUDITED: Final = [consumer for consumer in CONSUMERS if consumer.name in (HISTORY, DISPATCH, PAYMENT)]


def fact(named: Named) -> str:
    """Return the idempotency id of an event."""
    return idempotency_id(*named)


def published(named: Named, **changes: Any) -> Published:
    """Return an event of two hours ago."""
    return Published(f"event of {named.type}", named.type, fact(named), named, time=BEFORE)._replace(**changes)


def item(consumer: str, *names: Named, emitted: tuple[str, ...] = (), extra: int = 0) -> RideItem:
    """Return a consumer's item: one effect an event."""
    effects = tuple(Effect(fact(named), named, BEFORE, emitted) for named in names)
    return RideItem(consumer, RIDE, effects, len(effects) + extra)


AT_DISPATCH: Final = item(DISPATCH, ACCEPTED, emitted=("CarAssigned",))
AT_PAYMENT: Final = item(PAYMENT, ASSIGNED)
UNPAID: Final = [item(HISTORY, *ALL), AT_DISPATCH]
"""The items of the other consumers, without that of payment."""
WORLD: Final = Evidence(
    consumers=AUDITED,
    published=[published(named) for named in ALL],
    items=[*UNPAID, AT_PAYMENT],
    outbox={fact(named): BEFORE for named in ALL},
    bookings=[BookedRide(RIDE, 2, BEFORE)],
    at=NOW,
    grace=HOUR,
    since=NOW - timedelta(days=14),
)
"""One ride that was booked and accepted, has a car, and took effect everywhere."""


def events(*names: Named, **changes: Any) -> list[Published]:
    """Return events, all with the same changes."""
    return [published(named, **changes) for named in names]


def dead(named: Named, consumer: str | None, queue: str, reason: str = "QUARANTINED") -> DeadLettered:
    """Return the dead-lettered message of an event."""
    return DeadLettered(queue, reason, consumer, published(named).event_id, fact(named))


def expired(time: Any) -> list[Delivered]:
    """Return a delivery that payment dropped."""
    return [Delivered(PAYMENT, observation.EXPIRED, fact(ASSIGNED), time)]


OLD_ID: Final = "5f0c0000-0000-5000-8000-000000000000"
TOOK_BOTH: Final = RideItem(PAYMENT, RIDE, (*AT_PAYMENT.effects, Effect(OLD_ID, ASSIGNED, BEFORE)), 2)
UNASSIGNED: Final = events(CREATED, ACCEPTED)
EXPIRES: Final = [*UNASSIGNED, published(ASSIGNED, expires=NOW - HOUR)]
BROKEN: Final = [*WORLD.published, Published("event-9", None, None)]
NOTHING: Final[dict[str, Any]] = {"published": [], "items": [], "outbox": {}, "bookings": []}

LOSSES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "an effect is missing": ("lost 1", {"items": UNPAID}),
    "an effect is logged and missing": (
        "lost 1",
        {"items": UNPAID, "deliveries": [Delivered(PAYMENT, observation.NEW, fact(ASSIGNED))]},
    ),
    "an event breaks the contract": ("lost 1", {"published": BROKEN}),
    "a dead-lettered message of another consumer": (
        "lost 1",
        {"items": UNPAID, "dead_letters": [dead(ASSIGNED, DISPATCH, "DispatchDlq")]},
    ),
    "a dead-lettered message of no consumer": (
        "lost 1",
        {"items": UNPAID, "dead_letters": [dead(ASSIGNED, None, "ProducerDlq")]},
    ),
    "an effect took place twice": ("doubled 2", {"items": [*UNPAID, item(PAYMENT, ASSIGNED, extra=2)]}),
    "the log's rule failed and consumers got nothing": (
        "lost 5",
        {"items": [], "dead_letters": [dead(each, None, LOG_RULE_DLQ) for each in ALL]},
    ),
    "an outbox item was never published": (
        "lost 1",
        {"published": UNASSIGNED, "items": [AT_DISPATCH, item(HISTORY, CREATED, ACCEPTED)]},
    ),
    "an outbox item of a consumer expired unpublished": (
        "lost 1",
        {"published": UNASSIGNED, "items": [AT_DISPATCH, item(HISTORY, CREATED, ACCEPTED)], "outbox": {}},
    ),
    "an outbox item of the API expired unpublished": (
        "lost 1",
        {"bookings": [BookedRide(RIDE, 3, BEFORE)], "outbox": {}},
    ),
    "a fact has two ids": (
        "lost 1; doubled 1; 1 facts under two ids",
        {
            "published": [*WORLD.published, published(ASSIGNED, event_id="other", fact=OLD_ID)],
            "items": [*UNPAID, TOOK_BOTH],
        },
    ),
    "an effect of an event that was never published": (
        "2 effects of events that were never published",
        {"published": UNASSIGNED, "outbox": {}, "items": [item(HISTORY, *ALL), item(DISPATCH, ACCEPTED), AT_PAYMENT]},
    ),
    "a consumer's clock is ahead": (
        "lost 1 (1 dropped before their expiry time)",
        {"published": EXPIRES, "items": UNPAID, "deliveries": expired(BEFORE)},
    ),
    "an event without an expiry time is dropped": (
        "lost 1 (1 dropped before their expiry time)",
        {"items": UNPAID, "deliveries": expired(NOW)},
    ),
    "more is missing than messages are hidden": (
        "lost 2",
        {"items": [AT_DISPATCH, AT_PAYMENT, item(HISTORY, CREATED)], "unread": {"RideHistoryDlq": 1}},
    ),
    "the log is empty and consumers are not": (
        "cannot tell: the log of events holds nothing, though consumers have 5 effects",
        {"published": []},
    ),
    "the log is empty and the archive is not": (
        "cannot tell: the log of events holds nothing, though consumers have 0 effects and the archive holds 7 events",
        NOTHING | {"archived": 7},
    ),
    "messages are hidden by another reader": (
        "cannot tell: 1 events of payment may be among messages that could not be read: 1 in PaymentDlq",
        {"items": UNPAID, "unread": {"PaymentDlq": 1}},
    ),
    "partners get nothing": (
        "cannot tell: PartnersRule is DISABLED",
        {"broken_routes": ["PartnersRule is DISABLED with 1 targets: partners get nothing"]},
    ),
}


@pytest.mark.parametrize(("verdict", "planted"), LOSSES.values(), ids=LOSSES)
def test_a_planted_loss_is_named(verdict: str, planted: dict[str, Any]) -> None:
    """Nothing that must never happen leaves the ledger balanced."""
    ledger = balance(WORLD._replace(**planted))
    assert not ledger.balanced
    assert ledger.verdict.startswith(verdict)


ONE_WAITS: Final = "balanced, 1 messages waiting for redrive"
IN_FLIGHT: Final = "balanced, 1 events in flight"
QUIET: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "nothing is wrong": ("balanced", {}),
    "copies": ("balanced", {"published": [*WORLD.published, published(CREATED, event_id="copy")]}),
    "a dead-lettered event": (ONE_WAITS, {"items": UNPAID, "dead_letters": [dead(ASSIGNED, PAYMENT, "PaymentDlq")]}),
    "a broken event, dead-lettered": (
        ONE_WAITS,
        {
            "published": BROKEN,
            "dead_letters": [DeadLettered("RideHistoryDlq", "CONTRACT", HISTORY, "event-9", None)],
        },
    ),
    "an event that was dropped after its expiry": (
        "balanced",
        {"published": EXPIRES, "items": UNPAID, "deliveries": expired(NOW)},
    ),
    "a copy that was dropped when another had taken effect": (
        "balanced",
        {"published": EXPIRES, "deliveries": expired(BEFORE)},
    ),
    "an event that is too young": (
        IN_FLIGHT,
        {"published": [*UNASSIGNED, published(ASSIGNED, time=NOW)], "items": UNPAID},
    ),
    "an outbox item that is too young": (IN_FLIGHT, {"outbox": {**WORLD.outbox, "new": NOW}}),
    "a type that a consumer does not subscribe to": (
        "balanced",
        {
            "published": [*WORLD.published, published(Named("order_02", "CarRideStarted", 3))],
            "consumers": AUDITED[1:],
        },
    ),
    "effects and bookings that are older than the log": (
        "balanced",
        {"published": events(ACCEPTED, ASSIGNED), "since": NOW - HOUR, "bookings": [BookedRide(RIDE, 9, BEFORE)]},
    ),
}


@pytest.mark.parametrize(("verdict", "planted"), QUIET.values(), ids=QUIET)
def test_what_is_no_loss_is_not_called_one(verdict: str, planted: dict[str, Any]) -> None:
    """Events in flight, dead-lettered or rightly dropped are counted as such."""
    assert balance(WORLD._replace(**planted)).verdict == verdict


def test_copies_replays_and_duplicates_are_told_apart() -> None:
    """A copy is a published event, a replay is not; delivering it again is a skipped duplicate."""
    copies = [*WORLD.published, published(CREATED, event_id="copy"), published(CREATED, replayed=True)]
    outcomes = (observation.NEW, observation.DUPLICATE, observation.BUSY, observation.FAILED)
    deliveries = [Delivered(HISTORY, each, fact(CREATED)) for each in outcomes]
    ledger = balance(WORLD._replace(published=copies, deliveries=deliveries))
    account = ledger.consumers[HISTORY]
    assert (ledger.published, ledger.replayed, ledger.distinct) == (4, 1, 3)
    assert (account.deliveries, account.duplicates_absorbed, account.failed, account.effects) == (4, 2, 1, 3)
    dropped_copy = balance(WORLD._replace(published=EXPIRES, deliveries=expired(NOW) * 2))
    assert dropped_copy.consumers[PAYMENT].expired == 0, "it took effect"


def test_people_and_machines_read_the_same() -> None:
    """The documented keys are in the JSON, and the table names what does not add up."""
    items = [item(HISTORY, CREATED, ACCEPTED, extra=1), AT_DISPATCH, AT_PAYMENT]
    too_large = dead(CREATED, None, "ProducerDlq", "EntryTooLarge")
    ledger = balance(WORLD._replace(items=items, dead_letters=[too_large]))
    document = json.loads(json.dumps(ledger.to_json()))
    assert (document["lost"], document["doubled"], document["effects"], document["balanced"]) == (1, 1, 5, False)
    assert document["dead_lettered"] == {"ProducerDlq": {"EntryTooLarge": 1}}
    assert {"published", "distinct", "deliveries", "duplicates_absorbed", "verdict", "span"} <= document.keys()
    account = ledger.consumers[HISTORY]
    for name in (*account.lost_events, *account.doubled_rides, "EntryTooLarge 1"):
        assert name in ledger.to_text()


def test_a_consumer_without_a_table_is_audited_too() -> None:
    """Its items are what it logged, one for each event."""
    points = AuditedConsumer("points", "Points")
    done = [RideItem("points", name, (Effect(name),), 1) for name in map(fact, (CREATED, ACCEPTED))]
    ledger = balance(WORLD._replace(consumers=[points], items=done))
    assert ledger.consumers["points"].lost_events == (fact(ASSIGNED),)
