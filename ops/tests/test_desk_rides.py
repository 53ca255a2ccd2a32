"""The page of a ride: what it says, and the picture of what happened."""

import re
import shlex
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from moto import mock_aws
from msgspec.structs import replace

from carride.events import RideEvent
from carride.facts import (
    CarReleased,
    CarRideOverdue,
    NoCarAvailable,
    PaymentAuthorized,
    PaymentCaptured,
    PaymentDeclined,
)
from carride_idempotency import marshalling, observation
from carride_idempotency.record import COMPLETED, FAILED, IN_PROGRESS, QUARANTINED, Record, Status
from ops.audit.evidence import CONSUMERS, DeadLettered
from ops.audit.problems import Broken, Need, Overdue, Problem
from ops.dead_letters import Redrives
from ops.desk.axis import ROOMS, Axis, Label
from ops.desk.deliveries import deliveries_of
from ops.desk.endings import ending_of
from ops.desk.facts import CRASHED
from ops.desk.index import Index
from ops.desk.story import Story, story_of
from ops.desk.story_known import Known
from ops.desk.waterfall import Picture, picture
from ops.desk.words import clock_text, published_text
from ops.holds import Hold, Kind
from ops.search import MOST
from ops.stack import StackRef
from ops.tests.desk_world import BEGIN_MS, deliver, desk_of, event_of, get, publish
from ops.tests.world import empty_stack
from ops.text import span
from tests.kit.rides import Life

pytestmark = pytest.mark.proof  # hundreds of calls of moto: longer than a unit test

LIFE: Final = Life("order_01")
CREATED: Final = event_of(LIFE.created)
ACCEPTED: Final = event_of(LIFE.accepted)
ASSIGNED: Final = event_of(LIFE.assigned, ACCEPTED)
PAID: Final = {"payment_id": "pay_1", "amount": 1250}
AUTHORIZED: Final = event_of(PaymentAuthorized.of(LIFE.accepted, **PAID), ASSIGNED)
STARTED: Final = event_of(LIFE.started)
FINISHED: Final = event_of(LIFE.completed)
RELEASED: Final = event_of(CarReleased.of(LIFE.completed, car_id="car_01"), FINISHED)
CAPTURED: Final = event_of(PaymentCaptured.of(LIFE.completed, **PAID), FINISHED)
NOTHING: Final[dict[str, Any]] = {
    name: {} for name in ("BookingTable", "AssignmentTable", "PaymentTable", "RideHistoryTable")
}
NO_ANSWER: Final = "GatewayUnavailableError: no answer"


def driven() -> Index:
    """Return what the logs say of a ride that is completed and whose money is reserved."""
    index = Index(CONSUMERS)
    at_ms = BEGIN_MS
    for event in (CREATED, ACCEPTED, ASSIGNED, AUTHORIZED, STARTED, FINISHED, RELEASED):
        publish(index, event, at_ms)
        for each in CONSUMERS:
            is_capture = each.name == "payment" and event is FINISHED
            if each.takes(event.type) and not is_capture:
                deliver(index, event, each.name, at_ms + 100)
        at_ms += 200
    return index


DRIVEN_MS: Final = BEGIN_MS + 7 * 200


def known(index: Index, **changes: Any) -> Known:
    """Return what is known of the ride of these logs."""
    with_defaults: dict[str, Any] = {
        "tables": NOTHING
        | {
            "AssignmentTable": {"state": "released", "carID": "car_01"},
            "PaymentTable": {"state": "authorized", "amount": 1250, "currency": "EUR"},
        },
        "records": {},
        "problems": (),
        "overdue": None,
        "limit": timedelta(hours=4),
        "retries_on_aws": True,
        "now_ms": float(DRIVEN_MS + 1_000),
    } | changes
    retries = with_defaults.pop("retries", {})
    redriven = with_defaults.pop("redriven", {})
    found = [
        (fact, deliveries_of(fact, CONSUMERS, retries, redriven))
        for fact in index.of_ride("order_01")
    ]
    found = [
        (fact, [each for each in delivered if _takes(each.consumer, fact.type)])
        for fact, delivered in found
    ]
    return Known("order_01", found, **with_defaults)


def _takes(consumer: str, kind: str | None) -> bool:
    return any(each.name == consumer and each.takes(kind) for each in CONSUMERS)


def record(event: RideEvent, consumer: str, status: Status, **changes: Any) -> dict[str, Record]:
    """Return a record by its key."""
    key = f"{consumer}#{event.idempotencyid}"
    made = Record(
        key=key,
        status=status,
        owner="owner",
        attempt=3,
        lease_ms=None,
        expiry=None,
        fingerprint=None,
        delivery=None,
        region=None,
        created_ms=BEGIN_MS,
        updated_ms=DRIVEN_MS,
    )
    return {key: made._replace(**changes)}


