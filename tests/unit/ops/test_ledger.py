"""The ledger's arithmetic, on evidence made by hand: it has to notice what must never happen."""

import json

import pytest

from idempotency import observation
from ops.ledger import DeadLettered, Delivered, Evidence, Published, State, Subscription, balance

HISTORY = Subscription("ride-history")
DISPATCH = Subscription("dispatch", frozenset({"CarRideAccepted"}))

CREATED = Published("event-1", "CarRideCreated", "created")
CREATED_AGAIN = Published("event-2", "CarRideCreated", "created")
ACCEPTED = Published("event-3", "CarRideAccepted", "accepted")
BROKEN = Published("event-4", "CarRideAccepted", None)


def delivered(outcome: str, fact: str | None = "created") -> Delivered:
    """Return a delivery to the ride history."""
    return Delivered("ride-history", outcome, fact)


def dead(event: Published, reason: str = "CONTRACT", consumer: str | None = "ride-history") -> DeadLettered:
    """Return the dead letter of an event that a consumer gave up."""
    return DeadLettered("RideHistoryDlq", reason, consumer, event.event_id, event.fact)


def ride(*facts: str, effects: int | None = None, consumer: str = "ride-history") -> State:
    """Return what a consumer's table holds of a ride; by default one effect a fact."""
    return State(consumer, "order_01", frozenset(facts), len(facts) if effects is None else effects)


def test_duplicates_that_took_effect_once_balance() -> None:
    """Two copies of one fact with one effect are an absorbed duplicate, nothing else."""
    deliveries = [delivered(observation.NEW), delivered(observation.DUPLICATE)]
    ledger = balance(Evidence([HISTORY], [CREATED, CREATED_AGAIN], deliveries, states=[ride("created")]))
    account = ledger.consumers["ride-history"]
    assert (ledger.published, ledger.distinct, account.deliveries) == (2, 1, 2)
    assert (account.duplicates_absorbed, account.effects) == (1, 1)
    assert ledger.balanced


def test_a_published_fact_without_a_trace_is_lost() -> None:
    """An accepted event with neither effect, dead letter nor expiry is named as lost."""
    ledger = balance(Evidence([HISTORY], [CREATED, ACCEPTED], states=[ride("created")]))
    assert ledger.consumers["ride-history"].lost_events == ("accepted",)
    assert ledger.lost == 1
    assert not ledger.balanced


def test_a_reported_delivery_is_no_effect() -> None:
    """What a consumer reports to have done does not count without the effect in its table."""
    assert balance(Evidence([HISTORY], [CREATED], [delivered(observation.NEW)])).lost == 1


def test_an_effect_beyond_one_is_doubled() -> None:
    """A ride with more effects than facts names its surplus, even where another ride has none."""
    states = [ride("created", effects=3), State("ride-history", "order_02", frozenset({"accepted"}), 1)]
    ledger = balance(Evidence([HISTORY], [CREATED], states=states))
    assert ledger.consumers["ride-history"].doubled_rides == {"order_01": 2}
    assert ledger.doubled == 2
    assert not ledger.balanced


def test_every_consumer_is_held_to_what_it_subscribes_to() -> None:
    """An effect at one consumer is none at another, and what a consumer does not subscribe to it cannot lose."""
    ledger = balance(Evidence([HISTORY, DISPATCH], [CREATED, ACCEPTED], states=[ride("created", "accepted")]))
    assert ledger.consumers["ride-history"].lost == 0
    assert ledger.consumers["dispatch"].lost_events == ("accepted",)
    assert ledger.consumers["dispatch"].distinct == 1
    both = [ride("created", "accepted"), ride("accepted", consumer="dispatch")]
    assert balance(Evidence([HISTORY, DISPATCH], [CREATED, ACCEPTED], states=both)).balanced


def test_a_dead_letter_of_one_consumer_is_no_excuse_for_another() -> None:
    """Each consumer keeps its own dead letters."""
    letter = dead(ACCEPTED, "QUARANTINED", "dispatch")
    ledger = balance(Evidence([HISTORY, DISPATCH], [ACCEPTED], dead_letters=[letter]))
    assert ledger.consumers["dispatch"].lost == 0
    assert ledger.consumers["ride-history"].lost == 1


