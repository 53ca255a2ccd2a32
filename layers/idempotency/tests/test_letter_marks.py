"""A replay recognises the dead letter of a message without a key; nothing else does."""

import json
import logging
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Final

import pytest

from carride_idempotency import SNS, SNS_IN_SQS, ConfigurationError, Policy
from carride_idempotency.dead_letters import CONTRACT, MISSING_KEY, DeadLetter
from carride_idempotency.errors import DeadLetterError, StoreUnavailableError
from carride_idempotency.policy import DAY
from carride_idempotency.testing import eventbridge_event, sqs_event
from tests.samples import TABLE, World, event

RETENTION: Final = 14 * DAY
REPLAY: Final = {"replay-name": "r"}
BROKEN: Final = event()
KEYLESS: Final = event(None)

type Deliver = Callable[[Any], str]
"""Delivers an event to a consumer of some source; returns the observed outcome."""


def refuse(_message: Any) -> Any:
    raise ValueError("broken")


def consumer(world: World, **settings: Any) -> Any:
    """Return a consumer whose contract every event breaks, and whose queue keeps letters."""
    chosen: dict[str, Any] = {
        "parse": refuse,
        "payload": lambda parsed: parsed,
        "policy": {"letter_retention": RETENTION},
    }
    return world.consumer(**(chosen | settings))


def deliver(world: World, message: Any, **settings: Any) -> str:
    consumer(world, **settings).event_handler(world.work)(message, world.invocation())
    return world.seen[-1].outcome


def replay(world: World, message: Any = BROKEN, **settings: Any) -> str:
    return deliver(world, message | REPLAY, **settings)


def in_a_queue(message: Any) -> Any:
    return sqs_event(message)


def in_a_topic_and_a_queue(message: Any) -> Any:
    return sqs_event({"Message": json.dumps(message)})


def in_a_topic(message: Any) -> Any:
    sent = {"Message": json.dumps(message), "MessageId": "m1", "Timestamp": BROKEN["time"]}
    return {"Records": [{"EventSource": "aws:sns", "Sns": sent}]}


def as_it_is(message: Any) -> Any:
    return message


@pytest.mark.parametrize(
    ("source", "wrap"),
    [(None, as_it_is), (SNS, in_a_topic), (None, in_a_queue), (SNS_IN_SQS, in_a_topic_and_a_queue)],
    ids=["rule", "topic", "queue", "topic and queue"],
)
@pytest.mark.parametrize(
    ("message", "settings", "reason"),
    [
        (BROKEN, {}, CONTRACT),
        (KEYLESS, {"parse": None, "payload": None}, MISSING_KEY),
    ],
    ids=[CONTRACT, MISSING_KEY],
)
def test_a_replay_sends_no_second_letter(
    world: World, source: Any, wrap: Any, message: Any, settings: dict[str, Any], reason: str
) -> None:
    """However EventBridge's event reaches its consumer, and whatever is wrong with it."""
    made = consumer(world, source=source, **settings)
    is_batch = wrap in (in_a_queue, in_a_topic_and_a_queue)
    handler = (made.batch_handler if is_batch else made.event_handler)(world.work)
    for each in (message, message | REPLAY, message | {"replay-name": "another"}):
        handler(wrap(each), world.invocation())
    assert world.reasons == [reason]
    assert [(seen.outcome, seen.reason) for seen in world.seen] == [
        ("DeadLettered", reason),
        ("Duplicate", reason),
        ("Duplicate", reason),
    ]
    assert {seen.event_id for seen in world.seen} == {message["id"]}


def test_a_letter_that_a_replay_has_sent_is_recognised(world: World) -> None:
    """The contract may have become stricter since the first delivery."""
    assert (replay(world), replay(world)) == ("DeadLettered", "Duplicate")


DIFFERENT: Final[dict[str, Callable[[World], str]]] = {
    "a redrive": lambda world: deliver(world, BROKEN),
    "another event": lambda world: replay(world, BROKEN | {"id": "e2"}),
    "another consumer": lambda world: replay(world, name="billing"),
    "another region": lambda world: replay(world, region="us-west-2"),
    "a queue of unknown retention": lambda world: replay(world, policy={}),
    "an id that is not EventBridge's": lambda world: replay(world, BROKEN | {"id": ["e1"]}),
}


@pytest.mark.parametrize("story", DIFFERENT)
def test_what_has_no_letter_in_its_queue_gets_one(world: World, story: str) -> None:
    """A letter lies in the queue of one consumer and one region; a redrive has taken it out."""
    deliver(world, BROKEN)
    assert DIFFERENT[story](world) == "DeadLettered"
    assert world.reasons == [CONTRACT, CONTRACT]


def test_a_rejected_message_without_an_envelope_names_no_event(world: World) -> None:
    """There is no id of EventBridge's to find it by."""
    deliver(world, {"id": "not EventBridge's"})
    assert [seen.event_id for seen in world.seen] == [None]


