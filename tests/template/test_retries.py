"""How often each consumer is tried: one table, and the rule that ties its columns."""

import inspect
from typing import Final

import pytest

from carride.consumer import LETTER_RETENTION
from carride.publisher import Publisher
from carride_idempotency import Policy
from ops.audit import evidence
from ops.policies import POLICIES
from tools.transformed import ROOT, named, source

pytestmark = pytest.mark.integration

RESOURCES: Final = source()["Resources"]
CONSUMERS: Final = {each.resources: each.name for each in evidence.CONSUMERS}
"""The service name of each consumer, by the prefix of its resources."""
LONGEST: Final = {"MaximumRetryAttempts": 185, "MaximumEventAgeInSeconds": 86_400}
"""What EventBridge allows at most."""


def policy(consumer: str) -> Policy:
    """Return a consumer's policy."""
    return POLICIES[CONSUMERS[consumer]]


def deliveries(consumer: str) -> tuple[int, str]:
    """Return how often an event is delivered to a consumer, and where it goes then."""
    config = RESOURCES[f"{consumer}Function"]["Properties"].get("EventInvokeConfig")
    if config is not None:
        return 1 + config["MaximumRetryAttempts"], named(
            config["DestinationConfig"]["OnFailure"]["Destination"]
        )
    redrive = RESOURCES[f"{consumer}Queue"]["Properties"]["RedrivePolicy"]
    return redrive["maxReceiveCount"], named(redrive["deadLetterTargetArn"])


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_a_key_has_as_many_attempts_as_its_transport_delivers(consumer: str) -> None:
    """Fewer would quarantine an event that still comes again; more would never be used."""
    attempts = policy(consumer).max_attempts
    times, _ = deliveries(consumer)
    if f"{consumer}Queue" in RESOURCES:
        # A message is received again when another one of its batch crashes.
        assert attempts <= times - 2, (
            f"max_attempts of {consumer}'s Policy is not below maxReceiveCount by two"
        )
    else:
        assert attempts == times, (
            f"max_attempts of {consumer}'s Policy does not match its EventInvokeConfig"
        )


def test_marks_of_letters_last_as_long_as_their_queues_keep_them() -> None:
    """A mark that outlasted its letter would lose a replayed event."""
    queues = [RESOURCES[f"{consumer}Dlq"]["Properties"] for consumer in CONSUMERS]
    assert {queue["MessageRetentionPeriod"] for queue in queues} == {LETTER_RETENTION}


def test_the_table_of_retries_is_that_of_template_and_handlers() -> None:
    """The table in docs/architecture.md has every limit.

    Each target is tried for EventBridge's longest time.
    """
    rules = [
        each["Properties"] for each in RESOURCES.values() if each["Type"] == "AWS::Events::Rule"
    ]
    for rule in rules:
        for target in rule["Targets"]:
            assert target["RetryPolicy"] == LONGEST
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.split("\n## Retries\n")[1].split("\n## ")[0]
    rows = [
        [cell.strip(" `") for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if "| `" in line
    ]
    for name, tries, *limits in rows:
        (consumer,) = (each for each, service in CONSUMERS.items() if service == name)
        times, queue = deliveries(consumer)
        limit = policy(consumer)
        wanted = [times, limit.max_attempts, limit.conflict_reruns, queue]
        assert (tries, limits) == ("185 times in 24 hours", [str(each) for each in wanted]), name
    assert len(rows) >= 3
    stream = RESOURCES["OutboxPipe"]["Properties"]["SourceParameters"]["DynamoDBStreamParameters"]
    hours = stream["MaximumRecordAgeInSeconds"] // 3600
    sends = inspect.signature(Publisher).parameters["max_attempts"].default
    prose = " ".join(section.split())
    assert f"tries a record {stream['MaximumRetryAttempts']} times within {hours} hours" in prose
    assert f"sends an entry {sends} times" in prose
