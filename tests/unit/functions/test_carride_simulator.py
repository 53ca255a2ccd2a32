import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import boto3
import pytest
from moto import mock_aws

import carride_simulator
from carride.publisher import ENTRY_TOO_LARGE, PublishError
from tests.unit.carride.fakes import FakeBus, FakeQueue, FakeTime, client_error, publisher


class Context:
    """What Lambda says about the invocation."""

    def __init__(self, time: FakeTime) -> None:
        self._time = time

    def get_remaining_time_in_millis(self) -> int:
        """Return what is left of the invocation."""
        return int(self._time.remaining_ms())


class Stage(NamedTuple):
    """The function between fakes."""

    bus: FakeBus
    queue: FakeQueue
    time: FakeTime

    def simulate(self, **request: Any) -> dict[str, Any]:
        """Invoke the function."""
        return carride_simulator.handler(request, Context(self.time))


def staged(monkeypatch: pytest.MonkeyPatch, bus: FakeBus, queue: FakeQueue, time: FakeTime) -> Stage:
    """Return the function between these."""
    monkeypatch.setattr(carride_simulator, "publisher", lambda: publisher(bus, queue, time))
    return Stage(bus, queue, time)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Return the function between a bus and a queue that take everything."""
    return staged(monkeypatch, FakeBus(), FakeQueue(), FakeTime(30_000))


def test_it_publishes_what_was_asked_for_and_counts_it(stage: Stage) -> None:
    """The summary agrees with what is on the bus and in the queue."""
    summary = stage.simulate(rides=40, seed=7, duplicates=0.5, outOfOrder=0.1, malformed=6, late=2, crashes=1)
    facts = summary["distinct"]
    assert summary["requested"] == summary["total"] == facts + round(facts * 0.5) + 6
    assert summary["published"] == len(stage.bus.events) == summary["requested"] - 2
    assert summary["deadLettered"] == summary["rejected"] == len(stage.queue.messages) == 2
    assert summary["reasons"] == {ENTRY_TOO_LARGE: 1, "MalformedDetail": 1}
    assert summary["resume"] is None


def test_every_field_has_a_default(stage: Stage) -> None:
    """An empty request simulates 200 rides without any mishap."""
    summary = stage.simulate()
    assert summary["requested"] == summary["published"] == summary["distinct"] > 600


def test_the_same_request_publishes_the_same_facts(stage: Stage) -> None:
    """A simulation that is asked for again carries the same idempotency ids."""
    stage.simulate(rides=5, seed=3)
    first = [json.loads(event["Detail"])["idempotencyid"] for event in stage.bus.events]
    stage.simulate(rides=5, seed=3)
    assert [json.loads(event["Detail"])["idempotencyid"] for event in stage.bus.events] == first * 2


def test_a_simulation_that_takes_too_long_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call ends before its time does and says where the next one goes on; together they publish all, once."""
    time = FakeTime(16_000)
    stage = staged(monkeypatch, FakeBus(on_call=lambda: time.work(100)), FakeQueue(), time)
    first = stage.simulate(rides=100, seed=1)
    assert first["resume"] == first["requested"] == 300
    assert time.remaining_ms() > 10_000

    again = staged(monkeypatch, stage.bus, stage.queue, FakeTime(30_000))
    second = again.simulate(rides=100, seed=1, offset=first["resume"], time=first["time"])
    assert second["resume"] is None
    assert first["requested"] + second["requested"] == second["total"] == len(stage.bus.events)
    assert len({event["Detail"] for event in stage.bus.events}) == second["total"]


def test_each_call_gets_on_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even a call with too little time handles a chunk, so that whoever continues comes to an end."""
    stage = staged(monkeypatch, FakeBus(), FakeQueue(), FakeTime(12_000))
    assert stage.simulate(rides=100)["resume"] == carride_simulator.CHUNK


def test_a_caller_can_take_smaller_steps(stage: Stage) -> None:
    """A limit ends a call early, so that progress can be shown."""
    summary = stage.simulate(rides=10, offset=5, limit=7)
    assert (summary["requested"], summary["resume"]) == (7, 12)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"rides": 0}, "rides"),
        ({"rides": "many"}, "rides"),
        ({"duplicates": 30}, "duplicates"),
        ({"outOfOrder": -0.1}, "outOfOrder"),
        ({"seed": None}, "seed"),
        ({"offset": -1}, "offset"),
        ({"time": "yesterday"}, "time"),
        ({"ride": 3}, "ride"),
        ({"rides": 1, "late": 9}, "late"),
        ([], "Request"),
    ],
)
def test_a_bad_request_names_its_field(stage: Stage, request_: Any, field: str) -> None:
    """What cannot be simulated is answered with the field at fault, and nothing is published."""
    answer = carride_simulator.handler(request_, Context(stage.time))
    assert answer["field"] == field
    assert answer["error"].startswith(field)
    assert stage.bus.requests == []


def test_events_that_are_nowhere_fail_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """When bus and queue refuse, the invocation fails, and whoever invoked it knows."""
    denied = client_error("AccessDeniedException", 400)
    stage = staged(monkeypatch, FakeBus(failures=iter([denied])), FakeQueue(failures=iter([denied])), FakeTime())
    with pytest.raises(PublishError):
        stage.simulate(rides=1)


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Return the resources that the function uses, in a simulated account."""
    with mock_aws():
        boto3.client("events").create_event_bus(Name="carride-bus")
        queue_url = boto3.client("sqs").create_queue(QueueName="producer-dlq")["QueueUrl"]
        monkeypatch.setenv("EVENT_BUS_NAME", "carride-bus")
        monkeypatch.setenv("PRODUCER_DLQ_URL", queue_url)
        carride_simulator.publisher.cache_clear()
        yield {"queue": queue_url}
        carride_simulator.publisher.cache_clear()


def test_the_clients_take_what_the_publisher_sends(account: dict[str, str]) -> None:
    """With botocore's own clients, whatever the bus refuses is in the queue with its reason."""
    summary = carride_simulator.handler({"rides": 3, "malformed": 6}, Context(FakeTime(30_000)))
    assert summary["deadLettered"] == 2
    messages = boto3.client("sqs").receive_message(
        QueueUrl=account["queue"], MaxNumberOfMessages=10, MessageAttributeNames=["All"]
    )["Messages"]
    reasons = {message["MessageAttributes"]["ERROR_CODE"]["StringValue"] for message in messages}
    assert reasons == set(summary["reasons"]) == {ENTRY_TOO_LARGE, "MalformedDetail"}
