"""What a search finds, in the desk and for an unknown id: by one code, and by any id."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moto import mock_aws

from carride.events import DETAIL_TYPE, RideEvent
from carride.facts import CarAssigned, PaymentCaptured
from carride_idempotency import marshalling
from ops import search
from ops.audit.evidence import CONSUMERS
from ops.desk.index import Index
from ops.search import CAR, CUSTOMER, EVENT, LETTER, PAYMENT, RIDE, TYPE, Match, matches
from ops.stack import OperatorError, StackRef
from ops.tests.desk_world import BEGIN_MS, desk_of, event_of, get, publish, published_detail
from ops.tests.world import empty_stack, log
from tests.kit.rides import Life

pytestmark = pytest.mark.proof  # hundreds of calls of moto: longer than a unit test


def life(number: int) -> list[RideEvent]:
    """Return the events of a ride that customer_1, car_07 and a payment have."""
    ride = Life(f"order_{number}", customer=f"customer_{number % 2}")
    paid = {"payment_id": f"pay_order_{number}", "amount": 1250}
    facts = [
        ride.created,
        CarAssigned.of(ride.accepted, car_id=f"car_{number % 3:02}"),
        PaymentCaptured.of(ride.completed, **paid),
    ]
    return [event_of(fact) for fact in facts]


EVENTS = [event for number in range(1, 7) for event in life(number)]
ASSIGNED = EVENTS[1]


@pytest.fixture
def ref() -> Iterator[StackRef]:
    """Return a stack whose log and tables have what the events say."""
    with mock_aws():
        made = empty_stack()
        dynamodb = made.client("dynamodb")
        for event in EVENTS:
            for table, attribute in (("Assignment", "carID"), ("Payment", "paymentID")):
                name = event.to_detail()["data"].get(attribute)
                if name:
                    item = {"orderID": event.subject, attribute: name, "effects": 0}
                    dynamodb.put_item(TableName=table, Item=marshalling.item(item))
            if event.type == "CarRideCreated":
                ids = {"orderID": event.subject, "customerID": event.data.customer_id}
                booking = ids | {"version": 4, "status": "completed"}
                dynamodb.put_item(TableName="Booking", Item=marshalling.item(booking))
        for number, event in enumerate(EVENTS):
            line = {
                "id": f"00000000-0000-4000-8000-{number:012}",
                "source": event.source,
                "detail-type": DETAIL_TYPE,
                "detail": published_detail(event),
            }
            log(made, "CarRideEvents", line)
        yield made


ASKED = [
    ("order_3", RIDE, "order_3", "/ride/order_3"),
    (" Order_3\n", RIDE, "order_3", "/ride/order_3"),
    ("customer_1", CUSTOMER, "customer_1", ("order_5", "order_3", "order_1")),
    ("CUSTOMER_1", CUSTOMER, "customer_1", ("order_5", "order_3", "order_1")),
    ("car_02", CAR, "car_02", ("order_5", "order_2")),
    ("`car_02`,", CAR, "car_02", ("order_5", "order_2")),
    ("pay_order_4", PAYMENT, "pay_order_4", "/ride/order_4"),
    ("pay_order_4*", PAYMENT, "pay_order_4", "/ride/order_4"),
    (ASSIGNED.idempotencyid, EVENT, ASSIGNED.idempotencyid, f"/event/{ASSIGNED.idempotencyid}"),
    (
        ASSIGNED.idempotencyid.upper(),
        EVENT,
        ASSIGNED.idempotencyid,
        f"/event/{ASSIGNED.idempotencyid}",
    ),
    (
        f"{ASSIGNED.idempotencyid[:8]}…{ASSIGNED.idempotencyid[-4:]}",
        EVENT,
        ASSIGNED.idempotencyid,
        f"/event/{ASSIGNED.idempotencyid}",
    ),
]


@pytest.mark.parametrize(("text", "kind", "name", "leads_to"), ASKED)
def test_desk_and_command_find_the_same(
    ref: StackRef, text: str, kind: str, name: str, leads_to: str | tuple[str, ...]
) -> None:
    """In the events that the desk holds, in the log once it holds them no more, and by command.

    The desk lists the rides of a customer or of a car, the newest first.
    """
    fresh = desk_of(ref)
    held = desk_of(ref)
    for number, event in enumerate(EVENTS):
        publish(held.feed.index, event, BEGIN_MS + number)
    (found,) = search.find(ref, text).found
    assert (found.kind, found.id) == (kind, name)
    for desk in (held, fresh):
        answer = get(desk, f"/find?q={quote(text, safe='')}")
        if isinstance(leads_to, str):
            assert (answer.status, answer.headers["location"]) == (303, leads_to)
        else:
            assert answer.status == 200
            assert re.findall(r'href="/ride/(\w+)"', answer.text) == [*leads_to]


def test_a_type_of_event_is_found_by_the_command_only(ref: StackRef) -> None:
    """The desk has no list of events."""
    (found,) = search.find(ref, "carrideCREATED").found
    assert (found.kind, found.id) == (TYPE, "CarRideCreated")
    assert get(desk_of(ref), "/find?q=CarRideCreated").status == 404


def test_how_a_car_begins_lists_the_cars(ref: StackRef) -> None:
    """Held by the desk or not; each leads to its rides."""
    held = desk_of(ref)
    for number, event in enumerate(EVENTS):
        publish(held.feed.index, event, BEGIN_MS + number)
    for desk in (held, desk_of(ref)):
        several = get(desk, "/find?q=car_")
        assert several.status == 200
        for car in ("car_00", "car_01", "car_02"):
            assert f'href="/find?q={car}"' in several.text
    assert search.find(ref, "car_02").found[0].rides == ("order_5", "order_2")


def test_a_search_that_finds_nothing_says_where_it_looked(ref: StackRef) -> None:
    """With the status 404, and the command that looks further back."""
    answer = get(desk_of(ref), "/find?q=car_99")
    assert answer.status == 404
    assert "<title>car_99: nothing found · CarRide desk</title>" in answer.text
    assert "./carride ride car_99" in answer.text
    found = search.find(ref, "car_99")
    assert found.found == ()
    assert "the log since" in found.says


@pytest.mark.parametrize(
    ("verb", "text", "command"),
    [
        (search.ride, "order_", "./carride ride order_1"),
        (search.ride, "6", "./carride ride order_6"),
        (search.ride, "car_02", "./carride ride order_5"),
        (search.ride, ASSIGNED.idempotencyid, f"./carride event {ASSIGNED.idempotencyid}"),
        (search.event, ASSIGNED.idempotencyid[:8], f"./carride event {ASSIGNED.idempotencyid}"),
        (search.event, "order_4", "./carride ride order_4"),
    ],
)
def test_an_unknown_id_is_answered_with_what_begins_like_it(
    ref: StackRef, verb: Callable[[StackRef, str], object], text: str, command: str
) -> None:
    """By the commands that show it: whole, to be copied."""
    with pytest.raises(OperatorError) as raised:
        verb(ref, text)
    assert command in [line.strip().partition("  ")[0] for line in str(raised.value).splitlines()]


@pytest.mark.parametrize("verb", [search.ride, search.event])
def test_an_id_like_no_other_is_answered_so(
    ref: StackRef, verb: Callable[[StackRef, str], object]
) -> None:
    """After where it was looked for, and with what was searched, and how far back."""
    with pytest.raises(OperatorError, match="nothing begins like it") as raised:
        verb(ref, "car_99")
    searched, _, _ = search.find(ref, "car_99").says.partition(" since ")
    assert f"{searched} since " in str(raised.value)


@contextmanager
def asked(ref: StackRef, service: str, operation: str) -> Iterator[list[dict[str, Any]]]:
    """Collect the parameters of a service's requests."""
    requests: list[dict[str, Any]] = []

    def note(params: dict[str, Any], **_: object) -> None:
        requests.append(params)

    events = ref.client(service).meta.events
    name = f"provide-client-params.{service}.{operation}"
    events.register(name, note)
    yield requests
    events.unregister(name, note)


