"""The outbox's wire form: an event as an item that a pipe can turn back into the same event. Pure: no I/O, no AWS.

A function commits the item in one transaction with the state that the event is about. The table's stream and a pipe
then carry it to the bus. The pipe's input template can quote strings out of a stream record, and nothing more: it makes
no object of a string, and a stream holds every number as a string. So each CloudEvents attribute is a string attribute
of its own, and the data is binary, which the stream writes as base64 and CloudEvents carries as ``data_base64``.

What a template does where a path is missing is not documented. Therefore nothing that the template names is ever
missing: an attribute that the event has not is written with the value that says the same.
"""

from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import NAMESPACE_URL, uuid5

import msgspec

from carride.events import RideEvent, parse_event

KEPT: Final = timedelta(days=7)
"""How long an item stays, for operators and for republishing it. The stream keeps it for a day."""

NEVER: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""The expiry time of an event that does not expire."""


def outbox_item(event: RideEvent, *, region: str, now: datetime, kept: timedelta = KEPT) -> dict[str, object]:
    """Return the outbox item of ``event``, as Python values.

    An item that is written twice is published once: its key is the event's id, and the pipe carries new items only.

    Args:
        event: what to publish. An event without a cause is written as its own cause; one without a trace gets an
            unsampled one, the same for all events of its correlation.
        region: where it is written; a pipe carries the events of its own region only.
        now: with a time zone.
        kept: after how long the item expires.

    Raises:
        ContractError: no reader would accept the event. Committed, it would be dead-lettered by all of its consumers.
        ValueError: the event has extensions, for which the pipe's template has no place.
    """
    if event.extensions:
        raise ValueError(f"{event.id} has extensions that the outbox cannot carry: {sorted(event.extensions)}")
    detail = event.to_detail()
    parse_event({"detail": msgspec.json.decode(msgspec.json.encode(detail))})
    return {
        "id": event.id,
        "source": event.source,
        "type": event.type,
        "subject": event.subject,
        "time": _timestamp(event.time),
        "dataschema": event.dataschema,
        "idempotencyid": event.idempotencyid,
        "sequence": event.sequence,
        "partitionkey": event.partitionkey,
        "correlationid": event.correlationid,
        "causationid": event.causationid or event.id,
        "traceparent": event.traceparent or _traceparent(event),
        "expirytime": _timestamp(event.expirytime or NEVER),
        "data": msgspec.json.encode(detail["data"]),
        "region": region,
        "expiryTimestamp": int((now + kept).timestamp()),
    }


def _timestamp(time: datetime) -> str:
    """RFC 3339 in UTC, as EventBridge asks for it."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _traceparent(event: RideEvent) -> str:
    trace, parent = (uuid5(NAMESPACE_URL, text).hex for text in (event.correlationid, event.id))
    return f"00-{trace}-{parent[:16]}-00"
