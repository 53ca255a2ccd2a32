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
from carride_idempotency.operators.site import Verdict
from carride_idempotency.policy import DAY
from carride_idempotency.record import Record
from carride_idempotency.recovery import has_crashed, released
from ops.audit.queues import json_object
from ops.bus import entry_in
from ops.dead_letters import PRODUCER_DLQ, READERS, DeadLetter
from ops.prediction import Predictor
from ops.stack import StackRef

_PROCESSES: Final = "the consumer processes it"
_RELEASED: Final = f"its key is released, and {_PROCESSES}"
_PUBLISHED: Final = "the bus publishes it to every consumer"
_GOES: Final = {
    **dict.fromkeys(observation.COMMITTED, _PROCESSES),
    observation.DUPLICATE: "the consumer recognises it: it has taken effect",
    observation.EXPIRED: "the consumer drops it: its expirytime has passed",
}
_STAYS: Final = {
    CONTRACT: "it breaks the contract and would come back",
    PAYLOAD_MISMATCH: "another event has its idempotency id: it would come back",
    BEYOND_WINDOW: "it is older than records are kept and would come back",
}
_NO_TARGET: Final = "redrive knows no target of its queue: the queue's runbook says what to do"
_HELD_BY_ANOTHER: Final = (
    "an attempt may be running: wait until its lease has been over for a minute"
)
_CLOCKS_DIFFER_MS: Final = 60_000


def verdict_by_code(
    letter: DeadLetter, record: Record | None, predictor: Predictor | None, *, release: bool = False
) -> Verdict:
    """Return what a redrive would do with a letter whose key has this record.

    ``predictor`` is that of the consumer, and None for the bus.
    """
    event = letter.event
    if not isinstance(event, Mapping) or event.get("detail") is None or "detailBytes" in event:
        return Verdict(False, "the event is not in it")
    if predictor is None:
        return _verdict_of_bus(event)
    return _verdict_of_consumer(as_sent(event), record, predictor, release=release)


def verdict_if_released(
    letter: DeadLetter, record: Record | None, predictor: Predictor | None
) -> Verdict:
    """Return what a redrive would do that may release the letter's key."""
    if letter.queue not in READERS and letter.queue != PRODUCER_DLQ:
        return Verdict(False, _NO_TARGET)
    return verdict_by_code(letter, record, predictor, release=True)


def is_uncertain(verdict: Verdict) -> bool:
    """Return whether a letter that goes may fail again."""
    return verdict.goes and verdict.why in (_PROCESSES, _RELEASED, _PUBLISHED)


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
        return Verdict(False, f"its {error.field} cannot be read")
    if entry.size >= TOO_LARGE or json_object(entry.detail) is None:
        return Verdict(False, "the bus would refuse it")
    return Verdict(True, _PUBLISHED)


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
        return Verdict(True, _GOES[seen.outcome])
    may_be_released = record is not None and seen.outcome != observation.BUSY
    if record is not None and may_be_released and _would_go(event, record, predictor):
        return _verdict_on_release(record, release=release)
    return Verdict(False, _STAYS.get(seen.reason or "", _HELD_BY_ANOTHER))


def _would_go(event: Mapping[str, Any], record: Record, predictor: Predictor) -> bool:
    """Return whether a consumer would take an event whose key was released."""
    predictor.start(released(record, "", epoch_ms(), DAY))
    return predictor.observe(event).outcome in _GOES


def _verdict_on_release(record: Record, *, release: bool) -> Verdict:
    if release:
        return Verdict(True, _RELEASED, releases=True)
    problem = "key is quarantined"
    if has_crashed(record, epoch_ms()):
        problem = "attempts are used up"
    return Verdict(False, f"its {problem}: add --release when the cause is fixed")


def predictor_of(stack: StackRef, queue: str) -> Predictor | None:
    """Return the predictor of the consumer that a queue belongs to; None for the bus."""
    if queue not in READERS:
        return None
    return Predictor(stack, READERS[queue])