def test_an_unknown_event_is_looked_up_once(ref: StackRef) -> None:
    """Its consumers' logs are read whole, which takes minutes in a stack of some age."""
    unknown = "00000000-0000-4000-8000-00000000abcd"
    with asked(ref, "logs", "FilterLogEvents") as requests, pytest.raises(OperatorError):
        search.event(ref, unknown)
    logs = [each["logGroupName"] for each in requests]
    for consumer in CONSUMERS:
        assert logs.count(consumer.resources) == 1


@pytest.mark.parametrize("text", ["3", "Car_0", "order_3"])
def test_a_search_scans_each_table_once(ref: StackRef, text: str) -> None:
    """However many spellings a number or a name in capitals has."""
    with asked(ref, "dynamodb", "Scan") as requests:
        search.find(ref, text)
    scanned = sorted(each["TableName"] for each in requests)
    assert scanned == ["Assignment", "Car", "Payment"]


def test_tables_and_queues_are_searched_too(ref: StackRef) -> None:
    """A booking that has no event yet, the ride of a car, and a dead letter by its id."""
    dynamodb = ref.client("dynamodb")
    booking = {"orderID": {"S": "order_new"}, "customerID": {"S": "customer_new"}}
    dynamodb.put_item(TableName="Booking", Item=booking)
    car = {"zone": {"S": "z"}, "carID": {"S": "car_new"}, "rideID": {"S": "order_new"}}
    dynamodb.put_item(TableName="Car", Item=car)
    url = ref.outputs["PaymentDlqUrl"]
    body = json.dumps({"detail": EVENTS[0].to_detail()})
    letter = ref.client("sqs").send_message(QueueUrl=url, MessageBody=body)["MessageId"]
    for text in ("customer_new", "car_new"):
        (found,) = search.find(ref, text).found
        assert (found.id, found.rides) == (text, ("order_new",))
    assert search.find(ref, "order_new").found[0].kind == RIDE
    for text in (letter, letter[:13].upper()):
        found = next(each for each in search.find(ref, text).found if each.kind == LETTER)
        assert found.id == letter
        assert found.command == f"./carride letters {letter}"
    for text in (letter, f"{letter[:8]}…{letter[-4:]}"):
        answer = get(desk_of(ref), f"/find?q={quote(text)}")
        assert answer.headers["location"] == f"/letters?letter={letter}"


