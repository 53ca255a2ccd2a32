"""Whole rides through the deployed pipeline: booked, driven, paid; or undone, from wherever they had got to."""

from tests.integration.saga.town import CARS, Town


def test_a_ride_lives_from_acceptance_to_payment(town: Town) -> None:
    """It gets a car, its money is reserved, and when it is over the car is free and the money taken."""
    ride = town.ride()
    town.hear(ride.created, ride.accepted)
    under_way = town.saga(ride)
    assert (under_way.endings, under_way.cars_held) == ({"open": 1}, 1)
    assert [charge["status"] for charge in town.charges(ride)] == ["authorized"]
    town.hear(ride.started, ride.completed)
    over = town.saga(ride)
    assert over.problems == {}
    assert (over.endings, over.cars_held, over.captured) == ({"paid": 1}, 0, 1)
    assert over.emitted == {"CarAssigned": 1, "CarReleased": 1, "PaymentAuthorized": 1, "PaymentCaptured": 1}


def test_a_ride_that_is_called_off_leaves_nothing_behind(town: Town) -> None:
    """The car is free and the money released, whether the ride had both or neither."""
    early, late = town.ride(), town.ride()
    town.hear(early.created, early.cancelled)
    town.hear(late.accepted, late.cancelled)
    saga = town.saga(early, late)
    assert saga.problems == {}
    assert (saga.endings, saga.cars_held) == ({"cancelled": 2}, 0)
    assert saga.emitted == {"CarAssigned": 1, "CarReleased": 1, "PaymentAuthorized": 1, "PaymentRefunded": 1}
    assert [(charge["status"], charge["captures"]) for charge in town.charges(early, late)] == [("refunded", [])]


def test_a_ride_that_cannot_be_paid_gives_its_car_back(town: Town) -> None:
    """The gateway declines: dispatch hears of it and frees the car, and nothing is ever captured."""
    ride = town.ride(broke=True)
    town.hear(ride.accepted, ride.completed)
    saga = town.saga(ride)
    assert saga.problems == {}
    assert (saga.endings, saga.cars_held, saga.captured) == ({"declined": 1}, 0, 0)
    assert saga.emitted == {"CarAssigned": 1, "CarReleased": 1, "PaymentDeclined": 1}


def test_a_ride_without_a_car_is_never_charged(town: Town) -> None:
    """There is one car less than rides: one is told that there is none, and the gateway hears nothing of it."""
    rides = [town.ride() for _ in range(CARS + 1)]
    town.put(*(ride.accepted for ride in rides))
    town.settle()
    saga = town.saga(*rides)
    assert saga.problems == {}
    assert (saga.endings, saga.cars_held) == ({"open": CARS, "unserved": 1}, CARS)
    assert len(town.charges(*rides)) == CARS
    town.put(*(ride.completed for ride in rides))
    town.settle()
    assert town.saga(*rides).endings == {"paid": CARS, "unserved": 1}


def test_a_ride_whose_events_come_backwards_ends_the_same(town: Town) -> None:
    """The end is heard of first, and the request last: one car, one charge, paid."""
    ride = town.ride()
    town.hear(ride.completed, ride.started, ride.accepted, ride.created)
    saga = town.saga(ride)
    assert saga.problems == {}
    assert (saga.endings, saga.cars_held, saga.captured) == ({"paid": 1}, 0, 1)


def test_everything_at_once_ends_the_same(town: Town) -> None:
    """All events of two rides at one moment, each twice: consumers get into each other's way, and agree in the end."""
    paid, cancelled = town.ride(), town.ride()
    town.put(paid.completed, paid.accepted, cancelled.cancelled, cancelled.accepted, paid.completed, paid.accepted)
    town.put(cancelled.cancelled, cancelled.accepted)
    town.settle()
    saga = town.saga(paid, cancelled)
    assert saga.problems == {}
    assert (saga.endings, saga.cars_held) == ({"paid": 1, "cancelled": 1}, 0)
