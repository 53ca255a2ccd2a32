import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import boto3
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from moto import mock_aws
from msgspec import to_builtins

import carride_simulator
from api.simulations import Simulate, TooMuchError
from carride.decoding import shaped
from carride.publisher import ENTRY_TOO_LARGE, PublishError
from carride.settings import SettingsError, from_environment
from carride_simulator import Settings, make_handler
from tests.unit.carride.fakes import FakeBus, FakeQueue, FakeTime, client_error, publisher
from tests.unit.carride.rides import NOW

SETTINGS: Final = Settings("carride-bus", "https://sqs.us-east-1.amazonaws.com/123456789012/producer-dlq")


class Context:
    """What Lambda says about the invocation."""

    def __init__(self, time: FakeTime) -> None:
        self._time = time

    def get_remaining_time_in_millis(self) -> int:
        """Return what is left of the invocation."""
        return int(self._time.remaining_ms())


class Stage:
    """The function between fakes, in one time."""

    def __init__(
        self, bus: FakeBus | None = None, queue: FakeQueue | None = None, time: FakeTime | None = None
    ) -> None:
        self.bus = bus or FakeBus()
        self.queue = queue or FakeQueue()
        self.time = time or FakeTime(30_000)
        self._handler = make_handler(
            SETTINGS,
            publisher=publisher(self.bus, self.queue, self.time),
            now=lambda: NOW,
            monotonic=lambda: -self.time.remaining_ms() / 1000,
            sleep=self.time.sleep,
        )

    def invoke(self, request: Any) -> dict[str, Any]:
        """Invoke the function."""
        return self._handler(request, Context(self.time))

    def simulate(self, **request: Any) -> dict[str, Any]:
        """Invoke the function with the fields of a request."""
        return self.invoke(request)


@pytest.fixture
def stage() -> Stage:
    """Return the function between a bus and a queue that take everything."""
    return Stage()


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


def test_a_simulation_that_takes_too_long_is_continued(caplog: pytest.LogCaptureFixture) -> None:
    """A call ends before its time does, warns, and says where the next one goes on; together they publish all, once."""
    time = FakeTime(16_000)
    stage = Stage(FakeBus(on_call=lambda: time.work(100)), time=time)
    first = stage.simulate(rides=100, seed=1)
    assert first["resume"] == first["requested"] == 300
    assert not first["complete"]
    assert "WARNING" in {record.levelname for record in caplog.records}
    assert time.remaining_ms() > 10_000

    again = Stage(stage.bus, stage.queue)
    second = again.simulate(rides=100, seed=1, offset=first["resume"], time=first["time"])
    assert second["resume"] is None
    assert second["complete"]
    assert first["requested"] + second["requested"] == second["total"] == len(stage.bus.events)
    assert len({event["Detail"] for event in stage.bus.events}) == second["total"]


def test_each_call_gets_on_with_it() -> None:
    """Even a call with too little time handles a chunk, so that whoever continues comes to an end."""
    stage = Stage(time=FakeTime(12_000))
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
        ({"late": 1.5}, "late"),
        ({"mode": "wild"}, "mode"),
        ({"rate": 0}, "rate"),
        ({"duration": 60}, "rate"),
        ({"duration": -1, "rate": 1}, "duration"),
        ({"duration": 60, "rate": 1, "rides": 10}, "duration"),
        ([], "Request"),
    ],
)
def test_a_bad_request_names_its_field(stage: Stage, request_: Any, field: str) -> None:
    """What cannot be simulated is answered with the field at fault, and nothing is published."""
    answer = stage.invoke(request_)
    assert answer["field"] == field
    assert answer["error"].startswith(field)
    assert stage.bus.requests == []


def test_events_that_are_nowhere_fail_the_call() -> None:
    """When bus and queue refuse, the invocation fails, and whoever invoked it knows."""
    denied = client_error("AccessDeniedException", 400)
    stage = Stage(FakeBus(failures=iter([denied])), FakeQueue(failures=iter([denied])))
    with pytest.raises(PublishError):
        stage.simulate(rides=1)


# ── Pace ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_rate_spreads_the_events_evenly() -> None:
    """At fifty events a second each tenth of a second has its five, and none is sooner than it is due."""
    sent: list[tuple[float, int]] = []
    time = FakeTime(900_000)
    bus = FakeBus(on_call=lambda: sent.append((900 - time.remaining_ms() / 1000, len(bus.events))))
    summary = Stage(bus, time=time).simulate(rides=100, rate=50)
    assert summary["resume"] is None
    assert [len(request) for request in bus.requests][:-1] == [5] * (len(bus.requests) - 1)
    assert all(at == pytest.approx(before / 50) for at, before in sent)


def test_a_slow_rate_sends_one_event_at_a_time() -> None:
    """A rate below one event a second is kept too."""
    time = FakeTime(900_000)
    stage = Stage(time=time)
    stage.simulate(rides=1, seed=1, rate=0.5)
    assert len(stage.bus.requests) == len(stage.bus.events)
    assert time.sleeps == pytest.approx([2.0] * (len(stage.bus.events) - 1))


