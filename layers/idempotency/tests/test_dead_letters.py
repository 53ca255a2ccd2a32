"""Dead letters in an SQS queue."""

import base64
import gzip
import json
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError
from moto import mock_aws

from carride_idempotency.clock import epoch_ms
from carride_idempotency.dead_letters import CONTRACT, MAX_MESSAGE_BYTES, DeadLetter, SqsDeadLetters
from carride_idempotency.errors import DeadLetterError
from carride_idempotency.invocation import lambda_deadline
from carride_idempotency.operators.queues import peek
from carride_idempotency.sources import KAFKA, KINESIS, Source
from carride_idempotency.testing import (
    Invocation,
    ManualClock,
    dynamodb_stream_event,
    eventbridge_event,
    kafka_event,
    kinesis_event,
    sqs_event,
)
from tests.queues import KINDS, Queues
from tests.samples import World

LETTER = DeadLetter(CONTRACT, "broken", "billing", None, 0, {"id": 1})
LIMIT = 262_144
DEADLINE_S = 60


def refusal(code: str, status: int = 400) -> ClientError:
    answer: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "SendMessage")


class Queue:
    """A client of a queue that takes 256 KiB, to which these things happen first."""

    def __init__(self, *happen: Callable[[], object], limit: int = LIMIT) -> None:
        self.limit = limit
        self.bodies: list[str] = []
        self.tries = 0
        self._happen = list(happen)

    def send_message(self, *, MessageBody: str, **_: object) -> None:  # noqa: N803 - botocore's name
        self.tries += 1
        if self._happen:
            self._happen.pop(0)()
        if len(MessageBody.encode()) > self.limit:
            raise refusal("InvalidParameterValue")
        self.bodies.append(MessageBody)


def fails(error: Exception) -> Callable[[], object]:
    def fail() -> None:
        raise error

    return fail


def test_a_letter_that_its_queue_refuses_is_compressed() -> None:
    """An event of 240 KB is more than 256 KiB in a letter, where its quotes are escaped."""
    body = json.dumps({str(number): "ride" for number in range(16_300)}, separators=(",", ":"))
    queue = Queue()
    event = {"messageId": "m1", "body": body}
    assert 230_000 < len(body) < 240_000
    SqsDeadLetters("https://queue", client=queue).send(LETTER._replace(event=event))
    (sent,) = map(json.loads, queue.bodies)
    assert (sent["reason"], sent["event"]) == (CONTRACT, None)
    assert json.loads(gzip.decompress(base64.b64decode(sent["eventGzip"]))) == event
    assert DeadLetter.from_body(queue.bodies[0]) == LETTER._replace(event=event)


def test_a_letter_that_fits_is_not_compressed() -> None:
    """A person can read it in the console."""
    queue = Queue()
    SqsDeadLetters("https://queue", client=queue).send(LETTER)
    assert json.loads(queue.bodies[0])["event"] == LETTER.event
    assert DeadLetter.from_body(queue.bodies[0]) == LETTER


def test_a_letter_that_is_refused_for_good_is_not_sent_again() -> None:
    """Without permission no retry helps; the delivery is not acknowledged."""
    queue = Queue(fails(refusal("AccessDenied", 403)))
    with pytest.raises(DeadLetterError, match="CONTRACT"):
        SqsDeadLetters("https://queue", client=queue).send(LETTER)
    assert queue.tries == 1


def test_a_letter_without_an_answer_is_sent_again() -> None:
    """A time-out, a throttled request and an error of SQS's own may pass."""
    lost = ReadTimeoutError(endpoint_url="https://queue")
    passing = [lost, refusal("RequestThrottled"), refusal("InternalFailure", 500)]
    queue = Queue(*map(fails, passing))
    SqsDeadLetters("https://queue", client=queue).send(LETTER)
    assert (queue.tries, len(queue.bodies)) == (4, 1)


