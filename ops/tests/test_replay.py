"""Where a replay may be started, its name and what it leaves out."""

from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, Final

import boto3
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moto import mock_aws

from carride.consumer import wired
from carride_idempotency import Consumer, DynamoDBStore
from carride_idempotency.clock import epoch_ms
from carride_idempotency.observation import ignore
from carride_idempotency.stores.transport import BotocoreTransport
from carride_idempotency.testing import DeadLetterBox, Invocation, eventbridge_event
from ops import replay
from ops.audit.evidence import CONSUMERS, HISTORY
from ops.cli.replay import replay_cancel
from ops.cli.show import layouts
from ops.policies import POLICIES
from ops.replay import fates
from ops.replay.planning import Fate, Prediction, ReplayPlan
from ops.stack import Kept, OperatorError, StackRef
from ops.tests.world import AWAY, HOME, NOW, World, empty_stack, stack


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


@pytest.mark.parametrize(
    ("state", "until", "reason", "says"),
    [
        (
            "CANCELLED",
            NOW,
            "",
            "somebody cancelled .* until 2026-11-21 12:00:00 UTC; .* replays all",
        ),
        ("CANCELLED", None, "", "somebody cancelled .* that it began with; .* replays all"),
        ("FAILED", NOW, "", "is FAILED: EventBridge gives no reason; .* starts another"),
        ("FAILED", NOW, "no access", "is FAILED: no access"),
    ],
)
def test_a_replay_that_was_not_completed_ends_in_words(
    state: str, until: datetime | None, reason: str, says: str
) -> None:
    """They say what has become of its events, and what to do."""
    ended = replay.ReplayState("one", state, NOW, NOW, NOW, until, 0, reason)
    with pytest.raises(OperatorError, match=says):
        ended.check()


class EventsOfAReplay:
    """EventBridge with a replay that ends when it is to, and refuses to cancel one that has."""

    class IllegalStatusError(Exception):
        """Raised for a replay that has ended."""

    def __init__(self, archive: str, state: str, then: str) -> None:
        self.archive = archive
        self.state = state
        self.then = then
        self.cancelled = 0
        self.exceptions = SimpleNamespace(
            IllegalStatusException=self.IllegalStatusError,
            ResourceNotFoundException=LookupError,
        )

    def describe_replay(self, **_: Any) -> dict[str, Any]:
        """Return the replay."""
        times = dict.fromkeys(("EventStartTime", "EventEndTime", "ReplayStartTime"), NOW)
        return times | {"State": self.state, "EventSourceArn": self.archive}

    def cancel_replay(self, **_: Any) -> None:
        """Cancel the replay, unless it has ended by then."""
        if self.then in ENDED:
            self.state = self.then
            raise self.IllegalStatusError
        self.cancelled += 1
        self.state = self.then


ENDED: Final = ("COMPLETED", "FAILED", "CANCELLED")


@pytest.mark.parametrize(
    ("before", "then"),
    [(state, state) for state in ENDED]
    + [("RUNNING", state) for state in ENDED]
    + [("RUNNING", "CANCELLING"), ("STARTING", "CANCELLING")],
)
def test_the_cancel_of_a_replay_that_has_ended_does_nothing_and_says_so(
    before: str, then: str
) -> None:
    """It is no failure, whether the replay ended before the plan or after it."""
    archive = "arn:aws:events:us-east-1:0:archive/all"
    events = EventsOfAReplay(archive, before, then)
    ref = stack(lambda *_: events, CarRideArchiveArn=archive)
    session: Any = SimpleNamespace(stack=ref)
    plan = replay_cancel(session, "us-east-1.1")
    assert plan.is_empty == (before in ENDED)
    (step,) = plan.preview.plan
    assert "us-east-1.1" in step
    result = plan.do()
    assert result.state == then
    assert events.cancelled == (then == "CANCELLING")


BROKEN: Final = eventbridge_event({"type": "CarRideCreated"}, event_id="e1", clock=epoch_ms)
UNMARKED: Final = BROKEN | {"id": "e2"}


