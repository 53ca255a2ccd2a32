"""The AsyncAPI 3 document of the bus: its events, and which function sends and receives them."""

from collections.abc import Collection
from typing import Any, Final

import assignments
import payments
from carride.facts import FACTS, CarRideCancelled, CarRideOverdue, Fact, RideChange
from tools.contract.schemas import schema

_CHANNEL: Final = "#/channels/CarRideBus"

_OPERATIONS: Final[dict[str, tuple[str, str, Collection[type]]]] = {
    "changeRides": (
        "send",
        "The API books and changes rides; the simulator does the same to simulated ones.",
        RideChange.__subclasses__(),
    ),
    "keepRideHistory": ("receive", "The ride history keeps every event.", FACTS.values()),
    "dispatchCars": ("receive", "Dispatch assigns and releases cars.", assignments.CONSUMED),
    "reportCars": ("send", "Dispatch reports which car a ride has.", assignments.EMITTED),
    "payRides": ("receive", "Payment reserves, takes and gives back money.", payments.CONSUMED),
    "reportPayments": ("send", "Payment reports what became of the money.", payments.EMITTED),
    "settleRides": (
        "send",
        "The reconciler cancels overdue booked rides, and has the other overdue rides settled.",
        [CarRideCancelled, CarRideOverdue],
    ),
}


def document() -> dict[str, Any]:
    """Return the document, in JSON's types."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "CarRide events",
            "version": "1.0.0",
            "description": (
                "Events of rides on an Amazon EventBridge bus. A message is the `detail` of an EventBridge event with "
                "the detail type `CarRideEvent`: a CloudEvents 1.0 event in structured JSON. Every event can arrive "
                "more than once and in any order; all copies of a fact have the same `idempotencyid`, and `sequence` "
                "numbers the changes of a ride."
            ),
        },
        "defaultContentType": "application/cloudevents+json",
        "channels": {
            "CarRideBus": {
                "address": "{bus}",
                "description": "The event bus of a stack.",
                "parameters": {
                    "bus": {"description": "Name of the bus: the stack's output `CarRideBusName`."}
                },
                "messages": {
                    name: {"summary": fact.__doc__, "payload": _payload(fact)}
                    for name, fact in FACTS.items()
                },
            }
        },
        "operations": {
            operation: {
                "action": action,
                "channel": {"$ref": _CHANNEL},
                "summary": summary,
                "messages": [
                    {"$ref": f"{_CHANNEL}/messages/{name}"}
                    for name, fact in FACTS.items()
                    if fact in facts
                ],
            }
            for operation, (action, summary, facts) in _OPERATIONS.items()
        },
    }


def _payload(fact: type[Fact]) -> dict[str, Any]:
    """Return the schema of EventBridge's registry, which is valid in AsyncAPI's later draft too, without its draft."""
    return {name: part for name, part in schema(fact).items() if name != "$schema"}
