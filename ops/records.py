"""Reads idempotency records and says what they mean; releases, settles and forgets them.

A change is a conditional write on the record as it was shown. If a delivery claims the key in
between, nothing is done.
"""

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import chain, groupby, islice
from typing import Annotated, Any, Final, NamedTuple

from cyclopts import Parameter

from carride import history
from carride.events import idempotency_id
from carride.facts import FACTS
from carride_idempotency import NOT_DONE, Done, Policy, marshalling
from carride_idempotency.clock import epoch_ms, to_ms
from carride_idempotency.keys import LETTER
from carride_idempotency.policy import DAY
from carride_idempotency.record import (
    COMPLETED,
    FAILED,
    IN_PROGRESS,
    QUARANTINED,
    STATUSES,
    Record,
    unknown_calls,
)
from carride_idempotency.record_items import item_of, record_of
from carride_idempotency.recovery import (
    LONGEST_LEASE_MS,
    has_crashed,
    is_corrupt,
    released,
    settled,
)
from ops import tables
from ops.audit import reading
from ops.audit.evidence import CONSUMERS, HISTORY, MARKS, RECORD_TABLES, Named, RideItem
from ops.audit.reading import FORGOTTEN
from ops.policies import POLICIES, consumer_of, records_of
from ops.stack import OperatorError, StackRef
from ops.verbs import POSITIVE, Plan, acts, reads

_LONGEST_LEASE_MS: Final = LONGEST_LEASE_MS + 60_000
"""With a minute for the difference between the clock of this machine and those of the functions."""
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
_FORGOTTEN_FOR: Final = timedelta(days=30)
"""How long the mark of a deleted record is kept: longer than the log of events in any preset."""
_UNSETTLED: Final = "byUnsettledSince"
"""The index of a table of records that has only those that wait for an operator."""


class Explained(NamedTuple):
    """A record, and what it means; fields without a text are those of `Record`."""

    key: str
    status: str
    says: str
    """What happened under the key, and what its next delivery will do."""
    attempt: int
    owner: str | None
    delivery: str | None
    created: datetime | None
    held: bool
    """Whether an attempt may be running."""


class RecordList(NamedTuple):
    """The records that were found."""

    records: tuple[Explained, ...]
    complete: bool
    """False if there may be more than were asked for."""
    says: str | None
    """Why there is none."""


class Change(NamedTuple):
    """What a release, a settlement or a forget does to a record, and its next delivery then."""

    action: str
    """``release``, ``settle`` or ``forget``."""
    record: Explained
    then: str


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────


@reads("records", "--ride order_01", "--status FAILED")
def records(
    stack: StackRef,
    *,
    ride: str | None = None,
    key: str | None = None,
    status: str | None = None,
    limit: Annotated[int, POSITIVE] = 100,
) -> RecordList:
    """Show idempotency records, and what they mean for the next delivery of their keys.

    By ride and by key they are looked up. Otherwise the whole tables are read, up to the limit.

    Args:
        ride: Those of this ride's events.
        key: CONSUMER#KEY, or an idempotency id.
        status: IN_PROGRESS, COMPLETED, FAILED or QUARANTINED.
        limit: The most records to show.

    Raises:
        OperatorError: there is no such status.
    """
    status = None if status is None else status.upper()
    if status is not None and status not in STATUSES:
        known = ", ".join(sorted(STATUSES))
        raise OperatorError(f"there is no status {status}: give one of {known}")
    if ride is not None or key is not None:
        found = items_at(stack, _keys_asked_for(stack, ride, key))
        chosen = (item for item in found if status in (None, _status_of(item)))
        return _listed(chosen, limit, NO_RECORD)
    if status is not None:
        found = _scan(stack, "#status = :wanted", wanted=status)
        return _listed(found, limit, f"no record is {status}")
    return _listed(_scan(stack, "attribute_exists(#status)"), limit, "there are no records")


def _keys_asked_for(stack: StackRef, ride: str | None, key: str | None) -> set[str]:
    """Return the keys of a ride's events, of one event or of both."""
    of_ride = set[str]()
    of_event = set[str]()
    if ride is not None:
        of_ride = set(keys_of(candidates(ride, tables_of(stack, ride))))
    if key is not None:
        of_event = {key} if "#" in key else {f"{name}#{key}" for name in POLICIES}
    if ride is None or key is None:
        return of_ride | of_event
    return of_ride & of_event


def _status_of(item: tables.Wire) -> str | None:
    return item.get("status", {}).get("S")