def drawn(index: Index, **changes: Any) -> tuple[Story, Picture]:
    """Return the story and the picture of these logs."""
    hides = changes.pop("hides", None)
    facts = known(index, **changes)
    story = story_of(facts)
    shown = picture(facts.found, story.emitters, facts.now_ms, expects=story.goes_on, hides=hides)
    return story, shown


# ── What it says ──────────────────────────────────────────────────────────────────────────────────


def given_up() -> tuple[Index, dict[str, Record]]:
    index = driven()
    for attempt in (1, 2):
        at_ms = DRIVEN_MS + attempt * 100
        told = {"attempt": attempt, "reason": NO_ANSWER}
        deliver(index, FINISHED, "payment", at_ms, observation.FAILED, **told)
    deliver(
        index,
        FINISHED,
        "payment",
        DRIVEN_MS + 300,
        observation.DEAD_LETTERED,
        attempt=3,
        reason=NO_ANSWER,
    )
    return index, record(FINISHED, "payment", QUARANTINED, error=NO_ANSWER)


def test_a_dead_letter_is_what_holds_a_ride() -> None:
    """It is known who gave up what, why, where the letter is, and the command that shows more."""
    index, records = given_up()
    story, _ = drawn(index, records=records)
    (hold,) = story.holds
    assert (hold.kind, hold.consumer, hold.type) == (Kind.GIVEN_UP, "payment", "CarRideCompleted")
    assert (hold.error, hold.queue, hold.attempts) == (NO_ANSWER, "PaymentDlq", 3)
    key = f"payment#{FINISHED.idempotencyid}"
    assert hold.command == f"./carride redrive payment '--key={key}' --release"
    assert story.tiles[-1].value == "a redrive"


@pytest.mark.parametrize("status", [QUARANTINED, FAILED])
@pytest.mark.parametrize("times", [0, 1, 2])
def test_the_cause_comes_before_a_redrive_that_has_failed_before(
    times: int, status: Status
) -> None:
    """As on the letter's page: the hold and the tile say so, and only then."""
    index, records = given_up()
    (key,) = records
    fails_again = times > 0 and status == QUARANTINED
    letter = DeadLettered("PaymentDlq", "", "payment", None, FINISHED.idempotencyid)
    index.add_letters([letter])
    held = {key: records[key]._replace(status=status, attempt=3 if status == QUARANTINED else 0)}
    redriven = {key: Redrives(times, float(DRIVEN_MS))} if times else {}
    story, _ = drawn(index, records=held, redriven=redriven)
    (hold,) = story.holds
    assert (hold.redriven > 0) == fails_again
    assert (story.tiles[-1].value == "a redrive") == (not fails_again)
    assert ("--release" in hold.command) == (status == QUARANTINED)


def test_each_consumer_that_holds_a_ride_has_a_line_with_its_own_error() -> None:
    """An operator who mends one of them would wait for the other without a reason."""
    index, records = given_up()
    letter = DeadLettered("PaymentDlq", "QUARANTINED", "payment", "x", FINISHED.idempotencyid)
    other = letter._replace(queue="DispatchDlq", consumer="dispatch")
    index.add_letters([letter, letter, other])
    records |= record(FINISHED, "dispatch", QUARANTINED, error="no such car")
    records |= record(STARTED, "ride-history", FAILED, error="other")
    story, _ = drawn(index, records=records)
    errors = {each.consumer: (each.error, each.letters) for each in story.holds}
    assert errors == {"payment": (NO_ANSWER, 2), "dispatch": ("no such car", 1)}
    assert story.tiles[-1].detail == "your decision, 3 dead letters"


