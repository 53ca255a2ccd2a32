"""The ledger over a small world of evidence: each test plants one loss, and the audit names it."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
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
from ops.audit.ledger import Account, Ledger, balance

NOW: Final = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOUR: Final = timedelta(hours=1)
RIDE: Final = "order_01"
CREATED, ACCEPTED, ASSIGNED = (
    Named(RIDE, "CarRideCreated", 1),
    Named(RIDE, "CarRideAccepted", 2),
    Named(RIDE, "CarAssigned", 2),
)
HISTORY, DISPATCH, PAYMENT = "ride-history", "dispatch", "payment"
AUDITED: Final = [consumer for consumer in CONSUMERS if consumer.name in (HISTORY, DISPATCH, PAYMENT)]


def fact(named: Named) -> str:
    """Return the id of a fact."""
    return idempotency_id(*named)


def published(named: Named, **changes: Any) -> Published:
    """Return an event of two hours ago."""
    event = Published(f"event of {named.type}", named.type, fact(named), named, time=NOW - 2 * HOUR)
    return event._replace(**changes)


def item(consumer: str, *names: Named, emitted: tuple[str, ...] = (), extra: int = 0) -> RideItem:
    """Return a consumer's item: one effect a fact."""
    effects = tuple(Effect(fact(named), named, NOW - 2 * HOUR, emitted) for named in names)
    return RideItem(consumer, RIDE, effects, len(effects) + extra)


WORLD: Final = Evidence(
    consumers=AUDITED,
    published=[published(named) for named in (CREATED, ACCEPTED, ASSIGNED)],
    items=[
        item(HISTORY, CREATED, ACCEPTED, ASSIGNED),
        item(DISPATCH, ACCEPTED, emitted=("CarAssigned",)),
        item(PAYMENT, ASSIGNED),
    ],
    outbox={fact(named): NOW - 2 * HOUR for named in (CREATED, ACCEPTED, ASSIGNED)},
    bookings=[BookedRide(RIDE, 2, NOW - 2 * HOUR)],
    at=NOW,
    grace=HOUR,
    since=NOW - timedelta(days=14),
)
"""One ride that was booked and accepted, has a car, and took effect everywhere."""

type Change = Callable[[Evidence], Evidence]


def change(**changes: Any) -> Change:
    """Return what replaces parts of the evidence."""
    return lambda world: world._replace(**changes)


def without(consumer: str) -> list[RideItem]:
    """Return the items of the other consumers."""
    return [each for each in WORLD.items if each.consumer != consumer]


def events(*names: Named, **changes: Any) -> list[Published]:
    """Return events, all with the same changes."""
    return [published(named, **changes) for named in names]


def letter(named: Named, consumer: str | None, queue: str, reason: str = "QUARANTINED") -> DeadLettered:
    """Return the dead letter of an event."""
    event = published(named)
    return DeadLettered(queue, reason, consumer, event.event_id, event.fact)


def expired(named: Named, time: datetime, consumer: str = PAYMENT) -> Delivered:
    """Return a delivery that was dropped."""
    return Delivered(consumer, observation.EXPIRED, fact(named), time)


OLD_ID: Final = "5f0c0000-0000-5000-8000-000000000000"
TWICE: Final = published(ASSIGNED, event_id="other", fact=OLD_ID)
TOOK_BOTH: Final = RideItem(
    PAYMENT, RIDE, (*WORLD.of(PAYMENT)[RIDE].effects, Effect(OLD_ID, ASSIGNED, NOW - 2 * HOUR)), 2
)
EXPIRES: Final = [*events(CREATED, ACCEPTED), published(ASSIGNED, expires=NOW - HOUR)]
NOTHING: Final[dict[str, Any]] = {"published": [], "items": [], "outbox": {}, "bookings": []}

