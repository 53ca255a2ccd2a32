"""Where a replay may be started, and how it is called."""

import re

import pytest

from ops import replay
from ops.fence import Fence, fenced
from ops.site import OperatorError
from tests.unit.ops.sites import AWAY, FENCE, HOME, NOW, World


def test_a_replay_is_named_for_its_region() -> None:
    """Rules of two regions take a replay by how its name begins; EventBridge takes letters, digits, `.`, `-`, `_`."""
    name = replay.name_for(HOME, NOW)
    assert name.startswith(f"{HOME}.")
    assert re.fullmatch(r"[.\-_A-Za-z0-9]{1,64}", name)


def test_one_region_by_itself_replays_as_it_likes() -> None:
    """There is no other region to ask."""
    replay.check(World(roles=("standalone", "standalone")).site(HOME))


def test_a_region_replays_what_no_other_works_on() -> None:
    """The primary replays, and after a failover the secondary."""
    world = World()
    replay.check(world.site(HOME))
    world.fenced.add(HOME)
    replay.check(world.site(AWAY))


@pytest.mark.parametrize("state", ["STARTING", "RUNNING", "CANCELLING"])
def test_a_second_replay_is_refused_while_the_other_region_has_one(state: str) -> None:
    """On whichever page of its list it is."""
    world = World()
    world.replays[AWAY] = [{"ReplayName": "old", "State": "COMPLETED"}, {"ReplayName": "new", "State": state}]
    with pytest.raises(OperatorError, match=r"us-east-2 has a replay running \(new\)"):
        replay.check(world.site(HOME))
    replay.check(world.site(HOME), accept_duplicates=True)


def test_the_secondary_does_not_replay_beside_a_primary_that_works() -> None:
    """What the primary is late with would be worked on in both."""
    with pytest.raises(OperatorError, match="us-west-2 is at work"):
        replay.check(World().site(AWAY))


def test_a_fenced_region_replays_to_nobody() -> None:
    """Its rules are disabled."""
    world = World()
    world.fenced.add(HOME)
    with pytest.raises(OperatorError, match="us-west-2 is fenced"):
        replay.check(world.site(HOME))


def test_a_region_that_cannot_be_asked_may_be_at_work() -> None:
    """Silence is no consent."""
    world = World()
    world.unreachable.add(AWAY)
    with pytest.raises(OperatorError, match="us-east-2 cannot be asked"):
        replay.check(world.site(HOME))


def test_a_fence_is_kept_as_text() -> None:
    """Whoever takes it down finds what it has stopped."""
    fence = Fence(NOW, ("rule",), ("mapping",), ("pipe",), {"one": None, "other": 5})
    assert Fence.from_json(fence.to_json()) == fence
    world = World()
    assert fenced(world.site(HOME)) is None
    world.fenced.add(HOME)
    assert fenced(world.site(HOME)) == FENCE
