"""The ledger's arithmetic, on evidence made by hand: it has to notice what must never happen."""

import json

import pytest

from idempotency import observation
from ops.ledger import DeadLettered, Delivered, Evidence, Published, Ride, balance

CONSUMER = "ride-history"
BOOKED = Published("event-1", "booked")
BOOKED_AGAIN = Published("event-2", "booked")
ACCEPTED = Published("event-3", "accepted")
BROKEN = Published("event-4", None)


def delivered(outcome: str, fact: str | None = "booked") -> Delivered:
    """Return a delivery to the consumer."""
    return Delivered(CONSUMER, outcome, fact)


def dead(event: Published, reason: str = "CONTRACT", queue: str = "RideHistoryDlq") -> DeadLettered:
    """Return the dead letter of an event that the consumer gave up."""
    return DeadLettered(queue, reason, CONSUMER, event.event_id, event.fact)


def test_duplicates_that_took_effect_once_balance() -> None:
    """Two copies of one fact with one effect are an absorbed duplicate, nothing else."""
    ledger = balance(
        Evidence(
            published=[BOOKED, BOOKED_AGAIN],
            deliveries=[delivered(observation.NEW), delivered(observation.DUPLICATE)],
            dead_letters=[],
            rides=[Ride("order_01", frozenset({"booked"}), 1)],
        )
    )
    assert (ledger.published, ledger.distinct, ledger.deliveries) == (2, 1, 2)
    assert (ledger.duplicates_absorbed, ledger.effects) == (1, 1)
    assert ledger.balanced


def test_a_published_fact_without_a_trace_is_lost() -> None:
    """An accepted event with neither effect, dead letter nor expiry is named as lost."""
    ledger = balance(Evidence([BOOKED, ACCEPTED], [], [], [Ride("order_01", frozenset({"booked"}), 1)]))
    assert ledger.lost_events == ("accepted",)
    assert not ledger.balanced


def test_a_reported_delivery_is_no_effect() -> None:
    """What a consumer reports to have done does not count without the effect in the read model."""
    assert balance(Evidence([BOOKED], [delivered(observation.NEW)], [], [])).lost_events == ("booked",)


def test_an_effect_beyond_one_is_doubled() -> None:
    """A ride with more effects than facts names its surplus, even where another ride has none."""
    ledger = balance(
        Evidence(
            [BOOKED],
            [],
            [],
            [Ride("order_01", frozenset({"booked"}), 3), Ride("order_02", frozenset({"accepted"}), 1)],
        )
    )
    assert ledger.doubled_rides == {"order_01": 2}
    assert ledger.doubled == 2
    assert not ledger.balanced


def test_a_broken_event_counts_as_kept_only_by_its_own_dead_letter() -> None:
    """An event without a key is recognised by EventBridge's id; the dead letter of another one is no excuse."""
    other = Published("event-5", None)
    assert balance(Evidence([BROKEN], [], [dead(BROKEN)], [])).lost == 0
    assert balance(Evidence([BROKEN], [], [dead(other)], [])).lost_events == ("event-4",)


def test_a_fact_in_the_consumers_queue_is_not_lost() -> None:
    """A dead letter accounts for every copy of its fact."""
    ledger = balance(Evidence([BOOKED, BOOKED_AGAIN], [], [dead(BOOKED, "QUARANTINED")], []))
    assert ledger.lost == 0
    assert ledger.dead_lettered == {"RideHistoryDlq": {"QUARANTINED": 1}}


@pytest.mark.parametrize("queue", ["ProducerDlq", "CarRideLogRuleDlq"])
def test_a_queue_before_the_consumer_accounts_for_nothing(queue: str) -> None:
    """An accepted event cannot hide behind a copy that never had a chance to reach the consumer."""
    refused = DeadLettered(queue, "InvalidArgument", None, None, "booked")
    ledger = balance(Evidence([BOOKED], [], [refused], []))
    assert ledger.lost_events == ("booked",)
    assert ledger.dead_lettered == {queue: {"InvalidArgument": 1}}


def test_an_expired_fact_is_neither_lost_nor_an_effect() -> None:
    """What the consumer reported as expired is accounted for; what took effect first is not counted as expired."""
    expired = [delivered(observation.EXPIRED), delivered(observation.EXPIRED)]
    ledger = balance(Evidence([BOOKED], expired, [], []))
    assert (ledger.expired, ledger.lost, ledger.effects) == (1, 0, 0)
    late = balance(Evidence([BOOKED], expired, [], [Ride("order_01", frozenset({"booked"}), 1)]))
    assert (late.expired, late.effects) == (0, 1)


def test_a_replay_adds_deliveries_and_no_publications() -> None:
    """An event out of the archive is counted as replayed; it can be lost no more than it can be new."""
    again = BOOKED._replace(replayed=True)
    ledger = balance(
        Evidence(
            [BOOKED, again],
            [delivered(observation.NEW), delivered(observation.DUPLICATE)],
            [],
            [Ride("order_01", frozenset({"booked"}), 1)],
        )
    )
    assert (ledger.published, ledger.replayed, ledger.distinct) == (1, 1, 1)
    assert ledger.balanced


def test_the_json_holds_the_sums_and_the_table_names_what_does_not_add_up() -> None:
    """Machines and people read the same ledger."""
    ledger = balance(Evidence([BOOKED], [], [dead(BROKEN)], [Ride("order_01", frozenset({"accepted"}), 2)]))
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
    assert (document["lost"], document["doubled"], document["balanced"]) == (1, 1, False)
    assert document["dead_lettered"] == {"RideHistoryDlq": {"CONTRACT": 1}}
    table = ledger.to_text()
    assert "booked" in table
    assert "order_01" in table
    assert "CONTRACT 1" in table
