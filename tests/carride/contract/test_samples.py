import hashlib
import json
import re
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from carride.bus_entry import BusEntry
from carride.decoding import FieldError, shaped
from carride.events import ContractError, parse_event
from carride_idempotency.dead_letters import SqsDeadLetters
from carride_idempotency.testing import Invocation
from carride_simulator import SimulationRequest
from simulated_rides import Simulation
from tests.functions.world import World
from tests.kit.fakes import FakeQueue, publish
from tests.kit.rides import NOW

EVENTS: Final = Path(__file__).parents[3] / "events"
FILES: Final = sorted(EVENTS.rglob("*.json"))


def sample(name: str) -> dict[str, Any]:
    """Return a sample as it is checked in."""
    loaded: dict[str, Any] = json.loads((EVENTS / f"{name}.json").read_text())
    return loaded


def test_the_readme_lists_every_sample() -> None:
    """Each file has its row in events/README.md with its outcome, and each row has a file."""
    listed = set(
        re.findall(
            r"^\| `([a-z_0-9/]+\.json)` \|", (EVENTS / "README.md").read_text(), re.MULTILINE
        )
    )
    assert listed == {str(path.relative_to(EVENTS)) for path in FILES}


def test_the_readme_lists_what_the_data_of_an_article_needs() -> None:
    """An article's event needs each of the listed fields, and no other one."""
    text = (EVENTS / "README.md").read_text()
    sentence = text.partition("`data` needs these fields:")[2].partition(".\n")[0]
    needed = re.findall(r"`(\w+)`", sentence)
    event = sample("ride_history_article_created")
    event["detail"]["data"] = {name: event["detail"]["data"][name] for name in needed}
    parse_event(event)
    for name in needed:
        data = {each: value for each, value in event["detail"]["data"].items() if each != name}
        with pytest.raises(ContractError):
            parse_event({**event, "detail": {**event["detail"], "data": data}})


# ── What each function makes of its samples ───────────────────────────────────────────────────────


def rows(function: str) -> list[tuple[str, str]]:
    """Return a function's samples with their outcomes in events/README.md, in its order."""
    found = re.findall(
        rf"^\| `({function}_\w+)\.json` \| ([\w, ]+) \|",
        (EVENTS / "README.md").read_text(),
        re.MULTILINE,
    )
    assert len(found) == len([*EVENTS.glob(f"{function}_*.json")])
    return found


def outcomes(world: World, function: str, event: dict[str, Any]) -> list[str]:
    """Deliver an event as it is to a function, and return the outcome of each of its messages."""
    world.observations.clear()
    world.handlers[function](event, Invocation(world.clock, timeout_s=180))
    return sorted(each.outcome for each in world.observations)


@pytest.mark.parametrize("function", ["ride-history", "dispatch", "payment"])
def test_each_function_does_what_the_readme_says(function: str) -> None:
    """In the order of the table in events/README.md, each sample has the outcomes of its row.

    One ride is charged.
    """
    world = World()
    for name, expected in rows(function.replace("-", "_")):
        assert (name, outcomes(world, function, sample(name))) == (
            name,
            sorted(expected.split(", ")),
        )
    assert len(world.gateway.ledger()) == (function == "payment")


# ── Dead letters ──────────────────────────────────────────────────────────────────────────────────


def dead_letter(name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the body and the attributes of a message that is checked in."""
    message = sample(f"dead_letters/{name}")
    assert (
        message["MD5OfBody"]
        == hashlib.md5(message["Body"].encode(), usedforsecurity=False).hexdigest()
    )
    attributes = message.get("MessageAttributes", {})
    return json.loads(message["Body"]), {
        name: value["StringValue"] for name, value in attributes.items()
    }


def test_the_producers_dead_letter_is_one() -> None:
    """The publisher sends the same event with this body and these attributes."""
    body, attributes = dead_letter("producer_dlq")
    spoilt = BusEntry(
        source=body["source"], detail=body["detail"], time=datetime.fromisoformat(body["time"])
    )
    publish([spoilt], queue=(queue := FakeQueue()))
    assert queue.bodies() == [body]
    sent = {
        name: value["StringValue"] for name, value in queue.messages[0]["MessageAttributes"].items()
    }
    assert sent | {"ERROR_MESSAGE": attributes["ERROR_MESSAGE"]} == attributes


def test_the_consumers_dead_letter_is_one() -> None:
    """An event that the ride history gives up is in its queue in this form."""
    world = World()
    sent = dict[str, Any]()
    outcomes(world, "ride-history", sample("ride_history_malformed"))
    (letter,) = world.given_up()
    SqsDeadLetters(
        "https://dlq", client=SimpleNamespace(send_message=lambda **message: sent.update(message))
    ).send(letter)
    attributes = {name: value["StringValue"] for name, value in sent["MessageAttributes"].items()}
    assert (json.loads(sent["MessageBody"]), attributes) == dead_letter("ride_history_dlq_given_up")


def test_the_other_dead_letters_hold_their_events() -> None:
    """The body of a rule's dead letter is the event; that of a failed invocation holds it."""
    live = sample("ride_history_live")
    body, attributes = dead_letter("ride_history_rule_dlq")
    assert body == live
    assert {"RULE_ARN", "TARGET_ARN", "ERROR_CODE"} <= attributes.keys()
    assert dead_letter("ride_history_dlq_failed")[0]["requestPayload"] == live
    assert dead_letter("outbox_pipe_dlq")[0]["DDBStreamBatchInfo"]["batchSize"] == 1


def test_requests_are_what_they_say() -> None:
    """The simulator takes the two requests and refuses the other."""
    for name in ("request", "predefined"):
        Simulation(shaped(sample(f"carride_simulator_{name}"), SimulationRequest), NOW)
    with pytest.raises(FieldError, match="duplicates"):
        shaped(sample("carride_simulator_bad_request"), SimulationRequest)
