"""The AsyncAPI 3 document of the bus: its events, and which function sends and receives them."""

from typing import Any, Final

import msgspec

import assignments
import payments
from api.openapi import added_to_ride
from carride.events import Attributes
from carride.facts import FACTS, CarRideCancelled, CarRideOverdue, Fact, RideChange
from carride.ride import Ride
from contract.schemas import DATA_BASE64, ONE_DATA, resolved

_CHANNEL: Final = "#/channels/CarRideBus"
_SCHEMAS: Final = "#/components/schemas"

_CHANGES: Final = frozenset(fact for fact in FACTS.values() if issubclass(fact, RideChange))
_SETTLED: Final[tuple[type[Fact], ...]] = (CarRideCancelled, CarRideOverdue)
_OPERATIONS: Final = {
    "changeRides": (
        "send",
        "The API books and changes rides; the simulator does the same to simulated ones.",
        _CHANGES,
    ),
    "keepRideHistory": ("receive", "The ride history keeps every event.", frozenset(FACTS.values())),
    "dispatchCars": ("receive", "Dispatch assigns and releases cars.", assignments.CONSUMED),
    "reportCars": ("send", "Dispatch reports which car a ride has.", assignments.EMITTED),
    "payRides": ("receive", "Payment reserves, takes and gives back money.", payments.CONSUMED),
    "reportPayments": ("send", "Payment reports what became of the money.", payments.EMITTED),
    "settleRides": (
        "send",
        "The reconciler cancels overdue booked rides, and has the other overdue rides settled.",
        frozenset(_SETTLED),
    ),
}
"""The functions' operations on events: direction, summary and types."""


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
                "parameters": {"bus": {"description": "Name of the bus: the stack's output `CarRideBusName`."}},
                "messages": {
                    name: {"summary": fact.__doc__, "payload": {"$ref": f"{_SCHEMAS}/{name}"}}
                    for name, fact in FACTS.items()
                },
            }
        },
        "operations": {
            operation: {
                "action": action,
                "channel": {"$ref": _CHANNEL},
                "summary": summary,
                "messages": [{"$ref": f"{_CHANNEL}/messages/{name}"} for name, fact in FACTS.items() if fact in facts],
            }
            for operation, (action, summary, facts) in _OPERATIONS.items()
        },
        "components": {"schemas": _schemas()},
    }


def _schemas() -> dict[str, Any]:
    """Return the schemas of the envelope, of the ride, and of each event in terms of both."""
    _, found = msgspec.json.schema_components([Attributes, Ride, *FACTS.values()], ref_template="{name}")
    schemas = resolved(found, found)
    event = schemas["Attributes"]
    properties = event["properties"] | {"data": {"type": "object"}, "data_base64": DATA_BASE64}
    shared = {"Event": event | {"title": "Event", "oneOf": ONE_DATA, "properties": properties}, "Ride": schemas["Ride"]}
    return shared | {
        name: {
            "allOf": [{"$ref": f"{_SCHEMAS}/Event"}],
            "properties": {"type": {"const": name}, "data": added_to_ride(schemas, name)},
        }
        for name in FACTS
    }
