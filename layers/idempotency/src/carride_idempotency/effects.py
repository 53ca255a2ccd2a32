"""DynamoDB writes that a handler registers, to be committed together with the record.

Keys, items and values are Python values (`str`, `int`, `Decimal`, `bytes`, `bool`, `None`, lists,
dicts, sets). Names and values are the placeholders of the expressions, as in DynamoDB's own API.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from carride_idempotency import marshalling
from carride_idempotency.errors import EffectsRejectedError
from carride_idempotency.record import Record
from carride_idempotency.record_items import ATTRIBUTE_NAMES, ATTRIBUTES, item_of

MOST_ACTIONS: Final = 100
"""The most actions of one transaction, including the record's."""
_LARGEST_TRANSACTION: Final = 4 * 1024 * 1024
"""Bytes of all items together."""
_SURELY_FIT: Final = 9
"""So many items have room in one transaction beside the record's, if each has at most 400 KB."""
_LONGEST_EXPRESSION: Final = 4 * 1024
_LONGEST_KEY: Final = 2048
"""Bytes of a partition key. A sort key has half of that, but only the table knows which it is."""
_MOST_KEY_ATTRIBUTES: Final = 2
_RECORDS_KEY: Final = ATTRIBUTES[0][0]
_RECORDS_OWN: Final = 64 * 1024
"""More bytes than a completed record has beside its result and what it keeps."""
_BESIDE: Final = 4 * 1024
"""More bytes than another item of the store's has beside the result."""
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

_placeholders_in: Final = re.compile(r"[#:][A-Za-z0-9_]+").findall

_EFFECTS: Final = (Put, Update, Delete, Check, Keep)


def is_effect(value: object) -> bool:
    """Return whether a value is an effect."""
    return isinstance(value, _EFFECTS)


