"""What idempotency records say, and what an operator's change does to them."""

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any, Final

import pytest
from moto import mock_aws

from carride.events import idempotency_id
from carride.region_fence import mark
from carride_idempotency.clock import epoch_ms
from carride_idempotency.keys import letter_key
from carride_idempotency.operators.explaining import explain
from carride_idempotency.protocol.decision import (
    Busy,
    ClaimRequest,
    Corrupt,
    Done,
    Limits,
    Quarantined,
    Write,
    decide,
)
from carride_idempotency.record import (
    COMPLETED,
    FAILED,
    IN_PROGRESS,
    QUARANTINED,
    STATUSES,
    Record,
    Status,
    UnknownStatus,
)
from carride_idempotency.record_items import item_of, record_of
from ops import keys, records
from ops.policies import MOST_ATTEMPTS
from ops.stack import OperatorError, StackRef
from ops.tests.test_reading import ride_event
from ops.tests.world import AWAY, empty_stack, put_record
from ops.verbs import Plan

NOW_MS: Final = int(time.time() * 1000)
FACT: Final = idempotency_id("order_01", "CarRideAccepted", 2)
KEY: Final = f"dispatch#{FACT}"
LATER: Final = NOW_MS // 1000 + 86_400
CLAIM: Final = Record(
    KEY, IN_PROGRESS, "one", 1, NOW_MS + 300_000, LATER, "1:f", "d", AWAY, NOW_MS, NOW_MS
)
DONE: Final = CLAIM._replace(status=COMPLETED, lease_ms=None, result="null")
GIVEN_UP: Final = CLAIM._replace(
    status=QUARANTINED, lease_ms=None, expiry=None, attempt=3, error="ValueError: no"
)
UNKNOWN: Final = GIVEN_UP._replace(externals='{"charge":null,"ship":null}')


@pytest.fixture(scope="module")
def ref() -> Iterator[StackRef]:
    """A stack."""
    with mock_aws():
        yield empty_stack()


def put(ref: StackRef, *written: Record) -> None:
    """Store these records, and delete all others."""
    dynamodb = ref.client("dynamodb")
    for table in ("Idempotency", "RideHistory"):
        for item in dynamodb.scan(TableName=table)["Items"]:
            dynamodb.delete_item(TableName=table, Key={"idempotencyKey": item["idempotencyKey"]})
    for record in written:
        put_record(ref, record)


def stored(ref: StackRef, key: str = KEY) -> Any:
    """Return a stored item, or None."""
    return (
        ref.client("dynamodb")
        .get_item(TableName="Idempotency", Key={"idempotencyKey": {"S": key}})
        .get("Item")
    )


def claimed_just_now(record: Record) -> Record:
    """Return a record whose lease is as long as if this module had been read now.

    Other tests may have taken longer than a lease since then.
    """
    if record.lease_ms is None:
        return record
    return record._replace(lease_ms=record.lease_ms + epoch_ms() - NOW_MS)


type Action = Callable[[StackRef, str], Plan[Any, Any]]
ACTIONS: Final = (records.release, records.forget)


