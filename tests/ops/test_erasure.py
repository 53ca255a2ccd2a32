"""`./carride erase`: nothing that is left names a customer, and no replay runs again."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from moto import mock_aws
from msgspec import structs

from carride.bookings import OWNER_CUSTOMER, Booking, booked
from carride.events import RideEvent
from carride.facts import FACTS, Fact
from carride.history import kept, latest_in, timeline_of
from carride.outbox import outbox_item
from carride.overdue import opened
from carride_idempotency import marshalling
from carride_idempotency.clock import epoch_ms
from carride_idempotency.decision import ClaimRequest, Done, Limits, decide
from carride_idempotency.fingerprint import fingerprint
from carride_idempotency.operators.sending import Verdict
from carride_idempotency.record import COMPLETED, FAILED, IN_PROGRESS, QUARANTINED, Record
from carride_idempotency.record_items import item_of, record_of
from ops import records
from ops.audit.evidence import HISTORY, MARKS, RECORD_TABLES
from ops.audit.reading import FORGOTTEN
from ops.dead_letters import failures
from ops.erasure import PERSONAL, erase
from ops.policies import records_of
from ops.stack import OperatorError, StackRef
from ops.verbs import Plan
from tests.carride.rides import Life, event
from tests.ops.world import AWAY, empty_stack

pytestmark = pytest.mark.proof  # hundreds of calls of moto: longer than a unit test

RIDE: Final = Life()
NAMES: Final = ("customer_a", "sector_01", "sector_64", "waited too long", "jwt:anna")
LONG_AGO: Final = timedelta(days=3)
TABLES: Final = ("BookingTable", "AssignmentTable", "PaymentTable", "OutboxTable", *RECORD_TABLES)


class Stored:
    """A stack that has a customer's ride in every table and queue."""

    def __init__(self) -> None:
        self.ref: StackRef = empty_stack()
        self.dynamodb: Any = self.ref.client("dynamodb")

    def put(self, table: str, item: Any) -> None:
        self.dynamodb.put_item(TableName=self.ref.outputs[f"{table}Name"], Item=item)

    def record(self, key: str, fact: Fact, **changes: Any) -> None:
        """Store a completed record of three days ago, or one with changes."""
        then = epoch_ms() - int(LONG_AGO.total_seconds() * 1000)
        payload = fingerprint(event(fact).payload)
        done = Record(key, COMPLETED, "one", 1, None, None, payload, "d", AWAY, then, then)
        keeps = kept(event(fact)) if key.startswith("ride-history#") else {}
        self.put(records_of(key), item_of(done._replace(**changes)) | marshalling.item(keeps))

    def hear(self, fact: Fact, **changes: Any) -> None:
        """Have the ride history hear of a fact."""
        self.record(f"ride-history#{event(fact).id}", fact, **changes)

    def book(self, status: str = "cancelled") -> None:
        booking = Booking.of(
            RIDE.cancelled, booked_at="2026-11-01T08:30:00+00:00", owner="jwt:anna"
        )
        put = booked("BookingTable", structs.replace(booking, status=status), datetime.now(UTC))
        self.put("BookingTable", marshalling.item(dict(put.item)))

    def letter(self, queue: str, sent: RideEvent, **changes: Any) -> None:
        detail = sent.to_detail()
        detail["data"] = {**detail["data"], **changes}
        body = {"version": "0", "id": f"id-{queue}", "source": sent.source, "detail": detail}
        self.ref.client("sqs").send_message(
            QueueUrl=self.ref.outputs[f"{queue}Url"], MessageBody=json.dumps(body)
        )

    def text(self) -> str:
        """Return everything in tables and queues, as text."""
        items = [
            marshalling.values(item)
            for table in TABLES
            for item in self.dynamodb.scan(TableName=self.ref.outputs[f"{table}Name"])["Items"]
        ]
        return repr(items) + repr(failures(self.ref, judge=lambda _: Verdict(False, "")))

    def found(self, key: str) -> Record:
        (item,) = records.items_at(self.ref, [key])
        return record_of(item)

    def marks(self) -> set[str]:
        found = self.dynamodb.scan(TableName=self.ref.outputs[f"{MARKS}Name"])["Items"]
        keys = {item["id"]["S"] for item in found}
        return {key.removeprefix(FORGOTTEN) for key in keys if key.startswith(FORGOTTEN)}


@pytest.fixture
def stored() -> Iterator[Stored]:
    """A stack without anything."""
    with mock_aws():
        yield Stored()