def test_a_call_that_fell_behind_catches_up() -> None:
    """Where publishing takes longer than the rate allows, there is no pause until it is on time again."""
    time = FakeTime(900_000)
    slow_once = iter([10_000])
    bus = FakeBus(on_call=lambda: time.work(next(slow_once, 0)))
    Stage(bus, time=time).simulate(rides=100, seed=1, rate=10)
    assert time.sleeps == pytest.approx([0.1] * (len(bus.events) - 101))
    assert 900_000 - time.remaining_ms() == pytest.approx((len(bus.events) - 1) * 100)


def test_a_rate_that_outlasts_the_call_is_continued() -> None:
    """A call does not wait for an event that it has no time to publish any more, but says where to go on."""
    first = Stage(time=FakeTime(30_000))
    summary = first.simulate(rides=20, seed=1, rate=1)
    assert 15 < summary["requested"] < 22
    assert first.time.remaining_ms() > 10_000
    rest = Stage(first.bus, time=FakeTime(900_000))
    assert rest.simulate(rides=20, seed=1, rate=1, offset=summary["resume"], time=summary["time"])["resume"] is None
    assert len({event["Detail"] for event in first.bus.events}) == summary["total"]


def test_a_duration_ends_a_simulation() -> None:
    """A minute at ten events a second takes about a minute, and every ride that has begun is told to its end."""
    time = FakeTime(900_000)
    stage = Stage(time=time)
    summary = stage.simulate(duration=60, rate=10, duplicates=0.5, seed=3)
    assert summary["resume"] is None
    assert 600 <= summary["requested"] < 610
    assert timedelta(milliseconds=900_000 - time.remaining_ms()).total_seconds() == pytest.approx(60, abs=1)


MOST_EVENTS: Final = 300


@given(
    end=st.fixed_dictionaries({"rides": st.integers(1, 500)})
    | st.fixed_dictionaries({"duration": st.floats(0.1, 600), "rate": st.floats(0.001, 50)}),
    rate=st.fixed_dictionaries({}, optional={"rate": st.floats(0.001, 50)}),
    mode=st.sampled_from(["random", "predefined"]),
    duplicates=st.floats(0, 1),
)
@example(end={"duration": 600.0, "rate": 0.001}, rate={}, mode="random", duplicates=0.0)
@settings(deadline=None)
def test_what_the_api_starts_is_published_whole(
    end: dict[str, float], rate: dict[str, float], mode: str, duplicates: float
) -> None:
    """What the API accepts is over in one call; what it refuses is accepted with the values that it says fit."""
    asked = {"mode": mode, "duplicates": duplicates, **rate, **end}
    for _ in range(len(asked)):
        try:
            settled = shaped(asked, Simulate).settled(1, MOST_EVENTS)
            break
        except TooMuchError as error:
            asked[error.field] = error.fits
    summary = Stage(time=FakeTime(900_000)).simulate(**to_builtins(settled))
    assert summary["complete"]
    assert summary["published"] == summary["total"] <= MOST_EVENTS


# ── Its start ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_global_endpoint_that_cannot_be_signed_for_fails_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where requests to the endpoint cannot be signed the function does not start, and says what to do."""
    monkeypatch.setattr("carride.publisher.AUTH_TYPE_MAPS", {"v4": object})
    with pytest.raises(SettingsError, match=r"abcde\.veo.*SigV4A.*SigV4aLayer"):
        make_handler(Settings("bus", "https://sqs", "abcde.veo"))
    make_handler(Settings("bus", "https://sqs", ""))


@pytest.mark.parametrize("wrong", ["carride", "https://abcde.veo.endpoint.events.amazonaws.com", "abcde.veo "])
def test_what_is_no_endpoint_id_fails_the_start(wrong: str) -> None:
    """A name, an ARN or a URL in the place of the endpoint's id is noticed before any event is."""
    environment = {"EVENT_BUS_NAME": "bus", "PRODUCER_DLQ_URL": "https://sqs", "EVENT_ENDPOINT_ID": wrong}
    with pytest.raises(SettingsError, match="EVENT_ENDPOINT_ID"):
        from_environment(Settings, environment)


@pytest.fixture
def account() -> Iterator[Settings]:
    """Return the settings of a function in a simulated account."""
    with mock_aws():
        boto3.client("events").create_event_bus(Name="carride-bus")
        yield Settings("carride-bus", boto3.client("sqs").create_queue(QueueName="producer-dlq")["QueueUrl"])


def test_the_clients_take_what_the_publisher_sends(account: Settings) -> None:
    """With botocore's own clients, whatever the bus refuses is in the queue with its reason."""
    summary = make_handler(account)({"rides": 3, "malformed": 6}, Context(FakeTime(30_000)))
    assert summary["deadLettered"] == 2
    messages = boto3.client("sqs").receive_message(
        QueueUrl=account.producer_dlq_url, MaxNumberOfMessages=10, MessageAttributeNames=["All"]
    )["Messages"]
    reasons = {message["MessageAttributes"]["ERROR_CODE"]["StringValue"] for message in messages}
    assert reasons == set(summary["reasons"]) == {ENTRY_TOO_LARGE, "MalformedDetail"}
