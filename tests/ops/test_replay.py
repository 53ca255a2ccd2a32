"""Where a replay may be started, its name and what it leaves out."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from ops import replay
from ops.stack import Kept, OperatorError, StackRef
from tests.ops.world import AWAY, HOME, NOW, World, stack


def replays(name: str, state: str) -> dict[str, Any]:
    """Return the regions' replays.

    Two of the other region, the last of which has a name and a state.
    """
    last = {"ReplayName": name, "State": state}
    return {"replays": {HOME: [], AWAY: [{"ReplayName": "old", "State": "COMPLETED"}, last]}}


@pytest.mark.parametrize(
    ("region", "changes", "refused"),
    [
        (HOME, {"roles": dict.fromkeys((HOME, AWAY), "standalone")}, None),
        (HOME, {}, None),
        (AWAY, {"fenced": {HOME}}, None),
        (HOME, replays("plan.1", "RUNNING"), None),
        *(
            (HOME, replays("new", state), r"running \(new\)")
            for state in ("STARTING", "RUNNING", "CANCELLING")
        ),
        (AWAY, {}, "us-west-2 is at work"),
        (HOME, {"fenced": {HOME}}, "us-west-2 is fenced"),
        (HOME, {"unreachable": {AWAY}}, "us-east-1 cannot be asked"),
    ],
)
def test_a_replay_is_refused_where_another_region_may_work_on_its_events(
    region: str, changes: dict[str, Any], refused: str | None
) -> None:
    """A fenced region would process nothing, and a region that does not answer may be at work."""
    world = World()
    vars(world).update(changes)
    here = StackRef("carride", region, world.client)
    if refused is None:
        replay.check(here)
    else:
        with pytest.raises(OperatorError, match=refused):
            replay.check(here)
    replay.check(here, accept_duplicates=True)


@pytest.mark.parametrize(
    ("since", "until", "said"),
    [
        (2, 1, ""),
        (2, 0, "ten minutes"),
        (500, 1, "14 days"),
        (500, 400, "error"),
        (-1, -2, "error"),
    ],
)
def test_a_window_that_the_archive_does_not_cover_is_said(
    since: int, until: int, said: str
) -> None:
    """Its end may not be archived yet, except locally, and its beginning may be deleted.

    An empty one is refused.
    """
    archive = SimpleNamespace(describe_archive=lambda **_: {"RetentionDays": 14})
    deployed = stack(lambda *_: archive, CarRideArchiveArn="arn:aws:events:us-east-1:0:archive/all")
    window = (NOW - timedelta(hours=since), NOW - timedelta(hours=until))
    if said == "error":
        with pytest.raises(OperatorError):
            replay.warnings(deployed, *window, NOW)
        return
    assert [said in warning for warning in replay.warnings(deployed, *window, NOW)] == [
        True
    ] * bool(said)
    deployed.local = Kept("carride", AWAY, "", "", "", 1)
    assert len(replay.warnings(deployed, *window, NOW)) == (said == "14 days")


@pytest.mark.parametrize(
    ("state", "waiting", "ended"),
    [
        ("RUNNING", 0, False),
        ("CANCELLING", 0, False),
        ("COMPLETED", 3, False),
        ("COMPLETED", 0, True),
    ],
)
def test_a_replay_has_ended_when_nothing_is_in_flight(
    state: str, waiting: int, ended: bool
) -> None:
    """EventBridge has handed over everything, and consumers have emptied their queues."""
    assert replay.ReplayState("one", state, NOW, NOW, NOW, None, waiting, "").ended == ended