@reads("quarantined", "--corrupt")
def quarantined(
    stack: StackRef, *, corrupt: Annotated[bool, Parameter(negative="")] = False
) -> RecordList:
    """Show the keys that consumers do not process until they are released, or settled.

    An index has them. It lacks a record that something else than a consumer has damaged.

    Args:
        corrupt: Also read the whole tables, for damaged records.
    """
    found = {item["idempotencyKey"]["S"]: item for item in _unsettled(stack)}
    if corrupt:
        found |= {item["idempotencyKey"]["S"]: item for item in _corrupt(stack)}
    return _listed(found.values(), None, "no key is quarantined")


def _unsettled(stack: StackRef) -> Iterator[tables.Wire]:
    """Yield the records that wait for an operator, and that no attempt may hold."""
    now_ms = epoch_ms()
    for table in RECORD_TABLES:
        name = stack.outputs[f"{table}Name"]
        for item in tables.in_index(stack.client("dynamodb"), name, _UNSETTLED):
            if not _is_held(record_of(item), now_ms):
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
    """Yield the items that exist under keys of a table.

    ``table`` is its logical id, and ``name`` that of its partition key.
    """
    wire = ({name: {"S": key}} for key in sorted(keys))
    return tables.get(stack.client("dynamodb"), stack.outputs[f"{table}Name"], wire)


def tables_of(stack: StackRef, order_id: str) -> dict[str, dict[str, Any]]:
    """Return what each table holds about a ride, as Python values; {} if nothing.

    The keys are the logical ids of the tables.
    """
    found = {"BookingTable": _item_of_ride(stack, "BookingTable", order_id)}
    for each in CONSUMERS:
        if each.table is not None and each.table != HISTORY:
            found[each.table] = _item_of_ride(stack, each.table, order_id)
    found[HISTORY] = _timeline(stack, order_id)
    return found


def _item_of_ride(stack: StackRef, table: str, order_id: str) -> dict[str, Any]:
    item = next(items_in(stack, table, [order_id], "orderID"), {})
    return marshalling.values(item)


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
    known = {
        effect.fact: effect.named
        for item in ride_items(items)
        for effect in item.effects
        if effect.named
    }
    versions = set(range(1, _FIRST_VERSIONS + 1))
    for version in (
        items["BookingTable"].get("version", 1),
        *(each.version for each in known.values()),
    ):
        versions |= set(range(version, version + _VERSIONS_AHEAD + 1))
    possible = [Named(order_id, name, version) for name in FACTS for version in versions]
    return {idempotency_id(*named): named for named in possible} | known


def keys_of(facts: Mapping[str, Named | None]) -> list[str]:
    """Return the keys under which consumers may have records of these facts.

    None is a fact of an unknown type: any consumer may have a record of it.
    """
    return [
        f"{consumer.name}#{fact}"
        for fact, named in facts.items()
        for consumer in CONSUMERS
        if named is None or consumer.takes(named.type)
    ]


def _scan(stack: StackRef, condition: str, **values: str) -> Iterator[tables.Wire]:
    """Yield the records that meet a condition."""
    dynamodb = stack.client("dynamodb")
    names = [stack.outputs[f"{table}Name"] for table in RECORD_TABLES]
    return chain.from_iterable(tables.scan(dynamodb, name, condition, **values) for name in names)


def _listed(items: Iterable[Mapping[str, Any]], limit: int | None, nothing: str) -> RecordList:
    """Return records with their meaning, up to a limit; ``nothing`` says why there is none."""
    now = datetime.now(UTC)
    one_more = None if limit is None else limit + 1
    taken = list(islice(items, one_more))
    if not taken:
        return RecordList((), complete=True, says=nothing)
    shown = sorted(explain(record_of(item), now) for item in taken[:limit])
    is_complete = len(taken) == len(shown)
    return RecordList(tuple(shown), is_complete, says=None)


# ── Explaining ────────────────────────────────────────────────────────────────────────────────────


def explain(record: Record, now: datetime) -> Explained:
    """Return a record with its meaning at a time."""
    held = _is_held(record, to_ms(now))
    return Explained(
        key=record.key,
        status=record.status,
        says=_says_held(record) if held else _says(record, to_ms(now)),
        attempt=record.attempt,
        owner=record.owner,
        delivery=record.delivery,
        created=_moment(record.created_ms),
        held=held,
    )


def _is_held(record: Record, now_ms: int) -> bool:
    """Return whether an attempt may be running, until a minute after its lease: clocks differ.

    A lease that ends later than any lease can was written by a wrong clock, and does not count.
    """
    if record.status != IN_PROGRESS or record.lease_ms is None or has_crashed(record, now_ms):
        return False
    return record.lease_ms <= now_ms + _LONGEST_LEASE_MS


