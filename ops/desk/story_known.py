"""What is known of a ride, and what its events say. No I/O."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

import assignments
import payments
import settlement
from carride.events import SIMULATOR_SOURCE, RideEvent, parse_event
from carride.ride import Status
from carride_idempotency.record import Record
from ops.audit.evidence import COPY, DISPATCH, PAYMENT
from ops.audit.problems import Overdue, Problem
from ops.audit.queues import json_object
from ops.desk.advice import has_failed_again
from ops.desk.deliveries import Delivered
from ops.desk.facts import Fact

_EMITTERS: Final[Mapping[str, str]] = {
    **{fact.__name__: DISPATCH for fact in assignments.EMITTED},
    **{fact.__name__: PAYMENT for fact in payments.EMITTED},
}
"""Who adds a fact of a type."""
COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "CarRideCreated": ("book", "a customer"),
    "CarRideAccepted": ("accept", "staff"),
    "CarRideStarted": ("start", "staff"),
    "CarRideCompleted": ("complete", "staff"),
    "CarRideCancelled": ("cancel", "owner or staff"),
    "CarRideDestinationChanged": ("changeDestination", "staff"),
}
"""The action of the API that publishes a fact, and who may ask for it."""
NEXT_COMMAND: Final[Mapping[Status, str]] = {
    Status.REQUESTED: "CarRideAccepted",
    Status.ACCEPTED: "CarRideStarted",
    Status.STARTED: "CarRideCompleted",
}


class Who(NamedTuple):
    """Whoever caused an event."""

    icon: str
    name: str
    """A consumer, the reconciler, the simulator, a caller of the API."""
    command: str
    """The action of the API, or as what a ride was settled; empty if it was neither."""


class Known(NamedTuple):
    """What was read of a ride."""

    ride: str
    found: Sequence[tuple[Fact, Sequence[Delivered]]]
    """Its events in the order of their times, with their deliveries."""
    tables: Mapping[str, Mapping[str, Any]]
    """What `ops.records.tables_of` returns."""
    records: Mapping[str, Record]
    """By key."""
    problems: Sequence[Problem]
    """What the audit says is wrong with it."""
    overdue: Overdue | None
    """Since when it has needed something for too long, by the audit."""
    limit: timedelta
    """After this time the reconciler settles a ride that stands still."""
    retries_on_aws: bool
    """Whether Lambda's own delays between attempts apply."""
    now_ms: float

    def has_failed_again(self, each: Delivered) -> bool:
        """Return whether the last redrive of a delivery's letter has failed again."""
        redrives = each.redrives
        return redrives is not None and has_failed_again(redrives.times, self.record(each))

    @property
    def deliveries(self) -> list[Delivered]:
        """The deliveries of all events."""
        return [each for _, delivered in self.found for each in delivered]

    def record(self, each: Delivered) -> Record | None:
        """Return the record of a delivery."""
        return self.records.get(f"{each.consumer}#{each.fact.id}")


class Told(NamedTuple):
    """A fact with its content."""

    fact: Fact
    event: RideEvent

    @property
    def data(self) -> Any:
        """The fact itself."""
        return self.event.data


def told_in(facts: Iterable[Fact]) -> list[Told]:
    """Return the facts that honour the contract, with their content."""
    found = []
    for fact in facts:
        try:
            found.append(Told(fact, parse_event(json_object(fact.body) or {})))
        except ValueError:
            continue  # it has no ride, and so no story
    return found


def who_caused(told: Told) -> Who:
    """Return who caused an event: the code that emits its type, or a caller of the API."""
    kind = type(told.data).__name__
    if kind in _EMITTERS:
        return Who("cause", _EMITTERS[kind], "")
    if told.fact.ride and COPY in told.fact.ride:
        return Who("wrench", "the desk", "")
    if kind == SETTLEMENT:
        return Who("robot", "the reconciler", f"as {told.data.outcome}")
    if getattr(told.data, "reason", None) == settlement.REASON:
        return Who("robot", "the reconciler", "")
    if told.event.source == SIMULATOR_SOURCE:
        return Who("robot", "the simulator", "")
    command, name = COMMANDS.get(kind, ("", told.event.source))
    return Who("user", name, command)


def emitters_of(told: Sequence[Told]) -> dict[str, tuple[str, str]]:
    """Return the cause of each event that a consumer has emitted."""
    found = {}
    for each in told:
        emitter = _EMITTERS.get(type(each.data).__name__)
        if emitter and each.event.causationid:
            found[each.fact.id] = each.event.causationid, emitter
    return found


def begun_ms(known: Known) -> float | None:
    """Return when the ride was booked; None if its first event is not known any more."""
    booked = [fact.time_ms for fact, _ in known.found if fact.type == "CarRideCreated"]
    return min(booked, default=None)


def latest_of(told: Sequence[Told]) -> Told | None:
    """Return the newest version of the ride; facts of one version have the same."""
    return max(told, key=lambda each: each.data.version, default=None)


def joined(parts: Sequence[str]) -> str:
    """Return parts of a sentence with commas, and ``and`` before the last one."""
    *others, last = parts
    return f"{', '.join(others)} and {last}" if others else last


SETTLEMENT: Final = "CarRideOverdue"
"""The type of the fact by which the reconciler settles a ride."""


def is_settled(known: Known) -> bool:
    """Return whether the reconciler has settled a ride."""
    return any(fact.type == SETTLEMENT for fact, _ in known.found)


class Settled(NamedTuple):
    """How the reconciler has settled a ride, and whether it was completed besides."""

    outcome: str
    """``completed`` or ``cancelled``."""
    time_ms: float
    completed: Told | None
    """The completion of a ride that was settled as cancelled; None of any other ride."""

    @property
    def is_completed_later(self) -> bool:
        """Whether the completion came after the settlement."""
        return self.completed is not None and self.completed.fact.time_ms > self.time_ms


def settled_in(told: Sequence[Told]) -> Settled | None:
    """Return how a ride was settled, by its newest settlement; None if it was not."""
    settlements = [each for each in told if each.fact.type == SETTLEMENT]
    if not settlements:
        return None
    newest = max(settlements, key=lambda each: each.fact.time_ms)
    outcome = str(newest.data.outcome)
    completed = None
    if outcome == Status.CANCELLED:
        completed = next((each for each in told if each.fact.type == "CarRideCompleted"), None)
    return Settled(outcome, newest.fact.time_ms, completed)
