"""Random lives of rides over the real handlers.

Whatever goes wrong on the way, every ride ends as its facts say.
"""

import math
import os
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from local.simulated_gateway import Troubles
from tests.carride.properties.town import Town

pytestmark = pytest.mark.proof

SHARES = st.sampled_from([0.0, 0.0, 0.5, 1.0])
TROUBLES = st.tuples(SHARES, SHARES, SHARES, SHARES, SHARES).map(
    lambda shares: Troubles(
        declined=shares[0],
        refused=shares[1],
        pending=shares[2],
        capped=shares[3],
        forgotten=shares[4],
    )
)


# The schedule follows from a seed: drawn choice by choice, schedules would be too alike to find a
# race.
@settings(max_examples=350)
@given(
    seed=st.integers(0, 2**32),
    rides=st.sampled_from([1, 3, 4]),
    cars=st.sampled_from([0, 1, 1, 2, 3]),
    troubles=TROUBLES,
    keys_s=st.sampled_from([5.0, math.inf]),
    lost=st.sampled_from([None, None, 0.0, 0.2, 0.6]),
)
def test_every_ride_ends_as_its_facts_say(
    seed: int, rides: int, cars: int, troubles: Troubles, *, keys_s: float, lost: float | None
) -> None:
    """Each fact takes effect once, no car has two rides, nobody pays twice, nothing stays reserved.

    Where the reconciler runs, no ride stays overdue, whatever events were lost on their way.
    """
    town = Town(Random(seed), troubles, keys_s=keys_s, lost=lost)  # noqa: S311 - a simulation, not a secret
    for number in range(cars):
        town.park(f"car_{number}", sector=f"sector_{number % 2 * 8 + 1:02d}")
    town.live(rides)
    town.settle()
    town.check()
    town.replay()
    town.check()


LIVES = int(os.environ.get("LIVES", "150"))
"""How many hard lives are lived."""
FEW = st.sampled_from([0.0, 0.0, 0.2, 0.4])
HARD = st.builds(
    Troubles, declined=FEW, refused=FEW, pending=FEW, capped=st.sampled_from([0.0, 1.0]), kept=FEW
)


@settings(max_examples=LIVES)
@given(
    seed=st.integers(0, 2**32),
    rides=st.sampled_from([1, 2, 3]),
    cars=st.sampled_from([1, 2, 3]),
    troubles=HARD,
    lost=st.sampled_from([0.0, 0.0, 0.2]),
)
def test_a_hard_life_ends_as_its_facts_say_too(
    seed: int, rides: int, cars: int, troubles: Troubles, lost: float
) -> None:
    """Rides are booked over the API, deliveries are hours late, and the gateway misbehaves.

    It refuses lookups, ignores what it is asked about, answers wrongly or without an end, keeps
    errors under their keys, and finishes requests of killed runs within the hour.
    """
    town = Town(Random(seed), troubles, keys_s=math.inf, lost=lost, hard=True)  # noqa: S311 - a simulation, not a secret
    for number in range(cars):
        town.park(f"car_{number}", sector=f"sector_{number % 2 * 8 + 1:02d}")
    town.live(rides)
    town.settle()
    town.check()
    town.replay()
    town.check()
