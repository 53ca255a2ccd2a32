"""The operator's `redrive`: letters are delivered again, and deleted only after they were taken."""

import io
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from carride_idempotency import (
    ANY_CALLER,
    KAFKA,
    SQS,
    BusyError,
    Consumer,
    MemoryStore,
    Operation,
    PermanentError,
    Policy,
    RetryableError,
    SqsDeadLetters,
    forget,
)
from carride_idempotency.clock import epoch_ms, to_ms
from carride_idempotency.dead_letters import DeadLetter
from carride_idempotency.operators.choosing import Choice
from carride_idempotency.operators.command import main
from carride_idempotency.operators.letters import Letter, as_delivered, as_message, letter_in
from carride_idempotency.operators.queues import peek, waiting
from carride_idempotency.operators.redriving import (
    CHANGED,
    FAILED_AGAIN,
    HELD_BACK,
    LetterChoice,
    Redrive,
    RedriveError,
    groups_of,
    plan_redrive,
)
from carride_idempotency.operators.targets import FunctionTarget, QueueSite, QueueTarget
from carride_idempotency.record import COMPLETED, FAILED, QUARANTINED, Record, Status
from carride_idempotency.testing import (
    Invocation,
    dynamodb_stream_event,
    eventbridge_event,
    http_event,
    kafka_event,
    kinesis_event,
    sqs_event,
)
from tests.queues import KINDS, Queues
from tests.test_dead_letters import EVENTS
from tests.test_operators import plans, record, terminal

__all__ = ["plans", "terminal"]

QUIET: Final[Any] = {"report": lambda _: None, "sleep": lambda _: None}


class Shop:
    """A consumer of events with a dead-letter queue, its function, and what an operator runs."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys
        self.sqs: Any = Queues()
        self.url = self.sqs.create_queue(QueueName="letters")["QueueUrl"]
        self.store = MemoryStore()
        self.ran = list[str]()
        self.fails: Callable[[str], Exception | None] = lambda key: None
        self.status = 0
        self.source = SQS
        consumer: Consumer[dict[str, Any]] = Consumer(
            "shop",
            self.store,
            key="detail.id",
            policy=Policy(max_attempts=1, warm_cache=0, outages=(ConnectionError,)),
            dead_letters=SqsDeadLetters(self.url, client=self.sqs),
        )
        self.handler = consumer.event_handler(self.work)

    def work(self, event: dict[str, Any], operation: Operation) -> None:
        key = event["detail"]["id"]
        error = self.fails(key)
        if error is not None:
            raise error
        self.ran.append(key)

    def deliver(self, key: str) -> None:
        """Deliver an event as EventBridge does, with an id of its own."""
        with suppress(PermanentError):
            self.handler(eventbridge_event({"id": key}, event_id=f"id-{key}"), Invocation(epoch_ms))

    def invoke(self, **request: Any) -> dict[str, Any]:
        """Run the function, as Lambda's `Invoke` does."""
        assert request["FunctionName"] == "shop"
        try:
            returned = self.handler(json.loads(request["Payload"]), Invocation(epoch_ms))
        except Exception as error:  # noqa: BLE001 - Lambda answers with whatever is raised
            body = {"errorType": type(error).__name__, "errorMessage": str(error)}
            return {"FunctionError": "Unhandled", "Payload": io.BytesIO(json.dumps(body).encode())}
        return {"Payload": io.BytesIO(json.dumps(returned).encode())}

    def client(self, service: str) -> Any:
        return self.sqs if service == "sqs" else self

    def site(self) -> QueueSite:
        """Return where a redrive to the function works."""
        return QueueSite(self.sqs, self.url, self.store, FunctionTarget(self, "shop"))

    def run(self, line: str) -> str:
        words = f"redrive --queue {self.url} {line}".split()
        self.status = main(words, self.store, self.client)
        printed = self.capsys.readouterr()
        return printed.out + printed.err

    def put(self, body: object) -> None:
        text = body if isinstance(body, str) else json.dumps(body)
        self.sqs.send_message(QueueUrl=self.url, MessageBody=text)

    def dead_letter(self, letter: DeadLetter) -> None:
        """Send a letter as a consumer does."""
        SqsDeadLetters(self.url, client=self.sqs).send(letter)

    def deliver_copy(self, key: str) -> None:
        """Deliver an event whose key is quarantined, before the letter of the key is marked."""
        found = self.store.read(f"shop#{key}")
        assert found
        self.store.compare_and_swap(found, found._replace(dead_lettered=False))
        self.deliver(key)

    def quarantine(self, key: str) -> None:
        """Have a key given up, without its letter."""
        self.store.put_if_absent(record(f"shop#{key}", QUARANTINED))

    @property
    def left(self) -> int:
        return len(list(peek(self.sqs, self.url)))


@pytest.fixture
def shop(capsys: pytest.CaptureFixture[str]) -> Iterator[Shop]:
    with mock_aws():
        yield Shop(capsys)


def fail_with(error: Exception) -> Any:
    raise error


def no_tariff(key: str) -> PermanentError:
    return PermanentError(f"no tariff for order {key}0")


def test_letters_are_released_and_delivered_again(shop: Shop) -> None:
    """First nothing is done; with `--yes` each event takes effect once, and its letter is gone."""
    shop.fails = no_tariff
    for key in "123":
        shop.deliver(key)
    assert "key is quarantined: add --release" in shop.run("--to shop")
    shop.fails = lambda key: None
    shown = shop.run("--to shop --release")
    assert "send 3 of group" in shown
    assert "nothing was done" in shown
    assert (shop.ran, shop.left) == ([], 3)
    assert "redrive: 3 of 3 sent" in shop.run("--to shop --release --yes")
    assert (shop.status, sorted(shop.ran), shop.left) == (0, ["1", "2", "3"], 0)


