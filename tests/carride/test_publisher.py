import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any, Final

import pytest
from botocore.auth import AUTH_TYPE_MAPS
from botocore.exceptions import (
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    ReadTimeoutError,
)

from carride.entry import TOO_LARGE, BusEntry
from carride.events import parse_event
from carride.publisher import (
    ENTRY_TOO_LARGE,
    MESSAGE_TOO_LARGE,
    NEEDED_MS,
    OUT_OF_TIME,
    RETRYABLE,
    Outcome,
    PublishError,
)
from carride.settings import SettingsError
from ops.audit.queues import opened
from ops.redrive import entry_in
from tests.carride.fakes import FakeBus, FakeQueue, FakeTime, client_error, publisher
from tests.carride.rides import NOW, entry

FINAL: Final = ["AccessDeniedException", "InvalidArgument", "MalformedDetail", "NotAuthorizedForSourceException"]
URL: Final = "https://events.us-east-1.amazonaws.com"


def entries(count: int) -> list[BusEntry]:
    """Return entries of as many rides."""
    return [entry(f"order_{number}") for number in range(count)]


def order(request: dict[str, Any]) -> str:
    """Return the ride that an entry is about, as requested."""
    order_id: str = json.loads(request["Detail"])["subject"]
    return order_id


def first_times(count: int, code: str) -> Callable[[dict[str, Any]], str | None]:
    """Answer with a code to the first times that an entry is seen."""
    seen: Counter[str] = Counter()

    def answer(request: dict[str, Any]) -> str | None:
        seen[order(request)] += 1
        return code if seen[order(request)] <= count else None

    return answer


# ── To the bus ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_entry_has_its_receipt() -> None:
    """Receipts come in the order of the entries, each with the id that EventBridge gave."""
    bus, queue, time = FakeBus(), FakeQueue(), FakeTime()
    asked = entries(12)
    receipts = publisher(bus, queue, time).publish(asked, time.remaining_ms)
    assert [receipt.entry for receipt in receipts] == asked
    assert [receipt.event_id for receipt in receipts] == [f"event-{number}" for number in range(1, 13)]
    assert {(receipt.outcome, receipt.attempts, receipt.code) for receipt in receipts} == {(Outcome.PUBLISHED, 1, None)}
    assert [len(request) for request in bus.requests] == [10, 2]
    assert queue.messages == []


@pytest.mark.parametrize("code", sorted(RETRYABLE))
def test_only_the_entries_that_failed_are_sent_again(code: str) -> None:
    """Of a batch in which one entry failed for a passing reason, that one is sent again, with the same detail."""
    fails = first_times(1, code)
    bus, queue, time = (
        FakeBus(lambda request: fails(request) if order(request) == "order_3" else None),
        FakeQueue(),
        FakeTime(),
    )
    receipts = publisher(bus, queue, time).publish(entries(5), time.remaining_ms)
    assert [list(map(order, request)) for request in bus.requests] == [[f"order_{n}" for n in range(5)], ["order_3"]]
    assert bus.requests[1][0] == bus.requests[0][3]
    assert [receipt.attempts for receipt in receipts] == [1, 1, 1, 2, 1]
    assert queue.messages == []


@pytest.mark.parametrize("code", FINAL)
def test_an_entry_that_was_refused_for_good_is_not_sent_again(code: str) -> None:
    """A code that no retry can mend sends the entry to the dead-letter queue at once, with code and reason."""
    bus, queue, time = FakeBus(lambda request: code if order(request) == "order_1" else None), FakeQueue(), FakeTime()
    receipts = publisher(bus, queue, time).publish(entries(3), time.remaining_ms)
    assert len(bus.requests) == 1
    assert [receipt.outcome for receipt in receipts] == [Outcome.PUBLISHED, Outcome.DEAD_LETTERED, Outcome.PUBLISHED]
    assert (receipts[1].code, receipts[1].retryable) == (code, False)
    assert queue.messages[0]["MessageAttributes"] == {
        "ERROR_CODE": {"DataType": "String", "StringValue": code},
        "ERROR_MESSAGE": {"DataType": "String", "StringValue": f"{code} of the fake"},
        "RETRY_ATTEMPTS": {"DataType": "Number", "StringValue": "1"},
    }
    assert parse_event(queue.bodies()[0]).subject == "order_1"


