"""DynamoDB writes that a handler registers, to be committed together with the record.

Keys, items and values are Python values (`str`, `int`, `Decimal`, `bytes`, `bool`, `None`, lists,
dicts, sets). Names and values are the placeholders of the expressions, as in DynamoDB's own API.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from carride_idempotency import marshalling
from carride_idempotency.errors import EffectsRejectedError
from carride_idempotency.record import Record
from carride_idempotency.record_items import ATTRIBUTE_NAMES, item_of

_MOST_KEY_ATTRIBUTES: Final = 2
_RESULTS_OWN: Final = 200
"""Bytes for the result's attribute, or for what is said in its place."""


class Put(NamedTuple):
    """Write ``item`` into ``table`` if ``condition`` holds for the item that is there."""

    table: str
    item: Mapping[str, object]
    condition: str | None = None
    values: Mapping[str, object] | None = None
    names: Mapping[str, str] | None = None


class Update(NamedTuple):
    """Apply ``expression`` to the item of ``table`` under ``key`` if ``condition`` holds for it."""

    table: str
    key: Mapping[str, object]
    expression: str
    condition: str | None = None
    values: Mapping[str, object] | None = None
    names: Mapping[str, str] | None = None


class Delete(NamedTuple):
    """Delete the item of ``table`` under ``key`` if ``condition`` holds for it."""

    table: str
    key: Mapping[str, object]
    condition: str | None = None
    values: Mapping[str, object] | None = None
    names: Mapping[str, str] | None = None


class Check(NamedTuple):
    """Write nothing; refuse the commit unless ``condition`` holds for an item."""

    table: str
    key: Mapping[str, object]
    condition: str
    values: Mapping[str, object] | None = None
    names: Mapping[str, str] | None = None


class Keep(NamedTuple):
    """Keep ``attributes`` in the record's own item, from its completion on, and the item for good.

    Record and effect are one item, so one plain write makes both. An index over
    the attributes finds them; the record's own names are not free.
    """

    attributes: Mapping[str, object]


type Action = Put | Update | Delete | Check
"""An effect on an item of its own."""

type Effect = Put | Update | Delete | Check | Keep

_EFFECTS: Final = (Put, Update, Delete, Check, Keep)


def is_effect(value: object) -> bool:
    """Return whether a value is an effect."""
    return isinstance(value, _EFFECTS)


def prepared(effect: Effect) -> Effect:
    """Return the effect converted and checked. Later changes to its values have no effect on it.

    Raises:
        EffectsRejectedError: it is not an effect, is incomplete, or holds a value or an item that
            DynamoDB cannot hold. The commit checks what the table decides, such as the type of a
            key.
    """
    if not is_effect(effect):
        kind = type(effect).__name__
        raise EffectsRejectedError(
            f"a {kind} is not an effect: use Put, Update, Delete, Check or Keep"
        )
    if isinstance(effect, Keep):
        return Keep(_kept(effect.attributes))
    _expect_text("table", effect.table)
    if effect.condition is not None:
        _expect_text("condition", effect.condition)
    values = _converted("values", effect.values) if effect.values else None
    names = _names(effect.names) if effect.names else None
    if isinstance(effect, Put):
        item = _converted("item", effect.item)
        if marshalling.is_too_large(item.wire):
            raise EffectsRejectedError(f"an item for {effect.table} has more than 400 KB")
        return effect._replace(item=item, values=values, names=names)
    key = _key(effect.key)
    if isinstance(effect, Update):
        _expect_text("expression", effect.expression)
    return effect._replace(key=key, values=values, names=names)


def require_room(record: Record, effects: Sequence[Effect]) -> None:
    """Check that a record's item can hold all that the effects keep in it.

    Raises:
        EffectsRejectedError: it cannot. Results are left out then, but nothing else can be.
    """
    kept = _kept_by(effects)
    if kept and marshalling.is_too_large(_completed_item(record) | kept):
        raise EffectsRejectedError(
            "the record's item would have more than 400 KB: keep less, or Put an item of its own"
        )


def room_for_result(record: Record, effects: Sequence[Effect], most_bytes: int) -> int:
    """Return how large a result may be that is stored beside what the effects keep."""
    kept = _kept_by(effects)
    if not kept:
        return most_bytes
    room = marshalling.room_beside(_completed_item(record) | kept)
    return max(0, min(most_bytes, room - _RESULTS_OWN))


def _kept_by(effects: Sequence[Effect]) -> dict[str, marshalling.AttributeValue]:
    kept: dict[str, marshalling.AttributeValue] = {}
    for effect in effects:
        if isinstance(effect, Keep):
            kept |= marshalling.item(effect.attributes)
    return kept


def _completed_item(record: Record) -> dict[str, Any]:
    """Return a claim's item as its completion will write it, but for the result."""
    return item_of(record._replace(externals=None, kept=None))


def action_of(effect: Action) -> dict[str, object]:
    """Return an action as an entry of a ``TransactItems`` list."""
    request: dict[str, object] = {"TableName": effect.table}
    if isinstance(effect, Put):
        request["Item"] = marshalling.item(effect.item)
    else:
        request["Key"] = marshalling.item(effect.key)
    if isinstance(effect, Update):
        request["UpdateExpression"] = effect.expression
    if effect.condition is not None:
        request["ConditionExpression"] = effect.condition
        request["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
    if effect.values:
        request["ExpressionAttributeValues"] = marshalling.item(effect.values)
    if effect.names:
        request["ExpressionAttributeNames"] = dict(effect.names)
    return {"ConditionCheck" if isinstance(effect, Check) else type(effect).__name__: request}


def _expect_text(what: str, text: object) -> None:
    if not isinstance(text, str) or not text:
        raise EffectsRejectedError(
            f"an effect's {what} is a string of at least one character, not {text!r:.100}"
        )
    marshalling.encodable(text)


def _converted(what: str, values: Mapping[str, object]) -> marshalling.Converted:
    if not isinstance(values, Mapping) or not values:
        raise EffectsRejectedError(
            f"an effect's {what} is a mapping with at least one entry, not {values!r:.100}"
        )
    return values if isinstance(values, marshalling.Converted) else marshalling.Converted(values)


def _kept(attributes: Mapping[str, object]) -> marshalling.Converted:
    kept = _converted("attributes", attributes)
    taken = ATTRIBUTE_NAMES.intersection(kept.wire)
    if taken:
        names = ", ".join(sorted(taken))
        raise EffectsRejectedError(f"the record uses the attributes {names}: choose other names")
    if marshalling.is_too_large(kept.wire):
        raise EffectsRejectedError("a record cannot keep more than 400 KB")
    return kept


def _key(values: Mapping[str, object]) -> marshalling.Converted:
    key = _converted("key", values)
    for attribute in key.wire.values():
        ((kind, content),) = attribute.items()
        if kind not in {"S", "N", "B"} or not content:
            raise EffectsRejectedError(
                f"a key holds strings, numbers or bytes, and no empty ones: {key!r:.100}"
            )
    if len(key) > _MOST_KEY_ATTRIBUTES:
        raise EffectsRejectedError(
            f"a key has a partition key and at most a sort key: {key!r:.100}"
        )
    return key


def _names(names: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(names, Mapping):
        raise EffectsRejectedError(
            f"an effect's names are a mapping of placeholders to attributes, not {names!r:.100}"
        )
    for placeholder, name in names.items():
        _expect_text("placeholder", placeholder)
        _expect_text("attribute", name)
    return dict(names)