@pytest.mark.parametrize(
    ("poison", "ran"), [("", "12345"), ("1", "2345"), ("12", "345"), ("123", ""), ("4", "1235")]
)
def test_two_poison_letters_hold_back_no_group(shop: Shop, poison: str, ran: str) -> None:
    """Up to three letters of a group are tried; a letter that fails again stays."""
    shop.fails = no_tariff
    for key in "12345":
        shop.deliver(key)
    tried = list[str]()

    def fails(key: str) -> Exception | None:
        tried.append(key)
        return no_tariff(key) if key in poison else None

    shop.fails = fails
    plan = plan_redrive(shop.site(), LetterChoice(), releases=True)
    done = Redrive(shop.site(), plan, **QUIET).carry_out()
    assert ("".join(sorted(shop.ran)), shop.left) == (ran, 5 - len(ran))
    assert done.succeeded is (poison in ("", "4"))
    assert len(tried) == len(set(tried)) == (5 if ran else 3)
    assert done.stayed.get(HELD_BACK, 0) == 5 - len(tried)


def test_copies_that_a_quarantined_key_has_refused_go_with_its_failure(shop: Shop) -> None:
    """All are one group; its redrive releases the key once, and the copies are duplicates then."""
    shop.fails = no_tariff
    shop.deliver("1")
    for _ in range(3):
        shop.deliver_copy("1")
    shop.fails = lambda key: None
    plan = plan_redrive(shop.site(), LetterChoice(), releases=True)
    assert (len(plan.letters), len({each.letter.group for each in plan.letters})) == (4, 1)
    done = Redrive(shop.site(), plan, **QUIET).carry_out()
    assert (done.sent, done.released, [each.trial for each in done.tried]) == (4, 1, ["succeeded"])
    assert (shop.ran, shop.left) == (["1"], 0)


def test_a_key_that_fails_again_is_one_trial_and_released_once(shop: Shop) -> None:
    """However many letters it has: the other events of its group are tried, and go."""
    shop.fails = no_tariff
    shop.deliver("1")
    for _ in range(3):
        shop.deliver_copy("1")
    for key in "23":
        shop.deliver(key)
    tried = list[str]()

    def fails(key: str) -> Exception | None:
        tried.append(key)
        return no_tariff(key) if key == "1" else None

    shop.fails = fails
    plan = plan_redrive(shop.site(), LetterChoice(), releases=True)
    done = Redrive(shop.site(), plan, **QUIET).carry_out()
    assert sorted(tried) == ["1", "2", "3"]
    assert (done.released, done.stayed, shop.left) == (3, {FAILED_AGAIN: 3}, 4)


def test_a_key_is_released_once_if_no_letter_is_tried_first(shop: Shop) -> None:
    """Its other letters stay once it is quarantined again."""
    shop.fails = no_tariff
    shop.deliver("1")
    shop.deliver_copy("1")
    plan = plan_redrive(shop.site(), LetterChoice(), releases=True)
    done = Redrive(shop.site(), plan, tries_one=False, **QUIET).carry_out()
    assert (done.released, done.stayed[FAILED_AGAIN]) == (1, 1)


def test_another_letter_of_a_key_that_has_failed_again_stays(shop: Shop) -> None:
    """Also in a group of its own, in which nothing was tried, and if its key needs no release."""
    consumer: Consumer[dict[str, Any]] = Consumer("shop", shop.store, key="detail.id")
    shop.handler = consumer.event_handler(shop.work)
    event = eventbridge_event({"id": "1"}, event_id="id-1")
    for error in ("no host", "no memory"):
        shop.dead_letter(DeadLetter("QUARANTINED", error, "shop", "shop#1", 1, event))
    ran = list[str]()

    def fails(key: str) -> Exception:
        ran.append(key)
        return OSError("still no host")

    shop.fails = fails
    plan = plan_redrive(shop.site(), LetterChoice())
    assert (plan.goes, len(groups_of(plan.letters))) == (2, 2)
    done = Redrive(shop.site(), plan, **QUIET).carry_out()
    assert (ran, done.sent, shop.left) == (["1"], 0, 2)
    assert done.stayed[FAILED_AGAIN] == 1


def test_a_failure_that_is_not_fixed_costs_three_letters_of_its_group(shop: Shop) -> None:
    """The others stay as they are; what fails again leaves one letter, and not two."""
    shop.fails = no_tariff
    for key in "12345":
        shop.deliver(key)
    shop.fails = lambda key: OSError("no host")
    shop.deliver("9")
    shop.fails = lambda key: None if key == "9" else no_tariff(key)
    shop.run("--to shop --release")
    said = shop.run("--to shop --release --yes")
    assert HELD_BACK in said
    assert shop.status == 1
    assert (shop.ran, shop.left) == (["9"], 5)


def test_letters_are_chosen_by_cause_key_and_number(shop: Shop) -> None:
    """Other letters stay, and are counted."""
    shop.fails = no_tariff
    for key in "123":
        shop.deliver(key)
    shop.fails = lambda key: PermanentError("no country")
    shop.deliver("8")
    (group,) = {
        each.group for each in map(letter_in, peek(shop.sqs, shop.url)) if "country" in each.error
    }
    shop.fails = lambda key: None
    assert "3 other letters were not chosen" in shop.run(f"--to shop --release --cause {group}")
    assert "1 other letters were not chosen" in shop.run("--to shop --release --cause tariff")
    assert "3 other letters were not chosen" in shop.run("--to shop --release --key shop#2")
    assert "2 other letters were not chosen" in shop.run("--to shop --release --limit 2")
    assert "send 4 of group" not in shop.run("--to shop --release --older 1h")
    shop.run("--to shop --release --cause tariff --yes")
    assert (sorted(shop.ran), shop.left) == (["1", "2", "3"], 1)


