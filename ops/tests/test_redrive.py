"""What dead letters say, which ones a redrive sends, and what it leaves in their queue."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from io import StringIO
from typing import Any, Final

import pytest
from botocore.exceptions import NoCredentialsError
from moto import mock_aws

import ops.cli.rendering  # noqa: F401 - how letters look
from carride.bus_entry import BusEntry
from carride_idempotency.clock import epoch_ms
from carride_idempotency.operators.redriving import FAILED_AGAIN, HELD_BACK, Redriven, RedrivePlan
from carride_idempotency.operators.site import Trial, Why
from carride_idempotency.record import (
    COMPLETED,
    FAILED,
    IN_PROGRESS,
    QUARANTINED,
    Record,
    Status,
    UnknownStatus,
)
from carride_idempotency.record_items import item_of
from ops import dead_letters, letters, records, redrive
from ops.audit.queues import peek
from ops.audit.reading import marks_of
from ops.cli.show import console, plain, show
from ops.desk import letterbox
from ops.stack import OperatorError, StackRef
from ops.tests.world import AWAY, client_of, create_table, put_record, stack
from ops.verbs import Session
from tests.kit.fakes import FakeBus, client_error
from tests.kit.rides import NOW, entry

pytestmark = pytest.mark.proof  # hundreds of calls of moto: longer than a unit test

DLQ: Final = "RideHistoryDlq"
AT_ONCE: Final[Any] = {"report": lambda _: None, "sleep": lambda _: None}


class History:
    """The function of the ride history, as its records show it.

    It completes each event unless told otherwise.
    """

    def __init__(self, dynamodb: Any) -> None:
        self.dynamodb = dynamodb
        self.events: list[str] = []
        self.replayed = 0
        """How many of the events seem to come from a replay."""
        self.runs: Callable[[str], object] = partial(self.record, COMPLETED)

    def invoke(self, **request: Any) -> None:
        """Refuse large events, as Lambda does, and run the others."""
        if len(request["Payload"].encode()) > 1_000:
            raise client_error("RequestEntityTooLargeException", 413)
        event = json.loads(request["Payload"])
        self.replayed += "replay-name" in event
        self.events.append(event["detail"]["idempotencyid"])
        self.runs(self.events[-1])

    def get_function_configuration(self, **request: Any) -> Any:
        return {"Timeout": 30, "Environment": {"Variables": {"IDEMPOTENCY_WINDOW_DAYS": "36500"}}}

    def record(
        self, status: Status, fact: str, attempt: int = 1, lease_ms: int | None = None
    ) -> None:
        made = record(f"ride-history#{fact}", status, attempt, lease_ms)
        self.dynamodb.put_item(TableName="history", Item=item_of(made))


def record(
    key: str, status: Status, attempt: int, lease_ms: int | None, print_: str | None = None
) -> Record:
    return Record(
        key,
        status,
        "one",
        attempt,
        lease_ms,
        None,
        print_,
        "d",
        AWAY,
        1,
        1,
        error="TimeoutError: 3 s",
    )


@pytest.fixture
def ref() -> Iterator[StackRef]:
    """A stack with two dead-letter queues, and a queue that a consumer reads."""
    bus: Any = FakeBus(
        lambda request: "MalformedDetail" if "order_02" in request["Detail"] else None
    )
    bus.describe_event_bus = lambda **_: {"Arn": "arn:aws:events:us-east-2:1:event-bus/bus"}
    target = {"Arn": "arn:aws:lambda:us-east-2:1:function:ride-history"}
    bus.list_targets_by_rule = lambda **_: {"Targets": [target]}
    with mock_aws():
        sqs = client_of("sqs", AWAY)
        dynamodb = client_of("dynamodb", AWAY)
        create_table(dynamodb, "records", "idempotencyKey")
        create_table(dynamodb, "history", "idempotencyKey")
        create_table(dynamodb, "marks", "id")
        services = {"dynamodb": dynamodb, "sqs": sqs, "events": bus, "lambda": History(dynamodb)}
        outputs = {
            "CarRideBusName": "bus",
            "IdempotencyTableName": "records",
            "RideHistoryTableName": "history",
            "OperatorTableName": "marks",
        }
        outputs |= dict.fromkeys(("RideHistoryFunctionName", "PaymentFunctionName"), "one")
        for name in ("ProducerDlq", DLQ, "PaymentDlq", "DispatchQueue"):
            outputs[f"{name}Url"] = sqs.create_queue(QueueName=name)["QueueUrl"]
        rules = {"AWS::Events::Rule": dict.fromkeys(("RideHistoryRule", "PaymentRule"), "rule")}
        yield stack(lambda service, _: services[service], AWAY, rules, **outputs)


def envelope(kept: BusEntry, **changes: Any) -> str:
    fields = {"source": kept.source, "detail-type": kept.detail_type, "time": kept.time.isoformat()}
    return json.dumps({**fields, "detail": json.loads(kept.detail)} | changes)


def given_up(ride: str, reason: str = "QUARANTINED", error: str = "ValueError: no") -> str:
    event = json.loads(envelope(entry(ride)))
    return json.dumps(
        {"reason": reason, "consumer": "ride-history", "message": error, "event": event}
    )


def put(ref: StackRef, queue: str, *bodies: str) -> dict[str, str]:
    """Put messages into a queue, and return their ids by body."""
    url = ref.outputs[f"{queue}Url"]
    sqs = ref.client("sqs")
    return {body: sqs.send_message(QueueUrl=url, MessageBody=body)["MessageId"] for body in bodies}


def plan_of(ref: StackRef, queue: str, **options: Any) -> RedrivePlan[dead_letters.DeadLetter]:
    return redrive.plan_of(redrive.StackSite(ref, queue), **options)


def carried_out(
    ref: StackRef, plan: RedrivePlan[dead_letters.DeadLetter], **options: Any
) -> Redriven:
    site = redrive.StackSite(ref, plan.queue)
    return redrive.carried_out(site, plan, **AT_ONCE | {"wait_s": 0} | options)


def redriven(ref: StackRef, queue: str = DLQ, *, release: bool = False, **options: Any) -> Redriven:
    """Redrive a queue, and check that what the plan says stays does stay."""
    plan = plan_of(ref, queue, release=release)
    done = carried_out(ref, plan, **options)
    assert {each.verdict.says for each in plan.letters if not each.verdict.goes} <= set(done.stayed)
    return done


def shown(ref: StackRef, *name: str) -> dead_letters.DeadLetters:
    """Return what `letters` shows of a name, or of all queues."""
    found = letters.letters(ref, *name)
    assert isinstance(found, dead_letters.DeadLetters)
    return found


def left(ref: StackRef, queue: str = DLQ) -> int:
    return dead_letters.reasons(ref, queue).total()


def test_messages_that_the_bus_does_not_accept_stay(ref: StackRef) -> None:
    """An accepted event leaves the queue.

    The others stay as the same messages, each with its reason.
    """
    gone = envelope(entry("order_01"), time="2026-11-21T08:30:00")
    by_lambda = {"requestContext": {"condition": "RetriesExhausted"}, "requestPayload": {}}
    by_consumer = {"reason": "UNKNOWN", "consumer": "a", "event": None, "eventGzip": "H4sI"}
    unreadable = ("no json", "[" * 20_000, f'{{"price":{"9" * 5_000}}}')
    reasons = {
        envelope(entry("order_02")): "refused: MalformedDetail",
        envelope(entry("order_03"), time="then"): "its time cannot be read",
        envelope(entry("order_04"), time="9999-12-31T23:59:59-01:00"): "its time cannot be read",
        envelope(entry("order_05"), source=None): "its source cannot be read",
        envelope(entry("order_06"), detail="no json"): "the bus would refuse it",
        **dict.fromkeys(
            map(json.dumps, (by_lambda, by_consumer, {"detailGzip": "H4sI"})),
            "the event is not in it",
        ),
        **dict.fromkeys(unreadable, "the event is not in it"),
    }
    ids = put(ref, "ProducerDlq", gone, *reasons)
    assert dead_letters.reasons(ref, "ProducerDlq")["UNREADABLE"] == 3
    done = redriven(ref, "ProducerDlq", tries_one=False)
    assert (done.sent, done.stayed) == (
        1,
        {why: list(reasons.values()).count(why) for why in reasons.values()},
    )
    (sent,) = ref.client("events").events
    assert sent["Time"] == NOW, "a time without a zone is in UTC"
    shown = peek(ref.client("sqs"), ref.outputs["ProducerDlqUrl"])
    assert {message["Body"]: message["MessageId"] for message in shown} == {
        body: ids[body] for body in reasons
    }


def test_a_redrive_is_no_replay(ref: StackRef) -> None:
    """A consumer would acknowledge a replay whose letter is there, and the redrive takes it out."""
    put(ref, DLQ, envelope(entry("order_01"), **{"replay-name": "us-east-1.1"}))
    assert redriven(ref).sent == 1
    function = ref.client("lambda")
    assert (len(function.events), function.replayed, left(ref)) == (1, 0, 0)


def test_letters_are_sent_at_the_rate_that_was_asked_for(ref: StackRef) -> None:
    """A pause follows each. A refused one stays, with AWS's code.

    Another operator's earlier plan sends none again.
    """
    put(ref, DLQ, envelope(entry("order_01")), envelope(entry("order_03")))
    theirs = plan_of(ref, DLQ)
    pauses = list[float]()
    put(ref, DLQ, envelope(entry(size=5_000)))
    done = redriven(ref, tries_one=False, rate=4, sleep=pauses.append)
    assert (done.sent, done.stayed, pauses) == (
        2,
        {"refused: RequestEntityTooLargeException": 1},
        [0.25] * 3,
    )
    done = carried_out(ref, theirs)
    assert (done.sent, done.gone, done.succeeded) == (0, 2, False)
    assert (len(ref.client("lambda").events), left(ref)) == (2, 1)


EXPIRED: Final = {"expirytime": "2026-11-21T08:31:00Z"}


@pytest.mark.parametrize(
    ("status", "lease_s", "print_", "detail", "verdict"),
    [
        (None, None, None, {}, "True its consumer processes it"),
        (None, None, None, EXPIRED, "True its consumer drops it"),
        (None, None, None, {"data": {}}, "False it breaks the contract"),
        (COMPLETED, None, None, {}, "True its consumer recognises it"),
        (COMPLETED, None, "2:other", {}, "False another event has its idempotency key"),
        (FAILED, None, None, {}, "True its consumer processes it"),
        (QUARANTINED, None, None, {}, "False its key is quarantined: add --release"),
        (UnknownStatus("ODD"), None, None, {}, "False its key is quarantined: add --release"),
        (IN_PROGRESS, 600, None, {}, "False an attempt may be running"),
        (IN_PROGRESS, -30, None, {}, "False an attempt may be running"),
        (IN_PROGRESS, -600, None, {}, "True its consumer processes it"),
    ],
)
def test_a_plan_says_what_the_consumer_would_do(
    ref: StackRef,
    status: Status | None,
    lease_s: int | None,
    print_: str | None,
    detail: Any,
    verdict: str,
) -> None:
    """Its own code decides on its record.

    A key that an attempt may hold is left alone for a minute longer.
    """
    event = json.loads(envelope(entry()))
    if status is not None:
        lease_ms = None if lease_s is None else epoch_ms() + lease_s * 1000
        made = record(
            f"ride-history#{event['detail']['idempotencyid']}", status, 1, lease_ms, print_
        )
        put_record(ref, made)
    put(ref, DLQ, json.dumps(event | {"detail": event["detail"] | detail}))
    (planned,) = plan_of(ref, DLQ).letters
    assert f"{planned.verdict.goes} {planned.verdict.says}".startswith(verdict)
    assert planned.verdict.may_fail == ("processes" in verdict)


def test_a_key_whose_attempts_all_crashed_is_released_first(ref: StackRef) -> None:
    """Its next delivery would be given up without a run.

    The key is released only if that was asked for.
    """
    crashed = json.loads(envelope(entry("order_01")))
    made = record(
        f"payment#{crashed['detail']['idempotencyid']}", IN_PROGRESS, 3, epoch_ms() - 600_000
    )
    put_record(ref, made)
    ref.client("lambda").runs = list
    put(
        ref,
        "PaymentDlq",
        json.dumps({"requestContext": {"condition": "Exhausted"}, "requestPayload": crashed}),
    )
    assert plan_of(ref, "PaymentDlq").letters[0].verdict.why == Why.USED_UP
    for release in (False, True):
        assert redriven(ref, "PaymentDlq", release=release).sent == release
        (found,) = records.StackRecords(ref).at([made.key])
        assert (found.status, found.attempt) == ((FAILED, 0) if release else (IN_PROGRESS, 3))


def test_a_key_whose_attempts_all_failed_is_released_first(ref: StackRef) -> None:
    """The dead letter came before the consumer could quarantine the key."""
    event = json.loads(envelope(entry()))
    made = record(f"ride-history#{event['detail']['idempotencyid']}", FAILED, 3, None)
    put_record(ref, made)
    put(ref, DLQ, json.dumps(event))
    for release in (False, True):
        assert redriven(ref, release=release).sent == release


@pytest.mark.parametrize("errors", [("one",), ("one", "one", "one"), ("one", "two"), ("one", "")])
def test_the_letters_of_one_event_release_one_key(ref: StackRef, errors: tuple[str, ...]) -> None:
    """In one group or in several: whichever of them went, its key is counted once."""
    history = ref.client("lambda")
    bodies = [given_up(f"order_0{number}", error=error) for error in errors for number in (1, 4)]
    put(ref, DLQ, *bodies)
    facts = {json.loads(each)["event"]["detail"]["idempotencyid"] for each in bodies}
    for fact in facts:
        history.record(QUARANTINED, fact, 3)
    history.runs = partial(history.record, QUARANTINED)
    done = redriven(ref, release=True)
    assert 0 < done.sent <= done.planned
    assert done.released == len(set(history.events))
    assert {each.labels["fact"] for each in done.tried} <= facts


def test_a_letter_is_chosen_by_the_beginning_of_its_id(ref: StackRef) -> None:
    """A beginning that ids have in common chooses none of them."""
    bodies = [envelope(entry(f"order_{number:02}")) for number in range(17)]
    ids = put(ref, DLQ, *bodies).values()
    chosen, *_ = ids
    (planned,) = plan_of(ref, DLQ, id=chosen[:30]).letters
    assert planned.letter.id == chosen
    # Seventeen ids begin with sixteen digits.
    (in_common, count), *_ = Counter(each[0] for each in ids).most_common()
    assert count > 1
    with pytest.raises(OperatorError, match=f"{in_common} begins more than one id"):
        plan_of(ref, DLQ, id=in_common)


def test_a_plan_in_which_every_letter_stays_is_empty(ref: StackRef) -> None:
    """So no command asks for --yes where it would change nothing."""
    put(ref, DLQ, "no event")
    session = Session(print, None)
    session.stack = ref
    assert redrive.redrive(session, DLQ).is_empty
    put(ref, DLQ, envelope(entry("order_02")))
    assert not redrive.redrive(session, DLQ).is_empty


@pytest.mark.parametrize("at", range(16))
def test_an_interrupted_redrive_loses_and_hides_nothing(ref: StackRef, at: int) -> None:
    """Whichever call is interrupted, each letter was delivered or is in the queue.

    What has left the queue is marked, so that an audit does not call it lost.
    """
    bodies = [envelope(entry(f"order_{number:02}")) for number in range(4)]
    facts = {json.loads(each)["detail"]["idempotencyid"] for each in put(ref, DLQ, *bodies)}
    plan = plan_of(ref, DLQ)
    history = ref.client("lambda")
    began = datetime.now(UTC).replace(microsecond=0)
    calls = iter(range(1_000))

    def interrupt(**_: Any) -> None:
        if next(calls) == at:
            raise KeyboardInterrupt if at % 2 else NoCredentialsError()

    for service in ("sqs", "dynamodb"):
        ref.client(service).meta.events.register("before-call", interrupt)
    with pytest.raises((KeyboardInterrupt, OperatorError)) as ended:
        carried_out(ref, plan, tries_one=False)
    assert "of 4 letters were sent" in str(ended.value)
    assert left(ref) + len(set(history.events)) >= len(facts)
    there = {found.letter.fact for found in dead_letters.received_from(ref, DLQ)}
    marked = {f"ride-history#{fact}" for fact in facts - there}
    assert marked <= marks_of(ref).redriven.keys()
    assert all(began <= each <= datetime.now(UTC) for each in marks_of(ref).redriven.values())
    redriven(ref)
    assert (set(history.events), left(ref)) == (facts, 0)


GROUP: Final = ("order_01", "order_02", "order_03", "order_05", "order_06")
"""Rides whose letters have the same error."""


def fact_in(ride: str) -> str:
    return str(json.loads(given_up(ride))["event"]["detail"]["idempotencyid"])


@pytest.mark.parametrize(
    ("how", "first", "sent", "stay"),
    [
        ("failed", Trial.FAILED, 4, 2),
        ("unknown", Trial.UNKNOWN, 2, 4),
        ("back", Trial.FAILED, 4, 5),
        ("refused", Trial.FAILED, 1, 5),
    ],
)
def test_a_group_is_sent_only_if_a_letter_that_was_tried_succeeds(
    ref: StackRef, how: str, first: Trial, sent: int, stay: int
) -> None:
    """Up to three are tried; the other letters stay as they are; other groups are sent."""
    history = ref.client("lambda")
    put(
        ref,
        DLQ,
        *map(given_up, GROUP),
        given_up("order_04", error="TypeError: x"),
    )
    rides = {fact_in(ride): ride for ride in GROUP}
    fine = fact_in("order_04")
    for fact in rides:
        history.record(FAILED, fact)

    def runs(fact: str) -> None:
        if fact == fine:
            history.record(COMPLETED, fact)
        elif how == "failed":
            history.record(FAILED, fact, attempt=2)
        elif how == "back":  # without a record: the function could not start
            put(ref, DLQ, given_up(rides[fact]))
        elif how == "refused":
            raise client_error("AccessDeniedException", 403)

    history.runs = runs
    # A letter that is back already is found at the first look, not when the patience is over.
    patience_s = 60 * (how == "back")
    done = redriven(
        ref, wait_s=patience_s, sleep=lambda pause_s: pytest.fail("it waits") if pause_s else None
    )
    assert sorted(done.first.values()) == sorted([Trial.SUCCEEDED, first])
    assert (done.sent, done.stayed[HELD_BACK], left(ref), done.succeeded) == (
        sent,
        4 if how == "unknown" else 2,
        stay,
        False,
    )


def test_a_letter_that_comes_back_to_the_other_queue_of_its_consumer_has_failed(
    ref: StackRef,
) -> None:
    """The rule could not invoke the function; now the function cannot start."""
    rule_dlq = "RideHistoryRuleDlq"
    outputs: Any = ref.outputs
    outputs[f"{rule_dlq}Url"] = ref.client("sqs").create_queue(QueueName=rule_dlq)["QueueUrl"]
    put(ref, rule_dlq, *(envelope(entry(ride)) for ride in GROUP))
    rides = {fact_in(ride): ride for ride in GROUP}
    history = ref.client("lambda")
    history.runs = lambda fact: None
    looks = 0

    def sleep(pause_s: float) -> None:
        nonlocal looks
        if pause_s:
            looks += 1
            put(ref, DLQ, given_up(rides[history.events[-1]]))

    done = redriven(ref, rule_dlq, wait_s=60, sleep=sleep)
    assert [each.trial for each in done.tried] == [Trial.FAILED] * 3
    assert (done.sent, done.stayed, looks) == (3, {HELD_BACK: 2}, 3)
    assert (left(ref), left(ref, rule_dlq)) == (3, 2)


def test_a_queue_that_a_consumer_reads_is_never_received_from(ref: StackRef) -> None:
    """Neither a preview nor a redrive hides its messages.

    A dead-letter queue without a target is refused, too.
    """
    put(ref, "DispatchQueue", envelope(entry()))
    ref.outputs["OutboxPipeDlqUrl"] = ref.outputs["DispatchQueueUrl"]  # type: ignore[index]
    for look in (letters.letters, dead_letters.reasons, plan_of):
        with pytest.raises(OperatorError, match="DispatchQueue"):
            look(ref, "DispatchQueue")
    with pytest.raises(OperatorError, match="runbooks"):
        plan_of(ref, "OutboxPipeDlq")
    (message,) = ref.client("sqs").receive_message(
        QueueUrl=ref.outputs["DispatchQueueUrl"], AttributeNames=["ApproximateReceiveCount"]
    )["Messages"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"


def test_letters_are_grouped_by_failure(ref: StackRef) -> None:
    """Ids and numbers do not tell failures apart.

    Each says how many letters, which rides, and how often redriven.
    """
    slow = [
        given_up(f"order_{at:02}", error=f"TimeoutError: order_{at:02} took {at},{at}00.5 s")
        for at in range(60)
    ]
    put(
        ref,
        DLQ,
        *slow,
        given_up("order_99", error="TypeError: order_99"),
        given_up("order_98", reason="UNKNOWN"),
    )
    history = ref.client("lambda")
    history.runs = partial(history.record, FAILED)
    assert redriven(ref).sent == 5, "up to three of each group"
    put(ref, DLQ, slow[0])
    (failure,) = shown(ref).failures
    assert (failure.count, failure.redriven, failure.consumer) == (58, 1, "ride-history")
    assert failure.letters[0].sent == failure.oldest
    assert {letter.type for letter in failure.letters} == {"CarRideCreated"}
    assert all(letter.ride == letter.event["detail"]["subject"] for letter in failure.letters)
    assert left(ref) == 58, "nothing stays hidden"
    console(printed := StringIO()).print(show(letters.letters(ref)))
    assert {failure.group, failure.letters[0].ride} <= set(printed.getvalue().split())
    assert max(map(len, printed.getvalue().splitlines())) <= 100


def test_letters_begin_with_what_can_be_redriven_and_name_its_command(ref: StackRef) -> None:
    """As many letters as the command's plan sends; a failure that only returns has no command."""
    for ride in ("order_11", "order_12", "order_13"):
        breaking = json.loads(given_up(ride, "CONTRACT", "ContractError: no id"))
        del breaking["event"]["detail"]["idempotencyid"]
        put(ref, DLQ, json.dumps(breaking))
    put(ref, DLQ, given_up("order_01"), given_up("order_02"))
    put(ref, DLQ, given_up("order_03", error="TypeError: another"))
    history = ref.client("lambda")
    kept = json.loads(given_up("order_03"))["event"]["detail"]["idempotencyid"]
    history.record(QUARANTINED, kept)
    found = shown(ref).failures
    assert [(each.count, each.goes, each.releases) for each in found] == [
        (2, 2, False),
        (1, 1, True),
        (3, 0, False),
    ]
    for failure in found:
        if failure.goes:
            _, _, queue, *options = shlex.split(failure.command)
            plan = plan_of(ref, queue, group=failure.group, release="--release" in options)
            assert f"--group={failure.group}" in options
            assert sum(each.verdict.goes for each in plan.letters) == failure.goes
        else:
            assert not failure.command
            assert failure.stays
    console(printed := StringIO()).print(show(letters.letters(ref)))
    lines = printed.getvalue().splitlines()
    assert re.findall(r"[0-9]+", lines[0]) == ["6", "3"]
    for failure in found:
        assert failure.command in printed.getvalue()


