"""Where a ride is, by its events. No I/O."""

from collections.abc import Collection
from typing import Final, NamedTuple

_ENDS: Final = (
    ("PaymentCaptured", "paid", "new", "check"),
    ("PaymentDeclined", "declined", "take", "card"),
    ("NoCarAvailable", "unserved", "take", "car"),
    ("CarRideCancelled", "cancelled", "dup", "cross"),
    ("CarRideOverdue", "settled", "take", "robot"),
)
_ON_THE_WAY: Final = (
    ("CarRideCompleted", "completed", "pub", "clock"),
    ("CarRideStarted", "started", "pub", "clock"),
    ("CarRideAccepted", "accepted", "pub", "clock"),
    ("CarAssigned", "accepted", "pub", "clock"),
    ("PaymentAuthorized", "accepted", "pub", "clock"),
)
_ENDINGS: Final = (*_ENDS, *_ON_THE_WAY)
"""Where a ride is, by the first of these events that it has: the audit's words for its end."""
ENDED: Final = frozenset(kind for kind, *_ in _ENDS)
"""Types of events after which a ride is not open any more, as the audit counts it."""


class Ending(NamedTuple):
    """Where a ride is, in a word with its look."""

    word: str
    kind: str
    icon: str


def ending_of(types: Collection[str | None]) -> Ending:
    """Return where a ride is that has events of these types."""
    for kind, *look in _ENDINGS:
        if kind in types:
            return Ending(*look)
    return Ending("requested", "wait", "clock")
