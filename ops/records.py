"""Reads idempotency records and says what they mean; releases, settles and forgets them.

A change is a conditional write on the record as it was shown. If a delivery claims the key in
between, nothing is done.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Annotated, Any, Final, NamedTuple

from cyclopts import Parameter

from carride import history
from carride.events import idempotency_id
from carride.facts import FACTS
from carride_idempotency import NOT_DONE, Done, DynamoDBStore, Policy, StoreError, marshalling
from carride_idempotency.clock import epoch_ms
from carride_idempotency.operators.changing import (
    MUST_BE_SHOWN,
    Change,
    ChangeRefusedError,
    Planned,
    carry_out,
    plan_forget,
    plan_release,
    plan_settle,
)
from carride_idempotency.operators.explaining import Explained, is_held
from carride_idempotency.operators.explaining import explain as explain_by_limit
from carride_idempotency.record import COMPLETED, FAILED, IN_PROGRESS, STATUSES, Record
from carride_idempotency.record_items import record_of
from carride_idempotency.stores.transport import BotocoreTransport
from ops import tables
from ops.audit import reading
from ops.audit.evidence import CONSUMERS, HISTORY, MARKS, RECORD_TABLES, Named, RideItem
from ops.audit.reading import FORGOTTEN
from ops.policies import POLICIES, consumer_of, records_of
from ops.stack import OperatorError, StackRef
from ops.verbs import Plan, acts

_FIRST_VERSIONS: Final = 8
"""The versions of a ride whose records are looked up, whatever is known of the ride."""
_VERSIONS_AHEAD: Final = 4
"""How many versions after a known one are looked up."""
_REVISION: Final = ("status", "owner", "attempt", "leaseExpiry")
"""Every claim, heartbeat and commit changes at least one of these attributes."""
_CHANGED_MEANWHILE: Final = {"ConditionalCheckFailed", "TransactionConflict"}
"""Why a write is refused if another one has come first."""
NO_RECORD: Final = (
    "there is no such record: no attempt has claimed the key yet (ride-history writes its record "
    "when it commits), its window has ended, an operator forgot it, or the event breaks the "
    "contract and has no key"
)
_MOST_KEY_BYTES: Final = 2_048
"""The most that DynamoDB takes as a partition key."""
_TOO_LONG: Final = f"a key has at most {_MOST_KEY_BYTES:,} bytes"
_ANSWER_SECONDS: Final = 20.0
_FORGOTTEN_FOR: Final = timedelta(days=30)
"""How long the mark of a deleted record is kept: longer than the log of events in any preset."""
_UNSETTLED: Final = "byUnsettledSince"
"""The index of a table of records that has only those that wait for an operator."""


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────


def chosen(
    stack: StackRef,
    *,
    ride: str | None = None,
    key: str | None = None,
    status: str | None = None,
    corrupt: bool = False,
) -> Iterable[tables.Wire]:
    """Return records as they are stored: of a ride, under a key or an event's id, or in a status.

    Without a choice they are those that wait for an operator, from the index. ``corrupt`` reads the
    whole tables for damaged ones, too: the index lacks a record that something else than a consumer
    has damaged.

    Raises:
        OperatorError: there is no such status, or the key is too long to be one.
    """
    status = None if status is None else status.upper()
    if status is not None and status not in STATUSES:
        known = ", ".join(sorted(STATUSES))
        raise OperatorError(f"there is no status {status}: give one of {known}")
    if ride is not None or key is not None:
        found = _items_at(stack, ride, key)
        return [item for item in found if status in (None, _status_of(item))]
    if status is not None:
        return _scan(stack, "#status = :wanted", wanted=status)
    waiting = {item["idempotencyKey"]["S"]: item for item in _unsettled(stack)}
    if corrupt:
        waiting |= {item["idempotencyKey"]["S"]: item for item in _corrupt(stack)}
    return waiting.values()


def explained(stack: StackRef, *, status: str | None = None) -> list[Explained]:
    """Return the records in a status with their meaning; by default those that `chosen` returns."""
    now = datetime.now(UTC)
    return sorted(explain(record_of(item), now) for item in chosen(stack, status=status))


def _under(key: str) -> set[str]:
    """Return the keys that a text means: itself, or if it is an event's id, those of the event."""
    return {key} if "#" in key else {f"{name}#{key}" for name in POLICIES}


