"""Searches of the desk's index, and lists of many failures."""

import json
import random
from collections import Counter
from collections.abc import Collection
from itertools import product
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moto import mock_aws

from carride.events import DETAIL_TYPE, SOURCE
from carride.facts import Fact, PaymentCaptured
from carride_idempotency import observation
from ops.audit.evidence import CONSUMERS, DeadLettered
from ops.desk.endings import ending_of
from ops.desk.facts import CRASHED, FATES, GROUPS, KEPT, WAITING
from ops.desk.index import PAGE, Filter, Index
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
    for few in (some[:2], some):  # the second audit replaces what the first one has found
        index.add_letters(DeadLettered("q", "r", "payment", None, fact.id) for fact in few)
        index.add_lost({"payment": [fact.id for fact in few], "dispatch": ["forgotten"]})
    rides = ["", "order_7", "order_1*", some[0].id, "none"]
    types = ["", "CarRideCreated", "CarRideCompleted", "break the contract", "none"]
    for wanted in map(
        Filter._make,
        product(
            rides,
            types,
            ["", "payment", "none"],
            ["", *LOOKS, *GROUPS, *FATES, "none"],
            ["", KEPT],
        ),
    ):
        newest_first = [fact for fact in reversed(index.facts.values()) if fact.copies]
        expected = [fact for fact in newest_first if wanted.matches(fact, CONSUMERS)]
        newest = index.newest - chance.randrange(20)
        shown = [fact for fact in expected if fact.number <= newest]
        found = index.page(wanted, newest=newest)
        assert found.facts == shown[:PAGE], wanted
        assert found.runs == sum(map(wanted.runs, shown)), wanted
        newer = len(expected) - len(shown)
        assert (found.total, found.is_counted, found.newer) == (len(shown), True, newer)


DEEDS: Final = ("publish", "deliver", "letter", "redrive")
HAPPENS: Final = ("created", "accepted", "started", "completed", "cancelled", "no_car", "overdue")
STEPS: Final = st.lists(
    st.tuples(st.sampled_from(DEEDS), st.integers(0, 2), st.sampled_from([*HAPPENS, "paid"])),
    min_size=40,
    max_size=60,
)


def happening(ride: str, what: str) -> Fact:
    """Return what happens to a ride."""
    life = Life(ride)
    if what == "paid":
        return PaymentCaptured.of(life.completed, payment_id="pay_1", amount=1250)
    fact: Fact = getattr(life, what)
    return fact


def apply(index: Index, step: tuple[str, int, str], at_ms: int) -> None:
    """Do a step with an event of a ride."""
    deed, ride, what = step
    event = event_of(happening(f"order_{ride}", what))
    if deed == "publish":
        publish(index, event, at_ms)
    elif deed == "deliver":
        deliver(index, event, "payment", at_ms, observation.FAILED)
    elif deed == "letter":
        deliver(index, event, "payment", at_ms, observation.DEAD_LETTERED)
        index.add_letters([DeadLettered("q", "r", "payment", None, event.idempotencyid)])
    else:
        index.add_letters([])
        deliver(index, event, "payment", at_ms, observation.RETRIED, attempt=2)


def rides_in(index: Index, newest: int, words: Collection[str] | None) -> tuple[list[str], int]:
    """Return rides, that of the newest event first, and how many have a newer event."""
    found = dict[str, None]()
    newer = set[str]()
    for fact in sorted(index.facts.values(), key=lambda each: -each.number):
        if fact.ride is None:
            continue
        word = ending_of([each.type for each in index.of_ride(fact.ride)]).word
        if words is not None and word not in words:
            continue
        if fact.number > newest:
            newer.add(fact.ride)
        else:
            found[fact.ride] = None
    return [*found], len(newer)


@given(STEPS, st.integers(0, 9), st.integers(5, 24))
def test_the_kept_list_of_rides_is_that_of_all_events(
    steps: list[tuple[str, int, str]], behind: int, most: int
) -> None:
    """Whatever the index gets, in which order, and whatever it forgets."""
    index = Index(CONSUMERS, most)
    for number, step in enumerate(steps):
        apply(index, step, BEGIN_MS + number)
    newest = index.newest - behind
    words = [ending_of([each.type for each in index.of_ride(name)]).word for name in index.rides]
    assert index.endings.count() == Counter(words)
    for asked in (None, ("paid",), ("requested", "accepted", "started"), ("none",)):
        names, newer = rides_in(index, newest, asked)
        found = index.endings.rides(newest, 0, len(index.facts), asked)
        assert found == (names, len(names), newer)
        assert index.endings.rides(newest, 2, 3, asked).names == names[2:5]
    for name, word in zip(index.rides, words, strict=True):
        assert index.endings.of(name) == ending_of([each.type for each in index.of_ride(name)])
        assert index.endings.count([name, "none"]) == {word: 1}
    assert index.endings.of("none") is None


def test_newer_rides_are_those_of_the_status_that_is_asked_for() -> None:
    """A ride of another status that has an event of its own moves no row of the list."""
    with mock_aws():
        desk = desk_of(empty_stack())
        index = desk.feed.index
        for number in range(3):
            publish(index, event_of(Life(f"order_{number}").created), BEGIN_MS + number)
        newest = index.newest
        publish(index, event_of(Life("order_0").cancelled), BEGIN_MS + 10)
        publish(index, event_of(Life("order_1").accepted), BEGIN_MS + 11)
        publish(index, event_of(Life("order_9").cancelled), BEGIN_MS + 12)
        newer = {
            status: get(desk, f"/rides?status={status}&newest={newest}").text
            for status in ("open", "cancelled", "paid")
        }
        every = get(desk, f"/rides?newest={newest}").text
    assert "1 newer<" in newer["open"]
    assert "2 newer<" in newer["cancelled"]
    assert "newer<" not in newer["paid"]
    assert "3 newer<" in every


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
        assert 'Given up <span class="count">1<' in text
    assert 'Given up <span class="count">0<' in after


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
