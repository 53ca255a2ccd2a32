"""Entries of a PutEvents request, their size, and their distribution over requests.

Pure: no AWS.
"""

import re
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from carride.events import DETAIL_TYPE, RideEvent

if TYPE_CHECKING:
    from mypy_boto3_events.type_defs import PutEventsRequestEntryTypeDef

MOST_ENTRIES: Final = 10  # the largest number of entries in a PutEvents request
TOO_LARGE: Final = 1_048_576  # bytes. The entries of a PutEvents request must stay below it.

_TIME_BYTES: Final = 14
_traceparent: Final = re.compile(
    r"[0-9a-f]{2}-([0-9a-f]{8})([0-9a-f]{24})-([0-9a-f]{16})-[0-9a-f]([0-9a-f])"
).fullmatch


class BusEntry(Struct, frozen=True, kw_only=True):
    """An entry to put on a bus."""

    source: str
    detail: str  # usually JSON; EventBridge refuses anything else
    time: datetime  # with a time zone
    detail_type: str = DETAIL_TYPE
    resources: tuple[str, ...] = ()
    traceparent: str | None = None  # the event's trace, in the format of W3C Trace Context

    def __post_init__(self) -> None:
        """Raise ValueError for a time without a zone: botocore would take the machine's zone."""
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
        """The size in bytes by EventBridge's formula: 14 for ``Time``, and the texts in UTF-8."""
        texts = (self.source, self.detail_type, self.detail, *self.resources)
        return _TIME_BYTES + sum(len(text.encode(errors="surrogatepass")) for text in texts)

    def to_request(self, bus_name: str) -> "PutEventsRequestEntryTypeDef":
        """Return the entry in PutEvents' form, without a trace if the trace is invalid."""
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


def xray_header(traceparent: str | None) -> str | None:
    """Return a W3C trace context as an X-Ray header; None for an invalid one."""
    match = _traceparent(traceparent or "")
    if match is None:
        return None
    epoch, unique, parent, flags = match.groups()
    return f"Root=1-{epoch}-{unique};Parent={parent};Sampled={int(flags, 16) & 1}"


def pack[T](
    items: Iterable[T], size: Callable[[T], int], *, most: int, below: int
) -> list[list[T]]:
    """Distribute items in order over batches of at most ``most`` items and a size below ``below``.

    An item of that size or more gets a batch of its own.
    """
    batches: list[list[T]] = []
    filled = below
    for item in items:
        own = size(item)
        filled += own
        if filled >= below or len(batches[-1]) == most:
            batches.append([])
            filled = own
        batches[-1].append(item)
    return batches
