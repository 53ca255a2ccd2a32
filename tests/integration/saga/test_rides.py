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
    assert over.told == {"CarAssigned": 1, "CarReleased": 1, "PaymentAuthorized": 1, "PaymentCaptured": 1}


def test_a_ride_that_cannot_be_paid_gives_its_car_back(town: Town) -> None:
    """The gateway declines: dispatch hears of it and frees the car, and nothing is ever captured."""
    ride = town.ride(broke=True)
    town.hear(ride.accepted, ride.completed)
    saga = town.saga(ride)
    assert saga.problems == {}
    assert (saga.endings, saga.cars_held, saga.captured) == ({"declined": 1}, 0, 0)
    assert saga.told == {"CarAssigned": 1, "CarReleased": 1, "PaymentDeclined": 1}


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
