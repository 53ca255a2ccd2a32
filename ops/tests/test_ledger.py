"""The ledger of a small world: each test plants one loss, and the ledger names it."""

import json
from datetime import datetime, timedelta
from typing import Any, Final

import pytest

from carride.events import idempotency_id
from carride_idempotency import observation
from ops.audit import judge
from ops.audit.evidence import (
    CONSUMERS,
    LOG_RULE_DLQ,
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
from ops.audit.reading import AUDITED_RULES
from ops.tests.world import NOW

HOUR: Final = timedelta(hours=1)
BEFORE: Final = NOW - 2 * HOUR
RIDE: Final = "order_01"
CREATED, ACCEPTED, ASSIGNED = ALL = (
    Named(RIDE, "CarRideCreated", 1),
    Named(RIDE, "CarRideAccepted", 2),
    Named(RIDE, "CarAssigned", 2),
)
HISTORY = "ride-history"
DISPATCH = "dispatch"
PAYMENT = "payment"
AUDITED: Final = CONSUMERS[:3]


def fact(named: Named) -> str:
    """Return the idempotency id of an event."""
    return idempotency_id(*named)


def published(named: Named, **changes: Any) -> Published:
    """Return an event of two hours ago."""
    return Published(
        f"event of {named.type}", named.type, fact(named), named, time=BEFORE
    )._replace(**changes)


def item(consumer: str, *names: Named, emitted: tuple[str, ...] = (), extra: int = 0) -> RideItem:
    """Return a consumer's item: one effect an event."""
    effects = tuple(Effect(fact(named), named, BEFORE, emitted) for named in names)
    return RideItem(consumer, RIDE, effects, len(effects) + extra)


def expired(time: datetime) -> Delivered:
    """Return a delivery that payment dropped."""
    return Delivered(PAYMENT, observation.EXPIRED, fact(ASSIGNED), time)


def failed(time: datetime) -> Delivered:
    """Return a delivery in which payment failed."""
    return Delivered(PAYMENT, observation.FAILED, fact(ASSIGNED), time)


def dead(
    named: Named, consumer: str | None, queue: str = "PaymentDlq", reason: str = "QUARANTINED"
) -> DeadLettered:
    """Return the dead-lettered message of an event."""
    return DeadLettered(queue, reason, consumer, published(named).event_id, fact(named))


EVENTS: Final = [published(named) for named in ALL]
AT_HISTORY, AT_DISPATCH, AT_PAYMENT = ITEMS = [
    item(HISTORY, *ALL),
    item(DISPATCH, ACCEPTED, emitted=("CarAssigned",)),
    item(PAYMENT, ASSIGNED),
]
WORLD: Final = Evidence(
    consumers=AUDITED,
    published=EVENTS,
    items=ITEMS,
    outbox={fact(named): BEFORE for named in ALL},
    bookings=[BookedRide(RIDE, 2, BEFORE)],
    at=NOW,
    grace=HOUR,
    since=NOW - timedelta(days=14),
)
"""One ride that was booked and accepted, has a car, and took effect everywhere."""

type Changes = dict[str, Any]

UNPAID: Final[Changes] = {"items": ITEMS[:2]}
"""Nothing took effect at payment."""
UNASSIGNED: Final[Changes] = {"published": EVENTS[:2]}
UNSEEN: Final[Changes] = UNASSIGNED | {"items": [AT_DISPATCH, item(HISTORY, CREATED, ACCEPTED)]}
EXPIRES: Final[Changes] = {"published": [*EVENTS[:2], published(ASSIGNED, expires=NOW - HOUR)]}
BROKEN: Final[Changes] = {"published": [*EVENTS, Published("event-9", None, None)]}
OLD_ID: Final = "5f0c0000-0000-5000-8000-000000000000"
TWO_IDS: Final[Changes] = {
    "published": [*EVENTS, published(ASSIGNED, event_id="other", fact=OLD_ID)],
    "items": [
        *ITEMS[:2],
        RideItem(PAYMENT, RIDE, (*AT_PAYMENT.effects, Effect(OLD_ID, ASSIGNED, BEFORE)), 2),
    ],
}
ADOPTED: Final[Changes] = TWO_IDS | {
    "published": [
        *EVENTS,
        published(ASSIGNED, event_id="other", fact=OLD_ID)._replace(adopted=True),
    ]
}
"""Another producer's fact of the same type and version: the ride history lacks it, and payment has
both."""
NEVER_PUBLISHED: Final = UNASSIGNED | {
    "items": [AT_HISTORY, item(DISPATCH, ACCEPTED), AT_PAYMENT],
    "outbox": {},
}
LOGGED: Final[Changes] = {"deliveries": [Delivered(PAYMENT, observation.NEW, fact(ASSIGNED))]}
UNLOGGED: Final[Changes] = {
    "items": [],
    "dead_letters": [dead(each, None, LOG_RULE_DLQ) for each in ALL],
}
NOTHING: Final[Changes] = {
    "published": [],
    "items": [],
    "outbox": {},
    "bookings": [],
    "archived": 7,
}
EXPIRED_COPY: Final[Changes] = {
    "published": [
        *EVENTS[:2],
        published(ASSIGNED, expires=BEFORE),
        published(ASSIGNED, event_id="copy", expires=NOW + HOUR),
    ],
    "deliveries": [expired(BEFORE + HOUR)],
}
"""One copy had expired and was dropped; the other copy has not expired, and is lost."""
OTHER_PAYLOAD: Final[Changes] = {
    "published": [
        *(each._replace(fingerprint="2:one") for each in EVENTS),
        published(ASSIGNED, event_id="other", fingerprint="2:other"),
    ],
    "fingerprints": {f"{PAYMENT}#{fact(ASSIGNED)}": "2:one"},
    "consumers": [each for each in AUDITED if each.name == PAYMENT],
}
"""A producer has used an id again, and the dead letter that told of it is gone."""
OTHERS: Final = Effect(fact(ASSIGNED), ASSIGNED._replace(order_id="order_02"), BEFORE)
MOVED: Final[Changes] = {"items": [*ITEMS[:2], RideItem(PAYMENT, "order_02", (OTHERS,), 1)]}
RENAMED: Final[Changes] = {
    "items": [
        *ITEMS[:2],
        RideItem(PAYMENT, RIDE, (OTHERS._replace(named=CREATED),), 1),
    ]
}
TWO_FACTS: Final[Changes] = {
    "published": [*EVENTS, published(Named(RIDE, "CarRideCancelled", 2))],
    "consumers": [each for each in AUDITED if each.name == DISPATCH],
    "items": [AT_DISPATCH, item(DISPATCH, Named(RIDE, "CarRideCancelled", 2))],
}
OF_ANOTHER_PRODUCER: Final[Changes] = TWO_FACTS | {
    "published": [each._replace(adopted=True) for each in TWO_FACTS["published"]]
}
EARLY: Final = "lost 1 (1 dropped before their expiry time)"
GONE: Final = "cannot tell: the log of events holds nothing, though consumers have"
HIDDEN: Final = (
    "cannot tell: 1 event of payment may be among messages that could not be read: 1 in PaymentDlq"
)
DISABLED: Final = "PartnersRule is DISABLED with 1 targets: partners get nothing"

LOSSES: Final[dict[str, tuple[str, Changes]]] = {
    "an effect is missing": ("lost 1", UNPAID),
    "an effect is in another ride's item": ("lost 1", MOVED),
    "an effect has another type than its event": ("lost 1", RENAMED),
    "an effect is logged and missing": ("lost 1", UNPAID | LOGGED),
    "an event breaks the contract": ("lost 1", BROKEN),
    "a message of another consumer": (
        "lost 1",
        UNPAID | {"dead_letters": [dead(ASSIGNED, DISPATCH)]},
    ),
    "a message of no consumer": ("lost 1", UNPAID | {"dead_letters": [dead(ASSIGNED, None)]}),
    "a dead letter was redriven two hours ago": (
        "lost 1",
        UNPAID | {"redriven": {f"{PAYMENT}#{fact(ASSIGNED)}": BEFORE}},
    ),
    "a dead letter was redriven to another consumer": (
        "lost 1",
        UNPAID | {"redriven": {f"{DISPATCH}#{fact(ASSIGNED)}": NOW}},
    ),
    "an attempt failed two hours ago, and none followed": (
        "lost 1",
        UNPAID | {"deliveries": [failed(BEFORE)]},
    ),
    "an effect took place twice": (
        "doubled 2",
        {"items": [*ITEMS[:2], item(PAYMENT, ASSIGNED, extra=2)]},
    ),
    "the log's rule failed and consumers got nothing": ("lost 5", UNLOGGED),
    "an outbox item was never published": ("lost 1", UNSEEN),
    "an outbox item of a consumer expired unpublished": ("lost 1", UNSEEN | {"outbox": {}}),
    "an outbox item of the API expired": (
        "lost 1",
        {"bookings": [BookedRide(RIDE, 3, BEFORE)], "outbox": {}},
    ),
    "a fact has two ids": ("lost 1; doubled 1; 1 fact under two ids", TWO_IDS),
    "another producer's facts have ids of their own": ("lost 1", ADOPTED),
    "an effect without an event": (
        "2 effects of events that were never published",
        NEVER_PUBLISHED,
    ),
    "a consumer's clock is ahead": (EARLY, EXPIRES | UNPAID | {"deliveries": [expired(BEFORE)]}),
    "an event without an expiry time is dropped": (EARLY, UNPAID | {"deliveries": [expired(NOW)]}),
    "one copy has expired, and another one is lost": (EARLY, EXPIRED_COPY | UNPAID),
    "another payload came under the same id": ("lost 1", OTHER_PAYLOAD),
    "a version of a ride has two facts": ("1 version with two facts", TWO_FACTS),
    "more is missing than messages are hidden": (
        "lost 2",
        {
            "items": [AT_DISPATCH, AT_PAYMENT, item(HISTORY, CREATED)],
            "unread": {"RideHistoryDlq": 1},
        },
    ),
    "the log is empty and consumers are not": (f"{GONE} 5 effects", {"published": []}),
    "the log is empty and the archive is not": (
        f"{GONE} 0 effects and the archive holds 7 events",
        NOTHING,
    ),
    "messages are hidden by another reader": (HIDDEN, UNPAID | {"unread": {"PaymentDlq": 1}}),
    "partners get nothing": (
        f"cannot tell: {DISABLED}",
        {"broken_routes": {"PartnersRule": DISABLED}},
    ),
}


ONE_WAITS: Final = "balanced, 1 dead letter"
ONE_STAYS: Final = f"{ONE_WAITS} (1 breaks the contract)"
IN_FLIGHT: Final = "balanced, 1 event in flight"
KEPT: Final = DeadLettered("RideHistoryDlq", "CONTRACT", HISTORY, "event-9", None)
YOUNG: Final[Changes] = {"published": [*EVENTS[:2], published(ASSIGNED, time=NOW)]}
OTHER_TYPE: Final[Changes] = {
    "published": [*EVENTS, published(Named("order_02", "CarRideStarted", 3))]
}
OLD: Final[Changes] = {
    "published": EVENTS[1:],
    "since": NOW - HOUR,
    "bookings": [BookedRide(RIDE, 9, BEFORE)],
}
QUIET: Final[dict[str, tuple[str, Changes]]] = {
    "nothing is wrong": ("balanced", {}),
    "copies": ("balanced", {"published": [*EVENTS, published(CREATED, event_id="copy")]}),
    "a dead-lettered event": (ONE_WAITS, UNPAID | {"dead_letters": [dead(ASSIGNED, PAYMENT)]}),
    "a broken event, dead-lettered": (ONE_STAYS, BROKEN | {"dead_letters": [KEPT]}),
    "an event that was dropped after its expiry": (
        "balanced",
        EXPIRES | UNPAID | {"deliveries": [expired(NOW)]},
    ),
    "an event that took effect, then was dropped": (
        "balanced",
        EXPIRES | {"deliveries": [expired(BEFORE)]},
    ),
    "an event that is too young": (IN_FLIGHT, UNPAID | YOUNG),
    "a dead letter that was redriven a moment ago": (
        IN_FLIGHT,
        UNPAID | {"redriven": {f"{PAYMENT}#{fact(ASSIGNED)}": NOW}},
    ),
    "an event whose latest attempt failed a moment ago": (
        IN_FLIGHT,
        UNPAID | {"deliveries": [failed(NOW), failed(BEFORE)]},
    ),
    "an outbox item that is too young": (IN_FLIGHT, {"outbox": {**WORLD.outbox, "new": NOW}}),
    "a type that a consumer does not subscribe to": (
        "balanced",
        OTHER_TYPE | {"consumers": AUDITED[1:]},
    ),
    "effects and bookings that are older than the log": ("balanced", OLD),
    "each copy was dropped after its expiry": (
        "balanced",
        EXPIRED_COPY | UNPAID | {"deliveries": [expired(BEFORE + HOUR), expired(NOW + HOUR)]},
    ),
    "broken events, and one that a redrive can help": (
        "balanced, 3 dead letters (2 break the contract)",
        BROKEN | UNPAID | {"dead_letters": [KEPT, KEPT, dead(ASSIGNED, PAYMENT)]},
    ),
    "another payload, dead-lettered": (
        ONE_WAITS,
        OTHER_PAYLOAD | {"dead_letters": [dead(ASSIGNED, PAYMENT)._replace(event_id="other")]},
    ),
    "a fingerprint of an older form": (
        "balanced",
        OTHER_PAYLOAD | {"fingerprints": {f"{PAYMENT}#{fact(ASSIGNED)}": "1:one"}},
    ),
    "a record that an operator has deleted": (
        "balanced",
        UNPAID | {"forgotten": [f"{PAYMENT}#{fact(ASSIGNED)}"]},
    ),
    "a replayed broken event whose letter is there": (
        ONE_STAYS,
        {
            "published": [*BROKEN["published"], Published("event-9", None, None, replayed=True)],
            "dead_letters": [KEPT],
            "deliveries": [Delivered(HISTORY, observation.DUPLICATE, None, reason="CONTRACT")],
        },
    ),
    "another producer gives every event the same version": ("balanced", OF_ANOTHER_PRODUCER),
}


@pytest.mark.parametrize(("verdict", "planted"), (LOSSES | QUIET).values(), ids=LOSSES | QUIET)
def test_a_planted_loss_is_named_and_nothing_else_is(verdict: str, planted: Changes) -> None:
    """Events in flight, dead-lettered or rightly dropped are not lost.

    People and machines read the same.
    """
    ledger = balance(WORLD._replace(**planted))
    assert ledger.balanced is verdict.startswith("balanced")
    assert (ledger.verdict if ledger.balanced else ledger.verdict[: len(verdict)]) == verdict
    document = json.loads(json.dumps(ledger.to_json()))
    assert len(document["lost"]) == ledger.lost
    rides = {ride for each in ledger.consumers.values() for ride in each.doubled_rides}
    assert {each["ride"] for each in document["doubled"]} == rides
    text = ledger.to_text()
    assert all(name in text for each in ledger.named() for name in (each.what, each.id))
    assert text.count("./carride ") == len(ledger.named())


def test_a_committed_event_that_was_never_published_is_lost_by_the_outbox() -> None:
    """It names no consumer, because none could get it."""
    [lost] = balance(WORLD._replace(**UNSEEN)).named()
    assert lost.says.startswith("outbox: lost ")


def test_copies_replays_and_duplicates_are_told_apart() -> None:
    """A copy is a published event, a replay is not; delivering it again is a skipped duplicate."""
    copies = [*EVENTS, published(CREATED, event_id="copy"), published(CREATED, replayed=True)]
    outcomes = (observation.NEW, observation.DUPLICATE, observation.BUSY, observation.FAILED)
    deliveries = [Delivered(HISTORY, each, fact(CREATED)) for each in outcomes]
    ledger = balance(WORLD._replace(published=copies, deliveries=deliveries))
    account = ledger.consumers[HISTORY]
    assert (ledger.published, ledger.replayed, ledger.distinct) == (4, 1, 3)
    assert (account.deliveries, account.duplicates_absorbed, account.failed, account.effects) == (
        4,
        2,
        1,
        3,
    )


KEY: Final = f"{PAYMENT}#{fact(ASSIGNED)}"


@pytest.mark.parametrize(
    ("changes", "found"),
    {
        "its letter was deleted": ({}, (KEY,)),
        "its letter is in the queue": ({"dead_letters": [dead(ASSIGNED, PAYMENT)]}, ()),
        "another consumer's letter": ({"dead_letters": [dead(ASSIGNED, DISPATCH)]}, (KEY,)),
        "it was redriven long ago": ({"redriven": {KEY: BEFORE}}, (KEY,)),
        "it was redriven just now": ({"redriven": {KEY: NOW}}, ()),
        "a reader hides a letter": ({"unread": {"PaymentDlq": 1}}, ()),
    }.values(),
)
def test_a_quarantined_key_whose_letter_is_gone_is_named(
    changes: Changes, found: tuple[str, ...]
) -> None:
    """A letter that is under way or hidden may come back."""
    ledger = balance(WORLD._replace(given_up=[KEY], **changes))
    assert ledger.keys_without_letter == found
    assert ledger.to_json()["keys_without_letter"] == found
    assert all(key in ledger.to_text() for key in found)


USUAL: Final = WORLD._replace(
    published=[
        *EVENTS,
        published(Named("order_02", "CarRideCreated", 1), time=NOW),
        published(CREATED, replayed=True),
    ],
    deliveries=[
        Delivered(consumer, outcome, fact(each), BEFORE)
        for consumer in (HISTORY, DISPATCH, PAYMENT)
        for each in ALL
        for outcome in (*observation.COMMITTED, observation.DUPLICATE, observation.FAILED)
    ],
    dead_letters=[
        DeadLettered("ProducerDlq", "EntryTooLarge", None, "large", None),
        DeadLettered("RideHistoryDlq", "CONTRACT", HISTORY, "broken", None),
        *(dead(ASSIGNED, each, f"{each}Dlq") for each in (HISTORY, DISPATCH, PAYMENT)),
    ],
    cars={"car_01": RIDE} | {f"car_{number}": None for number in range(2, 64)},
    payments=[],
    routes=dict.fromkeys(AUDITED_RULES, "ENABLED, 1 targets") | {"CarRideArchive": "kept"},
)
"""A stack in which everything has happened that may happen to one that is balanced."""


def test_a_balanced_stack_is_told_in_25_lines() -> None:
    """However much has happened: `--json` has what is zero, or as it should be."""
    report = judge(USUAL)
    lines = report.to_text().splitlines()
    assert (report.status, report.ledger.wrong, report.saga.sound) == (0, [], True)
    assert lines[0] == report.verdict
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    "planted",
    [
        UNPAID | {"dead_letters": []},
        {"items": [*ITEMS[:2], item(PAYMENT, ASSIGNED, extra=1)]},
        {"given_up": [f"{PAYMENT}#{number}" for number in range(3)]},
        {"cars": {"car_01": RIDE, "car_02": RIDE}},
        {"unlisted_cars": ["car_02"]},
    ],
)
def test_what_does_not_add_up_follows_the_verdict_and_adds_its_lines_only(planted: Changes) -> None:
    """Each names an id."""
    sound = judge(USUAL)
    report = judge(USUAL._replace(**planted))
    named = [*report.saga.named(), *report.ledger.lines_of_named()]
    lines = report.to_text().splitlines()
    assert lines[1 : lines.index("")] == named != []
    assert len(lines) <= len(sound.to_text().splitlines()) + len(named)
    ids = [*report.saga.problems, *report.saga.unlisted_cars]
    ids += [each.id for each in report.ledger.named()]
    assert all(any(each in line for line in named) for each in ids)


def test_each_kind_of_what_does_not_add_up_is_listed_whole_as_json() -> None:
    """The text names twenty of each kind, and says how many more there are."""
    rides = [f"order_{number:03}" for number in range(45)]
    longest = 9 * HOUR
    items = [
        RideItem(DISPATCH, ride, (), 2, "assigned", open_since=NOW - longest) for ride in rides
    ]
    report = judge(
        WORLD._replace(
            published=[published(Named(ride, "CarAssigned", 2)) for ride in rides],
            items=items,
            given_up=[f"{PAYMENT}#{ride}" for ride in rides],
        )
    )
    document = json.loads(json.dumps(report.to_json()))
    kinds = ("lost", "doubled", "overdue", "keys_without_letter")
    assert all(len(document[kind]) >= len(rides) for kind in kinds)
    text = report.to_text()
    assert text.splitlines()[0] == report.verdict == document["verdict"]
    assert sum("doubled" in line and "order_" in line for line in text.splitlines()) == 20
    assert "… and 25 more" in text
