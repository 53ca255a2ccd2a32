"""The records of a stack: which ones a verb means, and its release, settlement and forgetting.

The library reads, explains and changes records; the stack has their tables, the policies of their
consumers, and the mark of a deleted record.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

from cyclopts import Parameter

from carride import history
from carride.events import idempotency_id
from carride.facts import FACTS
from carride_idempotency import DynamoDBStore, marshalling
from carride_idempotency.clock import epoch_ms
from carride_idempotency.operators.changing import (
    MUST_BE_SHOWN,
    Change,
    ChangeRefusedError,
    plan_forget,
    plan_release,
    plan_settle,
)
from carride_idempotency.operators.choosing import Choice, consumer_of
from carride_idempotency.operators.explaining import Explained, explain, is_held
from carride_idempotency.operators.records import NoRecordError, Planner, Records, answer_of
from carride_idempotency.record import COMPLETED, FAILED, IN_PROGRESS, STATUSES, Record
from carride_idempotency.record_items import record_of
from carride_idempotency.stores.dynamodb import still_as
from carride_idempotency.stores.transport import BotocoreTransport
from ops import tables
from ops.audit import reading
from ops.audit.evidence import CONSUMERS, HISTORY, MARKS, RECORD_TABLES, Named, RideItem
from ops.audit.reading import FORGOTTEN
from ops.policies import MOST_ATTEMPTS, POLICIES, records_of
from ops.stack import OperatorError, StackRef
from ops.verbs import Plan, acts

_FIRST_VERSIONS: Final = 8
"""The versions of a ride whose records are looked up, whatever is known of the ride."""
_VERSIONS_AHEAD: Final = 4
"""How many versions after a known one are looked up."""
_CHANGED_MEANWHILE: Final = {"ConditionalCheckFailed", "TransactionConflict"}
"""Why a write is refused if another one has come first."""
NO_RECORD: Final = (
    "there is no such record: no attempt has claimed the key yet (ride-history writes its record "
    "when it commits), its window has ended, an operator forgot it, or the event breaks the "
    "contract and has no key"
)
_ANSWER_SECONDS: Final = 20.0
_FORGOTTEN_FOR: Final = timedelta(days=30)
"""How long the mark of a deleted record is kept: longer than the log of events in any preset."""
_UNSETTLED: Final = "byUnsettledSince"
"""The index of a table of records that has only those that wait for an operator."""


class StackRecords(Records):
    """The records of a stack, in two tables."""

    attempts = MOST_ATTEMPTS
    where_keys_are = "`keys --ride` shows those of a ride"

    def __init__(self, stack: StackRef) -> None:
        transport = BotocoreTransport(stack.client("dynamodb"), _ANSWER_SECONDS)
        self._stack = stack
        self._by_table = {
            table: DynamoDBStore(stack.outputs[f"{table}Name"], transport=transport)
            for table in RECORD_TABLES
        }
        super().__init__(*self._by_table.values())

    def store_of(self, key: str) -> DynamoDBStore:
        """Return the table that has the record of a key."""
        return self._by_table[records_of(key)]

    def forget(self, seen: Record, now_ms: int) -> bool:
        """Delete a record that is still as it was read, and leave the audit a mark of it."""
        dynamodb = self._stack.client("dynamodb")
        condition, values = still_as(seen)
        delete = {
            "TableName": self._stack.outputs[f"{records_of(seen.key)}Name"],
            "Key": {"idempotencyKey": {"S": seen.key}},
            "ConditionExpression": condition,
            "ExpressionAttributeNames": {"#s": "status", "#o": "owner"},
            "ExpressionAttributeValues": values,
        }
        mark = {
            "TableName": self._stack.outputs[f"{MARKS}Name"],
            "Item": _mark_of(seen.key, now_ms),
        }
        try:
            dynamodb.transact_write_items(TransactItems=[{"Delete": delete}, {"Put": mark}])
        except dynamodb.exceptions.TransactionCanceledException as error:
            codes = {reason.get("Code") for reason in error.response["CancellationReasons"]}
            if not codes & _CHANGED_MEANWHILE:
                raise
            return False
        return True

    def unsettled(self) -> Iterator[Record]:
        """Yield the records that wait for an operator, and that no attempt may hold."""
        now_ms = epoch_ms()
        for record in self.chosen(Choice(), now_ms, index=_UNSETTLED):
            if not is_held(record, now_ms):
                yield record

    def corrupt(self) -> Iterator[Record]:
        """Yield the records with an unknown status, or claimed without a lease.

        The whole tables are read for them: an index lacks what something else than a consumer has
        damaged.
        """
        unknown = "NOT (#status IN (:held, :done, :failed))"
        no_lease = "(#status = :held AND attribute_not_exists(leaseExpiry))"
        statuses = {"held": IN_PROGRESS, "done": COMPLETED, "failed": FAILED}
        condition = f"{unknown} OR {no_lease}"
        for table in RECORD_TABLES:
            name = self._stack.outputs[f"{table}Name"]
            found = tables.scan(self._stack.client("dynamodb"), name, condition, **statuses)
            yield from map(record_of, found)


def _mark_of(key: str, now_ms: int) -> tables.Wire:
    """Return the item by which the audit knows that a record was deleted and not lost."""
    end = now_ms // 1000 + int(_FORGOTTEN_FOR.total_seconds())
    return {"id": {"S": f"{FORGOTTEN}{key}"}, "expiryTimestamp": {"N": str(end)}}


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────


def chosen(
    stack: StackRef,
    choice: Choice,
    *,
    ride: str | None = None,
    key: str | None = None,
    corrupt: bool = False,
) -> Iterable[Record]:
    """Return records: of a ride, under a key or an event's id, or in a status, as a choice has it.

    Without any of them they are those that wait for an operator, from the index. ``corrupt`` reads
    the whole tables for damaged ones, too.
    """
    found = StackRecords(stack)
    now_ms = epoch_ms()
    if ride is not None or key is not None:
        there = found.at(_keys_meant(stack, ride, key))
    elif choice.status is not None:
        there = found.chosen(choice, now_ms)
    else:
        waiting = {each.key: each for each in found.unsettled()}
        if corrupt:
            waiting |= {each.key: each for each in found.corrupt()}
        there = iter(waiting.values())
    return (each for each in there if choice.has(each, now_ms))


def status_named(status: str | None) -> str | None:
    """Return a status as records have it.

    Raises:
        OperatorError: there is no such status.
    """
    if status is None:
        return None
    wanted = status.upper()
    if wanted not in STATUSES:
        known = ", ".join(sorted(STATUSES))
        raise OperatorError(f"there is no status {wanted}: give one of {known}")
    return wanted


def explained(stack: StackRef, *, status: str | None = None) -> list[Explained]:
    """Return the records in a status with their meaning; by default those that `chosen` returns."""
    now = datetime.now(UTC)
    found = chosen(stack, Choice(status=status))
    return sorted(explain(each, now, MOST_ATTEMPTS) for each in found)


def _keys_meant(stack: StackRef, ride: str | None, key: str | None) -> set[str]:
    """Return the keys of a ride's events, those that a text means, or those that are both.

    A text is a key, or the id of an event.
    """
    meant = set[str]()
    if key is not None:
        meant = {key} if "#" in key else {f"{name}#{key}" for name in POLICIES}
    if ride is None:
        return meant
    of_ride = set(keys_of(candidates(ride, tables_of(stack, ride))))
    return of_ride if key is None else of_ride & meant


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
    return _plan(stack, key, "release", plan_release)


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
    with _told():
        answer = answer_of(done, not_done=not_done)
    return _plan(stack, key, "settle", partial(plan_settle, answer=answer))


@acts("forget", "dispatch#7f3c1c1e-6a51-5d0c-9f5e-1b8a4c2d3e4f")
def forget(stack: StackRef, key: str, /) -> Plan[Changed, Change]:
    """Delete the record of a key, so that its next delivery runs as if it were the first.

    An effect that took place can then take place again. A key is refused while an attempt runs.

    Args:
        key: CONSUMER#KEY, from a dead letter or a log line.
    """
    return _plan(stack, key, "forget", plan_forget)


def _plan(stack: StackRef, key: str, action: str, plan: Planner) -> Plan[Changed, Change]:
    """Return the plan of a change of one key. Nothing is written if its record has changed."""
    _check_key(key)
    found = StackRecords(stack)
    with _told():
        preview = found.preview(Choice(keys=frozenset([key])), plan, epoch_ms())
    if not preview.planned:
        raise OperatorError(f"the window of {key} has ended: its next delivery runs as attempt 1")
    (planned,) = preview.planned

    def write() -> Changed:
        if not found.carry_out(planned):
            raise OperatorError(
                f"{key} has changed since it was read, and nothing was done: `keys {key}` shows it"
            )
        return Changed(action, key)

    return Plan(
        planned.change,
        write,
        (stack,),
        exact=preview.exact(action),
        must_be_shown=action in MUST_BE_SHOWN,
    )


def _check_key(key: str) -> None:
    """Check that a consumer of the stack can have a key."""
    _, _, rest = key.partition("#")
    if consumer_of(key) not in POLICIES or not rest:
        names = " or ".join(f"{name}#" for name in POLICIES)
        raise OperatorError(f"{key!r} is not a key: begin it with {names}")


@contextmanager
def _told() -> Iterator[None]:
    """Tell why a record cannot be changed, as verbs do."""
    try:
        yield
    except (ChangeRefusedError, NoRecordError) as error:
        raise OperatorError(str(error)) from error
