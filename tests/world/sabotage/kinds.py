"""The kinds of sabotage: one wrong thing each, that no honest history could produce.

A kind acts when the story is over (*at rest*) or while it is lived (*in flight*), and says what the
audit has to name.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from tests.world.sabotage import at_rest, in_flight
from tests.world.sabotage.hand import BOOKINGS, Hand
from tests.world.story import Step, Story, Tier, tell

AT_REST: Final = "at rest"
IN_FLIGHT: Final = "in flight"
_CHANGES: Final = (
    "CarRideCreated",
    "CarRideAccepted",
    "CarRideStarted",
    "CarRideCompleted",
    "CarRideDestinationChanged",
)
"""The types of events that a booking is committed with, but for cancellations."""


class Kind(NamedTuple):
    """A kind of sabotage."""

    when: str
    """`AT_REST` or `IN_FLIGHT`."""
    plant: Callable[[Hand], None]
    suited: Callable[[Story], Story] = lambda story: story
    """Makes a story one in which it can be planted more often."""


def _driven(story: Story) -> Story:
    """Have every ride driven to its end."""
    steps = (Step("accept", 60.0), Step("start", 300.0), Step("complete", 1200.0))
    return story._replace(lives=tuple(life._replace(steps=steps) for life in story.lives))


def _called_off(story: Story) -> Story:
    """Have every ride cancelled after it was accepted."""
    steps = (Step("accept", 60.0), Step("cancel", 900.0))
    return story._replace(lives=tuple(life._replace(steps=steps) for life in story.lives))


def _declining(story: Story) -> Story:
    return story._replace(troubles=story.troubles._replace(declined=0.7))


def _with_more_cars(story: Story) -> Story:
    return story._replace(cars=len(story.lives) + 2)


def _heavy(story: Story) -> Story:
    return tell(story.seed, Tier.HEAVY)


KINDS: Final[Mapping[str, Kind]] = {
    "a charge without a ride": Kind(AT_REST, at_rest.charge_without_a_ride),
    "a second charge": Kind(AT_REST, at_rest.second_charge),
    "a second capture": Kind(AT_REST, at_rest.second_capture),
    "a second refund": Kind(AT_REST, at_rest.second_refund, _called_off),
    "a refund that nobody asked for": Kind(AT_REST, at_rest.unasked_refund),
    "a refund that was not made": Kind(AT_REST, at_rest.refund_that_is_not_made, _called_off),
    "a declined payment that was captured": Kind(AT_REST, at_rest.captured_decline, _declining),
    "a payment that the gateway lost": Kind(AT_REST, at_rest.lost_payment),
    "another amount at the gateway": Kind(AT_REST, at_rest.another_amount),
    "a capture above the price": Kind(AT_REST, at_rest.too_much),
    "a capture below the price": Kind(AT_REST, at_rest.too_little, _driven),
    "a capture of a cancelled ride": Kind(AT_REST, at_rest.captured_cancellation, _called_off),
    "a payment that went backwards": Kind(AT_REST, at_rest.payment_went_backwards),
    "an assignment that went backwards": Kind(AT_REST, at_rest.assignment_went_backwards),
    "a booking ahead of its events": Kind(AT_REST, at_rest.booking_that_is_ahead),
    "a booking behind its events": Kind(AT_REST, at_rest.booking_that_is_behind),
    "a booking with another price": Kind(AT_REST, at_rest.booking_of_another_price),
    "a booking with another status": Kind(AT_REST, at_rest.booking_of_another_status, _driven),
    "a booking that waits for ever": Kind(AT_REST, partial(at_rest.open_again, table=BOOKINGS)),
    "a payment that waits for ever": Kind(
        AT_REST, partial(at_rest.open_again, table="PaymentTable")
    ),
    "an assignment that waits for ever": Kind(
        AT_REST, partial(at_rest.open_again, table="AssignmentTable")
    ),
    "a car held by an ended ride": Kind(AT_REST, at_rest.car_of_an_ended_ride),
    "a car held by nobody's ride": Kind(AT_REST, at_rest.car_of_nobody),
    "two cars of one ride": Kind(AT_REST, at_rest.two_cars, _with_more_cars),
    "a free car that dispatch cannot find": Kind(AT_REST, at_rest.car_outside_of_the_index),
    "dispatch lost a ride": Kind(AT_REST, partial(at_rest.lost_item, consumer="dispatch")),
    "payment lost a ride": Kind(AT_REST, partial(at_rest.lost_item, consumer="payment")),
    "dispatch lost an entry": Kind(AT_REST, partial(at_rest.lost_entry, consumer="dispatch")),
    "payment lost an entry": Kind(AT_REST, partial(at_rest.lost_entry, consumer="payment")),
    "dispatch counted an effect twice": Kind(
        AT_REST, partial(at_rest.counted_twice, consumer="dispatch")
    ),
    "payment counted an effect twice": Kind(
        AT_REST, partial(at_rest.counted_twice, consumer="payment")
    ),
    "dispatch's entry in another ride": Kind(
        AT_REST, partial(at_rest.entry_of_another_ride, consumer="dispatch")
    ),
    "payment's entry in another ride": Kind(
        AT_REST, partial(at_rest.entry_of_another_ride, consumer="payment")
    ),
    "another payload under a key": Kind(AT_REST, at_rest.another_payload),
    "a missing line of history": Kind(AT_REST, at_rest.lost_line),
    "a doubled line of history": Kind(AT_REST, at_rest.line_twice),
    "a line of history in another ride": Kind(AT_REST, at_rest.line_of_another_ride),
    "a line of history of another type": Kind(AT_REST, at_rest.line_of_another_type),
    "a line of history about nothing": Kind(AT_REST, at_rest.line_about_nothing),
    "a change that the log lost": Kind(
        AT_REST, lambda hand: at_rest.event_that_the_log_lost(hand, *_CHANGES)
    ),
    "an event of dispatch that the log lost": Kind(
        AT_REST, lambda hand: at_rest.event_that_the_log_lost(hand, "CarAssigned", "CarReleased")
    ),
    "an event that was lost in the pipe": Kind(IN_FLIGHT, in_flight.lost_in_the_pipe),
    "an event that was changed in the pipe": Kind(
        IN_FLIGHT, in_flight.changed_in_the_pipe, _driven
    ),
    "an event that the ride history never got": Kind(
        IN_FLIGHT,
        partial(in_flight.lost_on_the_way, consumer="ride-history", function="RideHistoryFunction"),
    ),
    "an event that payment never got": Kind(
        IN_FLIGHT,
        partial(in_flight.lost_on_the_way, consumer="payment", function="PaymentFunction"),
    ),
    "a message that was lost in dispatch's queue": Kind(IN_FLIGHT, in_flight.lost_in_the_queue),
    "another price on the way to payment": Kind(
        IN_FLIGHT, in_flight.another_price_for_payment, _driven
    ),
    "a second end of one version": Kind(IN_FLIGHT, in_flight.second_end, _driven),
    "a second release of a car": Kind(IN_FLIGHT, in_flight.second_release),
    "a dead letter that was deleted": Kind(IN_FLIGHT, in_flight.lost_letters, _heavy),
    "dispatch's record without its effect": Kind(
        IN_FLIGHT, partial(in_flight.record_without_its_effect, consumer="dispatch")
    ),
    "payment's record without its effect": Kind(
        IN_FLIGHT, partial(in_flight.record_without_its_effect, consumer="payment")
    ),
    "dispatch's effect took place twice": Kind(
        IN_FLIGHT, partial(in_flight.effect_twice, consumer="dispatch")
    ),
    "payment's effect took place twice": Kind(
        IN_FLIGHT, partial(in_flight.effect_twice, consumer="payment")
    ),
    "a booking without its event": Kind(
        IN_FLIGHT, partial(in_flight.effect_without_its_event, table=BOOKINGS)
    ),
    "dispatch's effect without its event": Kind(
        IN_FLIGHT, partial(in_flight.effect_without_its_event, table="AssignmentTable")
    ),
    "payment's effect without its event": Kind(
        IN_FLIGHT, partial(in_flight.effect_without_its_event, table="PaymentTable")
    ),
    "an event without its booking's change": Kind(IN_FLIGHT, in_flight.event_without_its_change),
    "a second car on assignment": Kind(IN_FLIGHT, in_flight.second_car, _with_more_cars),
    "dispatch forgot a key": Kind(IN_FLIGHT, partial(in_flight.forgotten_key, consumer="dispatch")),
    "payment forgot a key": Kind(IN_FLIGHT, partial(in_flight.forgotten_key, consumer="payment")),
    "more captured than asked, and said so": Kind(IN_FLIGHT, in_flight.captured_more, _driven),
    "more captured than asked, in secret": Kind(
        IN_FLIGHT, in_flight.captured_more_secretly, _driven
    ),
    "a reservation made twice": Kind(IN_FLIGHT, in_flight.reserved_twice),
    "a refund that the gateway forgot": Kind(IN_FLIGHT, in_flight.refund_is_lost, _called_off),
}
"""What is planted, by its name."""