def test_attempts_are_limited() -> None:
    """An entry that keeps failing goes to the dead-letter queue when its attempts are used up."""
    bus, queue, time = FakeBus(lambda _: "ThrottlingException"), FakeQueue(), FakeTime()
    (receipt,) = publisher(bus, queue, time, max_attempts=3).publish(entries(1), time.remaining_ms)
    assert (receipt.outcome, receipt.attempts, receipt.retryable) == (Outcome.DEAD_LETTERED, 3, True)
    assert queue.reasons() == ["ThrottlingException"]


def test_pauses_double_up_to_a_limit_and_are_jittered() -> None:
    """Each pause is a random part of one that doubles, so that producers do not come back all at once."""
    time = FakeTime()
    bus = FakeBus(lambda _: "InternalFailure")
    publisher(bus, FakeQueue(), time, max_attempts=6, first_delay_s=0.1, longest_delay_s=1.0).publish(
        entries(1), time.remaining_ms
    )
    assert time.sleeps == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0])

    jitter = iter([0.5, 0.0])
    again = FakeTime()
    publisher(bus, FakeQueue(), again, max_attempts=3, first_delay_s=0.1, jitter=lambda: next(jitter)).publish(
        entries(1), again.remaining_ms
    )
    assert again.sleeps == pytest.approx([0.05, 0.0])


@pytest.mark.parametrize(
    "failure",
    [
        client_error("ThrottlingException", 400),
        client_error("TooManyRequests", 429),
        client_error("ServiceUnavailable", 503),
        client_error("InternalException", 500),
        ReadTimeoutError(endpoint_url=URL),
        ConnectTimeoutError(endpoint_url=URL),
        EndpointConnectionError(endpoint_url=URL),
    ],
    ids=repr,
)
def test_a_call_that_failed_as_a_whole_is_made_again(failure: Exception) -> None:
    """Throttling, server errors and lost connections are waited out, batch by batch."""
    bus, queue, time = FakeBus(failures=iter([failure, failure])), FakeQueue(), FakeTime()
    receipts = publisher(bus, queue, time).publish(entries(1), time.remaining_ms)
    assert [receipt.attempts for receipt in receipts] == [3]
    assert len(time.sleeps) == 2
    assert queue.messages == []


@pytest.mark.parametrize("failure", [client_error("AccessDeniedException", 400), NoCredentialsError()], ids=repr)
def test_a_call_that_was_refused_for_good_is_not_made_again(failure: Exception) -> None:
    """What no retry can mend sends the whole batch to the dead-letter queue."""
    bus, queue, time = FakeBus(failures=iter([failure])), FakeQueue(), FakeTime()
    publisher(bus, queue, time).publish(entries(4), time.remaining_ms)
    assert len(bus.requests) == 1
    assert len(queue.messages) == 4


