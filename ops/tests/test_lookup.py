"""What the lookups answer where the logs, the tables or the ids give little."""

import json
import shlex
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final

import pytest
from moto import mock_aws
from msgspec import structs

from carride.events import RideEvent
from carride.facts import CarRideAccepted, CarRideCreated, Fact
from carride.history import kept
from carride_idempotency import marshalling
from carride_idempotency.record import COMPLETED, IN_PROGRESS, QUARANTINED, Record
from ops import letters, lookup, tail
from ops.audit.evidence import Delivered
from ops.holds import Kind
from ops.stack import OperatorError, StackRef
from ops.tests.test_show import printed
from ops.tests.world import AWAY, FUNCTION, empty_stack, log, put_record, stack
from tests.kit.rides import Life, booked, event

pytestmark = pytest.mark.proof  # hundreds of calls of moto: longer than a unit test

CREATED: Final = event(CarRideCreated.of(booked()))
NOBODY: Final = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
def ref() -> Iterator[StackRef]:
    with mock_aws():
        yield empty_stack()


def on_bus(ride_event: RideEvent, event_id: str = NOBODY) -> dict[str, Any]:
    envelope = {
        "version": "0",
        "id": event_id,
        "source": ride_event.source,
        "detail-type": "CarRideEvent",
    }
    return envelope | {"detail": ride_event.to_detail()}


def delivery(ride_event: RideEvent, outcome: str, consumer: str = "ride-history") -> dict[str, Any]:
    line = {
        "message": "delivery",
        "consumer": consumer,
        "outcome": outcome,
        "attempt": 1,
        "type": ride_event.type,
    }
    named = {
        "key": f"{consumer}#{ride_event.idempotencyid}",
        "idempotencyid": ride_event.idempotencyid,
    }
    return line | named | {"correlationid": ride_event.correlationid}


def record(ref: StackRef, key: str, **changes: Any) -> None:
    now = int(datetime.now(UTC).timestamp() * 1000)
    made = Record(
        key, COMPLETED, "one", 1, None, now // 1000 + 60, "1:f", "d", AWAY, now, now
    )._replace(**changes)
    put_record(ref, made)


@pytest.mark.parametrize(
    "ask", [lookup.ride, lookup.event, lambda ref, name: next(tail.tail(ref, ride=name))]
)
@pytest.mark.parametrize("name", ["", 'order_01" || "', "ride-history#1", "x" * 200, "../order_01"])
def test_an_id_of_another_form_is_refused(
    ask: Callable[[StackRef, str], object], name: str
) -> None:
    """AWS is not asked: it would change the filter pattern, or match what it does not name."""
    with pytest.raises(OperatorError, match="is not the id of"):
        ask(stack(lambda *_: None), name)


@pytest.mark.parametrize(("ask", "name"), [(lookup.ride, "order_01"), (lookup.event, NOBODY)])
def test_an_unknown_id_is_said_to_be_unknown(
    ref: StackRef, ask: Callable[[StackRef, str], object], name: str
) -> None:
    """The message says where it was looked for, and how far back."""
    log(
        ref,
        "CarRideEvents",
        on_bus(event(CarRideCreated.of(booked("order_010"))), NOBODY.replace("4", "5")),
    )
    with pytest.raises(OperatorError, match=r"nothing is known of .* in carride .*, kept since 20"):
        ask(ref, name)


@pytest.mark.parametrize("is_completed", [True, False])
def test_a_settled_ride_says_as_what_and_whether_it_was_completed(
    ref: StackRef, is_completed: bool
) -> None:
    """A state alone, as "paid" or "cancelled", would hide one half of what happened."""
    life = Life()
    facts = [life.accepted, life.overdue]
    if is_completed:
        facts.append(life.completed)
    assert not lookup.ride(ref_with(ref, facts[:1]), "order_01").settled
    found = lookup.ride(ref_with(ref, facts[1:]), "order_01")
    assert found.settled is not None
    assert found.settled.outcome == "cancelled"
    assert (found.settled.completed is not None) is is_completed


def ref_with(ref: StackRef, facts: list[Fact]) -> StackRef:
    """Return the stack whose bus has these facts, too."""
    for number, fact in enumerate(facts):
        log(ref, "CarRideEvents", on_bus(event(fact), f"{number:08d}{NOBODY[8:]}"))
    return ref