@pytest.mark.parametrize(
    ("changes", "kind", "due_ms"),
    [
        (
            {"records": record(FINISHED, "payment", FAILED, attempt=1, error=NO_ANSWER)}
            | {"retries": {f"payment#{FINISHED.idempotencyid}": DRIVEN_MS + 31_000.0}},
            Kind.RETRYING,
            DRIVEN_MS + 31_000,
        ),
        (
            {"records": record(FINISHED, "payment", IN_PROGRESS, lease_ms=DRIVEN_MS)},
            Kind.CRASHED,
            DRIVEN_MS,
        ),
        (
            {"records": record(FINISHED, "payment", IN_PROGRESS, lease_ms=DRIVEN_MS + 30_000)}
            | {"now_ms": DRIVEN_MS + 8_000.0},
            Kind.RUNNING,
            DRIVEN_MS + 30_000,
        ),
        ({"now_ms": DRIVEN_MS + 60_000.0}, Kind.WAITING, None),
        ({"records": record(FINISHED, "payment", QUARANTINED)}, Kind.GIVEN_UP, None),
    ],
)
def test_what_holds_a_ride_is_known_with_its_consumer(
    changes: dict[str, Any], kind: Kind, due_ms: float | None
) -> None:
    """A failure that is retried, a crash, a long run, a missing delivery, a missing letter."""
    story, _ = drawn(driven(), **changes)
    (hold,) = story.holds
    assert (hold.kind, hold.consumer, hold.type) == (kind, "payment", "CarRideCompleted")
    assert hold.due_ms == due_ms


def test_a_quarantined_key_without_a_letter_holds_its_ride() -> None:
    """Whether or not a delivery was refused since then: there is no letter to redrive."""
    index = driven()
    records = record(FINISHED, "payment", QUARANTINED, error=NO_ANSWER)
    (key,) = records
    for _ in range(2):
        story, _ = drawn(index, records=records)
        (hold,) = story.holds
        assert (hold.kind, hold.error, hold.attempts) == (Kind.GIVEN_UP, NO_ANSWER, 3)
        assert (hold.letters, hold.since_ms) == (0, DRIVEN_MS)
        assert shlex.split(hold.command) == ["./carride", "keys", key]
        deliver(index, FINISHED, "payment", DRIVEN_MS + 300, observation.QUARANTINED)


TWO_CARS: Final = Problem(Broken.MANY_CARS, cars=("car_01", "car_<2>"))


def test_what_the_audit_says_comes_first() -> None:
    """A broken ride, and one that has needed something for too long."""
    index, records = given_up()
    overdue = Overdue((Need(CREATED.time, None),))
    story, _ = drawn(index, records=records, problems=[TWO_CARS], overdue=overdue)
    kinds = [each.kind for each in story.holds]
    assert kinds == [Kind.BROKEN, Kind.GIVEN_UP, Kind.OVERDUE]
    assert story.holds[0].audited == TWO_CARS


@pytest.mark.parametrize("letters", [0, 2])
@pytest.mark.parametrize("kind", [*Kind])
def test_each_kind_of_hold_has_a_line_on_the_page(kind: Kind, letters: int, ref: StackRef) -> None:
    """Whatever holds a ride, its consumer is named, and its command can be copied.

    Letters are linked if there are any.
    """
    hold = Hold(kind, "payment", FINISHED.idempotencyid, "CarRideCompleted", DRIVEN_MS)
    hold = hold._replace(error="it <failed>", attempts=2, due_ms=DRIVEN_MS + 1.0, letters=letters)
    hold = hold._replace(queue="PaymentDlq", command="./carride event x")
    overdue = Overdue((Need(CREATED.time, "<dispatch>"),))
    audited: dict[Kind, Problem | Overdue] = {Kind.BROKEN: TWO_CARS, Kind.OVERDUE: overdue}
    hold = hold._replace(audited=audited.get(kind))
    desk = desk_of(ref)
    template = desk._templates.get_template("holds.html")  # noqa: SLF001 - as a page does
    line = str(vars(template.make_module({"desk": desk, "here": "/"}))["held"](hold))
    assert ("payment" in line) is (kind not in (Kind.BROKEN, Kind.OVERDUE))
    assert ('href="/letters?' in line) is (kind == Kind.GIVEN_UP and letters > 0)
    assert not {"<failed>", "<2>", "<dispatch>"}.intersection(re.findall(r"<\w+>", line))
    assert ("car_01" in line, "it as" in line) == (kind == Kind.BROKEN, kind == Kind.OVERDUE)
    assert 'data-copy="./carride event x"' in line


@pytest.mark.parametrize(
    ("fact", "word", "by"),
    [
        (
            PaymentDeclined.of(LIFE.accepted, amount=1250, reason="insufficient funds"),
            "declined",
            "cancel it, or drive it unpaid",
        ),
        (
            NoCarAvailable.of(LIFE.accepted, reason="outside"),
            "unserved",
            "cancel it: it gets no car",
        ),
    ],
)
def test_a_ride_without_money_or_a_car_says_so(fact: Any, word: str, by: str) -> None:
    """The list and the line say the same word, and staff decides."""
    index = Index(CONSUMERS)
    for event in (CREATED, ACCEPTED, event_of(fact, ACCEPTED)):
        publish(index, event, BEGIN_MS)
    tables = NOTHING | {"BookingTable": {"status": "accepted"}}
    story, _ = drawn(index, tables=tables, now_ms=float(BEGIN_MS))
    assert story.holds == ()
    assert story.tiles[0].value == word == ending_of([type(fact).__name__]).word
    assert story.tiles[-1].detail == by


