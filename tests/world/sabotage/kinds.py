"""The kinds of sabotage: one wrong thing each, that no honest history could produce.

A kind acts when the story is over (*at rest*) or while it is lived (*in flight*), and says what the
audit has to name.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from tests.world.sabotage import at_rest, in_flight
from tests.world.sabotage.hand import Hand
from tests.world.story import Step, Story, Tier, tell

AT_REST: Final = "at rest"
IN_FLIGHT: Final = "in flight"


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
    "a second charge": Kind(AT_REST, at_rest.second_charge),
    "a second capture": Kind(AT_REST, at_rest.second_capture),
    "a declined payment that was captured": Kind(AT_REST, at_rest.captured_decline, _declining),
    "a payment that the gateway lost": Kind(AT_REST, at_rest.lost_payment),
    "a capture above the price": Kind(AT_REST, at_rest.too_much),
    "a capture below the price": Kind(AT_REST, at_rest.too_little, _driven),
    "a capture of a cancelled ride": Kind(AT_REST, at_rest.captured_cancellation, _called_off),
    "a payment that was returned by hand": Kind(IN_FLIGHT, in_flight.returned_by_hand, _driven),
    "an assignment that went backwards": Kind(AT_REST, at_rest.assignment_went_backwards),
    "a booking behind its events": Kind(AT_REST, at_rest.booking_that_is_behind),
    "a booking with another status": Kind(AT_REST, at_rest.booking_of_another_status, _driven),
    "a payment that waits for ever": Kind(AT_REST, at_rest.payment_that_is_open_again),
    "a car held by an ended ride": Kind(AT_REST, at_rest.car_of_an_ended_ride),
    "two cars of one ride": Kind(AT_REST, at_rest.two_cars, _with_more_cars),
    "a free car that dispatch cannot find": Kind(AT_REST, at_rest.car_outside_of_the_index),
    "payment counted an effect twice": Kind(AT_REST, at_rest.counted_twice),
    "dispatch's entry in another ride": Kind(AT_REST, at_rest.entry_of_another_ride),
    "another payload under a key": Kind(AT_REST, at_rest.another_payload),
    "a line of history about nothing": Kind(AT_REST, at_rest.line_about_nothing),
    "an event that was lost in the pipe": Kind(IN_FLIGHT, in_flight.lost_in_the_pipe),
    "an event that was changed in the pipe": Kind(
        IN_FLIGHT, in_flight.changed_in_the_pipe, _driven
    ),
    "an event that the ride history never got": Kind(IN_FLIGHT, in_flight.lost_on_the_way),
    "a second end of one version": Kind(IN_FLIGHT, in_flight.second_end, _driven),
    "a second release of a car": Kind(IN_FLIGHT, in_flight.second_release),
    "a dead letter that was deleted": Kind(IN_FLIGHT, in_flight.lost_letters, _heavy),
    "dispatch's record without its effect": Kind(IN_FLIGHT, in_flight.record_without_its_effect),
    "a booking without its event": Kind(IN_FLIGHT, in_flight.booking_without_its_event),
    "payment forgot a key": Kind(IN_FLIGHT, in_flight.forgotten_key),
}
"""What is planted, by its name.

Kinds differ in what the audit says of them, or in how it finds that out.
"""
