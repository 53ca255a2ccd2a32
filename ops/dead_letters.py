"""Reads the dead letters of a stack, grouped by failure, and leaves every message in its queue."""

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple

import jmespath
from msgspec import Struct
from msgspec.structs import asdict, replace

from carride_idempotency.operators.choosing import normalised, short_id
from carride_idempotency.operators.forms import Content
from carride_idempotency.operators.site import READ_AT_ONCE, Received, Verdict, received
from ops import records, tables
from ops.audit.evidence import CONSUMERS, MARKS
from ops.audit.queues import GLIMPSE_SECONDS, content_in, fact_of, opened, peek, waiting
from ops.audit.reading import REDRIVEN, type_of
from ops.stack import OperatorError, StackRef

_SHOWN: Final = 3
"""Letters that are kept of each failure."""
SHORT_ID: Final = 8
"""Characters of a letter's id that are printed. `letters` and `redrive --letter` take them."""
_ride = jmespath.compile("detail.subject || detail.data.orderID")

READERS: Final = {
    f"{each.resources}{kind}": each for each in CONSUMERS for kind in ("Dlq", "RuleDlq")
}
"""The consumers to which the messages of queues were to go, by the queue's logical id."""
BUS: Final = "bus"
PRODUCER_DLQ: Final = "ProducerDlq"
"""The queue of what the bus did not accept."""


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

    @property
    def labels(self) -> Mapping[str, str | None]:
        """What else a redrive says of it."""
        return {"type": self.type, "ride": self.ride, "fact": self.fact}

    def without_event(self) -> "DeadLetter":
        """Return it without its event, which may be a megabyte."""
        return replace(self, event=None)


class Failure(Struct):
    """Dead letters of one queue whose consumer, reason and error are the same.

    Errors that differ only in ids and numbers, or in the event's type, count as the same.
    """

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
    copies: int = 0
    """How many of its letters are copies of another one: they have its key."""
    goes: int = 0
    """How many of its letters can be redriven, if their keys may be released."""
    releases: bool = False
    """Whether a redrive of some of them releases a key."""
    stays: Verdict | None = None
    """Why one of the others cannot be redriven; None if all can."""
    command: str = ""
    """Shows what a redrive of the group would do; empty if none of its letters can be redriven."""


class DeadLetters(Struct, frozen=True):
    """The dead letters of some or all queues, by failure.

    Those with letters that can be redriven come first, and then the most frequent.
    """

    failures: tuple[Failure, ...]
    hidden: Mapping[str, int]
    """Messages that could not be read, by queue: another reader hides them."""

    def to_json(self) -> dict[str, object]:
        """Return them without their events, of which one may be a megabyte."""
        found = []
        for each in self.failures:
            letters = [_without_event(letter) for letter in each.letters]
            found.append(asdict(each) | {"letters": letters})
        return {"failures": found, "hidden": self.hidden}


def _without_event(letter: DeadLetter) -> dict[str, object]:
    fields = asdict(letter)
    del fields["event"]
    return fields


def counts_of(stack: StackRef) -> Counter[str]:
    """Return how many letters each dead-letter queue has, by SQS's approximate count."""
    sqs = stack.client("sqs")
    counts = Counter[str]()
    for name in queues_of(stack):
        counts[name] = waiting(sqs, url_of(stack, name), visible=True)
    return counts


def failures(
    stack: StackRef, names: Iterable[str], /, *, judge: Callable[[Received[DeadLetter]], Verdict]
) -> DeadLetters:
    """Return what lies in dead-letter queues. Every letter stays in its queue.

    ``judge`` says what a redrive would do with a letter.
    """
    names = [*names]
    hidden = {name: waiting(stack.client("sqs"), url_of(stack, name)) for name in names}
    groups: dict[str, Failure] = {}
    keys: dict[str, list[str | None]] = {}
    for name in names:
        for found in received_from(stack, name):
            _add(groups, found.letter, judge(found))
            keys.setdefault(found.letter.group, []).append(found.letter.key)
    for group in groups.values():
        group.copies = copies_in(keys[group.group])
    ranked = sorted(groups.values(), key=lambda group: (not group.goes, -group.count))
    return DeadLetters(tuple(ranked), {name: count for name, count in hidden.items() if count})


