"""The records of a batch run concurrently and fail one by one, and no thread is left behind."""

import base64
import json
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import pytest

from carride_idempotency import TRANSPORT_ID, Operation, Status
from carride_idempotency.dead_letters import CONTRACT, MISSING_KEY, DeadLetter
from carride_idempotency.errors import BatchFailedError
from carride_idempotency.sources import KAFKA
from carride_idempotency.testing import Crash, DeadLetterBox, Inline, sqs_event
from tests.samples import World, crash, event

DEADLINE_S = 60
"""How long a test waits for other threads before it fails."""


class Batches:
    """A consumer of batches, and what is delivered to it."""

    def __init__(self, world: World, **settings: Any) -> None:
        self.world = world
        self.consumer = world.consumer("dispatch", **({"key": "id"} | settings))

    def deliver(
        self, batch: Any, work: Callable[[Any], object], *, timeout_s: float = 30.0
    ) -> list[str]:
        """Deliver one batch to ``work(message)``.

        Return the ids of the records that are to be delivered again.
        """
        handler = self.consumer.batch_handler(lambda message, operation: work(message))
        event = batch if isinstance(batch, dict) else {"Records": batch}
        response = handler(event, self.world.invocation(timeout_s=timeout_s))
        return [failure["itemIdentifier"] for failure in response["batchItemFailures"]]

    def statuses(self, *keys: str) -> list[Status | None]:
        return [record and record.status for record in map(self.consumer.record, keys)]


@pytest.fixture
def sqs(world: World) -> Batches:
    """A consumer of SQS batches, whose messages have an id."""
    return Batches(world)


def message(
    key: str | None, number: int, *, received: int = 1, **attributes: Any
) -> dict[str, Any]:
    batch = sqs_event({"id": key}, received=received, **attributes)
    return {**batch["Records"][0], "messageId": f"m{number}"}


def messages(*keys: str | None, **options: Any) -> list[dict[str, Any]]:
    return [message(key, number, **options) for number, key in enumerate(keys)]


FIFO = "arn:aws:sqs:eu-west-1:123456789012:rides.fifo"
TEN = [f"k{number}" for number in range(10)]


def fails_at(key: str, *others: Callable[[Any], object]) -> Callable[[Any], None]:
    """Make work that fails at one key, after what it does for each."""

    def work(message: Any) -> None:
        for each in others:
            each(message["id"])
        if message["id"] == key:
            raise KeyError("no car")

    return work


def test_records_run_concurrently(sqs: Batches) -> None:
    """All ten records of a batch are in the handler at the same time."""
    together = threading.Barrier(10, timeout=DEADLINE_S)
    assert sqs.deliver(messages(*TEN), lambda _: together.wait()) == []


def test_only_failed_records_are_delivered_again(sqs: Batches) -> None:
    """A record's failure is its own, its neighbours are completed, and no thread stays."""
    before = set(threading.enumerate())
    assert sqs.deliver(messages("k0", "k1", "k2"), fails_at("k1")) == ["m1"]
    assert sqs.statuses("k0", "k1", "k2") == ["COMPLETED", "FAILED", "COMPLETED"]
    assert set(threading.enumerate()) == before


def test_equal_keys_share_one_failure(sqs: Batches) -> None:
    """The other records of a failed key fail without a second run.

    If all records fail, the handler raises.
    """
    runs: list[str] = []
    with pytest.raises(BatchFailedError) as raised:
        sqs.deliver(messages("k1", "k1"), fails_at("k1", runs.append))
    assert isinstance(raised.value.__cause__, KeyError)
    assert runs == ["k1"]


def kill(batches: Batches, *keys: str) -> None:
    """Crash a process at the record of each key in turn, and let the leases end."""
    for key in keys:
        with pytest.raises(Crash):
            batches.deliver(messages(key), crash)
        batches.world.clock.advance(60)


