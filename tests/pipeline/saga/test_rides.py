"""Whole rides through the deployed pipeline: booked, driven and paid; or settled by the reconciler."""

from datetime import UTC, datetime, timedelta

from tests.functions.api.client import BOOKING, Api
from tests.functions.saga import event_of
from tests.pipeline.saga.town import Town


def test_rides_that_stand_still_are_settled(town: Town) -> None:
    """Nobody ends the one, and the end of the other expired on its way: both give back what they hold, once."""
    abandoned, expired = town.ride(), town.ride()
    town.hear(abandoned.created, abandoned.accepted, expired.created, expired.accepted)
    town.put(event_of(expired.completed, expirytime=datetime.now(UTC) - timedelta(hours=1)).to_detail())
    town.settle()
    assert town.saga(abandoned, expired).cars_held == 2
    town.reconcile()
    saga = town.saga(abandoned, expired)
    assert saga.problems == {}
    assert (saga.endings, saga.cars_held, saga.reconciled) == ({"cancelled": 2}, 0, 2)
    assert [charge["status"] for charge in town.charges(abandoned, expired)] == ["refunded"] * 2
    town.reconcile()
    assert town.saga(abandoned, expired) == saga


def test_a_booking_that_nobody_ends_is_cancelled(town: Town) -> None:
    """The caller finds the ride cancelled; its car is free, and its money released."""
    api, order = Api(town.cloud, town.stack), BOOKING | {"pickup": "sector_10"}
    ride = api.send("POST", "/carrides", order, key="abandoned-book").body
    path = f"/carrides/{ride['orderID']}"
    api.send("PUT", path, {"action": "accept", "version": 1}, key="abandoned-accept")
    town.settle()
    town.reconcile()
    found = api.send("GET", path).body
    assert found["status"] == "cancelled"
    assert {"CarReleased", "PaymentRefunded"} <= {each["type"] for each in found["timeline"]}