@pytest.mark.parametrize(
    ("record", "allowed"),
    [
        (CLAIM, ""),
        (CLAIM._replace(lease_ms=NOW_MS - 10_000), ""),
        (CLAIM._replace(lease_ms=NOW_MS - 600_000), "release forget"),
        (CLAIM._replace(lease_ms=NOW_MS + 10**12), "release forget"),
        (CLAIM._replace(lease_ms=10**30), "release forget"),
        (CLAIM._replace(lease_ms=None), "release forget"),
        (CLAIM._replace(status=UnknownStatus("LOST"), owner=None), "release forget"),
        (GIVEN_UP, "release forget"),
        (DONE, "forget"),
        (CLAIM._replace(status=FAILED, lease_ms=None), "forget"),
    ],
    ids=[
        "live",
        "just ended",
        "crashed",
        "wrong clock",
        "damaged",
        "no lease",
        "odd",
        "quarantined",
        "done",
        "failed",
    ],
)
@pytest.mark.parametrize("action", ACTIONS)
def test_a_change_is_shown_first_and_refused_while_an_attempt_may_run(
    ref: StackRef, action: Action, record: Record, allowed: str
) -> None:
    """What is shown or refused changes nothing."""
    record = claimed_just_now(record)
    put(ref, record)
    if action.__name__ not in allowed:
        with pytest.raises(OperatorError, match=r"is held|nothing to release"):
            action(ref, KEY)
        assert stored(ref) == item_of(record)
        return
    plan = action(ref, KEY)
    assert stored(ref) == item_of(record)
    plan.do()
    left = stored(ref)
    assert (
        left is None
        if action is records.forget
        else (record_of(left).status, record_of(left).attempt) == (FAILED, 0)
    )


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(
    "change", [None, {"status": FAILED}, {"owner": "two"}, {"attempt": 2}, {"lease_ms": 1}]
)
def test_a_record_that_changes_after_it_was_shown_is_left_alone(
    ref: StackRef, action: Action, change: dict[str, Any] | None
) -> None:
    """A claim after the preview wins, and a record that was deleted is not written again."""
    put(ref, GIVEN_UP)
    plan = action(ref, KEY)
    changed = None if change is None else GIVEN_UP._replace(**change)
    put(ref, *filter(None, [changed]))
    with pytest.raises(OperatorError, match="has changed"):
        plan.do()
    assert stored(ref) == (changed and item_of(changed))


@pytest.mark.parametrize(
    "key", ["", "dispatch", "nobody#key", "dispatch#none", mark(AWAY)["id"]["S"]]
)
def test_what_is_no_record_is_not_changed(ref: StackRef, key: str) -> None:
    """The mark of a fence is none: only `failover back` may end it."""
    for action in ACTIONS:
        with pytest.raises(OperatorError, match=r"no record|is not a key"):
            action(ref, key)


@pytest.mark.parametrize(
    ("record", "asked", "problem"),
    [
        (GIVEN_UP, {"not_done": True}, "no external call"),
        (UNKNOWN, {"not_done": True, "done": "1"}, "give --done .* or --not-done"),
        (UNKNOWN, {"done": "paid"}, "is not JSON"),
        (CLAIM._replace(externals='{"ship":null}'), {"not_done": True}, "is held"),
        (UNKNOWN, {"not_done": True}, None),
        (UNKNOWN, {"done": '{"id": [1.5]}'}, None),
    ],
)
def test_a_call_whose_outcome_is_unknown_is_settled(
    ref: StackRef, record: Record, asked: dict[str, Any], problem: str | None
) -> None:
    """What is shown or refused changes nothing.

    Then the key runs again, with what was found out about the call.
    """
    record = claimed_just_now(record)
    put(ref, record)
    asked = {"done": None, "not_done": False} | asked
    if problem is not None:
        with pytest.raises(OperatorError, match=problem):
            records.settle(ref, KEY, **asked)
        assert stored(ref) == item_of(record)
        return
    plan = records.settle(ref, KEY, **asked)
    assert stored(ref) == item_of(record)
    plan.do()
    left = record_of(stored(ref))
    known = False if asked["not_done"] else '{"id":[1.5]}'
    calls = json.loads(left.externals or "{}")
    assert (left.status, left.attempt, calls) == (FAILED, 0, {"charge": known, "ship": None})


WORDS: Final[dict[str, Any]] = {
    "no other delivery runs": Busy,
    "are answered as duplicates": Done,
    "no delivery runs until you release it": Quarantined,
    "the record is corrupt": Corrupt,
    "the next delivery quarantines the key": (Write, QUARANTINED, None),
    **{
        f"the next delivery runs as attempt {number}": (Write, IN_PROGRESS, number)
        for number in (1, 2, 3)
    },
}


