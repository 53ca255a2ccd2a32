"""What holds a ride: facts, of which each page and verb makes its own sentences. No I/O."""

import shlex
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

from ops.audit.problems import Overdue, Problem


class Kind(StrEnum):
    """How something holds a ride: what an operator has to look at comes first."""

    BROKEN = "broken"
    """The audit says that tables and events contradict each other."""
    LOST = "lost"
    GIVEN_UP = "given up"
    OVERDUE = "overdue"
    CRASHED = "crashed"
    RETRYING = "retrying"
    RUNNING = "running"
    """An attempt holds the key, and has run for seconds."""
    WAITING = "waiting"
    """No delivery of the event is known."""


class Hold(NamedTuple):
    """Something that holds a ride."""

    kind: Kind
    consumer: str = ""
    """Empty if it is the whole ride."""
    event_id: str = ""
    type: str = ""
    """Of the event."""
    since_ms: float | None = None
    """Since when; None if nobody knows."""
    error: str = ""
    """The newest error; empty if there is none."""
    audited: Problem | Overdue | None = None
    """What the audit has found; None if it is something else that holds the ride."""
    attempts: int = 0
    due_ms: float | None = None
    """When the next attempt begins, or the lease of this one ends; None if nobody knows."""
    letters: int = 0
    letter_id: str = ""
    """SQS's id of a letter; empty if it was not read."""
    queue: str = ""
    """The logical id of the queue with its letters."""
    redriven: int = 0
    """How often its letters were redriven in the last 30 days."""
    command: str = ""
    """Shows what would help, or tells more; empty if it ends by itself."""


def by_audit(problems: Iterable[Problem], overdue: Overdue | None) -> Iterator[Hold]:
    """Yield what the audit says of a ride."""
    for problem in problems:
        yield Hold(Kind.BROKEN, audited=problem)
    if overdue is not None:
        since_ms = overdue.since.timestamp() * 1000
        yield Hold(Kind.OVERDUE, since_ms=since_ms, audited=overdue)


def without_letter(hold: Hold, attempts: int, error: str) -> Hold:
    """Return that a consumer gave an event up, of which no letter was found in its queues."""
    key = f"{hold.consumer}#{hold.event_id}"
    command = shlex.join(["./carride", "keys", key])
    return hold._replace(kind=Kind.GIVEN_UP, attempts=attempts, error=error, command=command)


def in_order(holds: list[Hold]) -> tuple[Hold, ...]:
    """Return what holds a ride: by kind, and then the newest first."""
    ranks = [*Kind]
    return tuple(sorted(holds, key=lambda hold: (ranks.index(hold.kind), -(hold.since_ms or 0))))