def test_letters_are_chosen_by_key_reason_group_and_number(ref: StackRef) -> None:
    """Only chosen letters are sent, the oldest first.

    A choice that fits none is refused with those that there are.
    """
    bodies = [
        given_up("order_01"),
        given_up("order_02", error="TypeError: a"),
        given_up("order_03", "UNKNOWN"),
    ]
    put(ref, DLQ, *bodies)
    every = [planned.letter for planned in plan_of(ref, DLQ).letters]
    for letter in every:
        for choice in (
            {"key": letter.key},
            {"group": letter.group},
            {"key": letter.key, "reason": letter.reason},
        ):
            chosen = plan_of(ref, DLQ, **choice)
            assert ([planned.letter for planned in chosen.letters], chosen.others) == ([letter], 2)
    assert [
        planned.letter for planned in plan_of(ref, DLQ, reason="QUARANTINED", limit=1).letters
    ] == every[:1]
    with pytest.raises(OperatorError, match=every[0].group):
        plan_of(ref, DLQ, reason="CONTRACT")
    assert carried_out(ref, plan_of(ref, DLQ, limit=1)).sent == 1
    assert left(ref) == 2


def test_letters_are_chosen_by_age(ref: StackRef) -> None:
    """Since a time and until another one, which is not included."""
    put(ref, DLQ, given_up("order_01"), given_up("order_02"))
    first, *_ = sorted(each.letter.sent for each in plan_of(ref, DLQ).letters)
    minute = timedelta(minutes=1)
    every: Any = {"since": first, "until": first + minute}
    assert len(plan_of(ref, DLQ, **every).letters) == 2
    nothing: Any = ({"since": first + minute}, {"until": first})
    for none in nothing:
        with pytest.raises(OperatorError, match="has no such letter"):
            plan_of(ref, DLQ, **none)


