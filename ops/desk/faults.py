"""What the desk does to events of a local stack: deliver them again, edit and send them, and arm faults."""

import json
import secrets
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.request import urlopen

import msgspec

from carride.entry import BusEntry
from carride.events import SOURCE, RideEvent, idempotency_id, parse_event, read_json, sequence
from carride.simulation import FAULT_EXTENSION
from ops import redrive
from ops.audit.evidence import AuditedConsumer
from ops.finding import Kept
from ops.stack import OperatorError, StackRef

FAULTS: Final = {
    "kill": "kill the consumer here",
    "lose-answer": "lose the commit's answer",
    "stall": "stall past the lease",
}
"""The faults that the engine can arm, with the words on their buttons."""
_REPEATED: Final = frozenset({"subject", "partitionkey", "correlationid"})
"""Attributes that repeat the data; without them they follow from it."""
_COPY: Final = "_copy_"
_ANSWER_SECONDS: Final = 5.0


def deliver(stack: StackRef, consumer: AuditedConsumer, body: str, times: int = 1) -> None:
    """Put an event at a consumer's own target, past the bus.

    Args:
        stack: a local stack.
        consumer: who gets it.
        body: the event as EventBridge delivers it, in JSON.
        times: how often, at once.

    Raises:
        OperatorError: the stack is not a local one, or the target refused the event.
    """
    _require_local(stack)
    arn = redrive.target_of(stack, f"{consumer.resources}Dlq")
    for _ in range(times):
        if problem := redrive.send(stack, arn, json.loads(body)):
            raise OperatorError(f"{consumer.name}'s target {problem}")


def send(stack: StackRef, detail: Mapping[str, Any]) -> None:
    """Put an event with this detail on the bus.

    Raises:
        OperatorError: the stack is not a local one, or the bus refused the event.
    """
    _require_local(stack)
    entry = BusEntry(source=SOURCE, detail=json.dumps(detail), time=datetime.now(UTC))
    request = entry.to_request(stack.outputs["CarRideBusName"])
    (answer,) = stack.client("events").put_events(Entries=[request])["Entries"]
    if "ErrorCode" in answer:
        raise OperatorError(f"the bus refused the event: {answer['ErrorCode']}")


def with_fault(stack: StackRef, consumer: AuditedConsumer, body: str, fault: str) -> RideEvent:
    """Send a copy of an event as that of a new ride, which meets a fault in a consumer; return the copy.

    An event that has taken effect is not run again, so the fault needs a new one. A stalled run is frozen until another
    delivery has taken over; that delivery follows when the lease has ended.

    Raises:
        OperatorError: the stack is not a local one, the bus refused the event, or the engine the fault.
        ContractError: the event breaks the contract.
    """
    local = _require_local(stack)
    event = as_new_ride(parse_event(json.loads(body)))
    asked = {"function": f"{consumer.resources}Function", "id": event.idempotencyid, "fault": fault}
    url = f"{local.endpoint}/_engine/fault"  # the engine's own address, on this machine
    with urlopen(url, json.dumps(asked).encode(), timeout=_ANSWER_SECONDS) as answer:  # noqa: S310 - see above
        again_s = json.load(answer)["againAfterSeconds"]
    send(stack, event.to_detail())
    if again_s:
        envelope = json.loads(body) | {"detail": event.to_detail()}
        timer = threading.Timer(again_s, deliver, (stack, consumer, json.dumps(envelope)))
        timer.daemon = True
        timer.start()
    return event


def as_new_ride(event: RideEvent) -> RideEvent:
    """Return the event of a new ride that is like another event, without a simulated fault."""
    order_id = f"{event.subject.partition(_COPY)[0]}{_COPY}{secrets.token_hex(2)}"
    extensions = {name: value for name, value in event.extensions.items() if name != FAULT_EXTENSION}
    data = msgspec.structs.replace(event.data, order_id=order_id)
    return RideEvent.of(data, source=event.source, time=datetime.now(UTC), extensions=extensions)


def edited(text: str, *, derive: bool) -> dict[str, Any]:
    """Return the detail of an edited event, whether it honours the contract or not.

    Args:
        text: the detail in JSON.
        derive: whether its ids, and what else repeats its data, follow from the data.

    Raises:
        ContractError: it is no JSON.
        OperatorError: it is no object, or has no data to derive ids from.
    """
    detail = read_json(text, "detail")
    if not isinstance(detail, dict):
        raise OperatorError("the detail of an event is a JSON object")
    if not derive:
        return detail
    match detail:
        case {"type": str(fact_type), "data": {"orderID": str(order_id), "version": int(version)}}:
            fact_id = idempotency_id(order_id, fact_type, version)
        case _:
            raise OperatorError("ids follow from type, data.orderID and data.version, and one of them is missing")
    rest = {name: value for name, value in detail.items() if name not in _REPEATED}
    return rest | {"id": fact_id, "idempotencyid": fact_id, "sequence": sequence(version)}


def _require_local(stack: StackRef) -> Kept:
    if stack.local is None:
        raise OperatorError("events are sent by hand and faults are armed on a local stack only")
    return stack.local
