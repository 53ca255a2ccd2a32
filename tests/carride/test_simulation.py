import json
from collections import Counter, defaultdict
from datetime import timedelta
from typing import Final

import pytest
from msgspec.structs import replace

from carride.decoding import FieldError
from carride.events import RideEvent, parse_event
from carride.simulated_faults import Fault
from carride.simulation_spec import Mode, Spec
from simulated_rides import MALFORMED, PREDEFINED, Kind, SimulatedEntry, Simulation, predefined
from tests.kit.rides import NOW

FAULTY: Final = Spec(rides=60, seed=7, malformed=12, late=3, crashes=2, fails=4, poison=1, slow=2)
EVERYTHING: Final = replace(FAULTY, duplicates=0.3, out_of_order=0.2, older=0.2)


def simulate(spec: Spec = EVERYTHING) -> list[SimulatedEntry]:
    return list(Simulation(spec, NOW).entries())


def facts(simulated: list[SimulatedEntry]) -> list[SimulatedEntry]:
    """Return the first entry of each fact."""
    return [entry for entry in simulated if entry.kind is Kind.FACT]


def event_of(simulated: SimulatedEntry) -> RideEvent:
    return parse_event({"detail": json.loads(simulated.entry.detail)})


def test_a_simulation_follows_from_its_spec() -> None:
    """A simulation is the same for the same spec and time, from any entry on.

    A larger one of the same seed, at another time, has the same facts with the same data.
    """
    simulation = Simulation(EVERYTHING, NOW)
    assert list(simulation.entries(50)) == simulate()[50:]
    assert len(simulation) == len(simulate())
    small = {
        entry.fact: event_of(entry).payload for entry in facts(simulate(Spec(rides=10, seed=7)))
    }
    later = Simulation(EVERYTHING, NOW + timedelta(days=1))
    large = {entry.fact: event_of(entry).payload for entry in facts(list(later.entries()))}
    assert small.items() <= large.items()


def test_events_come_again_and_out_of_order_as_was_asked_for() -> None:
    """A copy has the payload of its fact, in either envelope.

    In a fifth of the rides an event overtakes another.
    """
    payloads = defaultdict(list)
    order = defaultdict(list)
    envelopes = set()
    for entry in simulate():
        if entry.kind not in MALFORMED:
            event = event_of(entry)
            envelopes.add("specversion" in json.loads(entry.entry.detail))
            payloads[entry.fact].append(event.payload)
            if entry.kind is Kind.FACT:
                order[event.subject].append(event.sequence)
    assert envelopes == {True, False}
    assert all(payload == copies[0] for copies in payloads.values() for payload in copies)
    assert sum(sequences != sorted(sequences) for sequences in order.values()) == round(0.2 * 60)


def test_events_name_their_causes() -> None:
    """Each event of a ride follows from the one before it, in one trace."""
    events = {event.id: event for event in map(event_of, facts(simulate(Spec(rides=5, seed=7))))}
    for event in events.values():
        if event.data.version == 1:
            assert event.causationid is None
        else:
            cause = events[event.causationid or ""]
            assert (cause.subject, cause.data.version) == (event.subject, event.data.version - 1)
            assert cause.traceparent == event.traceparent


def test_only_late_events_have_expired() -> None:
    """Late events are past their expiry time.

    The others have none, so that a replay can rebuild a read model.
    """
    for entry in facts(simulate()):
        event = event_of(entry)
        assert entry.late == (event.expirytime is not None)
        assert event.expirytime is None or event.time < event.expirytime < NOW


def test_an_amount_is_a_count_or_a_share() -> None:
    """Integers are counts, fractions below one are shares of the facts."""
    simulated = simulate(Spec(rides=60, seed=7, late=0.1, crashes=0.05, poison=0.02, malformed=0.5))
    once = facts(simulated)
    assert sum(entry.late for entry in once) == round(0.1 * len(once))
    assert Counter(entry.fault for entry in once if entry.fault) == {
        Fault.CRASH: round(0.05 * len(once)),
        Fault.POISON: round(0.02 * len(once)),
    }
    assert sum(entry.kind in MALFORMED for entry in simulated) == round(0.5 * len(once))


def test_a_duration_is_filled_at_the_rate() -> None:
    """As many rides as fill the time run to their end; they are those of any simulation."""
    simulated = simulate(Spec(duration=30, rate=20, seed=7, duplicates=0.5, malformed=6))
    longest_ride = 4 * 1.5 + 1
    assert 30 * 20 <= len(simulated) < 30 * 20 + longest_ride
    rides = len({event_of(entry).subject for entry in facts(simulated)})
    same = facts(simulate(Spec(rides=rides, seed=7)))
    assert {entry.fact for entry in facts(simulated)} == {entry.fact for entry in same}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (Spec(duration=10), "rate"),
        (Spec(duration=10, rate=1, rides=1), "duration"),
        (Spec(duration=86_400, rate=10_000), "duration"),
        (Spec(rides=1, late=2, poison=3), "poison"),
    ],
)
def test_an_impossible_simulation_is_refused(
    spec: Spec, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the field that asks for a second end, for no end, or for too much."""
    monkeypatch.setattr("simulated_rides.MOST_RIDES", 1_000)  # a hundred thousand take seconds
    with pytest.raises(FieldError) as refusal:
        Simulation(spec, NOW)
    assert refusal.value.field == field


def test_predefined_rides_are_known_beforehand() -> None:
    """Two seeds have the same rides, in each way that a ride can go, under other ids."""
    lives = [[predefined(seed, number) for number in range(len(PREDEFINED))] for seed in (1, 2)]
    ids = [{fact.order_id for life in each for fact in life} for each in lives]
    assert ids[0].isdisjoint(ids[1])
    same = [
        [[replace(fact, order_id="order_01") for fact in life] for life in each] for each in lives
    ]
    assert same[0] == same[1]
    simulated = map(
        event_of, facts(simulate(Spec(mode=Mode.PREDEFINED, rides=len(PREDEFINED), seed=1)))
    )
    assert {event.data.order_id for event in simulated} == ids[0]
    stories = {
        "".join(type(fact).__name__.removeprefix("CarRide")[:2] for fact in life)
        for life in lives[0]
    }
    assert stories == {"CrAcStCo", "CrAcCa", "CrCa", "CrAcStDeCo"}
    first = lives[0][0][0]
    assert (first.customer_id, first.pickup, first.destination) == (
        "customer_a",
        "sector_01",
        "sector_03",
    )