def _says_held(record: Record) -> str:
    """Return the meaning of a record whose key an attempt may hold."""
    since = _text(record.updated_ms)
    until = _text(record.lease_ms)
    running = f"attempt {record.attempt} has been running since {since}"
    return (
        f"{running} under owner token {record.owner}; no other delivery runs before its lease ends "
        f"at {until}"
    )


def _says(record: Record, now_ms: int) -> str:
    """Return the meaning of a record that no attempt holds."""
    if is_corrupt(record):
        return (
            "the record is corrupt: deliveries of this key are dead-lettered until you release it"
        )
    if record.status == IN_PROGRESS:
        return _says_crashed(record, now_ms)
    if LETTER in record.key:
        return _says_lettered(record)
    if record.expiry is not None and record.expiry * 1000 < now_ms:
        ended = f"{record.status} at {_text(record.updated_ms)}, and its window has ended"
        return f"{ended}: the next delivery runs as attempt 1"
    if record.status == QUARANTINED:
        return _says_quarantined(record)
    if record.status == COMPLETED:
        return _says_completed(record)
    return _says_failed(record)


def _says_quarantined(record: Record) -> str:
    where = "the next delivery puts its event into the dead-letter queue"
    if record.dead_lettered:
        where = "its event is in the dead-letter queue"
    given_up = f"given up at {_text(record.updated_ms)} after attempt {record.attempt}"
    if record.expiry is not None:
        where = f"it expires at {_text(record.expiry * 1000)}"
    return f"{given_up} ({record.error}); no delivery runs until you release it; {where}"


def _says_crashed(record: Record, now_ms: int) -> str:
    attempt = f"attempt {record.attempt}"
    then = _next_run(record)
    if record.lease_ms is not None and record.lease_ms > now_ms:
        return f"{attempt} has a lease that is longer than any can be, so it does not count; {then}"
    ended = _text(record.lease_ms)
    return f"{attempt} crashed: its lease ended at {ended} without an answer; {then}"


def _says_lettered(record: Record) -> str:
    """Return the meaning of the mark of a dead letter."""
    sent = f"an event that breaks the contract was dead-lettered at {_text(record.updated_ms)}"
    end = _text(None if record.expiry is None else record.expiry * 1000)
    return f"{sent}; until {end} a replay of it sends no second letter"


def _says_completed(record: Record) -> str:
    when = _text(record.updated_ms)
    done = f"attempt {record.attempt} committed at {when}"
    duplicates = "further deliveries are answered as duplicates"
    if record.expiry is None:
        return f"{done}; {duplicates}, and the record does not expire"
    end = _text(record.expiry * 1000)
    return f"{done}; {duplicates} until {end}"


def _says_failed(record: Record) -> str:
    updated = _text(record.updated_ms)
    then = _next_run(record)
    if record.retry_ms is not None:
        then += f", but not before {_text(record.retry_ms)}"
    if not record.attempt:
        return f"released at {updated}; {then}"
    return f"attempt {record.attempt} failed at {updated} ({record.error}); {then}"


def _next_run(record: Record) -> str:
    """Return what the next delivery of a key that may run again does."""
    most = POLICIES.get(consumer_of(record.key), Policy()).max_attempts
    if record.attempt >= most:
        return f"all {most:,} attempts are used up, so the next delivery quarantines the key"
    return f"the next delivery runs as attempt {record.attempt + 1}"