def is_too_long(*keys: str) -> bool:
    """Return whether one of some texts is too long to be a key."""
    return any(len(key.encode(errors="replace")) > _MOST_KEY_BYTES for key in keys)


def _items_at(stack: StackRef, ride: str | None, key: str | None) -> Iterator[tables.Wire]:
    """Yield the records of a ride's events, under a key, or of those that are both."""
    keys = None if key is None else _under(key)
    if keys and is_too_long(*keys):
        raise OperatorError(_TOO_LONG)
    wanted = set(keys or ())
    if ride is not None:
        of_ride = set(keys_of(candidates(ride, tables_of(stack, ride))))
        wanted = of_ride if keys is None else of_ride & wanted
    yield from items_at(stack, wanted)


def _status_of(item: tables.Wire) -> str | None:
    return item.get("status", {}).get("S")


def _unsettled(stack: StackRef) -> Iterator[tables.Wire]:
    """Yield the records that wait for an operator, and that no attempt may hold."""
    now_ms = epoch_ms()
    for table in RECORD_TABLES:
        name = stack.outputs[f"{table}Name"]
        for item in tables.in_index(stack.client("dynamodb"), name, _UNSETTLED):
            if not is_held(record_of(item), now_ms):
                yield item


def _corrupt(stack: StackRef) -> Iterator[tables.Wire]:
    """Yield the records with an unknown status, or claimed without a lease."""
    unknown = "NOT (#status IN (:held, :done, :failed))"
    no_lease = "(#status = :held AND attribute_not_exists(leaseExpiry))"
    statuses = {"held": IN_PROGRESS, "done": COMPLETED, "failed": FAILED}
    return _scan(stack, f"{unknown} OR {no_lease}", **statuses)


def items_at(stack: StackRef, keys: Iterable[str]) -> Iterator[tables.Wire]:
    """Yield the records that exist under keys."""
    for table, some in groupby(sorted(keys, key=_by_table), key=records_of):
        yield from items_in(stack, table, some, "idempotencyKey")


def _by_table(key: str) -> tuple[str, str]:
    return records_of(key), key


def items_in(stack: StackRef, table: str, keys: Iterable[str], name: str) -> Iterator[tables.Wire]:
    """Yield the items that exist under keys of a table, which is given by its logical id.

    ``name`` is the attribute that is the table's partition key.
    """
    wire = [{name: {"S": key}} for key in sorted(keys)]
    return tables.get(stack.client("dynamodb"), stack.outputs[f"{table}Name"], wire)


def tables_of(stack: StackRef, order_id: str) -> dict[str, dict[str, Any]]:
    """Return what each table, by its logical id, holds about a ride, as Python values.

    A table that holds nothing has ``{}``.
    """
    named = {"BookingTable": stack.outputs["BookingTableName"]}
    for each in CONSUMERS:
        if each.table is not None and each.table != HISTORY:
            named[each.table] = stack.outputs[f"{each.table}Name"]
    key = {"orderID": {"S": order_id}}
    items = tables.get_each(stack.client("dynamodb"), dict.fromkeys(named.values(), key))
    found = {table: marshalling.values(items.get(name, {})) for table, name in named.items()}
    found[HISTORY] = _timeline(stack, order_id)
    return found


def _timeline(stack: StackRef, order_id: str) -> dict[str, Any]:
    """Return the timeline of a ride, which its records keep, as one item."""
    query = history.of_ride(stack.outputs[f"{HISTORY}Name"], order_id)
    pager = stack.client("dynamodb").get_paginator("query")
    entries = list[dict[str, Any]]()
    for page in pager.paginate(**query):
        entries += map(marshalling.values, page["Items"])
    timelines = iter(history.merged(entries))
    return next(timelines, {})


def ride_items(items: Mapping[str, Mapping[str, Any]]) -> list[RideItem]:
    """Return what `tables_of` returns as evidence."""
    return [
        reading.ride_item(each, items[each.table])
        for each in CONSUMERS
        if each.table and items.get(each.table)
    ]