def refused(ref: StackRef) -> None:
    """Have the bus not accept the event."""
    why: Any = {"ERROR_CODE": {"DataType": "String", "StringValue": "ThrottlingException"}}
    body = json.dumps({name: value for name, value in on_bus(CREATED).items() if name != "id"})
    ref.client("sqs").send_message(
        QueueUrl=ref.outputs["ProducerDlqUrl"], MessageBody=body, MessageAttributes=why
    )


def claimed(ref: StackRef) -> None:
    """Have an attempt run at dispatch, which acts on no such event, and at ride-history."""
    lease = int(datetime.now(UTC).timestamp() * 1000) + 30_000
    for consumer in ("ride-history", "dispatch"):
        record(ref, f"{consumer}#{CREATED.idempotencyid}", status=IN_PROGRESS, lease_ms=lease)


def applied(ref: StackRef) -> None:
    """Have the timeline know the event alone, because its log lines are gone."""
    item = {
        "idempotencyKey": f"ride-history#{CREATED.idempotencyid}",
        "status": COMPLETED,
        **kept(CREATED),
    }
    ref.client("dynamodb").put_item(TableName="RideHistory", Item=dict(marshalling.item(item)))


def given_up(ref: StackRef) -> None:
    """Have the key quarantined, and its letter in no queue any more."""
    key = f"ride-history#{CREATED.idempotencyid}"
    record(ref, key, status=QUARANTINED, attempt=3, error="it is broken", dead_lettered=True)


def delivered(outcome: str) -> Callable[[StackRef], None]:
    return lambda ref: log(ref, "RideHistory", delivery(CREATED, outcome))


def on_the_bus(ref: StackRef) -> None:
    log(ref, "CarRideEvents", on_bus(CREATED))


@pytest.mark.parametrize(
    ("known_by", "outcome"),
    [
        (
            lambda ref: ref.client("dynamodb").put_item(
                TableName="Outbox", Item={"id": {"S": CREATED.id}}
            ),
            "unknown",
        ),
        (refused, "unknown"),
        (claimed, "IN_PROGRESS"),
        (applied, "took effect"),
        (lambda ref: record(ref, f"ride-history#{CREATED.idempotencyid}"), "took effect"),
        (delivered("Expired"), "Expired"),
        (delivered("Failed"), "Failed"),
        (delivered("DeadLettered"), "DeadLettered"),
        (on_the_bus, "unknown"),
    ],
    ids=[
        "outbox",
        "producer",
        "claim",
        "timeline",
        "record",
        "expired",
        "failed",
        "dead letter",
        "bus",
    ],
)
def test_an_event_is_found_by_whatever_is_left_of_it(
    ref: StackRef, known_by: Callable[[StackRef], None], outcome: str
) -> None:
    """Its outcome is told as far as it is known, and each missing part has a reason."""
    if known_by is on_the_bus:  # an item of the outbox stays for days after its event was published
        ref.client("dynamodb").put_item(TableName="Outbox", Item={"id": {"S": CREATED.id}})
    known_by(ref)
    by_id = lookup.event(ref, CREATED.idempotencyid)
    by_ride = lookup.ride(ref, "order_01").events
    assert len(by_ride) == 1
    for answer in (by_id, *by_ride):
        here = answer.consumers[0]
        assert (answer.id, here.consumer, here.outcome) == (
            CREATED.idempotencyid,
            "ride-history",
            outcome,
        )
        said = printed(answer)
        assert ("it is not in the log of events" in said) is not bool(answer.copies)
        is_waiting = "look at OutboxPipe" in said
        assert not (is_waiting and answer.copies), "what is on the bus waits in no outbox"
        letters_of_none = [(each.queue, each.reason) for each in answer.letters]
        assert letters_of_none == [("ProducerDlq", "ThrottlingException")] * (known_by is refused)
        assert here.record is not None or "no such record" in said
        assert here.deliveries or "no delivery is in its log" in said