LOSSES: Final[dict[str, tuple[Change, str]]] = {
    "an effect is missing": (change(items=without(PAYMENT)), "lost 1"),
    "logged to have done it, but no effect": (
        change(items=without(PAYMENT), deliveries=[Delivered(PAYMENT, observation.NEW, fact(ASSIGNED))]),
        "lost 1",
    ),
    "an event breaks the contract": (
        change(published=[*WORLD.published, Published("event-9", None, None)]),
        "lost 1",
    ),
    "a letter of another consumer": (
        change(items=without(PAYMENT), dead_letters=[letter(ASSIGNED, DISPATCH, "DispatchDlq")]),
        "lost 1",
    ),
    "a letter in front of all consumers": (
        change(items=without(PAYMENT), dead_letters=[letter(ASSIGNED, None, "ProducerDlq")]),
        "lost 1",
    ),
    "an effect took place twice": (
        change(items=[*without(PAYMENT), item(PAYMENT, ASSIGNED, extra=2)]),
        "doubled 2",
    ),
    "the log's rule failed and consumers got nothing": (
        change(items=[], dead_letters=[letter(each, None, LOG_RULE_DLQ) for each in (CREATED, ACCEPTED, ASSIGNED)]),
        "lost 5",
    ),
    "an outbox item was never published": (
        change(published=events(CREATED, ACCEPTED), items=[*without(PAYMENT), item(HISTORY, CREATED, ACCEPTED)]),
        "lost 1",
    ),
    "an outbox item of a consumer expired unpublished": (
        change(
            published=events(CREATED, ACCEPTED), items=[item(HISTORY, CREATED, ACCEPTED), WORLD.items[1]], outbox={}
        ),
        "lost 1",
    ),
    "an outbox item of the API expired unpublished": (
        change(bookings=[BookedRide(RIDE, 3, NOW - 2 * HOUR)], outbox={}),
        "lost 1",
    ),
    "a fact has two ids": (
        change(published=[*WORLD.published, TWICE], items=[*without(PAYMENT), TOOK_BOTH]),
        "lost 1; doubled 1; 1 facts under two ids",
    ),
    "an effect of an event that was never published": (
        change(published=events(CREATED, ACCEPTED), outbox={}, items=[*without(DISPATCH), item(DISPATCH, ACCEPTED)]),
        "2 effects of events that were never published",
    ),
    "a consumer's clock is ahead": (
        change(published=EXPIRES, items=without(PAYMENT), deliveries=[expired(ASSIGNED, NOW - 2 * HOUR)]),
        "lost 1 (1 dropped before their expiry time)",
    ),
    "an event without an expiry time is dropped": (
        change(items=without(PAYMENT), deliveries=[expired(ASSIGNED, NOW)]),
        "lost 1 (1 dropped before their expiry time)",
    ),
    "more is missing than messages are hidden": (
        change(items=[*without(HISTORY), item(HISTORY, CREATED)], unread={"RideHistoryDlq": 1}),
        "lost 2",
    ),
    "the log is empty and consumers are not": (
        change(published=[]),
        "cannot tell: the log of events holds nothing, though consumers have 5 effects",
    ),
    "the log is empty and the archive is not": (
        change(**NOTHING, archived=7),
        "cannot tell: the log of events holds nothing, though consumers have 0 effects and the archive holds 7 events",
    ),
    "messages are hidden by another reader": (
        change(items=without(PAYMENT), unread={"PaymentDlq": 1}),
        "cannot tell: 1 events of payment may be among messages that could not be read: 1 in PaymentDlq",
    ),
    "partners get nothing": (
        change(broken_routes=["PartnersRule is DISABLED with 1 targets: partners get nothing"]),
        "cannot tell: PartnersRule is DISABLED",
    ),
}


@pytest.mark.parametrize(("plant", "verdict"), LOSSES.values(), ids=LOSSES)
def test_a_planted_loss_is_named(plant: Change, verdict: str) -> None:
    """Nothing that must never happen leaves the ledger balanced."""
    ledger = balance(plant(WORLD))
    assert not ledger.balanced
    assert ledger.verdict.startswith(verdict)


