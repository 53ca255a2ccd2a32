"""The desk's ledger: what it shows adds up."""

import json
import re
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final
from urllib.parse import parse_qsl

from hypothesis import given
from hypothesis import strategies as st
from moto import mock_aws

from carride.events import DETAIL_TYPE, SOURCE, idempotency_id
from carride.facts import NoCarAvailable
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
from ops.desk.facts import KEPT
from ops.desk.index import Filter, Index
from ops.desk.ledger import blocks_of, paths_of
from tests.carride.rides import Life
from tests.ops.desk_world import (
    BEGIN_MS,
    deliver,
    desk_of,
    event_of,
    get,
    line,
    publish,
    publish_broken,
)
from tests.ops.world import NOW, empty_stack

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
    counts = Counter(fates)
    expected = {name: counts[name] for name in FATES if counts[name]}
    expected["effects"] = counts["effects"] + 2 * counts["doubled"]
    expected |= {"doubled": counts["doubled"], "lost": counts["lost"], "distinct": len(fates)}
    assert shown == expected
    assert "others" not in shown


LOGGED: Final = {
    "effects": [observation.NEW],
    "doubled": [observation.NEW],
    "expired": [observation.EXPIRED],
    "replayed": [observation.NEW, observation.EXPIRED],
    "recognised": [observation.DUPLICATE],
    "failing": [observation.FAILED],
}
"""What the deliveries of an event have logged, by its fate."""
STANDS_FOR: Final = {"replayed": "effects", "recognised": "effects", "failing": "in_flight"}


@given(st.lists(st.sampled_from([*FATES, *STANDS_FOR]), max_size=8))
def test_each_number_of_the_ledger_leads_to_so_many_events(fates: list[str]) -> None:
    """Also if an effect was followed by a drop as expired, or an event in flight has failed."""
    evidence = world([STANDS_FOR.get(fate, fate) for fate in fates])
    index = Index(CONSUMERS)
    for number, fate in enumerate(fates):
        event = event_of(Life(f"order_{number}").created)
        publish(index, event, BEGIN_MS + number)
        for outcome in LOGGED.get(fate, ()):
            deliver(index, event, HISTORY.name, BEGIN_MS + 1_000, outcome)
        if fate == "replayed":
            drop = Delivered(HISTORY.name, observation.EXPIRED, event.idempotencyid, NOW)
            evidence = evidence._replace(deliveries=[*evidence.deliveries, drop])
    report = judge(evidence)
    account = report.ledger.consumers[HISTORY.name]
    index.add_lost({HISTORY.name: account.lost_events})
    index.add_letters(evidence.dead_letters)
    first, _ = blocks_of(report)
    paths = paths_of(CONSUMERS)
    for row, _, numbers in first.rows:
        where, _, query = paths[HISTORY.name, row].partition("?")
        if where != "/facts":
            continue  # letters and rides: of their own tests
        listed = index.page(Filter(**dict(parse_qsl(query))))
        surplus = account.doubled if row == "effects" else 0
        assert listed.total == numbers[HISTORY.name] - surplus, row


@mock_aws
def test_doubled_leads_to_the_rides_with_too_many_effects() -> None:
    """The audit knows them by ride; the list says how many are too many, and where."""
    desk = desk_of(empty_stack())
    desk.feed.report = judge(world(["doubled", "effects", "doubled"]))
    path = paths_of(CONSUMERS)[HISTORY.name, "doubled"]
    text = get(desk, path).text
    assert {"order_0", "order_2"} == set(re.findall(r'href="/ride/(\w+)"', text))
    assert "2 effects beyond one" in text
    assert text.count("1 effect too many at ride-history") == 4, "twice a row: for a phone, too"
    other = paths_of(CONSUMERS)["payment", "doubled"]
    assert "/ride/" not in get(desk, other).text


