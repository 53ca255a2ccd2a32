"""How requests are protected. A key is remembered for a day, longer than clients retry.

Only outages and bugs fail an attempt, and clients may retry those without limit.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from carride_idempotency import Policy

_MOST_ATTEMPTS: Final = 1_000

RIDES: Final = Policy(
    window=timedelta(days=1), max_attempts=_MOST_ATTEMPTS, atomic=True, conflict_reruns=2
)
"""Of a request about rides. After a conflict it is decided again, on the ride that another request
has changed."""

SIMULATIONS: Final = Policy(window=timedelta(days=1), max_attempts=_MOST_ATTEMPTS)
"""Of a request for a simulation. It is claimed: an invocation is not part of a transaction."""

LOCK_S: Final = 900
"""No other simulation starts for as long as one can run."""

SIMULATION_LOCK: Final = Policy(window=LOCK_S, max_attempts=_MOST_ATTEMPTS)
"""Of the lock that lets one simulation run at a time."""

OF_RIDES: Final = "carride-api"
OF_SIMULATIONS: Final = "carride-api-simulate"
CONSUMERS: Final[Mapping[str, Policy]] = {OF_RIDES: RIDES, OF_SIMULATIONS: SIMULATIONS}
"""The policies by the names with which the keys of requests begin."""
