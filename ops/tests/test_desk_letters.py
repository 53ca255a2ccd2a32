"""The page of dead letters."""

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
from moto import mock_aws
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.sqs.models import sqs_backends

from carride.events import RideEvent
from carride_idempotency import observation
from carride_idempotency.dead_letters import CONTRACT
from carride_idempotency.record import COMPLETED, FAILED, IN_PROGRESS, QUARANTINED, Record, Status
from carride_idempotency.record_items import item_of
from ops import change_log
from ops.audit import judge
from ops.audit.evidence import DeadLettered, Evidence
from ops.audit.reading import _queues, enabled
from ops.dead_letters import DeadLetters
from ops.desk.advice import MEND_FIRST
from ops.desk.letterbox import MOST, Letterbox, groups_in, title_of
from ops.letters import letters
from ops.policies import records_of
from ops.stack import StackRef
from ops.tests.desk_world import (
    BEGIN_MS,
    deliver,
    desk_of,
    event_of,
    get,
    publish,
)
from ops.tests.world import empty_stack, stack
from tests.kit.rides import Life

pytestmark = pytest.mark.proof  # hundreds of calls of moto: longer than a unit test

FINISHED: Final = event_of(Life("order_01").completed)
NO_ANSWER: Final = "GatewayUnavailableError: no answer to order_01 within 3.0 s"
BROKEN_ID: Final = "b7f0c9b2-0000-4000-8000-000000000007"


@pytest.fixture
def ref() -> Iterator[StackRef]:
    """A stack with a letter that a redrive may help, and two that would come back."""
    with mock_aws():
        made = empty_stack()
        put_letter(made, "PaymentDlq", "payment", FINISHED, NO_ANSWER)
        quarantine(made, f"payment#{FINISHED.idempotencyid}")
        for number in (7, 8):
            put(made, "RideHistoryDlq", broken(f"{BROKEN_ID[:-1]}{number}"))
        yield made


def envelope(event: RideEvent, name: str = "b7f0c9b2-0000-4000-8000-000000000001") -> Any:
    """Return an event as EventBridge delivers it."""
    return {
        "version": "0",
        "id": name,
        "source": event.source,
        "detail-type": "CarRideEvent",
        "detail": event.to_detail(),
    }


def broken(name: str) -> Any:
    """Return the letter of an event that breaks the contract."""
    content = {"version": "0", "id": name, "detail": {"type": "CarRideTeleported"}}
    said = {"reason": CONTRACT, "consumer": "ride-history", "message": "type: no such type"}
    return said | {"event": content}


def put_letter(ref: StackRef, queue: str, consumer: str, event: RideEvent, error: str) -> None:
    """Dead-letter an event."""
    said = {"reason": "QUARANTINED", "consumer": consumer, "message": error}
    put(ref, queue, said | {"event": envelope(event)})


def put(ref: StackRef, queue: str, content: Any) -> None:
    ref.client("sqs").send_message(
        QueueUrl=ref.outputs[f"{queue}Url"], MessageBody=json.dumps(content)
    )


def quarantine(
    ref: StackRef,
    key: str,
    status: Status = QUARANTINED,
    *,
    attempt: int = 3,
    updated_ms: int = BEGIN_MS,
    lease_ms: int | None = None,
) -> None:
    """Store the record of a key that was given up."""
    record = Record(
        key=key,
        status=status,
        owner="one",
        attempt=attempt,
        lease_ms=lease_ms,
        expiry=None,
        fingerprint=None,
        delivery="d",
        region="us-east-1",
        created_ms=BEGIN_MS,
        updated_ms=updated_ms,
        error=NO_ANSWER,
        dead_lettered=True,
    )
    ref.client("dynamodb").put_item(
        TableName=ref.outputs[f"{records_of(key)}Name"], Item=item_of(record)
    )


