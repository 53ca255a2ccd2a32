"""Rule 14: the records of a batch run concurrently and fail one by one, and no thread is left behind."""

import base64
import json
import threading
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import pytest

from idempotency import TRANSPORT_ID, BatchFailedError, BusyError, Consumer, MemoryStore, Observation, Operation, Policy
from idempotency.dead_letters import CONTRACT, MISSING_KEY, QUARANTINED
from idempotency.sources import KAFKA, KINESIS
from idempotency.testing import DeadLetterBox, Invocation, ManualClock

DEADLINE_S = 10
"""How long a test waits for other threads before it fails."""

type Work = Callable[[dict[str, Any], Operation], object]


@pytest.fixture
def clock() -> ManualClock:
    """Time that the test moves."""
    return ManualClock()


@pytest.fixture
def box() -> DeadLetterBox:
    """A dead-letter queue."""
    return DeadLetterBox()


@pytest.fixture
def seen() -> list[Observation]:
    """What was observed."""
    return []


@pytest.fixture
def consumer(clock: ManualClock, box: DeadLetterBox, seen: list[Observation]) -> Consumer:
    """A consumer of SQS batches."""
    return make_consumer(clock, box, seen)


def make_consumer(clock: ManualClock, box: DeadLetterBox, seen: list[Observation], **settings: Any) -> Consumer:
    """Make a consumer over memory, whose effects are forgotten."""
    store = MemoryStore(clock=clock, apply=lambda effects: None)
    defaults: dict[str, Any] = {"key": "id", "policy": Policy()}
    return Consumer(
        "dispatch",
        store,
        dead_letters=box,
        observe=seen.append,
        region="eu-west-1",
        clock=clock,
        **(defaults | settings),
    )


def message(key: str | None, number: int, *, received: int = 1, group: str | None = None) -> dict[str, Any]:
    """Make an SQS record."""
    attributes = {"SentTimestamp": "1800000000000", "ApproximateReceiveCount": str(received)}
    return {
        "messageId": f"m{number}",
        "body": json.dumps({"id": key}),
        "attributes": attributes | ({"MessageGroupId": group} if group else {}),
    }


def failed(response: Any) -> list[str]:
    """Return the ids of the records that are to be delivered again."""
    return [failure["itemIdentifier"] for failure in response["batchItemFailures"]]


def test_records_run_concurrently(consumer: Consumer, clock: ManualClock) -> None:
    """All ten records of a batch are in the handler at the same time."""
    together = threading.Barrier(10, timeout=DEADLINE_S)

    @consumer.batch_handler
    def handler(event: dict[str, Any], operation: Operation) -> None:
        together.wait()

    records = [message(f"k{number}", number) for number in range(10)]
    assert handler({"Records": records}, Invocation(clock)) == {"batchItemFailures": []}


def test_batch_without_records_is_done(consumer: Consumer, clock: ManualClock) -> None:
    """Whoever polls a queue by hand may hand over what it found, even if that is nothing."""
    handler = consumer.batch_handler(lambda event, operation: pytest.fail("was run"))
    assert handler({"Records": []}, Invocation(clock)) == {"batchItemFailures": []}


def test_only_failed_records_are_delivered_again(consumer: Consumer, clock: ManualClock) -> None:
    """One record's failure is reported by itself, and its neighbours are completed."""

    @consumer.batch_handler
    def handler(event: dict[str, Any], operation: Operation) -> None:
        if event["id"] == "k1":
            raise KeyError("no car")

    response = handler({"Records": [message(f"k{number}", number) for number in range(3)]}, Invocation(clock))

    assert failed(response) == ["m1"]
    statuses = [record and record.status for record in map(consumer.record, ("k0", "k1", "k2"))]
    assert statuses == ["COMPLETED", "FAILED", "COMPLETED"]


def test_equal_keys_share_one_run(consumer: Consumer, clock: ManualClock, seen: list[Observation]) -> None:
    """Two records of one key in one batch are one run, and neither is busy."""
    runs = []

    @consumer.batch_handler
    def handler(event: dict[str, Any], operation: Operation) -> None:
        runs.append(operation.key)

    records = [message("k1", 0), message("k2", 1), message("k1", 2)]
    assert failed(handler({"Records": records}, Invocation(clock))) == []
    assert sorted(runs) == ["dispatch#k1", "dispatch#k2"]
    assert sorted(one.outcome for one in seen) == ["Duplicate", "New", "New"]


