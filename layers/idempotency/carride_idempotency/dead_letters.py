"""Dead letters: events that must not run again, stored with the reason before they are acknowledged."""

import base64
import gzip
import json
from typing import Any, Final, NamedTuple, Protocol

from carride_idempotency.errors import RetryableError

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


class DeadLetterError(RetryableError):
    """Raised when the dead-letter queue did not take an event, so that its delivery is not acknowledged."""


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
        """Return the dead letter as JSON.

        An event too large for a message is compressed, as ``eventGzip``.
        """
        text = json.dumps(self._asdict(), separators=(",", ":"), default=str)
        if len(text.encode()) <= MAX_MESSAGE_BYTES - _ATTRIBUTES_BYTES:
            return text
        packed = gzip.compress(
            json.dumps(self.event, separators=(",", ":"), default=str).encode(), mtime=0
        )
        compressed = self._asdict() | {
            "event": None,
            "eventGzip": base64.b64encode(packed).decode(),
        }
        return json.dumps(compressed, separators=(",", ":"), default=str)


class DeadLetters(Protocol):
    """Stores dead letters durably."""

    def send(self, dead_letter: DeadLetter) -> None:
        """Store a dead letter; raise a DeadLetterError if it may not have been stored."""


class SqsDeadLetters:
    """Dead letters in an SQS queue.

    The client is botocore's or boto3's, by default made for the first dead letter.
    """

    def __init__(self, queue_url: str, *, client: Any = None) -> None:
        self._queue_url = queue_url
        self._client = client

    def send(self, dead_letter: DeadLetter) -> None:
        """Send one message, with the reason and the consumer as its attributes."""
        from botocore.exceptions import BotoCoreError, ClientError

        if self._client is None:
            from botocore.config import Config
            from botocore.session import get_session

            config = Config(
                connect_timeout=1,
                read_timeout=2,
                retries={"mode": "standard", "total_max_attempts": 3},
            )
            self._client = get_session().create_client("sqs", config=config)
        try:
            self._client.send_message(
                QueueUrl=self._queue_url,
                MessageBody=dead_letter.body(),
                MessageAttributes={
                    "Reason": {"DataType": "String", "StringValue": dead_letter.reason},
                    "Consumer": {"DataType": "String", "StringValue": dead_letter.consumer},
                },
            )
        except (BotoCoreError, ClientError) as error:
            what = (
                f"{dead_letter.reason} of {dead_letter.key} could not be sent to {self._queue_url}"
            )
            raise DeadLetterError(what) from error