def everywhere(stored: Stored) -> None:
    """Have a cancelled ride in every table and queue, and another customer's beside it."""
    stored.book()
    for fact in (RIDE.created, RIDE.accepted, RIDE.cancelled):
        stored.hear(fact)
    cancelled = event(RIDE.cancelled)
    said = json.dumps({"detail": cancelled.to_detail()})
    stored.record("carride-api#jwt:b#one", RIDE.created, result=said)
    stored.record(
        f"payment#{cancelled.id}", RIDE.cancelled, status=QUARANTINED, error="sector_01", event=said
    )
    accepted = event(RIDE.accepted)
    stored.record(f"dispatch#{accepted.id}", RIDE.accepted, status=FAILED, attempt=1, event=said)
    now = datetime.now(UTC)
    stored.put("OutboxTable", marshalling.item(outbox_item(cancelled, region=AWAY, now=now)))
    stored.letter("PaymentDlq", cancelled)
    stored.letter("DispatchRuleDlq", event(RIDE.completed))
    stored.letter("RideHistoryDlq", event(RIDE.assigned), carID=7)
    stored.letter("ProducerDlq", event(RIDE.started))


def test_nothing_that_is_left_names_the_customer(stored: Stored) -> None:
    """Neither tables, records nor queues do; what happened stays, and the ride can be read."""
    everywhere(stored)
    before = stored.text()
    assert [name for name in NAMES if name not in before] == []
    plan = erase(stored.ref, "customer_a")
    assert stored.text() == before
    done = plan.do()
    assert done == plan.preview
    assert [name for name in NAMES if name in stored.text()] == []
    assert (done.rides, done.bookings, done.history, done.outbox) == (("order_01",), 1, 3, 1)
    assert dict(done.letters) == {
        "PaymentDlq": 1, "DispatchRuleDlq": 1, "RideHistoryDlq": 1, "ProducerDlq": 1
    }  # fmt: skip
    timeline = timeline_of(records.tables_of(stored.ref, "order_01")[HISTORY])
    assert [entry.type for entry in timeline][-1] == "CarRideCancelled"
    assert latest_in(timeline)["status"] == "cancelled"
    (booking,) = records.items_in(stored.ref, "BookingTable", ["order_01"], "orderID")
    erased = Booking.from_item(booking)
    assert (erased.customer_id, erased.owner) == ("erased", None)
    assert OWNER_CUSTOMER not in booking


def test_an_event_that_comes_again_is_a_duplicate(stored: Stored) -> None:
    """Whether it took effect, failed, was given up, or lay in a queue before any attempt."""
    everywhere(stored)
    erase(stored.ref, "customer_a").do()
    for consumer, fact in {
        "ride-history": RIDE.accepted,
        "payment": RIDE.cancelled,
        "dispatch": RIDE.accepted,
    }.items():
        _require_duplicate(stored, consumer, fact)
    _require_duplicate(stored, "dispatch", RIDE.completed)


def _require_duplicate(stored: Stored, consumer: str, fact: Fact) -> None:
    """Fail unless the next delivery of a fact is answered as a duplicate."""
    sent = event(fact)
    key = f"{consumer}#{sent.id}"
    payload = fingerprint(sent.payload)
    limits = Limits(86_400, 3, 30_000, 1_000, 1_000, same_delivery_takes_over=False)
    request = ClaimRequest(key, "two", payload, "again", AWAY, None, False, limits)
    assert isinstance(decide(stored.found(key), request, epoch_ms()), Done), key


def test_the_audit_knows_which_events_have_lost_their_letters(stored: Stored) -> None:
    """One that breaks the contract is named by EventBridge's id."""
    everywhere(stored)
    erase(stored.ref, "customer_a").do()
    assert stored.marks() == {
        f"payment#{event(RIDE.cancelled).id}",
        f"dispatch#{event(RIDE.accepted).id}",
        f"dispatch#{event(RIDE.completed).id}",
        "ride-history#id-RideHistoryDlq",
    }


def test_what_is_erased_is_not_found_again(stored: Stored) -> None:
    """An erasure that is repeated, or was interrupted, does what is left to do."""
    everywhere(stored)
    erase(stored.ref, "customer_a").do()
    again = erase(stored.ref, "customer_a").preview
    assert (again.rides, again.history, again.records, dict(again.letters)) == ((), 0, 0, {})
    stored.letter("RideHistoryDlq", event(RIDE.cancelled))
    again = erase(stored.ref, "customer_a").do()
    assert (again.rides, dict(again.letters)) == (("order_01",), {"RideHistoryDlq": 1})
    assert "customer_a" not in stored.text()