def test_suspects_of_a_crash_run_alone_and_last(sqs: Batches) -> None:
    """Records whose earlier attempt crashed run after the others, one by one."""
    kill(sqs, "k0", "k1")
    order: list[str] = []
    sqs.deliver(messages("k0", "k1", "new1", "new2"), lambda message: order.append(message["id"]))
    assert sorted(order[:2]) == ["new1", "new2"]
    assert order[2:] == ["k0", "k1"]


def test_a_record_whose_attempt_failed_is_no_suspect(world: World) -> None:
    """A failure names its record: the retry keeps its place, and costs no neighbour its attempt."""
    sqs = Batches(world, concurrency=Inline())
    with pytest.raises(BatchFailedError):
        sqs.deliver(messages("failed"), fails_at("failed"))
    order: list[str] = []
    sqs.deliver(messages("failed", "new"), lambda message: order.append(message["id"]))
    assert order == ["failed", "new"]


def test_a_redelivered_record_of_an_atomic_batch_is_claimed(world: World) -> None:
    """A first delivery is not claimed. A later one is, so that its crash is seen and counted."""
    sqs = Batches(world, policy={"atomic": True})
    for received in (1, 2):
        with pytest.raises(Crash):
            sqs.deliver(messages("k0", received=received), crash)
        expected = [None] if received == 1 else ["IN_PROGRESS"]
        assert sqs.statuses("k0") == expected


def test_a_suspect_on_its_last_attempt_runs_first(sqs: Batches) -> None:
    """It has the whole invocation, so that no slow neighbour costs it its last attempt."""
    kill(sqs, "twice", "once", "twice")
    order: list[str] = []
    records = messages("new", "once", "twice", received=3)
    sqs.deliver(records, lambda message: order.append(message["id"]))
    assert order == ["twice", "new", "once"]


def test_a_last_attempt_has_the_time_of_the_crashed_one(sqs: Batches) -> None:
    """A suspect that is found when too little time is left comes again, without an attempt."""
    kill(sqs, "slow", "slow")

    def work(_: object) -> None:
        sqs.world.clock.advance(3)

    assert sqs.deliver(messages("quick", "slow"), work) == ["m1"]
    assert sqs.statuses("slow") == ["IN_PROGRESS"]
    assert sqs.deliver(messages("slow", "another", received=3), work) == []


