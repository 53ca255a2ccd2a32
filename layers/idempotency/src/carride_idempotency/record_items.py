"""The form of a record in a DynamoDB table: an item in the wire format."""

from collections.abc import Mapping
from typing import Any, Final

from carride_idempotency.record import (
    QUARANTINED,
    Record,
    damaged,
    is_note_of_calls,
    status_of,
    unknown_calls,
    whole_number,
)

ATTRIBUTES: Final[tuple[tuple[str, str, Any], ...]] = (
    ("idempotencyKey", "S", ""),
    ("status", "S", ""),
    ("owner", "S", None),
    ("attempt", "N", 0),
    ("leaseExpiry", "N", None),
    ("expiryTimestamp", "N", None),
    ("fingerprint", "S", None),
    ("delivery", "S", None),
    ("region", "S", None),
    ("createdAt", "N", 0),
    ("updatedAt", "N", 0),
    ("responseData", "S", None),
    ("error", "S", None),
    ("retryAt", "N", None),
    ("deadLettered", "BOOL", False),
    ("event", "S", None),
    ("externals", "S", None),
)
"""The attribute of each of a record's fields, its type, and what an absent one is read as.

They are in the order of the fields. The revision is never stored.
"""
UNSETTLED_SINCE: Final = "unsettledSince"
"""When a record was written that waits for an operator: epoch milliseconds, as text.

Other records lack the attribute, so an index over it holds only the records to look at. A table
needs no such index.
"""
COMPARED: Final = ("status", "owner", "attempt", "leaseExpiry")
"""The attributes by which a write knows that a record is still as it was seen."""
ATTRIBUTE_NAMES: Final = frozenset({*(name for name, _, _ in ATTRIBUTES), UNSETTLED_SINCE})
_STATUS: Final = Record._fields.index("status")


def item_of(record: Record) -> dict[str, dict[str, Any]]:
    """Return the record as a stored item in the wire format. None and False are left out."""
    item: dict[str, dict[str, Any]] = dict(record.kept) if record.kept else {}
    for (name, kind, _), value in zip(ATTRIBUTES, record, strict=False):
        if value is None or value is False:
            continue
        item[name] = {kind: value if kind == "BOOL" else str(value)}
    if _waits_for_an_operator(record):
        item[UNSETTLED_SINCE] = {"S": str(record.updated_ms)}
    return item


def _waits_for_an_operator(record: Record) -> bool:
    """Return whether a record is quarantined, or intends a call of which nothing is known."""
    if record.status == QUARANTINED:
        return True
    return record.externals is not None and bool(unknown_calls(record))


def record_of(item: Mapping[str, Mapping[str, Any]]) -> Record:
    """Return a stored item as a record.

    A text of another type is read as an absent one, and a number that cannot be read makes the
    record corrupt. The decision handles both. Attributes that are not the record's are what it
    keeps.
    """
    values: list[Any] = []
    damage: dict[str, object] = {}
    for name, kind, absent in ATTRIBUTES:
        stored = item.get(name)
        if stored is None:
            value = absent
        elif kind == "N":
            value = whole_number(stored.get(kind))
            if value is None:
                value = absent
                damage[name] = stored
        else:
            value = stored.get(kind, absent)
        values.append(value)
    values[_STATUS] = status_of(values[_STATUS])
    kept = None
    if not ATTRIBUTE_NAMES.issuperset(item):
        kept = {name: value for name, value in item.items() if name not in ATTRIBUTE_NAMES}
    values.append(None)  # the revision, which is never stored
    values.append(kept)
    record = Record(*values)
    if not is_note_of_calls(record.externals):
        damage["externals"] = record.externals
    if not damage:
        return record
    return damaged(record, damage, [item.get(name) for name in COMPARED])
