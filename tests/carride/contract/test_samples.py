import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import boto3
import pytest
from moto import mock_aws

import carride.consumer
import dispatch
import payment
import ride_history
from carride.decoding import FieldError, shaped
from carride.entry import BusEntry
from carride.simulation import Simulation
from carride_simulator import Request
from contract.samples import TIME
from idempotency.clock import epoch_ms
from idempotency.testing import Invocation
from tests.carride.fakes import FakeQueue, publish
from tests.functions.gateways import FakeGateway
from tests.functions.saga import create_table

EVENTS: Final = Path(__file__).parents[3] / "events"
FILES: Final = sorted(EVENTS.glob("*.json"))
DEAD_LETTERS: Final = sorted(EVENTS.glob("dead_letters/*.json"))


def sample(name: str) -> dict[str, Any]:
    """Return a sample as it is checked in."""
    loaded: dict[str, Any] = json.loads((EVENTS / f"{name}.json").read_text())
    return loaded


def test_the_readme_lists_every_sample() -> None:
    """Each file has its row in events/README.md, with what is to be expected, and no row is without a file."""
    listed = set(re.findall(r"^\| `([a-z_0-9/]+\.json)` \|", (EVENTS / "README.md").read_text(), re.MULTILINE))
    assert listed == {str(path.relative_to(EVENTS)) for path in [*FILES, *DEAD_LETTERS]}


# ── What each function makes of its samples ───────────────────────────────────────────────────────────────────────────


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the URL of a dead-letter queue, beside the tables of every consumer, in an account of this process."""
    with mock_aws():
        dynamodb = boto3.client("dynamodb")
        create_table(dynamodb, "idempotency", "idempotencyKey")
        create_table(dynamodb, "outbox", "id")
        create_table(dynamodb, "cars", "zone", "carID")
        for table in ("rides", "assignments", "payments"):
            create_table(dynamodb, table, "orderID")
        yield boto3.client("sqs").create_queue(QueueName="dlq")["QueueUrl"]


def rows(function: str) -> list[tuple[str, str]]:
    """Return the samples of a function with the outcomes that events/README.md gives them, in its order."""
    found = re.findall(
        rf"^\| `({function}_\w+)\.json` \| ([\w, ]+) \|", (EVENTS / "README.md").read_text(), re.MULTILINE
    )
    assert len(found) == sum(path.name.startswith(function) for path in FILES)
    return found


type Handler = Callable[[dict[str, Any], Invocation], dict[str, Any]]


@pytest.fixture
def history(account: str) -> Handler:
    """Return the handler of the ride history."""
    settings = ride_history.Settings(
        idempotency_store="dynamodb:idempotency", ride_table="rides", dead_letter_queue_url=account
    )
    return ride_history.make_handler(settings)


def test_the_ride_history_does_what_the_readme_says(history: Handler) -> None:
    """Run in the order of the table in events/README.md, each sample has the outcome that stands there."""
    for name, outcome in rows("ride_history"):
        assert (name, history(sample(name), Invocation(epoch_ms))["outcome"]) == (name, outcome)


def test_an_event_from_before_a_field_is_a_duplicate_of_the_event_with_it(history: Handler) -> None:
    """An archived event without a currency, replayed after the same fact was published with one, has no effect."""
    now = sample("ride_history_live")
    data = {name: value for name, value in now["detail"]["data"].items() if name != "currency"}
    before = now | {"detail": now["detail"] | {"data": data}}
    assert before != now
    outcomes = [history(event, Invocation(epoch_ms))["outcome"] for event in (now, before)]
    assert outcomes == ["New", "Duplicate"]


def test_dispatch_does_what_the_readme_says(account: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message has the outcome that stands there, and none comes again."""
    outcomes: list[str] = []
    monkeypatch.setattr(carride.consumer, "observe", lambda observation: outcomes.append(observation.outcome))
    # One at a time: moto's transactions are not isolated, and the order is that of the table.
    monkeypatch.setattr(dispatch, "POLICY", replace(dispatch.POLICY, concurrency=1))
    handler = dispatch.make_handler(
        dispatch.Settings(
            idempotency_store="dynamodb:idempotency",
            assignment_table="assignments",
            car_table="cars",
            outbox_table="outbox",
            dead_letter_queue_url=account,
            aws_region="us-east-1",
        )
    )
    for name, expected in rows("dispatch"):
        outcomes.clear()
        assert handler(sample(name), Invocation(epoch_ms)) == {"batchItemFailures": []}
        assert (name, sorted(outcomes)) == (name, sorted(expected.split(", ")))