def test_a_redrive_is_in_the_picture() -> None:
    """The last one, of any operator; the time in which the letter waited for it is no wait."""
    index, records = given_up()
    at_ms = DRIVEN_MS + 130_000
    for attempt, outcome in enumerate((observation.FAILED, observation.DEAD_LETTERED), 1):
        told = {"attempt": attempt, "reason": NO_ANSWER}
        deliver(index, FINISHED, "payment", at_ms + 200 * attempt, outcome, **told)
    redriven = {f"payment#{FINISHED.idempotencyid}": Redrives(2, float(at_ms))}
    _, shown = drawn(index, records=records, redriven=redriven, now_ms=at_ms + 900.0)
    lane = lane_of(shown, "payment", "CarRideCompleted")
    assert lane.note == "5 attempts in 2 rounds"
    assert [mark.redrives.times for mark in lane.marks] == [2]
    assert len(lane.letters) == 2
    assert lane.letters[0] < lane.marks[0].x < lane.letters[1]
    assert all(
        wait.x + wait.width <= lane.letters[0] or wait.x >= lane.marks[0].x for wait in lane.waits
    )
    assert [band.label.text for band in shown.bands if band.label] == ["2 min"]


def test_money_that_nobody_owes_has_no_amount() -> None:
    """An amount would read as if it were due."""
    index = Index(CONSUMERS)
    publish(index, event_of(LIFE.created), BEGIN_MS)
    publish(index, event_of(LIFE.cancelled), BEGIN_MS + 10)
    item = {"state": "cancelled", "amount": 675, "currency": "EUR"}
    story, _ = drawn(index, tables=NOTHING | {"PaymentTable": item})
    (money,) = [each for each in story.tiles if each.label == "Money"]
    assert not any(letter.isdigit() for letter in money.value)


def completed_too(later_ms: int, payment: dict[str, Any]) -> tuple[Story, Picture]:
    """Return a ride that was settled as cancelled, and completed so much later than that."""
    index = Index(CONSUMERS)
    settlement = event_of(LIFE.overdue)
    for event, at_ms in (
        (ACCEPTED, BEGIN_MS),
        (ASSIGNED, BEGIN_MS + 100),
        (settlement, BEGIN_MS + 200_000),
        (FINISHED, BEGIN_MS + 200_000 + later_ms),
    ):
        publish(index, event, at_ms)
        for each in CONSUMERS:
            if each.takes(event.type):
                deliver(index, event, each.name, at_ms + 50)
    tables = NOTHING | {"AssignmentTable": {"state": "released"}, "PaymentTable": payment}
    return drawn(index, tables=tables, now_ms=float(BEGIN_MS + 600_000))


CANCELLED: Final = {"state": "cancelled"}
PAYS: Final = {"state": "captured", "amount": 1250, "currency": "EUR"}


@pytest.mark.parametrize("payment", [CANCELLED, PAYS])
@pytest.mark.parametrize("later_ms", [-60_000, 60_000])
def test_a_ride_that_was_settled_as_cancelled_and_completed_tells_both(
    later_ms: int, payment: dict[str, Any]
) -> None:
    """Nothing is promised of a ride that has ended."""
    story, _ = completed_too(later_ms, payment)
    assert "as cancelled" in story.tiles[0].detail
    assert "completed" in story.tiles[0].detail
    assert "as cancelled" in {each.command for each in story.who.values()}
    assert not story.goes_on
    assert story.expected == ()


def test_a_settled_ride_that_payment_still_holds_is_settled_once_more() -> None:
    """Payment had heard of the completion, and the reconciler had not."""
    opened = datetime.fromtimestamp(BEGIN_MS / 1000, tz=CREATED.time.tzinfo).isoformat()
    story, _ = completed_too(60_000, {"state": "completed", "openSince": opened})
    assert story.tiles[-1].detail == "the reconciler"


def test_a_settled_ride_that_was_not_completed_promises_no_command() -> None:
    """It is over for dispatch and payment, although its newest version says that it goes on."""
    index = Index(CONSUMERS)
    for event in (ACCEPTED, event_of(LIFE.started), event_of(LIFE.overdue)):
        publish(index, event, BEGIN_MS)
        for each in CONSUMERS:
            if each.takes(event.type):
                deliver(index, event, each.name, BEGIN_MS + 50)
    story, _ = drawn(index)
    assert story.holds == ()
    assert not story.goes_on