def test_one_poison_letter_holds_back_no_group(ref: StackRef) -> None:
    """The others go; the poison one is told as failed."""
    history = ref.client("lambda")
    bodies = [given_up(f"order_0{number}") for number in range(1, 6)]
    put(ref, DLQ, *bodies)
    poison = fact_in("order_01")
    history.record(FAILED, poison)
    history.runs = lambda fact: history.record(
        FAILED if fact == poison else COMPLETED, fact, attempt=2
    )
    done = redriven(ref)
    trials = sorted(each.trial for each in done.tried)
    assert trials in (["failed", "succeeded"], ["succeeded"])
    assert (done.sent, done.stayed, len(set(history.events))) == (5, {}, 5)
    assert done.succeeded is (trials == ["succeeded"])


def test_a_poison_event_with_copies_holds_back_no_group(ref: StackRef) -> None:
    """A copy of an event that has failed again is no further trial, and stays."""
    history = ref.client("lambda")
    put(ref, DLQ, *(given_up("order_01", error=f"TimeoutError: {at} s") for at in range(4)))
    put(ref, DLQ, given_up("order_02", error="TimeoutError: 5 s"))
    poison = fact_in("order_01")
    history.runs = lambda fact: history.record(FAILED if fact == poison else COMPLETED, fact)
    done = redriven(ref)
    assert {fact_in("order_02"), poison} == set(history.events)
    trials = sorted(each.trial for each in done.tried)
    assert trials in (["failed", "succeeded"], ["succeeded"])
    assert done.stayed == ({FAILED_AGAIN: 3} if Trial.FAILED in trials else {})


