"""Fakes of EventBridge and SQS that keep the documented limits and fail on demand."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from botocore.exceptions import ClientError

from carride.bus_entry import BusEntry
from carride.publisher import Publisher, Receipt

type Answer = str | None  # the error code for an entry; None accepts it

MEBIBYTE: Final = 1024 * 1024


class FakeTime:
    """Time that passes only while a caller waits or works. It is Lambda's context too."""

    aws_request_id = "request-1"

    def __init__(self, remaining_ms: float = 300_000) -> None:
        self._remaining_ms = remaining_ms
        self.sleeps: list[float] = []

    def remaining_ms(self) -> float:
        """Return the time until the deadline."""
        return self._remaining_ms

    def get_remaining_time_in_millis(self) -> int:
        """Return the time until the deadline."""
        return int(self._remaining_ms)

    def sleep(self, seconds: float) -> None:
        """Let time pass while a caller waits."""
        self.sleeps.append(seconds)
        self._remaining_ms -= seconds * 1000

    def work(self, milliseconds: float) -> None:
        """Let time pass while a caller works."""
        self._remaining_ms -= milliseconds


class _Fake:
    """A service that takes batches.

    Args:
        answer: decides on an entry or a message, given as it was sent.
        failures: what the calls raise, one after the other; None answers. When it ends, calls
            answer.
        on_call: called with each batch; what it raises is the call's outcome.
    """

    def __init__(
        self,
        answer: Callable[[dict[str, Any]], Answer] = lambda _: None,
        *,
        failures: Iterable[Exception | None] = (),
        on_call: Callable[[list[dict[str, Any]]], object] = lambda _: None,
    ) -> None:
        self._answer = answer
        self._failures = iter(failures)
        self._on_call = on_call
        self.requests: list[list[dict[str, Any]]] = []

    def _begin(self, entries: list[dict[str, Any]], refusal: str | None) -> None:
        self._on_call(entries)
        self.requests.append(entries)
        if (failure := next(self._failures, None)) is not None:
            raise failure
        if not 1 <= len(entries) <= 10 or refusal:
            raise client_error(refusal or "ValidationException", 400)


class FakeBus(_Fake):
    """EventBridge's PutEvents."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.events: list[dict[str, Any]] = []
        self.endpoints: list[str | None] = []
        """The global endpoint of each request."""

    def put_events(
        self,
        *,
        Entries: list[dict[str, Any]],  # noqa: N803 - botocore's name
        EndpointId: str | None = None,  # noqa: N803 - botocore's name
    ) -> dict[str, Any]:
        """Put entries on the bus, or say which not and why."""
        self.endpoints.append(EndpointId)
        self._begin(
            Entries, "ValidationException" if sum(map(entry_bytes, Entries)) >= MEBIBYTE else None
        )
        answers = []
        for entry in Entries:
            code = self._answer(entry) or malformed(entry)
            if code is None:
                self.events.append(entry)
                answers.append({"EventId": str(len(self.events))})
            else:
                answers.append({"ErrorCode": code, "ErrorMessage": f"{code} of the fake"})
        return {
            "FailedEntryCount": sum("ErrorCode" in answer for answer in answers),
            "Entries": answers,
        }


class FakeQueue(_Fake):
    """SQS's SendMessageBatch. ``sender_fault`` says whether a refusal of a message is final."""

    def __init__(self, *args: Any, sender_fault: bool = False, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._sender_fault = sender_fault
        self.messages: list[dict[str, Any]] = []

    def send_message_batch(self, *, QueueUrl: str, Entries: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803 - as above
        """Put messages into the queue, or say which not and why."""
        too_long = sum(map(message_bytes, Entries)) > MEBIBYTE
        self._begin(Entries, "AWS.SimpleQueueService.BatchRequestTooLong" if too_long else None)
        response: dict[str, Any] = {"Successful": [], "Failed": []}
        for entry in Entries:
            code = self._answer(entry)
            if code is None:
                self.messages.append(entry)
                response["Successful"].append({"Id": entry["Id"]})
            else:
                response["Failed"].append(
                    {"Id": entry["Id"], "Code": code, "SenderFault": self._sender_fault}
                )
        return {part: entries for part, entries in response.items() if entries}

    def bodies(self) -> list[dict[str, Any]]:
        """Return the body of each message."""
        return [json.loads(message["MessageBody"]) for message in self.messages]


def publisher(bus: FakeBus, queue: FakeQueue, time: FakeTime, **settings: Any) -> Publisher:
    """Return a publisher between the fakes. By default its pauses are as long as possible."""
    return Publisher(
        bus,  # type: ignore[arg-type]  # has the one operation that is used
        queue,  # type: ignore[arg-type]  # as above
        "carride-bus",
        "https://sqs/producer-dlq",
        sleep=time.sleep,
        **{"jitter": lambda: 1.0, **settings},
    )


def publish(
    entries: Sequence[BusEntry],
    bus: FakeBus | None = None,
    queue: FakeQueue | None = None,
    time: FakeTime | None = None,
    **settings: Any,
) -> list[Receipt]:
    """Publish entries between the fakes, by default healthy ones with time enough.

    Return the receipts.
    """
    time = time or FakeTime()
    return publisher(bus or FakeBus(), queue or FakeQueue(), time, **settings).publish(
        entries, time.remaining_ms
    )


def malformed(entry: dict[str, Any]) -> Answer:
    """Refuse a detail that is not JSON, as EventBridge does."""
    try:
        json.loads(entry["Detail"])
    except ValueError:
        return "MalformedDetail"
    return None


def client_error(code: str, status: int) -> ClientError:
    """Return what botocore raises for a call that AWS refused."""
    return ClientError(
        {
            "Error": {"Code": code, "Message": f"{code} of the fake"},
            "ResponseMetadata": {"HTTPStatusCode": status},  # type: ignore[typeddict-item]  # not all is read
        },
        "Operation",
    )


def entry_bytes(entry: Mapping[str, Any]) -> int:
    """Measure an entry as EventBridge documents it."""
    texts = [entry["Source"], entry["DetailType"], entry["Detail"], *entry["Resources"]]
    return (14 if "Time" in entry else 0) + sum(
        len(text.encode(errors="surrogatepass")) for text in texts
    )


def message_bytes(message: dict[str, Any]) -> int:
    """Measure a message as SQS documents it.

    Body, and names, types and values of the attributes.
    """
    attributes = message["MessageAttributes"]
    return len(message["MessageBody"].encode()) + sum(
        len(name.encode()) + sum(len(text.encode()) for text in attribute.values())
        for name, attribute in attributes.items()
    )
