"""Reads idempotency records and says what they mean; releases, settles and forgets them.

A change is a conditional write on the record as it was shown. If a delivery claims the key in
between, nothing is done.
"""

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice, product, starmap
from typing import Annotated, Any, Final, NamedTuple

from cyclopts import Parameter

from carride import history
from carride.events import idempotency_id
from carride.facts import FACTS
from carride_idempotency import NOT_DONE, Done, Policy, marshalling
from carride_idempotency.clock import epoch_ms, to_ms
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
from carride_idempotency.recovery import (
    LONGEST_LEASE_MS,
    has_crashed,
    is_corrupt,
    released,
    settled,
)
from carride_idempotency.stores.dynamodb import item_of, record_of
from ops import tables
from ops.audit import reading
from ops.audit.evidence import CONSUMERS, RECORDS, Named, RideItem
from ops.stack import OperatorError, StackRef
from ops.verbs import POSITIVE, Plan, acts, reads

NAMES: Final = (
    *(each.name for each in CONSUMERS),
    *("carride-api", "carride-api-simulate", "carride-api-simulation-lock"),
)
"""What keys begin with: the consumers' names, and those of the API, which stores its answers."""

_ATTEMPTS: Final = Policy().max_attempts
"""Every consumer has the default number of attempts."""
_LONGEST_LEASE_MS: Final = LONGEST_LEASE_MS + 60_000
"""With a minute for the difference between the clock of this machine and those of the functions."""
_FIRST_VERSIONS: Final = 8
_VERSIONS_AHEAD: Final = 4
_REVISION: Final = ("status", "owner", "attempt", "leaseExpiry")
"""Every claim, heartbeat and commit changes at least one of these attributes."""
NO_RECORD: Final = (
    "there is no such record: no attempt has claimed the key yet (ride-history writes its record when it commits), its "
    "window has ended, an operator forgot it, or the event breaks the contract and has no key"
)


class Explained(NamedTuple):
    """A record, and what it means; fields without a text are those of `carride_idempotency.record.Record`."""

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
    """What a release, a settlement or a forget does to a record, and what its next delivery does then."""

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
    """Show idempotency records and what they mean: owner token, lease, attempt, and what the next delivery does.

    By ride and by key they are looked up. Otherwise the whole table is read, up to the limit.

    Args:
        ride: Those of this ride's events.
        key: CONSUMER#KEY, or an idempotency id.
        status: IN_PROGRESS, COMPLETED, FAILED or QUARANTINED.
        limit: The most records to show.

    Raises:
        OperatorError: there is no such status.
    """
    if status is not None and (status := status.upper()) not in STATUSES:
        raise OperatorError(
            f"there is no status {status}: give one of {', '.join(sorted(STATUSES))}"
        )
    if ride is None and key is None:
        if status is None:
            return _found(_scan(stack, "attribute_exists(#status)"), limit, "there are no records")
        return _found(
            _scan(stack, "#status = :wanted", wanted=status), limit, f"no record is {status}"
        )
    keys = set() if ride is None else set(keys_of(candidates(ride, tables_of(stack, ride))))
    if key is not None:
        named = {key} if "#" in key else {f"{name}#{key}" for name in NAMES}
        keys = named if ride is None else named & keys
    items = (
        item for item in items_at(stack, keys) if status in (None, item.get("status", {}).get("S"))
    )
    return _found(items, limit, NO_RECORD)


@reads("quarantined")
def quarantined(stack: StackRef) -> RecordList:
    """Show the keys that consumers do not process until they are released. It reads the whole table of records."""
    condition = "NOT (#status IN (:held, :done, :failed)) OR (#status = :held AND attribute_not_exists(leaseExpiry))"
    scan = _scan(stack, condition, held=IN_PROGRESS, done=COMPLETED, failed=FAILED)
    return _found(scan, None, "no key is quarantined")


def items_at(
    stack: StackRef, keys: Iterable[str], *, table: str = RECORDS, name: str = "idempotencyKey"
) -> Iterator[tables.Wire]:
    """Yield the items that exist under keys of a table, given by its logical id and the name of its partition key."""
    wire = ({name: {"S": key}} for key in sorted(keys))
    return tables.get(stack.client("dynamodb"), stack.outputs[f"{table}Name"], wire)