def test_copies_of_an_event_are_counted_in_the_group_of_its_failure(ref: StackRef) -> None:
    """`letters` and the page say how many they are, and a redrive of the group plans them."""
    put(ref, DLQ, *(given_up("order_01", error=f"TimeoutError: {at} s") for at in range(4)))
    put(ref, DLQ, given_up("order_02", error="TimeoutError: 5 s"))
    put(ref, "ProducerDlq", "no event", "nor is this")
    group, unreadable = shown(ref).failures
    assert (group.count, group.copies, unreadable.count, unreadable.copies) == (5, 3, 2, 0)
    on_page = letterbox.groups_in(letterbox.Letterbox(ref).read({}).found)
    assert {(each.id, each.copies) for each in on_page} == {(group.group, 3), (unreadable.group, 0)}
    assert len(plan_of(ref, DLQ, group=group.group).letters) == group.count


NAMES: Final = {
    "ride-history": {DLQ},
    "payment": {"PaymentDlq", "PaymentRuleDlq"},
    "bus": {"ProducerDlq"},
    DLQ: {DLQ},
    "PaymentRuleDlq": {"PaymentRuleDlq"},
}


@pytest.mark.parametrize(("name", "queues"), NAMES.items(), ids=NAMES)
def test_a_consumer_is_named_as_everywhere(ref: StackRef, name: str, queues: set[str]) -> None:
    """Its letters are those of its two queues; logical ids mean one of them."""
    url = ref.client("sqs").create_queue(QueueName="PaymentRuleDlq")["QueueUrl"]
    outputs: Any = ref.outputs
    outputs["PaymentRuleDlqUrl"] = url
    there = {*NAMES, "ProducerDlq", "PaymentDlq"} & set(dead_letters.queues_of(ref))
    for number, queue in enumerate(sorted(there), 1):
        put(ref, queue, envelope(entry(f"order_{number:02}")))
    assert {each.queue for each in shown(ref, name).failures} == queues
    plan = plan_of(ref, name)
    assert {each.letter.queue for each in plan.letters} == queues
    done = carried_out(ref, plan, tries_one=False)
    assert (done.sent, done.succeeded) == (len(queues), True)
    assert {each.queue for each in shown(ref).failures} == there - queues


