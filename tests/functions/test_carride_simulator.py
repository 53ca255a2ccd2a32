from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import carride_simulator
from api.commands import Simulate
from api.simulations import MOST_EVENTS, start
from carride.decoding import shaped
from carride.publisher import ENTRY_TOO_LARGE, PublishError
from carride.settings import SettingsError, from_environment
from carride_idempotency import MemoryStore
from carride_idempotency.http import HttpProblemError
from carride_simulator import Settings, make_handler
from tests.kit.fakes import FakeBus, FakeQueue, FakeTime, client_error, publisher
from tests.kit.rides import NOW


class Stage:
    """The function between fakes that share a clock."""

    def __init__(
        self,
        bus: FakeBus | None = None,
        queue: FakeQueue | None = None,
        time: FakeTime | None = None,
    ):
        self.bus = bus or FakeBus()
        self.queue = queue or FakeQueue()
        self.time = time or FakeTime(900_000)
        self.handler = make_handler(
            Settings(
                "carride-bus", "https://sqs.us-east-1.amazonaws.com/123456789012/producer-dlq"
            ),
            publisher=publisher(self.bus, self.queue, self.time),
            now=lambda: NOW,
            monotonic=lambda: -self.time.remaining_ms() / 1000,
            sleep=self.time.sleep,
        )

    def simulate(self, request: Any = None, **fields: Any) -> dict[str, Any]:
        return self.handler(fields if request is None else request, self.time)


def test_it_publishes_what_was_asked_for_and_counts_it() -> None:
    """The summary agrees with what is on the bus and in the queue."""
    stage = Stage()
    summary = stage.simulate(
        rides=40, seed=7, duplicates=0.5, outOfOrder=0.1, malformed=6, late=2, crashes=1
    )
    facts = summary["distinct"]
    assert summary["requested"] == summary["total"] == facts + round(facts * 0.5) + 6
    assert summary["published"] == len(stage.bus.events) == summary["requested"] - 2
    assert summary["deadLettered"] == summary["rejected"] == len(stage.queue.messages) == 2
    assert summary["reasons"] == {ENTRY_TOO_LARGE: 1, "MalformedDetail": 1}
    assert summary["injected"] == {
        "copy": round(facts * 0.5),
        "malformed": 6,
        "late": 2,
        "crash": 1,
    }
    assert summary["resume"] is None
    default = Stage().simulate()
    assert default["requested"] == default["published"] == default["distinct"] > 600


@pytest.mark.parametrize(("rate", "most"), [(None, 300), (1, 21)])
def test_a_simulation_that_takes_too_long_is_continued(
    caplog: pytest.LogCaptureFixture, rate: float | None, most: int
) -> None:
    """A call ends before its time does, warns, and returns where the next call continues.

    Together they publish all.
    """
    time = FakeTime(16_000 if rate is None else 30_000)
    first = Stage(FakeBus(on_call=lambda _: time.work(100 if rate is None else 0)), time=time)
    summary = first.simulate(rides=100, seed=1, rate=rate)
    assert most - 5 < summary["resume"] == summary["requested"] <= most
    assert "WARNING" in {record.levelname for record in caplog.records}
    assert time.remaining_ms() > 10_000
    rest = Stage(first.bus).simulate(
        rides=100, seed=1, offset=summary["resume"], time=summary["time"]
    )
    assert (rest["resume"], rest["complete"]) == (None, True)
    assert summary["requested"] + rest["requested"] == rest["total"] == len(first.bus.events)
    assert len({event["Detail"] for event in first.bus.events}) == rest["total"]


def test_each_call_makes_progress() -> None:
    """Even a call with too little time publishes a chunk; a limit ends a call earlier."""
    assert Stage(time=FakeTime(12_000)).simulate(rides=100)["resume"] == carride_simulator.CHUNK
    assert Stage().simulate(rides=10, offset=5, limit=7)["resume"] == 12


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"rides": 0}, "rides"),
        ({"seed": None}, "seed"),
        ({"offset": -1}, "offset"),
        ({"limit": 10**19}, "limit"),
        ({"time": "yesterday"}, "time"),
        ({"time": "0001-01-01T00:00:00Z"}, "time"),
        ({"ride": 3}, "ride"),
        ({"rides": 1, "late": 9}, "late"),
        ({"duration": 60}, "rate"),
        ([], "SimulationRequest"),
    ],
)
def test_a_bad_request_names_its_field(request_: Any, field: str) -> None:
    """An invalid request is answered with its invalid field, and nothing is published."""
    stage = Stage()
    answer = stage.simulate(request_)
    assert (answer["field"], stage.bus.requests) == (field, [])
    assert answer["error"].startswith(field)


