import json
from collections import Counter, defaultdict
from datetime import datetime, timedelta
from typing import Final

import pytest

from carride.entry import TOO_LARGE
from carride.events import CarRideCancelled, CarRideCompleted, ContractError, parse_event
from carride.faults import Fault
from carride.simulation import MALFORMED, Kind, SimulatedEntry, Simulation, Spec, SpecError, fare
from tests.unit.carride.rides import NOW

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


def test_another_seed_makes_other_rides() -> None:
    """Two seeds have no fact in common."""
    other = simulate(Spec(rides=60, seed=8))
    assert {entry.fact for entry in simulate()}.isdisjoint({entry.fact for entry in other})


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


def test_it_has_as_many_of_everything_as_was_asked_for() -> None:
    """Copies, malformed, late and faulty events are counted out, not thrown with dice."""
    simulated = simulate()
    kinds = Counter(entry.kind for entry in simulated)
    assert kinds[Kind.COPY] == round(0.3 * kinds[Kind.FACT])
    assert all(kinds[kind] == 2 for kind in MALFORMED)
    marked = facts(simulated)
    assert sum(entry.late for entry in marked) == 3
    assert Counter(entry.fault for entry in marked if entry.fault) == {
        Fault.CRASH: 2,
        Fault.FAIL: 4,
        Fault.POISON: 1,
        Fault.SLOW: 2,
    }


def test_facts_are_published_once_and_copies_after_them() -> None:
    """Each fact comes once, and every copy is one of a fact that came before."""
    seen: set[str | None] = set()
    for entry in simulate():
        if entry.kind is Kind.FACT:
            assert entry.fact not in seen
            seen.add(entry.fact)
        elif entry.kind is Kind.COPY:
            assert entry.fact in seen


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


def test_every_ride_lives_to_its_end() -> None:
    """Sequences of a ride have no gap, and the last fact completes or cancels it."""
    rides = defaultdict(list)
    for entry in facts(simulate()):
        event = parse_event({"detail": json.loads(entry.entry.detail)})
        rides[event.subject].append(event)
    assert len(rides) == 60
    ends: Counter[type] = Counter()
    for events in rides.values():
        events.sort(key=lambda event: event.sequence)
        assert [event.data.version for event in events] == list(range(1, len(events) + 1))
        ends[type(events[-1].data)] += 1
    assert set(ends) == {CarRideCompleted, CarRideCancelled}


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


def test_events_happen_up_to_the_present() -> None:
    """No event is from the future, and within a ride they happen one after the other."""
    last: dict[str, datetime] = {}
    for entry in facts(simulate(Spec(rides=30, seed=7))):
        event = parse_event({"detail": json.loads(entry.entry.detail)})
        assert entry.entry.time == event.time < NOW
        assert event.subject not in last or last[event.subject] < event.time
        last[event.subject] = event.time


@pytest.mark.parametrize("kind", [Kind.MISSING_ID, Kind.PARTIAL_ID, Kind.UNKNOWN_TYPE, Kind.BROKEN_SHAPE])
def test_malformed_events_break_the_contract(kind: Kind) -> None:
    """Each kind that reaches a consumer is refused by the contract."""
    for entry in simulate():
        if entry.kind is kind:
            with pytest.raises(ContractError):
                parse_event({"detail": json.loads(entry.entry.detail)})


def test_some_malformed_events_do_not_get_onto_the_bus() -> None:
    """One kind is no JSON and one is too large for PutEvents; all others are neither."""
    for entry in simulate():
        assert (entry.entry.size >= TOO_LARGE) == (entry.kind is Kind.OVERSIZED)
        if entry.kind is Kind.MALFORMED_DETAIL:
            with pytest.raises(json.JSONDecodeError):
                json.loads(entry.entry.detail)


def test_more_marks_than_facts_are_refused() -> None:
    """A simulation that cannot be says which field asks for too much."""
    with pytest.raises(SpecError) as refusal:
        Simulation(Spec(rides=1, late=2, poison=3), NOW)
    assert refusal.value.field == "poison"


def test_a_fare_grows_with_the_way_along_the_grid() -> None:
    """Cars drive along the streets, not over the houses."""
    assert fare(0, 1) < fare(0, 2) == fare(0, 9) < fare(0, 63)
