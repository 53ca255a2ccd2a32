"""Publishes to EventBridge without silent losses.

Each event ends on the bus or in the ProducerDlq, or the caller learns that it is unsent. PutEvents
answers 200 even if it refused entries. Entries that it refused temporarily are sent again; the
others go to the dead-letter queue with code and reason. A call without an answer is repeated:
consumers recognise a second copy.
"""

import binascii
import json
import random
import re
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from botocore.auth import AUTH_TYPE_MAPS
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,  # noqa: A004 - botocore's name for it
    HTTPClientError,
    ParamValidationError,
)
from botocore.parsers import ResponseParserError
from msgspec import Struct
from msgspec.structs import replace

from carride.bus_entry import MOST_ENTRIES, TOO_LARGE, BusEntry, pack
from carride.clients import LONGEST_CALL_MS
from carride.events import ContractError, read_json
from carride.settings import SettingsError

if TYPE_CHECKING:
    from mypy_boto3_events import EventBridgeClient
    from mypy_boto3_sqs import SQSClient

# Any other code is final.
RETRYABLE: Final = frozenset({"ThrottlingException", "InternalFailure", "InternalException"})
ENTRY_TOO_LARGE: Final = "EntryTooLarge"  # the code of an entry that fits into no PutEvents request
OUT_OF_TIME: Final = "OutOfTime"  # the code of an entry that there was no time to send
NO_ANSWER: Final = "NoAnswer"  # the code of an entry that the response leaves out
# The code of an entry that fits into no SQS message, not even compressed.
MESSAGE_TOO_LARGE: Final = "MessageTooLarge"

# Bytes of an SQS message with its attributes, and of a batch of messages.
LARGEST_MESSAGE: Final = 1_048_576
GZIP: Final = 31  # zlib's name for the format
NEEDED_MS: Final = 2 * LONGEST_CALL_MS + 500
"""Milliseconds that must be left to send entries to the bus: for that call, and for one to the
dead-letter queue."""

_FIRST_DELAY_S: Final = 0.1
_LONGEST_DELAY_S: Final = 5.0
# Botocore's name for Signature Version 4A, whose signatures are valid in every region.
_SIGV4A: Final = "v4a"
_SERVER_ERROR: Final = 500
_TOO_MANY_REQUESTS: Final = 429
_CONTENT_TOO_LARGE: Final = 413
_INVALID_REQUEST: Final = frozenset({"ValidationException", "SerializationException"})
_FAILURES: Final = (ClientError, BotoCoreError, ResponseParserError)
_NO_CONTACT: Final = (HTTPClientError, ConnectionError, ResponseParserError)
_LONGEST_REASON: Final = 500

# The milliseconds left, as a Lambda context's get_remaining_time_in_millis.
type Remaining = Callable[[], float]


class Outcome(StrEnum):
    """Where an entry is."""

    PUBLISHED = "published"  # on the bus, at least once
    DEAD_LETTERED = "dead-lettered"  # in the ProducerDlq
    UNSENT = "unsent"  # in neither, as far as the publisher knows


class Receipt(Struct, eq=False):
    """What became of one entry."""

    entry: BusEntry
    attempts: int = 0  # how often it was sent to the bus
    event_id: str | None = None  # EventBridge's id of the published entry
    code: str | None = OUT_OF_TIME  # the error code of the last refusal; None for a published entry
    message: str | None = "there was no time left to send it"
    retryable: bool = True  # whether the last refusal was temporary
    dead_lettered: bool = False
    queue_error: str = OUT_OF_TIME  # why an unsent entry is not in the dead-letter queue

    @property
    def outcome(self) -> Outcome:
        """Where the entry is."""
        if self.event_id is not None:
            return Outcome.PUBLISHED
        return Outcome.DEAD_LETTERED if self.dead_lettered else Outcome.UNSENT

    @property
    def size(self) -> int:
        """The size of the entry in bytes."""
        return self.entry.size

    def note(self, refusal: "_Refusal | None") -> None:
        """Note that the entry was sent to the bus, and why that did not take it; None if it did."""
        self.attempts += 1
        self.code = refusal.code if refusal else None
        self.message = refusal.message if refusal else None
        self.retryable = refusal.retryable if refusal else False

    def refuse_size(self) -> None:
        """Note that the entry fits into no request."""
        self.code = ENTRY_TOO_LARGE
        self.message = f"{self.size:,} bytes; an entry must stay below {TOO_LARGE:,}"
        self.retryable = False