def test_events_that_are_nowhere_fail_the_call() -> None:
    """If bus and queue refuse events, the invocation fails."""
    denied = client_error("AccessDeniedException", 400)
    stage = Stage(FakeBus(failures=[denied]), FakeQueue(failures=[denied]))
    with pytest.raises(PublishError):
        stage.simulate(rides=1)


@given(rate=st.floats(0.5, 500), delay_ms=st.sampled_from([0, 10_000]))
@settings(max_examples=30)
def test_no_event_is_published_before_it_is_due(rate: float, delay_ms: int) -> None:
    """At any rate each chunk is published when its first event is due, or at once if late."""
    time = FakeTime(900_000)
    delays = iter([delay_ms])
    sent: list[tuple[float, int]] = []

    def put(_: object) -> None:
        sent.append((900 - time.remaining_ms() / 1000, len(bus.events)))
        time.work(next(delays, 0))

    bus = FakeBus(on_call=put)
    assert Stage(bus, time=time).simulate(rides=20, seed=1, rate=rate)["complete"]
    for at, before in sent:
        chunk = before - before % max(1, int(rate / 10))
        assert at == pytest.approx(max(chunk / rate, delay_ms / 1000 if before else 0))


@given(
    end=st.fixed_dictionaries({"rides": st.integers(1, 500)})
    | st.fixed_dictionaries({"duration": st.floats(0.1, 600), "rate": st.floats(0.001, 50)}),
    rate=st.fixed_dictionaries({}, optional={"rate": st.floats(0.001, 50)}),
    mode=st.sampled_from(["random", "predefined"]),
    duplicates=st.floats(0, 1),
)
@example(end={"rides": 150}, rate={"rate": 2.5}, mode="predefined", duplicates=0.0)
@settings(max_examples=15)
def test_what_the_api_starts_is_published_whole(
    end: dict[str, float], rate: dict[str, float], mode: str, duplicates: float
) -> None:
    """One call publishes an accepted simulation, with no more events than the stage allows."""
    started: list[Any] = []
    command = shaped({"mode": mode, "duplicates": duplicates, **rate, **end}, Simulate)
    try:
        start(
            command,
            "0123456789",
            stage="dev",
            store=MemoryStore(),
            now=NOW,
            start_simulator=started.append,
        )
    except HttpProblemError:
        assert not started
        return
    summary = Stage().simulate(**started[0])
    assert (summary["complete"], summary["published"]) == (True, summary["total"])
    assert summary["total"] <= MOST_EVENTS["dev"]


def test_a_global_endpoint_that_cannot_be_signed_for_fails_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without SigV4A the function does not start, and says what to do."""
    monkeypatch.setattr("carride.publisher.AUTH_TYPE_MAPS", {"v4": object})
    with pytest.raises(SettingsError, match=r"abcde\.veo.*SigV4A.*SigV4aLayer"):
        make_handler(Settings("bus", "https://sqs", "abcde.veo"))
    make_handler(Settings("bus", "https://sqs", ""))


def test_a_variable_that_is_missing_or_wrong_names_itself() -> None:
    """The function does not start.

    The error says which variable it is, what is wrong with it, and what to do.
    """
    environment = {"EVENT_BUS_NAME": "bus", "PRODUCER_DLQ_URL": "https://sqs"}
    assert from_environment(Settings, environment | {"OTHER": "x"}) == Settings(
        "bus", "https://sqs"
    )
    with pytest.raises(
        SettingsError,
        match=r"^EVENT_ENDPOINT_ID: Expected.*template\.yaml.*export EVENT_ENDPOINT_ID",
    ):
        from_environment(Settings, environment | {"EVENT_ENDPOINT_ID": "abcde.veo "})
    with pytest.raises(
        SettingsError,
        match=r"^EVENT_BUS_NAME: it is not set.*template\.yaml.*export EVENT_BUS_NAME",
    ):
        from_environment(Settings, {})
