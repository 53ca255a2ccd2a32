"""Dead letters in an SQS queue."""

import base64
import gzip
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from carride_idempotency.clock import epoch_ms
from carride_idempotency.dead_letters import CONTRACT, DeadLetter, DeadLetterError, SqsDeadLetters
from carride_idempotency.invocation import lambda_deadline
from carride_idempotency.testing import Invocation

LETTER = DeadLetter(CONTRACT, "broken", "billing", None, 0, {"id": 1})
LIMIT = 262_144
DEADLINE_S = 10


def refusal(code: str, status: int = 400) -> ClientError:
    answer: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "SendMessage")


class Queue:
    """A client of a queue that takes 256 KiB, to which these things happen first."""

    def __init__(self, *happen: Callable[[], object]) -> None:
        self.bodies: list[str] = []
        self.tries = 0
        self._happen = list(happen)

    def send_message(self, *, MessageBody: str, **_: object) -> None:  # noqa: N803 - botocore's name
        self.tries += 1
        if self._happen:
            self._happen.pop(0)()
        if len(MessageBody.encode()) > LIMIT:
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


def test_no_letter_outlasts_the_invocation() -> None:
    """If the queue hangs, the function reports in time that its event was not dead-lettered."""
    answers = threading.Event()
    queue = Queue(lambda: answers.wait(DEADLINE_S))
    invocation = Invocation(epoch_ms, timeout_s=0.4)
    try:
        with lambda_deadline(invocation), pytest.raises(DeadLetterError):
            SqsDeadLetters("https://queue", client=queue).send(LETTER)
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