def test_equal_keys_share_one_failure(consumer: Consumer, clock: ManualClock) -> None:
    """When the run of a key fails, its other records in the batch come back too, without a second try.

    All records of the batch have failed, so the handler raises: a mapping without ReportBatchItemFailures would
    otherwise delete them.
    """
    runs = []

    @consumer.batch_handler
    def handler(event: dict[str, Any], operation: Operation) -> None:
        runs.append(operation.key)
        raise KeyError("no car")

    records = [message("k1", 0), message("k1", 1)]
    with pytest.raises(BatchFailedError) as raised:
        handler({"Records": records}, Invocation(clock))
    assert isinstance(raised.value.__cause__, KeyError)
    assert len(runs) == 1


class Killed(BaseException):
    """The end of a process, as the code that it was running sees it."""


def kill(consumer: Consumer, clock: ManualClock, *keys: str) -> None:
    """Have a process die while it runs the records of these keys, and let the leases end."""

    @consumer.batch_handler
    def handler(event: dict[str, Any], operation: Operation) -> None:
        raise Killed

    for number, key in enumerate(keys):
        with pytest.raises(Killed):
            handler({"Records": [message(key, number)]}, Invocation(clock))
        clock.advance(60)


def test_suspects_of_a_crash_run_alone_and_last(consumer: Consumer, clock: ManualClock) -> None:
    """A record whose earlier attempt ended without an answer starts when no other runs, most crashes last."""
    kill(consumer, clock, "twice", "once", "twice")
    order: list[str] = []

    @consumer.batch_handler
    def handler(event: dict[str, Any], operation: Operation) -> None:
        order.append(event["id"])

    records = [message(key, number) for number, key in enumerate(["twice", "once", "new1", "new2"])]
    handler({"Records": records}, Invocation(clock))

    assert sorted(order[:2]) == ["new1", "new2"]
    assert order[2:] == ["once", "twice"]


def test_retries_of_a_failure_run_together(consumer: Consumer, clock: ManualClock) -> None:
    """A record that failed is no suspect, however often it was received: a bad round slows down no queue."""
    together = threading.Barrier(10, timeout=DEADLINE_S)
    rounds: list[str] = []

    @consumer.batch_handler
    def handler(event: dict[str, Any], operation: Operation) -> None:
        together.wait()
        if not rounds:
            raise TimeoutError

    records = [message(f"k{number}", number) for number in range(10)]
    with pytest.raises(BatchFailedError):
        handler({"Records": records}, Invocation(clock))
    rounds.append("failed")
    again = [message(f"k{number}", number, received=2) for number in range(10)]
    assert failed(handler({"Records": again}, Invocation(clock))) == []


def test_suspects_share_the_time_where_there_is_too_little_to_run_alone(consumer: Consumer, clock: ManualClock) -> None:
    """Once a run has shown how long it takes, the other suspects run in groups that fit, save on a last try."""
    kill(consumer, clock, "k0", "k1", "k2", "k3", "last", "last")
    running: set[str] = set()
    neighbours: dict[str, int] = {}
    together = threading.Barrier(3, timeout=DEADLINE_S)

    @consumer.batch_handler
    def handler(event: dict[str, Any], operation: Operation) -> None:
        running.add(event["id"])
        if event["id"] in ("k1", "k2", "k3"):
            together.wait()
        neighbours[event["id"]] = len(running) - 1
        if event["id"] in ("k1", "k2", "k3"):
            together.wait()
        clock.advance({"k0": 25, "k3": 5}.get(event["id"], 0))
        running.discard(event["id"])

    records = [message(key, number) for number, key in enumerate(["last", "k0", "k1", "k2", "k3"])]
    assert failed(handler({"Records": records}, Invocation(clock, timeout_s=70))) == []
    assert neighbours == {"k0": 0, "k1": 2, "k2": 2, "k3": 2, "last": 0}


def test_nothing_starts_that_the_time_left_does_not_cover(
    clock: ManualClock, box: DeadLetterBox, seen: list[Observation]
) -> None:
    """A job starts only if what runs of this function have been seen to take still fits."""
    consumer = make_consumer(clock, box, seen, policy=Policy(concurrency=1))
    runs: list[str] = []

    @consumer.batch_handler
    def handler(event: dict[str, Any], operation: Operation) -> None:
        runs.append(event["id"])
        clock.advance(25)

    response = handler(
        {"Records": [message(f"k{number}", number) for number in range(4)]}, Invocation(clock, timeout_s=60)
    )
    assert (runs, failed(response)) == (["k0", "k1"], ["m2", "m3"])
    assert consumer.record("k2") is None