def test_a_letter_that_came_since_the_preview_is_not_sent(shop: Shop) -> None:
    """`--yes` does what was shown, or nothing."""
    shop.fails = no_tariff
    shop.deliver("1")
    shop.fails = lambda key: None
    shop.run("--to shop --release")
    shop.fails = no_tariff
    shop.deliver("2")
    shop.fails = lambda key: None
    assert "nothing was done, because this has changed" in shop.run("--to shop --release --yes")
    assert (shop.ran, shop.left) == ([], 2)


def test_a_refusal_has_a_line_for_each_record_and_no_token_of_an_owner(shop: Shop) -> None:
    """What becomes of a letter follows from its record, and a token tells an operator nothing."""
    shop.fails = no_tariff
    shop.deliver("1")
    redrive = ["redrive", "--queue", shop.url, "--to", "shop", "--release"]
    release = ["release", "shop#1"]
    seen = shop.store.read("shop#1")
    assert seen
    changed = seen._replace(owner="o-2")
    completed = seen._replace(owner="o-3", status=COMPLETED)
    for words, after in ((release, changed), (redrive, changed), (redrive, completed)):
        before = shop.store.read("shop#1")
        assert before
        assert main(words, shop.store, shop.client) == 0
        assert shop.store.compare_and_swap(before, after._replace(attempt=before.attempt + 1))
        shop.capsys.readouterr()
        assert main([*words, "--yes"], shop.store, shop.client) == 2
        said = shop.capsys.readouterr().err
        assert len([line for line in said.splitlines() if line.startswith("  ")]) == 1, said
        assert not [each for each in (str(seen.owner), "o-2", "o-3") if each in said], said


def test_a_letter_whose_key_has_changed_since_the_preview_stays(shop: Shop) -> None:
    """Another operator has forgotten the key, so its event would run as if it were the first."""
    shop.fails = no_tariff
    shop.deliver("1")
    shop.fails = lambda key: None
    plan = plan_redrive(shop.site(), LetterChoice(), releases=True)
    assert forget(shop.store, "shop#1")
    done = Redrive(shop.site(), plan, **QUIET).carry_out()
    assert (done.sent, done.stayed, shop.left) == (0, {CHANGED: 1}, 1)


def test_a_letter_that_has_changed_is_no_trial(shop: Shop) -> None:
    """It says nothing of its group: three others are tried, and the last of them succeeds."""
    shop.fails = no_tariff
    for key in "12345":
        shop.deliver(key)
    plan = plan_redrive(shop.site(), LetterChoice(), releases=True)
    first, second, third, *_ = [each.letter.key for each in plan.letters]
    for changed in (first, second, third):
        assert forget(shop.store, str(changed))
    shop.fails = lambda key: None
    done = Redrive(shop.site(), plan, **QUIET).carry_out()
    assert [each.trial for each in done.tried] == ["succeeded"]
    assert (done.sent, done.stayed) == (2, {CHANGED: 3})
    assert not done.succeeded
    assert (sorted(shop.ran), shop.left) == (["4", "5"], 3)


def test_an_event_that_is_not_the_one_that_was_shown_stays(shop: Shop) -> None:
    """The plan has the event's hash, and not the event."""
    shop.put(eventbridge_event({"id": "1"}, event_id="id-1"))
    plan = plan_redrive(shop.site(), LetterChoice())
    (shown,) = plan.letters
    assert shown.letter.event is None
    other = plan._replace(letters=(shown._replace(event="another"),))
    done = Redrive(shop.site(), other, **QUIET).carry_out()
    assert (done.sent, done.stayed, shop.ran) == (0, {CHANGED: 1}, [])
    assert Redrive(shop.site(), plan, **QUIET).carry_out().succeeded


def test_a_letter_is_chosen_by_the_beginning_of_its_id(shop: Shop) -> None:
    """A choice that fits none is refused with the groups that there are."""
    for key in "12":
        shop.put(eventbridge_event({"id": key}, event_id=f"id-{key}"))
    first, _ = [each.letter for each in plan_redrive(shop.site(), LetterChoice()).letters]
    (chosen,) = plan_redrive(shop.site(), LetterChoice(id=first.id[:30])).letters
    assert chosen.letter == first
    with pytest.raises(RedriveError, match=first.group):
        plan_redrive(shop.site(), LetterChoice(id="no id"))


def test_letters_of_which_all_have_changed_end_a_redrive(shop: Shop) -> None:
    """None is tried twice."""
    shop.fails = no_tariff
    for key in "1234":
        shop.deliver(key)
    plan = plan_redrive(shop.site(), LetterChoice(), releases=True)
    for key in "1234":
        assert forget(shop.store, f"shop#{key}")
    done = Redrive(shop.site(), plan, **QUIET).carry_out()
    assert (done.sent, done.tried, done.stayed, done.first) == (0, (), {CHANGED: 4}, {})


