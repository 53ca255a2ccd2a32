"""One entry of a PutEvents request, and how EventBridge measures it. Pure: no AWS."""

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from heapq import heappop, heapreplace
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from carride.events import DETAIL_TYPE, RideEvent

if TYPE_CHECKING:
    from mypy_boto3_events.type_defs import PutEventsRequestEntryTypeDef

MOST_ENTRIES: Final = 10
"""Of a PutEvents request."""
TOO_LARGE: Final = 1_048_576
"""Bytes: the entries of a PutEvents request, or a single one, have to stay below it."""

_TIME_BYTES: Final = 14
_traceparent: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{8})([0-9a-f]{24})-([0-9a-f]{16})-[0-9a-f]([0-9a-f])").fullmatch


class BusEntry(Struct, frozen=True, kw_only=True):
    """What EventBridge is asked to put on a bus."""

    source: str
    detail: str
    """JSON, or what ought to be."""
    time: datetime
    """With a time zone."""
    detail_type: str = DETAIL_TYPE
    resources: tuple[str, ...] = ()
    traceparent: str | None = None
    """The trace that the event is part of, as W3C Trace Context writes it."""

    def __post_init__(self) -> None:
        """Refuse a time without a zone, which botocore takes for the machine's own.

        Raises:
            ValueError: the time has no zone.
        """
        if self.time.utcoffset() is None:
            raise ValueError(f"{self.time} has no time zone")

    @classmethod
    def of(cls, event: RideEvent) -> "BusEntry":
        """Return the entry for an event."""
        return cls(
            source=event.source,
            detail=msgspec.json.encode(event.to_detail()).decode(),
            time=event.time,
            traceparent=event.traceparent,
        )

    @property
    def size(self) -> int:
        """Bytes, by the formula that EventBridge documents: ``Time`` counts 14, the texts what they are in UTF-8."""
        return _TIME_BYTES + sum(map(_bytes, (self.source, self.detail_type, self.detail, *self.resources)))

    def to_request(self, bus_name: str) -> "PutEventsRequestEntryTypeDef":
        """Return the entry in PutEvents' form. A trace that is none is left out: it must not cost the event."""
        request: PutEventsRequestEntryTypeDef = {
            "EventBusName": bus_name,
            "Source": self.source,
            "DetailType": self.detail_type,
            "Detail": self.detail,
            "Time": self.time,
            "Resources": list(self.resources),
        }
        if header := xray_header(self.traceparent):
            request["TraceHeader"] = header
        return request


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


def xray_header(traceparent: str | None) -> str | None:
    """Return a W3C trace context as an X-Ray header; None where there is no valid one."""
    match = _traceparent(traceparent or "")
    if match is None:
        return None
    epoch, unique, parent, flags = match.groups()
    return f"Root=1-{epoch}-{unique};Parent={parent};Sampled={int(flags, 16) & 1}"


def pack[T](items: Sequence[T], size: Callable[[T], int], *, most: int, below: int) -> list[list[T]]:
    """Distribute items over as few batches as possible.

    In order where that takes the fewest. Else the largest first: each into the first batch that has room for it, or,
    where that takes more batches than there have to be, into the least filled one of as many as have to be. Only items
    of a size that leaves gaps in their batches (a few fill one) can take more batches than a search of all
    distributions would.

    Args:
        items: what to distribute, each smaller than ``below``.
        size: measures one item.
        most: how many items a batch takes.
        below: what the sizes in a batch have to stay below.
    """
    sizes = [size(item) for item in items]
    batches = _in_order(sizes, most, below)
    # No distribution can do with less than this many; so there is nothing to gain.
    least = max(-(-len(sizes) // most), -(-sum(sizes) // (below - 1)))
    if len(batches) > least:
        batches = min(batches, _largest_first(sizes, most, below), key=len)
    if len(batches) > least:
        batches = _evenly(sizes, least, most, below) or batches
    return [[items[index] for index in batch] for batch in batches]


def _in_order(sizes: Sequence[int], most: int, below: int) -> list[list[int]]:
    batches: list[list[int]] = []
    filled = below
    for index, size in enumerate(sizes):
        if filled + size >= below or len(batches[-1]) == most:
            batches.append([])
            filled = 0
        batches[-1].append(index)
        filled += size
    return batches


def _largest_first(sizes: Sequence[int], most: int, below: int) -> list[list[int]]:
    batches: list[list[int]] = []
    room: dict[int, int] = {}  # of the batches that are not full
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        chosen = next((number for number, left in room.items() if sizes[index] < left), len(batches))
        if chosen == len(batches):
            batches.append([])
        batches[chosen].append(index)
        room[chosen] = room.get(chosen, below) - sizes[index]
        if len(batches[chosen]) == most:
            del room[chosen]
    return batches


def _evenly(sizes: Sequence[int], number: int, most: int, below: int) -> list[list[int]] | None:
    """Return exactly so many batches that are about equally large; None where one would be too large."""
    batches: list[list[int]] = [[] for _ in range(number)]
    filled = [(0, batch) for batch in range(number)]  # a heap of those that are not full
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        size, batch = filled[0]
        if size + sizes[index] >= below:
            return None
        batches[batch].append(index)
        if len(batches[batch]) == most:
            heappop(filled)
        else:
            heapreplace(filled, (size + sizes[index], batch))
    return batches