def test_letters_that_break_the_contract_stand_beside_the_sum() -> None:
    """They are in the consumer's queue, and no events to act on."""
    evidence = world(["effects"])
    letters = [DeadLettered("RideHistoryDlq", CONTRACT, HISTORY.name, "e", None)] * 2
    first, _ = blocks_of(judge(evidence._replace(dead_letters=letters)))
    shown = {name: numbers[HISTORY.name] for name, _, numbers in first.rows}
    assert shown == {"effects": 1, "doubled": 0, "lost": 0, "distinct": 1, "breaking": 2}


@given(
    st.lists(st.lists(st.sampled_from(OUTCOMES), max_size=5), max_size=6),
    st.lists(st.tuples(st.sampled_from(REJECTED), st.sampled_from(BROKEN_EVENTS)), max_size=5),
)
def test_ledger_flow_and_lists_count_deliveries_alike(
    histories: list[list[str]], rejected: list[tuple[str, str | None]]
) -> None:
    """Each delivery is in one row, and a number is the same in each view and in its list.

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
    for each in DELIVERIES:
        listed = index.page(Filter(at=HISTORY.name, outcome=each.group))
        in_flow = each.of(index.totals[HISTORY.name])
        assert shown.get(each.row, 0) == in_flow == listed.deliveries
        nameless = [told for told, event_id in rejected if event_id is None]
        assert listed.unnamed == sum(told in each.outcomes for told in nameless)
    has_effect = observation.COMMITTED | {observation.DUPLICATE}
    effects = sum(not has_effect.isdisjoint(outcomes) for outcomes in histories)
    assert index.page(Filter(at=HISTORY.name, outcome="effect")).total == effects


def test_events_to_act_on_are_those_that_keep_the_contract() -> None:
    """The ledger counts no others, and its list leaves them out as well."""
    index = Index(CONSUMERS)
    publish(index, event_of(Life("order_1").created), BEGIN_MS)
    broken = {"id": "b", "source": SOURCE, "detail-type": DETAIL_TYPE}
    detail = {"type": "CarRideCreated"}
    index.add_published(line(json.dumps({**broken, "detail": detail}), BEGIN_MS + 1))
    assert index.page(Filter(at=HISTORY.name)).total == 2
    assert index.page(Filter(at=HISTORY.name, contract=KEPT)).total == 1


@mock_aws
def test_the_ledger_has_the_statuses_of_the_list_of_rides() -> None:
    """The words and numbers of its table are those of the tabs, and each row leads to its tab."""
    desk = desk_of(empty_stack())
    for number, life in enumerate((Life("order_1"), Life("order_2"), Life("order_3"))):
        publish(desk.feed.index, event_of(life.created), BEGIN_MS + number)
        publish(desk.feed.index, event_of(life.accepted), BEGIN_MS + 10 + number)
    refused = event_of(NoCarAvailable.of(Life("order_1").accepted))
    publish(desk.feed.index, refused, BEGIN_MS + 30)
    report = judge(Evidence(consumers=()))
    desk.feed.report = report._replace(ledger=replace(report.ledger, published=1))
    tab = r'/rides\?status=(\w+)"[^>]*> *(?:\w+ <span class="count">)?(\d+)<'
    tabs = re.findall(tab, get(desk, "/rides").text)
    assert tabs == [("open", "2"), ("unserved", "1")]
    assert re.findall(tab, get(desk, "/ledger").text) == tabs


def test_an_effect_without_a_logged_commit_stands_beside_the_deliveries() -> None:
    """Its attempt crashed after the commit, so the numbers of deliveries do not explain it."""
    _, block = blocks_of(judge(world(["effects"])))
    assert {name: numbers[HISTORY.name] for name, _, numbers in block.rows}["unlogged"] == 1
    found = world(["effects"])
    named = found.published[0]
    logged = Delivered(HISTORY.name, observation.NEW, named.fact, BEFORE)
    _, block = blocks_of(judge(found._replace(deliveries=[logged])))
    assert "unlogged" not in {name for name, _, _ in block.rows}