def tables_of(stack: StackRef, order_id: str) -> dict[str, dict[str, Any]]:
    """Return what the tables hold about a ride, as Python values by logical id of the table; {} if nothing."""
    items = dict[str, dict[str, Any]]()
    for table in (
        "BookingTable",
        *(each.table for each in CONSUMERS if each.table and each.table != RECORDS),
    ):
        item = next(items_at(stack, [order_id], table=table, name="orderID"), None)
        items[table] = {} if item is None else marshalling.values(item)
    query = history.of_ride(stack.outputs[f"{RECORDS}Name"], order_id)
    pages = stack.client("dynamodb").get_paginator("query").paginate(**query)
    kept = history.merged(marshalling.values(item) for page in pages for item in page["Items"])
    return {**items, RECORDS: kept[0] if kept else {}}


def ride_items(items: Mapping[str, Mapping[str, Any]]) -> list[RideItem]:
    """Return what `tables_of` returns as evidence."""
    return [
        reading.ride_item(each, items[each.table])
        for each in CONSUMERS
        if each.table and items.get(each.table)
    ]


def candidates(order_id: str, items: Mapping[str, Mapping[str, Any]]) -> dict[str, Named]:
    """Return the facts that a ride can have, by idempotency id: of each type, at and soon after the known versions.

    An idempotency id is derived from its fact, so a record is found although nothing else tells of
    the fact. Other producers may give their facts ids of their own, which only the items tell.
    """
    told = {
        effect.fact: effect.named
        for item in ride_items(items)
        for effect in item.effects
        if effect.named
    }
    known = {items["BookingTable"].get("version", 1), *(each.version for each in told.values())}
    versions = {
        *range(1, _FIRST_VERSIONS + 1),
        *(each + more for each in known for more in range(_VERSIONS_AHEAD + 1)),
    }
    return {
        idempotency_id(*each): each for each in starmap(Named, product([order_id], FACTS, versions))
    } | told


def keys_of(facts: Mapping[str, Named | None]) -> list[str]:
    """Return the keys under which consumers may have records of these facts; None is a fact of an unknown type."""
    pairs = product(CONSUMERS, facts.items())
    return [
        f"{each.name}#{fact}"
        for each, (fact, named) in pairs
        if named is None or each.takes(named.type)
    ]


def _scan(stack: StackRef, condition: str, **values: str) -> Iterator[tables.Wire]:
    """Yield the records that meet a condition.

    The table also holds the mark of a fence, and counts of redrives. They have no status.
    """
    condition = f"attribute_exists(#status) AND ({condition})"
    return tables.scan(
        stack.client("dynamodb"), stack.outputs["IdempotencyTableName"], condition, **values
    )


def _found(items: Iterable[Mapping[str, Any]], limit: int | None, nothing: str) -> RecordList:
    now = datetime.now(UTC)
    taken = list(islice(items, None if limit is None else limit + 1))
    shown = sorted(explain(record_of(item), now) for item in taken[:limit])
    return RecordList(tuple(shown), len(taken) == len(shown), None if shown else nothing)


# ── Explaining ────────────────────────────────────────────────────────────────────────────────────


def explain(record: Record, now: datetime) -> Explained:
    """Return a record with its meaning at a time."""
    held, says = _is_held(record, to_ms(now)), _says(record, to_ms(now))
    if held:
        since, until = _text(record.updated_ms), _text(record.lease_ms)
        says = f"attempt {record.attempt} has been running since {since} under owner token {record.owner}; "
        says += f"no other delivery runs before its lease ends at {until}"
    created = _moment(record.created_ms)
    return Explained(
        record.key,
        record.status,
        says,
        record.attempt,
        record.owner,
        record.delivery,
        created,
        held,
    )


def _is_held(record: Record, now_ms: int) -> bool:
    """Return whether an attempt may be running, also for a minute after its lease, because clocks differ.

    A lease that ends later than any lease can was written by a wrong clock, and does not count.
    """
    if record.status != IN_PROGRESS or record.lease_ms is None or has_crashed(record, now_ms):
        return False
    return record.lease_ms <= now_ms + _LONGEST_LEASE_MS


