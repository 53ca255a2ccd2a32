"""Erases what the stack holds about a customer, and leaves keys and statuses.

A record that is erased still answers for its key: a replayed or redriven event of the customer is a
duplicate. An event that was dead-lettered before it took effect gets such a record too, when its
letter is deleted. So consumers need not know of erasures, and no delivery costs more because of
them. This holds for the events that the stack has a trace of. An event that is still under way has
none, so a customer is erased when nothing has happened to their rides for a day: EventBridge
retries for that long.

Archive, logs and streams end by their retention.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from msgspec import Struct

from carride.bookings import OWNER_CUSTOMER
from carride.events import ContractError, parse_event
from carride.ride import OPEN, Status
from carride_idempotency import marshalling
from carride_idempotency.clock import epoch_ms
from carride_idempotency.fingerprint import fingerprint
from carride_idempotency.policy import DAY
from carride_idempotency.record import COMPLETED, FAILED, IN_PROGRESS, QUARANTINED, Record
from carride_idempotency.record_items import item_of, record_of
from ops import records, tables
from ops.audit.evidence import HISTORY, LOG_RULE_DLQ, MARKS, RECORD_TABLES
from ops.audit.queues import GLIMPSE_SECONDS, HIDDEN_SECONDS
from ops.dead_letters import DeadLetter, Received, queues_of, received_from, url_of
from ops.policies import records_of
from ops.stack import OperatorError, StackRef
from ops.verbs import Plan, Span, acts

ERASED: Final = "erased"
"""Stands for an erased text, and is the owner of the records that an erasure writes."""
PERSONAL: Final[Mapping[str, object]] = {
    "customerID": ERASED,
    "pickup": ERASED,
    "destination": ERASED,
    "previousDestination": ERASED,
    "reason": ERASED,
    "passengers": 1,
}
"""The fields of a ride and of facts about it that are personal, and what is left of them."""
_OF_THE_OWNER: Final = ("owner", OWNER_CUSTOMER)
"""The attributes of a booking that name who booked it."""
QUIET: Final = timedelta(days=1)
"""How long nothing must have happened to a customer's rides."""
_TEXTS: Final = ("responseData", "error", "event")
"""The attributes of a record that may hold personal data."""
_UNFINISHED: Final = frozenset({FAILED, QUARANTINED, IN_PROGRESS})
_HISTORY: Final = "ride-history"
_PAID_BY: Final = frozenset({"dispatch", "payment"})
"""The consumers that have to hear of a driven ride before it is paid."""
_RETAINED: Final = (
    "the archive and the log of all events keep events until their retention ends",
    f"{LOG_RULE_DLQ} keeps for 14 days what the log could not take",
    "the payment gateway keeps what it knows: erase it there",
    "with two regions, run this in both: queues are regional",
)


class Erasure(Struct, frozen=True):
    """What is erased: numbers of items, and what is not erased."""

    customer: str
    rides: tuple[str, ...]
    bookings: int
    history: int
    """Entries of timelines."""
    records: int
    """Records that hold results, errors or events."""
    outbox: int
    letters: Mapping[str, int]
    """Dead letters by queue."""
    retained: tuple[str, ...] = _RETAINED


class _Found(NamedTuple):
    """What the stack holds about a customer, as it is stored."""

    customer: str
    rides: frozenset[str]
    bookings: list[tables.Wire]
    history: list[tables.Wire]
    records: list[tables.Wire]
    outbox: list[tables.Wire]
    letters: list[DeadLetter]

    def exact(self) -> Mapping[str, Any]:
        """Return what names everything that is erased."""
        return {
            "customer": self.customer,
            "rides": sorted(self.rides),
            "bookings": _named("orderID", self.bookings),
            "history": _named("idempotencyKey", self.history),
            "records": _named("idempotencyKey", self.records),
            "outbox": _named("id", self.outbox),
            "letters": _ids(letter.id for letter in self.letters),
        }

    def erasure(self) -> Erasure:
        return Erasure(
            customer=self.customer,
            rides=tuple(sorted(self.rides)),
            bookings=len(self.bookings),
            history=len(self.history),
            records=len(self.records),
            outbox=len(self.outbox),
            letters=Counter(letter.queue for letter in self.letters),
        )


def _named(key: str, items: Iterable[tables.Wire]) -> list[dict[str, str]]:
    """Return the names of items with this key, in an order that stays."""
    return _ids(item[key]["S"] for item in items)


