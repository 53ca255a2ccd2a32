"""A ride is booked, driven and paid from the command line."""

import json

import pytest

from tests.pipeline.operator.conftest import Operator

pytestmark = pytest.mark.integration


def test_a_ride_is_booked_driven_and_paid(
    operator: Operator, capsys: pytest.CaptureFixture[str]
) -> None:
    """As README.md and ops/docs/operations.md show it; a step that is repeated changes nothing."""
    operator.run("drive", "book", "--price", "1450", "--key", "mine", "--yes", "--json")
    ride = json.loads(capsys.readouterr().out)
    operator.run("drive", "book", "--price", "1450", "--key", "mine", "--yes", "--json")
    assert json.loads(capsys.readouterr().out) == ride
    for step in ("accept", "start", "complete"):
        operator.run("drive", step, ride["orderID"], "--yes")
    operator.pipeline.cloud.wait_until_quiet()
    operator.run("ride", ride["orderID"])
    assert f"{ride['orderID']} is paid" in capsys.readouterr().out