QUIET: Final[dict[str, tuple[Change, str]]] = {
    "nothing is wrong": (change(), "balanced"),
    "copies": (change(published=[*WORLD.published, published(CREATED, event_id="copy")]), "balanced"),
    "a dead-lettered event": (
        change(items=without(PAYMENT), dead_letters=[letter(ASSIGNED, PAYMENT, "PaymentDlq")]),
        "balanced, 1 messages waiting for redrive",
    ),
    "a broken event, dead-lettered": (
        change(
            published=[*WORLD.published, Published("event-9", None, None)],
            dead_letters=[DeadLettered("RideHistoryDlq", "CONTRACT", HISTORY, "event-9", None)],
        ),
        "balanced, 1 messages waiting for redrive",
    ),
    "an event that was dropped after its expiry": (
        change(published=EXPIRES, items=without(PAYMENT), deliveries=[expired(ASSIGNED, NOW)]),
        "balanced",
    ),
    "an event that is too young": (
        change(published=[*events(CREATED, ACCEPTED), published(ASSIGNED, time=NOW)], items=without(PAYMENT)),
        "balanced, 1 events in flight",
    ),
    "an outbox item that is too young": (
        change(outbox={**WORLD.outbox, "new": NOW}),
        "balanced, 1 events in flight",
    ),
    "a type that a consumer does not subscribe to": (
        change(published=[*WORLD.published, published(Named("order_02", "CarRideStarted", 3))], consumers=AUDITED[1:]),
        "balanced",
    ),
    "effects and bookings that are older than the log": (
        change(published=events(ACCEPTED, ASSIGNED), since=NOW - HOUR, bookings=[BookedRide(RIDE, 9, NOW - 3 * HOUR)]),
        "balanced",
    ),
}


@pytest.mark.parametrize(("plant", "verdict"), QUIET.values(), ids=QUIET)
def test_what_is_no_loss_is_not_called_one(plant: Change, verdict: str) -> None:
    """Events in flight, dead-lettered or rightly dropped are counted as such."""
    ledger = balance(plant(WORLD))
    assert ledger.balanced
    assert ledger.verdict == verdict


def test_counts_tell_copies_replays_and_duplicates_apart() -> None:
    """A copy is published again, a replay is not; a delivery of it is a skipped duplicate."""
    copies = [*WORLD.published, published(CREATED, event_id="copy"), published(CREATED, replayed=True)]
    outcomes = (observation.NEW, observation.DUPLICATE, observation.BUSY, observation.FAILED)
    ledger = balance(
        WORLD._replace(published=copies, deliveries=[Delivered(HISTORY, each, fact(CREATED)) for each in outcomes])
    )
    account = ledger.consumers[HISTORY]
    assert (ledger.published, ledger.replayed, ledger.distinct) == (4, 1, 3)
    assert (account.deliveries, account.duplicates_absorbed, account.failed, account.effects) == (4, 2, 1, 3)


def test_what_expired_and_took_effect_all_the_same_is_an_effect() -> None:
    """A copy took effect before the other one was dropped."""
    ledger = balance(WORLD._replace(published=EXPIRES, deliveries=[expired(ASSIGNED, NOW)] * 2))
    assert ledger.consumers[PAYMENT].expired == 0


def test_people_and_machines_read_the_same() -> None:
    """The documented keys are in the JSON; the table names what does not add up."""
    lost = WORLD._replace(items=[item(HISTORY, CREATED, ACCEPTED, extra=1), *WORLD.items[1:]])
    ledger: Ledger = balance(lost._replace(dead_letters=[letter(CREATED, None, "ProducerDlq", "EntryTooLarge")]))
    document = json.loads(json.dumps(ledger.to_json()))
    assert (document["lost"], document["doubled"], document["effects"], document["balanced"]) == (1, 1, 5, False)
    assert document["dead_lettered"] == {"ProducerDlq": {"EntryTooLarge": 1}}
    assert {"published", "distinct", "deliveries", "duplicates_absorbed", "verdict", "span"} <= document.keys()
    account: Account = ledger.consumers[HISTORY]
    for name in (*account.lost_events, *account.doubled_rides, "EntryTooLarge 1"):
        assert name in ledger.to_text()


def test_a_consumer_without_a_table_is_audited_too() -> None:
    """Its items are what it logged, one for each fact."""
    points = AuditedConsumer("points", "Points")
    done = [RideItem("points", name, (Effect(name),), 1) for name in map(fact, (CREATED, ACCEPTED))]
    ledger = balance(WORLD._replace(consumers=[points], items=done))
    assert ledger.consumers["points"].lost_events == (fact(ASSIGNED),)
