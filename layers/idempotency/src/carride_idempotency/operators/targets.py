"""The site of the library's own command: one queue, one store, and a function or a queue.

Its verdicts know records, and no consumer's code.
"""

import json
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final, Protocol

from botocore.exceptions import ClientError

from carride_idempotency import errors, observation
from carride_idempotency.clock import to_ms
from carride_idempotency.dead_letters import BEYOND_WINDOW, PAYLOAD_MISMATCH, fifo_ids
from carride_idempotency.operators.explaining import is_held
from carride_idempotency.operators.letters import Letter, as_delivered, as_message, letter_in
from carride_idempotency.operators.queues import GLIMPSE_SECONDS, peek, waiting
from carride_idempotency.operators.records import Records
from carride_idempotency.operators.redriving import POSTPONED
from carride_idempotency.operators.site import (
    READ_AT_ONCE,
    Received,
    Site,
    TargetAnswer,
    Trial,
    Verdict,
    Why,
    received,
)
from carride_idempotency.protocol.decision import has_crashed, is_corrupt
from carride_idempotency.record import COMPLETED, QUARANTINED, Record, unknown_calls
from carride_idempotency.stores import Store

_WOULD_RETURN: Final = {PAYLOAD_MISMATCH: Why.OTHER_PAYLOAD, BEYOND_WINDOW: Why.TOO_OLD}
_REFUSES_ONE: Final = frozenset(
    {
        "InvalidMessageContents",
        "InvalidParameterValue",
        "InvalidRequestContentException",
        "RequestTooLargeException",
    }
)
"""What SQS and Lambda answer to an event that is too large, or that they cannot read."""
_SUCCEEDS: Final = observation.COMMITTED | {
    observation.DUPLICATE,
    observation.EXPIRED,
    observation.UNPROTECTED,
}
"""The outcomes after which a letter is no longer needed, because its event has taken effect."""


class Target(Protocol):
    """Where letters go."""

    address: str

    def send(self, letter: Letter) -> TargetAnswer:
        """Deliver the event of a letter."""
        ...


class QueueSite(Site[Letter]):
    """A dead-letter queue whose letters have one store and one target.

    Args:
        sqs: botocore's or boto3's client.
        queue: the queue's URL.
        store: holds the records.
        target: where letters go.
    """

    hidden_s = 600  # a function may run for 15 minutes, and most end sooner

    def __init__(self, sqs: Any, queue: str, store: Store, target: Target) -> None:
        self.name = queue
        self.queues = (queue,)
        self.target = target.address
        self._sqs = sqs
        self.records = Records(store)
        self._target = target

    def letters(
        self, ids: Collection[str] | None = None, hidden_s: int | None = None
    ) -> Generator[Received[Letter]]:
        """Receive letters, all or those with these ids."""
        at_once = READ_AT_ONCE if hidden_s is None else 1
        with closing(peek(self._sqs, self.name, hidden_s or GLIMPSE_SECONDS)) as messages:
            wanted = _with_ids(messages, ids)
            yield from received(wanted, _letters_in, self.records, at_once)

    def count(self, *, hidden: bool) -> int:
        """Return about how many letters can be received, or are hidden by other readers."""
        return waiting(self._sqs, self.name, taken=hidden, visible=not hidden)

    def sent_since(self, start_ms: int) -> Iterator[Letter]:
        """Yield the letters that were sent to the queue since a time."""
        with closing(peek(self._sqs, self.name)) as messages:
            for letter in map(letter_in, messages):
                if to_ms(letter.sent) >= start_ms:
                    yield letter

    def verdict(self, found: Received[Letter], now_ms: int, *, releases: bool) -> Verdict:
        """Return what becomes of a letter whose key has this record."""
        return verdict_on(found.letter, found.record, now_ms, releases=releases)

    def send(self, letter: Letter) -> TargetAnswer:
        """Send the event of a letter to the target."""
        return self._target.send(letter)

    def delete(self, found: Received[Letter]) -> None:
        """Delete a letter that the target has taken."""
        self._sqs.delete_message(QueueUrl=self.name, ReceiptHandle=found.receipt)

    def is_back(self, sent: Letter, letter: Letter) -> bool:
        """Return whether a letter has the key or the message of one that was sent.

        SQS itself moves a message whose function cannot start, and states no key. It keeps body and
        attributes, so another message of the same body is told apart.
        """
        if super().is_back(sent, letter):
            return True
        is_message = letter.unusable is None and letter.event is not None
        return is_message and _message_of(sent) == _message_of(letter)


def _with_ids(messages: Iterable[Any], ids: Collection[str] | None) -> Iterator[Any]:
    for message in messages:
        if ids is None or message["MessageId"] in ids:
            yield message


def _letters_in(messages: Sequence[Any]) -> list[Letter]:
    return [*map(letter_in, messages)]


