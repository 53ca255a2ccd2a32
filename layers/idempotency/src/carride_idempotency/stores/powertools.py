"""Shares claims with AWS Lambda Powertools, so that a consumer migrates while it runs.

Until a date, each claim is one transaction on both tables. Whoever claims first, the other one
finds the claim; whoever completes first, the other one answers a duplicate. What each write does
to the item of Powertools, and on which condition::

    our write            the item of Powertools          on condition that it
    claim, new key       INPROGRESS, ours                is absent, or COMPLETED and expired
    claim of a known key INPROGRESS, ours                the same; or is INPROGRESS and still ours
    takeover from them   INPROGRESS, ours                is still as it was found
    heartbeat            INPROGRESS, ours, longer        is INPROGRESS and still ours
    commit               COMPLETED, with the result      is INPROGRESS and still ours
    atomic commit        COMPLETED, with the result      as for a claim
    failure              deleted                         is still ours; otherwise it is left
    quarantine           INPROGRESS without an end       is still ours; otherwise it is left

An item is *ours* by an attribute with the owner token, which Powertools never writes. If its item
refuses a write, that is answered as a record: COMPLETED is kept as our own record from then on, and
INPROGRESS is a claim that another attempt holds.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from carride_idempotency.clock import Clock, epoch_ms, to_ms
from carride_idempotency.errors import (
    ConfigurationError,
    StoreUnavailableError,
    UndecodableResultError,
)
from carride_idempotency.keys import LETTER
from carride_idempotency.policy import DAY, LONGEST_LEASE_MS
from carride_idempotency.record import (
    COMPLETED,
    FAILED,
    IN_PROGRESS,
    LATEST_MS,
    NO_RESULT,
    Record,
    compared_where_damaged,
    status_of,
)
from carride_idempotency.stores import codec
from carride_idempotency.stores.dynamodb import (
    ABSENT,
    BesideRefusedError,
    Condition,
    DynamoDBStore,
    Item,
    check_key,
    owned_by,
    still_as,
)

if TYPE_CHECKING:
    from carride_idempotency.effects import Effect

THEIRS: Final = "powertools"
"""The owner of a record that stands for an item of Powertools."""
_OURS: Final = "idempotencyOwner"
"""The attribute of their item with the token of our attempt."""
_THEIR_STATUS: Final = "INPROGRESS"
_MARGIN_MS: Final = 2_000
"""How much later than our lease their claim ends, because clocks differ."""
_SURELY_FITS: Final = 1024
"""Bytes of a text for which every item has room."""
_ESCAPED: Final = re.compile("%(25|23|u[0-9A-F]{4})")


def as_text(key: str | list[str]) -> object:
    """Return what JMESPath has found: a text, or a list of texts for a composite key."""
    return key


class PowertoolsRecords:
    """The records that Powertools has written before, or still writes, in a DynamoDB table.

    The other names are those of its `DynamoDBPersistenceLayer`, with the same defaults.

    Args:
        table: the name or ARN of its table.
        prefixes: what its keys begin with, for each consumer (``billing``) or operation
            (``billing/charge``): its ``key_prefix``, or
            ``<name of the Lambda function>.<module>.<qualified name of the decorated function>``.
        until: when the last of its records that matter has expired. From then on its table is
            neither read nor written.
        data: returns what its ``event_key_jmespath`` finds, from our key as text, or from a list of
            texts if the key is composite. ``data=int`` if it finds a number. Default: as it is.
        hash_function: the name of its hash.
        key_attr, sort_key_attr, static_pk_value: the attributes of its key.
        expiry_attr, in_progress_expiry_attr, status_attr, data_attr: its other attributes.
    """

    def __init__(
        self,
        table: str,
        prefixes: Mapping[str, str],
        *,
        until: datetime,
        data: Callable[[Any], object] = as_text,
        hash_function: str = "md5",
        key_attr: str = "id",
        sort_key_attr: str | None = None,
        static_pk_value: str | None = None,
        expiry_attr: str = "expiration",
        in_progress_expiry_attr: str = "in_progress_expiration",
        status_attr: str = "status",
        data_attr: str = "data",
    ) -> None:
        if not isinstance(prefixes, Mapping) or not prefixes:
            raise ConfigurationError(
                "prefixes= is a mapping such as {'billing': 'billing-function.app.handler'}: "
                "Powertools' keys begin with a name that this library cannot know"
            )
        if not isinstance(until, datetime) or until.tzinfo is None:
            raise ConfigurationError(
                "until= is a datetime with a time zone, when Powertools' last record has expired"
            )
        if sort_key_attr is not None and static_pk_value is None:
            raise ConfigurationError(
                "with sort_key_attr= give static_pk_value=: Powertools' default is "
                "'idempotency#<name of the Lambda function>'"
            )
        self.table = table
        self.key_attr = key_attr
        self.expiry_attr = expiry_attr
        self.lease_attr = in_progress_expiry_attr
        self.status_attr = status_attr
        self.data_attr = data_attr
        self._prefixes = dict(prefixes)
        self._until_ms = to_ms(until)
        self._data = data
        self._hash = hash_function
        self._sort_key_attr = sort_key_attr
        self._static_pk_value = static_pk_value

    @property
    def store_class(self) -> type[DynamoDBStore]:
        """The store that shares claims with these records."""
        return MigratingStore

    def key_of(self, key: str, now_ms: int) -> Mapping[str, Mapping[str, Any]] | None:
        """Return the key of their item for the key of a record; None if there is no such item.

        Raises:
            ConfigurationError: the key is so long that only its hash is known.
        """
        name, _, text = key.partition("#")
        prefix = self._prefixes.get(name, self._prefixes.get(name.partition("/")[0]))
        if prefix is None or now_ms >= self._until_ms or LETTER in key:
            return None
        if text.startswith("%sha256:"):
            raise ConfigurationError(
                f"{key} stands for a key of more than 2,048 bytes, whose record in Powertools "
                "cannot be found: drain this consumer before the switch"
            )
        return self._wire(f"{prefix}#{self._hashed(text)}")

    def _hashed(self, text: str) -> str:
        parts = [_ESCAPED.sub(_unescaped, part) for part in text.split("#")]
        if len(parts) == 1:
            data = self._data(parts[0])
        else:  # after the only part of a composite key stands a "#"
            data = self._data([part for part in parts if part])
        written = json.dumps(data, sort_keys=True).encode()
        return hashlib.new(self._hash, written, usedforsecurity=False).hexdigest()

    def _wire(self, name: str) -> Item:
        if self._sort_key_attr is None:
            return {self.key_attr: {"S": name}}
        return {self.key_attr: {"S": self._static_pk_value}, self._sort_key_attr: {"S": name}}


def _unescaped(found: re.Match[str]) -> str:
    code = found[1]
    if code.startswith("u"):
        return chr(int(code[1:], 16))
    return "%" if code == "25" else "#"


class _Seen(NamedTuple):
    """The revision of a record that stands for their claim: what was read in both places."""

    ours: list[Any] | None
    """Status, owner, attempt and lease of our own record, if there is one."""
    attribute: str
    """The attribute of their item that says when their claim ends."""
    end: str
    """Empty if the item does not say it in a number."""


def _their_claim(seen: Record) -> _Seen | None:
    """Return the claim of Powertools that a record stands for; None if it is our own record."""
    if seen.revision is None or compared_where_damaged(seen) is not None:
        return None
    return _Seen(*json.loads(seen.revision))


class MigratingStore(DynamoDBStore):
    """A DynamoDBStore that shares the claims of its keys with Powertools, until a date."""

    items_beside = 2
    """The record, and the item of Powertools."""

    def __init__(
        self,
        table: str,
        *,
        before: PowertoolsRecords,
        clock: Clock = epoch_ms,
        **settings: Any,
    ) -> None:
        super().__init__(table, clock=clock, **settings)
        self._before = before
        self._clock = clock

    # ── Our three writes ──────────────────────────────────────────────────────────────────────────

    def put_if_absent(
        self, record: Record, effects: Sequence["Effect"] = (), *, until_ms: int | None = None
    ) -> Record:
        """Write ``record`` if its key is absent, here and at Powertools."""
        key = self._before.key_of(record.key, self._clock())
        if key is None or record.status == FAILED:
            return super().put_if_absent(record, effects, until_ms=until_ms)
        beside = self._claimed(key, record, self._free())
        found = self._both(record, ABSENT, key, beside, effects, until_ms=until_ms)
        if found is None:
            raise StoreUnavailableError(
                f"{record.key} was refused by a record that is deleted now; "
                "the next delivery decides"
            )
        return found

    def compare_and_swap(
        self,
        seen: Record,
        record: Record,
        effects: Sequence["Effect"] = (),
        *,
        until_ms: int | None = None,
    ) -> Record | None:
        """Write ``record`` if the record under its key is still as ``seen``, here and there."""
        key = self._before.key_of(record.key, self._clock())
        theirs = _their_claim(seen)
        ours = _own_condition(seen, theirs)
        if record.revision is not None:
            record = record._replace(revision=None)
        if key is None:
            return self._write(record, ours, effects, until_ms)
        free = self._free(seen.owner) if theirs is None else self._as_found(theirs)
        if record.status in (IN_PROGRESS, COMPLETED):
            beside = self._claimed(key, record, free)
            return self._both(record, ours, key, beside, effects, seen=seen, until_ms=until_ms)
        if theirs is None and seen.status == COMPLETED:
            free = _or_left_by(seen.owner, free)  # an operator forgets the key
        beside = self._given_up(key, record, free)
        return self._ours_first(record, ours, beside, until_ms)

    def update_if_owner(
        self, record: Record, effects: Sequence["Effect"] = (), *, until_ms: int | None = None
    ) -> Record | None:
        """Write ``record`` if its owner still holds the key, here and at Powertools."""
        key = self._before.key_of(record.key, self._clock())
        if key is None:
            return super().update_if_owner(record, effects, until_ms=until_ms)
        ours = owned_by(record)
        held = self._held(record.owner)
        if record.status in (IN_PROGRESS, COMPLETED):
            beside = self._claimed(key, record, held)
            return self._both(record, ours, key, beside, effects, seen=record, until_ms=until_ms)
        return self._ours_first(record, ours, self._given_up(key, record, held), until_ms)

    # ── Both tables ───────────────────────────────────────────────────────────────────────────────

    def _both(
        self,
        record: Record,
        ours: Condition,
        key: Item,
        beside: Mapping[str, Any],
        effects: Sequence["Effect"],
        *,
        seen: Record | None = None,
        until_ms: int | None,
    ) -> Record | None:
        """Write both or none; return our record, or the one that stands for theirs."""
        try:
            return self._write(record, ours, effects, until_ms, beside=[beside])
        except BesideRefusedError as refused:
            item = refused.item
        if item is None:
            raise StoreUnavailableError(
                f"{record.key} was refused by an item of Powertools that is deleted now; "
                "the next delivery decides"
            )
        check_key(item, key)
        if item.get(self._before.status_attr, {}).get("S") != _THEIR_STATUS:
            return self._write(self._adopted(item, record), ours, (), until_ms)
        return self._stands_for(item, record, seen)

    def _ours_first(
        self, record: Record, ours: Condition, beside: Mapping[str, Any], until_ms: int | None
    ) -> Record | None:
        """Write both; write ours alone if their item is not ours any more."""
        try:
            return self._write(record, ours, (), until_ms, beside=[beside])
        except BesideRefusedError:
            return self._write(record, ours, (), until_ms)

    def _adopted(self, item: Item, record: Record) -> Record:
        """Return what Powertools completed as our own record, with the result in our form."""
        expiry = record.expiry
        if expiry is None:
            expiry = _number(item, self._before.expiry_attr)
        return record._replace(
            status=COMPLETED,
            owner=THEIRS,
            lease_ms=None,
            expiry=expiry,
            fingerprint=None,
            delivery=None,
            updated_ms=self._clock(),
            result=_result_of(item.get(self._before.data_attr, {}).get("S")),
            error=None,
            externals=None,
            revision=None,
        )

    def _stands_for(self, item: Item, record: Record, seen: Record | None) -> Record:
        """Return a claim of Powertools as a record, with what our own record knows."""
        attribute = self._before.lease_attr
        end_ms = _number(item, attribute)
        if end_ms is None:
            attribute = self._before.expiry_attr
            end_ms = (_number(item, attribute) or 0) * 1000
        ours = None
        attempts = 0
        if seen is not None:
            ours = [str(seen.status), seen.owner, seen.attempt, seen.lease_ms]
            attempts = seen.attempt
            theirs = _their_claim(seen)
            if theirs is not None:
                ours = theirs.ours
                attempts -= 1  # `seen` is a record as made below, and counts their claim
        now_ms = self._clock()
        found = _Seen(ours, attribute, item.get(attribute, {}).get("N", ""))
        return (seen or record)._replace(
            status=IN_PROGRESS,
            owner=THEIRS,
            attempt=attempts + 1,
            lease_ms=min(end_ms, now_ms + LONGEST_LEASE_MS),
            expiry=record.expiry,
            fingerprint=None,
            delivery=None,
            region=None,
            updated_ms=now_ms,
            error=None,
            revision=json.dumps(found),
        )

    # ── Their item ────────────────────────────────────────────────────────────────────────────────

    def _claimed(self, key: Item, record: Record, condition: Condition) -> Mapping[str, Any]:
        """Return the write of their item that belongs to our claim, heartbeat or commit."""
        now_s = self._clock() // 1000
        expiry = now_s + 30 * DAY if record.expiry is None else record.expiry
        names = self._before
        item: dict[str, Any] = {
            **key,
            names.expiry_attr: {"N": str(expiry)},
            _OURS: {"S": record.owner},
        }
        if record.status == COMPLETED:
            item[names.status_attr] = {"S": COMPLETED}
            item[names.data_attr] = {"S": _data_of(record.result)}
        else:
            item[names.status_attr] = {"S": _THEIR_STATUS}
            if record.lease_ms is not None:
                item[names.lease_attr] = {"N": str(record.lease_ms + _MARGIN_MS)}
        return {"Put": {"Item": item, **self._on(condition)}}

    def _given_up(self, key: Item, record: Record, condition: Condition) -> Mapping[str, Any]:
        """Return the write of their item that belongs to our failure or quarantine."""
        if record.status == FAILED:
            return {"Delete": {"Key": key, **self._on(condition)}}
        return self._claimed(key, record, condition)

    def _free(self, owner: str | None = None) -> Condition:
        """Return the condition that a key may be claimed: nobody holds it but ``owner``."""
        now = {"N": str(self._clock() // 1000)}
        values: dict[str, Any] = {":now": now, ":held": {"S": _THEIR_STATUS}}
        text = "attribute_not_exists(#id) OR (#expiry < :now AND #status <> :held)"
        if owner is None:
            return text, values
        values[":owner"] = {"S": owner}
        return f"{text} OR (#ours = :owner AND #status = :held)", values

    def _held(self, owner: str | None) -> Condition:
        """Return the condition that our claim holds: Powertools has not taken it over."""
        values = {":owner": {"S": owner or ""}, ":held": {"S": _THEIR_STATUS}}
        return "attribute_not_exists(#id) OR (#ours = :owner AND #status = :held)", values

    def _as_found(self, theirs: _Seen) -> Condition:
        """Return the condition that their claim is still as it was found."""
        name = "#lease" if theirs.attribute == self._before.lease_attr else "#expiry"
        values = {":held": {"S": _THEIR_STATUS}}
        if not theirs.end:
            values[":number"] = {"S": "N"}
            return f"(#status = :held AND NOT attribute_type({name}, :number))", values
        values[":end"] = {"N": theirs.end}
        return f"(#status = :held AND {name} = :end)", values

    def _on(self, condition: Condition) -> dict[str, Any]:
        """Return the table, and the condition with the names that occur in it."""
        text, values = condition
        names = {
            "#id": self._before.key_attr,
            "#expiry": self._before.expiry_attr,
            "#lease": self._before.lease_attr,
            "#status": self._before.status_attr,
            "#ours": _OURS,
        }
        used = {name: attribute for name, attribute in names.items() if name in text}
        return {
            "TableName": self._before.table,
            "ConditionExpression": text,
            "ExpressionAttributeNames": used,
            "ExpressionAttributeValues": dict(values),
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }


def _own_condition(seen: Record, theirs: _Seen | None) -> Condition:
    """Return the condition on our record: as it was seen, or absent behind a claim of theirs."""
    if theirs is None:
        return still_as(seen)
    if theirs.ours is None:
        return ABSENT
    text, owner, attempt, lease_ms = theirs.ours
    ours = seen._replace(status=status_of(text), owner=owner, attempt=attempt, lease_ms=lease_ms)
    return still_as(ours)


def _or_left_by(owner: str | None, condition: Condition) -> Condition:
    """Return a condition that also holds for whatever ``owner`` has left."""
    text, values = condition
    if owner == THEIRS:
        return f"{text} OR #status = :completed", {**values, ":completed": {"S": COMPLETED}}
    return f"{text} OR #ours = :owner", {**values, ":owner": {"S": owner or ""}}


def _number(item: Item, name: str) -> int | None:
    """Return a number of their item; None if there is none that can be read."""
    text = item.get(name, {}).get("N")
    try:
        return None if text is None else min(int(float(text)), LATEST_MS)
    except (ValueError, OverflowError):
        return None


def _result_of(data: str | None) -> str:
    """Return the result that Powertools has stored, in our form."""
    if not data:
        return NO_RESULT
    try:
        return codec.encode(json.loads(data))
    except (ValueError, codec.UnencodableResultError):
        return NO_RESULT


def _data_of(result: str | None) -> str:
    """Return a result of ours as Powertools reads it: as JSON, in which other types are text.

    There is room for a text as long as ours. One that is longer, such as that of many bytes, is
    left out.
    """
    if result is None:
        return NO_RESULT
    try:
        decoded = codec.decode(result)
        text = json.dumps(decoded, default=str, ensure_ascii=False, separators=(",", ":"))
    except (UndecodableResultError, TypeError, ValueError):
        return NO_RESULT
    is_short = len(text.encode()) <= max(_SURELY_FITS, len(result.encode()))
    return text if is_short else NO_RESULT
