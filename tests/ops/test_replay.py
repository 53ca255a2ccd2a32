"""Where a replay may be started, and its name."""

import re
from typing import Any

import pytest

from ops import replay
from ops.stack import OperatorError, StackRef
from tests.ops.world import AWAY, HOME, NOW, World


def test_a_replay_is_named_for_its_region() -> None:
    """Rules of two regions accept a replay by the beginning of its name; EventBridge limits its characters."""
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
    """A fenced region would process nothing, and a region that does not answer may be at work."""
    world = World()
    vars(world).update(changes)
    stack = StackRef("carride", region, world.client)
    if refused is None:
        replay.check(stack)
    else:
        with pytest.raises(OperatorError, match=refused):
            replay.check(stack)
    replay.check(stack, accept_duplicates=True)
