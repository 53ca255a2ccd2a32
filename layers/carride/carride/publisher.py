"""Publishes to EventBridge so that no event is lost silently: it is on the bus, in the ProducerDlq, or handed back.

PutEvents answers 200 even where it refused entries. Those that it refused for a passing reason are sent again, under
the same ids; the others go to the dead-letter queue with code and reason. A call whose answer was lost may have been
carried out: it is repeated, and consumers recognise the second copy.
"""

import binascii
import json
import random
import re
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
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

from carride.clients import LONGEST_CALL_MS
from carride.entry import MOST_ENTRIES, TOO_LARGE, Entry, pack
from carride.events import ContractError, read_json
from carride.settings import SettingsError

if TYPE_CHECKING:
    from mypy_boto3_events import EventBridgeClient
    from mypy_boto3_sqs import SQSClient

RETRYABLE: Final = frozenset({"ThrottlingException", "InternalFailure", "InternalException"})
"""Codes of an entry that may be accepted when it is sent again. Any other code is final."""

ENTRY_TOO_LARGE: Final = "EntryTooLarge"
"""Code of an entry that no PutEvents request takes."""
OUT_OF_TIME: Final = "OutOfTime"
"""Code of an entry that there was no time to send."""
NO_ANSWER: Final = "NoAnswer"
"""Code of an entry that a response says nothing about."""

LARGEST_MESSAGE: Final = 1_048_576
"""Bytes of an SQS message, its attributes included, and of a batch of them."""
GZIP: Final = 31
"""zlib's name for the format."""
LETTER_TOO_LARGE: Final = "LetterTooLarge"
"""Code of an entry that does not fit into an SQS message, not even compressed."""

NEEDED_MS: Final = 2 * LONGEST_CALL_MS + 500
"""What has to be left to send entries to the bus: time for the call, and for one to the dead-letter queue after it."""

_SIGV4A: Final = "v4a"
"""botocore's name for Signature Version 4A, whose signatures hold in every region."""
_SERVER_ERROR: Final = 500
_TOO_MANY_REQUESTS: Final = 429
_CONTENT_TOO_LARGE: Final = 413
_INVALID_REQUEST: Final = frozenset({"ValidationException", "SerializationException"})
_FAILURES: Final = (ClientError, BotoCoreError, ResponseParserError)
_NO_CONTACT: Final = (HTTPClientError, ConnectionError, ResponseParserError)
_LONGEST_MESSAGE: Final = 500

type Remaining = Callable[[], float]
"""Answers with the milliseconds that are left, as a Lambda context's ``get_remaining_time_in_millis`` does."""


class Outcome(StrEnum):
    """What became of an entry."""

    PUBLISHED = "published"
    """It is on the bus, once or more."""
    DEAD_LETTERED = "dead-lettered"
    """It is in the ProducerDlq."""
    UNSENT = "unsent"
    """It is in neither, as far as anybody knows."""


class Receipt(NamedTuple):
    """What became of one entry, and why."""

    entry: Entry
    outcome: Outcome
    attempts: int
    """How often it was sent to the bus."""
    event_id: str | None = None
    """The id that EventBridge gave it."""
    code: str | None = None
    """Of the last refusal; None for a published entry."""
    message: str | None = None
    retryable: bool = False
    """Whether the last refusal was one that may pass."""


class PublishError(Exception):
    """Raised when entries are neither on the bus nor in the dead-letter queue. The caller has them: publish them again.

    ``receipts`` says what became of every entry of the call, ``entries`` holds those that are in neither.
    """

    def __init__(self, receipts: Sequence[Receipt], why_not_queued: str) -> None:
        unsent = [receipt for receipt in receipts if receipt.outcome is Outcome.UNSENT]
        codes = ", ".join(sorted({str(receipt.code) for receipt in unsent}))
        super().__init__(
            f"{len(unsent)} of {len(receipts)} entries reached neither the bus ({codes}) nor the dead-letter queue "
            f"({why_not_queued})"
        )
        self.receipts = receipts
        self.entries = [receipt.entry for receipt in unsent]