def test_the_record_that_a_delivery_finds_is_read_once(shop: Shop) -> None:
    """The letter was judged by it, and its key was released on it."""
    shop.fails = no_tariff
    shop.deliver("1")
    shop.fails = lambda key: None
    plan = plan_redrive(shop.site(), LetterChoice(), releases=True)
    reads = list[str]()
    read = shop.store.read

    def counted(key: str, **options: Any) -> Any:
        reads.append(key)
        return read(key, **options)

    shop.store.read = counted  # type: ignore[method-assign]
    shop.invoke = lambda **_: {"Payload": io.BytesIO(b"null")}  # type: ignore[method-assign]
    done = Redrive(shop.site(), plan, tries_one=False, **QUIET).carry_out()
    assert (done.sent, done.released) == (1, 1)
    assert len(reads) == 2  # before its key is released, and then


REFUSED: Final = ClientError({"Error": {"Code": "InvalidParameterValue"}}, "SendMessage")


@pytest.mark.parametrize("to", ["shop", "arn:aws:sqs:us-east-1:123456789012:work"])
def test_a_letter_that_its_target_refuses_stops_no_other(shop: Shop, to: str) -> None:
    """It is too large there, or has what the target cannot read: it stays, and says so."""
    shop.sqs.create_queue(QueueName="work")
    for name in ("good", "bad", "better"):
        shop.put({"detail": {"id": name}})
    taken = list[str]()

    def take(**request: Any) -> Any:
        text = request.get("MessageBody") or request["Payload"]
        if "bad" in text:
            raise REFUSED
        taken.append(json.loads(text)["detail"]["id"])
        return {"Payload": io.BytesIO(b"null")}

    shop.invoke = take  # type: ignore[method-assign]
    shop.sqs.send_message = take
    said = shop.run(f"--to {to} --all-at-once --yes")
    assert "1 stayed: its target refuses it: InvalidParameterValue" in said
    assert (sorted(taken), shop.left, shop.status) == (["better", "good"], 1, 1)


def test_a_target_that_refuses_everything_ends_a_redrive(shop: Shop) -> None:
    """The letters are not to blame."""
    shop.put({"detail": {"id": "1"}})
    error = ClientError({"Error": {"Code": "AccessDeniedException"}}, "Invoke")
    shop.invoke = lambda **_: fail_with(error)  # type: ignore[method-assign]
    assert "It ended early" in shop.run("--to shop --all-at-once --yes")
    assert (shop.status, shop.left) == (2, 1)


def test_letters_of_one_key_go_although_the_first_has_changed_its_record(shop: Shop) -> None:
    """The redrive has done that itself."""
    shop.fails = no_tariff
    shop.deliver("1")
    shop.dead_letter(DeadLetter.from_body(next(peek(shop.sqs, shop.url))["Body"]))
    shop.fails = lambda key: None
    shop.run("--to shop --release")
    shop.run("--to shop --release --yes")
    assert (shop.ran, shop.left, shop.status) == (["1"], 0, 0)


def test_a_record_that_changes_before_its_first_letter_goes_is_released_for_no_letter(
    shop: Shop,
) -> None:
    """That letter has changed nothing, so the next letter of its key is as little as shown."""
    shop.fails = no_tariff
    shop.deliver("1")
    shop.dead_letter(DeadLetter.from_body(next(peek(shop.sqs, shop.url))["Body"]))
    shop.fails = lambda key: None
    plan = plan_redrive(shop.site(), LetterChoice(), releases=True)
    swap = shop.store.compare_and_swap

    def changed_meanwhile(seen: Record, new: Record) -> Record | None:
        shop.store.compare_and_swap = swap  # type: ignore[method-assign]
        assert swap(seen, seen._replace(owner="another delivery"))
        return swap(seen, new)

    shop.store.compare_and_swap = changed_meanwhile  # type: ignore[method-assign, assignment]
    done = Redrive(shop.site(), plan, **QUIET).carry_out()
    assert (done.sent, done.released, done.stayed) == (0, 0, {CHANGED: 2})
    assert (shop.ran, shop.left) == ([], 2)


def test_a_letter_that_is_only_recognised_is_no_trial(shop: Shop) -> None:
    """Its success says nothing of the cause; without another letter it goes."""
    shop.fails = no_tariff
    for key in "12345":
        shop.deliver(key)
    found = shop.store.read("shop#1")
    assert found
    shop.store.compare_and_swap(found, found._replace(status=COMPLETED))
    plan = plan_redrive(shop.site(), LetterChoice(), releases=True)
    done = Redrive(shop.site(), plan, **QUIET).carry_out()
    assert [each.trial for each in done.tried] == ["failed"] * 3
    assert (done.stayed[HELD_BACK], shop.ran, shop.left) == (2, [], 5)
    recognised = plan_redrive(shop.site(), LetterChoice(key="shop#1"))
    done = Redrive(shop.site(), recognised, **QUIET).carry_out()
    assert (done.sent, done.tried, done.succeeded, shop.left) == (1, (), True, 4)


def test_the_preview_names_every_key_that_is_released(shop: Shop) -> None:
    """And the plan has them."""
    shop.fails = no_tariff
    for number in range(25):
        shop.deliver(f"k{number}")
    shown = shop.run("--to shop --release")
    assert {f"releases shop#k{number}" for number in range(25)} <= set(shown.splitlines())
    plan = json.loads(shop.run("--to shop --release --json"))
    assert {each["key"] for each in plan["letters"]} == {f"shop#k{number}" for number in range(25)}


def test_a_terminal_releases_no_key_that_was_not_shown(shop: Shop, terminal: None) -> None:
    """Without `--release` a letter goes at once: its consumer recognises a copy."""
    shop.fails = no_tariff
    shop.deliver("1")
    shop.fails = lambda key: None
    assert "no plan of this command was shown" in shop.run("--to shop --release --yes")
    assert (shop.status, shop.ran, shop.left) == (2, [], 1)
    shop.run("--to shop --release")
    shop.run("--to shop --release --yes")
    shop.put(eventbridge_event({"id": "2"}, event_id="id-2"))
    shop.run("--to shop --yes")
    assert (shop.ran, shop.left) == (["1", "2"], 0)