class PublishError(Exception):
    """Raised when entries are neither on the bus nor in the dead-letter queue.

    ``entries`` are the unsent ones: publish them again. ``receipts`` are those of all entries of
    the call.
    """

    def __init__(self, receipts: Sequence[Receipt]) -> None:
        unsent = [receipt for receipt in receipts if receipt.outcome is Outcome.UNSENT]
        bus_errors = ", ".join(sorted({str(receipt.code) for receipt in unsent}))
        queue_errors = ", ".join(sorted({receipt.queue_error for receipt in unsent}))
        super().__init__(
            f"{len(unsent)} of {len(receipts)} entries reached neither the bus ({bus_errors}) "
            f"nor the dead-letter queue ({queue_errors})"
        )
        self.receipts = receipts
        self.entries = [receipt.entry for receipt in unsent]


class Publisher:
    """Publishes entries to one bus.

    Args:
        events: client for EventBridge, which makes one attempt a call and gives up within
            `LONGEST_CALL_MS`.
        sqs: client for SQS, likewise.
        endpoint_id: the global endpoint to send entries to, which forwards them to the bus of this
            name in the healthy region; by default entries go to the bus in the client's region.
        producer: the ARN that every entry without resources gets as its resource; by default none.
        max_attempts: how often an entry is sent to the bus, and to the dead-letter queue.
        sleep, jitter: waits for seconds; a number from 0 to 1, by which each pause is multiplied
        ("full jitter").

    Raises:
        SettingsError: this process cannot sign requests to the global endpoint.
    """

    def __init__(
        self,
        events: "EventBridgeClient",
        sqs: "SQSClient",
        bus_name: str,
        dlq_url: str,
        *,
        endpoint_id: str | None = None,
        producer: str | None = None,
        max_attempts: int = 8,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        # botocore would fail at each call, and every event would go to the dead-letter queue.
        if endpoint_id and _SIGV4A not in AUTH_TYPE_MAPS:
            raise SettingsError(
                f"the global endpoint {endpoint_id} needs requests that are signed with SigV4A, "
                "for which botocore needs awscrt. In Lambda, give the function the SigV4aLayer of "
                "template.yaml; elsewhere, install botocore[crt]. "
                "BOTO_DISABLE_CRT must not be true."
            )
        self._put_events = events.put_events
        if endpoint_id:
            self._put_events = partial(events.put_events, EndpointId=endpoint_id)
        self._sqs = sqs
        self._bus_name = bus_name
        self._dlq_url = dlq_url
        self._resources = (producer,) if producer else ()
        self._max_attempts = max_attempts
        self._sleep = sleep
        self._jitter = jitter

    def publish(self, entries: Iterable[BusEntry], remaining_ms: Remaining) -> list[Receipt]:
        """Publish entries, and return their receipts in the same order.

        With less than `NEEDED_MS` left, pending entries go to the dead-letter queue instead of the
        bus. Pass only as many entries as there is time for.

        Raises:
            PublishError: some entries reached neither the bus nor the dead-letter queue.
        """
        receipts = self.put(entries, remaining_ms)
        messages: list[_Message] = []
        for receipt in receipts:
            if receipt.outcome is not Outcome.UNSENT:
                continue
            message = _message(receipt)
            if message.size <= LARGEST_MESSAGE:
                messages.append(message)
            else:
                receipt.queue_error = MESSAGE_TOO_LARGE
        self._deliver(messages, self._dead_letter, remaining_ms, LONGEST_CALL_MS)
        if any(receipt.outcome is Outcome.UNSENT for receipt in receipts):
            raise PublishError(receipts)
        return receipts

    def put(self, entries: Iterable[BusEntry], remaining_ms: Remaining) -> list[Receipt]:
        """Publish entries without the dead-letter queue.

        Entries that the bus does not take are unsent.
        """
        receipts = [Receipt(self._named(entry)) for entry in entries]
        sendable: list[Receipt] = []
        for receipt in receipts:
            if receipt.size < TOO_LARGE:
                sendable.append(receipt)
            else:
                receipt.refuse_size()
        self._deliver(sendable, self._put, remaining_ms, NEEDED_MS)
        return receipts

    def _named(self, entry: BusEntry) -> BusEntry:
        """Return the entry with its producer as its resource, unless it has resources."""
        return entry if entry.resources else replace(entry, resources=self._resources)

    def _deliver[T: (Receipt, _Message)](
        self, items: list[T], send: "_Send[T]", remaining_ms: Remaining, needed_ms: int
    ) -> None:
        """Send items; repeat those refused for a passing reason while attempts and time last."""
        for attempt in range(self._max_attempts):
            if not items or (attempt and not self._pause(attempt, remaining_ms, needed_ms)):
                break
            items = self._deliver_once(items, send, remaining_ms, needed_ms)

    def _deliver_once[T: (Receipt, _Message)](
        self, items: list[T], send: "_Send[T]", remaining_ms: Remaining, needed_ms: int
    ) -> list[T]:
        """Send every item once, in batches, and return those to send again."""
        again: list[T] = []
        batches = deque(pack(items, lambda item: item.size, most=MOST_ENTRIES, below=TOO_LARGE))
        failed_calls = 0
        while batches and remaining_ms() >= needed_ms:
            if failed_calls and not self._pause(failed_calls, remaining_ms, needed_ms):
                break
            batch = batches.popleft()
            outcome = send(batch)
            if not isinstance(outcome, _Refusal):
                failed_calls = 0
                again += _noted(batch, outcome)
            elif outcome.by_content and len(batch) > 1:
                # Halve the batch until the item at fault is alone.
                middle = len(batch) // 2
                batches.extendleft([batch[middle:], batch[:middle]])
            else:
                if outcome.retryable:
                    failed_calls += 1
                again += _noted(batch, [outcome] * len(batch))
        for unsent in batches:
            again += unsent
        return again

    def _pause(self, attempt: int, remaining_ms: Remaining, needed_ms: int) -> bool:
        """Wait before another attempt; return False if the time does not suffice for it."""
        longest_s = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2 ** (attempt - 1))
        delay_s = longest_s * self._jitter()
        if remaining_ms() - delay_s * 1000 < needed_ms:
            return False
        self._sleep(delay_s)
        return True

    def _put(self, batch: list[Receipt]) -> "list[_Refusal | None] | _Refusal":
        """Send one batch to the bus."""
        try:
            response = self._put_events(
                Entries=[receipt.entry.to_request(self._bus_name) for receipt in batch]
            )
        except _FAILURES as error:
            return _refusal(error)
        answers: Sequence[Any] = response.get("Entries") or ()
        if len(answers) != len(batch):
            return _Refusal(
                NO_ANSWER, f"{len(answers)} answers for {len(batch)} entries", retryable=True
            )
        refusals: list[_Refusal | None] = []
        for receipt, answer in zip(batch, answers, strict=True):
            receipt.event_id = answer.get("EventId") or None
            refusals.append(None if receipt.event_id else _refused_entry(answer))
        return refusals

    def _dead_letter(self, batch: list["_Message"]) -> "list[_Refusal | None] | _Refusal":
        """Send one batch to the dead-letter queue."""
        try:
            response = self._sqs.send_message_batch(
                QueueUrl=self._dlq_url,
                Entries=[
                    {
                        "Id": str(number),
                        "MessageBody": message.body,
                        "MessageAttributes": message.attributes,
                    }
                    for number, message in enumerate(batch)
                ],
            )
        except _FAILURES as error:
            return _refusal(error)
        refusals: list[_Refusal | None] = [_Refusal(NO_ANSWER, "", retryable=True)] * len(batch)
        for failed in response.get("Failed") or ():
            refusal = _Refusal(
                failed["Code"], failed.get("Message", ""), retryable=not failed["SenderFault"]
            )
            refusals[int(failed["Id"])] = refusal
        for success in response.get("Successful") or ():
            refusals[int(success["Id"])] = None
        return refusals


