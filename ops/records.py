"""Reads idempotency records and says what they mean; releases and forgets them.

A change is a conditional write on the record as it was read. A record that a delivery claims in between is refused.
"""

import secrets
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, Literal

from botocore.exceptions import ClientError
from msgspec import Struct

from carride.dedup import is_attribute
from carride.events import idempotency_id
from carride.facts import FACTS
from idempotency import Policy, marshalling
from idempotency.decision import LONGEST_LEASE_MS, has_crashed, is_corrupt, released
from idempotency.policy import DAY
from idempotency.record import COMPLETED, FAILED, IN_PROGRESS, QUARANTINED, STATUSES, Record
from idempotency.stores.dynamodb import item_of, record_of
from ops.audit.evidence import CONSUMERS, DISPATCH, PAYMENT, Named
from ops.letters import COUNTS
from ops.stack import OperatorError, StackRef

NAMES: Final = (
    *(each.name for each in CONSUMERS),
    "carride-api",
    "carride-api-simulate",
    "carride-api-simulation-lock",
)
"""What keys begin with: the consumers' names, and those of the API, which stores its answers."""

_ATTEMPTS: Final = Policy().max_attempts
"""Every consumer has the default number of attempts."""
_CLOCKS_MS: Final = 60_000
"""By how much the clock of this machine may differ from those of the functions."""
_MOST_KEYS: Final = 100
"""Keys of one BatchGetItem."""
_FIRST_VERSIONS: Final = 8
_VERSIONS_AHEAD: Final = 4
_FENCE: Final = "fence#"
"""Begins the key of the mark of a fenced region, which is in the same table."""
_REVISION: Final = ("status", "owner", "attempt", "leaseExpiry")
"""Every claim, heartbeat and commit changes at least one of these attributes."""
_SOUND: Final = (IN_PROGRESS, COMPLETED, FAILED)
"""The statuses of records that consumers process, if they are not corrupt."""
_GUARDS: Final = {
    "ride-history": "nothing else guards the ride's timeline: its counter of effects is one too high afterwards",
    DISPATCH: "the ride's state guards it: no second car is assigned, but the counter of effects is one too high",
    PAYMENT: "the ride's state and the gateway's idempotency key guard the money, but not the counter of effects",
    "carride-api": "the booking's own condition guards it: the same request is refused",
}


type Action = Literal["release", "forget"]


class Explained(Struct, frozen=True, kw_only=True):
    """A record, and what it means."""

    key: str
    """``<consumer>#<key>``"""
    status: str
    says: str
    """What happened under the key, and what its next delivery will do."""
    attempt: int
    owner: str | None
    """The owner token of the last claim."""
    held_until: datetime | None
    """When the lease of a running attempt ends; None if nothing runs."""
    created: datetime | None
    updated: datetime | None
    expires: datetime | None
    """When the record is forgotten; None for a quarantined one."""
    delivery: str | None
    region: str | None
    error: str | None
    dead_lettered: bool
    """Whether the event of a quarantined key is in the dead-letter queue."""


class Found(Struct, frozen=True, kw_only=True):
    """The records that were found."""

    records: tuple[Explained, ...]
    complete: bool = True
    """False if there may be more than were asked for."""
    says: str | None = None
    """Why there is none."""


class Change(Struct, frozen=True, kw_only=True):
    """What an operator's change does to a record."""

    action: Action
    record: Explained
    says: str
    """What the change does, and what the next delivery does then."""
    revision: str
    """Identifies the state of the record."""


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def records(
    stack: StackRef,
    *,
    ride: str | None = None,
    key: str | None = None,
    status: str | None = None,
    limit: int | None = None,
) -> Found:
    """Return the records that meet all given conditions.

    With a ride or a key they are read by their keys, otherwise the whole table is read.

    Args:
        stack: where the records are.
        ride: the ride's id.
        key: ``<consumer>#<key>``, or an idempotency id, under which every consumer has a record of its own.
        status: a status of records, in any case.
        limit: the most records to return.

    Raises:
        OperatorError: there is no such status.
    """
    if status is not None and (status := status.upper()) not in STATUSES:
        raise OperatorError(f"there is no status {status}: give one of {', '.join(sorted(STATUSES))}")
    if ride is None and key is None:
        if status is None:
            return _found(_scan(stack, "attribute_exists(#s)", {}), limit, "no delivery has been processed yet")
        return _found(_scan(stack, "#s = :s", {":s": status}), limit, f"no record is {status}")
    keys = set() if ride is None else set(keys_of(candidates(ride, items_of(stack, ride))))
    if key is not None:
        named = {key} if "#" in key else {f"{name}#{key}" for name in NAMES}
        keys = named if ride is None else named & keys
    items = (item for item in read(stack, keys) if status in (None, item.get("status", {}).get("S")))
    return _found(items, limit, NO_RECORD)