def copies_in(keys: Iterable[str | None]) -> int:
    """Return how many of the letters with these keys are copies of another one."""
    letters = Counter(key for key in keys if key is not None)
    return letters.total() - len(letters)


def _add(groups: dict[str, Failure], letter: DeadLetter, verdict: Verdict) -> None:
    """Add a letter to its group."""
    if letter.group not in groups:
        groups[letter.group] = Failure(
            group=letter.group,
            queue=letter.queue,
            consumer=letter.consumer,
            reason=letter.reason,
            error=cause_in(letter.error, letter.type),
            oldest=letter.sent,
        )
    group = groups[letter.group]
    group.count += 1
    if verdict.goes:
        group.goes += 1
    else:
        group.stays = group.stays or verdict
    group.releases = group.releases or verdict.releases
    group.oldest = min(group.oldest, letter.sent)
    group.redriven = max(group.redriven, letter.redriven)
    oldest = sorted((*group.letters, letter), key=lambda each: each.sent)
    group.letters = tuple(oldest[:_SHOWN])


def reasons(stack: StackRef, queue: str) -> Counter[str]:
    """Count the messages of a dead-letter queue by reason."""
    return Counter(
        opened(message)[0] for message in peek(stack.client("sqs"), url_of(stack, queue))
    )


def queues_of(stack: StackRef) -> list[str]:
    """Return the logical ids of the stack's dead-letter queues."""
    return sorted(name.removesuffix("Url") for name in stack.outputs if name.endswith("DlqUrl"))


def queues_named(stack: StackRef, name: str) -> list[str]:
    """Return the logical ids of the dead-letter queues that a name means.

    It is a consumer, which has two of them, the bus, or the logical id of one.

    Raises:
        OperatorError: there is no such name.
    """
    known = queues_of(stack)
    if name == BUS:
        return [PRODUCER_DLQ]
    if name in known:
        return [name]
    of_consumer = [queue for queue, each in READERS.items() if each.name == name]
    if not of_consumer:
        names = ", ".join([*(each.name for each in CONSUMERS), BUS, *known])
        raise OperatorError(f"the stack has no dead-letter queue of {name}: write one of {names}")
    return [queue for queue in of_consumer if queue in known]


def name_of(queue: str) -> str:
    """Return how operators call what a dead-letter queue belongs to: a consumer, or the bus."""
    if queue == PRODUCER_DLQ:
        return BUS
    return READERS[queue].name if queue in READERS else queue


def url_of(stack: StackRef, queue: str) -> str:
    """Return the URL of a dead-letter queue.

    Raises:
        OperatorError: it is another queue; reading it would hide messages from its consumer.
    """
    known = queues_of(stack)
    if queue not in known:
        raise OperatorError(
            f"the stack has no dead-letter queue {queue}: it has {', '.join(known)}"
        )
    return stack.outputs[f"{queue}Url"]


def received_from(
    stack: StackRef,
    queue: str,
    *,
    ids: Collection[str] | None = None,
    at_once: int = READ_AT_ONCE,
    hidden_s: int = GLIMPSE_SECONDS,
    reads_s: float | None = None,
) -> Generator[Received[DeadLetter]]:
    """Yield every visible letter of a queue with its record, or those with these ``ids``.

    Other readers do not see a letter for ``hidden_s`` seconds, or for longer if reading takes
    longer (`peek`). Reading ends after ``reads_s`` seconds, if they are given.
    """
    sqs = stack.client("sqs")
    with closing(peek(sqs, url_of(stack, queue), hidden_s, reads_s)) as messages:
        wanted = (each for each in messages if ids is None or each["MessageId"] in ids)
        letters_in = partial(_letters_in, stack, queue)
        yield from received(wanted, letters_in, records.StackRecords(stack), at_once)


def _letters_in(stack: StackRef, queue: str, messages: Sequence[Any]) -> list[DeadLetter]:
    """Return letters with how often each was redriven, which is read for all of them together."""
    letters = [letter_of(queue, message) for message in messages]
    counts = _redrives_at(stack, {key for key in map(count_key, letters) if key})
    counted = []
    for letter in letters:
        found = counts.get(count_key(letter) or "")
        counted.append(replace(letter, redriven=found.times) if found else letter)
    return counted


