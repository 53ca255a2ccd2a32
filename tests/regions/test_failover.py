"""A failover in the middle of a run.

With the fence nothing is lost or doubled, without it effects are doubled.

Both roles are deployed from the real template and failed over by the operator's code. The engine
simulates the rest: EventBridge and its pipes are late in one region, and deliver later what they
have accepted; the health check notices that at once; events are copied to the other bus; the
replication of tables stands still during the outage and then catches up item by item, and the last
writer of an item wins. Only an account shows how long each of these takes.
"""

import time
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from botocore.exceptions import EndpointConnectionError

from carride.region_fence import KNOWN_FOR
from carride.simulation_spec import Spec
from ops import fence
from ops.failover import Failover, Patience
from ops.stack import OperatorError, StackRef
from simulated_rides import Simulation
from tests.regions.pair import AWAY, HOME, NAME, Regions, unreachable

pytestmark = [pytest.mark.integration, pytest.mark.thorough]

AT_ONCE: Final = Patience(timedelta(), timedelta(), timedelta(minutes=1))
"""The engine archives at once, and the tests wait for its last invocation."""
SLOW_S: Final = 60.0
"""How much longer a loaded machine may take."""
RIDES: Final = 9
BOOKED: Final = 3


class Run:
    """Rides in three parts: before the outage, at its beginning, and after the failover."""

    def __init__(self, regions: Regions) -> None:
        self.regions = regions
        now = datetime.now(UTC)
        self.since = now - timedelta(minutes=1)
        self.entries = [
            each.entry
            for each in Simulation(Spec(rides=RIDES, seed=7, duplicates=0.3), now).entries()
        ]
        third = len(self.entries) // 3
        # A replica always shows an effect later than the bus its event.
        regions.cloud.control("outages", lagging=True)
        regions.publish(self.entries[:third])
        regions.settle()
        regions.cloud.control("outages", lagging=False)
        # The primary is late: events that it accepts wait, and so does its outbox. The health check
        # has not noticed.
        regions.cloud.control("outages", late=[HOME], lagging=True)
        regions.publish_to(HOME, self.entries[third : 2 * third])
        regions.book(regions.primary, BOOKED)
        regions.publish(self.entries[2 * third :])  # which the endpoint sends to the secondary
        regions.settle()
        assert {event["region"] for event in regions.logged(regions.secondary)} == {HOME, AWAY}

    def publish_late(self) -> None:
        """Publish to the fenced primary: some producers learn late that they are steered away."""
        late = [
            each.entry for each in Simulation(Spec(rides=1, seed=8), datetime.now(UTC)).entries()
        ]
        self.entries += late
        self.regions.publish_to(HOME, late)

    def without_route53(self, service: str, region: str) -> Any:
        """Return a client, except one that steers producers."""
        return (unreachable if service == "route53" else self.regions.client)(service, region)

    def failover(self, primary: StackRef, sleep: Any = lambda seconds: None) -> Failover:
        return Failover(primary, self.regions.secondary, lambda text: None, sleep)


@pytest.fixture
def run(regions: Regions) -> Run:
    """A run during the outage, with the rest in the secondary."""
    return Run(regions)


def test_a_fenced_primary_loses_and_doubles_nothing(run: Run) -> None:
    """Every event takes effect once, whenever it arrives, and the reconciler runs in one region."""
    regions = run.regions
    # The local stage deploys it disabled.
    fence.switch_schedules(regions.primary, ["ReconcilerFunctionSchedule"], on=True)
    assert reconciling(regions) == [HOME]
    waited: list[float] = []

    def catch_up(seconds: float) -> None:
        if not waited:
            run.publish_late()
        waited.append(seconds)
        regions.cloud.control("outages", lagging=False)

    outcome = run.failover(regions.primary, catch_up).run(run.since, None, AT_ONCE)
    assert waited, "the tables lag: the drain has to wait for them"
    assert outcome.drained
    assert outcome.outbox.republished > BOOKED
    assert outcome.replay.startswith(f"{AWAY}.")
    assert reconciling(regions) == [AWAY]
    regions.settle()
    assert regions.published(run.entries) <= regions.applied(), (
        "the secondary has caught up with everything"
    )

    assert regions.ask(regions.primary, "GET") == (200, None)
    deadline = time.monotonic() + KNOWN_FOR.total_seconds() + SLOW_S
    while regions.ask(regions.primary, "POST", {"no": "booking"}) != (503, "30"):
        assert time.monotonic() < deadline, "a fenced region accepts no write"
    # Late events arrive in the primary: while it is fenced, and when it has started again.
    done = regions.deliveries(regions.primary)
    regions.cloud.control("outages", late=[])
    regions.settle()
    assert regions.deliveries(regions.primary) == done, "a fenced region works on nothing"
    fence.forget(regions.primary)  # whoever deleted it: everything starts
    with pytest.raises(EndpointConnectionError):
        run.failover(StackRef(NAME, HOME, run.without_route53)).undo()
    run.failover(regions.primary).undo()
    assert reconciling(regions) == [HOME]
    regions.settle()
    assert regions.deliveries(regions.primary) > done
    ledger = regions.ledger()
    assert (ledger.lost, ledger.doubled) == (0, 0), ledger.to_text()
    assert ledger.replayed
    assert fence.fenced(regions.primary) is None
    assert {each for each in regions.cloud.asked() if not each.allowed} == set(), (
        "no role lacks a permission"
    )


def test_without_the_fence_effects_are_doubled(run: Run) -> None:
    """An unreachable primary is refused.

    If duplicates are accepted, both regions process the same events as new.
    """
    regions = run.regions
    out_of_reach = StackRef(NAME, HOME, unreachable)
    before = replays(regions)
    with pytest.raises(
        OperatorError, match=r"nothing was republished or replayed.*--accept-duplicates"
    ):
        run.failover(out_of_reach).run(run.since, None, AT_ONCE)
    assert replays(regions) == before

    outcome = run.failover(out_of_reach).run(run.since, None, AT_ONCE, accept_duplicates=True)
    assert not outcome.drained
    assert reconciling(regions) == [AWAY]
    regions.settle()
    # The primary was late, not dead, and its replicas have seen nothing of all that.
    regions.cloud.control("outages", late=[])
    regions.settle()
    regions.cloud.control("outages", lagging=False)
    regions.settle()
    ledger = regions.ledger()
    assert ledger.doubled > 0, ledger.to_text()


def replays(regions: Regions) -> list[str]:
    return [each["ReplayName"] for each in regions.client("events", AWAY).list_replays()["Replays"]]


def reconciling(regions: Regions) -> list[str]:
    """Return the regions whose schedule starts the reconciler."""

    def state(stack: StackRef) -> str:
        name = stack.named(fence.SCHEDULE)["ReconcilerFunctionSchedule"]
        return str(stack.client("scheduler").get_schedule(Name=name)["State"])

    return [
        stack.region for stack in (regions.primary, regions.secondary) if state(stack) == "ENABLED"
    ]
