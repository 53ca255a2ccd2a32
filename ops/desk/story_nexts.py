"""What comes next for a ride: by operators, callers, retries and the reconciler. No I/O."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from carride.ride import OPEN, Status
from carride_idempotency import observation
from carride_idempotency.record import FAILED, IN_PROGRESS, QUARANTINED
from ops.audit.evidence import DISPATCH, PAYMENT
from ops.desk.advice import MEND_FIRST
from ops.desk.deliveries import Delivered
from ops.desk.endings import ending_of
from ops.desk.facts import WAITING
from ops.desk.story_known import (
    COMMANDS,
    NEXT_COMMAND,
    SETTLEMENT,
    Known,
    Told,
    is_settled,
    joined,
)
from ops.text import counted, span

_MEANS: Final[Mapping[tuple[str, str], str]] = {
    (DISPATCH, "CarRideAccepted"): "assigns a car",
    (DISPATCH, "CarRideCompleted"): "releases the car",
    (DISPATCH, "CarRideCancelled"): "releases the car, if it holds one",
    (DISPATCH, "PaymentDeclined"): "releases the car",
    (DISPATCH, "CarRideOverdue"): "releases the car, if it still holds one",
    (PAYMENT, "CarAssigned"): "reserves the money",
    (PAYMENT, "CarRideCompleted"): "captures the money",
    (PAYMENT, "CarRideCancelled"): "gives the money back, if any is reserved",
    (PAYMENT, "NoCarAvailable"): "charges nothing",
    (PAYMENT, "CarRideOverdue"): "settles what it holds",
}
"""What a consumer does on a fact."""


class Next(NamedTuple):
    """What happens next."""

    icon: str
    short: str
    """In a word or two."""
    by: str
    """Whose turn it is."""
    title: str
    text: str
    due_ms: float | None = None
    command: str = ""
    """What an operator can type."""


class Expected(NamedTuple):
    """An event that is not published yet, and who is to publish it."""

    type: str
    who: str


def expected_of(known: Known, told: Sequence[Told], status: str) -> Iterator[Expected]:
    """Yield the events that are to be published next, by consumers first."""
    types = {each.fact.type for each in told}
    if SETTLEMENT in types or not told:
        return
    car = known.tables["AssignmentTable"].get("state")
    paid = known.tables["PaymentTable"].get("state")
    if "CarRideAccepted" in types and car is None and status != "cancelled":
        yield Expected("CarAssigned", DISPATCH)
    if "CarAssigned" in types and paid in (None, "completed"):
        yield Expected("PaymentAuthorized", PAYMENT)
    ended = status in ("completed", "cancelled")
    if ended and car == "assigned":
        yield Expected("CarReleased", DISPATCH)
    if status == "completed" and paid == "authorized":
        yield Expected("PaymentCaptured", PAYMENT)
    if status == "cancelled" and paid in ("authorized", "undo due"):
        yield Expected("PaymentRefunded", PAYMENT)
    kind = NEXT_COMMAND.get(Status(status)) if status in set(Status) else None
    if kind is not None:
        if _word_of(known) in _STUCK:
            yield Expected("CarRideCancelled", "staff")
        yield Expected(kind, COMMANDS[kind][1])


def nexts_of(known: Known, status: str) -> Iterator[Next]:
    """Yield what happens next: what an operator or a caller can do, and what happens by itself."""
    letters = [each for each in known.deliveries if each.has_letter]
    if letters:
        yield _after_redrive(known, letters)
    for each in known.deliveries:
        yield from _after_retry(known, each)
    if status in set(OPEN) and not is_settled(known):
        yield _after_command(known, status)
    else:
        for each in known.deliveries:
            yield from _after_delivery(known, each)
    yield from _after_reconciler(known, status)


def _after_redrive(known: Known, letters: Sequence[Delivered]) -> Next:
    """Return what a redrive of a ride's dead letters does."""
    by_type: dict[str, list[str]] = {}
    for each in letters:
        by_type.setdefault(each.fact.type or "an event", []).append(each.consumer)
    names = joined([f"{kind} at {joined(names)}" for kind, names in by_type.items()])
    frees = _frees(known, letters)
    if all(_is_settled_at(known, each) for each in letters):
        does = "The ride is settled: car and money stay as they are."
    else:
        comes_back = "If it fails again, the letter comes back."
        if len(letters) > 1:
            comes_back = "Whatever fails again comes back as a letter."
        sentences = [_does(known, each) for each in letters]
        does = f"{' '.join(dict.fromkeys(sentences))} {comes_back}"
    total = sum(each.letters for each in letters)
    again = [each.consumer for each in letters if known.has_failed_again(each)]
    if again:
        failed = f"The last redrive at {joined([*dict.fromkeys(again)])} has failed again."
        return Next(
            "wrench",
            "mend the cause",
            f"then redrive {counted(total, 'dead letter')}",
            f"if you redrive {names}",
            f"{failed} {MEND_FIRST} {frees}{does}",
        )
    return Next(
        "wrench",
        "a redrive",
        f"your decision, {counted(total, 'dead letter')}",
        f"if you redrive {names}",
        f"{frees}{does}",
    )