def _ids(names: Iterable[str]) -> list[dict[str, str]]:
    """Return names as entries of a plan, in an order that stays."""
    return [{"id": name} for name in sorted(names)]


@acts("erase", "customer_a --yes")
def erase(stack: StackRef, customer: str, /, *, quiet: Span = QUIET) -> Plan:
    """Erase what the stack holds about a customer; keys, statuses, prices and payments stay.

    It reads the tables and dead-letter queues whole. Bookings and timelines keep no name, place or
    reason; records keep no result, error or event; outbox items and dead letters are deleted.
    Events of the customer that come again are duplicates, and the audit stays balanced. Run again,
    it finds what has come since.

    Args:
        customer: Id of the customer.
        quiet: Refuse if something has happened to a ride of the customer within this span, because
            its events may still be under way.

    Raises:
        OperatorError: a ride is open, is being processed, is to be paid or has changed lately.
    """
    found = _found(stack, customer)
    _require_rest(stack, found, quiet)

    def do() -> Erasure:
        _erase(stack, found)
        return found.erasure()

    return Plan(found.erasure(), do, (stack,), exact=found.exact())


# ── Finding ───────────────────────────────────────────────────────────────────────────────────────


def _found(stack: StackRef, customer: str) -> _Found:
    """Find everything that the stack holds about a customer."""
    letters = [each.letter for each in _letters(stack)]
    rides = {*_booked_rides(stack, customer), *_rides_in_history(stack, customer)}
    for letter in letters:
        if letter.ride is not None and _customer_of(letter) == customer:
            rides.add(letter.ride)
    history = [
        item
        for item in _scan(stack, HISTORY, "attribute_exists(entry)")
        if item["orderID"]["S"] in rides
    ]
    ours = [letter for letter in letters if letter.ride in rides]
    facts = {item["idempotencyKey"]["S"].partition("#")[2] for item in history}
    facts |= {letter.fact for letter in ours if letter.fact}
    names = _whole([customer, *rides])
    return _Found(
        customer=customer,
        rides=frozenset(rides),
        bookings=[
            item
            for item in records.items_in(stack, "BookingTable", rides, "orderID")
            if _names_somebody(item)
        ],
        history=[item for item in history if _is_personal(item)],
        records=[item for item in _records(stack) if _is_about(item, names, facts)],
        outbox=[item for item in _scan(stack, "OutboxTable") if item["subject"]["S"] in rides],
        letters=ours,
    )


def _booked_rides(stack: StackRef, customer: str) -> Iterator[str]:
    for item in _scan(stack, "BookingTable", "#customerID = :customer", customer=customer):
        yield item["orderID"]["S"]


def _rides_in_history(stack: StackRef, customer: str) -> Iterator[str]:
    its_own = "#entry.#data.#customerID = :customer"
    for item in _scan(stack, HISTORY, its_own, customer=customer):
        yield item["orderID"]["S"]


def _records(stack: StackRef) -> Iterator[tables.Wire]:
    """Yield the records that may hold personal data, and those that are not completed."""
    condition = (
        "attribute_exists(#status) AND (attribute_exists(responseData) OR attribute_exists(#error) "
        "OR attribute_exists(#event) OR #status <> :completed)"
    )
    for table in RECORD_TABLES:
        yield from _scan(stack, table, condition, completed=COMPLETED)


def _scan(
    stack: StackRef, table: str, condition: str = "", **given: object
) -> Iterator[tables.Wire]:
    return tables.scan(stack.client("dynamodb"), stack.outputs[f"{table}Name"], condition, **given)


def _whole(names: Iterable[str]) -> Callable[[str], object]:
    """Return a search for any of these ids, which are not part of a longer one."""
    any_of_them = "|".join(map(re.escape, names))
    whole = re.compile(rf"(?<![\w.-])(?:{any_of_them})(?![\w.-])")
    return whole.search


def _is_about(item: tables.Wire, names: Callable[[str], object], facts: set[str]) -> bool:
    """Return whether a record is of an event of the customer's rides, or ``names`` one of them."""
    _, _, fact = item["idempotencyKey"]["S"].partition("#")
    if fact in facts:
        return True
    texts = [item[attribute]["S"] for attribute in _TEXTS if attribute in item]
    return any(map(names, texts))


def _is_personal(record: tables.Wire) -> bool:
    data = _data_of(record)
    return data != erased(data)


def _data_of(record: tables.Wire) -> dict[str, Any]:
    """Return the data of the event whose entry a record of the ride history keeps."""
    values: dict[str, Any] = marshalling.values(record)
    data: dict[str, Any] = values["entry"]["data"]
    return data


