import json
import random
from collections import Counter
from collections.abc import Callable
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

from carride import clients
from carride.bus_entry import TOO_LARGE, BusEntry
from carride.events import parse_event
from carride.publisher import ENTRY_TOO_LARGE, MESSAGE_TOO_LARGE, RETRYABLE, Outcome, PublishError
from ops.audit.queues import opened
from ops.bus import entry_in
from tests.kit.fakes import FakeBus, FakeQueue, FakeTime, client_error, entry_bytes, publish
from tests.kit.rides import NOW, entry

FINAL: Final = [
    "AccessDeniedException",
    "InvalidArgument",
    "MalformedDetail",
    "NotAuthorizedForSourceException",
]
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


# ── To the bus ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("code", [*sorted(RETRYABLE), *FINAL])
def test_only_the_entries_that_failed_are_sent_again_unless_that_is_final(code: str) -> None:
    """A code that may pass has its entry sent again as it was.

    A final one sends it to the dead-letter queue.
    """
    fails = first_times(1, code)
    final = code in FINAL
    bus = FakeBus(lambda request: fails(request) if order(request) == "order_3" else None)
    queue = FakeQueue()
    receipts = publish(entries(5), bus, queue)
    assert list(map(order, bus.requests[0])) == [f"order_{number}" for number in range(5)]
    assert bus.requests[1:] == ([] if final else [[bus.requests[0][3]]])
    assert [receipt.outcome is Outcome.PUBLISHED for receipt in receipts] == [
        True,
        True,
        True,
        not final,
        True,
    ]
    assert [receipt.attempts for receipt in receipts] == [1, 1, 1, 1 if final else 2, 1]
    assert [parse_event(body).subject for body in queue.bodies()] == (["order_3"] if final else [])
    for message in queue.messages:
        assert message["MessageAttributes"] == {
            "ERROR_CODE": {"DataType": "String", "StringValue": code},
            "ERROR_MESSAGE": {"DataType": "String", "StringValue": f"{code} of the fake"},
            "RETRY_ATTEMPTS": {"DataType": "Number", "StringValue": "1"},
        }


def test_pauses_double_up_to_a_limit_and_are_jittered() -> None:
    """Each pause is a random part of one that doubles, so that producers do not return at once."""
    for jitters, pauses in (
        ([1.0] * 7, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0]),
        ([0.5, 0.0], [0.05, 0.0]),
    ):
        time = FakeTime()
        jitter = iter(jitters)
        bus = FakeBus(lambda _: "InternalFailure")
        attempts = len(jitters) + 1
        publish(entries(1), bus, time=time, max_attempts=attempts, jitter=jitter.__next__)
        assert time.sleeps == pytest.approx(pauses)


PASSING: Final = [
    *(client_error("ThrottlingException", 400), client_error("TooManyRequests", 429)),
    *(client_error("ServiceUnavailable", 503), client_error("InternalException", 500)),
    *(
        error(endpoint_url=URL)
        for error in (ReadTimeoutError, ConnectTimeoutError, EndpointConnectionError)
    ),
]
REFUSED: Final = [client_error("AccessDeniedException", 400), NoCredentialsError()]


@pytest.mark.parametrize("failure", [*PASSING, *REFUSED], ids=repr)
def test_a_call_that_failed_as_a_whole_is_made_again_unless_that_is_final(
    failure: Exception,
) -> None:
    """Throttling, server errors and lost connections are waited out.

    A final refusal dead-letters the whole batch.
    """
    time = FakeTime()
    passes = failure in PASSING
    receipts = publish(entries(12), bus := FakeBus(failures=[failure, failure]), time=time)
    assert {receipt.outcome for receipt in receipts} == {
        Outcome.PUBLISHED if passes else Outcome.DEAD_LETTERED
    }
    assert (len(bus.requests), len(time.sleeps)) == ((4, 2) if passes else (2, 0)), "two batches"


@pytest.mark.parametrize(
    "failure",
    [
        client_error("ValidationException", 400),
        client_error("Whatever", 413),
        ParamValidationError(report="Resources"),
    ],
    ids=repr,
)
def test_one_bad_entry_does_not_take_its_batch_along(failure: Exception) -> None:
    """A request that is refused for its content is divided until the entry at fault is alone."""

    def refuse(batch: list[dict[str, Any]]) -> None:
        if "order_6" in map(order, batch):
            raise failure

    receipts = publish(entries(10), FakeBus(on_call=refuse), queue := FakeQueue())
    assert [receipt.outcome is Outcome.PUBLISHED for receipt in receipts] == [
        number != 6 for number in range(10)
    ]
    assert [body["detail"]["subject"] for body in queue.bodies()] == ["order_6"]
    # All four, the first two, none, the second.
    spoilt = FakeQueue(failures=[failure, failure, None, failure])
    with pytest.raises(PublishError) as unsent:
        publish(entries(4), FakeBus(lambda _: "MalformedDetail"), spoilt)
    assert (len(spoilt.messages), len(unsent.value.entries)) == (3, 1)