NO_RECORD: Final = (
    "there is no such record: no attempt has claimed the key yet, or its window has ended, or an operator forgot it; "
    "ride-history claims nothing, so its record appears with its commit"
)


def quarantined(stack: StackRef, *, limit: int | None = None) -> Found:
    """Return the keys that consumers do not process until they are released: quarantined, or with a corrupt record.

    There is no index by status, so the whole table is read.
    """
    sound = {f":{number}": status for number, status in enumerate(_SOUND)}
    condition = f"NOT (#s IN ({', '.join(sound)})) OR (#s = :0 AND attribute_not_exists(leaseExpiry))"
    return _found(_scan(stack, condition, sound), limit, "no key is quarantined")


def read(
    stack: StackRef, keys: Iterable[str], *, table: str = "IdempotencyTable", name: str = "idempotencyKey"
) -> Iterator[dict[str, Any]]:
    """Yield the items of a table that exist under some keys, in the wire format.

    Args:
        stack: where the table is.
        keys: the values of its partition key.
        table: its logical id.
        name: the name of its partition key.
    """
    physical, left = stack.outputs[f"{table}Name"], sorted(keys)
    while left:
        wanted, left = left[:_MOST_KEYS], left[_MOST_KEYS:]
        request = {physical: {"Keys": [{name: {"S": key}} for key in wanted], "ConsistentRead": True}}
        answer = stack.client("dynamodb").batch_get_item(RequestItems=request)
        yield from answer["Responses"].get(physical, [])
        left += [key[name]["S"] for key in answer.get("UnprocessedKeys", {}).get(physical, {"Keys": []})["Keys"]]


def items_of(stack: StackRef, order_id: str) -> dict[str, dict[str, Any]]:
    """Return what the tables hold about a ride, as Python values by logical id of the table; {} if nothing."""
    tables = ("BookingTable", *(each.table for each in CONSUMERS if each.table is not None))
    found = {table: list(read(stack, [order_id], table=table, name="orderID")) for table in tables}
    return {table: marshalling.values(items[0]) if items else {} for table, items in found.items()}


def candidates(order_id: str, items: Mapping[str, Mapping[str, Any]]) -> dict[str, Named]:
    """Return the facts that a ride can have, by idempotency id: of each type, at and soon after the known versions.

    An idempotency id is derived from its fact, so a record is found although nothing else tells of the fact. Only the
    items tell of facts from other producers, which have ids of their own.

    Args:
        order_id: the ride.
        items: what `items_of` returns.
    """
    entries = [(name, entry) for item in items.values() for name, entry in item.items() if is_attribute(name)]
    told = {
        name.partition("#")[2]: Named(order_id, each["type"], each["sequence"])
        for name, each in entries
        if "type" in each
    }
    known = {items.get("BookingTable", {}).get("version", 1), *(each.version for each in told.values())}
    near = {each + more for each in known for more in range(_VERSIONS_AHEAD + 1)}
    versions = near.union(range(1, _FIRST_VERSIONS + 1))
    named = [Named(order_id, name, version) for name in FACTS for version in versions]
    return {idempotency_id(*each): each for each in named} | told


def keys_of(facts: Mapping[str, Named | None]) -> list[str]:
    """Return the keys under which consumers may have records of these facts; None is a fact of an unknown type."""
    pairs = [(each, fact, named) for fact, named in facts.items() for each in CONSUMERS]
    return [f"{each.name}#{fact}" for each, fact, named in pairs if named is None or each.takes(named.type)]


