"""Dead letters: events that must not run again, with the reason.

They are stored before they are acknowledged.
"""

import base64
import gzip
import json
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from threading import Thread
from typing import Any, Final, NamedTuple, Protocol, Self

from carride_idempotency.clock import Clock, epoch_ms
from carride_idempotency.errors import (
    ConfigurationError,
    DeadLetterError,
    StoreRefusedError,
    StoreUnavailableError,
)
from carride_idempotency.forks import renew_client, renew_in_children
from carride_idempotency.invocation import current
from carride_idempotency.sources import position_of, said
from carride_idempotency.stores.retries import Retries, Verdict

CONTRACT: Final = "CONTRACT"
MISSING_KEY: Final = "MISSING_KEY"
PAYLOAD_MISMATCH: Final = "PAYLOAD_MISMATCH"
QUARANTINED: Final = "QUARANTINED"
BEYOND_WINDOW: Final = "BEYOND_WINDOW"
UNKNOWN: Final = "UNKNOWN"
"""An attempt ended without an answer, and the policy allows no other; or nobody can tell what
became of a call."""
CORRUPT_RECORD: Final = "CORRUPT_RECORD"

MAX_MESSAGE_BYTES: Final = 1_048_576
"""The largest SQS message, including its attributes."""
_ATTRIBUTES_BYTES: Final = 1_024
_CONNECT_S: Final = 1
_READ_S: Final = 2
_TO_REPORT_S: Final = 0.1
"""Kept free before the deadline, to report that a letter was not sent."""
_SERVER_ERROR: Final = 500
_THROTTLED: Final = frozenset({"RequestThrottled", "ThrottlingException", "Throttling"})
_TOO_LARGE: Final = frozenset({"InvalidParameterValue", "InvalidParameterValueException"})
"""What SQS answers if a message is larger than its queue takes."""

_is_group: Final = re.compile(r"[!-~]{1,128}").fullmatch
"""Matches the name of a group of messages, as SQS takes it."""


class DeadLetter(NamedTuple):
    """An event that was given up, and the reason."""

    reason: str
    """One of this module's codes."""
    message: str
    consumer: str
    key: str | None
    attempt: int
    event: object
    """The original event, as it was delivered."""

    def body(self) -> str:
        """Return the dead letter as JSON, in the largest form that a message can hold.

        An event too large for a message is compressed, as ``eventGzip``. If that is too large as
        well, and the event stays in a stream or a topic, the letter says where, and has no event.
        """
        body = ""
        for body in _bodies(self):
            if _is_small(body):
                break
        return body

    @classmethod
    def from_body(cls, body: str) -> Self:
        """Return the dead letter that a message holds, with its event decompressed."""
        fields = json.loads(body)
        packed = fields.pop("eventGzip", None)
        if packed is not None:
            fields["event"] = json.loads(gzip.decompress(base64.b64decode(packed)))
        return cls(**fields)

    def compressed_body(self) -> str:
        """Return the dead letter as JSON, with its event compressed as ``eventGzip``."""
        packed = gzip.compress(
            json.dumps(self.event, separators=(",", ":"), default=str).encode(), mtime=0
        )
        compressed = self._asdict() | {
            "event": None,
            "eventGzip": base64.b64encode(packed).decode(),
        }
        return json.dumps(compressed, separators=(",", ":"), default=str)


def _bodies(letter: DeadLetter) -> Iterator[str]:
    """Yield the forms of a dead letter as JSON, the largest one first."""
    yield _json_of(letter)
    yield letter.compressed_body()
    place = position_of(letter.event)
    if place is not None:
        text = f"{letter.message}; its event is larger than the queue takes, and stays {place}"
        yield _json_of(letter._replace(message=text, event=None))


def _json_of(letter: DeadLetter) -> str:
    return json.dumps(letter._asdict(), separators=(",", ":"), default=str)


def _is_small(body: str) -> bool:
    """Return whether a message can hold a body beside the attributes."""
    return len(body.encode()) <= MAX_MESSAGE_BYTES - _ATTRIBUTES_BYTES


class DeadLetters(Protocol):
    """Stores dead letters durably."""

    def send(self, dead_letter: DeadLetter) -> None:
        """Store a dead letter; raise a DeadLetterError if it may not have been stored."""