@pytest.mark.parametrize("is_released", [False, True])
def test_a_released_key_is_quarantined_on_no_page(ref: StackRef, *, is_released: bool) -> None:
    """Neither in the list of letters nor on the letter's card; no second release is offered."""
    key = f"payment#{FINISHED.idempotencyid}"
    if is_released:
        quarantine(ref, key, FAILED, attempt=0)
    desk = desk_of(ref)
    text = get(desk, f"/letters?event={FINISHED.idempotencyid}&at=payment").text
    title = "Key released" if is_released else "Failed at every attempt"
    assert f"<b>{title}</b>" in get(desk, "/letters").text
    assert f"{title.lower()}</span>" in text
    assert ("uarantined" in text.partition("<h1>")[2].partition("<h2>History")[0]) == (
        not is_released
    )
    publish(desk.feed.index, FINISHED, BEGIN_MS)
    text = get(desk, f"/event/{FINISHED.idempotencyid}").text
    assert (f"./carride release &#39;{key}&#39;" in text) == (not is_released)


def offered(text: str) -> list[str]:
    """Return the queues of which a page offers a redrive, by a command that shows it only."""
    assert "--yes" not in text
    return re.findall(r'data-copy="\./carride redrive (\w+)', text)


def visible(ref: StackRef, queue: str) -> int:
    """Return how many letters another reader can receive now."""
    found = ref.client("sqs").receive_message(
        QueueUrl=ref.outputs[f"{queue}Url"], MaxNumberOfMessages=10, VisibilityTimeout=0
    )
    return len(found.get("Messages", []))


def test_letters_of_a_group_are_listed_as_every_list_is(ref: StackRef) -> None:
    """The newest is the first."""
    url = ref.outputs["DispatchDlqUrl"]
    for number in range(3):
        event = event_of(Life(f"order_{number}").accepted)
        put_letter(ref, "DispatchDlq", "dispatch", event, NO_ANSWER)
        queue = sqs_backends[DEFAULT_ACCOUNT_ID]["us-east-1"].queues[url.rpartition("/")[2]]
        message: Any = queue._messages[-1]  # noqa: SLF001 - SQS has no such option
        message.sent_timestamp -= 60_000 * number
    text = get(desk_of(ref), "/letters?at=dispatch").text
    listed = text.partition('aria-expanded="true"')[2].partition("</ul>")[0].partition("<ul>")[2]
    assert re.findall(r'<span class="id">(order_\d)<', listed) == ["order_0", "order_1", "order_2"]


def test_what_a_redrive_may_help_comes_first(ref: StackRef) -> None:
    """The page has both kinds, opens the first letter, and leaves every letter visible."""
    text = get(desk_of(ref), "/letters").text
    assert text.index("Can be redriven 1") < text.index("Would come back 2")
    assert "3 in 2 queues" in text
    assert NO_ANSWER in text, "with its ids and numbers"
    assert "its key is released, and its consumer processes it" in text
    assert offered(text) == ["payment"]
    assert "--release" in text
    assert (visible(ref, "PaymentDlq"), visible(ref, "RideHistoryDlq")) == (1, 2)


def test_a_letter_has_its_history_and_its_payload(ref: StackRef) -> None:
    """As the logs that the desk has read tell it."""
    desk = desk_of(ref)
    publish(desk.feed.index, FINISHED, BEGIN_MS)
    told = {"attempt": 1, "reason": NO_ANSWER}
    deliver(desk.feed.index, FINISHED, "payment", BEGIN_MS + 9, observation.FAILED, **told)
    text = get(desk, f"/letters?event={FINISHED.idempotencyid}&at=payment").text
    assert f'href="/event/{FINISHED.idempotencyid}"' in text
    assert "attempt 1 · 10 ms" in text
    history = text.partition("<h2>History</h2>")[2]
    words = ("published", "failed", "in its queue")
    places = [history.index(f" {word}</span>") for word in words]
    assert places == sorted(places), "in the order of their begins"
    assert "&#34;price&#34;: 1250" in text