def prepared(effect: Effect) -> Effect:
    """Return the effect converted and checked. Later changes to its values have no effect on it.

    Raises:
        EffectsRejectedError: it is not an effect, is incomplete, holds a value or an item that
            DynamoDB cannot hold, or its expressions and their placeholders do not fit together. The
            commit checks what the table decides, such as the type of a key.
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
    texts: tuple[str | None, ...] = (effect.condition,)
    if isinstance(effect, Update):
        _expect_text("expression", effect.expression)
        texts = (effect.condition, effect.expression)
    _check_expressions(texts, tuple(names or ()), tuple(values or ()))
    if isinstance(effect, Put):
        item = _converted("item", effect.item)
        if marshalling.is_too_large(item.wire):
            raise EffectsRejectedError(f"an item for {effect.table} has more than 400 KB")
        return Put(effect.table, item, effect.condition, values, names)
    return effect._replace(key=_key(effect.key), values=values, names=names)


def require_one_transaction(record: Record, effects: Sequence[Effect], store: object) -> None:
    """Check that DynamoDB can commit all effects of an operation together with its record.

    Raises:
        EffectsRejectedError: they are too many or too large, two are on one item, or the record
            cannot hold all that it is to keep.
    """
    _require_room(record, effects)
    _require_different_items(record, effects, getattr(store, "_table", None))
    if len(effects) > _SURELY_FIT:
        _require_size(record, effects, getattr(store, "items_beside", 1))


def _require_different_items(
    record: Record, effects: Sequence[Effect], own_table: str | None
) -> None:
    """Check that no two effects are on one item, as far as that is known.

    Only its table knows which attributes of a Put's item are the key. The key of another effect on
    that table names them. Otherwise only equal items are surely one.
    """
    tables = [effect.table for effect in effects if not isinstance(effect, Keep)]
    if len(set(tables)) == len(tables) and own_table not in tables:
        return
    names_of: dict[str | None, tuple[str, ...]] = {own_table: (_RECORDS_KEY,)}
    for effect in effects:
        if not isinstance(effect, Put | Keep):
            names_of.setdefault(effect.table, tuple(effect.key))
    own_item: dict[str, marshalling.AttributeValue] = {_RECORDS_KEY: {"S": record.key}}
    places: set[object] = {_place(own_table, own_item, (_RECORDS_KEY,))}
    items_of_unknown_key: list[object] = []
    for position, effect in enumerate(effects):
        if isinstance(effect, Keep):
            continue
        if isinstance(effect, Put):
            item = marshalling.item(effect.item)
            names = names_of.get(effect.table, ())
        else:
            item = marshalling.item(effect.key)
            names = tuple(effect.key)
        if not names or not item.keys() >= set(names):
            known = (effect.table, marshalling.values(item))
            is_taken = known in items_of_unknown_key
            items_of_unknown_key.append(known)
        else:
            place = _place(effect.table, item, names)
            is_taken = place in places
            places.add(place)
        if is_taken:
            raise EffectsRejectedError(
                f"effect {position} is on an item of {effect.table} that another effect or the "
                "record itself is on, and a transaction takes one action for each item: join them "
                "to one effect, or Keep attributes in the record"
            )


def _place(
    table: str | None, item: Mapping[str, marshalling.AttributeValue], names: Sequence[str]
) -> tuple[object, ...]:
    """Return what is equal for two effects on one item: its table, and its key.

    A number may be written in several ways.
    """
    return (table, *sorted(_part_of_place(name, item[name]) for name in names))


def _part_of_place(name: str, attribute: marshalling.AttributeValue) -> tuple[str, str, object]:
    ((kind, content),) = attribute.items()
    if kind == "N":
        return (name, kind, marshalling.value(attribute))
    return (name, kind, repr(content))


def _require_size(record: Record, effects: Sequence[Effect], items_beside: int) -> None:
    """Check that one transaction can hold all effects beside the record."""
    number = sum(not isinstance(effect, Keep) for effect in effects)
    most = MOST_ACTIONS - items_beside
    if number > most:
        raise EffectsRejectedError(
            f"{number} effects are more than the {most} that one transaction takes beside the "
            "record: divide the operation"
        )
    items = _items_put(effects)
    if len(items) <= _SURELY_FIT:
        return
    own_item = _completed_item(record) | _kept_by(effects)
    least = sum(map(marshalling.least_size, (own_item, *items)))
    if least > _LARGEST_TRANSACTION:
        raise EffectsRejectedError(
            f"the effects have {least:,} bytes, and one transaction takes 4 MB: divide the "
            "operation"
        )


def _require_room(record: Record, effects: Sequence[Effect]) -> None:
    """Check that a record's item can hold all that the effects keep in it.

    Raises:
        EffectsRejectedError: it cannot. Results are left out then, but nothing else can be.
    """
    kept = _kept_by(effects)
    if not kept or marshalling.room_beside(kept) > _RECORDS_OWN:
        return
    if marshalling.is_too_large(_completed_item(record) | kept):
        raise EffectsRejectedError(
            "the record's item would have more than 400 KB: keep less, or Put an item of its own"
        )


def room_for_result(
    record: Record, effects: Sequence[Effect], most_bytes: int, store: object
) -> int:
    """Return how large a result may be that is stored beside the effects, and what they keep.

    Each item that the store writes besides may hold it.
    """
    kept = _kept_by(effects)
    rooms = [most_bytes]
    if kept:
        room = marshalling.room_beside(_completed_item(record) | kept)
        rooms.append(room - _RESULTS_OWN)
    items_beside: int = getattr(store, "items_beside", 1)
    if len(effects) > _SURELY_FIT - (items_beside - 1):
        items = [_completed_item(record) | kept, *_items_put(effects)]
        room = _LARGEST_TRANSACTION - sum(map(marshalling.most_size, items))
        room -= (items_beside - 1) * _BESIDE
        rooms.append(room // items_beside - _RESULTS_OWN)
    return max(0, min(rooms))


def _items_put(effects: Sequence[Effect]) -> list[dict[str, marshalling.AttributeValue]]:
    return [marshalling.item(effect.item) for effect in effects if isinstance(effect, Put)]


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


@lru_cache
def _check_expressions(
    texts: tuple[str | None, ...], names: tuple[str, ...], values: tuple[str, ...]
) -> None:
    """Check that expressions are not too long, and use the names and values that are given.

    Most effects of a process have the same expressions.
    """
    for text in texts:
        if text and len(text.encode()) > _LONGEST_EXPRESSION:
            raise EffectsRejectedError(
                f"an effect's expressions have at most 4 KB each, and not {len(text.encode()):,}"
            )
    used = {name for text in texts if text for name in _placeholders_in(text)}
    given = {*names, *values}
    if used == given and all(map(_is_name, names)) and not any(map(_is_name, values)):
        return
    missing = ", ".join(sorted(used - given)) or "none"
    unused = ", ".join(sorted(given - used)) or "none"
    raise EffectsRejectedError(
        "an effect's names (#name) and values (:value) are those that its expressions use: "
        f"missing: {missing}; unused: {unused:.200}"
    )


def _is_name(placeholder: str) -> bool:
    return placeholder.startswith("#")


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
    return kept


def _key(values: Mapping[str, object]) -> marshalling.Converted:
    key = _converted("key", values)
    content: Any
    for attribute in key.wire.values():
        ((kind, content),) = attribute.items()
        if kind not in {"S", "N", "B"} or not content:
            raise EffectsRejectedError(
                f"a key holds strings, numbers or bytes, and no empty ones: {key!r:.100}"
            )
        if len(content if kind == "B" else content.encode()) > _LONGEST_KEY:
            raise EffectsRejectedError(f"a key has at most 2,048 bytes: {key!r:.100}")
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
