"""Records in a table that was made for something else: its key, and its names of attributes.

The store builds a request in its own names. A layout translates the parts that are a record's: the
item, its key and its condition. A table with the store's own names needs no layout, and pays
nothing for them.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from carride_idempotency.errors import ConfigurationError
from carride_idempotency.keys import LONGEST_KEY, shortened
from carride_idempotency.record_items import ATTRIBUTE_NAMES

KEY: Final = "idempotencyKey"
EXPIRY: Final = "expiryTimestamp"
LONGEST_SORT_KEY: Final = 1_024
"""Bytes of a DynamoDB sort key. A longer key is replaced by its hash."""
SETTINGS: Final = ("partition_key", "sort_key", "sort_value", "partition_value", "expiry")
"""The settings of a `TableLayout` that are texts."""
_LONGEST_NAME: Final = 255
_ALWAYS_THERE: Final = ("status", "owner", "attempt")
"""What every record has beside its key. Other items of a shared table lack one of them."""
_NONE: Final[Mapping[str, str]] = {}
_SORT_VALUE: Final = "idempotency"
_PLACEHOLDERS: Final[Mapping[str, str]] = {
    "#s": "status",
    "#o": "owner",
    "#key": KEY,
    "#lease": "leaseExpiry",
    "#attempt": "attempt",
}
"""The names that occur in the conditions on a record."""
_PLAIN_NAMES: Final[Mapping[str, str]] = {
    KEY: "#key",
    "leaseExpiry": "#lease",
    "attempt": "#attempt",
}
_plain_name = re.compile(rf"(?<![:#\w])({'|'.join(_PLAIN_NAMES)})\b")
"""Finds a name without a placeholder in a condition. ``:attempt`` is a value."""
_placeholder = re.compile(r"#\w+")


class TableLayout:
    """The names by which a table has the key and the attributes of a record.

    A table with a sort key has either layout: each record in a partition of its own, under a
    constant sort key, or all records in one partition, each under its key as sort key. A partition
    takes 1,000 write units a second, so one for all limits the consumers together.

    A key that is a number or binary cannot hold a record's key, which is text: the consumer's name
    and the event's id. The first claim on such a table raises a StoreRefusedError, which says so.

    Args:
        partition_key: the attribute that is the table's partition key, of type string.
        sort_key: the attribute that is its sort key, of type string; None if it has none.
        sort_value: the sort key of every record. Default: ``idempotency``.
        partition_value: the partition of all records. Their keys are then sort keys.
        expiry: the attribute by which the table deletes expired items (TTL), in epoch seconds.
        names: names for other attributes of a record, such as ``{"createdAt": "recordCreatedAt"}``:
            for those that are keys of the table's indexes. The README of the library lists them.

    Raises:
        ConfigurationError: two attributes would have one name, or a setting belongs to another one
            that is missing.
    """

    def __init__(
        self,
        partition_key: str = KEY,
        sort_key: str | None = None,
        *,
        sort_value: str | None = None,
        partition_value: str | None = None,
        expiry: str = EXPIRY,
        names: Mapping[str, str] = _NONE,
    ) -> None:
        _check_settings(sort_key, sort_value, partition_value, names)
        _check_value("sort_value", sort_value, LONGEST_SORT_KEY)
        _check_value("partition_value", partition_value, LONGEST_KEY)
        self.partition_key = partition_key
        self.sort_key = sort_key
        self.partition_value = partition_value
        key = partition_key
        self._constant: dict[str, dict[str, str]] = {}
        """The part of the key that all records have in common."""
        if sort_key is not None and partition_value is not None:
            key = sort_key
            self._constant = {partition_key: {"S": partition_value}}
        elif sort_key is not None:
            self._constant = {sort_key: {"S": sort_value or _SORT_VALUE}}
        self._key = key
        own = {name: name for name in ATTRIBUTE_NAMES} | dict(names) | {KEY: key, EXPIRY: expiry}
        self._names: Final[Mapping[str, str]] = own
        _check_names([*own.values(), *self._constant], own)
        self._own_names = {name: own_name for own_name, name in own.items()}
        self.taken: Final = ATTRIBUTE_NAMES.union(self._own_names, self._constant)
        """The names of attributes that nothing else in a record's item can have."""
        self._not_ours: Final = self.taken.difference(self._own_names)
        """Names of attributes in an item that do not come from a record."""
        self._longest = LONGEST_KEY if partition_value is None else LONGEST_SORT_KEY
        self._conditions: dict[str, dict[str, Any]] = {}

    @property
    def key_names(self) -> tuple[str, ...]:
        """The attributes of the table's key: partition key, sort key."""
        if self.sort_key is None:
            return (self.partition_key,)
        return self.partition_key, self.sort_key

    def __repr__(self) -> str:
        renamed = {ours: name for ours, name in self._names.items() if ours != name}
        return f"TableLayout({', '.join(self.key_names)}; {renamed})"

    def key_of(self, key: str) -> dict[str, Any]:
        """Return the key of the item of a record; a text too long for it is replaced by a hash."""
        return {self._key: {"S": shortened(key, self._longest)}, **self._constant}

    def put(self, put: Mapping[str, Any]) -> dict[str, Any]:
        """Return the write of a record, with its condition, as this table needs it."""
        names = self._names
        item = {names.get(name, name): value for name, value in put["Item"].items()}
        item |= self.key_of(put["Item"][KEY]["S"])
        text = put["ConditionExpression"]
        condition = self._conditions.get(text)
        if condition is None:
            condition = self.named({"ConditionExpression": text})
            self._conditions[text] = condition
        return {**put, "Item": item, **condition}

    def named(self, expressions: Mapping[str, str]) -> dict[str, Any]:
        """Return expressions with the names that occur in them, as entries of a request."""
        names = {mark: self._names[name] for mark, name in _PLACEHOLDERS.items()}
        names["#partition"] = self.partition_key
        entries: dict[str, Any] = {}
        used: dict[str, str] = {}
        for kind, expression in expressions.items():
            text = _plain_name.sub(lambda found: _PLAIN_NAMES[found[1]], expression)
            entries[kind] = text
            used |= {mark: names[mark] for mark in _placeholder.findall(text)}
        return {**entries, "ExpressionAttributeNames": used}

    def own(self, item: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return a record's item in the store's own names. Attributes not of a record are kept."""
        names = self._own_names
        return {
            names.get(name, name): value
            for name, value in item.items()
            if name not in self._not_ours
        }

    def found(self, key: str, item: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return the item that DynamoDB has answered for a record's key, in the store's own names.

        Raises:
            ConfigurationError: it is the item of another key, so the table has no such sort key.
                Otherwise an event would be taken for a duplicate of another one.
        """
        wanted = self.key_of(key)
        if any(item.get(name) != value for name, value in wanted.items()):
            raise ConfigurationError(
                f"the item that was found for {key} is another key's, so the table's key is not "
                f"{' and '.join(self.key_names)}: compare the layout with what "
                "`aws dynamodb describe-table` shows"
            )
        return {**self.own(item), KEY: {"S": key}}

    def key_in(self, key: Mapping[str, Mapping[str, Any]]) -> str:
        """Return which record's key an item or its key has; an empty text if it is no record's."""
        for name, value in self._constant.items():
            if key.get(name) != value:
                return ""
        text: str = key.get(self._key, {}).get("S", "")
        return text

    def has(self, item: Mapping[str, Mapping[str, Any]]) -> bool:
        """Return whether an item of the table is a record."""
        if not self.key_in(item):
            return False
        return all(self._names[name] in item for name in _ALWAYS_THERE)


def _check_settings(
    sort_key: str | None,
    sort_value: str | None,
    partition_value: str | None,
    names: Mapping[str, str],
) -> None:
    if sort_key is None and (sort_value is not None or partition_value is not None):
        raise ConfigurationError(
            "sort_value= and partition_value= are for a table with a sort key: name it, sort_key="
        )
    if sort_value is not None and partition_value is not None:
        raise ConfigurationError(
            "give sort_value=, for records in partitions of their own, or partition_value=, for "
            "records in one partition; not both"
        )
    unknown = sorted(set(names) - (ATTRIBUTE_NAMES - {KEY, EXPIRY}))
    if unknown:
        raise ConfigurationError(
            f"names= has {', '.join(map(repr, unknown))}, but renames only a record's attributes: "
            f"{', '.join(sorted(ATTRIBUTE_NAMES - {KEY, EXPIRY}))}; the key has partition_key= and "
            "sort_key=, and the TTL expiry="
        )


def _check_value(setting: str, value: Any, longest: int) -> None:
    """Check a constant part of the key."""
    if value is None:
        return
    if not isinstance(value, str) or not 0 < len(value.encode()) <= longest:
        raise ConfigurationError(f"{setting}= has 1 to {longest:,} bytes of text: {value!r:.100}")


def _check_names(given: list[Any], own: Mapping[str, str]) -> None:
    for name in given:
        if not isinstance(name, str) or not 0 < len(name.encode()) <= _LONGEST_NAME:
            raise ConfigurationError(
                f"an attribute's name has 1 to {_LONGEST_NAME} bytes: {name!r:.100}"
            )
    for name in given:
        if given.count(name) > 1:
            raise ConfigurationError(
                f"two attributes of a record would have the name {name!r}: {_remedy(name, own)}"
            )


def _remedy(name: str, own: Mapping[str, str]) -> str:
    """Say how two attributes get different names."""
    for mine, theirs in own.items():
        if theirs == name and mine not in (KEY, EXPIRY):
            other = f"record{mine[0].upper()}{mine[1:]}"
            return f"rename the record's own, such as names={{{mine!r}: {other!r}}}"
    return "partition_key=, sort_key= and expiry= are different attributes"
