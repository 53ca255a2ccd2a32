"""Fakes of EventBridge and SQS that hold to the documented limits, and fail when they are told to."""

import json
from collections.abc import Callable, Iterable
from typing import Any, Final

from botocore.exceptions import ClientError

from carride.publisher import Publisher

type Answer = str | None
"""The error code for an entry; None accepts it."""

MEBIBYTE: Final = 1024 * 1024


class FakeTime:
    """Time that passes only where somebody waits or works."""

    def __init__(self, remaining_ms: float = 300_000) -> None:
        self._remaining_ms = remaining_ms
        self.sleeps: list[float] = []

    def remaining_ms(self) -> float:
        """Return what is left until the deadline."""
        return self._remaining_ms

    def sleep(self, seconds: float) -> None:
        """Let time pass in waiting."""
        self.sleeps.append(seconds)
        self._remaining_ms -= seconds * 1000

    def work(self, milliseconds: float) -> None:
        """Let time pass in working."""
        self._remaining_ms -= milliseconds


class FakeBus:
    """EventBridge's PutEvents.

    Args:
        answer: decides on an entry, given the entry as requested.
        failures: what the calls raise, one after the other; None answers. When it ends, calls answer.
        on_call: is told of each call.
    """

    def __init__(
        self,
        answer: Callable[[dict[str, Any]], Answer] = lambda _: None,
        *,
        failures: Iterable[Exception | None] = (),
        on_call: Callable[[], object] = lambda: None,
    ) -> None:
        self._answer = answer
        self._failures = iter(failures)
        self._on_call = on_call
        self.requests: list[list[dict[str, Any]]] = []
        self.events: list[dict[str, Any]] = []

    def put_events(self, *, Entries: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803 - botocore's name
        """Put entries on the bus, or say which not and why."""
        self._on_call()
        self.requests.append(Entries)
        if (failure := next(self._failures, None)) is not None:
            raise failure
        if not 1 <= len(Entries) <= 10 or sum(map(entry_bytes, Entries)) >= MEBIBYTE:
            raise client_error("ValidationException", 400)
        answers = []
        for entry in Entries:
            code = self._answer(entry) or malformed(entry)
            if code is None:
                self.events.append(entry)
                answers.append({"EventId": f"event-{len(self.events)}"})
            else:
                answers.append({"ErrorCode": code, "ErrorMessage": f"{code} of the fake"})
        return {"FailedEntryCount": sum("ErrorCode" in answer for answer in answers), "Entries": answers}


class FakeQueue:
    """SQS's SendMessageBatch; arguments as for `FakeBus`, with ``answer`` given the message."""

    def __init__(
        self,
        answer: Callable[[dict[str, Any]], Answer] = lambda _: None,
        *,
        failures: Iterable[Exception | None] = (),
        sender_fault: bool = False,
    ) -> None:
        self._answer = answer
        self._failures = iter(failures)
        self._sender_fault = sender_fault
        self.requests: list[list[dict[str, Any]]] = []
        self.messages: list[dict[str, Any]] = []

    def send_message_batch(self, *, QueueUrl: str, Entries: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803 - as above
        """Put messages into the queue, or say which not and why."""
        self.requests.append(Entries)
        if (failure := next(self._failures, None)) is not None:
            raise failure
        if not 1 <= len(Entries) <= 10 or sum(map(message_bytes, Entries)) > MEBIBYTE:
            raise client_error("AWS.SimpleQueueService.BatchRequestTooLong", 400)
        response: dict[str, Any] = {"Successful": [], "Failed": []}
        for entry in Entries:
            code = self._answer(entry)
            if code is None:
                self.messages.append(entry)
                response["Successful"].append({"Id": entry["Id"]})
            else:
                response["Failed"].append({"Id": entry["Id"], "Code": code, "SenderFault": self._sender_fault})
        return {part: entries for part, entries in response.items() if entries}

    def reasons(self) -> list[str]:
        """Return the code of each message."""
        return [message["MessageAttributes"]["ERROR_CODE"]["StringValue"] for message in self.messages]

    def bodies(self) -> list[dict[str, Any]]:
        """Return the body of each message."""
        return [json.loads(message["MessageBody"]) for message in self.messages]


def publisher(bus: FakeBus, queue: FakeQueue, time: FakeTime, **settings: Any) -> Publisher:
    """Return a publisher between the fakes, whose pauses are the longest they can be unless the settings say else."""
    return Publisher(
        bus,  # type: ignore[arg-type]  # has the one operation that is used
        queue,  # type: ignore[arg-type]  # as above
        "carride-bus",
        "https://sqs/producer-dlq",
        sleep=time.sleep,
        **{"jitter": lambda: 1.0, **settings},
    )


def malformed(entry: dict[str, Any]) -> Answer:
    """Refuse a detail that is no JSON, as EventBridge does."""
    try:
        json.loads(entry["Detail"])
    except ValueError:
        return "MalformedDetail"
    return None


def client_error(code: str, status: int) -> ClientError:
    """Return what botocore raises for a call that AWS refused."""
    return ClientError(
        {"Error": {"Code": code, "Message": f"{code} of the fake"}, "ResponseMetadata": {"HTTPStatusCode": status}},  # type: ignore[typeddict-item]  # not all is read
        "Operation",
    )


def entry_bytes(entry: dict[str, Any]) -> int:
    """Measure an entry as EventBridge documents it."""
    texts = [entry["Source"], entry["DetailType"], entry["Detail"], *entry["Resources"]]
    return (14 if "Time" in entry else 0) + sum(len(text.encode(errors="surrogatepass")) for text in texts)


def message_bytes(message: dict[str, Any]) -> int:
    """Measure a message as SQS documents it: body, and names, types and values of the attributes."""
    attributes = message["MessageAttributes"]
    return len(message["MessageBody"].encode()) + sum(
        len(name.encode()) + sum(len(text.encode()) for text in attribute.values())
        for name, attribute in attributes.items()
    )
