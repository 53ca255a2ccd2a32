import json
from collections import Counter, defaultdict
from datetime import timedelta
from typing import Final

import pytest

from carride.decoding import FieldError
from carride.events import parse_event
from carride.simulation import (
    MALFORMED,
    PREDEFINED,
    Fault,
    Kind,
    Mode,
    SimulatedEntry,
    Simulation,
    Spec,
    predefined,
)
from tests.carride.rides import NOW

EVERYTHING: Final = Spec(
    rides=60,
    seed=7,
    duplicates=0.3,
    out_of_order=0.2,
    older=0.2,
    malformed=12,
    late=3,
    crashes=2,
    fails=4,
    poison=1,
    slow=2,
)


def simulate(spec: Spec = EVERYTHING) -> list[SimulatedEntry]:
    """Return everything that a simulation publishes."""
    return list(Simulation(spec, NOW).entries())


def facts(simulated: list[SimulatedEntry]) -> list[SimulatedEntry]:
    """Return the first telling of each fact."""
    return [entry for entry in simulated if entry.kind is Kind.FACT]


def test_a_simulation_is_the_same_for_the_same_seed() -> None:
    """Nothing in it depends on anything but spec and time."""
    assert simulate() == simulate()


def test_a_ride_depends_on_seed_and_number_alone() -> None:
    """A larger simulation of the same seed, at another time, tells the same facts with the same data."""
    small = {entry.fact: entry for entry in facts(simulate(Spec(rides=10, seed=7)))}
    later = Simulation(EVERYTHING, NOW + timedelta(days=1))
    large = {entry.fact: entry for entry in facts(list(later.entries()))}
    assert small.keys() <= large.keys()
    for fact, entry in small.items():
        payloads = [parse_event({"detail": json.loads(one.entry.detail)}).payload for one in (entry, large[fact])]
        assert payloads[0] == payloads[1]


def test_a_simulation_can_be_continued() -> None:
    """The entries from an offset on are those of the whole."""
    simulation = Simulation(EVERYTHING, NOW)
    whole = list(simulation.entries())
    assert list(simulation.entries(50)) == whole[50:]
    assert len(simulation) == len(whole)


def test_copies_say_what_the_original_says() -> None:
    """A copy has the payload of its fact, in whichever envelope it comes."""
    payloads = defaultdict(list)
    envelopes = set()
    for entry in simulate():
        if entry.kind in {Kind.FACT, Kind.COPY}:
            detail = json.loads(entry.entry.detail)
            envelopes.add("specversion" in detail)
            payloads[entry.fact].append(parse_event({"detail": detail}).payload)
    assert envelopes == {True, False}
    assert all(payload == copies[0] for copies in payloads.values() for payload in copies)


def test_as_many_rides_are_out_of_order_as_was_asked_for() -> None:
    """In a fifth of the rides an event overtakes the one before it; in the others none does."""
    order = defaultdict(list)
    for entry in facts(simulate()):
        event = parse_event({"detail": json.loads(entry.entry.detail)})
        order[event.subject].append(event.sequence)
    assert sum(sequences != sorted(sequences) for sequences in order.values()) == round(0.2 * 60)


def test_events_name_their_causes() -> None:
    """Each event of a ride follows from the one before it, in one trace."""
    events = {}
    for entry in facts(simulate(Spec(rides=5, seed=7))):
        event = parse_event({"detail": json.loads(entry.entry.detail)})
        events[event.id] = event
    for event in events.values():
        if event.data.version == 1:
            assert event.causationid is None
        else:
            cause = events[event.causationid or ""]
            assert (cause.subject, cause.data.version) == (event.subject, event.data.version - 1)
            assert cause.traceparent == event.traceparent


def test_only_late_events_have_expired() -> None:
    """What is late is past its expiry time; what is not has none, so that a replay can rebuild a read model."""
    for entry in facts(simulate()):
        event = parse_event({"detail": json.loads(entry.entry.detail)})
        if entry.late:
            assert event.expirytime is not None
            assert event.time < event.expirytime < NOW
        else:
            assert event.expirytime is None


