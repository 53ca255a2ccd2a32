"""The form of an event in the outbox, from which a pipe makes the same event again.

Pure: no I/O, no AWS.

A function commits the item in one transaction with the state that the event is about. The table's
stream and a pipe carry it to the bus. The pipe's input template can only copy strings out of a
stream record. So each attribute of the event is a string attribute, and the data is binary: the
stream writes it as base64, for CloudEvents' ``data_base64``.

AWS does not document what a template does with a missing path. So every path exists: an attribute
that the event lacks gets a value of the same meaning.
"""

from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import NAMESPACE_URL, uuid5

import msgspec

from carride.events import RideEvent, parse_event

# For operators, who can publish it again; the stream keeps it for a day.
KEPT: Final = timedelta(days=7)

_TEXTS: Final = (
    "id",
    "source",
    "type",
    "subject",
    "dataschema",
    "idempotencyid",
    "sequence",
    "partitionkey",
)
# The expiry time of an event that does not expire.
NEVER: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def outbox_item(
    event: RideEvent, *, region: str, now: datetime, kept: timedelta = KEPT
) -> dict[str, object]:
    """Return the outbox item of an event, as Python values.

    An item that is written twice is published once: its key is the event's id, and the pipe carries
    only new items, of its own region. An event without a cause becomes its own cause; without a
    trace it gets an unsampled one, which all events of its correlation share.

    Raises:
        ContractError: no consumer would accept the event.
        ValueError: the event has extensions, which the pipe's template cannot carry.
    """
    if event.extensions:
        raise ValueError(
            f"{event.id} has extensions that the outbox cannot carry: {sorted(event.extensions)}"
        )
    detail = event.to_detail()
    parse_event({"detail": detail})  # the contract, as every consumer reads it
    return {name: getattr(event, name) for name in _TEXTS} | {
        "correlationid": event.correlationid,
        "time": _timestamp(event.time),
        "causationid": event.causationid or event.id,
        "traceparent": event.traceparent or _traceparent(event),
        "expirytime": _timestamp(event.expirytime or NEVER),
        "data": msgspec.json.encode(detail["data"]),
        "region": region,
        "expiryTimestamp": int((now + kept).timestamp()),
    }


def _timestamp(time: datetime) -> str:
    """Return a time in UTC in the format of RFC 3339, which EventBridge requires."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _traceparent(event: RideEvent) -> str:
    trace = uuid5(NAMESPACE_URL, event.correlationid).hex
    parent = uuid5(NAMESPACE_URL, event.id).hex[:16]
    return f"00-{trace}-{parent}-00"