def test_a_mark_ends_before_its_letter(world: World) -> None:
    """Whichever clock is a second ahead; then the next letter is marked anew."""
    deliver(world, BROKEN)
    world.clock.advance(RETENTION - 3)
    assert replay(world) == "Duplicate"
    world.clock.advance(2)
    assert (replay(world), replay(world)) == ("DeadLettered", "Duplicate")
    # DynamoDB deletes an ended mark some time later: the next one replaces it.
    world.clock.advance(RETENTION - 3)
    assert replay(world) == "Duplicate"


def test_a_mark_whose_write_fails_costs_a_second_letter_and_nothing_else(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The delivery is acknowledged, because its letter was sent."""
    world.transport.answer("AccessDeniedException")
    with caplog.at_level(logging.WARNING):
        assert deliver(world, BROKEN) == "DeadLettered"
    assert "could not be marked" in caplog.text
    assert (replay(world), replay(world)) == ("DeadLettered", "Duplicate")
    assert len(world.box.letters) == 2


def test_a_replay_that_cannot_ask_comes_again(world: World) -> None:
    """Nothing is acknowledged while it is unknown whether the letter is there."""
    deliver(world, BROKEN)
    for _ in range(20):
        world.transport.lose_request()
    with pytest.raises(StoreUnavailableError):
        replay(world)
    assert [seen.outcome for seen in world.seen] == ["DeadLettered", "Failed"]


def test_a_letter_that_is_not_sent_is_not_marked(world: World) -> None:
    """Otherwise the next replay would be the event's end."""
    world.box.error = DeadLetterError("the queue is out of order")
    with pytest.raises(DeadLetterError):
        replay(world)
    assert [seen.outcome for seen in world.seen] == ["Failed"]
    world.box.error = None
    assert replay(world) == "DeadLettered"


def test_a_mark_is_no_record_of_an_event(world: World) -> None:
    """No idempotency key can be taken for a mark, whatever characters it has."""
    deliver(world, BROKEN)
    (mark,) = world.dynamodb.scan(TableName=TABLE)["Items"]
    assert mark["idempotencyKey"] == {"S": "history#%letter:eu-west-1#e1"}
    honest = eventbridge_event({"idempotencyid": "%letter:eu-west-1#e1"})
    made = world.consumer()
    assert made.event_handler(world.work)(honest, world.invocation())["outcome"] == "New"


@pytest.mark.parametrize("retention", [-1, 0.5])
def test_a_retention_is_a_number_of_seconds(retention: Any) -> None:
    """Otherwise marks would end at no time that a table can hold."""
    with pytest.raises(ConfigurationError, match="letter_retention"):
        Policy(letter_retention=retention)


class Queue:
    """A dead-letter queue that deletes what is too old, and may refuse the next letter."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._sent_ms: list[int] = []
        self.refuses = False

    def send(self, dead_letter: DeadLetter) -> None:
        if self.refuses:
            self.refuses = False
            raise DeadLetterError("refused")
        assert dead_letter.reason == CONTRACT
        self._sent_ms.append(self._world.clock())

    @property
    def letters(self) -> int:
        oldest_ms = self._world.clock() - RETENTION * 1000
        return sum(sent_ms > oldest_ms for sent_ms in self._sent_ms)

    def redrive(self) -> None:
        """Take the oldest letter out of the queue."""
        oldest_ms = self._world.clock() - RETENTION * 1000
        kept = [sent_ms for sent_ms in self._sent_ms if sent_ms > oldest_ms]
        self._sent_ms = kept[1:]


STEPS: Final = ("delivered", "replayed", "redriven", "refused", "unmarked", "a week passes")
LENGTH: Final = 4


def stories() -> Iterator[tuple[str, ...]]:
    return product(STEPS, repeat=LENGTH)


@pytest.mark.proof
def test_after_every_story_a_broken_event_is_in_the_queue_or_comes_again() -> None:
    """Whatever order deliveries, replays, redrives, refused letters, lost marks and weeks have."""
    for story in stories():
        tell(story)


def tell(story: tuple[str, ...]) -> None:
    """Tell a story; each acknowledged delivery leaves a letter in the queue."""
    world = World()
    queue = Queue(world)
    handler = consumer(world, dead_letters=queue).event_handler(world.work)
    for step in story:
        if step == "a week passes":
            world.clock.advance(RETENTION / 2)
            continue
        if step == "redriven":
            queue.redrive()
        queue.refuses = step == "refused"
        if step == "unmarked":
            world.transport.answer("AccessDeniedException")
        before = queue.letters
        message = BROKEN | (REPLAY if step == "replayed" else {})
        try:
            handler(message, world.invocation())
        except DeadLetterError:
            handler(message, world.invocation())  # it comes again
        assert queue.letters >= 1, story
        # At most one letter for each delivery, and none for a replay of what was marked.
        assert queue.letters <= before + 1, story
