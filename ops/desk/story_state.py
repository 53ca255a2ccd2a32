"""The sentence of state on a ride's page: what holds the ride, and why. No I/O."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from carride.facts import PaymentDeclined
from carride.ride import Status
from carride_idempotency import observation
from carride_idempotency.record import FAILED, IN_PROGRESS, QUARANTINED, Record
from ops.audit.evidence import DISPATCH, PAYMENT
from ops.desk.advice import MEND_FIRST, redrive_command
from ops.desk.deliveries import Delivered
from ops.desk.facts import LOST, WAITING
from ops.desk.story_known import (
    Known,
    Settled,
    Told,
    is_settled,
    joined,
    latest_of,
    price_of,
    settled_in,
)
from ops.desk.words import clip, clock_text, money
from ops.text import counted, span

_LATE_MS: Final = 30_000.0
"""A delivery without an outcome for so long is worth a sentence."""
_RUNS_LONG_MS: Final = 5_000.0
_UNDONE: Final[Mapping[tuple[str, str], str]] = {
    (DISPATCH, "CarRideAccepted"): "has not assigned a car",
    (DISPATCH, "CarRideCompleted"): "has not released the car",
    (DISPATCH, "CarRideCancelled"): "has not released the car, if there is one",
    (DISPATCH, "PaymentDeclined"): "has not released the car",
    (PAYMENT, "CarAssigned"): "has not reserved the {price}",
    (PAYMENT, "CarRideCompleted"): "has not captured the {price}",
    (PAYMENT, "CarRideCancelled"): "has not given the money back, if any is reserved",
}
"""What a consumer that gave a fact up has not done. Others lack no more than their record of it."""


class State(NamedTuple):
    """The sentence of state: what holds the ride, and why."""

    kind: str
    icon: str
    title: str
    text: str
    error: str
    """The newest error of whatever holds it; empty if there is none."""
    letter: Delivered | None = None
    """The dead-lettered delivery that holds it."""
    command: str = ""
    """The command that shows what a redrive of its letter would do; empty without a letter."""


def state_of(known: Known, told: Sequence[Told], status: str) -> State | None:
    """Return what holds the ride: the first of these that is so; None if all is well."""
    if known.problems:
        return State(
            "fail",
            "cross",
            "This ride is broken",
            f"The audit says: {'; '.join(map(_clause, known.problems))}.",
            "",
        )
    for find in (_lost, _given_up, _failing, _running, _late, _refused, _completed_too):
        found = find(known, told, status)
        if found is not None:
            return found
    return None


def _clause(problem: str) -> str:
    """Return what the audit says is wrong, with a subject: some problems begin with their verb."""
    return f"it {problem}" if problem.startswith(("has ", "was ")) else problem


def _given_up(known: Known, told: Sequence[Told], status: str) -> State | None:
    """Return the state of a ride with a dead letter."""
    letters = [each for each in known.deliveries if each.has_letter]
    if not letters:
        return None
    first = letters[-1]
    of_event = [each for each in letters if each.fact is first.fact]
    error = _told_apart({each.consumer: _error(each, known.record(each)) for each in of_event})
    kind = first.fact.type or "an event"
    record = known.record(first)
    total = sum(each.letters for each in letters)
    if is_settled(known):
        title = f"Settled, with {counted(total, 'dead letter')} left"
        sentences = [*_settled(known, told, first)]
    else:
        # Several consumers may have given up the same event: the title names all of them.
        consumers = joined([each.consumer for each in of_event])
        title = f"{status.capitalize()}, and {consumers} gave up {kind}"
        sentences = []
        for each in of_event:
            sentences += _undone(told, each)
    sentences += [_where(first, record), *_others(letters[:-1])]
    if known.has_failed_again(first):
        sentences.append(f"The last redrive at {first.consumer} has failed again. {MEND_FIRST}")
    return State(
        "dead",
        "mail",
        title,
        " ".join(sentences),
        error,
        letter=first,
        command=redrive_command(
            str(first.letter_queue),
            "key",
            f"{first.consumer}#{first.fact.id}",
            releases=record is not None and record.status == QUARANTINED,
        ),
    )


def _undone(told: Sequence[Told], each: Delivered) -> Iterator[str]:
    """Yield what a consumer that gave an event up has not done."""
    latest = latest_of(told)
    kind = each.fact.type or ""
    undone = _UNDONE.get((each.consumer, kind))
    if undone is None or latest is None:
        return
    price = price_of(latest.data)
    what = undone.format(price=price)
    yield f"{each.consumer} {what}."


def _where(each: Delivered, record: Record | None) -> str:
    """Return where the letters of a delivery wait, and whether anything runs by itself."""
    waits = f"{each.consumer}'s letter waits in {each.letter_queue}"
    if each.letters > 1:
        is_replayed = any(copy.replayed for copy in each.fact.copies)
        of_what = (
            "deliveries of one event and of its replay" if is_replayed else "copies of one event"
        )
        waits = f"{each.letters} letters wait in {each.letter_queue}: {of_what}"
    if record is not None and record.status == QUARANTINED:
        waits += "; its key is quarantined, so no delivery runs by itself"
    return f"{waits}."


def _others(letters: Sequence[Delivered]) -> Iterator[str]:
    """Yield which other letters of the ride there are, if there are any."""
    by_queue = Counter[str]()
    for each in letters:
        by_queue[str(each.letter_queue)] += each.letters
    if by_queue:
        where = joined([f"{count} in {queue}" for queue, count in by_queue.items()])
        yield f"The ride has {counted(by_queue.total(), 'more letter')}: {where}."


def _settled(known: Known, told: Sequence[Told], letter: Delivered) -> Iterator[str]:
    """Yield how a ride was settled whose consumers have given up an event."""
    kind = letter.fact.type
    given_up = [
        each.consumer for each in known.deliveries if each.has_letter and each.fact is letter.fact
    ]
    yield f"{kind} was published, and {joined(given_up)} gave it up."
    settled = settled_in(told)
    if settled is None:
        return  # its settlement breaks the contract
    if settled.completed is not None:
        yield _completed_and_settled(known, settled, settled.completed)
    else:
        then = "then " if settled.time_ms > letter.fact.time_ms else ""
        yield f"The reconciler {then}settled the ride as {settled.outcome}."
    yield from _money_of_settled(known, settled)


def _completed_and_settled(known: Known, settled: Settled, completed: Told) -> str:
    """Return when a ride was settled as cancelled, and when it was completed."""
    at = clock_text(settled.time_ms, known.now_ms)
    apart = span(abs(completed.fact.time_ms - settled.time_ms))
    when = "later" if settled.is_completed_later else "before"
    return (
        f"The reconciler settled the ride as {settled.outcome} at {at}; CarRideCompleted was "
        f"published {apart} {when}."
    )


def _money_of_settled(known: Known, settled: Settled) -> Iterator[str]:
    """Yield what became of the money of a settled ride."""
    paid = known.tables["PaymentTable"]
    state = paid.get("state")
    amount = "its price"
    if isinstance(paid.get("amount"), int):
        amount = money(paid["amount"], str(paid.get("currency", "")))
    if state == "captured" and settled.outcome == "cancelled":
        yield f"{amount} is captured all the same: payment gives back no money that was captured."
    elif state == "captured":
        yield f"{amount} is captured."
    elif settled.completed is None:
        return
    elif state == "completed":
        yield "payment heard of the completion first: the reconciler settles the ride once more."
    elif state in {"cancelled", "refunded", "declined"}:
        yield "Nobody pays for it."


def _completed_too(known: Known, told: Sequence[Told], _status: str) -> State | None:
    """Return the state of a ride that was settled as cancelled, and that was completed besides."""
    settled = settled_in(told)
    if settled is None or settled.completed is None:
        return None
    title = "Completed, then settled as cancelled"
    if settled.is_completed_later:
        title = "Settled as cancelled, then completed"
    happened = _completed_and_settled(known, settled, settled.completed)
    sentences = [happened, *_money_of_settled(known, settled)]
    return State("take", "robot", title, " ".join(sentences), "")


def _refused(known: Known, told: Sequence[Told], status: str) -> State | None:
    """Return the state of a ride whose money was declined, or for which no car was free."""
    if status == Status.CANCELLED or is_settled(known):
        return None
    refusals = [each for each in told if each.fact.type in ("PaymentDeclined", "NoCarAvailable")]
    if not refusals:
        return None
    refusal = refusals[-1].data
    if isinstance(refusal, PaymentDeclined):
        title = f"Payment declined: {clip(refusal.reason, 100)}"
        is_free = known.tables["AssignmentTable"].get("state") == "released"
        has_car = "The car is released. " if is_free else ""
        if status == Status.COMPLETED:
            return State("take", "card", title, "The ride was driven, and nobody pays for it.", "")
        text = f"{has_car}Staff can cancel the ride; if it is driven, nobody pays for it."
        return State("take", "card", title, text, "")
    title = f"No car: {clip(refusal.reason, 100)}" if refusal.reason else "No car was free"
    text = "dispatch does not look again. Staff can cancel the ride, and nothing is charged."
    if status == Status.COMPLETED:
        text = "The ride is completed without a car of the fleet, and nothing is charged."
    return State("take", "car", title, text, "")


class _Held(NamedTuple):
    """A delivery that is not finished, and the record of its key."""

    delivery: Delivered
    record: Record

    @property
    def consumer(self) -> str:
        return self.delivery.consumer

    @property
    def type(self) -> str:
        return self.delivery.fact.type or "an event"


def _held(known: Known, status: str) -> list[_Held]:
    """Return the deliveries whose record has a status, those of the newest event first."""
    found = []
    for _, delivered in reversed(known.found):
        for each in delivered:
            record = known.record(each)
            if record is not None and record.status == status:
                found.append(_Held(each, record))
    return found


def _named(held: Sequence[_Held]) -> str:
    """Return the consumers that hold the same event as the first one, as a subject."""
    first = held[0].delivery.fact
    return joined([each.consumer for each in held if each.delivery.fact is first])


def _have(subject: str) -> str:
    return "have" if " and " in subject else "has"


def _failing(known: Known, _told: Sequence[Told], _status: str) -> State | None:
    """Return the state of a ride with attempts that failed and come again."""
    held = [
        each for each in _held(known, FAILED) if each.delivery.outcome not in observation.COMMITTED
    ]
    if not held:
        return None
    first = held[0]
    failed = counted(first.record.attempt, "time")
    title = f"{first.consumer} failed {failed} on {first.type}"
    sentences = [f"It is tried again {_when_again(known, first.delivery)}."]
    if len(held) > 1:
        title = f"{_named(held)} failed on {first.type}"
        sentences = []
        for each in held:
            failed = counted(each.record.attempt, "time")
            again = _when_again(known, each.delivery)
            sentences.append(
                f"{each.consumer} failed {failed} on {each.type} and is tried again {again}."
            )
    text = f"{' '.join(sentences)} Nothing is lost."
    return State("take", "retry", title, text, _errors(held))


def _errors(held: Sequence[_Held]) -> str:
    """Return the newest error of each delivery, with its consumer if they differ."""
    return _told_apart({each.consumer: _error(each.delivery, each.record) for each in held})


def _told_apart(errors: Mapping[str, str]) -> str:
    """Return the errors of consumers, with their names if they differ."""
    if len(set(errors.values())) == 1:
        return next(iter(errors.values()))
    return "; ".join(f"{name}: {error}" for name, error in errors.items() if error)


def _running(known: Known, _told: Sequence[Told], _status: str) -> State | None:
    """Return the state of a ride with attempts that run for long, or have crashed."""
    crashed = []
    long = []
    for each in _held(known, IN_PROGRESS):
        lease_ms = each.record.lease_ms
        if lease_ms is not None and lease_ms < known.now_ms:
            crashed.append(each)
        elif known.now_ms - each.record.updated_ms >= _RUNS_LONG_MS:
            long.append(each)
    if crashed:
        return _crashed(known, crashed, long)
    if not long:
        return None
    first = long[0]
    names = _named(long)
    held_ms = known.now_ms - first.record.updated_ms
    title = f"{names} {_have(names)} been at {first.type} for {span(held_ms)}"
    text = f"Attempt {first.record.attempt} holds the key.{_lease(known, first.record)}"
    if len(long) > 1:
        text = " ".join(_runs(known, each) for each in long)
    return State("wait", "clock", title, text, "")


def _crashed(known: Known, crashed: Sequence[_Held], long: Sequence[_Held]) -> State:
    """Return the state of a ride with attempts that have crashed; others may run for long."""
    first = crashed[0]
    names = _named(crashed)
    title = f"{names} {_have(names)} crashed on {first.type}"
    sentences = []
    for each in crashed:
        whose = "Its lease"
        if len(crashed) > 1:
            whose = f"The lease of {each.consumer} on {each.type}"
        ended_ms = known.now_ms - (each.record.lease_ms or 0)
        sentences.append(f"{whose} ended {span(ended_ms)} ago.")
    sentences.append("The next delivery takes over.")
    sentences += [_runs(known, each) for each in long]
    return State("take", "swap", title, " ".join(sentences), "")


def _runs(known: Known, each: _Held) -> str:
    """Return how long an attempt of several has run."""
    held = span(known.now_ms - each.record.updated_ms)
    number = each.record.attempt
    begins = f"Attempt {number} of {each.consumer} has been at {each.type} for {held}."
    return begins + _lease(known, each.record)


def _lease(known: Known, record: Record) -> str:
    if record.lease_ms is None:
        return ""
    left_ms = record.lease_ms - known.now_ms
    return (
        f" Its lease ends in {span(left_ms)}, unless it renews it; then another delivery may take "
        "over."
    )


def _lost(known: Known, _told: Sequence[Told], _status: str) -> State | None:
    """Return the state of a ride with an event that the last audit calls lost."""
    for fact, delivered in known.found:
        names = [each.consumer for each in delivered if each.outcome == LOST]
        if names:
            text = (
                "The last audit has found neither its effect nor a dead letter. Nothing delivers "
                "it again by itself: a replay of its time does."
            )
            return State("fail", "cross", f"{fact.type} is lost at {joined(names)}", text, "")
    return None


def _late(known: Known, _told: Sequence[Told], _status: str) -> State | None:
    """Return the state of a ride with an event that no consumer has got for long."""
    for fact, delivered in known.found:
        late = [each.consumer for each in delivered if each.outcome == WAITING]
        if late and known.now_ms - fact.time_ms >= _LATE_MS:
            names = joined(late)
            return State(
                "wait",
                "clock",
                f"{names} {_have(names)} not heard of {fact.type}",
                f"It was published {span(known.now_ms - fact.time_ms)} ago. A delivery may wait in "
                "a queue, or an attempt has crashed without a word: the transport tries again.",
                "",
            )
    return None


def _error(each: Delivered, record: Record | None) -> str:
    """Return the newest error of a delivery."""
    if record is not None and record.error:
        return record.error
    reasons = [run.reason for run in each.counting if run.reason]
    letter = each.fact.letters.get(each.consumer)
    if reasons:
        return reasons[-1]
    return letter.reason if letter is not None else ""


def _when_again(known: Known, each: Delivered) -> str:
    if each.retry_due_ms is not None and each.retry_due_ms > known.now_ms:
        return f"in about {span(each.retry_due_ms - known.now_ms)}"
    if each.retry_due_ms is not None:
        return "now"
    return "within seconds on this machine" if not known.retries_on_aws else "by its transport"