def test_other_customers_stay_as_they_are(stored: Stored) -> None:
    """Their rides, records and letters."""
    other = structs.replace(Life("order_02").cancelled, customer_id="customer_b")
    stored.hear(other)
    stored.letter("PaymentDlq", event(other))
    stored.record("carride-api#jwt:b#one", other, result='{"customerID": "customer_ab"}')
    before = stored.text()
    assert erase(stored.ref, "customer_a").do().rides == ()
    assert stored.text() == before


@pytest.mark.parametrize(
    ("table", "item"),
    [
        ("BookingTable", None),
        ("AssignmentTable", {"orderID": "order_01", "state": "assigned"}),
        ("PaymentTable", {"orderID": "order_01", "state": "undo due"}),
    ],
    ids=["booked", "with a car", "money to return"],
)
def test_an_open_ride_is_not_erased(stored: Stored, table: str, item: Any) -> None:
    """Car and money are still to be settled, for which its data is needed."""
    stored.hear(RIDE.created)
    if item is None:
        stored.book("accepted")
    else:
        stored.put(table, marshalling.item(item | opened("order_01", datetime.now(UTC))))
    before = stored.text()
    with pytest.raises(OperatorError, match="are open: order_01"):
        erase(stored.ref, "customer_a")
    assert stored.text() == before


def test_a_ride_that_has_changed_lately_is_not_erased(stored: Stored) -> None:
    """Its events may be under way, and would be written again."""
    stored.hear(RIDE.cancelled, updated_ms=epoch_ms())
    with pytest.raises(OperatorError, match="changed lately"):
        erase(stored.ref, "customer_a")
    assert isinstance(erase(stored.ref, "customer_a", quiet=timedelta()), Plan)


def test_a_ride_whose_change_the_history_has_not_heard_of_is_not_erased(stored: Stored) -> None:
    """All of its events are under way."""
    stored.book()
    now = datetime.now(UTC)
    cancelled = structs.replace(event(RIDE.cancelled), time=now)
    stored.put("OutboxTable", marshalling.item(outbox_item(cancelled, region=AWAY, now=now)))
    with pytest.raises(OperatorError, match="changed lately"):
        erase(stored.ref, "customer_a")


@pytest.mark.parametrize("queue", ["PaymentDlq", "DispatchDlq"])
def test_a_driven_ride_that_payment_will_hear_of_is_not_erased(stored: Stored, queue: str) -> None:
    """Its dead letter is all that has it paid. Once payment knows of it, it may go."""
    stored.book("completed")
    stored.hear(RIDE.completed)
    stored.letter(queue, event(RIDE.completed))
    with pytest.raises(OperatorError, match="redrive its dead letters first"):
        erase(stored.ref, "customer_a")
    paid = {"orderID": "order_01", "state": "captured", "effects": 1}
    stored.put("PaymentTable", marshalling.item(paid))
    assert isinstance(erase(stored.ref, "customer_a"), Plan)


def test_a_key_that_is_held_is_not_erased(stored: Stored) -> None:
    """Its attempt would commit what it has read."""
    stored.hear(RIDE.cancelled)
    held = {"status": IN_PROGRESS, "lease_ms": epoch_ms() + 60_000}
    stored.record(f"payment#{event(RIDE.cancelled).id}", RIDE.cancelled, **held)
    with pytest.raises(OperatorError, match="is being processed"):
        erase(stored.ref, "customer_a")


def test_a_record_that_has_changed_meanwhile_is_left_alone(stored: Stored) -> None:
    """A delivery that claims a failed key in between commits what it decides."""
    everywhere(stored)
    key = f"dispatch#{event(RIDE.accepted).id}"
    plan = erase(stored.ref, "customer_a")
    stored.record(key, RIDE.accepted, status=FAILED, attempt=2)
    with pytest.raises(OperatorError, match="has changed since it was read"):
        plan.do()
    assert stored.found(key).attempt == 2


def test_every_field_is_personal_or_is_not() -> None:
    """A new field of a ride or a fact says here whether an erasure removes it."""
    kept_fields = {
        *("orderID", "version", "status", "price", "previousPrice", "currency"),
        *("carID", "paymentID", "amount", "outcome"),
    }
    fields = {field.encode_name for fact in FACTS.values() for field in structs.fields(fact)}
    assert fields == kept_fields | PERSONAL.keys()