def test_a_letter_that_breaks_the_contract_leads_to_its_event(ref: StackRef) -> None:
    """It has no idempotency id, but EventBridge's; and no redrive is offered for it."""
    desk = desk_of(ref)
    line = {"message": json.dumps(broken(BROKEN_ID)["event"] | {"source": "s"})}
    desk.feed.index.add_published(line | {"timestamp": BEGIN_MS, "logStreamName": "bus"})
    answer = get(desk, f"/letters?event={BROKEN_ID}")
    detail = answer.text.partition('aria-label="letter"')[2]
    assert f'href="/event/{BROKEN_ID}"' in detail
    assert "A redrive would not help" in detail
    assert offered(detail) == []
    assert "Whoever sends it has to mend it" in detail
    assert "ops/docs/runbooks/consumer-dlq.md" in detail
    assert get(desk, f"/event/{BROKEN_ID}").status == 200


def test_a_group_says_whether_its_letters_can_be_redriven(ref: StackRef) -> None:
    """Where it opens: only one that can be redriven has a command."""
    text = get(desk_of(ref), "/letters").text
    groups = re.findall(r'href="/letters\?group=(\w+)"', text)
    text = get(desk_of(ref), f"/letters?group={groups[-1]}").text
    assert 'aria-expanded="true"' in text.partition(f'id="g-{groups[-1]}"')[2].partition(">")[0]
    assert "Whoever sends it has to mend it" in text
    assert offered(text) == []


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ("5", "answered with 5"),
        ("5757", "answered with …"),
    ],
)
def test_the_header_of_a_group_is_true_of_all_its_letters(
    ref: StackRef, answers: str, error: str
) -> None:
    """A redrive of all is planned on it, so that it names no error which only some have."""
    for number, answer in enumerate(answers):
        event = event_of(Life(f"order_1{number}").completed)
        put_letter(ref, "PaymentDlq", "payment", event, f"answered with {answer}")
    found = Letterbox(ref).read({"PaymentDlq": len(answers) + 1}).found
    assert error in [each.error for each in groups_in(found)]


def test_a_letter_that_failed_again_asks_for_its_cause_first(ref: StackRef) -> None:
    """The count of redrives is the event's, a copy is named, and the operator is in the history."""
    key = f"payment#{FINISHED.idempotencyid}"
    put_letter(ref, "PaymentDlq", "payment", FINISHED, NO_ANSWER)
    marks = ref.outputs["OperatorTableName"]
    item = {"id": {"S": f"redriven#{key}"}, "redriven": {"N": "2"}}
    item["redrivenAt"] = {"N": str(BEGIN_MS)}
    ref.client("dynamodb").put_item(TableName=marks, Item=item)
    text = get(desk_of(ref), f"/letters?event={FINISHED.idempotencyid}&at=payment").text
    assert "The last redrive has failed again" in text
    assert "this event to payment, by this letter or a copy of it" in text
    assert "1 of the same event and key" in text
    assert sum(each.copies for each in groups_in(Letterbox(ref).read({}).found)) == 1
    history = text.partition("<h2>History</h2>")[2]
    assert "by an operator" in history
    assert "the last of 2 times" in history
    desk = desk_of(ref)
    publish(desk.feed.index, FINISHED, BEGIN_MS)
    desk.feed.index.add_letters(
        [DeadLettered("PaymentDlq", "", "payment", None, FINISHED.idempotencyid)]
    )
    ride = get(desk, "/ride/order_01").text
    assert MEND_FIRST in text
    assert "mend the cause first" in ride


@pytest.mark.parametrize(
    ("reason", "title"),
    [
        ("MalformedDetail", "Malformed detail"),
        ("CONTRACT", "Breaks the contract"),
        ("RATE_EXCEEDED", "Rate exceeded"),
    ],
)
def test_a_reason_is_shown_in_words(reason: str, title: str) -> None:
    """Whoever gave it."""
    assert title_of(reason) == title


class Watching:
    """A client of SQS that notes for how long messages are to be hidden."""

    def __init__(self, sqs: Any) -> None:
        self._sqs = sqs
        self.asked = list[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sqs, name)

    def receive_message(self, **request: Any) -> Any:
        """Receive, and note."""
        self.asked.append(request["VisibilityTimeout"])
        return self._sqs.receive_message(**request)


