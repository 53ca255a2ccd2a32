"""The attributes by which a consumer's item remembers events, each named after an event's idempotency id.

The item also counts its effects: more effects than attributes mean that an event took effect twice.
"""

from typing import Final

from carride.events import RideEvent

_PREFIX: Final = "event#"


def attribute_of(event: RideEvent) -> str:
    """Return the name of an event's attribute."""
    return name_of(event.idempotencyid)


def name_of(idempotency_id: str) -> str:
    """Return the name of the attribute for an event's idempotency id."""
    return f"{_PREFIX}{idempotency_id}"


def is_attribute(name: str) -> bool:
    """Say whether an attribute stands for an event."""
    return name.startswith(_PREFIX)
