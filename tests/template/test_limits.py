"""How many rides fit follows from the template, what a ride uses, and AWS's quotas."""

import re
from datetime import timedelta

import pytest

from tools.costs import bill
from tools.costs.limits import QUOTAS, WARMTH, bounds, for_rides
from tools.transformed import ROOT, source, stack

pytestmark = pytest.mark.integration


def test_no_setting_stops_a_grown_stack_before_aws_does() -> None:
    """Once the tables have grown, the quotas of a new account are the first bound.

    With the parameters for it, raised quotas and grown tables, 10,000 rides a second fit.
    """
    found = bounds(stack(**bill.PRODUCTION))
    first_quota = min(bound.rides for bound in found if bound.by in QUOTAS)
    earlier = [bound for bound in found if bound.rides < first_quota]
    assert [bound for bound in earlier if bound.by != WARMTH] == []
    for chosen in (bill.PRODUCTION, {}, {"TableBilling": "provisioned"}):
        wide = bounds(stack(**for_rides(10_000, **chosen)))
        settings = [bound for bound in wide if bound.by not in (WARMTH, *QUOTAS)]
        assert min(bound.rides for bound in settings) >= 10_000, chosen


def test_the_first_bound_of_production_is_a_new_table() -> None:
    """It is on demand, so no parameter raises it, and the page says how to warm it."""
    first = bounds(stack(**bill.PRODUCTION))[0]
    assert (first.what, first.by) == ("units of IdempotencyTable while it is new", WARMTH)
    assert first.rides == bill.NEW_TABLE / bill.TABLES["IdempotencyTable"].write_units


@pytest.mark.parametrize("parameter", ["ApiRate", "DispatchConcurrency", "MaxCapacity"])
def test_a_bound_follows_its_parameter(parameter: str) -> None:
    """Twice the parameter is twice the rides, and "needed" is what one ride a second takes."""
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


def test_the_first_bound_of_a_dev_stack_is_its_outbox() -> None:
    """It is provisioned: MaxCapacity bounds it, however much the tables on demand take."""
    first = bounds(stack())[0]
    assert "OutboxTable" in first.what
    assert first.by == "MaxCapacity"
    assert first.rides == 500 / bill.TABLES["OutboxTable"].write_units


def test_a_reservation_outlasts_a_ride_that_stands_still_as_often_as_it_may() -> None:
    """Four times `OverdueHours` at its maximum is shorter than each card network holds the money.

    A ride may stand still before it is started, completed and settled, and the reconciler looks
    again.
    """
    most = timedelta(hours=source()["Parameters"]["OverdueHours"]["MaxValue"])
    page = (ROOT / "docs" / "payment-gateway.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| (\d+) days(?: (\d+) hours)? \|$", page, re.MULTILINE)
    holds = [timedelta(days=int(days), hours=int(hours or 0)) for days, hours in rows]
    assert min(holds) == timedelta(days=4, hours=18)
    assert 4 * most < min(holds)


def test_every_function_of_a_ride_has_a_station() -> None:
    """A consumer that nobody has measured counts with one request for each of its events."""
    deployed = stack(PaymentGatewayUrl="https://gateway.example")
    found = bill.round_trips(deployed)
    assert {f"{name}Function" for name in found} == set(bill.calls(deployed))
    assert found.items() >= bill.ROUND_TRIPS.items()
