"""What `make capacity` says follows from the template, what a ride uses, and AWS's quotas."""

import pytest

from tools import costs
from tools.capacity import (
    EMITTED,
    QUOTAS,
    bounds,
    for_rides,
    granted,
    growing,
    simulate,
    stations,
)
from tools.transformed import stack

pytestmark = pytest.mark.integration


def test_quotas_are_the_first_bound_of_a_grown_stack() -> None:
    """With the quotas of a new account, 600 rides a second fit once the tables have grown; with raised ones, 10,000."""
    first = next(bound for bound in bounds(stack()) if bound.by != "WarmUnits")
    assert first.rides >= 600
    wide = bounds(stack(**for_rides(10_000)))
    assert min(bound.rides for bound in wide if bound.by not in QUOTAS) >= 10_000


@pytest.mark.parametrize("parameter", ["ApiRate", "DispatchConcurrency", "WarmUnits"])
def test_a_bound_follows_its_parameter(parameter: str) -> None:
    """Twice the parameter is twice the rides, and the needed value is what one ride a second takes of it."""
    once, twice = (
        next(
            bound
            for bound in bounds(stack(**{parameter: str(value)}))
            if bound.by == parameter and bound.needed
        )
        for value in (500_000, 1_000_000)
    )
    assert twice.rides == pytest.approx(2 * once.rides)
    assert once.rides * once.needed == pytest.approx(500_000, rel=0.01)


def test_every_function_of_a_ride_has_a_station() -> None:
    """A new consumer is part of the bounds and of the simulation."""
    deployed = stack(PaymentGatewayUrl="https://gateway.example")
    assert {f"{name}Function" for name in costs.ROUND_TRIPS} == set(costs.calls(deployed))
    assert costs.REQUESTS + sum(EMITTED.values()) == len(costs.EVENTS)


def test_no_queue_grows_at_a_thousand_rides_a_second() -> None:
    """With the parameters and quotas for that load; otherwise the queue before the first bound grows."""
    assert growing(simulate(granted(stack(**for_rides(1000)), 1000), 1000)) == []
    assert "Bus" in growing(simulate(stations(stack()), 1000))
    assert growing(simulate(stations(stack(DispatchConcurrency="30")), 500)) == ["Dispatch"]
