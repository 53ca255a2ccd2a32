"""Where a replay may be started, its name, what it leaves out, and what its plan asks EventBridge and consumers."""

import json
import re
from collections.abc import Mapping
from datetime import timedelta
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import pytest

import carride.consumer
from ops import replay
from ops.audit import CONSUMERS
from ops.finding import Kept
from ops.replay.planning import Pattern
from ops.stack import OperatorError, StackRef
from tests.functions.world import World as Functions
from tests.ops.world import AWAY, HOME, NOW, World, stack


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
        (HOME, {"replays": {HOME: [], AWAY: [{"ReplayName": "plan.1", "State": "RUNNING"}]}}, None),
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
        (2, 1, None),
        (2, 0, "may take ten minutes"),
        (500, 1, "keeps events for 14 days"),
        (500, 400, OperatorError),
        (-1, -2, OperatorError),
    ],
)
def test_a_window_that_the_archive_does_not_cover_is_said(
    since: int, until: int, said: str | type[Exception] | None
) -> None:
    """Hours before now: the end of the window may not be archived yet, and its beginning may be deleted already.

    A window without archived events is refused. The archive of a local stack has every event at once.
    """
    archive = SimpleNamespace(describe_archive=lambda **_: {"RetentionDays": 14})
    deployed = stack(lambda *_: archive, CarRideArchiveArn="arn:aws:events:us-east-2:0:archive/all")
    window = (NOW - timedelta(hours=since), NOW - timedelta(hours=until))
    if said is OperatorError:
        with pytest.raises(OperatorError):
            replay.warnings(deployed, *window, NOW)
        return
    warnings = replay.warnings(deployed, *window, NOW)
    assert [str(said) in warning for warning in warnings] == [True] * (said is not None)
    deployed.local = Kept("carride", AWAY, "", "", "", 1)
    assert len(replay.warnings(deployed, *window, NOW)) == (until != 0 and said is not None)


@pytest.mark.parametrize(
    ("state", "waiting", "handed_over", "ended"),
    [
        ("RUNNING", 0, False, False),
        ("CANCELLING", 0, False, False),
        ("COMPLETED", 3, True, False),
        ("COMPLETED", 0, True, True),
    ],
)
def test_a_replay_has_ended_when_nothing_is_in_flight(state: str, waiting: int, handed_over: bool, ended: bool) -> None:
    """EventBridge has handed over everything, and consumers have emptied their queues. It can be cancelled before."""
    found = {"State": state, "EventSourceArn": "archive", "EventStartTime": NOW, "EventEndTime": NOW}
    events = SimpleNamespace(
        describe_replay=lambda **_: found | {"ReplayStartTime": NOW},
        exceptions=SimpleNamespace(ResourceNotFoundException=KeyError),
    )
    sqs = SimpleNamespace(
        get_queue_attributes=lambda **_: {"Attributes": {"ApproximateNumberOfMessages": str(waiting)}}
    )
    clients = {"events": events, "sqs": sqs}
    deployed = stack(lambda service, _: clients[service], CarRideArchiveArn="archive", DispatchQueueUrl="queue")
    replayed = replay.describe(deployed, "one")
    assert (replayed.handed_over, replayed.ended) == (handed_over, ended)
    if handed_over:
        with pytest.raises(OperatorError, match="nothing left to cancel"):
            replay.cancellable(deployed, "one")
    else:
        assert replay.cancellable(deployed, "one") == replayed


PATTERN = {"source": ["a"], "$or": [{"region": ["here"]}, {"replay-name": [{"exists": True}]}], "detail": {"n.m": [1]}}
EVENT: Mapping[str, Any] = {"id": "1", "source": "a", "region": "here", "detail": {"n": {"m": 1}, "note": "x"}}


@pytest.mark.parametrize(
    ("change", "alike"),
    [
        ({"id": "2"}, True),
        ({"detail": {"n": {"m": 1}, "note": "y"}}, True),
        ({"source": "b"}, False),
        ({"region": "there"}, False),
        ({"replay-name": "one"}, False),
        ({"detail": {"n": {"m": 2}}}, False),
        ({"detail": {"n": [{"m": 1}]}}, False),
        ({"detail": {}}, False),
    ],
)
def test_eventbridge_is_asked_once_about_events_that_a_pattern_cannot_tell_apart(
    change: Mapping[str, Any], alike: bool
) -> None:
    """Events are alike if they have the same values wherever the pattern looks."""
    asked: list[str] = []

    def test_event_pattern(EventPattern: str, Event: str) -> Any:  # noqa: N803 - boto3's names
        asked.append(Event)
        return {"Result": json.loads(Event) == EVENT}

    pattern = Pattern(SimpleNamespace(test_event_pattern=test_event_pattern), json.dumps(PATTERN))
    assert [pattern.takes(EVENT), pattern.takes({**EVENT, **change}), pattern.takes(EVENT)] == [True, alike, True]
    assert len(asked) == 2 - alike


def test_predictions_decide_by_the_policies_of_the_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings that decide whether a delivery runs are those with which the functions are wired."""
    policies, wired = {}, carride.consumer.wired

    def spy(name: str, *arguments: Any) -> Any:
        policies[name] = arguments[1]
        return wired(name, *arguments)

    monkeypatch.setattr(carride.consumer, "wired", spy)
    assert Functions().handlers
    decisive = attrgetter("atomic", "max_attempts", "on_crash", "clock_skew", "missing_key", "backoff")
    assert {name: decisive(each) for name, each in policies.items()} == {
        each.name: decisive(each.policy) for each in CONSUMERS
    }