@pytest.mark.parametrize("queue", ["ProducerDlq", "RideHistoryDlq", "PaymentRuleDlq"])
def test_a_ride_that_only_a_dead_letter_names_is_found(ref: StackRef, queue: str) -> None:
    """It was never published, breaks the contract, or is older than what the desk holds."""
    (event, *_) = life(77)
    detail = event.to_detail() | {"type": "CarRideTeleported"}
    ref.client("sqs").send_message(
        QueueUrl=ref.outputs[f"{queue}Url"], MessageBody=json.dumps({"detail": detail})
    )
    for text in (event.subject, event.subject[:-1]):
        found = search.find(ref, text).found
        assert Match(RIDE, event.subject) in [Match(each.kind, each.id) for each in found]
        answer = get(desk_of(ref), f"/find?q={text}")
        assert answer.headers["location"] == f"/ride/{event.subject}"


def test_what_is_forgotten_is_not_found() -> None:
    """The index holds names for the events that it holds, and for no others."""
    index = Index(CONSUMERS, most=4)
    for number, event in enumerate(EVENTS):
        publish(index, event, BEGIN_MS + number)
    held = {fact.id for fact in index.facts.values()}
    for names in index.naming.values():
        for facts in names.values():
            assert facts.keys() <= held
            assert facts
    assert index.rides_naming(Match(CUSTOMER, "customer_0")) == ["order_6"]


@given(
    number=st.integers(0, 99_999),
    zeros=st.integers(0, 3),
    written=st.integers(0, 7),
    word=st.sampled_from(["", "order ", "order_", "Order-", " ORDER "]),
    others=st.lists(st.integers(0, 99_999)),
)
def test_a_ride_is_found_by_its_number(
    number: int, zeros: int, written: int, word: str, others: list[int]
) -> None:
    """With its zeros, with fewer or more, and with its word or without."""
    ride = f"order_1_{number:0{written}}"
    names = {ride, *(f"order_1_{each:05}" for each in others if each != number)}
    found = matches(f"{word}{'0' * zeros}{number}", {RIDE: names, CAR: [f"car_{number}"]})
    assert found == [Match(RIDE, ride)]


@pytest.mark.parametrize("text", ["3", "0003", "order 3", "order_003", " Order 03"])
def test_desk_and_command_find_a_ride_by_its_number(ref: StackRef, text: str) -> None:
    """In the events that the desk holds, in the tables and in the log."""
    held = desk_of(ref)
    for number, event in enumerate(EVENTS):
        publish(held.feed.index, event, BEGIN_MS + number)
    for desk in (held, desk_of(ref)):
        answer = get(desk, f"/find?q={quote(text)}")
        assert (answer.status, answer.headers["location"]) == (303, "/ride/order_3")


@given(st.text(max_size=12), st.lists(st.text(min_size=1, max_size=12), max_size=8))
def test_an_id_is_found_by_itself_and_by_how_it_begins(text: str, names: list[str]) -> None:
    """Whatever its characters are, and nothing is found that does not begin so."""
    wanted = search.asked_for(text)
    for each in matches(text, {CAR: names}):
        begin = wanted.casefold().replace("...", "…").partition("…")[0].rstrip("*")
        assert each.id == wanted or each.id.casefold().startswith(begin)
    for name in names:
        if search.asked_for(name) == name:
            assert matches(f" {name}\t", {RIDE: names}) == [Match(RIDE, name)]