class Moving:
    """A client of SQS by which every message was moved from a source queue."""

    def __init__(self, sqs: Any) -> None:
        self._sqs = sqs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sqs, name)

    def receive_message(self, **request: Any) -> Any:
        answer = self._sqs.receive_message(**request)
        for message in answer.get("Messages", []):
            message["Attributes"]["DeadLetterQueueSourceArn"] = (
                "arn:aws:sqs:us-east-1:123456789012:orders"
            )
        return answer


def test_a_message_in_a_source_queue_frees_no_key(shop: Shop) -> None:
    """Whoever may send there has written a letter of the victim's, with a consumer's attributes."""
    shop.quarantine("VICTIM")
    event = eventbridge_event({"id": "VICTIM"}, event_id="id-1")
    shop.dead_letter(DeadLetter("QUARANTINED", "no", "shop", "shop#VICTIM", 1, event))
    shop.sqs = Moving(shop.sqs)
    shown = shop.run("--to shop --release")
    assert "ReceivesExhausted" in shown
    assert "VICTIM" not in shown
    shop.run("--to shop --release --yes")
    there = shop.store.read("shop#VICTIM")
    assert (there and there.status, shop.ran) == (QUARANTINED, [])


def test_a_letter_of_a_function_is_not_delivered(shop: Shop) -> None:
    """It holds the arguments of a call, and the target would take them for an event."""
    consumer: Consumer = Consumer(
        "shop", shop.store, dead_letters=SqsDeadLetters(shop.url, client=shop.sqs)
    )

    @consumer.function(key="order")
    def charge(order: str) -> None:
        raise PermanentError("no tariff")

    with pytest.raises(PermanentError):
        charge("1")
    assert "it holds the arguments of a call" in shop.run("--to shop --release")
    assert (shop.status, shop.ran, shop.left) == (1, [], 1)


def test_a_letter_whose_event_took_effect_is_recognised(shop: Shop) -> None:
    """It leaves the queue without a second effect."""
    shop.deliver("1")
    event = eventbridge_event({"id": "1"}, event_id="id-1")
    shop.dead_letter(DeadLetter("UNKNOWN", "it crashed", "shop", "shop#1", 1, event))
    assert "recognises it: it has taken effect" in shop.run("--to shop")
    shop.run("--to shop --yes")
    assert (shop.ran, shop.left) == (["1"], 0)


@pytest.mark.parametrize(
    ("reason", "fields", "why"),
    [
        ("BEYOND_WINDOW", {}, "older than records are kept"),
        ("PAYLOAD_MISMATCH", {}, "another event has its idempotency key"),
        ("QUARANTINED", {"status": QUARANTINED}, "add --release"),
        ("UNKNOWN", {"status": QUARANTINED, "externals": '{"pay":null}'}, "settle it first"),
        ("UNKNOWN", {"status": "IN_PROGRESS"}, "an attempt may be running"),
    ],
)
def test_a_letter_that_would_come_back_stays(
    shop: Shop, reason: str, fields: dict[str, Any], why: str
) -> None:
    """Its age in the queue stays what it is, and it is not delivered."""
    if fields:
        shop.store.put_if_absent(record("shop#1", **fields))
    event = eventbridge_event({"id": "1"}, event_id="id-1")
    shop.dead_letter(DeadLetter(reason, "why", "shop", "shop#1", 1, event))
    release = "--release" if "settle" in why else ""
    assert why in shop.run(f"--to shop {release}")
    shop.run(f"--to shop {release} --yes")
    assert (shop.status, shop.ran, shop.left) == (1, [], 1)


def test_letters_of_others_are_delivered_again(shop: Shop) -> None:
    """Lambda's and EventBridge's letters have the event; one that cannot be read stays."""
    by_lambda = {
        "requestContext": {"condition": "RetriesExhausted"},
        "requestPayload": eventbridge_event({"id": "1"}, event_id="id-1"),
        "responsePayload": {"errorType": "OSError", "errorMessage": "no host"},
    }
    shop.put(by_lambda)
    shop.put(eventbridge_event({"id": "2"}, event_id="id-2"))
    shop.put("no json")
    shown = shop.run("--to shop --all-at-once")
    assert "RetriesExhausted of another service" in shown
    assert "OSError: no host" in shown
    shop.run("--to shop --all-at-once --yes")
    assert (sorted(shop.ran), shop.left) == (["1", "2"], 1)


def test_a_function_that_fails_leaves_the_letter_as_it_is(shop: Shop) -> None:
    """An error of the invocation deletes nothing."""
    shop.put(eventbridge_event({"id": "1"}, event_id="id-1"))
    shop.fails = lambda key: OSError("no host")
    shop.handler = lambda event, context: 1 / 0  # type: ignore[assignment,return-value]
    shop.run("--to shop")
    said = shop.run("--to shop --yes")
    assert "it failed again: ZeroDivisionError" in said
    assert (shop.status, shop.left) == (1, 1)


@pytest.mark.parametrize("outage", [RetryableError("no host"), ConnectionError("no host")])
def test_a_function_that_meets_an_outage_has_not_failed_again(
    shop: Shop, outage: Exception
) -> None:
    """Its record has used up no attempt; the letter stays, and the others of its group too."""
    shop.fails = no_tariff
    shop.deliver("1")
    shop.fails = lambda key: outage
    shop.run("--to shop --release")
    said = shop.run("--to shop --release --yes")
    assert "used up no attempt: try it again later" in said
    assert "it failed again" not in said
    assert (shop.status, shop.ran, shop.left) == (1, [], 1)