def _scan(stack: StackRef, condition: str, values: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the items that meet a condition on ``#s``, the status."""
    values = {**values, ":fence": _FENCE, ":counts": COUNTS}
    pages = (
        stack.client("dynamodb")
        .get_paginator("scan")
        .paginate(
            TableName=stack.outputs["IdempotencyTableName"],
            FilterExpression=f"({condition}) AND NOT begins_with(idempotencyKey, :fence)"
            " AND NOT begins_with(idempotencyKey, :counts)",
            ExpressionAttributeNames={"#s": "status"},
            ExpressionAttributeValues={
                name: {"S": value} for name, value in {**values, ":fence": _FENCE, ":counts": COUNTS}.items()
            },
            ConsistentRead=True,
        )
    )
    return (item for page in pages for item in page["Items"])


def _found(items: Iterable[Mapping[str, Any]], limit: int | None, nothing: str) -> Found:
    now = datetime.now(UTC)
    taken = list(islice(items, None if limit is None else limit + 1))
    shown = sorted((explain(record_of(item), now) for item in taken[:limit]), key=lambda each: each.key)
    return Found(records=tuple(shown), complete=len(taken) == len(shown), says=None if shown else nothing)


# ── Explaining ────────────────────────────────────────────────────────────────────────────────────────────────────────


def explain(record: Record, now: datetime) -> Explained:
    """Return a record with its meaning at a time."""
    held = held_until(record, _ms(now))
    return Explained(
        key=record.key,
        status=record.status,
        says=_says(record, now, held),
        attempt=record.attempt,
        owner=record.owner,
        held_until=held,
        created=_moment(record.created_ms),
        updated=_moment(record.updated_ms),
        expires=None if record.expiry is None else _moment(record.expiry * 1000),
        delivery=record.delivery,
        region=record.region,
        error=record.error,
        dead_lettered=record.dead_lettered,
    )


def held_until(record: Record, now_ms: int) -> datetime | None:
    """Return when the lease of a running attempt ends, or None if no attempt holds the record.

    An attempt counts as running for a minute after its lease, because clocks differ. A lease that ends later than any
    lease can was written by a wrong clock, and does not count.
    """
    if record.status != IN_PROGRESS or record.lease_ms is None or has_crashed(record, now_ms):
        return None
    return _moment(record.lease_ms) if record.lease_ms <= now_ms + LONGEST_LEASE_MS + _CLOCKS_MS else None


def _says(record: Record, now: datetime, held: datetime | None) -> str:
    number, updated, nth = record.attempt, _text(_moment(record.updated_ms)), f"attempt {record.attempt + 1}"
    used_up = number >= _ATTEMPTS
    what_is_next = f"all {_ATTEMPTS} attempts are used up: its next delivery quarantines it" if used_up else ""
    if is_corrupt(record):
        return "the record is corrupt: its deliveries are dead-lettered until it is released"
    if held is not None:
        return (
            f"attempt {number} runs since {updated} under owner token {record.owner}; its lease ends at {_text(held)}, "
            "and no other delivery runs before that"
        )
    if record.status == QUARANTINED:
        where = "its event is in the dead-letter queue" if record.dead_lettered else "its next delivery dead-letters it"
        return f"given up at {updated} after attempt {number} ({record.error}): it never runs until released; {where}"
    if record.status == IN_PROGRESS:
        ended = f"attempt {number} crashed: its lease ended at {_text(_moment(record.lease_ms))} without an answer"
        if record.lease_ms is not None and record.lease_ms > _ms(now):
            ended = f"attempt {number} has a lease that is longer than any can be, so it does not count"
        return f"{ended}; {what_is_next or f'its next delivery takes it over as {nth}'}"
    if record.expiry is not None and record.expiry * 1000 < _ms(now):
        return f"{record.status} at {updated}, and its window has ended: its next delivery runs as a new one"
    if record.status == COMPLETED:
        until = f"until {_text(_moment(record.expiry * 1000))}" if record.expiry is not None else "for ever"
        return f"attempt {number} committed at {updated}; further deliveries are answered as duplicates {until}"
    if number == 0:
        return f"released at {updated}: its next delivery runs as attempt 1"
    wait = f", but not before {_text(_moment(record.retry_ms))}" if record.retry_ms is not None else ""
    failed = f"attempt {number} failed at {updated} ({record.error})"
    return f"{failed}; {what_is_next or f'its next delivery runs as {nth}{wait}'}"


def _ms(time: datetime) -> int:
    return int(time.timestamp() * 1000)


def _moment(ms: int | None) -> datetime | None:
    """Return a time; None if there is none, or a damaged record has one that is outside the calendar."""
    try:
        return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def _text(time: datetime | None) -> str:
    return "an unknown time" if time is None else f"{time:%Y-%m-%d %H:%M:%S UTC}"


# ── Changing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def change(stack: StackRef, action: Action, key: str, *, act: bool = False, revision: str | None = None) -> Change:
    """Release or forget a key, or return what that would do.

    ``release`` lets a key run again whose record is quarantined, crashed or corrupt: its next delivery is attempt 1.
    ``forget`` deletes a record in any state: its next delivery runs as a new one.

    Args:
        stack: where the record is.
        action: what to do.
        key: ``<consumer>#<key>``, from a dead letter or a log line.
        act: whether to do it.
        revision: that of the change that was shown before. A record in another state is then refused.

    Raises:
        OperatorError: an attempt holds the record, there is none, there is nothing to release, or it has changed.
    """
    consumer, _, rest = key.partition("#")
    if consumer.partition("/")[0] not in NAMES or not rest:  # as for the mark of a fenced region
        raise OperatorError(f"{key!r} is no key: it begins with {' or '.join(f'{each}#' for each in NAMES)}")
    item = next(read(stack, [key]), None)
    if item is None:
        raise OperatorError(f"there is no record of {key}: `records --ride` shows those of a ride")
    record, now = record_of(item), datetime.now(UTC)
    found, explained = (
        "/".join(text for name in _REVISION for text in item.get(name, {}).values()),
        explain(record, now),
    )
    if explained.held_until is not None:
        raise OperatorError(f"{key} is held: {explained.says}; try again a minute after that")
    if revision not in (None, found):
        raise OperatorError(f"{key} has changed, and nothing was done; now {explained.says}")
    if action == "forget":
        guard = _GUARDS.get(consumer.partition("/")[0], "only its handler may guard it")
        then = f"runs as a new one, and its effect takes place again if nothing else guards it; {guard}"
    elif record.status in (QUARANTINED, IN_PROGRESS) or is_corrupt(record):
        then = "runs as attempt 1; a redriven one too"
    else:
        raise OperatorError(f"{key} is neither quarantined nor crashed: there is nothing to release; {explained.says}")
    if act and action == "forget":
        _write(stack, key, "delete_item", item, Key={"idempotencyKey": {"S": key}})
    elif act:
        free = released(record, secrets.token_hex(16), _ms(now), 30 * DAY)
        _write(stack, key, "put_item", item, Item=item_of(free))
    says = f"{action} {key}: {explained.says}. Then its next delivery {then}"
    return Change(action=action, record=explained, says=says, revision=found)


def _write(stack: StackRef, key: str, operation: str, seen: Mapping[str, Any], **request: Any) -> None:
    """Write on the condition that the record is as it was seen, or raise an OperatorError."""
    names = {f"#{name}": name for name in _REVISION}
    kept = {f":{name}": seen[name] for name in _REVISION if name in seen}
    conditions = [f"#{name} = :{name}" if name in seen else f"attribute_not_exists(#{name})" for name in _REVISION]
    try:
        getattr(stack.client("dynamodb"), operation)(
            TableName=stack.outputs["IdempotencyTableName"],
            ConditionExpression=" AND ".join(["attribute_exists(idempotencyKey)", *conditions]),
            ExpressionAttributeNames=names,
            **({"ExpressionAttributeValues": kept} if kept else {}),
            **request,
        )
    except ClientError as error:
        if error.response["Error"]["Code"] != "ConditionalCheckFailedException":
            raise
        item = next(read(stack, [key]), None)
        now = "it was deleted" if item is None else explain(record_of(item), datetime.now(UTC)).says
        raise OperatorError(f"{key} has changed meanwhile, and nothing was done; now {now}") from error
