"""The ride history on the tables of this process: an event's effect on a ride's item, and what the item says."""

from collections.abc import Callable
from typing import Any

import pytest

import timeline
from carride.history import timeline_of
from carride.settings import SettingsError, from_environment
from idempotency.effects import action_of
from ride_history import Settings
from tests.functions.saga import NOW, Life, event_of
from tests.functions.world import World

type Fail = Callable[[*tuple[BaseException, ...]], None]

RIDE = Life()


class History(World):
    """The functions, of which the ride history gets events."""

    def send(self, *events: dict[str, Any]) -> list[str]:
        """Deliver events one after the other, and return the outcomes."""
        return [self.deliver("ride-history", event) for event in events]


@pytest.fixture
def world() -> History:
    """The functions over empty tables."""
    return History()


def test_an_effect_that_took_place_twice_shows(world: History) -> None:
    """The item counts two effects and has one entry, by which the ledger notices."""
    world.send(world.envelope(RIDE.accepted), world.envelope(RIDE.created))
    again = action_of(timeline.effect("rides", event_of(RIDE.created)))
    world.dynamodb.transact_write_items(TransactItems=[again])
    item = world.item("rides")
    assert [entry.type for entry in timeline_of(item)] == ["CarRideCreated", "CarRideAccepted"]
    assert item["effects"] == 3


def test_an_event_that_breaks_the_contract_is_dead_lettered_at_once(world: History) -> None:
    """The dead letter has the event as it came, with the reason; nothing is retried and nothing takes effect."""
    broken = world.envelope(RIDE.created)
    del broken["detail"]["idempotencyid"]
    assert world.send(broken) == ["DeadLettered"]
    (letter,) = world.dead_letters()
    assert (letter.reason, letter.event, "idempotencyid" in letter.message) == ("CONTRACT", broken, True)
    assert world.item("rides") == {}


def test_an_event_past_its_expiry_is_dropped(world: History) -> None:
    """It has no effect, is no dead letter, and is counted as expired."""
    world.clock.advance(3600)
    assert world.send(world.envelope(RIDE.created, expirytime=NOW)) == ["Expired"]
    assert (world.dead_letters(), world.item("rides")) == ([], {})


def test_another_payload_under_a_known_id_is_dead_lettered(world: History) -> None:
    """Two facts that share an id are a mistake of the producer, and the second never overwrites the first."""
    first, second = world.envelope(RIDE.created), world.envelope(RIDE.created)
    second["detail"]["data"]["price"] = 1
    assert world.send(first, second) == ["New", "DeadLettered"]
    assert [letter.reason for letter in world.dead_letters()] == ["PAYLOAD_MISMATCH"]
    assert timeline_of(world.item("rides"))[0].data["price"] == RIDE.created.price


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Fail:
    """Have the next runs of the handler raise, one after the other, when they write."""
    effect = timeline.effect
    pending: list[BaseException] = []

    def failing(table: str, event: Any) -> Any:
        if pending:
            raise pending.pop()
        return effect(table, event)

    monkeypatch.setattr(timeline, "effect", failing)
    return lambda *errors: pending.extend(errors)


def test_a_killed_run_leaves_nothing_and_the_next_one_is_the_first(world: History, fail: Fail) -> None:
    """No claim has to run out: the same delivery and its copies succeed at once, and one of them takes effect."""
    fail(SystemExit())
    deadly = world.envelope(RIDE.created)
    with pytest.raises(SystemExit):
        world.send(deadly)
    assert world.dynamodb.all("idempotency") == []
    assert world.send(deadly, deadly, deadly | {"id": "copy"}) == ["New", "Duplicate", "Duplicate"]
    assert world.item("rides")["effects"] == 1


@pytest.mark.parametrize(
    ("failures", "outcomes", "letters"),
    [(2, ["Retried", "Duplicate"], []), (3, ["DeadLettered", "Quarantined"], [("QUARANTINED", 3)])],
)
def test_a_failed_run_is_retried_until_its_attempts_are_used_up(
    world: History, fail: Fail, failures: int, outcomes: list[str], letters: list[tuple[str, int]]
) -> None:
    """Two failures are mended by a retry; after the third the event is dead-lettered, and never takes effect."""
    fail(*[OSError("no reason")] * failures)
    event = world.envelope(RIDE.created)
    for _ in range(2):
        with pytest.raises(OSError, match="no reason"):
            world.send(event)
    assert world.send(event, event) == outcomes
    assert [(letter.reason, letter.attempt) for letter in world.dead_letters()] == letters
    assert bool(world.item("rides")) == (failures < 3)


def test_a_missing_variable_names_itself() -> None:
    """A function without its settings says which one is missing and where it belongs."""
    with pytest.raises(SettingsError, match=r"RIDE_TABLE.*template\.yaml"):
        from_environment(Settings, {"IDEMPOTENCY_STORE": "dynamodb:t", "DEAD_LETTER_QUEUE_URL": "u"})
