"""The events and contexts of the testing helpers are those that AWS sends."""

import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest
from aws_lambda_powertools import Logger
from aws_lambda_powertools.utilities.parser import models

from carride_idempotency import (
    DYNAMODB_STREAM,
    EVENTBRIDGE,
    KAFKA,
    KINESIS,
    SNS,
    SNS_IN_SQS,
    SQS,
    Operation,
    Source,
)
from carride_idempotency.testing import (
    START_MS,
    dynamodb_stream_event,
    eventbridge_event,
    events,
    kafka_event,
    kinesis_event,
    lambda_context,
    sns_event,
    sqs_event,
)
from tests.samples import World

if TYPE_CHECKING:
    from collections.abc import Callable

ORDERS: Final = ({"order": "order-1"}, {"order": "order-2"})
SINGLE: Final[dict[str, tuple[Any, Source, str]]] = {
    "EventBridge": (eventbridge_event(ORDERS[0]), EVENTBRIDGE, "detail.order"),
    "SNS": (sns_event(ORDERS[0]), SNS, "order"),
}
BATCHES: Final[dict[str, tuple[Any, Source, str]]] = {
    "SQS": (sqs_event(*ORDERS), SQS, "order"),
    "SNS in SQS": (
        sqs_event(*[sns_event(order)["Records"][0]["Sns"] for order in ORDERS]),
        SNS_IN_SQS,
        "order",
    ),
    "Kinesis": (kinesis_event(*ORDERS), KINESIS, "order"),
    "Kafka": (kafka_event(*ORDERS), KAFKA, "order"),
    "DynamoDB": (dynamodb_stream_event(*ORDERS, key="order"), DYNAMODB_STREAM, "Keys.order.S"),
}
SHAPES: Final[dict[str, tuple[Any, Any]]] = {
    "EventBridge": (models.EventBridgeModel, eventbridge_event(ORDERS[0])),
    "SNS": (models.SnsModel, sns_event(ORDERS[0])),
    "SQS": (models.SqsModel, sqs_event(*ORDERS)),
    "Kinesis": (models.KinesisDataStreamModel, kinesis_event(*ORDERS)),
    "Kafka": (models.KafkaMskEventModel, kafka_event(*ORDERS)),
    "inserted": (models.DynamoDBStreamModel, dynamodb_stream_event(*ORDERS, key="order")),
}
WHAT_THE_PLUGIN_LOADS: Final = """
import sys, pytest
before = set(sys.modules)
import carride_idempotency.testing.plugin
print(*sorted(set(sys.modules) - before))
"""


@pytest.mark.parametrize(("event", "source", "key"), SINGLE.values(), ids=SINGLE)
def test_an_event_takes_effect_once(world: World, event: Any, source: Source, key: str) -> None:
    """A handler of its source finds the key, and recognises the second delivery."""
    handler = world.consumer(key=key, source=source).event_handler(world.work)
    outcomes = [handler(event, lambda_context(clock=world.clock))["outcome"] for _ in range(2)]
    assert outcomes == ["New", "Duplicate"]


@pytest.mark.parametrize(("event", "source", "key"), BATCHES.values(), ids=BATCHES)
def test_each_record_of_a_batch_takes_effect_once(
    world: World, event: Any, source: Source, key: str
) -> None:
    """A batch handler of its source finds two keys, and recognises the second delivery."""
    keys: list[str] = []

    def work(_: Any, operation: Operation) -> None:
        keys.append(operation.key)

    handler = world.consumer(key=key, source=source).batch_handler(work)
    for _ in range(2):
        assert handler(event, lambda_context(clock=world.clock)) == {"batchItemFailures": []}
    assert sorted(keys) == ["history#order-1", "history#order-2"]


@pytest.mark.parametrize(("model", "event"), SHAPES.values(), ids=SHAPES)
def test_an_event_has_the_shape_of_aws(model: Any, event: Any) -> None:
    """Powertools' models of AWS's events accept it."""
    model.model_validate(event)


def test_a_changed_item_has_the_images_of_its_change() -> None:
    """An update has both images, a removal the old one."""
    old = {"id": "1", "n": 1}
    (updated,) = dynamodb_stream_event({"id": "1", "n": 2}, change="MODIFY", before=old)["Records"]
    (removed,) = dynamodb_stream_event(old, change="REMOVE")["Records"]
    assert updated["dynamodb"]["NewImage"]["n"] == {"N": "2"}
    assert updated["dynamodb"]["OldImage"]["n"] == {"N": "1"}
    assert removed["dynamodb"]["OldImage"]["n"] == {"N": "1"}
    assert "NewImage" not in removed["dynamodb"]