def candidates(order_id: str, items: Mapping[str, Mapping[str, Any]]) -> dict[str, Named]:
    """Return the facts that a ride can have, by idempotency id.

    They are those of each type, at and soon after the known versions. An idempotency id is derived
    from its fact, so a record is found although nothing else tells of the fact. Other producers may
    give their facts ids of their own, which only the items tell.
    """
    known = dict[str, Named]()
    for item in ride_items(items):
        for effect in item.effects:
            if effect.named:
                known[effect.fact] = effect.named
    known_versions = {each.version for each in known.values()}
    known_versions.add(items["BookingTable"].get("version", 1))
    versions = set(range(1, _FIRST_VERSIONS + 1))
    for version in known_versions:
        versions |= set(range(version, version + _VERSIONS_AHEAD + 1))
    found = dict[str, Named]()
    for name in FACTS:
        for version in versions:
            found[idempotency_id(order_id, name, version)] = Named(order_id, name, version)
    return found | known


def keys_of(facts: Mapping[str, Named | None]) -> list[str]:
    """Return the keys under which consumers may have records of these facts.

    None is a fact of an unknown type: any consumer may have a record of it.
    """
    keys = list[str]()
    for fact, named in facts.items():
        takers = [each for each in CONSUMERS if named is None or each.takes(named.type)]
        keys += [f"{consumer.name}#{fact}" for consumer in takers]
    return keys


def _scan(stack: StackRef, condition: str, **values: str) -> Iterator[tables.Wire]:
    """Yield the records that meet a condition."""
    for table in RECORD_TABLES:
        name = stack.outputs[f"{table}Name"]
        yield from tables.scan(stack.client("dynamodb"), name, condition, **values)


# ── Explaining ────────────────────────────────────────────────────────────────────────────────────


def explain(record: Record, now: datetime) -> Explained:
    """Return a record with its meaning at a time, by the policy of its consumer."""
    policy = POLICIES.get(consumer_of(record.key), Policy())
    return explain_by_limit(record, now, policy.max_attempts)


# ── Changing ──────────────────────────────────────────────────────────────────────────────────────


class Changed(NamedTuple):
    """What was done to the record of a key."""

    done: str
    key: str


@acts("release", "dispatch#7f3c1c1e-6a51-5d0c-9f5e-1b8a4c2d3e4f")
def release(stack: StackRef, key: str, /) -> Plan[Changed, Change]:
    """Let a quarantined, crashed or corrupt key run again: its next delivery is attempt 1.

    Fix the cause first, then release the key, then redrive its dead letter. A key is refused while
    an attempt runs.

    Args:
        key: CONSUMER#KEY, from a dead letter or a log line.
    """
    item, record, found = _found(stack, key)
    with _told():
        planned = plan_release(record, found)
    return _plan(stack, item, planned)


@acts("settle", "payment#7f3c1c1e-6a51-5d0c-9f5e-1b8a4c2d3e4f --not-done")
def settle(
    stack: StackRef,
    key: str,
    /,
    *,
    done: str | None = None,
    not_done: Annotated[bool, Parameter(negative="")] = False,
) -> Plan[Changed, Change]:
    """Record whether an external call with an unknown outcome took effect, and release its key.

    The dead letter names the call and its downstream key: ask the other system. Then redrive the
    letter. If several are unknown, settle one after the other: the preview names the call.

    Args:
        key: CONSUMER#KEY, from a dead letter or a log line.
        done: It took effect; its result, as JSON.
        not_done: It did not, and never will.
    """
    answer = _answer(done, not_done=not_done)
    item, record, found = _found(stack, key)
    with _told():
        planned = plan_settle(record, found, answer)
    return _plan(stack, item, planned)


def _answer(done: str | None, *, not_done: bool) -> Any:
    """Return what is known of a call, from the options."""
    if (done is not None) is not_done:
        raise OperatorError("give --done with the call's result as JSON, or --not-done")
    if done is None:
        return NOT_DONE
    try:
        return Done(json.loads(done))
    except ValueError as error:
        raise OperatorError(
            f"{done!r} is not JSON: write a text as '\"text\"', and no result as null"
        ) from error