def test_a_record_says_what_its_next_delivery_does() -> None:
    """That is what the protocol decides about it."""
    limits = Limits(86_400, 3, 30_000, 1_000, 1_000, same_delivery_takes_over=False)
    delivery = ClaimRequest(KEY, "me", "1:f", "other", AWAY, None, False, limits)
    statuses: tuple[Status, ...] = (*STATUSES.values(), UnknownStatus("ODD"))
    for status, lease_s, attempt, expires_s in product(
        statuses, (None, -600, 300), range(4), (None, -600, 600)
    ):
        lease_ms = None if lease_s is None or status != IN_PROGRESS else NOW_MS + lease_s * 1000
        expiry = None if expires_s is None else NOW_MS // 1000 + expires_s
        record = CLAIM._replace(status=status, lease_ms=lease_ms, attempt=attempt, expiry=expiry)
        says = explain(record, datetime.fromtimestamp(NOW_MS / 1000, UTC), MOST_ATTEMPTS).says
        (meant,) = {meaning for words, meaning in WORDS.items() if words in says}
        step = decide(record, delivery, NOW_MS)
        if isinstance(step, Write):
            number = None if step.record.status == QUARANTINED else step.record.attempt
            assert meant == (Write, step.record.status, number), says
        else:
            assert meant is type(step), says


def test_a_record_that_keeps_an_entry_of_the_history_does_not_expire() -> None:
    """Its duplicates are recognised for good, and not until an unknown time."""
    kept = DONE._replace(expiry=None)
    says = explain(kept, datetime.fromtimestamp(NOW_MS / 1000, UTC), MOST_ATTEMPTS).says
    assert "answered as duplicates, and the record does not expire" in says
    assert "unknown" not in says


def test_the_mark_of_a_letter_says_what_a_replay_does() -> None:
    """It is no record of an event, although it is in the same table."""
    mark = DONE._replace(key=letter_key("dispatch", AWAY, "e1"), expiry=NOW_MS // 1000)
    for later_ms in (0, 1_000):  # DynamoDB deletes it late
        says = explain(
            mark, datetime.fromtimestamp((NOW_MS + later_ms) / 1000, UTC), MOST_ATTEMPTS
        ).says
        assert "breaks the contract was dead-lettered" in says
        assert "a replay of it sends no second letter" in says
        assert "duplicates" not in says


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"ride": "order_01"}, [KEY, f"ride-history#{FACT}"]),
        ({"ride": "order_02"}, []),
        ({"key": FACT}, [KEY, f"ride-history#{FACT}"]),
        ({"key": KEY}, [KEY]),
        ({"key": KEY, "ride": "order_02"}, []),
        ({"ride": "order_01", "status": "quarantined"}, [KEY]),
        ({"status": "QUARANTINED"}, [KEY]),
        ({"status": "IN_PROGRESS"}, []),
        ({"key": ""}, []),
        ({}, [KEY]),
        ({"consumer": "dispatch"}, [KEY]),
        ({"consumer": "payment"}, []),
        ({"cause": "ValueError"}, [KEY]),
        ({"cause": "TypeError"}, []),
        ({"older": timedelta()}, [KEY]),
        ({"older": timedelta(days=1)}, []),
    ],
)
def test_records_are_found_by_ride_key_and_status(
    ref: StackRef, asked: Any, found: list[str]
) -> None:
    """A ride's are found although no table knows the ride.

    Where there is none, the answer says why.
    """
    put(ref, GIVEN_UP, DONE._replace(key=f"ride-history#{FACT}"))
    named = {name: value for name, value in asked.items() if name != "key"}
    answer = keys.keys(ref, asked.get("key"), **named)
    assert [each.key for each in answer.keys] == found
    assert bool(answer.says) is not bool(found)


def test_quarantined_keys_are_those_that_wait_for_an_operator(ref: StackRef) -> None:
    """The index has them, of both tables of records.

    A corrupt record is found by reading the whole tables. One that an attempt holds is left out,
    although it intends a call.
    """
    intended = '{"charge":null}'
    put(
        ref,
        GIVEN_UP,
        GIVEN_UP._replace(key=f"ride-history#{FACT}"),
        CLAIM._replace(key="payment#odd", status=UnknownStatus("ODD")),
        CLAIM._replace(key="payment#lost", lease_ms=None),
        DONE._replace(key="payment#done"),
        CLAIM._replace(key="payment#intended", lease_ms=NOW_MS - 600_000, externals=intended),
        CLAIM._replace(key="payment#claim", lease_ms=epoch_ms() + 60_000, externals=intended),
    )
    waiting = [KEY, "payment#intended", f"ride-history#{FACT}"]
    assert [each.key for each in keys.keys(ref).keys] == waiting
    found = [each.key for each in keys.keys(ref, corrupt=True).keys]
    assert found == sorted([*waiting, "payment#lost", "payment#odd"])


