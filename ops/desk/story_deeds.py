"""Who did what to a ride: callers, consumers and operators. No I/O."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from carride_idempotency import observation
from ops.audit.evidence import DISPATCH, PAYMENT
from ops.desk.changes import TRIALS
from ops.desk.deliveries import Delivered, began_ms
from ops.desk.facts import CRASHED
from ops.desk.story_known import Known, Told, price_of, settled_in, who_caused
from ops.desk.words import clip, money


class Deed(NamedTuple):
    """What somebody did."""

    time_ms: float
    icon: str
    who: str
    what: str
    more: str = ""


def deeds_of_facts(told: Sequence[Told]) -> Iterator[Deed]:
    """Yield what each fact says that somebody did."""
    settled = settled_in(told)
    for each in told:
        who = who_caused(each)
        what, more = _did(each.data)
        if settled is not None and settled.is_completed_later and each == settled.completed:
            more = f"after it was settled as {settled.outcome}"
        icon = _DEED_ICONS.get(who.name, who.icon)
        yield Deed(each.fact.time_ms, icon, who.name, what, clip(more))


_DEED_ICONS: Final[Mapping[str, str]] = {DISPATCH: "car", PAYMENT: "card"}


def _did(data: Any) -> tuple[str, str]:
    """Return what a fact says that was done, and its details."""
    kind = type(data).__name__
    if kind in _DID:
        return _DID[kind](data)
    return f"{kind.removeprefix('CarRide').lower()} it", ""


def _amount(data: Any) -> str:
    return money(data.amount, data.currency)


_DID: Final[Mapping[str, Callable[[Any], tuple[str, str]]]] = {
    "CarRideCreated": lambda ride: (
        "booked it",
        f"{ride.pickup} → {ride.destination}, {price_of(ride)}",
    ),
    "CarRideDestinationChanged": lambda ride: (
        "changed where it goes",
        f"{ride.previous_destination} → {ride.destination}, {price_of(ride)}",
    ),
    "CarRideCancelled": lambda ride: ("cancelled it", ride.reason),
    "CarAssigned": lambda ride: (f"assigned {ride.car_id}", ""),
    "CarReleased": lambda ride: (f"released {ride.car_id}", ""),
    "NoCarAvailable": lambda ride: ("found no car", ride.reason or ""),
    "PaymentAuthorized": lambda ride: (f"reserved {_amount(ride)}", ride.payment_id),
    "PaymentDeclined": lambda ride: (f"could not reserve {_amount(ride)}", ride.reason),
    "PaymentCaptured": lambda ride: (f"captured {_amount(ride)}", ride.payment_id),
    "PaymentRefunded": lambda ride: (f"gave {_amount(ride)} back", ride.payment_id),
    "CarRideOverdue": lambda ride: (f"settled it as {ride.outcome}", ""),
}
"""What somebody did, and its details, by the type of the fact that says so."""


def deeds_of_consumers(known: Known) -> Iterator[Deed]:
    """Yield what consumers did that is no event: takeovers, fenced writes, what was given up."""
    for each in known.deliveries:
        for run in each.counting:
            what = _UNUSUAL.get(run.outcome)
            if what is not None:
                did = what[0].format(each.fact.type)
                if run.outcome == observation.TAKEOVER:
                    did += _taken_from(each)
                yield Deed(began_ms(each.fact, run), what[1], each.consumer, did)
        replays = [copy for copy in each.fact.copies if copy.replayed]
        if replays and each is next(iter(known.deliveries), None):
            yield Deed(
                replays[-1].time_ms, "replay", "a replay", f"delivered {each.fact.type} again"
            )


_UNUSUAL: Final[Mapping[str, tuple[str, str]]] = {
    observation.TAKEOVER: ("took {} over", "swap"),
    observation.LOST_LEASE: ("came late with {}: its write was fenced off", "shield"),
    observation.FAILED: ("failed on {}", "cross"),
    observation.DEAD_LETTERED: ("gave {} up, and put it into its dead-letter queue", "mail"),
    observation.EXPIRED: ("dropped {}: its expiry time had passed", "clock"),
}
"""What an outcome says that a consumer did, with an icon."""


def _taken_from(each: Delivered) -> str:
    """Return from which attempt a delivery has taken an event over."""
    outcomes = {run.outcome for run in each.counting}
    if observation.LOST_LEASE in outcomes:
        return " from an attempt that had stalled past its lease"
    if CRASHED in outcomes:
        return " from an attempt that had crashed"
    return " from an attempt that had not ended"


def deeds_of_operators(known: Known) -> Iterator[Deed]:
    """Yield what operators did, by the log of changes."""
    types = {fact.id: fact.type for fact, _ in known.found}
    for change in known.changes:
        plan = f"plan {change.plan}" if change.plan else ""
        parts = [plan, f"it failed: {change.error}" if change.error else ""]
        more = "; ".join(filter(None, parts))
        if change.verb == "release" and change.key:
            what = _named_key(change.key, types)
            yield Deed(change.time_ms, "wrench", "an operator", f"released the key of {what}", more)
            continue
        sent = [each for each in change.sent if each.key.partition("#")[2] in types]
        for each in sent:
            did = f"redrove {_named_key(each.key, types)}"
            frees = "its key was released" if each.releases else ""
            told = "; ".join(filter(None, [more, frees, TRIALS.get(each.trial, "")]))
            yield Deed(change.time_ms, "wrench", "an operator", did, told)
        if not sent:
            yield Deed(change.time_ms, "wrench", "an operator", f"ran {change.words}", more)


def _named_key(key: str, types: Mapping[str, str | None]) -> str:
    """Return a key as its event and its consumer."""
    consumer, _, name = key.partition("#")
    return f"{types.get(name) or name} at {consumer}"
