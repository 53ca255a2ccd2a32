"""How a consumer's item remembers which events took effect: one attribute for each, named after its idempotency id.

Beside them the item counts its effects, so that one which took place twice shows: more effects than attributes.
"""

from collections.abc import Iterable
from typing import Final

from carride.events import RideEvent

_PREFIX: Final = "event#"


def attribute_of(event: RideEvent) -> str:
    """Return the name of the attribute that stands for an event."""
    return f"{_PREFIX}{event.idempotencyid}"


def is_attribute(name: str) -> bool:
    """Whether an attribute of an item stands for an event."""
    return name.startswith(_PREFIX)


def facts_in(item: Iterable[str]) -> frozenset[str]:
    """Return the idempotency ids of the events that took effect in an item."""
    return frozenset(name.removeprefix(_PREFIX) for name in item if is_attribute(name))
