"""What the desk does to events of a local stack: it sends copies of them, with faults.

On another stack, and if a target or the bus refuses an event, an `OperatorError` is raised.
"""

import json
import secrets
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from carride.bus_entry import BusEntry
from carride.events import SOURCE, RideEvent, parse_event
from carride.facts import CarRideCancelled
from carride.ride import Ride, Status
from carride.simulated_faults import FAULT_EXTENSION, STALLED_LEASE_S, Fault
from carride_idempotency import Policy
from carride_idempotency.clock import epoch_ms
from carride_idempotency.record import COMPLETED, QUARANTINED
from ops import bus, redrive
from ops.audit.evidence import COPY, AuditedConsumer
from ops.policies import POLICIES
from ops.records import StackRecords
from ops.stack import OperatorError, StackRef

_AGAIN_S: Final = STALLED_LEASE_S + Policy().clock_skew
"""After this time another delivery may take over from a stalled attempt."""
_LOOKS: Final = 5
_MOST_LOOKS_AT_COPY: Final = 60
"""One a second. Then the ride is cancelled in any case: events come in any order."""
_PROCESSED: Final = frozenset({COMPLETED, QUARANTINED})


def deliver(stack: StackRef, consumer: AuditedConsumer, body: str) -> None:
    """Put an event, in EventBridge's JSON, at a consumer's own target, past the bus."""
    _require_local(stack)
    arn = redrive.target_of(stack, f"{consumer.resources}Dlq")
    if problem := bus.send_to(stack, arn, json.loads(body)):
        raise OperatorError(f"{consumer.name}'s target {problem}")


def send(stack: StackRef, detail: Mapping[str, Any]) -> None:
    """Put an event with this detail on the bus."""
    _require_local(stack)
    entry = BusEntry(source=SOURCE, detail=json.dumps(detail), time=datetime.now(UTC))
    request = entry.to_request(stack.outputs["CarRideBusName"])
    (answer,) = stack.client("events").put_events(Entries=[request])["Entries"]
    if "ErrorCode" in answer:
        raise OperatorError(f"the bus refused the event: {answer['ErrorCode']}")


def send_copies(stack: StackRef, body: str, times: int) -> None:
    """Put copies of an event, in EventBridge's JSON, on the bus."""
    detail = json.loads(body)["detail"]
    for _ in range(times):
        send(stack, detail)


def has_expired(body: str, now: datetime) -> bool:
    """Return whether consumers drop copies of an event, in EventBridge's JSON, as expired."""
    expires = parse_event(json.loads(body)).expirytime
    return expires is not None and expires <= now


def send_with_fault(
    stack: StackRef, consumer: AuditedConsumer, body: str, fault: Fault
) -> RideEvent:
    """Send a copy of an event as that of a new ride, which meets a fault in one consumer.

    Return the copy.

    An event that has taken effect is not run again, so the fault needs a new one. A stalled attempt
    waits until another delivery has taken over; that delivery follows when the lease has ended.
    When the consumer has processed the copy, its ride is cancelled: no car and no money stay held.
    """
    event = parse_event(json.loads(body))
    data = msgspec.structs.replace(
        event.data, order_id=f"{event.subject.partition(COPY)[0]}{COPY}{secrets.token_hex(2)}"
    )
    extensions = {**event.extensions, FAULT_EXTENSION: f"{fault}@{consumer.name}"}
    copy = RideEvent.of(data, source=event.source, time=datetime.now(UTC), extensions=extensions)
    send(stack, copy.to_detail())
    again = None
    if fault is Fault.STALL:
        again = json.dumps(json.loads(body) | {"detail": copy.to_detail()})
    sent = (stack, consumer, copy, again)
    threading.Thread(target=_end, args=sent, daemon=True).start()
    return copy


def _end(stack: StackRef, consumer: AuditedConsumer, copy: RideEvent, again: str | None) -> None:
    """Deliver a copy again if it is to be taken over, and cancel its ride when it is processed."""
    key = f"{consumer.name}#{copy.idempotencyid}"
    if again is not None:
        _deliver_after_lease(stack, consumer, key, again)
    for _ in range(_MOST_LOOKS_AT_COPY):
        found = StackRecords(stack).read(key)
        if found is not None and found.status in _PROCESSED:
            break
        time.sleep(1)
    send(stack, cancellation_of(copy).to_detail())


def cancellation_of(copy: RideEvent) -> RideEvent:
    """Return the event that ends the ride of a copy: consumers give back what they hold for it."""
    ride = copy.data
    attributes = {name: getattr(ride, name) for name in Ride.__struct_fields__}
    attributes |= {"version": ride.version + 1, "status": Status.CANCELLED}
    data = CarRideCancelled(**attributes, reason="its copy has met its fault")
    return RideEvent.of(data, source=copy.source, time=datetime.now(UTC))


def _deliver_after_lease(stack: StackRef, consumer: AuditedConsumer, key: str, body: str) -> None:
    """Deliver an event again when its stalled attempt no longer holds the key."""
    for _ in range(_LOOKS):
        time.sleep(_AGAIN_S)
        found = StackRecords(stack).read(key)
        if POLICIES[consumer.name].atomic or (
            found and (found.lease_ms or 0) + Policy().clock_skew * 1000 < epoch_ms()
        ):
            break
    deliver(stack, consumer, body)


def _require_local(stack: StackRef) -> None:
    if stack.local is None:
        raise OperatorError("events are sent by hand and faults are injected on a local stack only")
