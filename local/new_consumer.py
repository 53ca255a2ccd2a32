"""`make new-consumer NAME=…`: a consumer with everything that belongs to one, made after the smallest that there is.

It copies what ride_history has in the template, with its alarms, policies and runbooks, under the new name and without
the table, and writes a handler, a sample event and a test that pass as they are. docs/add-a-consumer.md says what next.
"""

import argparse
import importlib.util
import re
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_LONGEST: Final = 40
_BANNER: Final = "  # " + "=" * 116 + "\n"
_MODEL: Final = "Consumer: ride_history (rule -> Lambda)"
_OF_THE_TABLE: Final = (
    re.compile(r"^          RIDE_TABLE: .*\n", re.MULTILINE),
    re.compile(r"^              - Sid: UpdateRides\n(?: {16}.*\n)+", re.MULTILINE),
)

_HANDLER: Final = '''\
"""{Words}: what is to be done about a ride event, once for each."""

from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

from carride.events import RideEvent, parse_event
from carride.faults import Faults
from carride.settings import from_environment
from carride.telemetry import observe
from idempotency import Consumer, DynamoDBStore, Operation, Policy, SqsDeadLetters


class Settings(Struct, frozen=True, kw_only=True):
    """The function's environment."""

    idempotency_table: str
    dead_letter_queue_url: str
    faults: Literal["allowed", "refused"] = "refused"


def make_handler(settings: Settings) -> Callable[[dict[str, Any], Any], Any]:
    """Return the Lambda handler."""
    faults = Faults(allowed=settings.faults == "allowed")
    consumer = Consumer(
        "{kebab}",
        DynamoDBStore(settings.idempotency_table),
        parse=parse_event,
        key=lambda event: event.idempotencyid,
        payload=lambda event: event.payload,
        expires=lambda event: event.expirytime,
        # All effects are in the commit, so Lambda's retry need not wait until the lease of a killed attempt is over.
        policy=Policy(same_delivery_takes_over=True),
        dead_letters=SqsDeadLetters(settings.dead_letter_queue_url),
        observe=observe,
    )

    @consumer.event_handler
    def handler(event: RideEvent, operation: Operation) -> str:
        # What is registered here with operation.write(Put(table, item)) is committed together with the record.
        faults.strike(event, operation.attempt)
        return event.type

    return handler


handler = make_handler(from_environment(Settings))
'''

_TEST: Final = '''\
"""{Words} on an in-process DynamoDB: each event takes effect once."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from idempotency.clock import epoch_ms
from idempotency.testing import Invocation
from {module} import Settings, make_handler

SAMPLE = Path(__file__).parents[3] / "events" / "{module}_live.json"

type Deliver = Callable[[dict[str, Any]], str]


@pytest.fixture
def deliver() -> Iterator[Deliver]:
    """Deliver an event to a handler over an empty table and an empty queue, and return the outcome."""
    with mock_aws():
        boto3.client("dynamodb").create_table(
            TableName="Idempotency",
            KeySchema=[{{"AttributeName": "idempotencyKey", "KeyType": "HASH"}}],
            AttributeDefinitions=[{{"AttributeName": "idempotencyKey", "AttributeType": "S"}}],
            BillingMode="PAY_PER_REQUEST",
        )
        url = boto3.client("sqs").create_queue(QueueName="{Noun}Dlq")["QueueUrl"]
        handler = make_handler(Settings(idempotency_table="Idempotency", dead_letter_queue_url=url))
        yield lambda event: handler(event, Invocation(epoch_ms, request_id=event["id"]))["outcome"]


@pytest.fixture
def event() -> dict[str, Any]:
    """Return the sample event."""
    sample: dict[str, Any] = json.loads(SAMPLE.read_text())
    return sample


def test_an_event_takes_effect_once(deliver: Deliver, event: dict[str, Any]) -> None:
    """Another delivery of the same event is recognised, whatever id the delivery has."""
    assert deliver(event) == "New"
    assert deliver(event | {{"id": "another-delivery"}}) == "Duplicate"


def test_an_event_that_breaks_the_contract_is_dead_lettered(deliver: Deliver, event: dict[str, Any]) -> None:
    """It is handed to the dead-letter queue at once, and never retried."""
    del event["detail"]["idempotencyid"]
    assert deliver(event) == "DeadLettered"
'''

_MEANING: Final = {
    "dlq": "{Words} gave events up; what they should have done has not been done.",
    "rule-dlq": (
        "EventBridge could not hand events to {words}, for a day or because it may not. The\n"
        "consumer has not seen them. Other consumers are not concerned."
    ),
}


class NewConsumerError(Exception):
    """The consumer cannot be made; the message says why."""


class Names:
    """One name in the forms that it takes: `loyalty_points`, `loyalty-points`, `LoyaltyPoints`, `loyalty points`."""

    def __init__(self, name: str) -> None:
        self.module = name
        self.kebab = name.replace("_", "-")
        self.noun = "".join(word.capitalize() for word in name.split("_"))
        self.words = name.replace("_", " ")

    def of(self, text: str) -> str:
        """Return a text about ride_history as one about this consumer."""
        for model, own in (
            ("RideHistory", self.noun),
            ("ride_history", self.module),
            ("ride-history", self.kebab),
            ("the ride history", self.words),
            ("The ride history", self.words.capitalize()),
        ):
            text = text.replace(model, own)
        return text

    def fill(self, text: str) -> str:
        """Fill in the placeholders of a text."""
        return text.format(
            module=self.module,
            kebab=self.kebab,
            Noun=self.noun,
            words=self.words,
            Words=self.words.capitalize(),
        )


