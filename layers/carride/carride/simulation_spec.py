"""What to simulate: the part of a simulation that the API and the simulator agree on. Pure."""

from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta, Struct

from carride.decoding import FieldError, json_name

DEFAULT_RIDES: Final = 200  # without ``rides`` and ``duration``
MOST_RIDES: Final = 100_000
LONGEST_LIFE: Final = 5  # events of a redirected ride

type Share = Annotated[float, Meta(ge=0, le=1)]
type Amount = Annotated[int, Meta(ge=0, le=100_000)] | Annotated[float, Meta(ge=0, lt=1)]
"""An integer is a number of facts; a fraction below 1 is a share of them."""


class Mode(StrEnum):
    """Where simulated rides come from."""

    RANDOM = "random"  # the seed draws each ride
    PREDEFINED = "predefined"  # the rides of `PREDEFINED` repeat; the seed affects only their ids


class Spec(Struct, frozen=True, kw_only=True, rename=json_name, forbid_unknown_fields=True):
    """What to simulate. The seed chooses the events that are late or ask for a fault.

    No event does both.

    A simulation ends by count (``rides``) or by time (``duration``). Every ride runs to its end.
    """

    mode: Mode = Mode.RANDOM
    rides: Annotated[int, Meta(ge=1, le=MOST_RIDES)] | None = None
    # Seconds to fill with rides at the ``rate``.
    duration: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    # Events a second; else as fast as the bus takes them.
    rate: Annotated[float, Meta(gt=0, le=10_000)] | None = None
    seed: Annotated[int, Meta(ge=0, le=2**31)] = 0
    duplicates: Share = 0.0  # facts that are published twice
    out_of_order: Share = 0.0  # rides in which one event overtakes the one before it
    older: Share = 0.0  # entries in the older envelope
    malformed: Amount = 0  # additional events that break the contract, each kind in turn
    late: Amount = 0  # facts that are published after their expiry time
    crashes: Amount = 0  # facts that cause a `Fault` in their consumers
    fails: Amount = 0
    poison: Amount = 0
    slow: Amount = 0

    def check_end(self) -> None:
        """Raise FieldError for a ``duration`` that comes with ``rides``, or without a ``rate``."""
        if self.duration is not None and self.rides is not None:
            raise FieldError("duration", "give either rides or a duration")
        if self.duration is not None and self.rate is None:
            raise FieldError("rate", "a duration needs a rate, in events a second")