@pytest.mark.parametrize("answered", [None, 0, 1])
def test_an_answer_that_does_not_match_the_request_is_no_answer(answered: int | None) -> None:
    """Without one answer an entry, the batch counts as unanswered and is sent again."""

    class Short(FakeBus):
        def put_events(self, **request: Any) -> dict[str, Any]:
            response = super().put_events(**request)
            return (
                response
                if len(self.requests) > 1
                else {"Entries": answered and response["Entries"][:answered]}
            )

    assert [receipt.attempts for receipt in publish(entries(2), Short())] == [2, 2]


@pytest.mark.parametrize("make", [clients.events_client, clients.sqs_client])
def test_the_publisher_reckons_with_what_its_clients_take(make: Callable[[], Any]) -> None:
    """The longest call that the publisher leaves time for is the one attempt of its clients."""
    config = make().meta.config
    assert config.retries["total_max_attempts"] == 1
    assert (config.connect_timeout + config.read_timeout) * 1000 == clients.LONGEST_CALL_MS


def test_every_request_names_the_global_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an endpoint the first attempt and the later ones go to it."""
    monkeypatch.setitem(AUTH_TYPE_MAPS, "v4a", object)
    bus = FakeBus(first_times(1, "InternalFailure"))
    assert [receipt.attempts for receipt in publish(entries(3), bus, endpoint_id="abcde.veo")] == [
        2,
        2,
        2,
    ]
    assert bus.endpoints == ["abcde.veo"] * 2


# ── To the dead-letter queue ──────────────────────────────────────────────────────────────────────


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
    """What the bus refused comes out of its dead letter as it went in, in one SQS message."""
    kept = BusEntry(source="a", detail=detail, time=NOW, resources=("arn:1",))
    assert kept.size == entry_bytes(kept.to_request("the-bus")), "as EventBridge documents it"
    (receipt,) = publish([kept], FakeBus(lambda _: "ThrottlingException"), queue := FakeQueue())
    assert receipt.outcome is Outcome.DEAD_LETTERED
    body = queue.messages[0]["MessageBody"]
    assert "乘" not in detail or detail in body, (
        "text that SQS takes is neither escaped nor compressed"
    )
    _, event = opened({"Body": body})
    read = entry_in(event)
    assert (read.source, read.time, read.resources) == (kept.source, kept.time, kept.resources)
    assert read.detail == detail or json.loads(read.detail) == json.loads(detail)


def test_every_entry_names_its_producer_on_the_bus_and_in_its_dead_letter() -> None:
    """An entry that has resources keeps them, and detail, source and time stay as they are."""
    own = BusEntry(source="a", detail="{}", time=NOW, resources=("arn:1",))
    plain = entry("order_01")
    bus = FakeBus(lambda each: "InvalidArgument" if each["Resources"] == ["arn:1"] else None)
    queue = FakeQueue()
    publish([plain, own], bus, queue, producer="arn:2")
    assert bus.events == [plain.to_request("carride-bus") | {"Resources": ["arn:2"]}]
    assert [entry_in(opened({"Body": each["MessageBody"]})[1]) for each in queue.messages] == [own]


def test_what_fits_into_no_dead_letter_comes_back() -> None:
    """An event too large for the bus is not sent there.

    Compressed too little, it is unsent, and only that one.
    """
    noise = BusEntry(source="a", detail=random.Random(1).randbytes(900_000).hex(), time=NOW)  # noqa: S311 - no secret
    with pytest.raises(PublishError, match=MESSAGE_TOO_LARGE) as failure:
        publish([noise, entry("order_02")], FakeBus(lambda _: "MalformedDetail"))
    assert failure.value.entries == [noise]
    assert [
        (receipt.outcome, receipt.attempts, receipt.code) for receipt in failure.value.receipts
    ] == [
        (Outcome.UNSENT, 0, ENTRY_TOO_LARGE),
        (Outcome.DEAD_LETTERED, 1, "MalformedDetail"),
    ]
