"""Says what a redrive does with a letter: a consumer's own code decides, on a copy of its record.

It is the code of this checkout, which need not be the deployed one.
"""

from collections.abc import Mapping
from typing import Any, Final

from carride.bus_entry import TOO_LARGE
from carride.decoding import FieldError
from carride_idempotency import observation
from carride_idempotency.clock import epoch_ms
from carride_idempotency.dead_letters import BEYOND_WINDOW, CONTRACT, PAYLOAD_MISMATCH
from carride_idempotency.operators.site import Verdict, Why
from carride_idempotency.policy import DAY
from carride_idempotency.record import Record
from carride_idempotency.recovery import has_crashed, released
from ops.audit.queues import json_object
from ops.bus import entry_in
from ops.dead_letters import PRODUCER_DLQ, READERS, DeadLetter
from ops.prediction import Predictor
from ops.stack import StackRef

_GOES: Final = {
    **dict.fromkeys(observation.COMMITTED, Why.RUNS),
    observation.DUPLICATE: Why.RECOGNISED,
    observation.EXPIRED: Why.EXPIRES,
}
_STAYS: Final = {
    CONTRACT: Why.BREAKS_CONTRACT,
    PAYLOAD_MISMATCH: Why.OTHER_PAYLOAD,
    BEYOND_WINDOW: Why.TOO_OLD,
}
_CLOCKS_DIFFER_MS: Final = 60_000


def verdict_by_code(
    letter: DeadLetter, record: Record | None, predictor: Predictor | None, *, release: bool = False
) -> Verdict:
    """Return what a redrive would do with a letter whose key has this record.

    ``predictor`` is that of the consumer, and None for the bus.
    """
    event = letter.event
    if not isinstance(event, Mapping) or event.get("detail") is None or "detailBytes" in event:
        return Verdict(Why.UNUSABLE, about="the event is not in it")
    if predictor is None:
        return _verdict_of_bus(event)
    return _verdict_of_consumer(as_sent(event), record, predictor, release=release)


def verdict_if_released(
    letter: DeadLetter, record: Record | None, predictor: Predictor | None
) -> Verdict:
    """Return what a redrive would do that may release the letter's key."""
    if letter.queue not in READERS and letter.queue != PRODUCER_DLQ:
        return Verdict(Why.NO_TARGET)
    return verdict_by_code(letter, record, predictor, release=True)


def as_sent(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event as a redrive sends it.

    The name of a replay that delivered it is left out: a consumer acknowledges a replay of an event
    whose letter is in the queue, but a redrive takes the letter out.
    """
    return {name: value for name, value in event.items() if name != "replay-name"}


def _verdict_of_bus(event: Mapping[str, Any]) -> Verdict:
    try:
        entry = entry_in(event)
    except FieldError as error:
        return Verdict(Why.UNUSABLE, about=f"its {error.field} cannot be read")
    if entry.size >= TOO_LARGE or json_object(entry.detail) is None:
        return Verdict(Why.REFUSED)
    return Verdict(Why.PUBLISHED)


def _verdict_of_consumer(
    event: Mapping[str, Any], record: Record | None, predictor: Predictor, *, release: bool
) -> Verdict:
    if record is None:
        predictor.start()
    else:
        # A consumer would acknowledge a letter whose key an attempt holds, and which may not come
        # again. Clocks differ.
        lease_ms = None if record.lease_ms is None else record.lease_ms + _CLOCKS_DIFFER_MS
        record = record._replace(lease_ms=lease_ms)
        predictor.start(record)
    seen = predictor.observe(event)
    if seen.outcome in _GOES:
        return Verdict(_GOES[seen.outcome])
    may_be_released = record is not None and seen.outcome != observation.BUSY
    if record is not None and may_be_released and _would_go(event, record, predictor):
        return _verdict_on_release(record, release=release)
    return Verdict(_STAYS.get(seen.reason or "", Why.HELD))


def _would_go(event: Mapping[str, Any], record: Record, predictor: Predictor) -> bool:
    """Return whether a consumer would take an event whose key was released."""
    predictor.start(released(record, "", epoch_ms(), DAY))
    return predictor.observe(event).outcome in _GOES


def _verdict_on_release(record: Record, *, release: bool) -> Verdict:
    if release:
        return Verdict(Why.RUNS, releases=True)
    if has_crashed(record, epoch_ms()):
        return Verdict(Why.USED_UP)
    return Verdict(Why.QUARANTINED)


def predictor_of(stack: StackRef, queue: str) -> Predictor | None:
    """Return the predictor of the consumer that a queue belongs to; None for the bus."""
    if queue not in READERS:
        return None
    return Predictor(stack, READERS[queue])
