from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from carride import ride as rides
from carride.ride import OPEN, IllegalTransitionError, RideError, StaleVersionError, Status
from tests.carride.rides import booked


class RideMachine(RuleBasedStateMachine):
    """A ride to which anything may be tried at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.ride = booked()
        self.past = [self.ride]

    def try_(self, action: str, *arguments: object, seen: int | None) -> None:
        """Try something, and hold the answer against what the rules say."""
        before = self.ride
        try:
            after = getattr(rides, action)(before, *arguments, seen=seen)
        except StaleVersionError:
            assert seen not in {None, before.version}
        except IllegalTransitionError:
            assert before.status not in OPEN or action in {"accept", "start", "complete"}
        except RideError:
            assert action == "change_destination"
        else:
            assert seen in {None, before.version}
            self.ride = after
            self.past.append(after)

    @rule(
        action=st.sampled_from(["accept", "start", "complete", "cancel"]),
        seen=st.none() | st.integers(1, 8),
    )
    def move(self, action: str, seen: int | None) -> None:
        """Try one of the plain transitions."""
        self.try_(action, seen=seen)

    @rule(destination=st.sampled_from(["sector_01", "sector_02", "sector_03"]), seen=st.none() | st.integers(1, 8))
    def redirect(self, destination: str, seen: int | None) -> None:
        """Try to change the destination."""
        self.try_("change_destination", destination, 700, seen=seen)

    @precondition(lambda self: self.ride.status in OPEN)
    @rule()
    def cancel_is_always_open(self) -> None:
        """Until it is over, a ride can be cancelled."""
        assert rides.cancel(self.ride).status is Status.CANCELLED

    @invariant()
    def versions_count_the_changes(self) -> None:
        """The version is the number of facts so far, so that facts of one ride have distinct numbers."""
        assert [ride.version for ride in self.past] == list(range(1, len(self.past) + 1))

    @invariant()
    def what_is_over_stays_over(self) -> None:
        """After completion or cancellation nothing follows."""
        assert all(ride.status in OPEN for ride in self.past[:-1])

    @invariant()
    def a_ride_goes_somewhere(self) -> None:
        """No change makes it end where it begins."""
        assert self.ride.pickup != self.ride.destination


RideMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=12, deadline=None)
TestRide = RideMachine.TestCase
