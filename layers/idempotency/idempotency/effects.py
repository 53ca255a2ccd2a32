"""DynamoDB writes that a handler registers on its operation, to be committed together with the record.

Keys, items and values are Python values (`str`, `int`, `Decimal`, `bytes`, `bool`, `None`, lists, dicts, sets); names
and values are the placeholders of the expressions, as in DynamoDB's own API.

A ``mark`` is the name of an attribute that an effect gives to its item, and that nothing else gives it: where it is,
the effects of this operation have taken place. A store that has transactions needs none: its record says the same. Over
a store that has none, an operation that is run again is recognised by it, and its effects are not written twice.
"""

from collections.abc import Mapping
from typing import NamedTuple

from idempotency import wire


class Put(NamedTuple):
    """Write ``item`` into ``table`` if ``condition`` holds for the item that is there."""

    table: str
    item: Mapping[str, object]
    condition: str | None = None
    values: Mapping[str, object] | None = None
    names: Mapping[str, str] | None = None
    mark: str | None = None

    def action(self) -> dict[str, object]:
        """Return the entry of a ``TransactItems`` list."""
        request: dict[str, object] = {"TableName": self.table, "Item": wire.item(self.item)}
        return {"Put": _conditional(request, self.condition, self.values, self.names)}


class Update(NamedTuple):
    """Apply ``expression`` to the item of ``table`` under ``key`` if ``condition`` holds for it."""

    table: str
    key: Mapping[str, object]
    expression: str
    condition: str | None = None
    values: Mapping[str, object] | None = None
    names: Mapping[str, str] | None = None
    mark: str | None = None

    def action(self) -> dict[str, object]:
        """Return the entry of a ``TransactItems`` list."""
        request: dict[str, object] = {
            "TableName": self.table,
            "Key": wire.item(self.key),
            "UpdateExpression": self.expression,
        }
        return {"Update": _conditional(request, self.condition, self.values, self.names)}


class Delete(NamedTuple):
    """Delete the item of ``table`` under ``key`` if ``condition`` holds for it."""

    table: str
    key: Mapping[str, object]
    condition: str | None = None
    values: Mapping[str, object] | None = None
    names: Mapping[str, str] | None = None

    def action(self) -> dict[str, object]:
        """Return the entry of a ``TransactItems`` list."""
        request: dict[str, object] = {"TableName": self.table, "Key": wire.item(self.key)}
        return {"Delete": _conditional(request, self.condition, self.values, self.names)}


class Check(NamedTuple):
    """Write nothing, and refuse the commit unless ``condition`` holds for the item of ``table`` under ``key``."""

    table: str
    key: Mapping[str, object]
    condition: str
    values: Mapping[str, object] | None = None
    names: Mapping[str, str] | None = None

    def action(self) -> dict[str, object]:
        """Return the entry of a ``TransactItems`` list."""
        request: dict[str, object] = {"TableName": self.table, "Key": wire.item(self.key)}
        return {"ConditionCheck": _conditional(request, self.condition, self.values, self.names)}


type Effect = Put | Update | Delete | Check


def mark_of(effect: Effect) -> str | None:
    """Return the attribute by which the effect is known to have taken place."""
    return effect.mark if isinstance(effect, Put | Update) else None


def _conditional(
    request: dict[str, object],
    condition: str | None,
    values: Mapping[str, object] | None,
    names: Mapping[str, str] | None,
) -> dict[str, object]:
    if condition is not None:
        request["ConditionExpression"] = condition
        request["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
    if values:
        request["ExpressionAttributeValues"] = wire.item(values)
    if names:
        request["ExpressionAttributeNames"] = dict(names)
    return request
