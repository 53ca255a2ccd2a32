"""Shows keys: what their records mean, why they do not succeed, and where their letters lie."""

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Final, NamedTuple

from cyclopts import Parameter

from carride_idempotency.clock import to_ms
from carride_idempotency.operators.choosing import Choice, cause_of, consumer_of
from carride_idempotency.operators.explaining import explain
from carride_idempotency.record import QUARANTINED, Record
from ops import records
from ops.audit.evidence import CONSUMERS
from ops.audit.queues import peek
from ops.dead_letters import SHORT_ID, DeadLetter, letter_of, queues_named, url_of
from ops.policies import MOST_ATTEMPTS, POLICIES
from ops.stack import OperatorError, StackRef
from ops.verbs import POSITIVE, Span, reads

_GONE: Final = "its letter is not in its queues: it was redriven or deleted, or a reader hides it"


class Key(NamedTuple):
    """A key, and what its record means."""

    key: str
    status: str
    attempt: int
    cause: str
    """Six digits that name why it does not succeed: the same for keys that fail alike."""
    says: str
    """What happened under the key, what its next delivery does, and where its letter is."""
    letter: str
    """The id of its dead letter; empty if there is none."""
    queue: str
    """The logical id of the letter's queue."""


class KeyList(NamedTuple):
    """The keys that were found."""

    keys: tuple[Key, ...]
    complete: bool
    """False if there may be more than were asked for."""
    says: str | None
    """Why there is none."""


@reads("keys", "", "payment#7f3c1c1e-6a51-5d0c-9f5e-1b8a4c2d3e4f", "--ride order_01")
def keys(
    stack: StackRef,
    key: str | None = None,
    /,
    *,
    ride: str | None = None,
    status: str | None = None,
    consumer: str | None = None,
    cause: str | None = None,
    older: Span | None = None,
    corrupt: Annotated[bool, Parameter(negative="")] = False,
    limit: Annotated[int, POSITIVE] = 100,
) -> KeyList:
    """Show keys, what their records mean for the next delivery, and whether their letter is there.

    Without KEY, --ride and --status they are those that consumers do not process until they are
    released, or settled. They are read from an index. It lacks a record that something else than
    a consumer has damaged.

    Args:
        key: CONSUMER#ID, or the id of an event.
        ride: Those of this ride's events.
        status: IN_PROGRESS, COMPLETED, FAILED or QUARANTINED: reads the whole tables. Records whose
            window has ended are left out: their keys run as new.
        consumer: Those of this consumer, such as payment.
        cause: Those that fail for this cause: its six digits, or words of it.
        older: Those that were written longer ago.
        corrupt: Also read the whole tables, for damaged records.
        limit: The most keys to show.

    Raises:
        OperatorError: there is no such status or consumer, or ``corrupt`` is asked for with a
            choice that reads no whole table for it.
    """
    if consumer is not None and consumer_of(consumer) not in POLICIES:
        raise OperatorError(f"there is no consumer {consumer}: give one of {', '.join(POLICIES)}")
    if corrupt and (key, ride, status) != (None, None, None):
        raise OperatorError(
            "--corrupt reads the whole tables for damaged records: give no KEY, --ride or --status"
        )
    now = datetime.now(UTC)
    choice = Choice(
        consumer=consumer,
        status=records.status_named(status),
        cause=cause,
        before_ms=None if older is None else to_ms(now - older),
    )
    there = records.chosen(stack, choice, ride=ride, key=key, corrupt=corrupt)
    found = [*islice(there, limit + 1)]
    if not found:
        is_named = ride is not None or key is not None
        return KeyList((), complete=True, says=records.NO_RECORD if is_named else _NONE)
    shown = sorted(found[:limit], key=lambda record: record.key)
    letters = _letters_of(stack, shown)
    rows = tuple(_row(record, letters.get(record.key), now) for record in shown)
    return KeyList(rows, complete=len(found) <= limit, says=None)


_NONE: Final = "there are no such keys"


def _row(record: Record, letter: DeadLetter | None, now: datetime) -> Key:
    cause = cause_of(record, to_ms(now))
    says = explain(record, now, MOST_ATTEMPTS).says
    if letter is not None:
        says += f"; its letter {letter.id[:SHORT_ID]} is in {letter.queue}"
    elif _has_a_letter(record):
        says += f"; {_GONE}"
    return Key(
        key=record.key,
        status=str(record.status),
        attempt=record.attempt,
        cause="" if cause is None else cause.id,
        says=says,
        letter="" if letter is None else letter.id,
        queue="" if letter is None else letter.queue,
    )


def _has_a_letter(record: Record) -> bool:
    """Return whether a letter of a key was sent to the queue of its consumer."""
    return record.status == QUARANTINED and record.dead_lettered and _has_queues(record)


def _has_queues(record: Record) -> bool:
    return any(each.name == consumer_of(record.key) for each in CONSUMERS)


def _letters_of(stack: StackRef, found: list[Record]) -> dict[str, DeadLetter]:
    """Return the letters of quarantined keys, by key, from the queues of their consumers."""
    wanted = {each.key for each in found if each.status == QUARANTINED and _has_queues(each)}
    letters = dict[str, DeadLetter]()
    for name in sorted({consumer_of(key) for key in wanted}):
        for letter in _letters_in(stack, name):
            if letter.key in wanted:
                letters[letter.key] = letter
    return letters


def _letters_in(stack: StackRef, consumer: str) -> Iterator[DeadLetter]:
    sqs = stack.client("sqs")
    for queue in queues_named(stack, consumer):
        with closing(peek(sqs, url_of(stack, queue))) as messages:
            for message in messages:
                yield letter_of(queue, message)