def _frees(known: Known, letters: Sequence[Delivered]) -> str:
    """Return which keys of letters a redrive releases first, as a sentence; empty if none."""
    held = []
    for each in letters:
        record = known.record(each)
        if record is not None and record.status == QUARANTINED:
            held.append(each)
    if not held:
        return ""
    if len(held) == len(letters):
        return "Each key is released first. " if len(letters) > 1 else "Its key is released first. "
    names = joined([f"{each.fact.type} at {each.consumer}" for each in held])
    noun = "key" if len(held) == 1 else "keys"
    verb = "is" if len(held) == 1 else "are"
    return f"The {noun} of {names} {verb} released first; the others are not quarantined. "


def _is_settled_at(known: Known, each: Delivered) -> bool:
    """Return whether an event changes nothing at its consumer, which has settled the ride."""
    return any(
        other.fact.type == SETTLEMENT and other.outcome in _PROCESSED
        for other in known.deliveries
        if other.consumer == each.consumer
    )


_PROCESSED: Final = observation.COMMITTED | {observation.DUPLICATE}


def _does(known: Known, each: Delivered) -> str:
    """Return what a consumer does with an event, as a sentence."""
    if each.consumer in {DISPATCH, PAYMENT} and _is_settled_at(known, each):
        return f"{each.consumer} leaves what it holds as it is: the ride is settled."
    does = _MEANS.get((each.consumer, each.fact.type or ""), f"processes {each.fact.type}")
    return f"{each.consumer} {does}."


def _after_retry(known: Known, each: Delivered) -> Iterator[Next]:
    record = known.record(each)
    if record is None or each.has_letter or each.outcome in observation.COMMITTED:
        return
    if record.status == FAILED:
        yield Next(
            "retry",
            "a retry",
            f"of {each.consumer}, by itself",
            f"{each.consumer} tries {each.fact.type} again",
            f"After {counted(record.attempt, 'failure')}. If it succeeds: {_does(known, each)}",
            each.retry_due_ms,
        )
    if record.status == IN_PROGRESS and record.lease_ms is not None:
        yield Next(
            "swap",
            "a lease ends",
            f"at {each.consumer}",
            f"{each.consumer}'s lease on {each.fact.type} ends",
            "Unless the attempt commits or renews it before. Another delivery then takes over.",
            float(record.lease_ms),
        )


def _after_delivery(known: Known, each: Delivered) -> Iterator[Next]:
    """Yield that a consumer processes an event whose delivery is on its way."""
    if each.outcome != WAITING or each.has_letter or known.record(each) is not None:
        return
    yield Next(
        "clock",
        "a delivery",
        f"of {each.fact.type} to {each.consumer}",
        f"when {each.fact.type} reaches {each.consumer}",
        _does(known, each),
    )


def _after_command(known: Known, status: str) -> Next:
    kind = NEXT_COMMAND[Status(status)]
    command, who = COMMANDS[kind]
    word = _word_of(known)
    if word in _STUCK:
        return Next(
            "user",
            "staff decides",
            _STUCK[word],
            f"when staff cancels it, or {command}s it",
            f"CarRideCancelled is published then, or {kind}.",
            command=f"./carride drive cancel {known.ride}",
        )
    return Next(
        "user",
        f"{who} {command}s it",
        "nobody knows when",
        f"when {who} {command}s it",
        f"{kind} is published then.",
        command=f"./carride drive {command} {known.ride}",
    )


def _word_of(known: Known) -> str:
    """Return where the ride is, in a word."""
    return ending_of([fact.type for fact, _ in known.found]).word


_STUCK: Final[Mapping[str, str]] = {
    "declined": "cancel it, or drive it unpaid",
    "unserved": "cancel it: it gets no car",
}
"""What staff can do about a ride that goes on without money or a car."""


def _after_reconciler(known: Known, status: str) -> Iterator[Next]:
    """Yield what the reconciler will do with a ride that stands still."""
    due = _overdue_at(known)
    if due is None:
        return
    # Payment may have heard of a completion of which the reconciler had not.
    is_open_again = known.tables["PaymentTable"].get("state") == "completed"
    if is_settled(known) and not is_open_again:
        return
    hours = span(known.limit / timedelta(milliseconds=1))
    if status in set(OPEN):
        frees = ""
        if known.tables["AssignmentTable"].get("state") == "assigned":
            frees += " Its car is released."
        if known.tables["PaymentTable"].get("state") == "authorized":
            frees += " Its money is given back."
        text = f"It cancels a ride to which nothing happens for {hours}.{frees}"
    else:
        text = (
            f"It settles a ride that still needs something after {hours}: payment and dispatch "
            "settle what they hold. Letters stay in their queues."
        )
    title = "if nothing happens, the reconciler acts"
    yield Next("robot", "the reconciler", "by itself", title, text, due)


def _overdue_at(known: Known) -> float | None:
    """Return from when on the reconciler, which runs every five minutes, settles the ride."""
    booking = known.tables["BookingTable"]
    since = [booking.get("changedAt", booking.get("openSince"))]
    if since == [None]:
        since = [item.get("openSince") for item in known.tables.values()]
    times = [datetime.fromisoformat(text) for text in since if isinstance(text, str)]
    if not times:
        return None
    return (min(times) + known.limit).timestamp() * 1000