def test_a_ride_that_has_ended_waits_for_what_its_consumers_have_not_heard() -> None:
    """It is not said that nothing comes next while a delivery is on its way."""
    story, _ = drawn(driven())
    assert story.tiles[-1].detail == "of CarRideCompleted to payment"


def test_nothing_holds_a_ride_that_is_well() -> None:
    """Nothing shouts, and nothing is said to come next."""
    index = driven()
    deliver(index, FINISHED, "payment", DRIVEN_MS)
    publish(index, CAPTURED, DRIVEN_MS)
    deliver(index, CAPTURED, "ride-history", DRIVEN_MS + 50)
    paid = {"state": "captured", "amount": 1250, "currency": "EUR", "paymentID": "pay_1"}
    released = {"state": "released", "carID": "car_01"}
    story, shown = drawn(
        index, tables=NOTHING | {"PaymentTable": paid, "AssignmentTable": released}
    )
    assert story.holds == ()
    assert not story.goes_on
    assert story.expected == ()
    assert shown.now_x is None
    assert [tile.value for tile in story.tiles] == ["paid", "released", "12.50 EUR", "nothing"]


def test_each_event_names_who_caused_it() -> None:
    """Callers of the API by their command, consumers, and the reconciler."""
    index = driven()
    publish(index, event_of(LIFE.overdue_driven), DRIVEN_MS)
    story, _ = drawn(index)
    who = {index.facts[name].type: (each.command, each.name) for name, each in story.who.items()}
    assert who["CarRideCreated"] == ("book", "a customer")
    assert who["CarRideCompleted"] == ("complete", "staff")
    assert who["CarAssigned"] == ("", "dispatch")
    assert who["PaymentAuthorized"] == ("", "payment")
    assert who["CarRideOverdue"] == ("as completed", "the reconciler")


def test_what_is_expected_is_named_with_who_is_to_do_it() -> None:
    """A consumer's event, or the next command."""
    index = Index(CONSUMERS)
    publish(index, CREATED, BEGIN_MS)
    publish(index, ACCEPTED, BEGIN_MS)
    opened = datetime.fromtimestamp(BEGIN_MS / 1000, tz=CREATED.time.tzinfo).isoformat()
    booking = {"status": "accepted", "openSince": opened, "changedAt": opened}
    story, _ = drawn(index, tables=NOTHING | {"BookingTable": booking})
    assert [(each.type, each.who) for each in story.expected] == [
        ("CarAssigned", "dispatch"),
        ("CarRideStarted", "staff"),
    ]
    assert story.tiles[-1].value == "staff starts it"


# ── The picture ───────────────────────────────────────────────────────────────────────────────────

SPANS: Final = st.lists(st.tuples(st.floats(0, 1e8), st.floats(0, 1e5)), min_size=1, max_size=60)


@given(SPANS, st.booleans())
@example(spans=[(0.0, 1e-310)], ahead=False)
@example(spans=[(4.3298674378252575e-301, 3e-310)], ahead=False)
def test_the_axis_keeps_the_order_and_its_width(
    spans: list[tuple[float, float]], ahead: bool
) -> None:
    """Later is never further left, everything has a place, and labels do not overlap."""
    busy = [(begin, begin + length) for begin, length in spans]
    axis = Axis(busy, has_ahead=ahead)
    times = sorted(time for span in busy for time in span)
    places = [axis.x(time) for time in times]
    assert all(one <= other + 1e-9 for one, other in pairwise(places))
    assert places[0] >= 0
    assert places[-1] <= axis.end
    do_not_overlap(list(axis.ticks(times[-1])))


def do_not_overlap(labels: list[Label]) -> None:
    """Check that labels have room in the pictures that are wide enough for them."""
    for room, width in enumerate(ROOMS, 1):
        spans = sorted(each.span(width) for each in labels if each.room <= room)
        assert all(one[1] < other[0] for one, other in pairwise(spans))
        assert all(begin >= 0 and end <= 100 for begin, end in spans)


def test_a_long_pause_is_cut_and_says_how_long_it_was() -> None:
    """A pause of six minutes takes no more room than its label."""
    axis = Axis([(0, 1_000), (360_000, 361_000)], has_ahead=False)
    (band,) = axis.bands()
    assert band.label is not None
    assert (band.label.text, band.width) == ("6 min", 2.0)
    assert axis.x(360_000) - axis.x(1_000) < 12
    assert [tick.text for tick in axis.ticks(0) if tick.room < 4][:2] == ["00:00:00", "00:06:00"]


