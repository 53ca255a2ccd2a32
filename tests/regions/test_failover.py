"""A failover half-way through a run: with the fence nothing is lost or doubled, without it something is doubled.

Both roles are deployed from the real template, in the order of `make deploy-regions`, as two regions of the local
engine, and failed over by the operator's own code. Simulated are, by the engine: that EventBridge, and so its pipes,
are late in one region (what was accepted waits there and arrives after all); the health check, which knows that at
once; the copies of events on the other bus; and the replication of tables, which stands still during the outage and
then catches up item by item, the last writer of an item winning. An account would show how long each of them takes.
"""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from botocore.exceptions import EndpointConnectionError

from carride.simulation import Simulation, Spec
from ops import fence
from ops.failover import Failover, Patience, Window, unfence
from ops.site import OperatorError, Site
from tests.engine.support import outage
from tests.regions.pair import AWAY, HOME, NAME, Regions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carride.entry import BusEntry

AT_ONCE: Final = Patience(runs=timedelta(), archive=timedelta(), catching_up=timedelta(minutes=1))
"""The engine archives at once, and says by itself when the last invocation has ended."""
RIDES: Final = 9
BOOKED: Final = 3
MINUTE: Final = timedelta(minutes=1)


class Run:
    """Rides in three parts: before the outage, at its beginning, and while events go to the secondary."""

    def __init__(self, regions: Regions) -> None:
        self.regions = regions
        now = datetime.now(UTC)
        self.window = Window(since=now - MINUTE)
        entries = [each.entry for each in Simulation(Spec(rides=RIDES, seed=7, duplicates=0.3), now).entries()]
        self.entries = entries
        third = len(entries) // 3
        self.parts: Sequence[Sequence[BusEntry]] = (entries[:third], entries[third : 2 * third], entries[2 * third :])
        self.said: list[str] = []

    def until_the_outage(self) -> None:
        """Let the primary work, then be late: what it still accepts waits, and so does its outbox."""
        outage(self.regions.laptop, lagging=True)  # as ever: a replica shows an effect later than the bus an event
        self.regions.publish(self.parts[0])
        self.regions.settle()
        outage(self.regions.laptop, lagging=False)
        outage(self.regions.laptop, late=[HOME], lagging=True)
        self.regions.publish_to(HOME, self.parts[1])  # the health check has not noticed
        self.regions.book(HOME, BOOKED)

    def in_the_outage(self) -> None:
        """Publish the rest, which the endpoint hands to the secondary."""
        self.regions.publish(self.parts[2])
        self.regions.settle()
        assert {event["region"] for event in self.regions.logged(self.regions.secondary)} == {HOME, AWAY}

    def publish_late(self) -> None:
        """Publish to the fenced primary: for a while yet, some producers do not know that they are steered away."""
        late = [each.entry for each in Simulation(Spec(rides=1, seed=8), datetime.now(UTC)).entries()]
        self.entries += late
        self.regions.publish_to(HOME, late)

    def without_route53(self, service: str, region: str) -> Any:
        """Return a client, but none that steers producers."""
        return Unreachable(service, region) if service == "route53" else self.regions.client(service, region)

    def failover(self, primary: Site, sleep: Any = lambda seconds: None) -> Failover:
        """Return what fails over."""
        return Failover(primary, self.regions.secondary, report=self.said.append, sleep=sleep)


@pytest.fixture
def run(regions: Regions) -> Run:
    """A run that has come as far as the outage, with the rest in the secondary."""
    run = Run(regions)
    run.until_the_outage()
    run.in_the_outage()
    return run


def test_a_fenced_primary_loses_and_doubles_nothing(run: Run) -> None:
    """Late, fenced, drained and replayed: every event takes effect once, whenever it arrives."""
    regions = run.regions
    waited: list[float] = []

    def catch_up(seconds: float) -> None:
        if not waited:
            run.publish_late()
        waited.append(seconds)
        outage(regions.laptop, lagging=False)

    outcome = run.failover(regions.primary, catch_up).run(run.window, AT_ONCE)
    assert waited, "the tables lag: the drain has to wait for them"
    assert outcome.drained
    assert outcome.republished > BOOKED
    assert outcome.replay.startswith(f"{AWAY}.")
    regions.settle()
    assert regions.published(run.entries) <= regions.applied(), "the secondary has caught up with everything"

    # What was late arrives in the primary after all: while it is fenced, and when it has started again.
    done = regions.deliveries(HOME)
    outage(regions.laptop, late=[])
    regions.settle()
    assert regions.deliveries(HOME) == done, "a fenced region works on nothing"
    with pytest.raises(EndpointConnectionError):
        unfence(Site(NAME, HOME, run.without_route53), regions.secondary, report=run.said.append)
    unfence(regions.primary, regions.secondary, report=run.said.append)
    regions.settle()
    assert regions.deliveries(HOME) > done
    ledger = regions.ledger()
    assert (ledger.lost, ledger.doubled) == (0, 0), ledger.to_text()
    assert ledger.replayed
    assert fence.fenced(regions.primary) is None
    assert {each for each in regions.laptop.asked() if not each.allowed} == set(), "no role lacks a permission"


def test_without_the_fence_effects_are_doubled(run: Run) -> None:
    """A primary out of reach is refused; where duplicates are accepted, both regions take the same events for new."""
    regions = run.regions
    out_of_reach = Site(NAME, HOME, Unreachable)
    before = replays(regions)
    with pytest.raises(OperatorError, match=r"nothing was handed over again.*--accept-duplicates"):
        run.failover(out_of_reach).run(run.window, AT_ONCE)
    assert replays(regions) == before

    outcome = run.failover(out_of_reach).run(run.window, AT_ONCE, accept_duplicates=True)
    assert not outcome.drained
    regions.settle()
    outage(regions.laptop, late=[])  # the primary was late, not dead, and its replicas have seen nothing of all that
    regions.settle()
    outage(regions.laptop, lagging=False)
    regions.settle()
    ledger = regions.ledger()
    assert ledger.doubled > 0, ledger.to_text()


def replays(regions: Regions) -> list[str]:
    """Return the names of the secondary's replays."""
    return [each["ReplayName"] for each in regions.client("events", AWAY).list_replays()["Replays"]]


class Unreachable:
    """A service of a region that is out of reach."""

    def __init__(self, service: str, region: str) -> None:
        self._url = f"https://{service}.{region}.amazonaws.com"

    def __getattr__(self, operation: str) -> Any:
        raise EndpointConnectionError(endpoint_url=self._url)
