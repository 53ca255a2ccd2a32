"""The desk's ledger: what it shows adds up."""

import re
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st
from moto import mock_aws

from carride.events import idempotency_id
from carride_idempotency import observation
from carride_idempotency.dead_letters import CONTRACT
from ops.audit import judge
from ops.audit.evidence import (
    CONSUMERS,
    DeadLettered,
    Delivered,
    Effect,
    Evidence,
    Named,
    Published,
    RideItem,
)
from ops.desk.counts import DELIVERIES
from ops.desk.index import Index
from ops.desk.ledger import blocks_of
from ops.tests.desk_bench import judged
from ops.tests.desk_world import (
    BEGIN_MS,
    deliver,
    desk_of,
    event_of,
    get,
    publish,
    publish_broken,
)
from ops.tests.world import NOW, empty_stack
from tests.kit.rides import Life

FATES: Final = ("effects", "lettered", "expired", "in_flight", "lost", "doubled")
BEFORE: Final = NOW - timedelta(hours=2)
HISTORY: Final = CONSUMERS[0]
OUTCOMES: Final = sorted(observation.PROTECTED | {observation.UNPROTECTED})
REJECTED: Final = (observation.DEAD_LETTERED, observation.DUPLICATE)
BROKEN_EVENTS: Final = ("broken-1", "broken-2", None)
"""EventBridge's ids of events that break the contract; older lines do not name them."""


def world(fates: list[str]) -> Evidence:
    """Return a world with one event of each fate at the ride history."""
    found = Evidence(consumers=[HISTORY], at=NOW, grace=timedelta(hours=1))
    for number, fate in enumerate(fates):
        named = Named(f"order_{number}", "CarRideCreated", 1)
        fact = idempotency_id(*named)
        time = NOW if fate == "in_flight" else BEFORE
        event = Published(f"event_{number}", named.type, fact, named, time=time)
        if fate == "expired":
            event = event._replace(expires=BEFORE)
            drop = Delivered(HISTORY.name, observation.EXPIRED, fact, NOW)
            found = found._replace(deliveries=[*found.deliveries, drop])
        if fate == "lettered":
            letter = DeadLettered("q", "QUARANTINED", HISTORY.name, event.event_id, fact)
            found = found._replace(dead_letters=[*found.dead_letters, letter])
        if fate in {"effects", "doubled"}:
            effect = Effect(fact, named, BEFORE, ())
            total = 2 if fate == "doubled" else 1
            item = RideItem(HISTORY.name, named.order_id, (effect,), total)
            found = found._replace(items=[*found.items, item])
        found = found._replace(published=[*found.published, event])
    return found


@given(st.lists(st.sampled_from(FATES), max_size=8))
def test_the_rows_of_the_ledger_add_up(fates: list[str]) -> None:
    """Each event is in one row, and the last row is their sum; a second effect is taken off."""
    first, _ = blocks_of(judge(world(fates)))
    shown = {name: numbers[HISTORY.name] for name, _, numbers in first.rows}
    shown.pop("letters", None)
    counts = Counter(fates)
    expected = {name: counts[name] for name in FATES if counts[name]}
    expected["effects"] = counts["effects"] + 2 * counts["doubled"]
    expected |= {"distinct": len(fates)}
    assert shown == expected
    assert "others" not in shown


QUEUES: Final = ("RideHistoryDlq", "RideHistoryRuleDlq", "ProducerDlq", "PaymentDlq", "other")


@given(st.lists(st.tuples(st.sampled_from(QUEUES), st.sampled_from([CONTRACT, "Timeout"]))))
def test_the_row_of_letters_adds_up_to_the_number_of_the_sentence(
    letters: list[tuple[str, str]],
) -> None:
    """Whatever waits in whichever queue, also in one that no consumer of the audit reads."""
    found = [DeadLettered(queue, reason, None, "e", None) for queue, reason in letters]
    report = judge(world(["effects"])._replace(dead_letters=found))
    first, _ = blocks_of(report)
    rows = {name: numbers for name, _, numbers in first.rows}
    assert sum(rows.get("letters", {}).values()) == report.ledger.waiting == len(letters)
    assert set(rows.get("letters", {})) <= set(first.names)