def test_fifo_group_keeps_its_order_and_stops_at_a_failure(consumer: Consumer, clock: ManualClock) -> None:
    """Behind a failed record of a FIFO group nothing of that group is run, and all of it comes back."""
    order: list[str] = []

    @consumer.batch_handler
    def handler(event: dict[str, Any], operation: Operation) -> None:
        order.append(event["id"])
        if event["id"] == "a2":
            raise KeyError("no car")

    records = [
        message("a1", 0, group="a"),
        message("b1", 1, group="b"),
        message("a2", 2, group="a"),
        message("a3", 3, group="a"),
    ]
    assert failed(handler({"Records": records}, Invocation(clock))) == ["m2", "m3"]
    assert [key for key in order if key.startswith("a")] == ["a1", "a2"]


def test_batch_returns_before_the_deadline_with_the_unfinished_as_failures(
    clock: ManualClock, box: DeadLetterBox, seen: list[Observation]
) -> None:
    """Records that do not fit into the invocation are not started, not claimed, and delivered again."""
    consumer = make_consumer(clock, box, seen, policy=Policy(concurrency=1, reserve=2))

    @consumer.batch_handler
    def handler(event: dict[str, Any], operation: Operation) -> None:
        clock.advance(5)

    records = [message(f"k{number}", number) for number in range(4)]
    assert failed(handler({"Records": records}, Invocation(clock, timeout_s=12))) == ["m2", "m3"]
    assert consumer.record("k2") is None


def test_crash_of_a_redelivered_record_is_seen_though_the_policy_is_atomic(
    clock: ManualClock, box: DeadLetterBox, seen: list[Observation]
) -> None:
    """Only the first receive of a record runs without a claim: later ones have to be told from their neighbours."""
    consumer = make_consumer(clock, box, seen, policy=Policy(atomic=True))
    attempts: list[int] = []

    @consumer.batch_handler
    def handler(event: dict[str, Any], operation: Operation) -> None:
        attempts.append(operation.attempt)
        if event["id"] == "crasher":
            raise Killed

    for received in range(1, 5):
        with pytest.raises(Killed):
            handler({"Records": [message("crasher", 0, received=received)]}, Invocation(clock))
        clock.advance(60)
    neighbour = message("healthy", 1, received=5)
    assert failed(handler({"Records": [message("crasher", 0, received=5), neighbour]}, Invocation(clock))) == []

    assert attempts == [1, 1, 2, 3, 1]
    assert [letter.reason for letter in box.letters] == [QUARANTINED]


def test_plain_text_is_a_message_where_the_transport_names_it(
    clock: ManualClock, box: DeadLetterBox, seen: list[Observation]
) -> None:
    """With TRANSPORT_ID nothing inside the message is needed, so that it may be anything."""
    consumer = make_consumer(clock, box, seen, key=TRANSPORT_ID)
    received: list[object] = []
    handler = consumer.batch_handler(lambda message, operation: received.append(message))

    handler({"Records": [message("k1", 1) | {"body": "hello"}]}, Invocation(clock))
    assert received == ["hello"]


def test_records_see_the_context_variables_of_their_caller(consumer: Consumer, clock: ManualClock) -> None:
    """What a tracer or logger keeps for the invocation is there in each record's thread."""
    trace = ContextVar("trace", default="none")
    seen_in_threads: list[str] = []
    handler = consumer.batch_handler(lambda event, operation: seen_in_threads.append(trace.get()))
    trace.set("of the invocation")

    handler({"Records": [message(f"k{number}", number) for number in range(3)]}, Invocation(clock))
    assert seen_in_threads == ["of the invocation"] * 3


def test_no_thread_is_left_behind(consumer: Consumer, clock: ManualClock) -> None:
    """When the handler returns, the threads that it started have ended."""
    before = set(threading.enumerate())

    @consumer.batch_handler
    def handler(event: dict[str, Any], operation: Operation) -> None:
        if event["id"] == "k1":
            raise KeyError("no car")

    handler({"Records": [message(f"k{number}", number) for number in range(5)]}, Invocation(clock))

    assert set(threading.enumerate()) == before


def test_record_that_cannot_be_read_goes_to_the_dead_letter_queue_alone(
    consumer: Consumer, clock: ManualClock, box: DeadLetterBox
) -> None:
    """Broken or bottomless JSON and a missing key are dead-lettered with their reasons; their neighbours are done."""
    runs = []

    @consumer.batch_handler
    def handler(event: dict[str, Any], operation: Operation) -> None:
        runs.append(event["id"])

    broken = [message("k2", number) | {"body": body} for number, body in enumerate(["{", "[" * 20_000], 1)]
    records = [message("k1", 0), *broken, message(None, 3)]
    assert failed(handler({"Records": records}, Invocation(clock))) == []
    assert runs == ["k1"]
    assert sorted(letter.reason for letter in box.letters) == [CONTRACT, CONTRACT, MISSING_KEY]


