"""Finds what has an id: rides, events, keys and dead letters. Changes nothing.

A ride is found by its own id, and by that of its customer, its car and its payment.
`matches` decides what a text means, for the desk and for the verbs `ride` and `event` alike, which
answer with what begins like an id that they do not know. The desk searches the events that it
holds, and `find` what tables, queues and the log of events have.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

from carride.bookings import OWNER_CUSTOMER
from carride.facts import FACTS
from ops import lookup, records, tables
from ops.audit import reading
from ops.audit.evidence import Published
from ops.dead_letters import DeadLetter, queues_of, received_from
from ops.stack import OperatorError, StackRef
from ops.verbs import reads

RIDE: Final = "ride"
CUSTOMER: Final = "customer"
CAR: Final = "car"
PAYMENT: Final = "payment"
EVENT: Final = "event"
TYPE: Final = "type of event"
LETTER: Final = "dead letter"
KEY: Final = "key"

_ANSWERED: Final = 10
"""The most matches that an unknown id is answered with."""
MOST: Final = 50
"""The most matches of a search that are listed, and the most rides of one of them."""
_SINCE: Final = timedelta(days=1)
_PATHS: Final = ("subject", "idempotencyid", "data.customerID")
"""Where an event in the log has an id that a filter of logs can read. The outbox's pipe publishes
data in base64, so that the ids in those are found in tables."""
_INDEXES: Final[Mapping[str, str]] = {"customerID": "byCustomer", OWNER_CUSTOMER: "byOwner"}
_SCANNED: Final = (("AssignmentTable", "carID", CAR), ("PaymentTable", "paymentID", PAYMENT))
"""Tables in which a ride names its car or its payment, and the attribute."""
is_name: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}").fullmatch
"""Whether a text may be the id of a ride, a customer, a car or a payment."""
_as_number: Final = re.compile(r"(?:([A-Za-z]+)[ _-])?0*([0-9]{1,12})", re.ASCII).fullmatch
"""Whether a text may be the number of a ride: the word before it, and what follows its zeros."""
is_hex: Final = re.compile(r"[0-9a-f-]{6,36}").fullmatch
"""Whether a UUID may begin with a text."""


class Match(NamedTuple):
    """Something that has an id."""

    kind: str
    id: str


class Found(NamedTuple):
    """A match, with the rides that it belongs to."""

    kind: str
    id: str
    rides: tuple[str, ...]
    """Up to `MOST`, those of a customer the newest first; of a ride itself none."""
    command: str
    """Shows more about it."""


class Search(NamedTuple):
    """What a search has found."""

    found: tuple[Found, ...]
    more: int
    """Further matches, which are not listed."""
    says: str
    """What was searched."""


def asked_for(text: str) -> str:
    """Return what somebody looks for, without what a copied text may have around it."""
    return " ".join(text.split()).strip(" \"'`,;")


def matches(text: str, ids: Mapping[str, Collection[str]]) -> list[Match]:
    """Return what a text means, of the known ids of each kind.

    An id as it is comes first, then one in other case, then the rides whose number it is, as 107 or
    `order 00107` of order_00107, then those that begin so, or that lists shorten so, as
    `7f3c1c1e…3e4f`: the first of these that finds anything counts.
    """
    wanted = asked_for(text)
    found = [Match(kind, wanted) for kind, known in ids.items() if wanted in known]
    if found or not wanted.strip("*…"):
        return found
    folded = wanted.casefold().replace("...", "…")
    begin, is_shortened, end = folded.partition("…")
    begin = begin.rstrip("*")
    alike = list[Match]()
    longer = list[Match]()
    for kind, known in ids.items():
        for each in known:
            name = each.casefold()
            if not name.startswith(begin) or not name.endswith(end):
                continue
            (alike if name == folded else longer).append(Match(kind, each))
    if is_shortened:
        longer = [each for each in longer if len(each.id) > len(begin) + len(end)]
    numbered = [] if alike else _numbered(wanted, ids.get(RIDE, ()))
    return sorted(alike or numbered or longer, key=lambda each: each.id)


def _numbered(wanted: str, rides: Collection[str]) -> list[Match]:
    """Return the rides with a number, which may lack its zeros and the word before it."""
    asked = _as_number(wanted)
    if asked is None:
        return []
    is_of = re.compile(rf"{asked[1] or 'order'}[_-](?:.*[_-])?0*{asked[2]}", re.IGNORECASE)
    return [Match(RIDE, each) for each in rides if is_of.fullmatch(each)]


def named_by(event: Published) -> Iterator[Match]:
    """Yield the customer, the car and the payment that an event names."""
    named = {CUSTOMER: event.customer, CAR: event.car, PAYMENT: event.payment}
    for kind, name in named.items():
        if name:
            yield Match(kind, name)


def named_by_letter(letter: DeadLetter) -> Iterator[Match]:
    """Yield a dead letter, and the ride and the event that it names, if these have usual ids."""
    yield Match(LETTER, letter.id)
    if letter.ride is not None and is_name(letter.ride):
        yield Match(RIDE, letter.ride)
    if letter.fact is not None:
        yield Match(EVENT, letter.fact)


# ── In tables, queues and the log ─────────────────────────────────────────────────────────────────


@reads("ride", "order_01")
def ride(stack: StackRef, order_id: str, /) -> lookup.Ride:
    """Show where a ride is, and what became of each of its events at each consumer.

    An id that no ride has is answered with what begins like it, of the last day: rides, events, and
    the rides of a customer, a car or a payment.

    Args:
        order_id: The ride's id, such as order_01.
    """
    try:
        return lookup.ride(stack, order_id)
    except lookup.UnknownError as error:
        raise _with_alike(error, stack, order_id) from error


@reads("event", "7f3c1c1e-6a51-5d0c-9f5e-1b8a4c2d3e4f")
def event(stack: StackRef, event_id: str, /) -> lookup.Event:
    """Show an event, decoded, and what became of it at each consumer.

    An id that no event has is answered with what begins like it, of the last day.

    Args:
        event_id: Its idempotency id, the id that another producer gave it, or EventBridge's id.
    """
    try:
        return lookup.event(stack, event_id)
    except lookup.UnknownError as error:
        raise _with_alike(error, stack, event_id, unknown=event_id) from error


def _with_alike(
    error: lookup.UnknownError, stack: StackRef, text: str, *, unknown: str = ""
) -> OperatorError:
    """Return an error that also names what begins like an unknown id, with the commands."""
    search = _searched(stack, text, unknown)
    found = [each for each in search.found if each.command]
    if not found:
        return OperatorError(f"{error}; nothing begins like it ({search.says})")
    lines = [f"{error}. What begins like it:"]
    lines += [f"  {each.command}  {each.kind} {each.id}" for each in found[:_ANSWERED]]
    more = search.more + len(found) - _ANSWERED
    if more > 0:
        lines.append(f"  and {more:,} more: write more of it")
    return OperatorError("\n".join(lines))


def find(stack: StackRef, text: str) -> Search:
    """Return what has an id, or an id that begins so. Upper and lower case are alike.

    Rides are found by their own id, and by that of their customer, car or payment: in the tables,
    and in the log of events of the last day. A type of event is one, too. The tables of cars,
    assignments and payments are read whole.
    """
    return _searched(stack, text, "")


def _searched(stack: StackRef, text: str, unknown: str) -> Search:
    """Return what `find` does; ``unknown`` is the id of an event that `lookup` has not found."""
    wanted = asked_for(text)
    begin = datetime.now(UTC) - _SINCE
    known = _known(stack, wanted, begin, unknown)
    found = matches(wanted, known)
    kept = max(begin, reading.kept_since(stack))
    says = f"searched: tables, dead-letter queues, and the log since {kept.day} {kept:%b %H:%M} UTC"
    shown = tuple(_found(each, known) for each in found[:MOST])
    return Search(shown, len(found) - len(shown), says)


type _Known = defaultdict[str, dict[str, dict[str, None]]]
"""Rides by id and kind, the newest first."""


def _found(match: Match, known: _Known) -> Found:
    rides = tuple(known[match.kind][match.id])[:MOST]
    command = {
        RIDE: f"./carride ride {match.id}",
        EVENT: f"./carride event {match.id}",
        TYPE: f"./carride tail --type {match.id} --since 1h",
        KEY: f"./carride keys '{match.id}'",
        LETTER: f"./carride letters {match.id}",
    }.get(match.kind, "")
    if not command and rides:
        command = f"./carride ride {rides[0]}"
    return Found(match.kind, match.id, rides, command)


def _known(stack: StackRef, wanted: str, since: datetime, unknown: str) -> _Known:
    """Return the ids in a stack that may match a text."""
    known: _Known = defaultdict(dict)
    known[TYPE] = {name: {} for name in FACTS}
    if "#" in wanted:
        for record in records.StackRecords(stack).at([wanted]):
            known[KEY][record.key] = {}
        return known
    name, _, _ = wanted.replace("...", "…").partition("…")
    name = name.rstrip("*").replace(" ", "_")
    if not is_name(name):
        return known
    spellings = sorted({name, name.lower(), *_rides_numbered(name)})
    for each in spellings:
        _add_logged(known, stack, each, since)
        _add_stored(known, stack, each)
    _add_scanned(known, stack, spellings)
    _add_letters(known, stack)
    # Looking an event up reads the logs whole.
    if name != unknown and is_hex(name.lower()):
        _add_event(known, stack, name.lower())
    return known


def _rides_numbered(name: str) -> Iterator[str]:
    """Yield how the ids of rides with a number are usually written."""
    if name.isdecimal() and name.isascii():
        yield f"order_{name}"
        yield f"order_{int(name):02}"
        yield f"order_{int(name):05}"


def _add(known: _Known, match: Match, ride: str | None) -> None:
    rides = known[match.kind].setdefault(match.id, {})
    if ride is not None:
        rides.setdefault(ride)


def _add_logged(known: _Known, stack: StackRef, begin: str, since: datetime) -> None:
    """Add what the events in the log name, if an id in them begins so; the newest first."""
    terms = [f'$.detail.{path} = "{begin}*"' for path in _PATHS]
    lines = reading.lines(stack, reading.BUS, f"{{ {' || '.join(terms)} }}", since)
    for line in reversed(list(lines)):
        published = reading.published_in(line)
        if published is None or published.named is None or published.fact is None:
            continue
        ride = published.named.order_id
        _add(known, Match(RIDE, ride), None)
        _add(known, Match(EVENT, published.fact), ride)
        for match in named_by(published):
            _add(known, match, ride)


def _add_stored(known: _Known, stack: StackRef, name: str) -> None:
    """Add the ride and the customer that the tables have under an id."""
    dynamodb = stack.client("dynamodb")
    if any(records.tables_of(stack, name).values()):
        _add(known, Match(RIDE, name), None)
    for attribute, index in _INDEXES.items():
        pages = dynamodb.get_paginator("query").paginate(
            TableName=stack.outputs["BookingTableName"],
            IndexName=index,
            KeyConditionExpression="#customer = :customer",
            ExpressionAttributeNames={"#customer": attribute},
            ExpressionAttributeValues={":customer": {"S": name}},
            ScanIndexForward=False,
        )
        for page in pages:
            for item in page["Items"]:
                _add(known, Match(CUSTOMER, name), item["orderID"]["S"])


def _add_scanned(known: _Known, stack: StackRef, spellings: Iterable[str]) -> None:
    """Add the cars and payments whose ids begin in one of these ways."""
    for item in _scanned(stack, "CarTable", "carID", spellings):
        ride = item.get("rideID", {}).get("S")
        _add(known, Match(CAR, item["carID"]["S"]), ride)
    for table, attribute, kind in _SCANNED:
        for item in _scanned(stack, table, attribute, spellings):
            _add(known, Match(kind, item[attribute]["S"]), item["orderID"]["S"])


def _scanned(
    stack: StackRef, table: str, attribute: str, spellings: Iterable[str]
) -> Iterator[tables.Wire]:
    """Yield the items of a table whose attribute begins in one of these ways."""
    begins = {f"begin{number}": each for number, each in enumerate(spellings)}
    condition = " OR ".join(f"begins_with(#{attribute}, :{begin})" for begin in begins)
    dynamodb = stack.client("dynamodb")
    return tables.scan(dynamodb, stack.outputs[f"{table}Name"], condition, **begins)


def _add_letters(known: _Known, stack: StackRef) -> None:
    """Add the dead letters by SQS's ids, and the rides and events that they name."""
    for queue in queues_of(stack):
        for letter, _, _ in received_from(stack, queue):
            for match in named_by_letter(letter):
                _add(known, match, None if match.kind == RIDE else letter.ride)


def _add_event(known: _Known, stack: StackRef, name: str) -> None:
    """Add an event by its whole id, which may be EventBridge's."""
    try:
        event = lookup.event(stack, str(UUID(name)))
    except (ValueError, OperatorError):
        return
    _add(known, Match(EVENT, name), event.ride)