def test_the_desk_hides_letters_for_two_seconds_at_most(ref: StackRef) -> None:
    """Its audit, and the pages of letters and of what has to be looked up."""
    sqs = Watching(ref.client("sqs"))
    outputs: dict[str, Any] = {**ref.outputs}
    seen = stack(lambda service, _: sqs if service == "sqs" else ref.client(service), **outputs)
    evidence = partial(_queues, consumers=enabled(seen))
    for look in (
        lambda desk: evidence(desk.feed.stack),
        lambda desk: get(desk, "/letters"),
        lambda desk: get(desk, f"/event/{BROKEN_ID}"),
    ):
        sqs.asked.clear()
        look(desk_of(seen))
        assert sqs.asked
        assert max(sqs.asked) <= 2
        assert (visible(ref, "PaymentDlq"), visible(ref, "RideHistoryDlq")) == (1, 2)


def test_a_reading_is_kept_until_the_queues_change(ref: StackRef) -> None:
    """Whoever looks at ten letters of a list reads the queues once."""
    box = Letterbox(ref)
    counts = {"PaymentDlq": 1, "RideHistoryDlq": 2}
    first = box.read(counts)
    assert box.read(counts) is first
    assert box.read(counts, again=True) is not first
    ref.client("sqs").purge_queue(QueueUrl=ref.outputs["PaymentDlqUrl"])
    assert box.read({"RideHistoryDlq": 2}).counts == {"RideHistoryDlq": 2}


def test_no_list_of_letters_is_without_end(ref: StackRef, monkeypatch: Any) -> None:
    """A page reads some hundred, and says how to read the others."""
    monkeypatch.setattr("ops.desk.letterbox.MOST", 1)
    text = get(desk_of(ref), "/letters").text
    assert "The first 2 letters are shown" in text
    assert MOST == 500


def test_the_payload_of_a_letter_is_cut_and_shown_in_full_elsewhere(ref: StackRef) -> None:
    """The page stays small."""
    long = json.loads(json.dumps(broken(BROKEN_ID)))
    long["event"]["detail"]["note"] = "x" * 60_000
    put(ref, "RideHistoryRuleDlq", long)
    desk = desk_of(ref)
    page = get(desk, "/letters")
    assert len(page.text) < 60_000
    reading = desk.letterbox.read({})
    longest = max(reading.found, key=lambda found: len(str(found.letter.event)))
    chosen = f"letter={longest.letter.id}"
    assert "Show all" in get(desk, f"/letters?{chosen}").text
    raw = get(desk, f"/raw/letter?{chosen}")
    assert len(raw.text) > 60_000
    assert raw.headers["content-type"].startswith("text/plain")
    assert get(desk, "/raw/letter?letter=none").status == 404


def test_a_letter_that_is_gone_is_a_sentence(ref: StackRef) -> None:
    """And an empty mailbox is a page."""
    desk = desk_of(ref)
    shown = get(desk, "/letters?letter=none").text.partition("<h1>")[2]
    assert "No such letter" in shown
    assert "#i-check" not in shown.partition("</section>")[0]
    for queue in ("PaymentDlq", "RideHistoryDlq"):
        ref.client("sqs").purge_queue(QueueUrl=ref.outputs[f"{queue}Url"])
    assert "No dead letters" in get(desk, "/letters?again=1").text
    for asked in ("letter=none", "event=none"):
        assert "No such letter" in get(desk, f"/letters?{asked}").text


@pytest.mark.parametrize("path", ["/letters?letter=nope", "/letters?event=nope"])
def test_what_does_not_exist_is_not_found(ref: StackRef, path: str) -> None:
    """The page says so in words and by its status, and has a way to what there is."""
    put(ref, "RideHistoryRuleDlq", broken(BROKEN_ID))
    desk = desk_of(ref)
    answer = get(desk, path)
    assert answer.status == 404
    assert 'id="live"' in answer.text
    listed = path.partition("?")[0]
    assert f'href="{listed}"' in answer.text.partition('id="live"')[2]
    assert get(desk, listed).status == 200


