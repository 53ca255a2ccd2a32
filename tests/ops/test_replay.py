"""Where a replay may be started, and how it is called."""

import re
from typing import Any

import pytest

from ops import replay
from ops.fence import Fence, fenced
from ops.site import OperatorError
from tests.ops.sites import AWAY, FENCE, HOME, NOW, World


def test_a_replay_is_named_for_its_region() -> None:
    """Rules of two regions take a replay by how its name begins; EventBridge takes letters, digits, `.`, `-`, `_`."""
    name = replay.name_for(HOME, NOW)
    assert name.startswith(f"{HOME}.")
    assert re.fullmatch(r"[.\-_A-Za-z0-9]{1,64}", name)


def replaying(state: str) -> list[dict[str, str]]:
    """Return a region's replays, the last of which is in a state."""
    return [{"ReplayName": "old", "State": "COMPLETED"}, {"ReplayName": "new", "State": state}]


@pytest.mark.parametrize(
    ("region", "changes", "refused"),
    [
        (HOME, {"roles": dict.fromkeys((HOME, AWAY), "standalone")}, None),
        (HOME, {}, None),
        (AWAY, {"fenced": {HOME}}, None),
        *(
            (HOME, {"replays": {HOME: [], AWAY: replaying(state)}}, r"us-east-2 has a replay running \(new\)")
            for state in ("STARTING", "RUNNING", "CANCELLING")
        ),
        (AWAY, {}, "us-west-2 is at work"),
        (HOME, {"fenced": {HOME}}, "us-west-2 is fenced"),
        (HOME, {"unreachable": {AWAY}}, "us-east-2 cannot be asked"),
    ],
)
def test_a_replay_is_refused_where_another_region_may_work_on_its_events(
    region: str, changes: dict[str, Any], refused: str | None
) -> None:
    """A fenced region would give them to nobody, and one that does not answer may be at work."""
    world = World()
    vars(world).update(changes)
    if refused is None:
        replay.check(world.site(region))
    else:
        with pytest.raises(OperatorError, match=refused):
            replay.check(world.site(region))
    replay.check(world.site(region), accept_duplicates=True)


def test_a_fence_is_kept_as_text() -> None:
    """Whoever takes it down finds what it has stopped."""
    fence = Fence(NOW, ("rule",), ("mapping",), ("pipe",), {"one": None, "other": 5})
    assert Fence.from_json(fence.to_json()) == fence
    world = World()
    assert fenced(world.site(HOME)) is None
    world.fenced.add(HOME)
    assert fenced(world.site(HOME)) == FENCE
