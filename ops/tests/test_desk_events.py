"""The page of an event, and what the desk looks up because its index does not hold it."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
from markupsafe import escape
from moto import mock_aws

from carride.events import DETAIL_TYPE, SOURCE, ContractError, parse_event
from carride.history import kept
from carride_idempotency import marshalling, observation
from carride_idempotency.dead_letters import CONTRACT
from carride_idempotency.record import COMPLETED, IN_PROGRESS, Record
from carride_idempotency.record_items import item_of
from ops.audit.evidence import DeadLettered
from ops.desk.app import Desk
from ops.desk.facts import WAITING
from ops.desk.letters import of_bus
from ops.desk.older import Older
from ops.desk.pictures import look
from ops.desk.words import moment
from ops.policies import records_of
from ops.stack import OperatorError, StackRef
from ops.tests.desk_world import BEGIN_MS, deliver, desk_of, event_of, get, line, publish
from ops.tests.test_lookup import delivery, on_bus
from ops.tests.world import AWAY, empty_stack, log
from tests.kit.rides import Life

pytestmark = pytest.mark.proof  # hundreds of calls of moto: longer than a unit test

LIFE: Final = Life("order_01")
CREATED: Final = event_of(LIFE.created)
ACCEPTED: Final = event_of(LIFE.accepted)


@pytest.fixture
def ref() -> Iterator[StackRef]:
    """A stack without any events."""
    with mock_aws():
        yield empty_stack()


def test_the_page_of_an_event_has_its_runs_and_its_payload(ref: StackRef) -> None:
    """The fenced attempt is not called by the number of its successor."""
    desk = desk_of(ref)
    publish(desk.feed.index, ACCEPTED, BEGIN_MS)
    told = {"attempt": 2, "reason": "completed elsewhere"}
    deliver(desk.feed.index, ACCEPTED, "dispatch", BEGIN_MS + 900, observation.LOST_LEASE, **told)
    deliver(desk.feed.index, ACCEPTED, "dispatch", BEGIN_MS + 800, observation.TAKEOVER, attempt=2)
    text = get(desk, f"/event/{ACCEPTED.idempotencyid}").text
    dispatch = text.partition('id="at-dispatch"')[2]
    assert "late write fenced off" in dispatch
    assert "an attempt, invocation of 10 ms" in dispatch
    assert "&#34;price&#34;: 1250" in text
    assert "payment does not take this type" in text
    assert 'id="at-payment"' not in text
    assert "<title>CarRideAccepted of order_01 · CarRide desk</title>" in text


@pytest.mark.parametrize(
    ("copies", "replays", "says"),
    [
        (1, 1, "published once, replayed once"),
        (3, 0, "published 3 times"),
        (2, 3, "published twice, replayed 3 times"),
        (0, 2, "replayed twice"),
    ],
)
def test_a_replay_is_told_apart_from_a_copy(
    ref: StackRef, copies: int, replays: int, says: str
) -> None:
    """On the page of the event and on that of its ride."""
    desk = desk_of(ref)
    for number in range(copies + replays):
        is_replay = number >= copies
        publish(desk.feed.index, ACCEPTED, BEGIN_MS + number, replayed=is_replay)
    for path in (f"/event/{ACCEPTED.idempotencyid}", "/ride/order_01"):
        shown = re.sub(r' title="[^"]*"', "", " ".join(get(desk, path).text.split()))
        told = re.findall(r"(?:published|replayed) (?:once|twice|\d+ times)[^<·]*", shown)
        assert [*map(str.strip, told)] == [says]
    past = [
        (each.word, each.text) for each in of_bus(desk.feed.index.facts[ACCEPTED.idempotencyid])
    ]
    assert past.count(("replayed", "from the archive")) == replays


def test_effects_on_an_item_show_what_they_changed(ref: StackRef) -> None:
    """As far as the desk saw the item before."""
    desk = desk_of(ref)
    publish(desk.feed.index, ACCEPTED, BEGIN_MS)
    page = f"/event/{ACCEPTED.idempotencyid}"
    item = {"orderID": "order_01", "state": "unknown", "effects": 0}
    put(ref, item)
    assert "effect-dispatch" not in get(desk, page).text
    entry = {f"event#{ACCEPTED.idempotencyid}": {"type": "x", "emitted": ["CarAssigned"]}}
    put(ref, item | {"state": "assigned", "carID": "car_01"} | entry)
    effect = get(desk, page).text.partition('id="effect-dispatch"')[2]
    assert "emitted CarAssigned" in effect
    assert '<tr class="changed"><td>state</td><td class="long">unknown</td>' in effect
    assert '<tr><td>orderID</td><td class="long">order_01</td>' in effect


def put(ref: StackRef, item: dict[str, Any]) -> None:
    """Store the item of dispatch."""
    ref.client("dynamodb").put_item(
        TableName=ref.outputs["AssignmentTableName"], Item=marshalling.item(item)
    )


def _head_of(desk: Desk, path: str) -> str:
    """Return the sentence beside the heading of a page."""
    return " ".join(get(desk, path).text.partition("<h1>")[2].partition("</div>")[0].split())


def test_no_page_waits_for_a_delivery_that_is_lost(ref: StackRef) -> None:
    """Flow does not count it as unfinished, and the pages of its ride and its event say so."""
    desk = desk_of(ref)
    publish(desk.feed.index, CREATED, BEGIN_MS)
    assert "1 delivery in flight" in _head_of(desk, "/")
    desk.feed.index.add_lost({"ride-history": [CREATED.idempotencyid]})
    desk.feed.replays = ()  # as the feed learns by its first look
    assert "nothing is in flight" in _head_of(desk, "/")
    paths = ["/", f"/event/{CREATED.idempotencyid}", f"/ride/{CREATED.data.order_id}"]
    for path in paths:
        text = get(desk, path).text.partition("<h1>")[2]
        assert "waiting" not in text, path
        assert "lost" in text, path


def test_flow_counts_nothing_as_unfinished_before_all_logs_are_read(ref: StackRef) -> None:
    """The log of the bus is read first, so each event would seem to wait for its consumers."""
    desk = desk_of(ref)
    publish(desk.feed.index, CREATED, BEGIN_MS)
    desk.feed.is_filling = True
    head = _head_of(desk, "/")
    assert "in flight" not in head
    assert "CarRideCreated" not in get(desk, "/").text
    desk.feed.is_filling = False
    assert "1 delivery in flight" in _head_of(desk, "/")


def test_the_page_of_a_contract_breaker_says_in_what_it_breaks_it(ref: StackRef) -> None:
    """As its letter does, and without the code of the reason."""
    desk = desk_of(ref)
    broken = {"id": "broken-1", "source": SOURCE, "detail-type": DETAIL_TYPE, "detail": {}}
    desk.feed.index.add_published(line(json.dumps(broken), BEGIN_MS))
    told = {"reason": CONTRACT, "event_id": "broken-1", "key": None, "attempt": 0}
    deliver(desk.feed.index, CREATED, "ride-history", BEGIN_MS, observation.DEAD_LETTERED, **told)
    letter = DeadLettered("RideHistoryDlq", CONTRACT, "ride-history", "broken-1", None)
    desk.feed.index.add_letters([letter])
    with pytest.raises(ContractError) as found:
        parse_event(broken)
    shown = get(desk, "/event/broken-1").text.partition('id="at-ride-history"')[2]
    assert escape(f"ContractError: {found.value}") in shown
    assert CONTRACT not in shown


@pytest.mark.parametrize("reason", ["QUARANTINED", CONTRACT, "PAYLOAD_MISMATCH", "BEYOND_WINDOW"])
def test_no_page_of_an_event_has_the_code_of_a_reason(ref: StackRef, reason: str) -> None:
    """Words stand for it, at its letter and at the delivery that gave it up."""
    desk = desk_of(ref)
    publish(desk.feed.index, CREATED, BEGIN_MS)
    deliver(
        desk.feed.index,
        CREATED,
        "payment",
        BEGIN_MS + 9,
        observation.DEAD_LETTERED,
        reason=reason,
    )
    letter = DeadLettered("PaymentDlq", reason, "payment", None, CREATED.idempotencyid)
    desk.feed.index.add_letters([letter])
    for path in (f"/event/{CREATED.idempotencyid}", "/ride/order_01?show=all", "/"):
        assert reason not in get(desk, path).text


def test_the_age_of_a_letter_is_that_of_the_delivery_that_gave_it_up(ref: StackRef) -> None:
    """A copy that was refused since then made no letter."""
    desk = desk_of(ref)
    now_ms = desk.now().timestamp() * 1000
    publish(desk.feed.index, CREATED, now_ms - 40 * 60_000)
    for minutes, outcome in ((30, observation.DEAD_LETTERED), (20, observation.QUARANTINED)):
        deliver(desk.feed.index, CREATED, "ride-history", now_ms - minutes * 60_000, outcome)
    letter = DeadLettered(
        "RideHistoryDlq", "QUARANTINED", "ride-history", None, CREATED.idempotencyid
    )
    desk.feed.index.add_letters([letter])
    text = get(desk, f"/event/{CREATED.idempotencyid}").text.partition('id="at-ride-history"')[2]
    header = text.partition("</header>")[0]
    assert re.findall(r"(\d+) min ago", header) == ["30"]


def test_a_ride_that_is_older_than_the_index_is_looked_up(ref: StackRef) -> None:
    """Its events come from the logs, and what the index has of them is newer."""
    log(ref, "CarRideEvents", on_bus(CREATED))
    log(ref, "RideHistory", delivery(CREATED, observation.NEW))
    desk = desk_of(ref)
    publish(desk.feed.index, ACCEPTED, BEGIN_MS)
    text = get(desk, "/ride/order_01").text
    assert "CarRideCreated" in text
    assert "CarRideAccepted" in text
    assert "CarRideCreated" in get(desk, f"/event/{CREATED.idempotencyid}").text
    assert json.loads(get(desk, f"/raw/event/{CREATED.idempotencyid}").text)["detail"]["type"]


def test_an_event_that_no_log_has_any_more_has_its_own_time(ref: StackRef) -> None:
    """Neither the year 1970 nor a delivery that is awaited is made up for it."""
    key = f"ride-history#{CREATED.idempotencyid}"
    made = Record(key, COMPLETED, "one", 1, None, None, "1:f", "d", AWAY, BEGIN_MS, BEGIN_MS)
    item = {**item_of(made), **marshalling.item(kept(CREATED))}
    ref.client("dynamodb").put_item(TableName="RideHistory", Item=item)
    text = get(desk_of(ref), "/ride/order_01").text
    assert "CarRideCreated" in text
    assert "1970" not in text
    assert f"{moment(BEGIN_MS):%Y-%m-%d %H:%M:%S}" in text
    assert look(WAITING).word not in text


def test_a_ride_whose_booking_is_not_known_is_not_said_to_begin_later(ref: StackRef) -> None:
    """The first event that is known may be any other one."""
    desk = desk_of(ref)
    publish(desk.feed.index, ACCEPTED, BEGIN_MS)
    assert "begun" not in get(desk, "/ride/order_01").text
    publish(desk.feed.index, CREATED, BEGIN_MS)
    assert "begun" in get(desk, "/ride/order_01").text


def test_a_page_says_whether_it_shows_what_the_desk_does_not_hold(ref: StackRef) -> None:
    """What was looked up may lack deliveries; what the index holds has all of them."""
    log(ref, "CarRideEvents", on_bus(CREATED))
    desk = desk_of(ref)
    publish(desk.feed.index, ACCEPTED, BEGIN_MS)
    publish(desk.feed.index, event_of(Life("order_02").created), BEGIN_MS)
    for path, is_older in (
        ("/ride/order_01", True),
        ("/ride/order_02", False),
        (f"/event/{CREATED.idempotencyid}", True),
        (f"/event/{ACCEPTED.idempotencyid}", False),
    ):
        assert ('id="looked-up"' in get(desk, path).text) is is_older


def test_a_look_up_is_kept_for_a_while(ref: StackRef, monkeypatch: Any) -> None:
    """A page that is open asks twice a second; nothing is known of most misspelt ids."""
    asked: list[str] = []

    def ride(_: StackRef, name: str) -> Any:
        asked.append(name)
        raise OperatorError("nothing is known")

    monkeypatch.setattr("ops.lookup.ride", ride)
    older = Older(ref)
    for name in ("order_02", "order_02", "order_03"):
        assert not older.ride(name)
    assert asked == ["order_02", "order_03"]


def test_an_unknown_event_is_a_sentence(ref: StackRef) -> None:
    """Whatever its id is."""
    desk = desk_of(ref)
    for name in ("00000000-0000-4000-8000-000000000000", "nonsense", "%1b[31m"):
        answer = get(desk, f"/event/{name}")
        assert answer.status == 404
        assert "Nothing is known of the event" in answer.text
    assert get(desk, "/raw/event/nonsense").status == 404


def test_a_page_of_an_unknown_event_fills_itself(ref: StackRef) -> None:
    """It is not found at first; the browser that stays on it gets the event once that is known."""
    desk = desk_of(ref)
    path = f"/event/{CREATED.idempotencyid}"
    assert get(desk, path).status == 404
    before = get(desk, path, accept="application/json")
    assert "CarRideCreated" not in json.loads(before.text)["live"]
    publish(desk.feed.index, CREATED, BEGIN_MS)
    asked = {"accept": "application/json", "if-none-match": before.headers["etag"]}
    after = get(desk, path, **asked)
    assert "CarRideCreated" in json.loads(after.text)["live"]
    assert get(desk, path).status == 200


def test_a_lane_says_until_when_its_attempt_has_a_lease(ref: StackRef) -> None:
    """Until then no other delivery runs the event; a completed one has none."""
    desk = desk_of(ref)
    publish(desk.feed.index, ACCEPTED, BEGIN_MS)
    path = f"/event/{ACCEPTED.idempotencyid}"
    key = f"dispatch#{ACCEPTED.idempotencyid}"
    held = Record(
        key=key,
        status=IN_PROGRESS,
        owner="owner",
        attempt=1,
        lease_ms=BEGIN_MS + 61_000,
        expiry=None,
        fingerprint=None,
        delivery=None,
        region=None,
        created_ms=BEGIN_MS,
        updated_ms=BEGIN_MS,
    )
    table = ref.outputs[f"{records_of(key)}Name"]
    until = f"lease until {moment(BEGIN_MS + 61_000):%H:%M:%S}"
    ref.client("dynamodb").put_item(TableName=table, Item=item_of(held))
    assert until in get(desk, path).text
    done = held._replace(status=COMPLETED)
    ref.client("dynamodb").put_item(TableName=table, Item=item_of(done))
    assert until not in get(desk, path).text