def _names_somebody(booking: tables.Wire) -> bool:
    values = marshalling.values(booking)
    return any(name in values for name in _OF_THE_OWNER) or values != erased(values)


def _letters(stack: StackRef, hidden_s: int = GLIMPSE_SECONDS) -> Iterator[Received]:
    """Yield every dead letter but those that count as the log's lines.

    Others do not see them for ``hidden_s`` seconds: for long, if they are to be deleted.
    """
    for queue in queues_of(stack):
        if queue == LOG_RULE_DLQ:
            continue
        with closing(received_from(stack, queue, hidden_s=hidden_s)) as letters:
            yield from letters


def _customer_of(letter: DeadLetter) -> str | None:
    """Return the customer whom an event names, although it may break the contract."""
    try:
        return parse_event(letter.event).data.customer_id
    except ContractError:
        pass
    match letter.event:
        case {"detail": {"data": {"customerID": str(customer)}}}:
            return customer
        case _:
            return None


def _require_rest(stack: StackRef, found: _Found, quiet: timedelta) -> None:
    """Raise OperatorError if the rides may still change, or their events are under way."""
    now = datetime.now(UTC)
    open_rides = {
        item["orderID"]["S"] for item in found.bookings if item["status"]["S"] in OPEN
    } | set(_open_rides(stack, found.rides))
    if open_rides:
        raise OperatorError(
            f"rides of {found.customer} are open: {', '.join(sorted(open_rides))}. "
            "Cancel or complete them first: `./carride ride` says what each needs"
        )
    unpaid = set(_rides_to_be_paid(stack, found))
    if unpaid:
        raise OperatorError(
            f"{', '.join(sorted(unpaid))} was driven, and payment has not heard of it: redrive its "
            "dead letters first, or it is never paid"
        )
    for item in found.records:
        known = records.explain(record_of(item), now)
        if known.held:
            raise OperatorError(f"{known.key} is being processed: {known.says}; try again then")
    rests_at = max(_changes(found), default=datetime.min.replace(tzinfo=UTC)) + quiet
    if rests_at > now:
        raise OperatorError(
            f"a ride of {found.customer} has changed lately, and its events may be under way: "
            f"erase after {rests_at:%Y-%m-%d %H:%M UTC}"
        )


def _open_rides(stack: StackRef, rides: frozenset[str]) -> Iterator[str]:
    """Yield the rides of which dispatch or payment still needs something."""
    for table in ("AssignmentTable", "PaymentTable"):
        for item in records.items_in(stack, table, rides, "orderID"):
            if "openSince" in item:
                yield item["orderID"]["S"]


def _changes(found: _Found) -> Iterator[datetime]:
    """Yield when the history heard of the rides, and when their events were written to the outbox.

    The history may not have heard of these yet.
    """
    for item in found.history:
        yield datetime.fromtimestamp(int(item["updatedAt"]["N"]) / 1000, UTC)
    for event in found.outbox:
        yield datetime.fromisoformat(event["time"]["S"])


def _rides_to_be_paid(stack: StackRef, found: _Found) -> Iterator[str]:
    """Yield the rides that were driven and of which payment knows nothing, but for dead letters.

    Without these a ride is neither open nor paid.
    """
    driven = {
        item["orderID"]["S"]
        for item in records.items_in(stack, "BookingTable", found.rides, "orderID")
        if item["status"]["S"] == Status.COMPLETED
    }
    wait = {
        letter.ride
        for letter in found.letters
        if letter.consumer in _PAID_BY and letter.fact is not None
    }
    known = records.items_in(stack, "PaymentTable", found.rides, "orderID")
    yield from driven & wait - {item["orderID"]["S"] for item in known}


# ── Erasing ───────────────────────────────────────────────────────────────────────────────────────


