"""Published events, their copies and their deliveries, as the logs show them. No I/O."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from carride_idempotency import observation
from ops.audit.evidence import AuditedConsumer, DeadLettered
from ops.desk.words import published_text
from ops.search import Match

CRASHED: Final = "Crashed"
"""The outcome of an attempt that logged nothing: a takeover's number shows it."""
WAITING: Final = "Waiting"
"""An event without an outcome so far."""
BUS: Final = "bus"
KINDS: Final = ("distinct", "copies", "break the contract", "replayed")
"""What an event on the bus counts as; `ops.audit.ledger.Ledger` counts the same."""
DISTINCT, COPIES, BROKEN, REPLAYED = KINDS
KEPT: Final = "kept"
"""Of the contract: only events that honour it."""
LOST: Final = "lost"
"""An event that the last audit calls lost."""
ABSORBED: Final = frozenset({observation.DUPLICATE, observation.BUSY})
GROUPS: Final[Mapping[str, frozenset[str]]] = {
    "new": frozenset({observation.NEW, observation.RETRIED}),
    "takeover": frozenset({observation.TAKEOVER}),
    "duplicate": ABSORBED,
    "failed": frozenset({observation.FAILED, observation.UNPROTECTED}),
    "fenced": frozenset({observation.LOST_LEASE}),
    "dead": frozenset({observation.DEAD_LETTERED}),
    "refused": frozenset({observation.QUARANTINED}),
    "expired": frozenset({observation.EXPIRED}),
    "wrong": frozenset(
        {observation.FAILED, observation.LOST_LEASE, observation.UNPROTECTED, CRASHED}
    ),
}
"""Outcomes that are counted together."""
STUCK: Final = GROUPS["dead"] | GROUPS["refused"]
"""Outcomes of events that a consumer has given up: a refused delivery shows that an earlier one
did."""
SETTLED: Final = observation.COMMITTED | STUCK | {observation.DUPLICATE, observation.EXPIRED}
"""Outcomes after which an event waits for nothing more at a consumer."""


class Copy(NamedTuple):
    """An event on the bus. Copies of a fact share its idempotency id."""

    event_id: str
    """EventBridge's id."""
    time_ms: int
    replayed: bool


@dataclass(slots=True)
class Run:
    """One delivery to a consumer."""

    consumer: str
    outcome: str
    attempt: int
    delivery: str | None
    reason: str | None
    ended_ms: int
    duration_ms: float = 0.0
    """How long the invocation took; 0 until its report is read."""

    @property
    def began_ms(self) -> float:
        """When the invocation began, as far as its report says."""
        return self.ended_ms - self.duration_ms


@dataclass(slots=True)
class Fact:
    """A published event with its copies and deliveries.

    Its runs may be known before the event is.
    """

    id: str
    """Its idempotency id; EventBridge's id if the event breaks the contract."""
    type: str | None = None
    ride: str | None = None
    version: int | None = None
    time_ms: int = 0
    body: str = ""
    """The newest copy as EventBridge delivers it, in JSON."""
    copies: list[Copy] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    letters: dict[str, DeadLettered] = field(default_factory=dict)
    """Its dead letters, by consumer, as the last audit has read them."""
    letter_counts: Counter[str] = field(default_factory=Counter)
    """How many it has, by consumer: copies may have one each."""
    number: int = 0
    """Grows from each fact of the index to the next one."""
    named: tuple[Match, ...] = ()
    """The customer, the car and the payment that it names."""
    lost: set[str] = field(default_factory=set)
    """The consumers at which the last audit calls it lost."""
    is_looked_up: bool = False
    """Whether it was looked up in tables, queues and logs: the index does not hold it."""

    @property
    def how_published(self) -> str:
        """How often it was published, and how often replayed, in words."""
        if self.is_looked_up and not self.copies:
            return "published, in no log any more"
        return published_text(self.published, self.replayed)

    @property
    def published(self) -> int:
        """How often it was published."""
        return len(self.copies) - self.replayed

    @property
    def replayed(self) -> int:
        """How often it was replayed."""
        return sum(copy.replayed for copy in self.copies)

    def attempts(self, consumer: str) -> list[Run]:
        """Return a consumer's runs, the oldest first, with the crashes that a takeover shows."""
        found: list[Run] = []
        for run in sorted(
            (each for each in self.runs if each.consumer == consumer),
            key=lambda each: each.began_ms,
        ):
            if run.outcome == observation.TAKEOVER:
                missing = range(
                    1 + sum(each.outcome in GROUPS["wrong"] for each in found), run.attempt
                )
                # It began after the event was published, or after the attempt before it.
                since_ms = found[-1].ended_ms if found else self.time_ms
                crashed_ms = int(min(since_ms or run.began_ms, run.began_ms))
                told = (None, "it logged nothing", crashed_ms)
                found += [Run(consumer, CRASHED, number, *told) for number in missing]
            found.append(run)
        return found

    def outcome(self, consumer: AuditedConsumer) -> str | None:
        """Return the outcome that counts at a consumer.

        None if the consumer does not take the event, or if nothing is known of an event that no log
        has any more.
        """
        outcomes = [run.outcome for run in self.runs if run.consumer == consumer.name]
        for each in outcomes:
            if each in observation.COMMITTED:
                return each
        if consumer.name in self.letters:
            return observation.DEAD_LETTERED
        if outcomes:
            settled = [each for each in outcomes if each in SETTLED]
            # A refused delivery only shows that an earlier one gave the event up.
            settled.sort(key=lambda each: each in GROUPS["refused"])
            return next(iter(settled), outcomes[-1])
        if not self.copies or not consumer.takes(self.type):
            return None
        return LOST if consumer.name in self.lost else WAITING

    def is_unfinished(self, consumer: AuditedConsumer) -> bool:
        """Return whether a consumer has neither processed nor given it up; it may be lost."""
        name = consumer.name
        outcomes = {run.outcome for run in self.runs if run.consumer == name}
        if self.ride is None or name in self.letters:
            return False
        return consumer.takes(self.type) and outcomes.isdisjoint(SETTLED)

    def absorbed(self, consumer: str, outcome: str) -> int:
        """Return how many deliveries a consumer skipped, besides the one whose outcome counts."""
        skipped = sum(run.outcome in ABSORBED for run in self.runs if run.consumer == consumer)
        return skipped - (outcome in ABSORBED)