def test_a_pause_below_20_s_is_drawn_to_scale() -> None:
    """What is cut cannot be compared with what is not."""
    axis = Axis([(0, 100), (4_000, 4_900), (300_000, 300_300)], has_ahead=False)
    assert [band.label.text for band in axis.bands() if band.label] == ["5 min"]
    assert axis.x(4_000) - axis.x(100) > axis.x(4_900) - axis.x(4_000)


def test_labels_of_pauses_do_not_overlap() -> None:
    """One without room is left out, and its band stays."""
    busy = [(30_000.0 * number, 30_000.0 * number + 10) for number in range(11)]
    bands = list(Axis(busy, has_ahead=True).bands())
    assert len(bands) == 10
    labels = [band.label for band in bands if band.label]
    assert len({label.room for label in labels}) > 1
    do_not_overlap(labels)


@given(st.lists(st.integers(20, 7_200), min_size=2, max_size=6))
@example([60, 300])
def test_the_longest_of_pauses_is_named_first(pauses_s: list[int]) -> None:
    """In a narrow picture too; and each says how long it was, with a label or without."""
    busy = [(0.0, 10.0)]
    for pause_s in pauses_s:
        begin_ms = busy[-1][1] + 1_000.0 * pause_s
        busy.append((begin_ms, begin_ms + 10))
    bands = list(Axis(busy, has_ahead=False).bands())
    assert [band.length for band in bands] == [span(1_000.0 * each) for each in pauses_s]
    rooms = [band.label.room if band.label else len(ROOMS) + 1 for band in bands]
    assert min(rooms) == rooms[pauses_s.index(max(pauses_s))]


def test_each_pause_of_a_ride_is_told(ref: StackRef) -> None:
    """By its title, and by a text for whoever sees no picture."""
    desk = desk_of(ref)
    for number, event in enumerate((CREATED, ACCEPTED, STARTED)):
        publish(desk.feed.index, event, BEGIN_MS + 100_000 * number * number)
    text = get(desk, "/ride/order_01").text
    unseen = re.search(r'<span class="unseen">time left out: (.*?)</span>', text)
    assert unseen is not None
    lengths = unseen[1].split(", ")
    assert lengths[:2] == [span(100_000), span(300_000)]
    titles = re.findall(r'class="w-cut"[^>]*>\s*<title>\s*(.*?) left out', text)
    assert {*titles} == {*lengths}


def test_a_wait_for_a_retry_is_not_cut() -> None:
    """The time between two attempts is drawn to scale, with its length."""
    index, records = given_up()
    deliver(index, CREATED, "ride-history", DRIVEN_MS + 70_000, observation.DUPLICATE)
    _, shown = drawn(index, records=records)
    lane = lane_of(shown, "payment", "CarRideCompleted")
    assert (lane.note, lane.outcome) == ("3 attempts", observation.DEAD_LETTERED)
    assert len(lane.bars) == 3
    assert len(lane.letters) == 1
    assert [bar.kind for bar in lane.bars] == ["fail", "fail", "dead"]


def lane_of(shown: Picture, consumer: str, kind: str) -> Any:
    """Return the lane of a consumer below an event."""
    lanes = [
        lane
        for row in shown.rows
        for lane in row.lanes
        if row.fact.type == kind and lane.consumer == consumer
    ]
    return lanes[-1]


def test_overlapping_attempts_have_lanes_of_their_own() -> None:
    """The one that was fenced off is drawn beside the takeover; the takeover counts."""
    index = driven()
    deliver(index, FINISHED, "payment", DRIVEN_MS + 900, observation.LOST_LEASE, took=800)
    deliver(index, FINISHED, "payment", DRIVEN_MS + 700, observation.TAKEOVER, took=50, attempt=2)
    _, shown = drawn(index)
    lanes = [
        (lane.note, lane.outcome)
        for row in shown.rows
        for lane in row.lanes
        if row.fact.type == "CarRideCompleted" and lane.consumer == "payment"
    ]
    assert lanes[0] == ("an earlier attempt", observation.LOST_LEASE)
    assert lanes[-1][1] == observation.TAKEOVER