def test_more_marks_than_facts_are_refused() -> None:
    """A simulation that cannot be says which field asks for too much."""
    with pytest.raises(FieldError) as refusal:
        Simulation(Spec(rides=1, late=2, poison=3), NOW)
    assert refusal.value.field == "poison"


def test_an_amount_is_a_count_or_a_share() -> None:
    """Whole numbers count, what is below one is a share of the facts."""
    simulated = simulate(Spec(rides=60, seed=7, late=0.1, crashes=0.05, poison=0.02, malformed=0.5))
    told_once = facts(simulated)
    assert sum(entry.late for entry in told_once) == round(0.1 * len(told_once))
    assert Counter(entry.fault for entry in told_once if entry.fault) == {
        Fault.CRASH: round(0.05 * len(told_once)),
        Fault.POISON: round(0.02 * len(told_once)),
    }
    assert sum(entry.kind in MALFORMED for entry in simulated) == round(0.5 * len(told_once))


def test_a_duration_is_filled_at_the_rate() -> None:
    """There are as many rides as fill the time, and no more, each told to its end; they are those of any simulation."""
    spec = Spec(duration=30, rate=20, seed=7, duplicates=0.5, malformed=6)
    simulated = simulate(spec)
    longest_ride = 4 * 1.5 + 1
    assert 30 * 20 <= len(simulated) < 30 * 20 + longest_ride
    told_once = {entry.fact for entry in facts(simulated)}
    rides = len({json.loads(entry.entry.detail)["subject"] for entry in facts(simulated)})
    assert told_once == {entry.fact for entry in facts(simulate(Spec(rides=rides, seed=7)))}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (Spec(duration=10), "rate"),
        (Spec(duration=10, rate=1, rides=1), "duration"),
        (Spec(duration=86_400, rate=10_000), "duration"),
    ],
)
def test_a_simulation_has_one_end(spec: Spec, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ends, a duration that nothing fills and one that takes too many rides name their field."""
    monkeypatch.setattr("carride.simulation.MOST_RIDES", 1_000)  # a hundred thousand take seconds to be drawn
    with pytest.raises(FieldError) as refusal:
        Simulation(spec, NOW)
    assert refusal.value.field == field


def test_predefined_rides_are_known_beforehand() -> None:
    """The seed is in their names and nowhere else: two seeds tell the same rides, under other ids."""
    rides = [
        [
            {**parse_event({"detail": json.loads(entry.entry.detail)}).payload, "orderID": None}
            for entry in facts(simulate(Spec(mode=Mode.PREDEFINED, rides=5, seed=seed)))
        ]
        for seed in (1, 2)
    ]
    key = json.dumps
    assert sorted(map(key, rides[0])) == sorted(map(key, rides[1]))
    names = [{fact.order_id for number in range(5) for fact in predefined(seed, number)} for seed in (1, 2)]
    assert names[0].isdisjoint(names[1])


def test_predefined_rides_go_every_way_that_a_ride_can() -> None:
    """Among them are the ride of the samples, and one of each end and each change."""
    stories = {tuple(type(fact).__name__ for fact in predefined(0, number)) for number in range(len(PREDEFINED))}
    assert stories == {
        ("CarRideCreated", "CarRideAccepted", "CarRideStarted", "CarRideCompleted"),
        ("CarRideCreated", "CarRideAccepted", "CarRideCancelled"),
        ("CarRideCreated", "CarRideCancelled"),
        (
            "CarRideCreated",
            "CarRideAccepted",
            "CarRideStarted",
            "CarRideDestinationChanged",
            "CarRideCompleted",
        ),
    }
    first = predefined(0, 0)[0]
    assert (first.customer_id, first.pickup, first.destination) == ("customer_a", "sector_01", "sector_03")
