"""Reads the dead letters of a stack, grouped by failure, and leaves every message in its queue."""

import re
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import batched
from typing import Any, Final, NamedTuple

import jmespath
from msgspec import Struct
from msgspec.structs import replace

from carride_idempotency.record import Record
from carride_idempotency.stores.dynamodb import record_of
from ops import records
from ops.audit.evidence import CONSUMERS
from ops.audit.queues import HIDDEN_SECONDS, fact_of, json_object, opened, peek, waiting
from ops.audit.reading import type_of
from ops.stack import OperatorError, StackRef
from ops.verbs import reads

_AT_ONCE: Final = 50
"""DeadLetters that are looked up at once; each takes two of the 100 keys of a BatchGetItem request."""
_SHOWN: Final = 3
"""DeadLetters that are kept of each failure."""
_varying = re.compile(r"[\w-]*\d(?:[\w.,:-]*\w)?")
"""Finds words with a digit: ids, numbers, times, addresses."""
_ride = jmespath.compile("detail.subject || detail.data.orderID")

READERS: Final = {
    f"{each.resources}{kind}": each for each in CONSUMERS for kind in ("Dlq", "RuleDlq")
}
"""The consumers to which the messages of queues were to go, by the queue's logical id."""
COUNTS: Final = "redriven#"
"""The prefix of the keys of items that count redrives."""


class DeadLetter(Struct, frozen=True):
    """A dead letter."""

    id: str
    """SQS's id of the message."""
    queue: str
    group: str
    """Id of its failure."""
    reason: str
    """Code of whoever sent it."""
    error: str
    """Type and message of the error, if the sender names one."""
    consumer: str | None
    """The consumer that did not process the event; None if the queue belongs to no consumer."""
    key: str | None
    """Of the consumer's record."""
    fact: str | None
    """Idempotency id of the event; None if it breaks the contract."""
    ride: str | None
    type: str | None
    sent: datetime
    event: Any
    redriven: int = 0
    """How often the event was redriven to this target in the last 30 days."""


class Failure(Struct):
    """Dead letters of one queue with the same failure: consumer, reason and error without its ids and numbers."""

    group: str
    queue: str
    consumer: str | None
    reason: str
    error: str
    oldest: datetime
    count: int = 0
    redriven: int = 0
    """How often the letter was redriven that was redriven most."""
    letters: tuple[DeadLetter, ...] = ()
    """The oldest few."""


class DeadLetters(Struct, frozen=True):
    """The dead letters of one or all queues, the most frequent failure first."""

    failures: tuple[Failure, ...]
    hidden: Mapping[str, int]
    """Messages that could not be read, by queue: another reader hides them."""


class Received(NamedTuple):
    """A dead letter that was received, with the consumer's record of its event."""

    letter: DeadLetter
    record: Record | None
    receipt: str


@reads("letters")
def failures(stack: StackRef, queue: str | None = None, /) -> DeadLetters:
    """Show what lies in the dead-letter queues, grouped by failure.

    DeadLetters of one group have the same queue, consumer, reason and error; ids and numbers in the
    error do not count. Of each group the oldest letters are shown. Every letter stays in its queue.

    Args:
        queue: Logical id of one queue: RideHistoryDlq, DispatchRuleDlq, ProducerDlq, …
    """
    names = [queue] if queue else queues_of(stack)
    hidden = {name: waiting(stack.client("sqs"), url_of(stack, name)) for name in names}
    groups: dict[str, Failure] = {}
    for name in names:
        for letter, _, _ in received_from(stack, name):
            named = (
                letter.group,
                name,
                letter.consumer,
                letter.reason,
                normalised(letter.error),
                letter.sent,
            )
            failure = groups.setdefault(letter.group, Failure(*named))
            failure.count += 1
            failure.oldest = min(failure.oldest, letter.sent)
            failure.redriven = max(failure.redriven, letter.redriven)
            failure.letters = tuple(
                sorted((*failure.letters, letter), key=lambda each: each.sent)[:_SHOWN]
            )
    ranked = sorted(groups.values(), key=lambda each: -each.count)
    return DeadLetters(tuple(ranked), {name: count for name, count in hidden.items() if count})