@pytest.mark.parametrize("is_of_consumer", [True, False])
@pytest.mark.parametrize("length", [6, 8, 20, 36])
def test_a_key_is_found_by_how_it_begins(
    ref: StackRef, length: int, *, is_of_consumer: bool
) -> None:
    """If the desk holds its event."""
    desk = desk_of(ref)
    publish(desk.feed.index, FINISHED, BEGIN_MS)
    publish(desk.feed.index, event_of(Life("order_02").completed), BEGIN_MS)
    begin = FINISHED.idempotencyid[:length]
    asked = quote(f"payment#{begin}" if is_of_consumer else begin)
    found = get(desk, f"/find?q={asked}")
    assert found.status == 303
    if is_of_consumer:
        assert found.headers["location"] == f"/event/{FINISHED.idempotencyid}#at-payment"


def test_letters_that_break_the_contract_are_told_apart(ref: StackRef) -> None:
    """The ledger counts events without an effect in a row, which leads to their letters alone."""
    put_letter(ref, "RideHistoryDlq", "ride-history", FINISHED, NO_ANSWER)
    desk = desk_of(ref)
    for contract, count in (("kept", 1), ("", 3)):
        text = get(desk, f"/letters?at=ride-history&contract={contract}").text
        groups = re.findall(r'id="g-\w+".*?<b>(\d+)</b>', text)
        assert sum(map(int, groups)) == count, contract


def test_an_event_with_its_effect_is_no_letter_to_redrive(ref: StackRef) -> None:
    """The ledger counts events without an effect, and so does its list."""
    put_letter(ref, "RideHistoryDlq", "ride-history", FINISHED, NO_ANSWER)
    quarantine(ref, f"ride-history#{FINISHED.idempotencyid}", COMPLETED)
    text = get(desk_of(ref), "/letters?at=ride-history&contract=kept").text
    assert 'id="g-' not in text


def test_letters_of_one_consumer_are_listed_alone(ref: StackRef) -> None:
    """Flow and the ledger lead to them; the others are one click away."""
    desk = desk_of(ref)
    for at, count, error in (("payment", 1, True), ("ride-history", 2, False)):
        text = get(desk, f"/letters?at={at}").text
        assert f"{count} letter" in text
        assert ("no answer to order_01" in text) is error
        assert ">Show all</a>" in text
    assert ">Show all</a>" not in get(desk, "/letters").text


@pytest.mark.parametrize("are_others", [True, False])
@pytest.mark.parametrize("at", ["dispatch", "bus", "nowhere", "<b>"])
def test_a_list_without_letters_is_a_sentence(ref: StackRef, at: str, *, are_others: bool) -> None:
    """No letter was asked for, so none is missed; the letters of others are one click away."""
    for queue in () if are_others else ("PaymentDlq", "RideHistoryDlq"):
        ref.client("sqs").purge_queue(QueueUrl=ref.outputs[f"{queue}Url"])
    text = get(desk_of(ref), f"/letters?at={quote(at)}").text
    found = text.partition('class="empty"')[2].partition("</section>")[0]
    assert ">Show all</a>" in found
    assert ("No consumer is called" in found) is (at in {"nowhere", "<b>"})
    assert "<b>" not in found
    assert "No such letter" not in text


def test_letters_that_another_reader_hides_are_not_missed(ref: StackRef) -> None:
    """The page says that it read none, and not that one is gone."""
    for queue in ("PaymentDlq", "RideHistoryDlq"):
        url = ref.outputs[f"{queue}Url"]
        request = {"QueueUrl": url, "MaxNumberOfMessages": 10, "VisibilityTimeout": 60}
        ref.client("sqs").receive_message(**request)
    desk = desk_of(ref)
    desk.feed.queues = {"PaymentDlq": 1, "RideHistoryDlq": 2}
    text = get(desk, "/letters").text
    assert "No letter could be read" in text
    assert "No such letter" not in text