@pytest.mark.parametrize(
    ("known_by", "kinds"),
    [
        (claimed, [Kind.RUNNING]),
        (on_the_bus, [Kind.WAITING]),
        (delivered("Failed"), []),
        (applied, []),
        (given_up, [Kind.GIVEN_UP]),
    ],
    ids=["claim", "bus", "failed, and retried", "timeline", "its letter is gone"],
)
def test_what_holds_a_ride_is_told(
    ref: StackRef, known_by: Callable[[StackRef], None], kinds: list[Kind]
) -> None:
    """A fact for each consumer that an event still has to reach, or to get through."""
    known_by(ref)
    assert [each.kind for each in lookup.ride(ref, "order_01").holds] == kinds


@pytest.mark.parametrize("outcomes", [[], ["Failed", "DeadLettered"], ["Quarantined"]])
def test_a_quarantined_key_without_a_letter_holds_its_ride(
    ref: StackRef, outcomes: list[str]
) -> None:
    """Nothing else tells of it: no delivery runs, and a redrive has no letter to send."""
    on_the_bus(ref)
    given_up(ref)
    for outcome in outcomes:
        delivered(outcome)(ref)
    (hold,) = lookup.ride(ref, "order_01").holds
    assert (hold.kind, hold.attempts, hold.letters) == (Kind.GIVEN_UP, 3, 0)
    assert "it is broken" in hold.error
    assert shlex.split(hold.command) == [
        "./carride",
        "keys",
        f"ride-history#{CREATED.idempotencyid}",
    ]


@pytest.mark.parametrize("dead_lettered", [False, True])
def test_another_producers_event_is_found_by_the_id_that_its_producer_gave_it(
    ref: StackRef, dead_lettered: bool
) -> None:
    """The idempotency id derives from that one, which neither bus nor producer knows."""
    seen = on_bus(CREATED)
    del seen["detail"]["idempotencyid"], seen["detail"]["sequence"]
    seen["detail"] |= {
        "type": "acme.acr.CarRiderCreatedEvent",
        "idempotencyId": NOBODY.replace("4", "6"),
    }
    if dead_lettered:
        ref.client("sqs").send_message(
            QueueUrl=ref.outputs["RideHistoryRuleDlqUrl"], MessageBody=json.dumps(seen)
        )
    else:
        log(ref, "CarRideEvents", seen)
    found = lookup.event(ref, NOBODY.replace("4", "6"))
    assert (found.type, found.ride, bool(found.copies)) == (
        "CarRideCreated",
        "order_01",
        not dead_lettered,
    )
    assert found.id not in (CREATED.idempotencyid, NOBODY.replace("4", "6"))
    # Not as a whole: a letter's age may be a second more by now.
    (again,) = lookup.ride(ref, "order_01").events
    assert (again.id, again.copies, again.detail) == (found.id, found.copies, found.detail)


def test_the_list_of_letters_asks_for_the_function_of_a_consumer_once(ref: StackRef) -> None:
    """Both of its queues lead to the same function."""
    asked = list[str]()

    def configuration(**request: Any) -> Any:
        asked.append(request["FunctionName"])
        return FUNCTION

    ref.client("lambda").get_function_configuration = configuration
    for queue in ("RideHistoryDlq", "RideHistoryRuleDlq", "PaymentDlq", "PaymentRuleDlq"):
        ref.client("sqs").send_message(
            QueueUrl=ref.outputs[f"{queue}Url"], MessageBody=json.dumps(on_bus(CREATED))
        )
    letters.letters(ref)
    assert sorted(asked) == ["payment", "ride-history"]


def test_an_event_tells_the_time_by_which_a_replay_chooses_it(ref: StackRef) -> None:
    """Its own time and the log's may be others: a producer's clock may be days ahead."""
    ahead = structs.replace(CREATED, time=CREATED.time + timedelta(days=20))
    log(ref, "CarRideEvents", on_bus(ahead) | {"time": "2026-11-21T08:30:07Z"})
    found = lookup.event(ref, CREATED.idempotencyid)
    (copy,) = found.copies
    assert copy.sent == datetime(2026, 11, 21, 8, 30, 7, tzinfo=UTC)


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({}, ["on bus", "on bus", "New", "Failed", "New"]),
        ({"ride": "order_01"}, ["on bus", "New", "Failed"]),
        ({"ride": "order_01", "type": "CarRideAccepted"}, []),
        ({"ride": "order_01", "outcome": "Failed"}, ["Failed"]),
        ({"at": "dispatch"}, ["Failed"]),
        ({"at": "payment"}, []),
        ({"at": "bus"}, ["on bus", "on bus"]),
        ({"at": "ride-history", "ride": "order_01"}, ["New"]),
        ({"type": "CarRideAccepted"}, []),
    ],
)
def test_lines_are_chosen_by_ride_type_outcome_and_consumer(
    ref: StackRef, options: Any, shown: list[str]
) -> None:
    """Neither a ride whose name begins alike nor a later one's type is taken for it."""
    other = event(CarRideCreated.of(booked("order_010")))
    for each in (CREATED, other):
        log(ref, "CarRideEvents", on_bus(each), age_s=9)
    log(ref, "RideHistory", delivery(CREATED, "New"), age_s=8)
    log(ref, "Dispatch", delivery(CREATED, "Failed", "dispatch"), age_s=7)
    log(ref, "RideHistory", delivery(other, "New"), age_s=6)
    since = datetime.now(UTC) - timedelta(minutes=1)
    _, *lines = tail.tail(ref, since=since, follow=False, **options)
    assert [each.outcome if isinstance(each, Delivered) else "on bus" for each in lines] == shown