class Redrives(NamedTuple):
    """How often the letters of a key were redriven in the last 30 days, by any operator."""

    times: int
    last_ms: float
    """When the last one was sent."""


def redriven_at(stack: StackRef, keys: Iterable[str]) -> dict[str, Redrives]:
    """Return the redrives of the letters of keys, by key."""
    found = _redrives_at(stack, {f"{REDRIVEN}{key}" for key in keys})
    return {name.removeprefix(REDRIVEN): each for name, each in found.items()}


def _redrives_at(stack: StackRef, names: set[str]) -> dict[str, Redrives]:
    found = dict[str, Redrives]()
    for item in tables.under(stack, MARKS, "id", names):
        name = item["id"]["S"]
        times = int(item["redriven"]["N"])
        found[name] = Redrives(times, float(item["redrivenAt"]["N"]))
    return found


def redrive_command(queue: str, option: str, value: str, *, releases: bool) -> str:
    """Return the command that shows what a redrive of some letters of a queue would do.

    An option chooses the letters: ``letter``, ``group`` or ``key``. ``releases`` says whether their
    keys have to be released.
    """
    words = ["./carride", "redrive", name_of(queue), f"--{option}={value}"]
    if releases:
        words.append("--release")
    return shlex.join(words)


def redrive_of(letter: DeadLetter, *, releases: bool) -> str:
    """Return the command that shows what a redrive of a letter would do, and of its copies.

    Arguments as in `redrive_command`. A letter without a key is chosen by its own id.
    """
    option = "key" if letter.key else "letter"
    return redrive_command(letter.queue, option, letter.key or letter.id, releases=releases)


def verdicts_in(verdicts: Iterable[Verdict]) -> list[str]:
    """Return what a redrive does with letters: a line for each verdict, with their number."""
    lines = []
    for (goes, why), number in Counter((each.goes, each.says) for each in verdicts).items():
        one, several = ("goes", "go") if goes else ("stays", "stay")
        lines.append(f"{number:,} {one if number == 1 else several}: {why}")
    return lines


def letter_of(queue: str, message: Any) -> DeadLetter:
    """Return a message of a dead-letter queue as a letter, whoever sent it."""
    content = content_in(message)
    consumer = READERS[queue].name if queue in READERS else None
    fact = fact_of(content.event)
    return DeadLetter(
        id=message["MessageId"],
        queue=queue,
        group=short_id(
            queue, str(consumer), content.reason, cause_in(content.error, type_of(content.event))
        ),
        reason=content.reason,
        error=content.error,
        consumer=consumer,
        key=_key(consumer, fact, content),
        fact=fact,
        ride=ride_of(content.event),
        type=type_of(content.event),
        sent=datetime.fromtimestamp(int(message["Attributes"]["SentTimestamp"]) / 1000, UTC),
        event=content.event,
    )


def cause_in(error: str, event_type: str | None) -> str:
    """Return an error without ids and numbers, and without the type of its event.

    One outage fails on events of several types.
    """
    return normalised(error.replace(event_type, "an event") if event_type else error)


def _key(consumer: str | None, fact: str | None, content: Content) -> str | None:
    """Return the key of the consumer's record, which its own letter states if the event does not.

    What a producer wrote is no key: a redrive may release it.
    """
    if consumer and fact:
        return f"{consumer}#{fact}"
    if consumer and content.consumer == consumer:
        return content.key
    return None


def ride_of(event: Any) -> str | None:
    """Return the ride that an event names, although it may break the contract."""
    ride = _ride.search(event)
    return ride if isinstance(ride, str) else None


def count_key(letter: DeadLetter) -> str | None:
    """Return the key of the item in OperatorTable that counts an event's redrives to its target.

    It is None for an event that breaks the contract, which is not counted.
    """
    if not letter.fact:
        return None
    target = letter.key or f"{letter.queue}#{letter.fact}"
    return f"{REDRIVEN}{target}"