def test_a_key_that_is_busy_has_not_failed_again(shop: Shop) -> None:
    """Another attempt is at work on it: the function says so by the class of its error."""
    shop.put(eventbridge_event({"id": "1"}, event_id="id-1"))
    shop.handler = lambda event, context: fail_with(BusyError("shop#1", 1000))
    shop.run("--to shop")
    assert "used up no attempt: try it again later" in shop.run("--to shop --yes")
    assert (shop.status, shop.left) == (1, 1)


@pytest.mark.parametrize(
    ("returned", "left"),
    [
        ({"batchItemFailures": [{"itemIdentifier": "a"}]}, 1),
        ({"batchItemFailures": []}, 0),
        ({"outcome": "Duplicate"}, 0),
        ({"outcome": "Busy"}, 1),
        ({"outcome": "Quarantined"}, 1),
        (None, 0),
    ],
)
def test_the_answer_of_a_function_says_whether_the_letter_is_needed(
    shop: Shop, returned: Any, left: int
) -> None:
    """A batch that names its record as failed has not processed it."""
    shop.put(sqs_event({"id": 1})["Records"][0])
    shop.handler = lambda event, context: returned
    shop.run("--to shop")
    shop.run("--to shop --yes")
    assert shop.left == left


def test_an_interrupted_redrive_says_how_far_it_has_come(shop: Shop) -> None:
    """Run again, it delivers the rest."""
    for key in "123":
        shop.put(eventbridge_event({"id": key}, event_id=f"id-{key}"))
    handler = shop.handler

    def interrupted(event: Any, context: Any) -> Any:
        if len(shop.ran) == 2:
            raise KeyboardInterrupt
        return handler(event, context)

    shop.handler = interrupted
    shop.run("--to shop")
    assert "2 of 3 letters were sent" in shop.run("--to shop --yes")
    assert shop.status == 130
    shop.handler = handler
    shop.run("--to shop")
    shop.run("--to shop --yes")
    assert (sorted(shop.ran), shop.left) == (["1", "2", "3"], 0)


# ── Queues ────────────────────────────────────────────────────────────────────────────────────────


def letter_of(number: int) -> DeadLetter:
    """Return the letter of a message of a queue."""
    event = sqs_event({"id": number})["Records"][0] | {"messageId": f"m{number}"}
    return DeadLetter("QUARANTINED", "no", "shop", f"shop#{number}", 1, event)


@pytest.mark.parametrize(
    ("status", "trial", "there", "sent"),
    [
        (COMPLETED, "succeeded", 5, 5),
        (FAILED, "failed", 5, 3),
        (FAILED, "failed", 3, 3),
        (None, "unknown", 5, 1),
    ],
)
def test_a_queue_gets_the_others_only_if_one_that_was_tried_is_completed(
    shop: Shop, status: Status | None, trial: str, there: int, sent: int
) -> None:
    """Its consumer works later: the record tells."""
    for number in range(there):
        shop.dead_letter(letter_of(number))
    work = shop.sqs.create_queue(QueueName="work")["QueueUrl"]

    class Worked(QueueTarget):
        def send(self, letter: Letter) -> Any:
            answer = super().send(letter)
            key = f"shop#{json.loads(letter.event['body'])['id']}"
            if status is not None:
                shop.store.put_if_absent(record(key, status))
            return answer

    site = QueueSite(shop.sqs, shop.url, shop.store, Worked(shop.sqs, work))
    plan = plan_redrive(site, LetterChoice())
    done = Redrive(site, plan, wait_s=2, **QUIET).carry_out()
    assert (set(done.first.values()), done.sent) == ({trial}, sent)
    assert done.succeeded == (status == COMPLETED)
    bodies = {message["Body"] for message in peek(shop.sqs, work)}
    assert len(bodies) == sent
    assert shop.left == there - sent


def test_a_queue_whose_consumer_does_not_run_is_waited_for_in_words(shop: Shop) -> None:
    """The command says for what it waits, and for how long."""
    shop.dead_letter(letter_of(1))
    work = shop.sqs.create_queue(QueueName="work")["QueueUrl"]
    shop.run(f"--to {work} --wait 1s")
    said = shop.run(f"--to {work} --wait 1s --yes")
    assert f"waiting up to 1 s: the consumer behind {work} has to be able to run" in said
    assert "its consumer has not completed it after 1 s" in said


def test_a_message_that_meets_an_outage_is_waited_for(shop: Shop) -> None:
    """The queue delivers it again; at the end the command says what it met."""
    shop.dead_letter(letter_of(1))
    work = shop.sqs.create_queue(QueueName="work")["QueueUrl"]
    said: list[str] = []

    class Postponed(QueueTarget):
        def send(self, letter: Letter) -> Any:
            shop.store.put_if_absent(record("shop#1", FAILED, attempt=0, error="no host"))
            return super().send(letter)

    site = QueueSite(shop.sqs, shop.url, shop.store, Postponed(shop.sqs, work))
    plan = plan_redrive(site, LetterChoice())
    quiet = QUIET | {"report": said.append}
    done = Redrive(site, plan, wait_s=2, **quiet).carry_out()
    assert set(done.first.values()) == {"unknown"}
    assert "used up no attempt: try it again later: no host" in said[-1]