def _moment(ms: int) -> datetime | None:
    """Return a time; None if a damaged record has one that is outside the calendar."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def _text(ms: int | None) -> str:
    time = None if ms is None else _moment(ms)
    return "an unknown time" if time is None else f"{time:%Y-%m-%d %H:%M:%S UTC}"


# ── Changing ──────────────────────────────────────────────────────────────────────────────────────


@acts("release", "dispatch#7f3c1c1e-6a51-5d0c-9f5e-1b8a4c2d3e4f --yes")
def release(stack: StackRef, key: str, /) -> Plan:
    """Let a quarantined, crashed or corrupt key run again: its next delivery is attempt 1.

    Fix the cause first, then release the key, then redrive its dead letter. A key is refused while
    an attempt runs.

    Args:
        key: CONSUMER#KEY, from a dead letter or a log line.
    """
    item, record, found = _free(stack, key)
    if record.status not in (QUARANTINED, IN_PROGRESS) and not is_corrupt(record):
        raise OperatorError(
            f"{key} is neither quarantined nor crashed, so there is nothing to release: "
            f"{found.says}"
        )
    change = Change(
        "release", found, "the next delivery runs as attempt 1: redrive its dead letter"
    )
    return _plan(stack, item, change, record)


@acts("settle", "payment#7f3c1c1e-6a51-5d0c-9f5e-1b8a4c2d3e4f --not-done")
def settle(
    stack: StackRef,
    key: str,
    /,
    *,
    done: str | None = None,
    not_done: Annotated[bool, Parameter(negative="")] = False,
) -> Plan:
    """Record whether an external call with an unknown outcome took effect, and release its key.

    The dead letter names the call and its downstream key: ask the other system. Then redrive the
    letter. If several are unknown, settle one after the other: the preview names the call.

    Args:
        key: CONSUMER#KEY, from a dead letter or a log line.
        done: It took effect; its result, as JSON.
        not_done: It did not, and never will.
    """
    answer = _answer(done, not_done=not_done)
    item, record, found = _free(stack, key)
    call = next(iter(unknown_calls(record)), None)
    if call is None:
        raise OperatorError(f"{key} has no external call whose outcome is unknown: {found.says}")
    does = "makes" if not_done else "takes the result of"
    then = f"the next delivery {does} {call}: redrive its dead letter"
    return _plan(stack, item, Change("settle", found, then), settled(record, call, answer))


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
def forget(stack: StackRef, key: str, /) -> Plan:
    """Delete the record of a key, so that its next delivery runs as if it were the first.

    An effect that took place can then take place again. A key is refused while an attempt runs.

    Args:
        key: CONSUMER#KEY, from a dead letter or a log line.
    """
    item, _, found = _free(stack, key)
    then = (
        "the next delivery runs as if it were the first: an effect that took place can take place "
        "again"
    )
    return _plan(stack, item, Change("forget", found, then), None)


def _free(stack: StackRef, key: str) -> tuple[tables.Wire, Record, Explained]:
    """Return the record of ``<consumer>#<key>`` as it is stored, as a record and in words.

    Raises:
        OperatorError: an attempt may be running, or there is no record.
    """
    _, _, rest = key.partition("#")
    if consumer_of(key) not in POLICIES or not rest:
        names = " or ".join(f"{name}#" for name in POLICIES)
        raise OperatorError(f"{key!r} is not a key: begin it with {names}")
    item = next(items_at(stack, [key]), None)
    if item is None:
        raise OperatorError(f"there is no record of {key}: `records --ride` shows those of a ride")
    record = record_of(item)
    found = explain(record, datetime.now(UTC))
    if found.held:
        raise OperatorError(f"{key} is held: {found.says}; try again a minute after that")
    return item, record, found


def _plan(stack: StackRef, seen: tables.Wire, change: Change, left: Record | None) -> Plan:
    """Return the plan that writes what is ``left`` of a record; None deletes it.

    Nothing is written if the record is not as it was seen.
    """
    dynamodb = stack.client("dynamodb")
    key = change.record.key
    table = stack.outputs[f"{records_of(key)}Name"]
    marks = stack.outputs[f"{MARKS}Name"]
    as_seen = {"TableName": table, **unchanged(seen)}

    def write() -> dict[str, str]:
        if left is None:
            delete = {"Delete": {"Key": {"idempotencyKey": {"S": key}}, **as_seen}}
            writes = [delete, {"Put": {"TableName": marks, "Item": mark_of(key)}}]
        else:
            free = released(left, secrets.token_hex(16), epoch_ms(), 30 * DAY)
            writes = [{"Put": {"Item": item_of(free), **as_seen}}]
        try:
            dynamodb.transact_write_items(TransactItems=writes)
        except dynamodb.exceptions.TransactionCanceledException as error:
            codes = {reason.get("Code") for reason in error.response["CancellationReasons"]}
            if not codes & _CHANGED_MEANWHILE:
                raise
            raise OperatorError(
                f"{key} has changed since it was read, and nothing was done: "
                f"`records --key {key}` shows it"
            ) from None
        return {"done": change.action, "key": key}

    revision = {name: seen[name] for name in _REVISION if name in seen}
    exact = {"action": change.action, "key": key, "record": revision}
    return Plan(change, write, (stack,), exact=exact)


def unchanged(seen: tables.Wire) -> dict[str, Any]:
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


def mark_of(key: str) -> tables.Wire:
    """Return the item by which the audit knows that a record was deleted and not lost."""
    end = datetime.now(UTC) + _FORGOTTEN_FOR
    return {
        "id": {"S": f"{FORGOTTEN}{key}"},
        "expiryTimestamp": {"N": str(int(end.timestamp()))},
    }