def _message_of(letter: Letter) -> dict[str, Any]:
    """Return a letter's event as a queue takes it, without its group: a FIFO queue may set one."""
    message = as_message(letter.event)
    message.pop("MessageGroupId", None)
    return message


# ── Targets ───────────────────────────────────────────────────────────────────────────────────────


class FunctionTarget:
    """A Lambda function, which is invoked and waited for: its answer says how a delivery went."""

    def __init__(self, functions: Any, name: str) -> None:
        self.address = name
        self._functions = functions

    def send(self, letter: Letter) -> TargetAnswer:
        """Invoke the function with an event, or with a batch of one record."""
        payload = json.dumps(as_delivered(letter.event), separators=(",", ":"))
        try:
            answer = self._functions.invoke(FunctionName=self.address, Payload=payload)
        except ClientError as error:
            return _refused(error)
        try:
            returned = json.loads(answer["Payload"].read() or "null")
        except ValueError:
            returned = None
        if "FunctionError" in answer:
            raised = returned if isinstance(returned, Mapping) else {}
            says = f"{raised.get('errorType', 'Error')}: {raised.get('errorMessage', 'no message')}"
            if _says_later(raised.get("errorType")):
                return TargetAnswer(Trial.FAILED, f"{POSTPONED}: {says}", is_taken=False)
            return TargetAnswer(Trial.FAILED, f"it failed again: {says}", is_taken=False)
        return _judged(returned)


def _says_later(kind: object) -> bool:
    """Return whether an error, by the name of its class, is one of ours that says "later"."""
    known = getattr(errors, str(kind), None)
    is_of_a_batch = known is errors.BatchFailedError  # whose record says what has failed
    is_retryable = isinstance(known, type) and issubclass(known, errors.RetryableError)
    return is_retryable and not is_of_a_batch


def _judged(returned: Any) -> TargetAnswer:
    """Return what a function's result says of its one event."""
    if not isinstance(returned, Mapping):
        return TargetAnswer(Trial.SUCCEEDED, "the function returned", is_taken=True)
    if returned.get("batchItemFailures"):
        return TargetAnswer(Trial.FAILED, "it failed again, as its batch says", is_taken=False)
    outcome = returned.get("outcome")
    if outcome is None or outcome in _SUCCEEDS:
        return TargetAnswer(Trial.SUCCEEDED, str(outcome or "the function returned"), is_taken=True)
    if outcome == observation.DEAD_LETTERED:
        again = "it failed again, and its consumer sent a new letter in its place"
        return TargetAnswer(Trial.FAILED, again, is_taken=True)
    return TargetAnswer(Trial.FAILED, f"its consumer answered {outcome}", is_taken=False)


class QueueTarget:
    """A queue, from which a consumer takes the event later."""

    def __init__(self, sqs: Any, url: str) -> None:
        self.address = url
        self._sqs = sqs

    def send(self, letter: Letter) -> TargetAnswer:
        """Send an event as the message that it was. A FIFO queue recognises a copy of a letter."""
        message = as_message(letter.event) | fifo_ids(self.address, letter.event, letter.id)
        try:
            self._sqs.send_message(QueueUrl=self.address, **message)
        except ClientError as error:
            return _refused(error)
        return TargetAnswer(Trial.UNKNOWN, "it was sent", is_taken=True)


def _refused(error: ClientError) -> TargetAnswer:
    """Return what a target says that refuses this event, and may take others.

    Raises:
        ClientError: it refuses them all.
    """
    code = error.response["Error"].get("Code")
    if code not in _REFUSES_ONE:
        raise error
    return TargetAnswer(Trial.FAILED, f"its target refuses it: {code}", is_taken=False)


# ── Verdicts ──────────────────────────────────────────────────────────────────────────────────────


def verdict_on(letter: Letter, record: Record | None, now_ms: int, *, releases: bool) -> Verdict:
    """Return what a redrive does with a letter whose key has this record."""
    if letter.unusable is not None:
        return Verdict(Why.UNUSABLE, about=letter.unusable)
    if letter.reason in _WOULD_RETURN:
        return Verdict(_WOULD_RETURN[letter.reason])
    if record is None:
        return Verdict(Why.RUNS)
    if is_held(record, now_ms):
        return Verdict(Why.HELD)
    if record.status == QUARANTINED and unknown_calls(record):
        return Verdict(Why.UNKNOWN_CALL, about=unknown_calls(record)[0])
    if record.status == COMPLETED:
        return Verdict(Why.RECOGNISED)
    if record.status == QUARANTINED or is_corrupt(record):
        if releases:
            return Verdict(Why.RUNS, releases=True)
        return Verdict(Why.QUARANTINED)
    return Verdict(Why.RUNS, releases=releases and has_crashed(record, now_ms))