def reasons(stack: StackRef, queue: str) -> Counter[str]:
    """Count the messages of a dead-letter queue by reason."""
    return Counter(
        opened(message)[0] for message in peek(stack.client("sqs"), url_of(stack, queue))
    )


def queues_of(stack: StackRef) -> list[str]:
    """Return the logical ids of the stack's dead-letter queues."""
    return sorted(name.removesuffix("Url") for name in stack.outputs if name.endswith("DlqUrl"))


def url_of(stack: StackRef, queue: str) -> str:
    """Return the URL of a dead-letter queue. Refuse any other: reading it would hide messages from its consumer."""
    known = queues_of(stack)
    if queue not in known:
        raise OperatorError(
            f"the stack has no dead-letter queue {queue}: it has {', '.join(known)}"
        )
    return stack.outputs[f"{queue}Url"]


def received_from(
    stack: StackRef, queue: str, *, at_once: int = _AT_ONCE, hidden_s: int = HIDDEN_SECONDS
) -> Generator[Received]:
    """Yield every visible letter of a queue with its record; others see none of them for ``hidden_s`` seconds."""
    with closing(peek(stack.client("sqs"), url_of(stack, queue), hidden_s)) as messages:
        for some in batched(messages, at_once, strict=False):
            received = [(letter_of(queue, message), message["ReceiptHandle"]) for message in some]
            known = (letter for letter, _ in received if letter.fact)
            keys = {key for letter in known for key in (letter.key, count_key(letter)) if key}
            items = {item["idempotencyKey"]["S"]: item for item in records.items_at(stack, keys)}
            for letter, receipt in received:
                counted, item = items.get(count_key(letter) or "", {}), items.get(letter.key or "")
                times = int(counted.get("redriven", {"N": 0})["N"])
                yield Received(
                    replace(letter, redriven=times), record_of(item) if item else None, receipt
                )


def letter_of(queue: str, message: Any) -> DeadLetter:
    """Return a message of a dead-letter queue as a letter, whoever sent it."""
    reason, event = opened(message)
    consumer = READERS[queue].name if queue in READERS else None
    error, fact = _error(message), fact_of(event)
    key = (
        f"{consumer}#{fact}"
        if consumer and fact
        else (json_object(message["Body"]) or {}).get("key")
    )
    same = "\n".join((queue, str(consumer), reason, normalised(error)))
    return DeadLetter(
        id=message["MessageId"],
        queue=queue,
        group=blake2b(same.encode(errors="replace"), digest_size=3).hexdigest(),
        reason=reason,
        error=error,
        consumer=consumer,
        key=key if isinstance(key, str) and key else None,
        fact=fact,
        ride=ride_of(event),
        type=type_of(event),
        sent=datetime.fromtimestamp(int(message["Attributes"]["SentTimestamp"]) / 1000, UTC),
        event=event,
    )


def ride_of(event: Any) -> str | None:
    """Return the ride that an event names, although it may break the contract."""
    ride = _ride.search(event)
    return ride if isinstance(ride, str) else None


def count_key(letter: DeadLetter) -> str | None:
    """Return the key of the item, in the idempotency table, that counts the redrives of an event to its target."""
    return f"{COUNTS}{letter.key or f'{letter.queue}#{letter.fact}'}" if letter.fact else None


def normalised(error: str) -> str:
    """Return an error without what differs between events: every word with a digit becomes ``…``."""
    return _varying.sub("…", " ".join(error.split()))[:300]


def _error(message: Any) -> str:
    match json_object(message["Body"]):
        case {"reason": str(), "consumer": str(), "message": str(text)}:
            return text
        case {"requestContext": _, "responsePayload": {"errorMessage": text, **more}}:
            return f"{more.get('errorType', 'Error')}: {text}"
    return str(message.get("MessageAttributes", {}).get("ERROR_MESSAGE", {}).get("StringValue", ""))