@pytest.mark.parametrize("has_key", [True, False])
def test_a_letter_that_is_back_has_failed_although_no_record_says_so(
    shop: Shop, has_key: bool
) -> None:
    """Its function cannot start, and SQS moves its message back: nobody waits for a record."""
    if has_key:
        shop.dead_letter(letter_of(1))
    else:
        shop.put({"id": 1})
    work = shop.sqs.create_queue(QueueName="work")["QueueUrl"]
    pauses: list[float] = []

    class Moving(QueueSite):
        def sent_since(self, start_ms: int) -> Iterator[Letter]:
            yield from super().sent_since(start_ms)
            for message in peek(shop.sqs, work):
                message["Attributes"]["DeadLetterQueueSourceArn"] = "arn:aws:sqs:::work"
                yield letter_in(message)

    site = Moving(shop.sqs, shop.url, shop.store, QueueTarget(shop.sqs, work))
    options = QUIET | {"sleep": pauses.append}
    done = Redrive(site, plan_redrive(site, LetterChoice()), **options).carry_out()
    assert [each.trial for each in done.tried] == ["failed"]
    assert "it is back: ReceivesExhausted" in done.tried[0].says
    assert not any(pauses)


def attributed(shop: Shop, **attributes: Any) -> Letter:
    """Return a message without a key that SQS has moved, with attributes."""
    url = shop.sqs.create_queue(QueueName="moved")["QueueUrl"]
    shop.sqs.send_message(QueueUrl=url, MessageBody="{}", MessageAttributes=attributes)
    (message,) = shop.sqs.receive_message(
        QueueUrl=url, AttributeNames=["All"], MessageAttributeNames=["All"]
    )["Messages"]
    shop.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    message["Attributes"]["DeadLetterQueueSourceArn"] = "arn:aws:sqs:us-east-1:1:work"
    return letter_in(message)


@pytest.mark.parametrize(
    "more",
    [
        {"b": {"DataType": "Number", "StringValue": "7"}},
        {"b": {"DataType": "Binary", "BinaryValue": b"\xff"}},
    ],
    ids=["number", "binary"],
)
def test_a_message_is_back_if_its_attributes_are_too(shop: Shop, more: dict[str, Any]) -> None:
    """One with the same body and other attributes is another message."""
    a = {"DataType": "String.kind", "StringValue": "x"}
    sent = attributed(shop, a=a, **more)
    site = shop.site()
    assert site.is_back(sent, attributed(shop, a=a, **more))
    assert not site.is_back(sent, attributed(shop, a=a))
    assert not site.is_back(attributed(shop, a=a), attributed(shop))


def test_spans_of_letters_and_of_records_begin_with_their_first_moment() -> None:
    """A moment belongs to the span that it begins, and not to the one that it ends."""
    moment = record("shop#1", QUARANTINED)
    sent = datetime.fromtimestamp(moment.updated_ms / 1000, UTC)
    letter = Letter("a", "g", "QUARANTINED", "", "shop", None, sent, {})
    ms = moment.updated_ms
    assert to_ms(sent) == ms
    for after_ms, before_ms, is_meant in ((ms, ms + 1, True), (ms - 1, ms, False)):
        chosen = Choice(after_ms=after_ms, before_ms=before_ms).has(moment, ms)
        letters = LetterChoice(after_ms=after_ms, before_ms=before_ms).has(letter)
        assert (chosen, letters) == (is_meant, is_meant)


def test_a_letter_without_a_key_succeeds_if_it_is_not_back(shop: Shop) -> None:
    """No record tells, so the whole time is waited for; then the others of its group follow."""
    for number in (1, 2):
        shop.put({"id": number})
    work = shop.sqs.create_queue(QueueName="work")["QueueUrl"]
    pauses = list[float]()
    site = QueueSite(shop.sqs, shop.url, shop.store, QueueTarget(shop.sqs, work))
    now_ms = epoch_ms()
    options = QUIET | {"sleep": pauses.append, "wait_s": 4, "clock": lambda: now_ms}
    done = Redrive(site, plan_redrive(site, LetterChoice()), **options).carry_out()
    assert [each.trial for each in done.tried] == ["succeeded"]
    assert (done.sent, done.succeeded) == (2, True)
    assert len([*filter(None, pauses)]) == 3


def test_the_hash_of_an_event_does_not_depend_on_the_order_of_names(shop: Shop) -> None:
    """A queue may return the attributes of a message in any order."""
    shop.put('{"detail": {"a": 1, "b": 2}, "id": "x"}')
    shop.put('{"id": "x", "detail": {"b": 2, "a": 1}}')
    first, second = plan_redrive(shop.site(), LetterChoice()).letters
    assert first.event == second.event


def test_messages_that_another_reader_hides_are_told(shop: Shop) -> None:
    """They are no part of the plan, which is the same when they are shown again."""
    for key in "123":
        shop.put(eventbridge_event({"id": key}, event_id=f"id-{key}"))
    (taken,) = shop.sqs.receive_message(QueueUrl=shop.url)["Messages"]
    assert json.loads(shop.run("--to shop --json"))["hidden"] == 1
    assert "messages hidden by another reader: 1" in shop.run("--to shop")
    shop.sqs.delete_message(QueueUrl=shop.url, ReceiptHandle=taken["ReceiptHandle"])
    shop.run("--to shop --yes")
    assert (shop.status, len(shop.ran), shop.left) == (0, 2, 0)


def test_no_message_is_hidden_for_longer_than_a_queue_allows(shop: Shop) -> None:
    """However slowly letters are to go."""
    shop.put(eventbridge_event({"id": "1"}, event_id="id-1"))
    receive = shop.sqs.receive_message
    asked = list[int]()

    def noted(**request: Any) -> Any:
        asked.append(request["VisibilityTimeout"])
        return receive(**request)

    plan = plan_redrive(shop.site(), LetterChoice())
    shop.sqs.receive_message = noted
    assert Redrive(shop.site(), plan, rate=0.0004, **QUIET).carry_out().sent == 1
    assert max(asked) == 43_200


