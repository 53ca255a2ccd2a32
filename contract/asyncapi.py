"""The AsyncAPI 3 document of the bus: its events, and which function sends and receives them."""

from typing import Any, Final

import msgspec

import assignments
import payments
from carride.events import FACTS, Attributes, CarRideCancelled, CarRideOverdue, Fact, RideChange
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
    "reportCars": ("send", "Dispatch says which car a ride has.", assignments.EMITTED),
    "payRides": ("receive", "Payment reserves, takes and gives back money.", payments.CONSUMED),
    "reportPayments": ("send", "Payment says what became of the money.", payments.EMITTED),
    "settleRides": (
        "send",
        "The reconciler cancels booked rides that are overdue, and has the others settled.",
        frozenset(_SETTLED),
    ),
}
"""What the functions do with events: the direction, a summary, and the types."""


def document() -> dict[str, Any]:
    """Return the document, in JSON's types."""
    references = {name: {"$ref": f"#/components/messages/{name}"} for name in FACTS}
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
                "messages": references,
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
        "components": {
            "messages": {name: _message(fact) for name, fact in FACTS.items()},
            "correlationIds": {"request": {"location": "$message.payload#/correlationid"}},
            "schemas": _schemas(),
        },
    }


def _message(fact: type[Fact]) -> dict[str, Any]:
    return {
        "summary": fact.__doc__,
        "correlationId": {"$ref": "#/components/correlationIds/request"},
        "payload": {"$ref": f"{_SCHEMAS}/{fact.__name__}"},
    }


def _schemas() -> dict[str, Any]:
    """Return the envelope, the ride, and each event as the envelope with what its fact adds to the ride."""
    _, found = msgspec.json.schema_components([Attributes, Ride, *FACTS.values()], ref_template="{name}")
    schemas = resolved(found, found)
    event, ride = schemas["Attributes"], schemas["Ride"]
    shared = {
        "Event": event
        | {"title": "Event", "oneOf": ONE_DATA}
        | {"properties": event["properties"] | {"data": {"type": "object"}, "data_base64": DATA_BASE64}},
        "Ride": ride,
    }
    return shared | {name: _event(name, schemas[name], ride) for name in FACTS}


def _event(name: str, fact: dict[str, Any], ride: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = {"$ref": f"{_SCHEMAS}/Ride"}
    if added := {key: rule for key, rule in fact["properties"].items() if key not in ride["properties"]}:
        required = [key for key in fact["required"] if key in added]
        data = {"allOf": [data], "properties": added, "required": required}
    return {"allOf": [{"$ref": f"{_SCHEMAS}/Event"}], "properties": {"type": {"const": name}, "data": data}}