def test_no_letter_outlasts_the_invocation(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the queue hangs, the function reports in time that its event was not dead-lettered."""

    class Request(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            assert timeout is not None
            clock.sleep(timeout)

    monkeypatch.setattr("carride_idempotency.dead_letters.Thread", Request)
    answers = threading.Event()
    queue = Queue(lambda: answers.wait(DEADLINE_S))
    invocation = Invocation(clock, timeout_s=3)
    try:
        with lambda_deadline(invocation, clock), pytest.raises(DeadLetterError):
            SqsDeadLetters("https://queue", client=queue, clock=clock).send(LETTER)
        assert invocation.get_remaining_time_in_millis() > 0
        assert not queue.bodies
    finally:
        answers.set()


def test_what_stops_the_process_while_a_letter_is_sent_stops_its_sender() -> None:
    """Nothing is swallowed by the thread that waits for the answer."""

    def stop() -> None:
        raise SystemExit

    with lambda_deadline(Invocation(epoch_ms)), pytest.raises(SystemExit):
        SqsDeadLetters("https://queue", client=Queue(stop)).send(LETTER)


def incompressible(size: int) -> bytes:
    return Random(0).randbytes(size)  # noqa: S311 - the same bytes in every run


def in_kinesis(data: bytes) -> dict[str, Any]:
    """Return a batch of a stream with one record."""
    batch = kinesis_event("")
    batch["Records"][0]["kinesis"]["data"] = b64encode(data).decode()
    return batch


def in_kafka(data: bytes) -> dict[str, Any]:
    """Return a batch of a topic with one record."""
    batch = kafka_event("")
    batch["records"]["topic-0"][0]["value"] = b64encode(data).decode()
    return batch


STREAMED: list[tuple[Any, Source, tuple[str, ...]]] = [
    (in_kinesis, KINESIS, (":stream/stream", "shardId-000000000000", "sequence number 1")),
    (in_kafka, KAFKA, (":cluster/cluster/1", "topic-0", "offset 0")),
]


@pytest.mark.parametrize(("build", "source", "place"), STREAMED)
def test_a_record_that_no_message_holds_is_lettered_with_its_position(
    world: World, build: Any, source: Source, place: tuple[str, ...]
) -> None:
    """Kinesis and Kafka take larger records than SQS, and a shard must not wait for ever."""
    queue = Queue(limit=MAX_MESSAGE_BYTES)
    letters = SqsDeadLetters("https://queue", client=queue)
    handler = world.consumer(key="id", source=source, dead_letters=letters).batch_handler(
        world.work
    )
    answer = handler(build(incompressible(800_000)), world.invocation())
    assert answer == {"batchItemFailures": []}
    letter = DeadLetter.from_body(queue.bodies[0])
    assert (letter.reason, letter.event) == (CONTRACT, None)
    assert [each for each in place if each not in letter.message] == []


def test_a_change_of_an_item_is_lettered_with_its_position() -> None:
    """A queue may take less than an item has, and the table's stream keeps the change."""
    item = {"id": "1", "text": b64encode(incompressible(2_000)).decode()}
    (change,) = dynamodb_stream_event(item)["Records"]
    queue = Queue(limit=1_024)
    SqsDeadLetters("https://queue", client=queue).send(LETTER._replace(event=change))
    letter = DeadLetter.from_body(queue.bodies[0])
    assert letter.event is None
    assert change["eventSourceARN"] in letter.message
    assert change["dynamodb"]["SequenceNumber"] in letter.message


@pytest.mark.parametrize("limit", [1_024, LIMIT, MAX_MESSAGE_BYTES])
def test_an_event_that_only_its_letter_would_keep_is_never_left_out(limit: int) -> None:
    """A message that no queue holds is not acknowledged: its own transport keeps it."""
    body = b64encode(incompressible(1_000_000)).decode()
    letters = SqsDeadLetters("https://queue", client=Queue(limit=limit))
    with pytest.raises(DeadLetterError):
        letters.send(LETTER._replace(event=sqs_event(body)["Records"][0]))


@pytest.mark.parametrize("limit", [4_096, LIMIT])
def test_a_queue_that_takes_less_gets_the_largest_form_that_it_takes(limit: int) -> None:
    """The whole event if it fits, else compressed, else its position."""
    contents = {
        "whole": b"x" * (limit // 4),
        "compressed": b"x" * limit,
        "position": incompressible(limit),
    }
    for form, content in contents.items():
        (event,) = in_kinesis(content)["Records"]
        queue = Queue(limit=limit)
        SqsDeadLetters("https://queue", client=queue).send(LETTER._replace(event=event))
        letter = DeadLetter.from_body(queue.bodies[0])
        assert (letter.event == event) == (form != "position"), form
        assert ("eventGzip" in queue.bodies[0]) == (form == "compressed")


EVENTS: Final[dict[str, Any]] = {
    "a message of a FIFO queue": sqs_event("text", MessageGroupId="g")["Records"][0],
    "a message of a queue": sqs_event("text")["Records"][0],
    "a message without attributes": sqs_event("text")["Records"][0] | {"attributes": None},
    "an event": eventbridge_event({"id": 1}),
    "a record of a stream": kinesis_event({"id": 1})["Records"][0],
    "arguments": ["order-1", 7],
    "nothing": None,
}


@pytest.fixture
def queues() -> Iterator[Queues]:
    with mock_aws():
        yield Queues()


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_queue_of_any_kind_takes_a_letter(queues: Queues, kind: str, event: Any) -> None:
    """A FIFO source demands a FIFO dead-letter queue; the letter keeps the group of its event."""
    url = queues.create("letters", kind)
    SqsDeadLetters(url, client=queues).send(LETTER._replace(event=event))
    (message,) = queues.received(url)
    assert DeadLetter.from_body(message["Body"]) == LETTER._replace(event=event)
    group = message["Attributes"].get("MessageGroupId")
    has_group = event is EVENTS["a message of a FIFO queue"]
    assert (group == "g") == (has_group and kind != "standard")


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_letter_of_an_event_is_no_copy_of_the_first(queues: Queues, kind: str) -> None:
    """It was redriven and has failed again within the five minutes in which FIFO queues compare."""
    url = queues.create("letters", kind)
    letters = SqsDeadLetters(url, client=queues)
    for _ in range(2):
        letters.send(LETTER)
    assert len(queues.received(url)) == 2


def test_a_fifo_queue_has_a_letter_once_whose_answer_was_lost(queues: Queues) -> None:
    """The try that follows carries the same id."""
    url = queues.create("letters", "FIFO")
    queues.lost = 2
    SqsDeadLetters(url, client=queues).send(LETTER)
    assert len(queues.received(url)) == 1


def test_letters_without_a_group_do_not_wait_for_each_other(queues: Queues) -> None:
    """An operator sees all of them at once, and not ten of a group."""
    url = queues.create("letters", "FIFO")
    for number in range(25):
        SqsDeadLetters(url, client=queues).send(LETTER._replace(event={"id": number}))
    assert len(list(peek(queues, url))) == 25
