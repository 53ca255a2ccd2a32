"""Records as other clients, emulators and older services send them: what is optional may be absent.

What AWS's reference calls optional says nothing if it is absent, null or a number that stands for
"no time". Only what a message is read from is needed, and its absence is an error with a name.
"""

import base64
import copy
import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pytest

from carride_idempotency import (
    ANY_CALLER,
    DYNAMODB_STREAM,
    EVENTBRIDGE,
    KAFKA,
    KINESIS,
    SNS,
    SNS_IN_SQS,
    SQS,
    TRANSPORT_ID,
    ConfigurationError,
    Operation,
    Source,
)
from carride_idempotency.dead_letters import CONTRACT, MISSING_KEY, PAYLOAD_MISMATCH
from carride_idempotency.errors import BatchFailedError
from carride_idempotency.operators.letters import as_delivered
from carride_idempotency.sources import kafka_position
from carride_idempotency.testing import (
    dynamodb_stream_event,
    eventbridge_event,
    http_event,
    kafka_event,
    kinesis_event,
    sns_event,
    sqs_event,
)
from tests.samples import World, fail_with

ORDER: Final = {"id": "order-1", "n": 7}
FIFO: Final[dict[str, Any]] = {
    "MessageGroupId": "g",
    "MessageDeduplicationId": "d",
    "SequenceNumber": "1",
    "AWSTraceHeader": "Root=1",
    "DeadLetterQueueSourceArn": "arn:aws:sqs:eu-west-1:123456789012:other",
}

type Path = tuple[str | int, ...]


class Sample(NamedTuple):
    """An event of a source, where its message lies, and what must be there to read it."""

    event: dict[str, Any]
    source: Source
    key: str
    is_batch: bool
    needed: frozenset[Path]
    """Fields without which there is no message, or no key. What lies below them counts too."""
    id_in: Path
    """The field of the transport's id."""


SAMPLES: Final[dict[str, Sample]] = {
    "EventBridge": Sample(
        eventbridge_event(ORDER),
        EVENTBRIDGE,
        "detail.id",
        is_batch=False,
        needed=frozenset({("detail",)}),
        id_in=("id",),
    ),
    "SNS": Sample(
        sns_event(ORDER),
        SNS,
        "id",
        is_batch=False,
        needed=frozenset({("Records",), ("Records", 0, "Sns"), ("Records", 0, "Sns", "Message")}),
        id_in=("Records", 0, "Sns", "MessageId"),
    ),
    "SQS": Sample(
        sqs_event(ORDER, **FIFO),
        SQS,
        "id",
        is_batch=True,
        needed=frozenset({("Records",), ("Records", 0, "body")}),
        id_in=("Records", 0, "messageId"),
    ),
    "SNS in SQS": Sample(
        sqs_event(sns_event(ORDER)["Records"][0]["Sns"], **FIFO),
        SNS_IN_SQS,
        "id",
        is_batch=True,
        needed=frozenset({("Records",), ("Records", 0, "body")}),
        id_in=("Records", 0, "messageId"),
    ),
    "Kinesis": Sample(
        kinesis_event(ORDER),
        KINESIS,
        "id",
        is_batch=True,
        needed=frozenset(
            {("Records",), ("Records", 0, "kinesis"), ("Records", 0, "kinesis", "data")}
        ),
        id_in=("Records", 0, "eventID"),
    ),
    "DynamoDB": Sample(
        dynamodb_stream_event(ORDER),
        DYNAMODB_STREAM,
        "NewImage.id.S",
        is_batch=True,
        needed=frozenset(
            {("Records",), ("Records", 0, "dynamodb"), ("Records", 0, "dynamodb", "NewImage")}
        ),
        id_in=("Records", 0, "eventID"),
    ),
    "Kafka": Sample(
        kafka_event(ORDER),
        KAFKA,
        "id",
        is_batch=True,
        needed=frozenset(
            {("records",), ("records", "topic-0"), ("records", "topic-0", 0, "value")}
        ),
        id_in=("records", "topic-0", 0, "offset"),
    ),
}
"""Events with every field that AWS documents."""