def make(name: str, root: Path = ROOT) -> list[Path]:
    """Make a consumer, and return the files that were written or changed.

    Args:
        name: in lower case, words joined by underscores.
        root: the project.

    Raises:
        NewConsumerError: the name cannot be used, or is used already.
    """
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise NewConsumerError(
            f"NAME={name!r} is no name for a consumer: use lower-case words joined by underscores, like loyalty_points"
        )
    folder = root / "functions" / name
    if folder.exists():
        raise NewConsumerError(f"{folder.relative_to(root)} is there already: choose another name")
    if importlib.util.find_spec(name) is not None:
        raise NewConsumerError(f"NAME={name!r} would hide what `import {name}` finds now: choose another name")
    names = Names(name)
    changes = {
        folder / f"{name}.py": names.fill(_HANDLER),
        root / "tests" / "unit" / "functions" / f"test_{name}.py": names.fill(_TEST),
        root / "events" / f"{name}_live.json": (root / "events" / "ride_history_live.json").read_text(),
        root / "events" / "README.md": _samples(root, names),
        root / "template.yaml": _template(root, names),
        root / "pyproject.toml": _paths(root, names),
        **_runbooks(root, names),
    }
    folder.mkdir()
    for path, text in changes.items():
        path.write_text(text, encoding="utf-8")
    return list(changes)


def _template(root: Path, names: Names) -> str:
    """Return the template with the consumer's section, lines on the dashboard and outputs behind those of the model."""
    text = (root / "template.yaml").read_text(encoding="utf-8")
    begin = text.index(f"{_BANNER}  # {_MODEL}\n")
    end = text.index(_BANNER, begin + 2 * len(_BANNER) + len(_MODEL))
    section = text[begin:end]
    if f"  {names.noun}Function:" in text:
        raise NewConsumerError(f"{names.noun}Function is in template.yaml already: choose another name")
    head, comment, rest = section.partition("\n  # Hands every ride event")
    body = names.of(head + comment + rest)
    for lines in _OF_THE_TABLE:
        body = lines.sub("", body)
    body = re.sub(
        r"  # Keeps the read model.*\n", f"  # {names.words.capitalize()}: each event takes effect once.\n", body
    )
    body = body.replace("Description: The read model of every ride.", f"Description: {names.words.capitalize()}.")
    text = text[:end] + body + text[end:]
    text = re.sub(
        r"^ +\[.*\$\{RideHistory.*\n", lambda line: line.group() + names.of(line.group()), text, flags=re.MULTILINE
    )
    outputs = re.findall(r"^  RideHistory\w+:\n(?:    .*\n)+", text[text.index("\nOutputs:\n") :], re.MULTILINE)
    own = names.of("".join(outputs)).replace("Function that keeps the read model", f"Function of {names.words}")
    last = outputs[-1]
    position = text.rindex(last) + len(last)
    return text[:position] + own + text[position:]


def _samples(root: Path, names: Names) -> str:
    """Return the list of samples with a section for the consumer's."""
    text = (root / "events" / "README.md").read_text(encoding="utf-8")
    section = (
        f"## {names.noun}Function\n\n| file | outcome | what happens |\n| --- | --- | --- |\n"
        f"| `{names.module}_live.json` | New | the first event of the ride `order_01` |\n\n"
    )
    return text.replace("## Schemas\n", f"{section}## Schemas\n")


def _paths(root: Path, names: Names) -> str:
    """Return the project's settings with the function's folder among those that tests and types are looked for in."""
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    return text.replace('"functions/ride_history"', f'"functions/ride_history", "functions/{names.module}"')


def _runbooks(root: Path, names: Names) -> dict[Path, str]:
    """Return the runbooks of the consumer's two queues, and the index with both."""
    folder = root / "docs" / "runbooks"
    changes: dict[Path, str] = {}
    for kind, meaning in _MEANING.items():
        page = (folder / f"ride-history-{kind}.md").read_text(encoding="utf-8")
        said = re.compile(r"(?<=\*\*What the alarm means\.\*\* ).*?(?=\n\n)", re.DOTALL)
        changes[folder / f"{names.kebab}-{kind}.md"] = names.of(said.sub(names.fill(meaning), page))
    index = (folder / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[`RideHistory\w*`\].*\n", index, re.MULTILINE)
    last = rows[-1]
    changes[folder / "README.md"] = index.replace(last, last + names.of("".join(rows)))
    return changes


def main() -> None:
    """Make a consumer."""
    parser = argparse.ArgumentParser(prog="make new-consumer NAME=…", description="Add a consumer to the project.")
    parser.add_argument("name", help="in lower case, words joined by underscores: loyalty_points")
    try:
        written = make(parser.parse_args().name)
    except NewConsumerError as error:
        sys.exit(f"error: {error}")
    print("written or changed:")
    print("\n".join(f"  {path.relative_to(ROOT)}" for path in written))
    print("\nIt passes `make test` as it is. docs/add-a-consumer.md says what to do next.")


if __name__ == "__main__":
    main()