def _noted[T: (Receipt, _Message)](batch: list[T], refusals: "list[_Refusal | None]") -> list[T]:
    """Note how each item of a batch went, and return those to send again."""
    again = []
    for item, refusal in zip(batch, refusals, strict=True):
        item.note(refusal)
        if refusal is not None and refusal.retryable:
            again.append(item)
    return again


class _Refusal(NamedTuple):
    """Why an item was not taken, or why a whole call failed."""

    code: str
    message: str
    retryable: bool  # whether the same call may succeed later
    by_content: bool = False  # whether something in the request is at fault


def _refusal(error: Exception) -> _Refusal:
    if not isinstance(error, ClientError):
        return _Refusal(
            type(error).__name__,
            str(error),
            retryable=isinstance(error, _NO_CONTACT),
            by_content=isinstance(error, ParamValidationError),
        )
    code = error.response["Error"]["Code"]
    status = error.response["ResponseMetadata"]["HTTPStatusCode"]
    return _Refusal(
        code,
        error.response["Error"].get("Message", ""),
        retryable=code in RETRYABLE or status == _TOO_MANY_REQUESTS or status >= _SERVER_ERROR,
        by_content=code in _INVALID_REQUEST or status == _CONTENT_TOO_LARGE,
    )


def _refused_entry(answer: Mapping[str, str]) -> _Refusal:
    """Return the refusal of one entry, from its answer in PutEvents' response."""
    code = answer.get("ErrorCode", NO_ANSWER)
    retryable = code == NO_ANSWER or code in RETRYABLE
    return _Refusal(code, answer.get("ErrorMessage", ""), retryable=retryable)