def fields_of(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of each field of an event, also of nested ones."""
    entries: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        entries = list(value.items())
    if isinstance(value, list):
        entries = list(enumerate(value))
    for name, content in entries:
        yield (*path, name)
        yield from fields_of(content, (*path, name))


def parent_of(event: Any, path: Path) -> Any:
    for name in path[:-1]:
        event = event[name]
    return event


def dropped(event: Any, path: Path) -> Any:
    """Return an event without a field."""
    changed = copy.deepcopy(event)
    del parent_of(changed, path)[path[-1]]
    return changed


def replaced(event: Any, path: Path, value: object) -> Any:
    """Return an event with another value in a field."""
    changed = copy.deepcopy(event)
    parent_of(changed, path)[path[-1]] = value
    return changed


def is_needed(sample: Sample, path: Path) -> bool:
    """Return whether a field is one without which there is no message, or lies in the message."""
    is_the_message = any(path[: len(needed)] == needed for needed in _contents(sample))
    return is_the_message or path in sample.needed or path[-1] == 0


def _contents(sample: Sample) -> list[Path]:
    """Return the fields that hold the message, whose own fields are the sender's."""
    longest = max(map(len, sample.needed))
    return [path for path in sample.needed if len(path) == longest]


def without_optional_fields(sample: Sample) -> Iterator[tuple[str, Any]]:
    """Yield the event without each of its optional fields, and with null in it, and its name."""
    for path in fields_of(sample.event):
        if not is_needed(sample, path):
            yield f"without {path}", dropped(sample.event, path)
            yield f"null in {path}", replaced(sample.event, path, None)


def without_needed_fields() -> Iterator[Any]:
    """Yield each sample without a field that it needs, and with something else in it."""
    for name, sample in SAMPLES.items():
        for path in sorted(sample.needed, key=str):
            yield pytest.param(sample, dropped(sample.event, path), id=f"{name} without {path}")
            for value in (None, 5):
                changed = replaced(sample.event, path, value)
                yield pytest.param(sample, changed, id=f"{name} {value} in {path}")


def deliver(world: World, sample: Sample, event: Any, **settings: Any) -> Any:
    """Deliver an event to a consumer of its source; return what the handler answers."""
    consumer = world.consumer(**({"key": sample.key, "source": sample.source} | settings))
    decorate = consumer.batch_handler if sample.is_batch else consumer.event_handler
    return decorate(world.work)(event, world.invocation())


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_an_optional_field_that_is_absent_says_nothing(sample: Sample) -> None:
    """Whatever a record lacks besides its message, it runs, and a second delivery is recognised."""
    wrong = {}
    for what, event in without_optional_fields(sample):
        world = World()
        deliver(world, sample, event)
        deliver(world, sample, event)
        outcomes = [seen.outcome for seen in world.seen]
        if (outcomes, world.effects, world.box.letters) != (["New", "Duplicate"], 1, []):
            wrong[what] = outcomes
    assert wrong == {}


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_a_failure_reaches_the_transport_whatever_the_record_lacks(sample: Sample) -> None:
    """The handler's own error is raised: no error about the record replaces it."""
    for what, event in without_optional_fields(sample):
        world = World()
        world.work.step = fail_with(ArithmeticError("no car"))
        with pytest.raises((BatchFailedError, ArithmeticError)) as raised:
            deliver(world, sample, event)
        assert isinstance(raised.value.__cause__ or raised.value, ArithmeticError), what


def of_partitions(*orders: Any) -> dict[str, Any]:
    """Return a batch of a topic: one record in each partition."""
    batch = kafka_event()
    batch["records"] = {}
    for number, order in enumerate(orders):
        batch["records"] |= kafka_event(order, partition=number)["records"]
    return batch


REPORTING: Final = KAFKA._replace(failure_id=kafka_position)
"""Of a mapping with ReportBatchItemFailures."""


TWO: Final[dict[str, tuple[Any, Path]]] = {
    "SQS": (sqs_event, ("Records", 0, "messageId")),
    "Kinesis": (kinesis_event, ("Records", 0, "kinesis", "sequenceNumber")),
    "DynamoDB": (dynamodb_stream_event, ("Records", 0, "dynamodb", "SequenceNumber")),
    "Kafka": (of_partitions, ("records", "topic-0", 0, "offset")),
}


@pytest.mark.parametrize("change", [dropped, lambda event, path: replaced(event, path, None)])
@pytest.mark.parametrize("name", TWO)
def test_a_failed_record_without_a_name_fails_its_batch(
    world: World, name: str, change: Any
) -> None:
    """It cannot be reported, and must not be taken for done beside a neighbour that is."""
    build, path = TWO[name]
    source = REPORTING if name == "Kafka" else SAMPLES[name].source
    handler = world.consumer(key=SAMPLES[name].key, source=source).batch_handler(
        lambda message, operation: fails_for(ORDER["id"], operation)
    )
    with pytest.raises(BatchFailedError, match=r"[12] of 2"):
        handler(change(build(ORDER, ORDER | {"id": "order-2"}), path), world.invocation())


def fails_for(key: object, operation: Operation) -> None:
    if operation.key.endswith(f"#{key}"):
        raise ArithmeticError("no car")


POSITION: Final = {"topic", "partition", "offset", "messageId"}
"""What a letter's record is recognised by, in place of the trigger's name."""


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_a_redrive_delivers_a_record_whatever_it_lacks(sample: Sample) -> None:
    """A letter holds the record alone: it is delivered in a batch of its own trigger."""
    wrong = []
    for what, event in without_optional_fields(sample):
        if any(f"'{field}'" in what for field in POSITION):
            continue
        for record in sample.source.records(event) if sample.is_batch else [event]:
            again = as_delivered(record)
            found = sample.source.records(again) if sample.is_batch else [again]
            if found != [record]:
                wrong.append(what)
    assert wrong == []


@pytest.mark.parametrize(("sample", "event"), [*without_needed_fields()])
def test_what_is_needed_is_named_if_it_is_absent(world: World, sample: Sample, event: Any) -> None:
    """A record without a message is dead-lettered, or refused with what the handler takes."""
    try:
        deliver(world, sample, event)
    except (ConfigurationError, BatchFailedError) as error:
        refused = error.__cause__ if isinstance(error, BatchFailedError) else error
        assert isinstance(refused, ConfigurationError)
        assert world.box.letters == []
    else:
        assert world.reasons in ([CONTRACT], [MISSING_KEY], [])
    assert world.work.runs == []


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_a_record_without_an_id_has_no_transport_id(world: World, sample: Sample) -> None:
    """With `TRANSPORT_ID` as the key, a message without one is refused by name."""
    event = dropped(sample.event, sample.id_in)
    with pytest.raises((ConfigurationError, BatchFailedError)) as raised:
        deliver(world, sample, event, key=TRANSPORT_ID)
    refused = raised.value.__cause__ if sample.is_batch else raised.value
    assert isinstance(refused, ConfigurationError)


NO_TIMES: Final = [
    ("SNS", ("Records", 0, "Sns", "Timestamp"), "1970-01-01T00:00:00.000Z"),
    ("EventBridge", ("time",), "1970-01-01T00:00:00Z"),
    *[("SQS", ("Records", 0, "attributes", "SentTimestamp"), text) for text in ("0", "-1")],
    *[
        ("Kinesis", ("Records", 0, "kinesis", "approximateArrivalTimestamp"), number)
        for number in (0, -1, 0.0)
    ],
    *[
        ("DynamoDB", ("Records", 0, "dynamodb", "ApproximateCreationDateTime"), number)
        for number in (0, -1, 0.0)
    ],
    *[("Kafka", ("records", "topic-0", 0, "timestamp"), number) for number in (0, -1)],
]


@pytest.mark.parametrize(("name", "path", "value"), NO_TIMES)
def test_a_time_that_stands_for_none_says_nothing(
    world: World, name: str, path: Path, value: object
) -> None:
    """Kafka writes -1 for "no time", and others 0: neither is a time beyond the window."""
    sample = SAMPLES[name]
    deliver(world, sample, replaced(sample.event, path, value))
    assert (len(world.work.runs), world.box.letters) == (1, [])


def test_a_receive_count_that_is_not_a_number_says_nothing(world: World) -> None:
    """It only orders the suspects of a crash, and fails no neighbour."""
    count = ("Records", 0, "attributes", "ApproximateReceiveCount")
    deliver(world, SAMPLES["SQS"], replaced(SAMPLES["SQS"].event, count, "often"))
    assert len(world.work.runs) == 1


MARK: Final = "\ufeff"
TEXT: Final = json.dumps(ORDER)
MARKED: Final[dict[str, Any]] = {
    "SNS": sns_event(MARK + TEXT),
    "SQS": sqs_event(MARK + TEXT),
    "SNS in SQS": sqs_event(MARK + json.dumps({"Message": MARK + TEXT})),
    "Kinesis": kinesis_event(MARK + TEXT),
    "Kafka": kafka_event(MARK + TEXT),
}


@pytest.mark.parametrize("name", MARKED)
def test_a_byte_order_mark_is_no_part_of_a_message(world: World, name: str) -> None:
    """A message that begins with one is a copy of the same message without it."""
    sample = SAMPLES[name]
    deliver(world, sample, MARKED[name])
    deliver(world, sample, sample.event)
    assert [seen.outcome for seen in world.seen] == ["New", "Duplicate"]


# ── CloudEvents ───────────────────────────────────────────────────────────────────────────────────

CLOUD_EVENT: Final[dict[str, Any]] = {
    "specversion": "1.0",
    "id": "order-1",
    "source": "/orders",
    "type": "order.placed",
    "time": "2026-11-21T08:00:00Z",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
}
SENT_AGAIN: Final = {
    "time": "2026-11-21T08:00:07Z",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01",
}
CONTENTS: Final[dict[str, dict[str, Any]]] = {
    "data": {"data": {"n": 1}},
    "data_base64": {"data_base64": base64.b64encode(b"\x00\x01").decode()},
    "data is null": {"data": None},
    "no data": {},
}
CARRIERS: Final[dict[str, tuple[str, Any]]] = {
    "a body": ("SQS", sqs_event),
    "EventBridge's detail": ("EventBridge", eventbridge_event),
    "EventBridge's detail in a queue": (
        "SQS",
        lambda detail: sqs_event(eventbridge_event(detail, event_id=detail["time"])),
    ),
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
@pytest.mark.parametrize(("name", "carry"), CARRIERS.values(), ids=CARRIERS)
def test_a_cloud_event_that_is_sent_again_is_a_duplicate(
    world: World, name: str, carry: Any, content: dict[str, Any]
) -> None:
    """Its attributes may change from try to try: what it carries is compared, or nothing."""
    key = "detail.id || id" if name == "SQS" else "detail.id"
    for attributes in ({}, SENT_AGAIN):
        deliver(world, SAMPLES[name], carry(CLOUD_EVENT | content | attributes), key=key)
    assert [seen.outcome for seen in world.seen] == ["New", "Duplicate"]


@pytest.mark.parametrize("content", [CONTENTS["data"], CONTENTS["data_base64"]])
@pytest.mark.parametrize(("name", "carry"), CARRIERS.values(), ids=CARRIERS)
def test_a_cloud_event_with_other_content_is_another_payload(
    world: World, name: str, carry: Any, content: dict[str, Any]
) -> None:
    """What it carries is compared in either form."""
    ((field, _),) = content.items()
    key = "detail.id || id" if name == "SQS" else "detail.id"
    for carried in (content, {field: "b3RoZXI="}):
        deliver(world, SAMPLES[name], carry(CLOUD_EVENT | carried), key=key)
    assert world.reasons == [PAYLOAD_MISMATCH]


def test_a_webhook_that_sends_a_cloud_event_again_gets_the_first_answer(world: World) -> None:
    """The body of a request is compared like a message."""
    keyed = world.consumer(key=lambda request: json.loads(request["body"])["id"])
    handler = keyed.http_handler(caller=ANY_CALLER)(lambda _, __: {"statusCode": 201})
    answers = [
        handler(http_event("POST", "/hooks", CLOUD_EVENT | more), world.invocation())
        for more in ({}, SENT_AGAIN)
    ]
    assert [answer["statusCode"] for answer in answers] == [201, 201]
    assert "Idempotency-Replayed" in answers[1]["headers"]


# ── Events that are not objects ───────────────────────────────────────────────────────────────────

ODD: Final[list[Any]] = [None, 5, 1.5, True, "text", "", [], [1], {}]


@pytest.mark.parametrize("event", ODD, ids=map(repr, ODD))
def test_an_event_that_is_not_an_object_is_a_message_without_a_key(
    world: World, event: Any
) -> None:
    """A synchronous caller may send any JSON: without a key it is dead-lettered, as any other."""
    deliver(world, SAMPLES["EventBridge"], event)
    assert (world.reasons, world.work.runs) == ([MISSING_KEY], [])
    assert world.box.letters[0].event == event


@pytest.mark.parametrize("event", ODD, ids=map(repr, ODD))
def test_an_event_that_is_not_an_object_can_run_unprotected(world: World, event: Any) -> None:
    """Nothing else of it is needed."""
    deliver(world, SAMPLES["EventBridge"], event, policy={"missing_key": "run"})
    assert [seen.outcome for seen in world.seen] == ["Unprotected"]


@pytest.mark.parametrize("event", ODD, ids=map(repr, ODD))
@pytest.mark.parametrize("name", [name for name in SAMPLES if name != "EventBridge"])
def test_a_trigger_that_sends_records_sends_objects(world: World, name: str, event: Any) -> None:
    """Anything else comes from another caller, and is refused with what the handler takes."""
    with pytest.raises(ConfigurationError):
        deliver(world, SAMPLES[name], event)
    assert [seen.outcome for seen in world.seen] == ["Failed"]


@pytest.mark.parametrize("event", ODD, ids=map(repr, ODD))
def test_a_request_is_an_object(world: World, event: Any) -> None:
    """Anything else is refused with what the handler takes."""
    handler = world.consumer().http_handler(caller=ANY_CALLER)(lambda _, __: {"statusCode": 200})
    with pytest.raises(ConfigurationError):
        handler(event, world.invocation())


@pytest.mark.parametrize("record", [each for each in ODD if each != {}], ids=repr)
@pytest.mark.parametrize("name", [name for name, each in SAMPLES.items() if each.is_batch])
def test_a_record_that_is_not_an_object_fails_alone(world: World, name: str, record: Any) -> None:
    """It has no id to be reported by, so its batch comes again; its neighbour is completed."""
    sample = SAMPLES[name]
    event = copy.deepcopy(sample.event)
    records = event["records"]["topic-0"] if name == "Kafka" else event["Records"]
    records.append(record)
    with pytest.raises(BatchFailedError) as raised:
        deliver(world, sample, event)
    assert isinstance(raised.value.__cause__, ConfigurationError)
    assert "New" in [seen.outcome for seen in world.seen]


@pytest.mark.parametrize("message", ["null", "5", '"text"', "[]"])
@pytest.mark.parametrize("name", ["SNS", "SQS", "Kinesis", "Kafka"])
def test_a_message_that_is_not_an_object_has_no_key(world: World, name: str, message: str) -> None:
    """It is dead-lettered as any message without one."""
    build: Any = {
        "SNS": sns_event,
        "SQS": sqs_event,
        "Kinesis": kinesis_event,
        "Kafka": kafka_event,
    }[name]
    deliver(world, SAMPLES[name], build(message))
    assert world.reasons == [MISSING_KEY]


# ── Kafka ─────────────────────────────────────────────────────────────────────────────────────────


def test_kafkas_failed_record_is_reported_by_its_position(world: World) -> None:
    """A mapping with ReportBatchItemFailures takes topic and partition, and the offset."""
    consumer = world.consumer(key="id", source=REPORTING)

    @consumer.batch_handler
    def handler(message: Any, _: Any) -> None:
        if message["id"] == "order-1":
            raise ArithmeticError("no car")

    answer: Any = handler(
        of_partitions(*[{"id": f"order-{number}"} for number in range(3)]), world.invocation()
    )
    assert answer == {
        "batchItemFailures": [{"itemIdentifier": {"partition": "topic-1", "offset": 0}}]
    }


def test_kafkas_records_behind_a_failed_one_wait_for_it(world: World) -> None:
    """A partition keeps its order: what stands behind a failure was not run, and is reported."""
    ran: list[str] = []

    @world.consumer(key="id", source=REPORTING).batch_handler
    def handler(message: Any, _: Any) -> None:
        ran.append(message["id"])
        if message["id"] == "b":
            raise ArithmeticError("no car")

    answer: Any = handler(kafka_event(*[{"id": key} for key in "abc"]), world.invocation())
    offsets = [each["itemIdentifier"]["offset"] for each in answer["batchItemFailures"]]
    assert (ran, offsets) == (["a", "b"], [1, 2])