@acts("forget", "dispatch#7f3c1c1e-6a51-5d0c-9f5e-1b8a4c2d3e4f")
def forget(stack: StackRef, key: str, /) -> Plan[Changed, Change]:
    """Delete the record of a key, so that its next delivery runs as if it were the first.

    An effect that took place can then take place again. A key is refused while an attempt runs.

    Args:
        key: CONSUMER#KEY, from a dead letter or a log line.
    """
    item, record, found = _found(stack, key)
    with _told():
        planned = plan_forget(record, found)
    return _plan(stack, item, planned)


@contextmanager
def _told() -> Iterator[None]:
    """Tell why a record cannot be changed, as verbs do."""
    try:
        yield
    except ChangeRefusedError as error:
        raise OperatorError(str(error)) from error


def _found(stack: StackRef, key: str) -> tuple[tables.Wire, Record, Explained]:
    """Return the record of ``<consumer>#<key>`` as it is stored, as a record and in words.

    Raises:
        OperatorError: there is no record.
    """
    _, _, rest = key.partition("#")
    if consumer_of(key) not in POLICIES or not rest:
        names = " or ".join(f"{name}#" for name in POLICIES)
        raise OperatorError(f"{key!r} is not a key: begin it with {names}")
    item = next(items_at(stack, [key]), None)
    if item is None:
        raise OperatorError(f"there is no record of {key}: `keys --ride` shows those of a ride")
    record = record_of(item)
    return item, record, explain(record, datetime.now(UTC))


def _plan(stack: StackRef, item: tables.Wire, planned: Planned) -> Plan[Changed, Change]:
    """Return the plan that carries out a change.

    Nothing is written if the record is not as it was seen.
    """
    change = planned.change
    key = change.record.key

    def write() -> Changed:
        if not _written(stack, item, planned):
            raise OperatorError(
                f"{key} has changed since it was read, and nothing was done: `keys {key}` shows it"
            )
        return Changed(change.action, key)

    revision = {name: item[name] for name in _REVISION if name in item}
    exact = {"action": change.action, "key": key, "record": revision}
    must_be_shown = change.action in MUST_BE_SHOWN
    return Plan(change, write, (stack,), exact=exact, must_be_shown=must_be_shown)


def _written(stack: StackRef, item: tables.Wire, planned: Planned) -> bool:
    """Carry out a change; return whether the record was still as it was seen."""
    dynamodb = stack.client("dynamodb")
    key = planned.seen.key
    table = stack.outputs[f"{records_of(key)}Name"]
    if planned.left is not None:
        store = DynamoDBStore(table, transport=BotocoreTransport(dynamodb, _ANSWER_SECONDS))
        try:
            return carry_out(store, planned)
        except StoreError as error:
            raise OperatorError(str(error)) from error
    # The mark of the deleted record is written with it, for the audit.
    delete = {"Key": {"idempotencyKey": {"S": key}}, "TableName": table, **_unchanged(item)}
    mark = {"TableName": stack.outputs[f"{MARKS}Name"], "Item": _mark_of(key)}
    try:
        dynamodb.transact_write_items(TransactItems=[{"Delete": delete}, {"Put": mark}])
    except dynamodb.exceptions.TransactionCanceledException as error:
        codes = {reason.get("Code") for reason in error.response["CancellationReasons"]}
        if not codes & _CHANGED_MEANWHILE:
            raise
        return False
    return True


def _unchanged(seen: tables.Wire) -> dict[str, Any]:
    """Return the condition that a record is as it was seen."""
    conditions = []
    values = {}
    for name in _REVISION:
        if name in seen:
            conditions.append(f"#{name} = :{name}")
            values[f":{name}"] = seen[name]
        else:
            conditions.append(f"attribute_not_exists(#{name})")
    return {
        "ConditionExpression": " AND ".join(conditions),
        "ExpressionAttributeNames": {f"#{name}": name for name in _REVISION},
        "ExpressionAttributeValues": values,
    }


def _mark_of(key: str) -> tables.Wire:
    """Return the item by which the audit knows that a record was deleted and not lost."""
    end = datetime.now(UTC) + _FORGOTTEN_FOR
    return {
        "id": {"S": f"{FORGOTTEN}{key}"},
        "expiryTimestamp": {"N": str(int(end.timestamp()))},
    }
