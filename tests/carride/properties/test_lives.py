"""Random lives of rides over the real handlers: whatever goes wrong on the way, every ride ends as its facts say."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from local.simulated_gateway import Troubles
from tests.carride.properties.town import Town

SHARES = st.sampled_from([0.0, 0.0, 0.5, 1.0])
TROUBLES = st.builds(Troubles, declined=SHARES, refused=SHARES, pending=SHARES, capped=SHARES, forgotten=SHARES)


# The schedule follows from a seed: drawn choice by choice, schedules would be too alike to find a race.
@settings(deadline=None, max_examples=450)
@given(
    seed=st.integers(0, 2**32),
    rides=st.sampled_from([1, 3, 4]),
    cars=st.sampled_from([0, 1, 1, 2, 3]),
    troubles=TROUBLES,
    strict=st.booleans(),
)
def test_every_ride_ends_as_its_facts_say(
    seed: int, rides: int, cars: int, troubles: Troubles, *, strict: bool
) -> None:
    """Each fact takes effect once, no car has two rides, nobody pays twice, and nothing stays reserved."""
    town = Town(Random(seed), troubles, strict=strict)  # noqa: S311 - a simulation, not a secret
    town.park(cars)
    town.live(rides)
    town.check()
    town.replay()
    town.check()