class SlowBox(DeadLetterBox):
    """A dead-letter queue that takes 20 s to answer."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def send(self, dead_letter: DeadLetter) -> None:
        self._world.clock.advance(20)
        super().send(dead_letter)


def test_a_last_attempt_is_not_begun_after_a_slow_letter(world: World) -> None:
    """Whatever has used time: a last attempt waits until it has that of the crashed one."""
    batches = Batches(world, policy={"concurrency": 1}, dead_letters=SlowBox(world))
    kill(batches, "slow", "slow")
    records = messages(None, "slow")
    assert batches.deliver(records, lambda _: None) == ["m1"]
    assert batches.statuses("slow") == ["IN_PROGRESS"]
    assert batches.deliver(messages("slow"), lambda _: None) == []


def test_a_record_is_not_started_after_a_slow_letter_that_leaves_too_little_time(
    world: World,
) -> None:
    """A record whose run would not fit comes again without an attempt, though no run has ended."""
    batches = Batches(world, policy={"concurrency": 1}, dead_letters=SlowBox(world))
    takes_s = {"k0": 15}

    @batches.consumer.batch_handler
    def handler(message: Any, operation: Operation) -> None:
        world.clock.advance(takes_s.get(message["id"], 0))

    def deliver(*keys: str | None) -> list[str]:
        answer = handler({"Records": messages(*keys)}, world.invocation())
        return [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]

    assert deliver("k0") == []
    assert deliver(None, "k1") == ["m1"]
    assert batches.statuses("k1") == [None]
    assert deliver("k1") == []


def test_a_run_that_failed_says_nothing_about_the_time_that_work_takes(world: World) -> None:
    """After 20 failures at once, a record that takes 25 s does not start with 10 s left."""
    one_by_one = Batches(world, policy={"concurrency": 1})
    takes_s = {"k0": 19, "k1": 0, "k2": 25}

    @one_by_one.consumer.batch_handler
    def handler(message: Any, operation: Operation) -> None:
        if message["id"].startswith("broken"):
            raise KeyError("no car")
        world.clock.advance(takes_s.get(message["id"], 0))

    def deliver(*keys: str) -> list[str]:
        answer = handler({"Records": messages(*keys)}, world.invocation())
        return [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]

    assert deliver("k2") == []
    assert len(deliver("k1", *(f"broken{number}" for number in range(20)))) == 20
    assert deliver("k0", "k3") == ["m1"]


def test_suspects_run_in_groups_if_time_is_short(sqs: Batches) -> None:
    """Once a run has shown its length, suspects run in groups that fit, save on a last try."""
    kill(sqs, "k0", "k1", "k2", "k3", "last", "last")
    running: set[str] = set()
    neighbours: dict[str, int] = {}
    together = threading.Barrier(3, timeout=DEADLINE_S)

    def work(message: Any) -> None:
        key = message["id"]
        running.add(key)
        if key in ("k1", "k2", "k3"):
            together.wait()
        neighbours[key] = len(running) - 1
        if key in ("k1", "k2", "k3"):
            together.wait()
        sqs.world.clock.advance({"k0": 25, "k3": 5}.get(key, 0))
        running.discard(key)

    assert sqs.deliver(messages("last", "k0", "k1", "k2", "k3"), work, timeout_s=70) == []
    assert neighbours == {"k0": 0, "k1": 2, "k2": 2, "k3": 2, "last": 0}


class Groups(Inline):
    """Runs tasks one by one, and counts those that may run at once."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def run_all(self, tasks: Sequence[Callable[[], None]], limit: int) -> None:
        self.sizes.append(len(tasks))
        super().run_all(tasks, limit)


def test_a_suspect_on_its_last_attempt_is_in_no_group(world: World) -> None:
    """However short the time is, no other record's crash may use up its attempts."""
    groups = Groups()
    sqs = Batches(world, concurrency=groups)
    kill(sqs, "k0", "k1", "k2", "last", "last")
    groups.sizes.clear()
    took_s = {"k0": 25}
    batch = messages("last", "k0", "k1", "k2")
    sqs.deliver(
        batch, lambda message: world.clock.advance(took_s.get(message["id"], 0)), timeout_s=60
    )
    assert groups.sizes == [0, 4, 1, 2, 1]  # none may be last, all are postponed, then they run


@pytest.mark.parametrize(("reserve", "takes_s", "timeout_s"), [(1, 25, 60), (2, 5, 12)])
def test_records_start_only_if_they_fit(
    world: World, reserve: int, takes_s: int, timeout_s: int
) -> None:
    """A record starts, and is claimed, only if what runs have taken still fits.

    The others are delivered again.
    """
    one_by_one = Batches(world, policy={"concurrency": 1, "reserve": reserve})
    records = messages("k0", "k1", "k2", "k3")
    failed = one_by_one.deliver(
        records, lambda _: world.clock.advance(takes_s), timeout_s=timeout_s
    )
    assert failed == ["m2", "m3"]
    assert one_by_one.statuses("k1", "k2") == ["COMPLETED", None]


def test_fifo_group_keeps_its_order_and_stops_at_a_failure(sqs: Batches) -> None:
    """After a failed record of a FIFO group, the rest of the group is not run and comes back."""
    order: list[str] = []
    keys = ["a1", "b1", "a2", "a3"]
    records = [
        message(key, number, MessageGroupId=key[0]) | {"eventSourceARN": FIFO}
        for number, key in enumerate(keys)
    ]
    assert sqs.deliver(records, fails_at("a2", order.append)) == ["m2", "m3"]
    assert [key for key in order if key.startswith("a")] == ["a1", "a2"]