def test_a_broken_event_counts_as_kept_only_by_its_own_dead_letter() -> None:
    """An event without a key is recognised by EventBridge's id; the dead letter of another one is no excuse."""
    other = BROKEN._replace(event_id="event-5")
    assert balance(Evidence([HISTORY], [BROKEN], dead_letters=[dead(BROKEN)])).balanced
    ledger = balance(Evidence([HISTORY], [BROKEN], dead_letters=[dead(other)]))
    assert ledger.consumers["ride-history"].lost_events == ("event-4",)


def test_a_fact_in_the_consumers_queue_is_not_lost() -> None:
    """A dead letter accounts for every copy of its fact."""
    letter = dead(CREATED, "QUARANTINED")
    ledger = balance(Evidence([HISTORY], [CREATED, CREATED_AGAIN], dead_letters=[letter]))
    assert ledger.balanced
    assert ledger.dead_lettered == {"RideHistoryDlq": {"QUARANTINED": 1}}


@pytest.mark.parametrize("queue", ["ProducerDlq", "CarRideLogRuleDlq"])
def test_a_queue_before_the_consumer_accounts_for_nothing(queue: str) -> None:
    """An accepted event cannot hide behind a copy that never had a chance to reach the consumer."""
    refused = DeadLettered(queue, "InvalidArgument", None, None, "created")
    ledger = balance(Evidence([HISTORY], [CREATED], dead_letters=[refused]))
    assert ledger.lost == 1
    assert ledger.dead_lettered == {queue: {"InvalidArgument": 1}}


def test_an_expired_fact_is_neither_lost_nor_an_effect() -> None:
    """What the consumer reported as expired is accounted for; what took effect first is not counted as expired."""
    expired = [delivered(observation.EXPIRED), delivered(observation.EXPIRED)]
    ledger = balance(Evidence([HISTORY], [CREATED], expired))
    assert ledger.balanced
    assert ledger.consumers["ride-history"].expired == 1
    late = balance(Evidence([HISTORY], [CREATED], expired, states=[ride("created")]))
    assert late.consumers["ride-history"].expired == 0


def test_a_replay_adds_deliveries_and_no_publications() -> None:
    """An event out of the archive is counted as replayed; it can be lost no more than it can be new."""
    published = [CREATED, CREATED._replace(replayed=True)]
    ledger = balance(Evidence([HISTORY], published, states=[ride("created")]))
    assert (ledger.published, ledger.replayed, ledger.distinct) == (1, 1, 1)
    assert ledger.balanced


def test_what_was_committed_to_be_told_and_never_was_is_lost() -> None:
    """A fact in the outbox has to come to the bus."""
    ledger = balance(Evidence([HISTORY], [CREATED], states=[ride("created")], outbox={"created", "paid"}))
    assert ledger.untold == ("paid",)
    assert ledger.lost == 1
    assert not ledger.balanced


def test_the_json_holds_the_sums_and_the_table_names_what_does_not_add_up() -> None:
    """Machines and people read the same ledger."""
    letters = [dead(BROKEN)]
    ledger = balance(Evidence([HISTORY], [CREATED], dead_letters=letters, states=[ride("accepted", effects=2)]))
    document = json.loads(json.dumps(ledger.to_json()))
    assert {
        "published",
        "distinct",
        "deliveries",
        "duplicates_absorbed",
        "effects",
        "dead_lettered",
        "lost",
        "doubled",
    } <= set(document)
    assert (document["effects"], document["lost"], document["doubled"], document["balanced"]) == (2, 1, 1, False)
    assert document["dead_lettered"] == {"RideHistoryDlq": {"CONTRACT": 1}}
    table = ledger.to_text()
    assert "ride-history: created" in table
    assert "ride-history: order_01" in table
    assert "CONTRACT 1" in table
