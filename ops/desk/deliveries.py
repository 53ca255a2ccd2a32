"""What became of an event at each consumer: its runs, its dead letters and their redrives."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from carride_idempotency import observation
from ops.audit.evidence import AuditedConsumer
from ops.dead_letters import Redrives
from ops.desk.facts import ABSORBED, Fact, Run

_NO_ATTEMPTS: Final = ABSORBED | {observation.QUARANTINED, observation.EXPIRED}
"""Outcomes of deliveries that ran nothing."""


class Delivered(NamedTuple):
    """What became of an event at a consumer."""

    fact: Fact
    consumer: str
    runs: tuple[Run, ...]
    """The oldest first, with the crashes that a takeover shows."""
    outcome: str
    letter_queue: str | None
    """The queue with its dead letter; None if it was not given up."""
    skipped: int
    retry_due_ms: float | None
    """When it is tried again; None if it is not, or nobody knows when."""
    letters: int = 0
    """How many dead letters it has: copies of an event may have one each."""
    redrives: Redrives | None = None
    """How often operators have sent its letters again; None if they have not."""

    @property
    def has_letter(self) -> bool:
        """Whether the event was given up here."""
        return self.letter_queue is not None

    @property
    def counting(self) -> list[Run]:
        """The runs that were not skipped."""
        return [run for run in self.runs if run.outcome not in ABSORBED]

    @property
    def series(self) -> list[list[Run]]:
        """The attempts, in a list for each time that they began with the first one."""
        return series_of(self.counting)


def series_of(runs: Iterable[Run]) -> list[list[Run]]:
    """Return the attempts among runs: a new list after each one that gave the event up."""
    found: list[list[Run]] = []
    for run in runs:
        if run.outcome in _NO_ATTEMPTS:
            continue
        if not found or found[-1][-1].outcome == observation.DEAD_LETTERED:
            found.append([])
        found[-1].append(run)
    return found


def deliveries_of(
    fact: Fact,
    consumers: Iterable[AuditedConsumer],
    retries: Mapping[str, float],
    redriven: Mapping[str, Redrives],
) -> list[Delivered]:
    """Return what became of an event at each consumer that takes it.

    ``retries`` are the times at which keys are tried again, ``redriven`` the redrives of keys.
    """
    found = []
    for each in consumers:
        outcome = fact.outcome(each)
        if outcome is not None:
            found.append(
                Delivered(
                    fact,
                    each.name,
                    tuple(fact.attempts(each.name)),
                    outcome,
                    _letter_queue(fact, each, outcome),
                    fact.absorbed(each.name, outcome),
                    retries.get(f"{each.name}#{fact.id}"),
                    _letters_of(fact, each, outcome),
                    redriven.get(f"{each.name}#{fact.id}"),
                )
            )
    return found


def _letters_of(fact: Fact, consumer: AuditedConsumer, outcome: str) -> int:
    """Return how many letters of a consumer an event has, as far as they were counted."""
    if _letter_queue(fact, consumer, outcome) is None:
        return 0
    return max(1, fact.letter_counts[consumer.name])


def _letter_queue(fact: Fact, consumer: AuditedConsumer, outcome: str) -> str | None:
    """Return the queue of a dead letter: as it was read, or the one that the consumer sends to."""
    if consumer.name in fact.letters:
        return fact.letters[consumer.name].queue
    if outcome == observation.DEAD_LETTERED:
        return f"{consumer.resources}Dlq"
    return None


def began_ms(fact: Fact, run: Run) -> float:
    """Return when a run began. That of a batch may begin before the event was published."""
    return max(run.began_ms, min(fact.time_ms, run.ended_ms))