def test_fair_queue_has_no_order(sqs: Batches) -> None:
    """A standard queue's group is a tenant, whose bad message stops none of its neighbours."""
    records = messages("k0", "k1", "k2", MessageGroupId="tenant")
    assert sqs.deliver(records, fails_at("k0")) == ["m0"]
    assert sqs.statuses("k1", "k2") == ["COMPLETED", "COMPLETED"]


BROKEN_NUMBERS = [
    '{"id": "k1", "n": NaN}',
    '{"id": "k1", "n": 1e999}',
    '{"id": "k1", "n": -Infinity}',
]


@pytest.mark.parametrize("body", BROKEN_NUMBERS)
def test_message_with_a_number_that_is_none_breaks_the_contract(sqs: Batches, body: str) -> None:
    """No delivery can mend it, so it does not stop its queue or shard."""
    assert sqs.deliver([message("k1", 0) | {"body": body}], lambda _: None) == []
    assert sqs.world.reasons == [CONTRACT]


@pytest.mark.parametrize("key", ["id", TRANSPORT_ID], ids=["a key", "the transport's id"])
def test_tombstone_breaks_the_contract(world: World, key: Any) -> None:
    """Kafka's record without a value says that a key is gone: it is not a message."""
    record = {"topic": "rides", "partition": 0, "offset": 1, "timestamp": 1, "value": None}
    kafka = Batches(world, source=KAFKA, key=key, policy={"window": 10**10})
    assert kafka.deliver({"records": {"rides-0": [record]}}, lambda _: None) == []
    assert world.reasons == [CONTRACT]


def test_plain_text_is_a_message_where_the_transport_names_it(world: World) -> None:
    """With TRANSPORT_ID the message may be any text."""
    received: list[object] = []
    Batches(world, key=TRANSPORT_ID).deliver(
        [message("k1", 1) | {"body": "hello"}], received.append
    )
    assert received == ["hello"]


@pytest.mark.parametrize("concurrency", [2, 10])
def test_records_see_the_context_variables_of_their_caller(world: World, concurrency: int) -> None:
    """Each record has the caller's context variables, and none that another record has set."""
    trace = ContextVar("trace", default="none")
    found: list[str] = []
    trace.set("of the invocation")

    def work(_: object) -> None:
        found.append(trace.get())
        trace.set("of a record")

    Batches(world, policy={"concurrency": concurrency}).deliver(messages("k0", "k1", "k2"), work)
    assert found == ["of the invocation"] * 3


def test_what_ends_a_process_ends_the_invocation(sqs: Batches) -> None:
    """SystemExit in any record's thread is raised when all records have ended.

    Nothing is acknowledged.
    """
    handled: list[str] = []

    def work(event: Any) -> None:
        if event["id"] == "k3":
            raise SystemExit
        handled.append(event["id"])

    with pytest.raises(SystemExit):
        sqs.deliver(messages("k0", "k1", "k2", "k3"), work)
    assert sorted(handled) == ["k0", "k1", "k2"]


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
def test_mistake_in_the_code_fails_its_record_alone(world: World, settings: dict[str, Any]) -> None:
    """Any other error while a record is read fails that record alone."""
    batches = Batches(world, **settings)
    neighbour = message("k2", 1) | ({"body": "{"} if "join" in str(settings) else {})
    assert batches.deliver([message("k1", 0), neighbour], lambda _: None) == ["m0"]
    assert [one.outcome for one in world.seen if one.outcome == "Failed"] == ["Failed"]
    assert world.reasons in ([], [CONTRACT])


def encoded(key: str) -> str:
    return base64.b64encode(json.dumps({"id": key}).encode()).decode()