class SqsDeadLetters:
    """Dead letters in an SQS queue.

    A queue may take less than SQS does: a letter that it refuses is sent again with its event
    compressed, and at last without it if it stays in a stream or a topic. No try outlasts the
    invocation, whatever the client's own time-outs are. In a FIFO queue a letter has the group that
    its event had, or a group of its own.

    Args:
        queue_url: the queue's URL.
        client: botocore's or boto3's. Default: made for the first dead letter.
        clock: epoch milliseconds.
    """

    def __init__(self, queue_url: str, *, client: Any = None, clock: Clock = epoch_ms) -> None:
        if not isinstance(queue_url, str) or "://" not in queue_url:
            raise ConfigurationError(
                f"SqsDeadLetters takes the URL of a queue, not {queue_url!r}: pass what SQS or the "
                "template gives, such as https://sqs.<region>.amazonaws.com/<account>/<name>"
            )
        self._queue_url = queue_url
        self._client = client
        self._clock = clock
        self._retries = Retries(clock)
        renew_in_children(self, renew_client)

    def send(self, dead_letter: DeadLetter) -> None:
        """Send one message, with the reason and the consumer as its attributes."""
        try:
            self._send_largest(dead_letter)
        except (StoreRefusedError, StoreUnavailableError) as error:
            what = (
                f"{dead_letter.reason} of {dead_letter.key} could not be sent to {self._queue_url}"
            )
            raise DeadLetterError(what) from error

    def _send_largest(self, dead_letter: DeadLetter) -> None:
        """Send the largest form of a letter that the queue takes."""
        refused = StoreRefusedError("no message of SQS's can hold it")
        for body in _bodies(dead_letter):
            if not _is_small(body):
                continue
            try:
                return self._send(dead_letter, body)
            except StoreRefusedError as error:
                if not _is_too_large(error.__cause__):
                    raise
                refused = error
        raise refused

    def _send(self, dead_letter: DeadLetter, body: str) -> None:
        """Send a message.

        Raises:
            StoreRefusedError: SQS refused it.
            StoreUnavailableError: SQS did not answer in time.
        """
        deadline_ms = current().deadline_ms
        request = partial(
            self._sqs().send_message,
            QueueUrl=self._queue_url,
            MessageBody=body,
            MessageAttributes={
                "Reason": {"DataType": "String", "StringValue": dead_letter.reason},
                "Consumer": {"DataType": "String", "StringValue": dead_letter.consumer},
            },
            # Random, so that the queue takes no later letter of the same event for a copy of this.
            **fifo_ids(self._queue_url, dead_letter.event, os.urandom(16).hex()),
        )
        self._retries.send(
            "a dead letter",
            lambda: self._in_time(request, deadline_ms),
            _judge,
            longest_try_s=_CONNECT_S + _READ_S,
            until_ms=deadline_ms,
        )

    def _sqs(self) -> Any:
        if self._client is None:
            from botocore.config import Config
            from botocore.session import get_session

            from carride_idempotency.stores.transport import region_of

            config = Config(
                connect_timeout=_CONNECT_S,
                read_timeout=_READ_S,
                retries={"mode": "standard", "total_max_attempts": 1},
            )
            session = get_session()
            region = region_of(session)
            self._client = session.create_client("sqs", region_name=region, config=config)
        return self._client

    def _in_time(self, request: Callable[[], object], deadline_ms: int | None) -> None:
        """Make a request; raise a TimeoutError if it takes longer than the invocation may.

        Its thread then ends with the client's own time-out.
        """
        if deadline_ms is None:
            request()
            return
        raised: list[BaseException] = []

        def run() -> None:
            try:
                request()
            except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
                raised.append(error)

        thread = Thread(target=run, name="idempotency-dead-letter", daemon=True)
        thread.start()
        thread.join(max(0.0, (deadline_ms - self._clock()) / 1000 - _TO_REPORT_S))
        if raised:
            raise raised[0]
        if thread.is_alive():
            raise TimeoutError("the queue did not answer before the invocation ended")


def fifo_ids(queue_url: str, event: Any, own_id: str) -> dict[str, str]:
    """Return what a FIFO queue needs with a message: its group, and an id that marks copies of it.

    A message of an event without a group has a group of its own: nothing has to wait for it. Other
    queues refuse such an id.
    """
    if not queue_url.endswith(".fifo"):
        return {}
    group = group_of(event)
    return {"MessageGroupId": group or own_id, "MessageDeduplicationId": own_id}


def group_of(event: Any) -> str | None:
    """Return the group that an event has in a FIFO queue; None if it has none that a queue takes.

    An event that no queue has sent may have anything in this place.
    """
    group = said(event, "attributes", "MessageGroupId")
    return group if isinstance(group, str) and _is_group(group) else None


def _judge(error: Exception) -> Verdict | None:
    """Return what an error says about a message; None if it is not the client's."""
    from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

    if isinstance(error, TimeoutError | HTTPClientError):
        return Verdict.UNANSWERED
    if isinstance(error, BotoCoreError):
        return Verdict.REFUSED
    if not isinstance(error, ClientError):
        return None
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if status >= _SERVER_ERROR or error.response["Error"].get("Code") in _THROTTLED:
        return Verdict.PASSING
    return Verdict.REFUSED


def _is_too_large(error: BaseException | None) -> bool:
    from botocore.exceptions import ClientError

    return isinstance(error, ClientError) and error.response["Error"].get("Code") in _TOO_LARGE