BECAME: Final[dict[str, tuple[dict[str, Any], dict[str, int], str | None]]] = {
    "FN": ({}, {"completed": 1}, None),
    "N": ({}, {"completed": 1}, None),
    "ND": ({}, {"completed": 1}, None),
    "D": ({}, {"completed before": 1}, None),
    "FD": ({}, {"completed before": 1}, None),
    "FF": ({}, {"retrying": 1}, "F"),
    "FB": ({}, {"retrying": 1}, "F"),
    "FFL": ({}, {"dead-lettered": 1}, None),
    "FFLQ": ({}, {"dead-lettered": 1}, None),
    "FFLFN": ({}, {"completed": 1}, None),
    "LFB": ({}, {"retrying": 1}, "F"),
    "FQ": ({}, {"quarantined": 1}, None),
    "E": ({}, {"expired": 1}, None),
    "FE": ({}, {"expired": 1}, None),
    "NE": ({}, {"completed": 1}, None),
    "FNE": ({}, {"completed": 1}, None),
    "DE": ({}, {"completed before": 1}, None),
    "LE": ({}, {"expired": 1}, None),
    "EN": ({}, {"completed": 1}, None),
    "U": ({}, {"run unprotected": 1}, None),
    "FFN": ({"outcome": "Failed"}, {"Failed": 1}, None),
}
"""Deliveries of an event, each by a letter; options; what became of the event, and since when."""
OUTCOMES: Final = {
    "N": "New",
    "D": "Duplicate",
    "F": "Failed",
    "B": "Busy",
    "L": "DeadLettered",
    "Q": "Quarantined",
    "E": "Expired",
    "U": "Unprotected",
}


@pytest.mark.parametrize(
    ("deliveries", "options", "became", "since"),
    [(deliveries, *told) for deliveries, told in BECAME.items()],
)
def test_the_first_line_says_what_became_of_the_events_of_the_window(
    ref: StackRef, deliveries: str, options: Any, became: dict[str, int], since: str | None
) -> None:
    """Each event counts once, by the last delivery that says something of it."""
    other = event(CarRideCreated.of(booked("order_010")))
    log(ref, "Payment", delivery(other, "Failed", "payment"), age_s=500)
    log(ref, "Dispatch", delivery(other, "New", "dispatch"), age_s=5)
    for number, letter in enumerate(deliveries):
        line = delivery(CREATED, OUTCOMES[letter], "payment")
        log(ref, "Payment", line, age_s=50 - number)
    begin = datetime.now(UTC) - timedelta(minutes=1)
    told, *lines = tail.tail(ref, at="payment", since=begin, follow=False, **options)
    assert isinstance(told, tail.Window)
    assert (told.consumers, told.published) == ({"payment": became}, 0)
    first = next(each for each in lines if isinstance(each, Delivered))
    index = None if since is None else deliveries.index(since)
    began = None if index is None else first.time + timedelta(seconds=index)
    found = told.retrying_since.get("payment")
    assert (found is None) is (began is None)
    if began is not None and found is not None:
        assert abs(found - began) < timedelta(seconds=1)