def test_source_without_single_failures_raises(world: World) -> None:
    """A batch with a failed record is raised as a whole, for a mapping that takes no report.

    At its next delivery only that record is run.
    """
    kafka = Batches(world, source=KAFKA)
    runs = list[str]()
    record = {"topic": "rides", "partition": 0, "timestamp": 1_800_000_000_000}
    batch = {
        "records": {
            "rides-0": [record | {"offset": each, "value": encoded(f"k{each}")} for each in (1, 2)]
        }
    }
    with pytest.raises(BatchFailedError):
        kafka.deliver(batch, fails_at("k2", runs.append))
    kafka.deliver(batch, lambda message: runs.append(message["id"]))
    assert runs == ["k1", "k2", "k2"]


def test_dead_letters_hold_up_no_neighbour(world: World) -> None:
    """A queue that does not answer costs the messages at fault their time, and no other one's."""
    ran = threading.Event()

    class SlowQueue(DeadLetterBox):
        def send(self, dead_letter: DeadLetter) -> None:
            assert ran.wait(DEADLINE_S), "the healthy message waits for the letters"
            super().send(dead_letter)

    box = SlowQueue()
    batches = Batches(world, dead_letters=box)
    records = [*messages(None, None, None), message("healthy", 3)]
    assert batches.deliver(records, lambda _: ran.set()) == []
    assert [letter.reason for letter in box.letters] == [MISSING_KEY] * 3


def test_no_letter_is_sent_without_time(world: World) -> None:
    """A message at fault comes again if the time left is used up."""
    batches = Batches(world, policy={"concurrency": 1})
    records = [message("slow", 0), message(None, 1)]
    assert batches.deliver(records, lambda _: world.clock.advance(29)) == ["m1"]
    assert world.reasons == []


def test_process_without_further_threads_runs_its_batch_in_one(
    sqs: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that can have no more threads completes its records, one after another."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert sqs.deliver(messages("k0", "k1", "k2"), lambda _: None) == []
    assert sqs.statuses("k0", "k1", "k2") == ["COMPLETED"] * 3


def test_letter_says_where_its_key_was_looked_for(world: World) -> None:
    """A mistake in ``key=`` is told from a broken message by its letter."""
    assert Batches(world, key="order.ID").deliver(messages("k1"), lambda _: None) == []
    [letter] = world.box.letters
    assert "key='order.ID'" in letter.message
    assert "['id']" in letter.message


def test_mistake_in_the_key_fails_the_function(world: World) -> None:
    """Three letters show the mistake; then messages stay in the queue, until a key is found."""
    mistaken = Batches(world, key="order.ID")
    assert mistaken.deliver(messages("k1", "k2", "k3"), lambda _: None) == []
    for _ in range(2):
        with pytest.raises(BatchFailedError) as raised:
            mistaken.deliver(messages("k4", "k5"), lambda _: None)
        assert "check key=" in str(raised.value.__cause__)
        assert "key='order.ID'" in str(raised.value.__cause__)
    assert [letter.reason for letter in world.box.letters] == [MISSING_KEY] * 3
    assert [seen.outcome for seen in world.seen[3:]] == ["Failed"] * 4


def test_messages_without_a_key_are_dead_lettered_where_others_have_one(sqs: Batches) -> None:
    """A message without a key is at fault itself, whatever its place in the batch."""
    assert sqs.deliver(messages(*[None] * 5, "k1", *[None] * 4), lambda _: None) == []
    assert sqs.world.reasons == [MISSING_KEY] * 9


DEEP = '{"id": "k1", "n": 1.0, "deep": ' + "[" * 3000 + "]" * 3000 + "}"
TIMELESS = json.dumps(event() | {"time": "soon"})


@pytest.mark.parametrize("body", [DEEP, TIMELESS], ids=["too deep", "no time"])
def test_message_that_no_delivery_can_mend_breaks_the_contract(world: World, body: str) -> None:
    """Whatever in it cannot be read: it does not stop its queue or shard."""
    batches = Batches(world, key="id")
    assert batches.deliver([message("k1", 0) | {"body": body}], lambda _: None) == []
    assert world.reasons == [CONTRACT]