def test_no_page_shows_a_letter_that_was_redriven_as_waiting(
    ref: StackRef, tmp_path: Path, monkeypatch: Any
) -> None:
    """Whoever sent it: the queues are read again when a command has ended."""
    log = tmp_path / "changes.jsonl"
    monkeypatch.setattr(change_log, "CHANGES", log)
    desk = desk_of(ref)
    desk.feed.queues = {"PaymentDlq": 1, "RideHistoryDlq": 2}
    (found,) = (each.letter for each in desk.letters().found if each.letter.queue == "PaymentDlq")
    path = f"/letters?letter={found.id}"
    assert get(desk, path).status == 200
    ref.client("sqs").purge_queue(QueueUrl=ref.outputs["PaymentDlqUrl"])
    log.write_text(json.dumps(sent_letter(str(found.key))))
    answer = get(desk, path)
    assert answer.status == 404
    assert "No such letter" in answer.text
    assert "2 in 1 queue" in get(desk, "/letters").text
    reading = desk.letters()
    assert desk.letters() is reading, "until the next command ends"


def sent_letter(key: str) -> Any:
    """Return the line of the log of a redrive that sent a letter of a key."""
    letter = {"id": "m", "key": key, "type": "CarRideCompleted", "ride": "order_01"}
    return {
        "time": "2026-11-24T15:15:26+00:00",
        "command": "carride redrive PaymentDlq",
        "plan": "0433d0e7",
        "exact": {"letters": [letter | {"verdict": {"goes": True}}]},
        "result": {"sent": 1, "tried": [{"key": key, "trial": "unknown"}]},
    }


def put_held(ref: StackRef, ride: str) -> None:
    """Dead-letter an event as the others of `ref` were, whose key an attempt holds again."""
    event = event_of(Life(ride).completed)
    put_letter(ref, "PaymentDlq", "payment", event, NO_ANSWER)
    lease_ms = int(time.time() * 1000) + 600_000
    quarantine(ref, f"payment#{event.idempotencyid}", IN_PROGRESS, lease_ms=lease_ms)


@pytest.mark.parametrize("is_held_first", [True, False])
def test_a_group_says_what_a_redrive_does_with_each_of_its_letters(
    ref: StackRef, *, is_held_first: bool
) -> None:
    """Not only with the oldest, which the others need not be like."""
    if is_held_first:
        ref.client("sqs").purge_queue(QueueUrl=ref.outputs["PaymentDlqUrl"])
        put_held(ref, "order_02")
        put_letter(ref, "PaymentDlq", "payment", FINISHED, NO_ANSWER)
    else:
        put_held(ref, "order_02")
    desk = desk_of(ref)
    (group,) = (
        each for each in groups_in(desk.letters().found) if each.newest.letter.consumer == "payment"
    )
    assert {each.verdict.goes for each in group.letters} == {True, False}
    text = get(desk, f"/letters?group={group.id}").text
    assert all(each.verdict.says in text for each in group.letters)
    assert offered(text) == ["payment"]


@pytest.mark.parametrize("audited", [4, 5])
def test_all_that_count_the_letters_that_can_be_redriven_count_the_same(
    audited: int, ref: StackRef
) -> None:
    """The ledger says nothing of them if the audit has counted others."""
    put_held(ref, "order_02")
    desk = desk_of(ref)
    report = judge(Evidence(consumers=()))
    reasons = {
        "PaymentDlq": Counter(QUARANTINED=2),
        "RideHistoryDlq": Counter(CONTRACT=audited - 2),
    }
    ledger = replace(report.ledger, published=4, dead_lettered=reasons)
    desk.feed.report = report._replace(ledger=ledger)
    heading = re.search(r"Can be redriven ([0-9]+)", get(desk, "/letters").text)
    assert heading is not None
    found = re.search(r'id="redrivable">([0-9]+)<', get(desk, "/ledger").text)
    assert (found and found[1]) == (heading[1] if audited == 4 else None)
    listed = letters(ref)
    assert isinstance(listed, DeadLetters)
    assert int(heading[1]) == sum(each.goes for each in listed.failures) == 1