@pytest.mark.parametrize(
    "failure",
    [client_error("ValidationException", 400), client_error("Whatever", 413), ParamValidationError(report="Resources")],
    ids=repr,
)
def test_one_bad_entry_does_not_take_its_batch_along(failure: Exception) -> None:
    """A request that is refused for what it holds is divided until the entry at fault is alone."""

    class Strict(FakeBus):
        def put_events(self, *, Entries: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803 - botocore's name
            if any(order(request) == "order_6" for request in Entries):
                raise failure
            return super().put_events(Entries=Entries)

    bus, queue, time = Strict(), FakeQueue(), FakeTime()
    receipts = publisher(bus, queue, time).publish(entries(10), time.remaining_ms)
    assert [receipt.outcome is Outcome.PUBLISHED for receipt in receipts] == [number != 6 for number in range(10)]
    assert [body["detail"]["subject"] for body in queue.bodies()] == ["order_6"]


@pytest.mark.parametrize("answered", [None, 0, 1])
def test_an_answer_that_does_not_match_the_request_is_no_answer(answered: int | None) -> None:
    """Where entries and answers cannot be told to belong together, the batch counts as unanswered and is sent again."""

    class Short(FakeBus):
        def put_events(self, *, Entries: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803 - botocore's name
            response = super().put_events(Entries=Entries)
            return response if len(self.requests) > 1 else {"Entries": answered and response["Entries"][:answered]}

    bus, queue, time = Short(), FakeQueue(), FakeTime()
    receipts = publisher(bus, queue, time).publish(entries(2), time.remaining_ms)
    assert [receipt.attempts for receipt in receipts] == [2, 2]


# ── Size ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "detail",
    [
        *("{", "[" * 100_000, '{"a": NaN}', "", "\ud800", '"\x00"', '"\uffff"', "\x00" * 200_000),
        json.dumps({"text": "".join(map(chr, range(0x4E00, 0x9E00))) * 10}, ensure_ascii=False),
        json.dumps({"text": "x" * TOO_LARGE}),
        json.dumps({"text": '"\n' * 400_000}),
    ],
    ids=lambda text: ascii(text[:12]),
)
def test_a_dead_letter_keeps_the_whole_event(detail: str) -> None:
    """Whatever the bus refused comes out of the dead letter as it went in, in one message that SQS takes."""
    queue, time = FakeQueue(), FakeTime()
    kept = BusEntry(source="a", detail=detail, time=NOW, resources=("arn:1",))
    (receipt,) = publisher(FakeBus(lambda _: "ThrottlingException"), queue, time).publish([kept], time.remaining_ms)
    assert receipt.outcome is Outcome.DEAD_LETTERED
    body = queue.messages[0]["MessageBody"]
    assert "乘" not in detail or detail in body, "text that SQS takes is neither escaped nor compressed"
    _, event = opened({"Body": body})
    read = entry_in(event)
    assert (read.source, read.time, read.resources) == (kept.source, kept.time, kept.resources)
    assert read.detail == detail or json.loads(read.detail) == json.loads(detail)


def test_what_fits_into_no_dead_letter_comes_back() -> None:
    """An event too large for the bus is not sent there; compressed too little, it is unsent, and only that one."""
    queue, time = FakeQueue(), FakeTime()
    noise = BusEntry(source="a", detail=random.Random(1).randbytes(900_000).hex(), time=NOW)  # noqa: S311 - no secret
    bus = FakeBus(lambda _: "MalformedDetail")
    with pytest.raises(PublishError, match=MESSAGE_TOO_LARGE) as failure:
        publisher(bus, queue, time).publish([noise, entry("order_02")], time.remaining_ms)
    assert failure.value.entries == [noise]
    assert [(receipt.outcome, receipt.attempts, receipt.code) for receipt in failure.value.receipts] == [
        (Outcome.UNSENT, 0, ENTRY_TOO_LARGE),
        (Outcome.DEAD_LETTERED, 1, "MalformedDetail"),
    ]


# ── Time ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_sent_to_the_bus_in_the_time_that_the_dead_letters_need() -> None:
    """When the time gets short, what is pending goes to the dead-letter queue while there is time for that."""
    time = FakeTime(NEEDED_MS + 250)
    bus, queue = FakeBus(on_call=lambda: time.work(100)), FakeQueue()
    receipts = publisher(bus, queue, time).publish(entries(60), time.remaining_ms)
    assert len(bus.requests) == 3
    assert Counter(receipt.code for receipt in receipts) == {None: 30, OUT_OF_TIME: 30}
    assert queue.reasons() == [OUT_OF_TIME] * 30


# ── Few requests ──────────────────────────────────────────────────────────────────────────────────────────────────────


# ── Through a global endpoint ─────────────────────────────────────────────────────────────────────────────────────────


class EndpointBus(FakeBus):
    """A bus behind a global endpoint, which has to be named in each request."""

    def put_events(  # type: ignore[override]  # the endpoint is what this one is about
        self,
        *,
        EndpointId: str,  # noqa: N803 - botocore's name
        Entries: list[dict[str, Any]],  # noqa: N803 - as above
    ) -> dict[str, Any]:
        """Put entries on the bus."""
        assert EndpointId == "abcde.veo"
        return super().put_events(Entries=Entries)


def test_every_request_names_the_global_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an endpoint the first attempt and the later ones go to it."""
    monkeypatch.setitem(AUTH_TYPE_MAPS, "v4a", object)
    bus, time = EndpointBus(first_times(1, "InternalFailure")), FakeTime()
    receipts = publisher(bus, FakeQueue(), time, endpoint_id="abcde.veo").publish(entries(3), time.remaining_ms)
    assert [receipt.attempts for receipt in receipts] == [2, 2, 2]


def test_a_publisher_that_cannot_sign_for_its_endpoint_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without SigV4A there is an error that says what to do, before any event is there to be lost."""
    monkeypatch.delitem(AUTH_TYPE_MAPS, "v4a", raising=False)
    with pytest.raises(SettingsError, match=r"abcde\.veo.*awscrt.*SigV4aLayer.*botocore\[crt\]"):
        publisher(FakeBus(), FakeQueue(), FakeTime(), endpoint_id="abcde.veo")


# ── To the dead-letter queue ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "queue",
    [
        FakeQueue(failures=repeat(EndpointConnectionError(endpoint_url=URL))),
        FakeQueue(failures=repeat(client_error("AWS.SimpleQueueService.NonExistentQueue", 400))),
        FakeQueue(lambda _: "InvalidMessageContents", sender_fault=True),
        FakeQueue(lambda _: "InternalError"),
    ],
    ids=["away", "missing", "refuses", "fails"],
)
def test_events_that_are_in_neither_come_back_in_the_error(queue: FakeQueue) -> None:
    """When even the dead-letter queue fails, the caller has the events, and the receipts of all of them."""
    time = FakeTime()
    asked = entries(3)
    bus = FakeBus(lambda request: "MalformedDetail" if order(request) == "order_1" else None)
    with pytest.raises(PublishError, match="MalformedDetail") as failure:
        publisher(bus, queue, time).publish(asked, time.remaining_ms)
    assert failure.value.entries == [asked[1]]
    outcomes = [receipt.outcome for receipt in failure.value.receipts]
    assert outcomes == [Outcome.PUBLISHED, Outcome.UNSENT, Outcome.PUBLISHED]