@pytest.mark.parametrize(
    ("times", "took"),
    [
        ((33, 17), "33 + 17 ms"),
        ((0, 17), "17 ms"),
        ((1_500, 17), "1.5 s in all"),
        ((50, 40, 100), "190 ms in all"),
        ((0, 0), ""),
    ],
)
def test_a_lane_says_how_long_its_attempts_took(times: tuple[int, ...], took: str) -> None:
    """The times that are known, each or in all; never that of one attempt for the others."""
    index = driven()
    for number, time_ms in enumerate(times[:-1], 1):
        at_ms = DRIVEN_MS + 2_000 * number
        failed = {"attempt": number, "took": time_ms}
        deliver(index, FINISHED, "payment", at_ms, observation.FAILED, **failed)
    last = {"attempt": len(times), "took": times[-1]}
    deliver(index, FINISHED, "payment", DRIVEN_MS + 9_000, observation.RETRIED, **last)
    _, shown = drawn(index)
    assert lane_of(shown, "payment", "CarRideCompleted").took == took


def test_a_crash_is_drawn_although_it_logged_nothing() -> None:
    """Its takeover's number shows it."""
    index = driven()
    deliver(index, FINISHED, "payment", DRIVEN_MS, observation.TAKEOVER, attempt=2)
    _, shown = drawn(index)
    lane = lane_of(shown, "payment", "CarRideCompleted")
    assert [run.outcome for run in lane.runs] == [CRASHED, observation.TAKEOVER]
    assert not lane.quiet


def test_a_line_leads_from_a_run_to_the_event_that_it_emitted() -> None:
    """It passes every row between them."""
    _, shown = drawn(driven())
    assigned = next(row for row in shown.rows if row.fact.type == "CarAssigned")
    assert assigned.from_lane == f"dispatch-{ACCEPTED.idempotencyid}"
    ((begin, end),) = shown.begins[assigned.from_lane]
    assert begin <= end == assigned.x


def test_what_went_well_can_be_left_out() -> None:
    """Then only events with something unusual are left, and the page says how many rows are not."""
    index, records = given_up()
    _, everything = drawn(index, records=records, hides=False)
    _, shown = drawn(index, records=records, hides=True)
    assert [row.fact.type for row in shown.rows] == ["CarRideCompleted"]
    assert [lane.consumer for lane in shown.rows[0].lanes] == ["payment"]
    assert shown.hidden == sum(1 + len(row.lanes) for row in everything.rows) - 2
    assert everything.hidden == 0


def test_a_ride_with_many_events_is_drawn_in_part() -> None:
    """The newest hundred, and the picture begins without what went well."""
    index = Index(CONSUMERS)
    for number in range(150):
        event = event_of(replace(LIFE.created, version=number + 1))
        publish(index, event, BEGIN_MS + number)
    _, shown = drawn(index)
    assert shown.older == 50
    assert shown.hides


# ── The pages ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def ref() -> Iterator[StackRef]:
    """A stack without any events."""
    with mock_aws():
        yield empty_stack()


def put(ref: StackRef, table: str, **item: Any) -> None:
    """Store an item of the ride."""
    ref.client("dynamodb").put_item(
        TableName=ref.outputs[f"{table}Name"],
        Item=marshalling.item({"orderID": "order_01", **item}),
    )


def test_the_page_of_a_ride_joins_logs_and_tables(ref: StackRef) -> None:
    """It has the status, the car, the money, the events and what comes next."""
    desk = desk_of(ref)
    desk.feed.index = driven()
    put(ref, "AssignmentTable", state="released", carID="car_01", effects=2)
    put(ref, "PaymentTable", state="authorized", amount=1250, currency="EUR", effects=1)
    answer = get(desk, "/ride/order_01")
    assert answer.status == 200
    for text in ("12.50 EUR", "car_01", "PaymentCaptured", "by dispatch", "What happened"):
        assert text in answer.text


@pytest.mark.parametrize("name", ["order_02", "%3Cscript%3E", "a%2Fb", "x" * 200])
def test_an_unknown_ride_is_a_sentence(ref: StackRef, name: str) -> None:
    """Whatever it is called."""
    answer = get(desk_of(ref), f"/ride/{name}")
    assert answer.status in {200, 404}
    assert "<script>" not in answer.text.partition("<main")[2]


def test_a_ride_is_found_by_its_id(ref: StackRef) -> None:
    """The search leads to its page, to that of an event, or to a key."""
    desk = desk_of(ref)
    desk.feed.index = driven()
    for text, path in (
        ("order_01", "/ride/order_01"),
        (CREATED.idempotencyid, f"/event/{CREATED.idempotencyid}"),
        ("payment%23x", "/event/x#at-payment"),
        ("order_*", "/ride/order_01"),
        ("order_", "/ride/order_01"),
        ("*", "/"),
        (CREATED.idempotencyid[:8], f"/event/{CREATED.idempotencyid}"),
    ):
        assert get(desk, f"/find?q={text}").headers["location"] == path