def test_payment_does_what_the_readme_says(account: str) -> None:
    """Each sample has the outcome that stands there, and the one ride is charged once."""
    gateway = FakeGateway()
    handler = payment.make_handler(
        payment.Settings(
            idempotency_store="dynamodb:idempotency",
            payment_table="payments",
            outbox_table="outbox",
            payment_gateway_url="http://127.0.0.1:9",
            dead_letter_queue_url=account,
            aws_region="us-east-1",
        ),
        gateway,
    )
    for name, outcome in rows("payment"):
        assert (name, handler(sample(name), Invocation(epoch_ms, timeout_s=180))["outcome"]) == (name, outcome)
    assert len(gateway.ledger()) == 1


# ── Dead letters ──────────────────────────────────────────────────────────────────────────────────────────────────────


def dead_letter(name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the body and the attributes of a message that is checked in."""
    message = sample(f"dead_letters/{name}")
    assert message["MD5OfBody"] == hashlib.md5(message["Body"].encode(), usedforsecurity=False).hexdigest()
    attributes = message.get("MessageAttributes", {})
    return json.loads(message["Body"]), {name: value["StringValue"] for name, value in attributes.items()}


def test_the_producers_dead_letter_is_one() -> None:
    """The publisher sends the same event with this body and these attributes."""
    body, attributes = dead_letter("producer_dlq")
    spoilt = BusEntry(source=body["source"], detail=body["detail"], time=datetime.fromisoformat(body["time"]))
    publish([spoilt], queue=(queue := FakeQueue()))
    assert queue.bodies() == [body]
    sent = {name: value["StringValue"] for name, value in queue.messages[0]["MessageAttributes"].items()}
    assert sent | {"ERROR_MESSAGE": attributes["ERROR_MESSAGE"]} == attributes


def test_the_consumers_dead_letter_is_one(history: Handler, account: str) -> None:
    """An event that the ride history gives up is in its queue in this form."""
    history(sample("ride_history_malformed"), Invocation(epoch_ms))
    (message,) = boto3.client("sqs").receive_message(QueueUrl=account, MessageAttributeNames=["All"])["Messages"]
    sent = {name: value["StringValue"] for name, value in message["MessageAttributes"].items()}
    assert (json.loads(message["Body"]), sent) == dead_letter("ride_history_dlq_given_up")


def test_the_other_dead_letters_hold_their_events() -> None:
    """The body of a rule's dead letter is the event; that of a failed invocation holds it."""
    live = sample("ride_history_live")
    body, attributes = dead_letter("ride_history_rule_dlq")
    assert body == live
    assert {"RULE_ARN", "TARGET_ARN", "ERROR_CODE"} <= attributes.keys()
    assert dead_letter("ride_history_dlq_failed")[0]["requestPayload"] == live
    assert dead_letter("outbox_pipe_dlq")[0]["DDBStreamBatchInfo"]["batchSize"] == 1


def test_requests_are_what_they_say() -> None:
    """The simulator takes the one request and refuses the other."""
    for name in ("request", "predefined"):
        Simulation(shaped(sample(f"carride_simulator_{name}"), Request), TIME)
    with pytest.raises(FieldError, match="duplicates"):
        shaped(sample("carride_simulator_bad_request"), Request)