def test_without_time_for_the_dead_letters_the_events_come_back() -> None:
    """Events that there is no time to store anywhere are in the error, unsent."""
    time = FakeTime(1_000)
    bus, queue = FakeBus(), FakeQueue()
    with pytest.raises(PublishError) as failure:
        publisher(bus, queue, time).publish(entries(2), time.remaining_ms)
    assert len(failure.value.entries) == 2
    assert bus.requests == queue.requests == []


# ── All together ──────────────────────────────────────────────────────────────────────────────────────────────────────


def trouble(chance: random.Random, rate: float, error: Callable[[], Exception]) -> Iterator[Exception | None]:
    """Yield, without end, an error at this rate."""
    return (error() if chance.random() < rate else None for _ in repeat(None))


def test_of_ten_thousand_events_none_is_in_neither() -> None:
    """With 20% passing and 2% final failures, and calls that fail, each event is on the bus or in the queue."""
    chance = random.Random(20)  # noqa: S311 - a simulation, not a secret

    def answer(_: dict[str, Any]) -> str | None:
        roll = chance.random()
        if roll < 0.20:
            return chance.choice(sorted(RETRYABLE))
        return chance.choice(FINAL) if roll < 0.22 else None

    bus = FakeBus(answer, failures=trouble(chance, 0.05, lambda: ReadTimeoutError(endpoint_url=URL)))
    queue = FakeQueue(
        lambda _: "InternalError" if chance.random() < 0.2 else None,
        failures=chain([EndpointConnectionError(endpoint_url=URL)], repeat(None)),
    )
    time = FakeTime()
    asked = entries(10_000)
    receipts = publisher(bus, queue, time).publish(asked, time.remaining_ms)

    published = Counter(map(order, bus.events))
    kept = {body["detail"]["subject"]: reason for body, reason in zip(queue.bodies(), queue.reasons(), strict=True)}
    assert published.keys() | kept.keys() == {f"order_{number}" for number in range(10_000)}
    assert published.keys().isdisjoint(kept)
    assert set(kept.values()) <= {*FINAL, *RETRYABLE, "ReadTimeoutError"}
    assert 200 <= len(kept) <= 300
    for receipt in receipts:
        order_id = json.loads(receipt.entry.detail)["subject"]
        assert (receipt.outcome is Outcome.PUBLISHED) == (order_id in published)
        assert receipt.code == kept.get(order_id)