class _Message(NamedTuple):
    receipt: Receipt
    body: str
    attributes: dict[str, Any]
    size: int  # bytes, attributes included

    def note(self, refusal: _Refusal | None) -> None:
        """Note whether the queue has the message."""
        self.receipt.dead_lettered = refusal is None
        if refusal:
            self.receipt.queue_error = f"{refusal.code}: {refusal.message}"


type _Send[T] = Callable[[list[T]], list[_Refusal | None] | _Refusal]
"""Sends a batch, and returns why each item was not taken, or why the call failed."""


def _message(receipt: Receipt) -> _Message:
    """Return the message that keeps an entry, in the form of EventBridge's own dead letters."""
    reason = _json_ascii((receipt.message or "no message")[:_LONGEST_REASON])[1:-1]
    attributes = {
        "ERROR_CODE": {"DataType": "String", "StringValue": str(receipt.code)},
        "ERROR_MESSAGE": {"DataType": "String", "StringValue": reason},
        "RETRY_ATTEMPTS": {"DataType": "Number", "StringValue": str(receipt.attempts)},
    }
    attributes_size = 0
    for name, attribute in attributes.items():
        attributes_size += len(name) + len(attribute["DataType"]) + len(attribute["StringValue"])
    body = _body(receipt.entry, LARGEST_MESSAGE - attributes_size)
    return _Message(receipt, body, attributes, attributes_size + len(body.encode()))


def _body(entry: BusEntry, room: int) -> str:
    """Return the event as JSON in UTF-8.

    The detail is compressed if the event is too large otherwise, or SQS would refuse it.
    """
    event = {
        "source": entry.source,
        "detail-type": entry.detail_type,
        "time": msgspec.to_builtins(entry.time),
        "resources": entry.resources,
    }
    try:
        is_object = isinstance(read_json(entry.detail, "detail"), dict)
    except ContractError:
        is_object = False
    # An object stays as it is written; anything else becomes text.
    detail = entry.detail if is_object else _json(entry.detail)
    body = f'{_json(event)[:-1]},"detail":{detail}}}'
    if _refused_by_sqs(body) is None and len(body.encode()) <= room:
        return body
    packed = zlib.compress(entry.detail.encode(errors="surrogatepass"), wbits=GZIP)
    return _json_ascii(event | {"detailGzip": binascii.b2a_base64(packed, newline=False).decode()})


_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_json_ascii: Final = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode
_refused_by_sqs: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]").search
