"""The reconciler in the deployed pipeline."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.kit.rides import event as event_of
from tests.pipeline.saga.town import Town

pytestmark = pytest.mark.integration


def test_rides_that_stand_still_are_settled(town: Town) -> None:
    """Nobody ends the one, and the end of the other expired on its way.

    Both give back what they hold, once.
    """
    abandoned = town.ride()
    expired = town.ride()
    town.hear(abandoned.created, abandoned.accepted, expired.created, expired.accepted)
    town.put(
        event_of(expired.completed, expirytime=datetime.now(UTC) - timedelta(hours=1)).to_detail()
    )
    town.settle()
    assert town.saga(abandoned, expired).cars_held == 2
    town.reconcile()
    saga = town.saga(abandoned, expired)
    assert saga.problems == {}
    assert (saga.endings, saga.cars_held, saga.reconciled) == ({"cancelled": 2}, 0, 2)
    assert [charge["status"] for charge in town.charges(abandoned, expired)] == ["refunded"] * 2
    town.reconcile()
    assert town.saga(abandoned, expired) == saga