def bug(event: Any) -> Any:
    """Fail as code does that has a mistake in it."""
    return event.identifier if event["id"] == "k1" else event["id"]


def overflow(event: Any) -> Any:
    """Fail as arithmetic on times does."""
    return datetime.fromtimestamp(1e20, UTC) if event["id"] == "k1" else None


@pytest.mark.parametrize(
    "settings",
    [
        {"key": bug},
        {"key": "join(',', id.parts)"},
        {"parse": bug, "payload": "id", "key": "id"},
        {"occurred": overflow},
        {"expires": overflow},
        {"labels": bug},
        {"payload": bug},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_mistake_in_the_code_fails_its_record_alone(
    clock: ManualClock, box: DeadLetterBox, seen: list[Observation], settings: dict[str, Any]
) -> None:
    """Whatever else raises while a record is read is retried by the transport, and harms no neighbour."""
    consumer = make_consumer(clock, box, seen, **settings)
    done: list[object] = []

    @consumer.batch_handler
    def handler(event: dict[str, Any], operation: Operation) -> None:
        done.append(event)

    records = [message("k1", 0), message("k2", 1) if "join" not in str(settings) else message("k2", 1) | {"body": "{"}]
    assert failed(handler({"Records": records}, Invocation(clock))) == ["m0"]
    assert [one.outcome for one in seen if one.outcome == "Failed"] == ["Failed"]
    assert [letter.reason for letter in box.letters] in ([], [CONTRACT])


def test_duplicate_message_of_a_running_one_is_acknowledged_and_the_message_itself_comes_back(
    consumer: Consumer, clock: ManualClock
) -> None:
    """SQS delivering the running message once more gets it back; another message of the same key is done with."""
    answers: list[list[str]] = []

    @consumer.batch_handler
    def handler(event: dict[str, Any], operation: Operation) -> None:
        if not answers:
            answers.append([])
            answers.append(failed(handler({"Records": [message("k1", 0), message("k2", 2)]}, Invocation(clock))))
            answers.append(failed(handler({"Records": [message("k1", 1)]}, Invocation(clock))))

    handler({"Records": [message("k1", 0)]}, Invocation(clock))

    assert answers[1:] == [["m0"], []]


def test_source_without_single_failures_raises(clock: ManualClock, box: DeadLetterBox, seen: list[Observation]) -> None:
    """A Kafka batch with a failed record is raised as a whole; at its next delivery only that record is run."""
    consumer = make_consumer(clock, box, seen, source=KAFKA)
    runs = []

    @consumer.batch_handler
    def handler(event: dict[str, Any], operation: Operation) -> None:
        runs.append(event["id"])
        if runs == ["k1", "k2"]:
            raise KeyError("no car")

    record = {"topic": "rides", "partition": 0, "timestamp": 1_800_000_000_000}
    records = [record | {"offset": number, "value": encoded(f"k{number}")} for number in (1, 2)]
    batch = {"records": {"rides-0": records}}

    with pytest.raises(BatchFailedError):
        handler(batch, Invocation(clock))
    handler(batch, Invocation(clock))
    assert runs == ["k1", "k2", "k2"]


def encoded(key: str) -> str:
    """Encode what a Kafka or Kinesis record carries."""
    return base64.b64encode(json.dumps({"id": key}).encode()).decode()


def test_stream_reports_sequence_numbers(clock: ManualClock, box: DeadLetterBox, seen: list[Observation]) -> None:
    """A failed Kinesis record is reported by its sequence number, with those behind it in its partition key."""
    consumer = make_consumer(clock, box, seen, source=KINESIS)

    @consumer.batch_handler
    def handler(event: dict[str, Any], operation: Operation) -> None:
        if event["id"] == "k1":
            raise BusyError("k1", 1)

    records = [
        {
            "eventID": f"shard:{number}",
            "kinesis": {
                "data": encoded(f"k{number}"),
                "partitionKey": "a" if number < 3 else "b",
                "sequenceNumber": str(number),
                "approximateArrivalTimestamp": 1_800_000_000.0,
            },
        }
        for number in range(4)
    ]
    assert failed(handler({"Records": records}, Invocation(clock))) == ["1", "2"]