def test_a_queue_is_named_by_url_or_arn(shop: Shop) -> None:
    """The body that the consumer gets is the body that was sent at first."""
    shop.dead_letter(letter_of(7))
    work = shop.sqs.create_queue(QueueName="work")["QueueUrl"]
    arn = "arn:aws:sqs:us-east-1:123456789012:work"
    assert f"to {work}" in shop.run(f"--to {arn}")
    shop.run(f"--to {arn} --all-at-once --yes")
    (message,) = peek(shop.sqs, work)
    assert json.loads(message["Body"]) == {"id": 7}


def test_a_message_keeps_its_attributes_and_group() -> None:
    """In a FIFO queue they are its order, in a standard one its tenant."""
    event = sqs_event("text", MessageGroupId="g")["Records"][0] | {
        "messageAttributes": {
            "a": {"dataType": "String", "stringValue": "x"},
            "b": {"dataType": "Binary", "binaryValue": "aGk="},
        }
    }
    assert as_message(event) == {
        "MessageBody": "text",
        "MessageAttributes": {
            "a": {"DataType": "String", "StringValue": "x"},
            "b": {"DataType": "Binary", "BinaryValue": b"hi"},
        },
        "MessageGroupId": "g",
    }


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_queue_of_any_kind_takes_an_event(shop: Shop, kind: str, event: Any) -> None:
    """Whatever its source, each letter arrives once, also if it is sent again."""
    queues = shop.sqs
    url = queues.create("work", kind)
    for letter_id in ("a", "a", "b"):
        letter = Letter(letter_id, "g", "QUARANTINED", "", "shop", None, datetime.now(UTC), event)
        QueueTarget(queues, url).send(letter)
    assert len(queues.received(url)) == (3 if kind == "standard" else 2)


@pytest.mark.parametrize(
    ("kind", "groups", "rounds"), [("standard", 1, 1), ("FIFO", 12, 1), ("FIFO", 1, 2)]
)
def test_letters_leave_a_queue_of_any_kind(shop: Shop, kind: str, groups: int, rounds: int) -> None:
    """Of one group a FIFO queue shows ten letters at once, and the command says so."""
    url = shop.sqs.create("dead", kind)
    letters = SqsDeadLetters(url, client=shop.sqs)
    for number in range(12):
        event = eventbridge_event({"id": str(number)}) | {
            "attributes": {"MessageGroupId": f"g{number % groups}"}
        }
        letters.send(DeadLetter("QUARANTINED", "no", "shop", f"shop#{number}", 1, event))
    shop.url = url
    for _ in range(rounds):
        says = shop.run("--to shop --all-at-once")
        shop.run("--to shop --all-at-once --yes")
        assert ("wait behind these" in says) == (len(shop.ran) < 12)
    assert sorted(shop.ran, key=int) == [str(number) for number in range(12)]
    assert waiting(shop.sqs, url, visible=True) == 0


def test_a_letter_of_a_request_is_not_delivered(shop: Shop) -> None:
    """It lacks the headers: its client sends it again, once its key is released."""
    consumer: Consumer = Consumer(
        "shop",
        shop.store,
        policy=Policy(max_attempts=1),
        dead_letters=SqsDeadLetters(shop.url, client=shop.sqs),
    )

    @consumer.http_handler(caller=ANY_CALLER)
    def handler(_: Any, __: Any) -> None:
        raise PermanentError("no tariff")

    with suppress(PermanentError):
        handler(http_event("POST", "/rides", {"id": 1}), Invocation(epoch_ms))
    assert "only its client can send again" in shop.run("--to shop --release")
    assert (shop.status, shop.ran, shop.left) == (1, [], 1)


@pytest.mark.parametrize(
    "batch",
    [sqs_event({"id": 1}), kinesis_event({"id": 1}), dynamodb_stream_event({"id": 1})],
    ids=["sqs", "kinesis", "stream"],
)
def test_a_record_is_delivered_in_a_batch_of_its_own(batch: dict[str, Any]) -> None:
    """A function takes it as its trigger sends it."""
    assert as_delivered(batch["Records"][0]) == batch


def test_a_record_of_kafka_is_delivered_in_a_batch_of_its_cluster() -> None:
    """Its key names the cluster, so the batch has to as well."""
    batch = kafka_event({"id": 1})
    (raw,) = KAFKA.records(batch)
    assert KAFKA.records(as_delivered(raw)) == [raw]


def test_a_redrive_is_no_replay() -> None:
    """A consumer drops a replay of an event whose letter is in the queue."""
    event = eventbridge_event({"id": "1"}) | {"replay-name": "again"}
    assert "replay-name" not in as_delivered(event)


@pytest.mark.parametrize(
    ("line", "says"),
    [("--to shop --limit 0", "more than 0"), ("--to shop --wait soon", "write 90s, 10m")],
)
def test_a_mistake_is_answered(shop: Shop, line: str, says: str) -> None:
    """Nothing is read."""
    assert says in shop.run(line)
    assert shop.status == 2


def test_a_queue_is_needed(
    shop: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, plans: Path
) -> None:
    """The message names the option and the variable."""
    monkeypatch.delenv("DEAD_LETTER_QUEUE_URL")
    assert main(["redrive", "--to", "shop"], shop.store, shop.client) == 2
    assert "--queue URL, or set DEAD_LETTER_QUEUE_URL" in capsys.readouterr().err
