import json
import re
from pathlib import Path
from typing import Any, Final

import boto3
import pytest
from moto import mock_aws

from carride.events import (
    FACTS,
    ContractError,
    MalformedDataError,
    MissingIdempotencyIdError,
    PartialIdempotencyIdError,
    UnknownTypeError,
    parse_event,
)
from carride.samples import samples, write
from carride.shapes import ShapeError, shaped
from carride_simulator import Request
from idempotency.clock import epoch_ms
from idempotency.testing import Invocation
from ride_history import Settings, make_handler
from tests.contract.test_events import assert_conforms

EVENTS: Final = Path(__file__).parents[2] / "events"
FILES: Final = sorted(EVENTS.glob("*.json"))
BROKEN: Final[dict[str, type[ContractError]]] = {
    "missing_id": MissingIdempotencyIdError,
    "partial_id": PartialIdempotencyIdError,
    "unknown_type": UnknownTypeError,
    "malformed": MalformedDataError,
}


def sample(name: str) -> dict[str, Any]:
    """Return a sample as it is checked in."""
    loaded: dict[str, Any] = json.loads((EVENTS / f"{name}.json").read_text())
    return loaded


@pytest.mark.parametrize("name", samples())
def test_what_is_checked_in_is_what_the_command_generates(name: str) -> None:
    """After a change of the contract, `python -m carride.samples events` has to be run."""
    assert (EVENTS / name).read_text() == json.dumps(samples()[name], indent=2) + "\n"


def test_the_command_writes_every_sample(tmp_path: Path) -> None:
    """The generator writes the files that it is asked for, and only those."""
    write(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(samples())


def test_the_readme_lists_every_sample() -> None:
    """Each file has its row in events/README.md, with what is to be expected, and no row is without a file."""
    listed = set(re.findall(r"^\| `([a-z_0-9]+\.json)` \|", (EVENTS / "README.md").read_text(), re.MULTILINE))
    assert listed == {path.name for path in FILES}


@pytest.mark.parametrize("situation", BROKEN)
def test_broken_samples_break_the_contract_as_they_say(situation: str) -> None:
    """Each spoilt sample is refused for the reason in its name."""
    with pytest.raises(BROKEN[situation]):
        parse_event(sample(f"ride_history_{situation}"))


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in FILES
        if path.stem.startswith("ride_history_") and path.stem.removeprefix("ride_history_") not in BROKEN
    ],
    ids=lambda path: path.stem,
)
def test_the_other_samples_honour_it(path: Path) -> None:
    """Each other event is read, and conforms to its schema where it is in the envelope that has one."""
    event = json.loads(path.read_text())
    assert type(parse_event(event).data) in FACTS.values()
    if "specversion" in event["detail"]:
        assert_conforms(event["detail"])


def test_copies_are_copies() -> None:
    """Duplicate and replay tell the live event again: another delivery, the same detail."""
    live = sample("ride_history_live")
    for name in ("duplicate", "replayed"):
        copy = sample(f"ride_history_{name}")
        assert copy["detail"] == live["detail"]
        assert copy["id"] != live["id"]
    assert "replay-name" in sample("ride_history_replayed")


def test_the_ride_history_does_what_the_readme_says() -> None:
    """Run in the order of the table in events/README.md, each sample has the outcome that stands there."""
    rows = re.findall(r"^\| `(ride_history_\w+)\.json` \| (\w+) \|", (EVENTS / "README.md").read_text(), re.MULTILINE)
    with mock_aws():
        for table, key in (("Idempotency", "idempotencyKey"), ("Rides", "orderID")):
            boto3.client("dynamodb").create_table(
                TableName=table,
                KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
                BillingMode="PAY_PER_REQUEST",
            )
        queue_url = boto3.client("sqs").create_queue(QueueName="RideHistoryDlq")["QueueUrl"]
        handler = make_handler(
            Settings(idempotency_table="Idempotency", ride_table="Rides", dead_letter_queue_url=queue_url)
        )
        outcomes = [(name, handler(sample(name), Invocation(epoch_ms))["outcome"]) for name, _ in rows]
    assert len(rows) == sum(path.name.startswith("ride_history_") for path in FILES)
    assert outcomes == rows


def test_requests_are_what_they_say() -> None:
    """The simulator takes the one request and refuses the other."""
    shaped(sample("carride_simulator_request"), Request)
    with pytest.raises(ShapeError, match="duplicates"):
        shaped(sample("carride_simulator_bad_request"), Request)