def test_a_plan_knows_which_letters_are_there() -> None:
    """An event that breaks the contract has no record, but its letter may have a mark."""
    functions = SimpleNamespace(
        get_function_configuration=lambda **_: {
            "Timeout": 30,
            "Environment": {"Variables": {"IDEMPOTENCY_WINDOW_DAYS": "30"}},
        }
    )
    rules = SimpleNamespace(
        describe_rule=lambda **_: {"State": "ENABLED", "EventPattern": "{}"},
        test_event_pattern=lambda **_: {"Result": True},
    )
    (consumer,) = (each for each in CONSUMERS if each.table == HISTORY)
    with mock_aws():
        tables = empty_stack()
        services = {"dynamodb": tables.client("dynamodb"), "lambda": functions, "events": rules}
        outputs = {"RideHistoryFunctionName": "history", "CarRideBusName": "bus"}
        ref = stack(
            lambda service, _: services[service],
            resources={"AWS::Events::Rule": {"RideHistoryRule": "rule"}},
            **{**tables.outputs, **outputs},
        )
        store = DynamoDBStore(
            ref.outputs["RideHistoryTableName"],
            transport=BotocoreTransport(services["dynamodb"], 1.0),
        )
        wiring = wired(POLICIES[consumer.name], DeadLetterBox(), ignore)
        at_work = Consumer(consumer.name, store, region=AWAY, **wiring)
        deliver = at_work.event_handler(lambda *_: None)
        deliver(BROKEN, Invocation(epoch_ms))
        prediction = Prediction(ref, consumer, "us-east-1.1")
        prediction.add([BROKEN, UNMARKED])
        assert prediction.fates == {
            "CarRideCreated": {Fate.LETTER_IS_THERE: 1, Fate.DEAD_LETTERED: 1}
        }
        replayed = {"replay-name": "us-east-1.1"}
        outcomes = [
            deliver(each | replayed, Invocation(epoch_ms))["outcome"] for each in (BROKEN, UNMARKED)
        ]
        assert outcomes == ["Duplicate", "DeadLettered"]


@mock_aws
def test_the_rule_of_a_prediction_does_not_receive_a_replay() -> None:
    """It comes and goes with the prediction, and would make a plan another one."""
    events = boto3.client("events", HOME)
    events.create_event_bus(Name="rides")
    for name in ("history", "plan.us-east-1.20261122T092605.530950Z"):
        pattern = '{"source": ["a"]}'
        events.put_rule(Name=name, EventBusName="rides", EventPattern=pattern)
    outputs: Any = {
        "CarRideBusName": "rides",
        "PartnersTopicArn": "arn:aws:sns:us-east-1:1:partners",
    }
    found = replay.receivers(stack(lambda *_: events, **outputs))
    assert [arn.rpartition("/")[2] for arn in found] == ["history"]


PLANNED: Final = st.dictionaries(
    st.sampled_from(("payment", "dispatch")),
    st.dictionaries(
        st.sampled_from(("A", "B")), st.dictionaries(st.sampled_from(Fate), st.integers(1, 9))
    ),
)


@given(planned=PLANNED)
def test_the_rows_of_a_plan_have_what_its_sentence_names(planned: Any) -> None:
    """Only what is recognised, as one expects, is left to the rows that are folded."""
    found = fates.rows(planned)
    for number, fate in enumerate(found.heads):
        folded = sum(row.numbers[number] for row in found.quiet)
        assert fate == "recognised" or folded == 0
    for row in found.looked_for:
        others = zip(found.heads, row.numbers, strict=True)
        assert any(count for fate, count in others if fate != "recognised")


def test_a_plan_says_what_a_replay_would_do_and_lists_what_one_looks_for() -> None:
    """A row for each consumer and type with more than recognised deliveries; the rest is counted.

    What a consumer does not take is no delivery.
    """
    planned = {
        "dispatch": {"CarReleased": {Fate.NOT_FOR_IT: 9}},
        "payment": {
            "CarAssigned": {Fate.RECOGNISED: 1_204},
            "CarRideCompleted": {Fate.NEW: 2, Fate.RECOGNISED: 7},
        },
    }
    found = ReplayPlan(NOW - timedelta(hours=2), NOW, 538, planned, ["some may be left out"])
    says, heads, row, quiet, _, warning, command = layouts(found)[0]
    assert says == ("Of the deliveries of 538 archived events, 2 would run anew, 1,211 recognised.")
    assert heads.split() == ["consumer", "type", "would", "run", "anew", "recognised"]
    assert row.split() == ["payment", "CarRideCompleted", "2", "7"]
    assert quiet.startswith("1 other pair of a consumer and a type: nothing would run anew.")
    assert warning == "some may be left out"
    assert command == (
        "do it: ./carride replay run --since 2026-11-21T10:00:00Z --until 2026-11-21T12:00:00Z"
    )