def _says(record: Record, now_ms: int) -> str:
    """Return the meaning of a record that no attempt holds."""
    number, updated = record.attempt, _text(record.updated_ms)
    runs = f"the next delivery runs as attempt {number + 1}"
    if number >= _ATTEMPTS:
        runs = f"all {_ATTEMPTS} attempts are used up, so the next delivery quarantines the key"
    if is_corrupt(record):
        return (
            "the record is corrupt: deliveries of this key are dead-lettered until you release it"
        )
    if record.status == QUARANTINED:
        where = (
            "its event is in" if record.dead_lettered else "the next delivery puts its event into"
        )
        given_up = f"given up at {updated} after attempt {number} ({record.error})"
        return f"{given_up}; no delivery runs until you release it; {where} the dead-letter queue"
    if record.status == IN_PROGRESS:
        if record.lease_ms is not None and record.lease_ms > now_ms:
            return f"attempt {number} has a lease that is longer than any can be, so it does not count; {runs}"
        return f"attempt {number} crashed: its lease ended at {_text(record.lease_ms)} without an answer; {runs}"
    if record.expiry is not None and record.expiry * 1000 < now_ms:
        return f"{record.status} at {updated}, and its window has ended: the next delivery runs as attempt 1"
    if record.status == COMPLETED:
        until = _text(None if record.expiry is None else record.expiry * 1000)
        return f"attempt {number} committed at {updated}; further deliveries are answered as duplicates until {until}"
    wait = f", but not before {_text(record.retry_ms)}" if record.retry_ms is not None else ""
    ended = (
        f"attempt {number} failed at {updated} ({record.error})"
        if number
        else f"released at {updated}"
    )
    return f"{ended}; {runs}{wait}"


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
            f"{key} is neither quarantined nor crashed, so there is nothing to release: {found.says}"
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
    if (done is not None) is not_done:
        raise OperatorError("give --done with the call's result as JSON, or --not-done")
    try:
        answer = NOT_DONE if done is None else Done(json.loads(done))
    except ValueError as error:
        raise OperatorError(
            f"{done!r} is no JSON: write a text as '\"text\"', and no result as null"
        ) from error
    item, record, found = _free(stack, key)
    call = next(iter(unknown_calls(record)), None)
    if call is None:
        raise OperatorError(f"{key} has no external call whose outcome is unknown: {found.says}")
    then = f"the next delivery {'makes' if not_done else 'takes the result of'} {call}: redrive its dead letter"
    return _plan(stack, item, Change("settle", found, then), settled(record, call, answer))


@acts("forget", "dispatch#7f3c1c1e-6a51-5d0c-9f5e-1b8a4c2d3e4f")
def forget(stack: StackRef, key: str, /) -> Plan:
    """Delete the record of a key, so that its next delivery runs as if it were the first.

    An effect that took place can then take place again. A key is refused while an attempt runs.

    Args:
        key: CONSUMER#KEY, from a dead letter or a log line.
    """
    item, _, found = _free(stack, key)
    then = "the next delivery runs as if it were the first: an effect that took place can take place again"
    return _plan(stack, item, Change("forget", found, then), None)


def _free(stack: StackRef, key: str) -> tuple[dict[str, Any], Record, Explained]:
    """Return the record of ``<consumer>#<key>`` as it is stored, as a record and in words.

    Raises:
        OperatorError: an attempt may be running, or there is no record.
    """
    consumer, _, rest = key.partition("#")
    if consumer.partition("/")[0] not in NAMES or not rest:  # such as the mark of a fenced region
        raise OperatorError(
            f"{key!r} is no key: it begins with {' or '.join(f'{each}#' for each in NAMES)}"
        )
    item = next(items_at(stack, [key]), None)
    if item is None:
        raise OperatorError(f"there is no record of {key}: `records --ride` shows those of a ride")
    record = record_of(item)
    found = explain(record, datetime.now(UTC))
    if found.held:
        raise OperatorError(f"{key} is held: {found.says}; try again a minute after that")
    return item, record, found


def _plan(stack: StackRef, seen: Mapping[str, Any], change: Change, left: Record | None) -> Plan:
    """Return the plan that deletes a record, or lets its key run again, if it is still as it was seen."""
    key, dynamodb = change.record.key, stack.client("dynamodb")
    conditions = [
        f"#{name} = :{name}" if name in seen else f"attribute_not_exists(#{name})"
        for name in _REVISION
    ]
    condition = {
        "TableName": stack.outputs["IdempotencyTableName"],
        "ConditionExpression": " AND ".join(conditions),
        "ExpressionAttributeNames": {f"#{name}": name for name in _REVISION},
        "ExpressionAttributeValues": {f":{name}": seen[name] for name in _REVISION if name in seen},
    }

    def write() -> dict[str, str]:
        try:
            if left is None:
                dynamodb.delete_item(Key={"idempotencyKey": {"S": key}}, **condition)
            else:
                free = released(left, secrets.token_hex(16), epoch_ms(), 30 * DAY)
                dynamodb.put_item(Item=item_of(free), **condition)
        except dynamodb.exceptions.ConditionalCheckFailedException:
            raise OperatorError(
                f"{key} has changed since it was read, and nothing was done: `records --key {key}` shows it"
            ) from None
        return {"done": change.action, "key": key}

    return Plan(change, write, (stack,))