@given(
    st.lists(st.lists(st.sampled_from(OUTCOMES), max_size=5), max_size=6),
    st.lists(st.tuples(st.sampled_from(REJECTED), st.sampled_from(BROKEN_EVENTS)), max_size=5),
)
def test_ledger_and_flow_count_deliveries_alike(
    histories: list[list[str]], rejected: list[tuple[str, str | None]]
) -> None:
    """Each delivery is in one row, and a number is the same in each view.

    ``rejected`` are deliveries of events that break the contract: some lines name no event.
    """
    index = Index(CONSUMERS)
    deliveries = []
    for number, outcomes in enumerate(histories):
        event = event_of(Life(f"order_{number}").created)
        publish(index, event, BEGIN_MS + number)
        for outcome in outcomes:
            deliver(index, event, HISTORY.name, BEGIN_MS + 1_000, outcome)
            deliveries.append(Delivered(HISTORY.name, outcome, event.idempotencyid))
    for event_id in filter(None, BROKEN_EVENTS):
        publish_broken(index, event_id, BEGIN_MS + 500)
    for outcome, named in rejected:
        broken = event_of(Life("broken").created)
        told: dict[str, Any] = {"key": None, "event_id": named}
        deliver(index, broken, HISTORY.name, BEGIN_MS + 1_000, outcome, **told)
        deliveries.append(Delivered(HISTORY.name, outcome, None))
    evidence = Evidence(consumers=[HISTORY], at=NOW, grace=timedelta(hours=1))
    _, block = blocks_of(judge(evidence._replace(deliveries=deliveries)))
    shown = {name: numbers[HISTORY.name] for name, _, numbers in block.rows}
    assert shown.pop("deliveries") == sum(shown.values()) == len(deliveries)
    total = sum(index.timeline.recent(HISTORY.name, BEGIN_MS / 1_000 + 2), Counter[str]())
    for each in DELIVERIES:
        assert shown.get(each.row, 0) == each.of(total)


def test_an_effect_without_a_logged_commit_stands_beside_the_deliveries() -> None:
    """Its attempt crashed after the commit, so the numbers of deliveries do not explain it."""
    _, block = blocks_of(judge(world(["effects"])))
    assert {name: numbers[HISTORY.name] for name, _, numbers in block.rows}["unlogged"] == 1
    found = world(["effects"])
    named = found.published[0]
    logged = Delivered(HISTORY.name, observation.NEW, named.fact, BEFORE)
    _, block = blocks_of(judge(found._replace(deliveries=[logged])))
    assert "unlogged" not in {name for name, _, _ in block.rows}


def test_each_line_of_the_ledger_leads_to_what_it_is_about() -> None:
    """To a ride also if no event of its version is known."""
    report = judge(world(["effects"]))
    ledger = replace(
        report.ledger,
        unpublished=("e1", "order_01 version 3"),
        two_ids={"order_02/CarAssigned": ()},
    )
    with mock_aws():
        desk = desk_of(empty_stack())
        desk.feed.report = report._replace(ledger=ledger)
        text = get(desk, "/ledger").text
    assert sorted(re.findall(r'href="/find\?q=([^"]*)"', text)) == ["e1", "order_01", "order_02"]


def test_rides_and_events_with_the_same_failure_are_folded() -> None:
    """The ledger names a few of each failure and counts the others, the most frequent first."""
    with mock_aws():
        desk = desk_of(empty_stack())
        for number in range(30):
            publish(desk.feed.index, event_of(Life(f"order_{number}").assigned), BEGIN_MS + number)
        judged(desk)
        text = get(desk, "/ledger").text
    assert text.count("broken</span> <small>and 29 more rides alike") == 1
    assert text.count(">ride-history: lost ") == 5
    consumers = set(re.findall(r">([a-z-]+): lost ", text))
    assert text.count("<small>and 25 more</small>") == len(consumers)