def erased(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a ride or a fact without what is personal."""
    return {name: PERSONAL.get(name, value) for name, value in data.items()}


def _erase(stack: StackRef, found: _Found) -> None:
    """Erase what was found.

    Interrupted, it is run again. The rides' names go last: by them the rest is found.
    """
    dynamodb = stack.client("dynamodb")
    for item in found.outbox:
        dynamodb.delete_item(TableName=stack.outputs["OutboxTableName"], Key={"id": item["id"]})
    for item in found.records:
        _erase_record(stack, item)
    _delete_letters(stack, found.letters)
    for item in found.bookings:
        _erase_booking(stack, item)
    for item in found.history:
        _erase_entry(stack, item)


def _erase_record(stack: StackRef, item: tables.Wire) -> None:
    """Remove result, error and event of a record; an unfinished key is completed without effect."""
    record = record_of(item)
    left = record._replace(result=None, error=None, event=None)
    if record.status in _UNFINISHED:
        left = left._replace(
            status=COMPLETED, owner=ERASED, lease_ms=None, retry_ms=None, expiry=_end_of(record.key)
        )
        _mark(stack, record.key)
    kept = {name: value for name, value in item.items() if name not in item_of(record)}
    unchanged = records.unchanged(item)
    _unless_changed(
        stack,
        lambda: stack.client("dynamodb").put_item(
            TableName=_table_of(stack, record.key), Item=kept | item_of(left), **unchanged
        ),
        record.key,
    )


def _erase_booking(stack: StackRef, item: tables.Wire) -> None:
    left = {name: value for name, value in item.items() if name not in _OF_THE_OWNER}
    left = marshalling.item(erased(marshalling.values(left)))
    _unless_changed(
        stack,
        lambda: stack.client("dynamodb").put_item(
            TableName=stack.outputs["BookingTableName"],
            Item=left,
            ConditionExpression="#version = :seen",
            ExpressionAttributeNames={"#version": "version"},
            ExpressionAttributeValues={":seen": item["version"]},
        ),
        item["orderID"]["S"],
    )


def _erase_entry(stack: StackRef, item: tables.Wire) -> None:
    """Keep of an entry what happened and when."""
    data = erased(_data_of(item))
    stack.client("dynamodb").update_item(
        TableName=stack.outputs[f"{HISTORY}Name"],
        Key={"idempotencyKey": item["idempotencyKey"]},
        UpdateExpression="SET #entry.#data = :data",
        ConditionExpression="attribute_exists(#entry)",
        ExpressionAttributeNames={"#entry": "entry", "#data": "data"},
        ExpressionAttributeValues=marshalling.item({":data": data}),
    )


def _delete_letters(stack: StackRef, planned: Iterable[DeadLetter]) -> None:
    """Delete the dead letters that were planned, after a record answers for each event."""
    sqs = stack.client("sqs")
    ids = {letter.id for letter in planned}
    for letter, record, receipt in _letters(stack, hidden_s=HIDDEN_SECONDS):
        if letter.id not in ids:
            continue
        if letter.consumer is not None:
            if letter.fact is not None and record is None:
                _complete(stack, letter)
            _mark(stack, f"{letter.consumer}#{letter.fact or letter.event.get('id')}")
        sqs.delete_message(QueueUrl=url_of(stack, letter.queue), ReceiptHandle=receipt)


def _complete(stack: StackRef, letter: DeadLetter) -> None:
    """Write the record of an event that never takes effect, unless a delivery has written one."""
    key = str(letter.key)
    now_ms = epoch_ms()
    record = Record(
        key=key,
        status=COMPLETED,
        owner=ERASED,
        attempt=0,
        lease_ms=None,
        expiry=_end_of(key),
        fingerprint=fingerprint(parse_event(letter.event).payload),
        delivery=None,
        region=stack.region,
        created_ms=now_ms,
        updated_ms=now_ms,
    )
    dynamodb = stack.client("dynamodb")
    _unless_changed(
        stack,
        lambda: dynamodb.put_item(
            TableName=_table_of(stack, key),
            Item=item_of(record),
            ConditionExpression="attribute_not_exists(idempotencyKey)",
        ),
        key,
    )


def _mark(stack: StackRef, key: str) -> None:
    """Tell the audit that the event of a key may never take effect.

    An event that breaks the contract has no idempotency id, and is named by EventBridge's.
    """
    stack.client("dynamodb").put_item(
        TableName=stack.outputs[f"{MARKS}Name"], Item=records.mark_of(key)
    )


def _end_of(key: str) -> int | None:
    """Return when a record that is written now ends: those of the ride history do not."""
    if key.startswith(f"{_HISTORY}#"):
        return None
    return epoch_ms() // 1000 + 30 * DAY


def _table_of(stack: StackRef, key: str) -> str:
    """Return the table that has the record of a key."""
    return stack.outputs[f"{records_of(key)}Name"]


def _unless_changed(stack: StackRef, write: Callable[[], object], name: str) -> None:
    """Write, or raise OperatorError if the item has changed since it was read."""
    try:
        write()
    except stack.client("dynamodb").exceptions.ConditionalCheckFailedException:
        raise OperatorError(
            f"{name} has changed since it was read, and is not erased: run the command again"
        ) from None