class Publisher:
    """Publishes entries to one bus.

    Args:
        events: client for EventBridge, which makes a single attempt a call and gives up within `LONGEST_CALL_MS`.
        sqs: client for SQS, likewise.
        bus_name: the bus.
        dlq_url: the queue for entries that the bus does not take.
        endpoint_id: of the global endpoint to send entries to, which takes them to the bus of this name in the region
            that is healthy; left out, the bus is the one of the client's own region.
        max_attempts: how often an entry, and a dead letter, is sent.
        first_delay_s: the longest pause before the second attempt; it doubles from one to the next.
        longest_delay_s: what the pause does not exceed.
        sleep: waits, in seconds.
        jitter: a number from 0 to 1, by which each pause is multiplied ("full jitter").

    Raises:
        SettingsError: there is a global endpoint, and this process cannot sign what is sent to it.
    """

    def __init__(
        self,
        events: "EventBridgeClient",
        sqs: "SQSClient",
        bus_name: str,
        dlq_url: str,
        *,
        endpoint_id: str | None = None,
        max_attempts: int = 8,
        first_delay_s: float = 0.1,
        longest_delay_s: float = 5.0,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        if endpoint_id is not None:
            _check_that_it_signs(endpoint_id)
        self._put_events = partial(events.put_events, EndpointId=endpoint_id) if endpoint_id else events.put_events
        self._sqs = sqs
        self._bus_name = bus_name
        self._dlq_url = dlq_url
        self._max_attempts = max_attempts
        self._first_delay_s = first_delay_s
        self._longest_delay_s = longest_delay_s
        self._sleep = sleep
        self._jitter = jitter

    def publish(self, entries: Iterable[Entry], remaining_ms: Remaining) -> list[Receipt]:
        """Publish entries, and return what became of each, in their order.

        Nothing is sent to the bus with less than `NEEDED_MS` left: what is pending then goes to the dead-letter queue.
        So call it with no more entries than there is time for.

        Raises:
            PublishError: some entries reached neither the bus nor the dead-letter queue.
        """
        asked = self._put_entries(entries, remaining_ms)
        why_not_queued = self._dead_letter_all([each for each in asked if each.event_id is None], remaining_ms)
        receipts = [each.receipt() for each in asked]
        if any(receipt.outcome is Outcome.UNSENT for receipt in receipts):
            raise PublishError(receipts, why_not_queued)
        return receipts

    def put(self, entries: Iterable[Entry], remaining_ms: Remaining) -> list[Receipt]:
        """Publish entries that are kept elsewhere: like `publish`, but what the bus does not accept is unsent."""
        return [each.receipt() for each in self._put_entries(entries, remaining_ms)]

    # ── To the bus ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _put_entries(self, entries: Iterable[Entry], remaining_ms: Remaining) -> list["_PendingEntry"]:
        asked = [_PendingEntry(entry, entry.size) for entry in entries]
        sendable = []
        for each in asked:
            if each.size < TOO_LARGE:
                sendable.append(each)
            else:
                each.refused(ENTRY_TOO_LARGE, f"{each.size} bytes; an entry has to stay below {TOO_LARGE}")
        self._put_all(sendable, remaining_ms)
        return asked

    def _put_all(self, pending: list["_PendingEntry"], remaining_ms: Remaining) -> None:
        """Send entries until each is accepted, refused for good, tried often enough, or the time is up."""
        for attempt in range(self._max_attempts):
            if not pending or (attempt and not self._pause(attempt, remaining_ms, NEEDED_MS)):
                break
            pending = self._put_each_once(pending, remaining_ms)
        for each in pending:
            if each.code is None:
                each.refused(OUT_OF_TIME, "the time was up before it could be sent", retryable=True)

    def _put_each_once(self, pending: list["_PendingEntry"], remaining_ms: Remaining) -> list["_PendingEntry"]:
        """Send every entry once, in batches, and return those to send again."""
        again: list[_PendingEntry] = []
        batches = deque(pack(pending, lambda each: each.size, most=MOST_ENTRIES, below=TOO_LARGE))
        failed_calls = 0
        while batches:
            if remaining_ms() < NEEDED_MS or (failed_calls and not self._pause(failed_calls, remaining_ms, NEEDED_MS)):
                break
            batch = batches.popleft()
            refusal = self._put(batch)
            if refusal is None:
                failed_calls = 0
            elif refusal.by_content and len(batch) > 1:
                # One entry is at fault, and the others must not suffer for it.
                middle = len(batch) // 2
                batches.extendleft([batch[middle:], batch[:middle]])
                continue
            else:
                failed_calls += refusal.retryable
                for each in batch:
                    each.attempts += 1
                    each.refused(refusal.code, refusal.message, retryable=refusal.retryable)
            again += [each for each in batch if each.retryable]
        for batch in batches:
            again += batch
        return again

    def _put(self, batch: list["_PendingEntry"]) -> "_Refusal | None":
        """Send one batch; the answer is None, and each entry's is in the entry, unless the call failed as a whole."""
        try:
            response = self._put_events(Entries=[each.entry.to_request(self._bus_name) for each in batch])
        except _FAILURES as error:
            return _refusal(error)
        answers: Sequence[Any] = response.get("Entries") or ()
        if len(answers) != len(batch):
            return _Refusal(NO_ANSWER, f"{len(answers)} answers for {len(batch)} entries", retryable=True)
        for each, answer in zip(batch, answers, strict=True):
            each.attempts += 1
            if event_id := answer.get("EventId"):
                each.accepted(event_id)
            else:
                code = answer.get("ErrorCode", NO_ANSWER)
                each.refused(code, answer.get("ErrorMessage", ""), retryable=code in RETRYABLE or code == NO_ANSWER)
        return None

    # ── To the dead-letter queue ──────────────────────────────────────────────────────────────────────────────────────

    def _dead_letter_all(self, asked: list["_PendingEntry"], remaining_ms: Remaining) -> str:
        """Send entries to the queue. Return what went wrong last; the entries know whether they are stored."""
        written = [_letter(each) for each in asked]
        letters = [letter for letter in written if letter.size <= LARGEST_MESSAGE]
        trouble = OUT_OF_TIME if len(letters) == len(written) else LETTER_TOO_LARGE
        for attempt in range(self._max_attempts):
            if not letters or (attempt and not self._pause(attempt, remaining_ms, LONGEST_CALL_MS)):
                break
            again: list[_Letter] = []
            for batch in pack(letters, lambda letter: letter.size, most=MOST_ENTRIES, below=LARGEST_MESSAGE + 1):
                if remaining_ms() < LONGEST_CALL_MS:
                    return trouble
                refusals = self._dead_letter(batch)
                for letter, refusal in zip(batch, refusals, strict=True):
                    if refusal is not None:
                        trouble = f"{refusal.code}: {refusal.message}"
                        again += [letter] if refusal.retryable else []
            letters = again
        return trouble

    def _dead_letter(self, batch: list["_Letter"]) -> list["_Refusal | None"]:
        """Send one batch, and return for each letter why it was not stored."""
        try:
            response = self._sqs.send_message_batch(
                QueueUrl=self._dlq_url,
                Entries=[
                    {"Id": str(number), "MessageBody": letter.body, "MessageAttributes": letter.attributes}
                    for number, letter in enumerate(batch)
                ],
            )
        except _FAILURES as error:
            return [_refusal(error)] * len(batch)
        refusals: list[_Refusal | None] = [_Refusal(NO_ANSWER, "", retryable=True)] * len(batch)
        for failed in response.get("Failed") or ():
            number = int(failed["Id"])
            refusals[number] = _Refusal(failed["Code"], failed.get("Message", ""), retryable=not failed["SenderFault"])
        for success in response.get("Successful") or ():
            number = int(success["Id"])
            refusals[number] = None
            batch[number].pending.dead_lettered = True
        return refusals

    def _pause(self, attempt: int, remaining_ms: Remaining, needed_ms: int) -> bool:
        """Wait before another attempt; answer False where the time would not suffice for it."""
        longest_s = min(self._longest_delay_s, self._first_delay_s * 2 ** (attempt - 1))
        delay_s = longest_s * self._jitter()
        if remaining_ms() - delay_s * 1000 < needed_ms:
            return False
        self._sleep(delay_s)
        return True


def _check_that_it_signs(endpoint_id: str) -> None:
    """Fail now: botocore would fail at each call, and every event would go to the dead-letter queue."""
    if _SIGV4A not in AUTH_TYPE_MAPS:
        raise SettingsError(
            f"the global endpoint {endpoint_id} takes requests that are signed with SigV4A, which botocore cannot do "
            "here: it needs awscrt. In Lambda, give the function the SigV4aLayer of template.yaml; elsewhere, install "
            "botocore[crt]. BOTO_DISABLE_CRT must not be true."
        )


class _PendingEntry(Struct, eq=False):
    """An entry, and what has become of it so far."""

    entry: Entry
    size: int
    attempts: int = 0
    event_id: str | None = None
    code: str | None = None
    message: str | None = None
    retryable: bool = False
    dead_lettered: bool = False

    def accepted(self, event_id: str) -> None:
        self.event_id = event_id
        self.code = self.message = None
        self.retryable = False

    def refused(self, code: str, message: str, *, retryable: bool = False) -> None:
        self.code = code
        self.message = message
        self.retryable = retryable

    def receipt(self) -> Receipt:
        if self.event_id is not None:
            outcome = Outcome.PUBLISHED
        else:
            outcome = Outcome.DEAD_LETTERED if self.dead_lettered else Outcome.UNSENT
        return Receipt(self.entry, outcome, self.attempts, self.event_id, self.code, self.message, self.retryable)


class _Refusal(NamedTuple):
    """Why a call failed as a whole."""

    code: str
    message: str
    retryable: bool
    """Whether the same call may succeed later."""
    by_content: bool = False
    """Whether something in the request is to blame."""


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


class _Letter(NamedTuple):
    """A message for the dead-letter queue."""

    pending: _PendingEntry
    body: str
    attributes: dict[str, Any]
    size: int
    """Bytes, attributes included."""


def _letter(pending: _PendingEntry) -> _Letter:
    """Return the message that keeps an entry: the event in EventBridge's envelope, the reason as EventBridge writes it.

    So whoever reads the dead-letter queue of a rule can read this one.
    """
    attributes = {
        "ERROR_CODE": {"DataType": "String", "StringValue": str(pending.code)},
        "ERROR_MESSAGE": {"DataType": "String", "StringValue": _ascii(pending.message or "no message")},
        "RETRY_ATTEMPTS": {"DataType": "Number", "StringValue": str(pending.attempts)},
    }
    around = sum(len(name) + sum(map(len, attribute.values())) for name, attribute in attributes.items())
    body = _body(pending.entry, LARGEST_MESSAGE - around)
    return _Letter(pending, body, attributes, around + len(body.encode()))


def _body(entry: Entry, room: int) -> str:
    """Return the whole event as JSON in UTF-8; where that is too large or SQS would refuse it, compressed."""
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
    # An object is kept as it is written, anything else as text.
    body = f'{_json(event)[:-1]},"detail":{entry.detail if is_object else _json(entry.detail)}}}'
    if _refused_by_sqs(body) is None and len(body.encode()) <= room:
        return body
    packed = zlib.compress(entry.detail.encode(errors="surrogatepass"), wbits=GZIP)
    return _json_ascii(event | {"detailGzip": binascii.b2a_base64(packed, newline=False).decode()})


_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_json_ascii: Final = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode
_refused_by_sqs: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]").search


def _ascii(text: str) -> str:
    return _json_ascii(text[:_LONGEST_MESSAGE])[1:-1]