def test_each_item_has_its_own_old_image() -> None:
    """A batch of updates has as many images as items."""
    items = [{"id": "1", "n": 2}, {"id": "2", "n": 9}]
    old = [{"id": "1", "n": 1}, {"id": "2", "n": 8}]
    records = dynamodb_stream_event(*items, change="MODIFY", before=old)["Records"]
    assert [each["dynamodb"]["OldImage"]["n"]["N"] for each in records] == ["1", "8"]
    with pytest.raises(ValueError, match="shorter"):
        dynamodb_stream_event(*items, change="MODIFY", before=old[:1])


BUILDERS: Final[dict[str, tuple[Any, Source]]] = {
    "SQS": (sqs_event, SQS),
    "SNS": (lambda order: {"Records": [sns_event(order)]}, SNS),
    "Kinesis": (kinesis_event, KINESIS),
    "DynamoDB": (
        lambda *orders, **more: dynamodb_stream_event(*orders, key="order", **more),
        DYNAMODB_STREAM,
    ),
    "EventBridge": (lambda order: {"Records": [eventbridge_event(order)]}, EVENTBRIDGE),
    "Kafka": (
        lambda *orders, first=0: kafka_event(*orders, first_offset=first),
        KAFKA,
    ),
}


@pytest.mark.parametrize(("build", "source"), BUILDERS.values(), ids=BUILDERS)
def test_messages_of_two_events_have_different_ids(build: Any, source: Source) -> None:
    """Otherwise they would share a `TRANSPORT_ID` key. A repeated call is a second delivery."""

    def ids(event: Any) -> list[tuple[str, str]]:
        reported = source.failure_id or source.message_id
        return [(source.message_id(raw), str(reported(raw))) for raw in source.records(event)]

    (one,) = ids(build(ORDERS[0]))
    assert ids(build(ORDERS[0])) == [one]
    if source in (SNS, EVENTBRIDGE):
        assert ids(build(ORDERS[1])) != [one]
        return
    if source is not KAFKA:  # there an id is a place
        assert one not in ids(build(ORDERS[1]))
    assert one not in ids(build(ORDERS[0], first=7))
    assert ids(build(ORDERS[1], ORDERS[0], first=6))[1] in ids(build(ORDERS[0], first=7))
    assert len(set(ids(build(ORDERS[0], ORDERS[0])))) == 2


def test_sequence_numbers_grow() -> None:
    """A shard's records are in order."""
    items = [{"id": letter} for letter in "abcdefghijkl"]
    for event in (kinesis_event(*items), dynamodb_stream_event(*items)):
        numbers = [
            int(each.get("kinesis", {}).get("sequenceNumber") or each["dynamodb"]["SequenceNumber"])
            for each in event["Records"]
        ]
        assert numbers == sorted(numbers)


def test_a_context_has_every_attribute_of_lambdas() -> None:
    """Also the method that writes to the function's log."""
    runtime = pytest.importorskip("awslambdaric.lambda_context", reason="Lambda's, on Linux only")
    lambdas = runtime.LambdaContext("request-1", None, None, 0)
    expected = {name for name in dir(lambdas) if not name.startswith("_")}
    assert expected <= set(dir(lambda_context()))


def test_powertools_logger_takes_the_context(capsys: pytest.CaptureFixture[str]) -> None:
    """`inject_lambda_context` finds the function's name, memory and request id in it."""
    logger = Logger(service="test-events")  # "test" is the logger of `carride.telemetry`
    decorate: Callable[[Any], Any] = logger.inject_lambda_context

    def handler(event: Any, context: Any) -> None:
        logger.info("called")

    decorate(handler)({}, lambda_context(function_name="orders"))
    assert '"function_name":"orders"' in capsys.readouterr().out


def test_the_pytest_plugin_loads_nothing_but_itself() -> None:
    """Every run of pytest on the machine loads it, whether its tests use the library or not."""
    command = [sys.executable, "-c", WHAT_THE_PLUGIN_LOADS]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert loaded == [
        "carride_idempotency",
        "carride_idempotency.testing",
        "carride_idempotency.testing.plugin",
    ]


def test_an_event_is_not_older_than_the_present(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer in real time finds it within its window, in any year."""
    years_later_ms = START_MS + 1000 * 86_400_000
    monkeypatch.setattr(events, "epoch_ms", lambda: years_later_ms)
    (record,) = sqs_event({"id": "1"})["Records"]
    assert SQS.sent_ms(record) == years_later_ms
    monkeypatch.setattr(events, "epoch_ms", lambda: 0)
    (record,) = sqs_event({"id": "1"})["Records"]
    assert SQS.sent_ms(record) == START_MS
