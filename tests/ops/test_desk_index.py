"""Searches of the desk's index, and lists of many failures."""

import json
import random
from itertools import product

import pytest
from moto import mock_aws

from carride.events import DETAIL_TYPE, SOURCE
from ops.audit.evidence import CONSUMERS, DeadLettered
from ops.desk.index import CRASHED, GROUPS, PAGE, WAITING, Filter, Index
from ops.desk.pictures import LOOKS
from tests.carride.rides import Life
from tests.ops.desk_bench import judged
from tests.ops.desk_world import BEGIN_MS, deliver, desk_of, event_of, get, line, publish
from tests.ops.world import empty_stack


@pytest.mark.parametrize("seed", range(5))
def test_a_search_finds_what_a_look_at_every_fact_finds(seed: int) -> None:
    """Whatever is searched for, also after the oldest facts were forgotten."""
    chance = random.Random(seed)  # noqa: S311 - repeatable
    index = Index(CONSUMERS, most=60)
    for number in range(100):
        life = Life(f"order_{number % 40}")
        event = event_of(chance.choice([life.created, life.accepted, life.completed]))
        if chance.random() < 0.8:
            publish(index, event, BEGIN_MS + number)
        for _ in range(chance.randrange(3)):
            outcome = chance.choice([*LOOKS])
            if outcome not in {WAITING, CRASHED}:
                consumer = chance.choice(CONSUMERS).name
                attempt = chance.randrange(1, 4)
                deliver(index, event, consumer, BEGIN_MS + number, outcome, attempt=attempt)
        broken = {"id": f"broken_{number}", "source": SOURCE, "detail-type": DETAIL_TYPE}
        index.add_published(line(json.dumps({**broken, "detail": {}}), BEGIN_MS + number))
    some = chance.sample([*index.facts.values()], 5)
    index.add_letters(DeadLettered("q", "r", "payment", None, fact.id) for fact in some)
    rides = ["", "order_7", "order_1*", some[0].id, "none"]
    types = ["", "CarRideCreated", "CarRideCompleted", "break the contract", "none"]
    for wanted in map(
        Filter._make, product(rides, types, ["", "payment", "none"], ["", *LOOKS, *GROUPS, "none"])
    ):
        newest_first = [fact for fact in reversed(index.facts.values()) if fact.copies]
        expected = [fact for fact in newest_first if wanted.matches(fact, CONSUMERS)]
        found = index.page(wanted)
        assert found.facts == expected[:PAGE], wanted
        assert (found.total, found.is_counted, found.newer) == (len(expected), True, 0)


def test_what_was_given_up_is_known_without_an_audit() -> None:
    """The list of rides and the count of its tab are of one reading; a redrive ends it."""
    with mock_aws():
        desk = desk_of(empty_stack())
        event = event_of(Life("order_1").accepted)
        publish(desk.feed.index, event, BEGIN_MS)
        deliver(desk.feed.index, event, "dispatch", BEGIN_MS + 9, "DeadLettered")
        before = get(desk, "/rides").text
        alone = get(desk, "/rides?only=stuck").text
        deliver(desk.feed.index, event, "dispatch", BEGIN_MS + 99)
        after = get(desk, "/rides?only=stuck").text
    for text in (before, alone):
        assert "dispatch gave up CarRideAccepted" in text
        assert 'Need attention <span class="count">1<' in text
    assert 'Need attention <span class="count">0<' in after


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
    assert "and 25 more: ride-history: lost" in text