def test_an_unknown_name_is_answered_with_the_names(ref: StackRef) -> None:
    """Consumers first."""
    for ask in (partial(plan_of, ref), partial(letters.letters, ref)):
        with pytest.raises(OperatorError, match="write one of ride-history, dispatch, payment"):
            ask("paymant")


def test_the_command_of_a_group_names_its_consumer(ref: StackRef) -> None:
    """Every letter of the group is planned by it."""
    put(ref, DLQ, given_up("order_01"))
    (failure,) = shown(ref).failures
    assert failure.command.startswith("./carride redrive ride-history --group=")


def test_an_outage_is_one_group_whatever_the_types_of_its_events(ref: StackRef) -> None:
    """The error may name the type, which says nothing of the cause."""
    for number, kind in enumerate(("CarRideAccepted", "CarRideCompleted", "CarRideAccepted")):
        body = json.loads(given_up(f"order_{number}", error=f"OutageError: {kind} got no answer"))
        body["event"]["detail"]["type"] = kind
        put(ref, DLQ, json.dumps(body))
    put(ref, DLQ, given_up("order_9", error="OutageError: another one"))
    assert sorted(each.count for each in shown(ref).failures) == [1, 3]


def test_a_preview_has_a_part_for_each_group_and_names_every_key_that_it_releases(
    ref: StackRef,
) -> None:
    """However many letters a group has; JSON has each letter's verdict."""
    rides = [f"order_{number:02}" for number in range(30)]
    put(ref, DLQ, *(given_up(ride) for ride in rides), given_up("order_99", "CONTRACT", "no id"))
    keys = []
    for ride in (*rides, "order_99"):
        fact = json.loads(entry(ride).detail)["idempotencyid"]
        keys.append(f"ride-history#{fact}")
        status: Status = COMPLETED if ride == "order_99" else QUARANTINED
        ref.client("dynamodb").put_item(
            TableName="history", Item=item_of(record(keys[-1], status, 3, None))
        )
    plan = plan_of(ref, DLQ, release=True)
    console(printed := StringIO()).print(show(plan))
    text = printed.getvalue()
    assert all(text.count(key) == 1 for key in keys[:-1])
    assert "31 letters" in text.splitlines()[0]
    assert "30 letters in RideHistoryDlq: QUARANTINED" in text
    assert text.count("letters in RideHistoryDlq") + text.count("letter in RideHistoryDlq") == 2
    assert "30 go: its key is released" in text
    assert "releases 30 keys of ride-history" in text
    assert len(plain(plan)["letters"]) == len(keys)


def test_the_json_of_letters_has_no_events_and_an_id_shows_one_whole(ref: StackRef) -> None:
    """An event may be a megabyte."""
    ((body, name),) = put(ref, DLQ, given_up("order_01", error="x" * 1_000)).items()
    (group,) = plain(shown(ref))["failures"]
    (letter,) = group["letters"]
    assert "event" not in letter
    found = letters.letters(ref, name[:13])
    assert isinstance(found, dead_letters.DeadLetter)
    assert (found.id, found.event) == (name, json.loads(body)["event"])
    console(printed := StringIO()).print(show(found))
    assert found.event["detail"]["idempotencyid"] in printed.getvalue()
    with pytest.raises(OperatorError, match="no letter has an id"):
        letters.letters(ref, "0" * 12)