def test_without_a_window_no_line_is_about_one(ref: StackRef) -> None:
    """Nobody has asked for what was before; one in which nothing was says so."""
    log(ref, "RideHistory", delivery(CREATED, "New"), age_s=9)
    assert [*tail.tail(ref, follow=False)] == []
    (told,) = tail.tail(ref, since=datetime.now(UTC), follow=False)
    assert isinstance(told, tail.Window)
    assert (told.published, told.consumers) == (0, {})


def test_each_line_is_shown_once(ref: StackRef) -> None:
    """A line that appears late is shown, too; one from before the given time is not."""
    log(ref, "CarRideEvents", on_bus(CREATED, "long ago"), age_s=600)
    steps: Iterator[Callable[[], None]] = iter(
        (
            lambda: log(
                ref, "CarRideEvents", on_bus(CREATED, "first"), {"source": "somebody else"}
            ),
            lambda: None,
            lambda: log(ref, "RideHistory", delivery(CREATED, "New")),
            lambda: log(
                ref, "CarRideEvents", on_bus(event(CarRideAccepted.of(booked())), "late"), age_s=5
            ),
        )
    )
    lines = tail.tail(
        ref, since=datetime.now(UTC) - timedelta(seconds=60), pause=lambda _: next(steps)()
    )
    seen = [
        each.outcome if isinstance(each, Delivered) else each.event_id
        for each in islice(lines, 4)
        if not isinstance(each, tail.Window)
    ]
    assert seen == ["first", "New", "late"]


BROKEN_EVENT: Final = on_bus(CREATED) | {"detail": CREATED.to_detail() | {"idempotencyid": NOBODY}}
BY_CONSUMER: Final = {"message": "…", "consumer": "ride-history"}
LETTERS: Final[dict[str, tuple[str, dict[str, Any], str]]] = {
    "it never reached the consumer": (
        "RideHistoryRuleDlq",
        on_bus(CREATED),
        "EventBridge could not deliver it",
    ),
    "each attempt crashed": (
        "RideHistoryDlq",
        {"requestContext": {"condition": "RetriesExhausted"}, "requestPayload": on_bus(CREATED)},
        "each attempt ended before it could log",
    ),
}


def test_the_deliveries_of_an_event_that_breaks_the_contract_are_found(ref: StackRef) -> None:
    """Nothing but EventBridge's id names it: not in its consumer's log, either."""
    ref.client("sqs").send_message(
        QueueUrl=ref.outputs["RideHistoryDlqUrl"],
        MessageBody=json.dumps(BY_CONSUMER | {"reason": "CONTRACT", "event": BROKEN_EVENT}),
    )
    log(ref, "CarRideEvents", BROKEN_EVENT)
    told = {"message": "delivery", "consumer": "ride-history", "reason": "CONTRACT"}
    for outcome in ("DeadLettered", "Duplicate"):
        log(ref, "RideHistory", told | {"outcome": outcome, "event_id": BROKEN_EVENT["id"]})
    (of_ride,) = lookup.ride(ref, "order_01").events
    for found in (of_ride, lookup.event(ref, BROKEN_EVENT["id"])):
        here = found.consumers[0]
        assert sorted(each.outcome for each in here.deliveries) == ["DeadLettered", "Duplicate"]
        assert here.breaks_contract
        assert "so it has no key and no record" in printed(found)


@pytest.mark.parametrize(("queue", "body", "why"), LETTERS.values(), ids=LETTERS)
def test_a_dead_letter_says_why_no_delivery_is_in_the_log(
    ref: StackRef, queue: str, body: dict[str, Any], why: str
) -> None:
    """It is not on its way."""
    ref.client("sqs").send_message(
        QueueUrl=ref.outputs[f"{queue}Url"], MessageBody=json.dumps(body)
    )
    log(ref, "CarRideEvents", body.get("event", on_bus(CREATED)))
    ride = lookup.ride(ref, "order_01")
    (found,) = ride.events
    here = found.consumers[0]
    (letter,) = here.dead_letters
    holds = [each for each in ride.holds if each.consumer == here.consumer]
    assert [(each.kind, each.letter_id) for each in holds] == [(Kind.GIVEN_UP, letter.id)]
    chosen = f"--key={letter.key}" if letter.key else f"--letter={letter.id}"
    assert chosen in shlex.split(holds[0].command)
    assert "--yes" not in holds[0].command
    assert here.outcome == "dead-lettered"
    assert why in printed(found)
    assert "on its way" not in printed(found)