def test_many_matches_are_told_apart_a_page_at_a_time(ref: StackRef) -> None:
    """The newest first, each with its status and time, and with a way to the others and back."""
    desk = desk_of(ref)
    for number in range(MOST + 5):
        publish(desk.feed.index, event_of(Life(f"order_{number:03}").created), BEGIN_MS + number)
    cancelled = event_of(Life("order_007").cancelled)
    publish(desk.feed.index, cancelled, BEGIN_MS + 999)
    first = get(desk, "/find?q=order_").text
    assert first.count('class="row id"') == MOST
    assert f"1\u2013{MOST} of {MOST + 5}" in first
    assert first.index('href="/ride/order_007"') < first.index('href="/ride/order_054"')
    row = first.partition('href="/ride/order_007"')[2].partition("</tr>")[0]
    assert "cancelled" in row
    assert "<time" in row
    assert ">rides</th>" not in first
    second = get(desk, "/find?q=order_&page=1").text
    assert second.count('class="row id"') == 5
    assert "page=0" in second
    assert get(desk, "/find?q=order_&page=9").status == 404


def test_an_id_that_nothing_has_is_said_so(ref: StackRef) -> None:
    """With the status 404, and in the title."""
    answer = get(desk_of(ref), "/ride/zzz")
    assert answer.status == 404
    assert "<title>zzz: nothing found · CarRide desk</title>" in answer.text
    assert "No ride has the id zzz" in answer.text


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("replays", [0, 1])
def test_how_often_an_event_was_published_leaves_room_for_its_name(
    ref: StackRef, copies: int, replays: int
) -> None:
    """The numbers stand beside the name in a few characters; their title tells them in words."""
    desk = desk_of(ref)
    for number in range(copies + replays):
        publish(desk.feed.index, CREATED, BEGIN_MS + number, replayed=number >= copies)
    row = get(desk, "/ride/order_01").text.partition("w-event")[2].partition("w-lane")[0]
    short = "".join(re.findall(r'<span aria-hidden="true">(.*?)</span>', row, re.DOTALL))
    short = "".join(re.sub("<.*?>", "", short).split())
    assert ("2" in short) is (copies > 1)
    assert ("1" in short) is (replays > 0)
    assert len(short) <= 4
    who = row.partition('class="w-who"')[2]
    seen = re.sub(r'<span class="unseen">.*?</span>|<.*?>', "", f"<{who}", flags=re.DOTALL)
    assert ("by" in seen.split()) is (copies + replays == 1)
    title = re.search(r'w-times" title="(.*?)"', row)
    assert (title is not None) is (copies + replays > 1)
    if title is not None:
        assert title[1] == published_text(copies, replays)


def test_the_index_knows_the_rides_of_its_events_only() -> None:
    """A ride whose events are forgotten is forgotten too."""
    index = Index(CONSUMERS, most=2)
    for number in range(4):
        publish(index, event_of(Life(f"order_{number}").created), BEGIN_MS + number)
    assert list(index.rides) == ["order_2", "order_3"]
    assert COMPLETED not in index.rides


@pytest.mark.parametrize("outcome", ["completed", "cancelled"])
def test_a_settled_ride_says_as_what_beside_its_booking(outcome: str) -> None:
    """A ride may be completed after it was settled otherwise: its tile tells both."""
    index = Index(CONSUMERS)
    publish(index, event_of(LIFE.accepted), DRIVEN_MS)
    publish(index, event_of(CarRideOverdue.of(LIFE.started, outcome=outcome)), DRIVEN_MS + 900)
    publish(index, event_of(LIFE.completed), DRIVEN_MS + 1_800)
    tile = story_of(known(index)).tiles[0]
    assert tile.value == "settled"
    assert outcome in tile.detail
    assert "completed" in tile.detail


def test_a_delivery_has_the_same_time_on_all_pages(ref: StackRef) -> None:
    """It is the time at which it began: in the picture, and with its event."""
    desk = desk_of(ref)
    event = event_of(Life("order_01").completed)
    publish(desk.feed.index, event, BEGIN_MS)
    ended_ms = BEGIN_MS + 9_500
    reason = "GatewayUnavailableError: no answer"
    deliver(
        desk.feed.index, event, "payment", ended_ms, observation.FAILED, took=4_250, reason=reason
    )
    begun = clock_text(ended_ms - 4_250, BEGIN_MS)
    ended = clock_text(ended_ms, BEGIN_MS)
    for path in ("/ride/order_01", f"/event/{event.idempotencyid}"):
        shown = re.findall(r"([0-9:]{8})(?:\.[0-9]{3})?</time>", get(desk, path).text)
        assert begun in shown
        assert ended not in shown