@pytest.mark.parametrize("damage", [{"status": {"S": "LOST"}}, {"createdAt": {"S": "soon"}}, {}])
def test_a_damaged_record_waits_for_an_operator_after_its_window(
    ref: StackRef, damage: dict[str, Any]
) -> None:
    """The index has it, also without a status, and it is released: its deliveries do not run."""
    put(ref)
    ended = NOW_MS // 1000 - 86_400
    item = item_of(GIVEN_UP._replace(expiry=ended))
    del item["status" if not damage else "error"]
    ref.client("dynamodb").put_item(TableName="Idempotency", Item=item | damage)
    (shown,) = keys.keys(ref).keys
    assert "the record is corrupt" in shown.says
    records.release(ref, KEY).do()
    assert record_of(stored(ref)).status == FAILED


@pytest.mark.parametrize(
    ("consumer", "read"),
    [
        (None, {"Idempotency", "RideHistory"}),
        ("payment", {"Idempotency"}),
        ("ride-history", {"RideHistory"}),
        ("ride-history/x", {"RideHistory"}),
    ],
)
def test_only_the_table_of_a_consumer_is_read(
    ref: StackRef, consumer: str | None, read: set[str]
) -> None:
    """The other one has none of its records, and may be large."""
    put(ref)
    dynamodb = ref.client("dynamodb")
    asked = set[str]()

    def note(params: dict[str, Any], **_: object) -> None:
        asked.add(params["TableName"])

    dynamodb.meta.events.register("provide-client-params.dynamodb.Scan", note)
    try:
        assert keys.keys(ref, status=COMPLETED, consumer=consumer).keys == ()
    finally:
        dynamodb.meta.events.unregister("provide-client-params.dynamodb.Scan", note)
    assert asked == read


def test_a_list_says_whether_there_may_be_more(ref: StackRef) -> None:
    """It ends at the limit."""
    put(ref, *(DONE._replace(key=f"payment#{number}") for number in range(5)))
    found = [keys.keys(ref, status=COMPLETED, limit=most) for most in (9, 5, 4)]
    assert [len(each.keys) for each in found] == [5, 5, 4]
    assert [each.complete for each in found] == [True, True, False]


def test_a_key_says_whether_its_letter_is_there(ref: StackRef) -> None:
    """A record cannot know: somebody may have deleted the letter."""
    put(ref, GIVEN_UP._replace(dead_lettered=True))
    (gone,) = keys.keys(ref).keys
    assert (gone.letter, gone.queue) == ("", "")
    assert "its letter is not in its queues" in gone.says
    body = {
        "reason": "QUARANTINED",
        "message": "ValueError: no",
        "consumer": "dispatch",
        "key": KEY,
        "attempt": 3,
        "event": None,
    }
    attributes: Any = {
        name: {"DataType": "String", "StringValue": text}
        for name, text in (("Reason", "QUARANTINED"), ("Consumer", "dispatch"))
    }
    sent = ref.client("sqs").send_message(
        QueueUrl=ref.outputs["DispatchDlqUrl"],
        MessageBody=json.dumps(body),
        MessageAttributes=attributes,
    )
    ref.client("sqs").send_message(
        QueueUrl=ref.outputs["DispatchDlqUrl"], MessageBody=json.dumps(ride_event())
    )
    called = list[str]()
    events = ref.client("dynamodb").meta.events
    events.register("before-call", lambda model, **_: called.append(model.name))
    (there,) = keys.keys(ref).keys
    assert (there.letter, there.queue) == (sent["MessageId"], "DispatchDlq")
    with_a_letter = [*called]
    called.clear()
    ref.client("sqs").purge_queue(QueueUrl=ref.outputs["DispatchDlqUrl"])
    assert keys.keys(ref).keys == (gone,)
    assert called == with_a_letter  # no record is read for a letter
    assert "in DispatchDlq" in there.says
