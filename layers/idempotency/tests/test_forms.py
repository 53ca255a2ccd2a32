"""The forms of dead letters, each in the shape that its sender's reference shows."""

import base64
import gzip
import json
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any, Final

import pytest
from botocore.session import get_session
from botocore.validate import ParamValidator
from hypothesis import given
from hypothesis import strategies as st

from carride_idempotency.dead_letters import DeadLetter, fifo_ids
from carride_idempotency.operators.forms import content_of
from carride_idempotency.operators.letters import as_delivered, as_message, letter_in
from carride_idempotency.testing import eventbridge_event

EVENT: Final = eventbridge_event({"id": "1"}, event_id="id-1")
SOURCE: Final = "arn:aws:sqs:eu-west-1:111122223333:orders"
LETTER: Final = DeadLetter("QUARANTINED", "ValueError: no", "shop", "shop#VICTIM", 3, EVENT)
BY_SQS: Final = {"DeadLetterQueueSourceArn": SOURCE}
OWN: Final = {"Reason": "QUARANTINED", "Consumer": "shop"}
OF_LAMBDA: Final = {
    "RequestID": "e4b46cbf-b738-xmpl-8880-a18cdf61200e",
    "ErrorCode": "200",
    "ErrorMessage": "Task timed out after 3.00 seconds",
}
OF_A_RULE: Final = {
    "RULE_ARN": "arn:aws:events:eu-west-1:111122223333:rule/orders",
    "TARGET_ARN": "arn:aws:lambda:eu-west-1:111122223333:function:shop",
    "ERROR_CODE": "NO_PERMISSIONS",
    "ERROR_MESSAGE": "Permission denied",
    "EXHAUSTED_RETRY_CONDITION": "MaximumRetryAttempts",
    "RETRY_ATTEMPTS": "0",
}
OF_A_SCHEDULE: Final = {
    "SCHEDULE_ARN": "arn:aws:scheduler:eu-west-1:111122223333:schedule/default/hourly",
    "TARGET_ARN": "arn:aws:lambda:eu-west-1:111122223333:function:shop",
    "ERROR_CODE": "ResourceNotFoundException",
    "ERROR_MESSAGE": "Function not found",
    "EXECUTION_ID": "e5bcaa9c-1",
    "IS_PAYLOAD_TRUNCATED": "false",
    "RETRY_ATTEMPTS": "2",
}
CONTEXT: Final = {
    "requestId": "c9b8fa9f-5a7f-xmpl-af9c-0c604cde93a5",
    "functionArn": "arn:aws:lambda:eu-west-1:111122223333:function:shop",
    "condition": "RetryAttemptsExhausted",
    "approximateInvokeCount": 1,
}
RESPONSE: Final = {"statusCode": 200, "executedVersion": "$LATEST", "functionError": "Unhandled"}
COMMON: Final = {"version": "1.0", "timestamp": "2026-11-14T00:38:06.021Z"}
SHARD: Final = {
    "shardId": "shardId-000000000001",
    "startSequenceNumber": "49601189658422359378836298521827638475320189012309704722",
    "endSequenceNumber": "49601189658422359378836298522902373528957594348623495186",
    "approximateArrivalOfFirstRecord": "2026-11-14T00:38:04.835Z",
    "approximateArrivalOfLastRecord": "2026-11-14T00:38:05.580Z",
    "batchSize": 500,
    "streamArn": "arn:aws:kinesis:eu-west-1:111122223333:stream/mystream",
}
TABLE: Final = SHARD | {"streamArn": "arn:aws:dynamodb:eu-west-1:111122223333:table/t/stream/2026"}
TOPIC: Final = {
    "batchSize": 500,
    "eventSourceArn": "arn:aws:kafka:eu-west-1:111122223333:cluster/c/1",
    "bootstrapServers": "b-1:9098",
    "payloadSize": 2039086,
    "recordsInfo": {
        "orders-0": {"firstRecordOffset": "49601189658422", "lastRecordOffset": "49601189658429"}
    },
}
OF_A_STREAM: Final = {"requestContext": CONTEXT, "responseContext": RESPONSE, **COMMON}
PIPE: Final = {
    "context": {
        "partnerResourceArn": "arn:aws:pipes:eu-west-1:111122223333:pipe/p",
        "condition": "RetryAttemptsExhausted",
    },
    **COMMON,
}
NOTIFICATION: Final = {
    "Type": "Notification",
    "MessageId": "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324",
    "TopicArn": "arn:aws:sns:eu-west-1:111122223333:orders",
    "Message": json.dumps({"id": "1"}),
    "Timestamp": "2026-11-14T00:38:06.021Z",
    "SignatureVersion": "1",
    "Signature": "EXAMPLE",
    "SigningCertURL": "https://sns.eu-west-1.amazonaws.com/c.pem",
    "UnsubscribeURL": "https://sns.eu-west-1.amazonaws.com/?Action=Unsubscribe",
}
PACKED: Final = LETTER.compressed_body()
CALL: Final = LETTER._replace(key="shop/charge#1", event={"args": [], "kwargs": {}})


def message(
    body: object, attributes: Mapping[str, str] | None = None, system: Mapping[str, str] = BY_SQS
) -> dict[str, Any]:
    """Return a message as `ReceiveMessage` returns it. Without ``system`` SQS has moved it."""
    named = {}
    for name, text in (attributes or {}).items():
        kind = "Number" if name in {"ErrorCode", "RETRY_ATTEMPTS"} else "String"
        named[name] = {"StringValue": text, "DataType": kind}
    return {
        "MessageId": "m-1",
        "ReceiptHandle": "r",
        "Body": body if isinstance(body, str) else json.dumps(body),
        "Attributes": {"SentTimestamp": "1770000000000", "ApproximateReceiveCount": "4", **system},
        "MessageAttributes": named,
    }


def sent(body: object, attributes: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a message that was sent to a dead-letter queue."""
    return message(body, attributes, {})


def lasting(number: str) -> str:
    return f"its records stay in {number}"


BETWEEN: Final = (
    f"shardId-000000000001, from sequence number {SHARD['startSequenceNumber']} to "
    f"{SHARD['endSequenceNumber']}"
)
SHAPES: Final[dict[str, tuple[dict[str, Any], str, str, Any, str | None, str]]] = {
    "a consumer's": (sent(LETTER.body(), OWN), "QUARANTINED", "ValueError: no", EVENT,
                     "shop#VICTIM", ""),
    "a consumer's, compressed": (sent(PACKED, OWN), "QUARANTINED", "ValueError: no", EVENT,
                                 "shop#VICTIM", ""),
    "a copy of a consumer's": (sent(LETTER.body()), "QUARANTINED", "ValueError: no", EVENT, None,
                               ""),
    "a copy of a call's": (sent(CALL.body()), "QUARANTINED", "ValueError: no", CALL.event, None,
                           "it holds the arguments of a call"),
    "Lambda's own": (sent(EVENT, OF_LAMBDA), "InvocationFailed",
                     "Task timed out after 3.00 seconds", EVENT, None, ""),
    "a rule's": (sent(EVENT, OF_A_RULE), "NO_PERMISSIONS", "Permission denied", EVENT, None, ""),
    "a schedule's": (sent({"id": "1"}, OF_A_SCHEDULE), "ResourceNotFoundException",
                     "Function not found", {"id": "1"}, None, ""),
    "a schedule's, truncated": (sent('{"id', OF_A_SCHEDULE | {"IS_PAYLOAD_TRUNCATED": "true"}),
                                "ResourceNotFoundException", "Function not found", None, None,
                                "Scheduler has truncated it"),
    "an asynchronous invocation's": (
        sent({**COMMON, "requestContext": CONTEXT | {"condition": "RetriesExhausted"},
              "requestPayload": EVENT, "responseContext": RESPONSE,
              "responsePayload": {"errorMessage": "no host", "errorType": "OSError"}}),
        "RetriesExhausted", "OSError: no host", EVENT, None, ""),
    "of a Kinesis stream": (sent({**OF_A_STREAM, "KinesisBatchInfo": SHARD}),
                            "RetryAttemptsExhausted", "", None, None,
                            lasting(f"{SHARD['streamArn']}, {BETWEEN}")),
    "of a table's stream": (sent({**OF_A_STREAM, "DDBStreamBatchInfo": TABLE}),
                            "RetryAttemptsExhausted", "", None, None,
                            lasting(f"{TABLE['streamArn']}, {BETWEEN}")),
    "of a Kafka topic": (sent({**OF_A_STREAM, "KafkaBatchInfo": TOPIC}),
                         "RetryAttemptsExhausted", "", None, None,
                         lasting(f"{TOPIC['eventSourceArn']}, orders-0, from offset "
                                 "49601189658422 to 49601189658429")),
    "a pipe's": (sent({**PIPE, "KinesisBatchInfo": SHARD}), "RetryAttemptsExhausted", "", None,
                 None, lasting(f"{SHARD['streamArn']}, {BETWEEN}")),
    "a topic's": (sent(NOTIFICATION), "Undelivered", "",
                  {"EventSource": "aws:sns", "EventVersion": "1.0", "Sns": NOTIFICATION}, None, ""),
    "anybody's, with a context": (
        sent({"context": {"condition": "rain"}}), "UnknownSender", "",
        {"context": {"condition": "rain"}}, None, ""),
    "anybody's, with the context of a request": (
        sent({"requestContext": {"condition": "rain"}}), "UnknownSender", "",
        {"requestContext": {"condition": "rain"}}, None, ""),
    "anybody's": (sent({"id": "1"}), "UnknownSender", "", {"id": "1"}, None, ""),
    "no JSON": (sent("no json"), "UNREADABLE", "", None, None, "the event is not in it"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "reason", "error", "event", "key", "unusable"), SHAPES.values(), ids=SHAPES
)
def test_a_letter_says_what_its_sender_says(
    given: dict[str, Any], reason: str, error: str, event: Any, key: str | None, unusable: str
) -> None:
    """Reason, error, event and key are where the sender of this form puts them."""
    found = content_of(given)
    assert (found.reason, found.error, found.event, found.key) == (reason, error, event, key)
    assert unusable in (found.unusable or "")
    assert bool(unusable) is bool(found.unusable)


@pytest.mark.parametrize("text", ["no json", LETTER.body(), json.dumps(EVENT)])
@pytest.mark.parametrize(
    "attributes",
    [{}, OWN, OF_LAMBDA, OF_A_RULE, OF_A_SCHEDULE | OWN],
    ids="+".join,
)
def test_whatever_a_producer_writes_sqs_says_who_sent_a_letter(
    text: str, attributes: dict[str, str]
) -> None:
    """A message that was moved here names no key, and goes as it was to the queue it came from."""
    found = letter_in(message(text, attributes))
    assert (found.reason, found.consumer, found.key) == ("ReceivesExhausted", None, None)
    assert as_message(found.event)["MessageBody"] == text
    (record,) = as_delivered(found.event)["Records"]
    assert (record["body"], record["eventSourceARN"]) == (text, SOURCE)
    assert "ApproximateReceiveCount" not in record["attributes"]


@pytest.mark.parametrize("given", [each[0] for each in SHAPES.values()], ids=SHAPES)
def test_no_other_form_names_a_key_that_a_producer_wrote(given: dict[str, Any]) -> None:
    """A letter of the victim's in the place of the event frees nothing."""
    attributes = {
        name: value["StringValue"]
        for name, value in given["MessageAttributes"].items()
        if name not in OWN
    }
    letter = json.loads(LETTER.body())
    for body in (letter, {"requestContext": CONTEXT, "requestPayload": letter}):
        assert content_of(sent(body, attributes)).key is None


@pytest.mark.parametrize(
    ("attributes", "fields"),
    [
        ({"Reason": "QUARANTINED", "Consumer": "other"}, {}),
        ({"Reason": "UNKNOWN", "Consumer": "shop"}, {}),
        (OWN, {"key": "shopping#1"}),
        (OWN, {"key": "other#1"}),
        (OWN, {"key": 7}),
    ],
)
def test_a_consumers_letter_names_no_key_of_another_one(
    attributes: dict[str, str], fields: dict[str, Any]
) -> None:
    """Attributes, body and key have to agree on whose letter it is."""
    body = json.loads(LETTER.body()) | fields
    assert content_of(sent(body, attributes)).key is None


def test_two_errors_of_a_function_are_two_groups() -> None:
    """A time-out and a division by zero have one code, and different causes."""
    zero = OF_LAMBDA | {"ErrorMessage": "division by zero"}
    assert letter_in(sent(EVENT, OF_LAMBDA)).group != letter_in(sent(EVENT, zero)).group


@pytest.mark.parametrize(
    "packed",
    ["", "no base64", base64.b64encode(b"no gzip").decode(),
     base64.b64encode(gzip.compress(b'{"id": 1}')[:-9]).decode(),
     base64.b64encode(gzip.compress(b"[" * 2**27)).decode()],
    ids=["empty", "text", "bytes", "cut", "a bomb"],
)  # fmt: skip
def test_a_damaged_event_is_not_in_its_letter(packed: str) -> None:
    """Its letter is shown, and stays."""
    body = json.loads(LETTER.body()) | {"event": None, "eventGzip": packed}
    found = content_of(sent(body, OWN))
    assert (found.reason, found.event, found.unusable) == (
        "QUARANTINED",
        None,
        "the event is not in it",
    )


def test_a_message_that_was_moved_keeps_its_attributes_and_group() -> None:
    """It goes back as the message that it was."""
    given = message("text", {"colour": "red"}, BY_SQS | {"MessageGroupId": "g"})
    given["MessageAttributes"]["picture"] = {"BinaryValue": b"hi", "DataType": "Binary"}
    assert as_message(letter_in(given).event) == {
        "MessageBody": "text",
        "MessageAttributes": {
            "colour": {"DataType": "String", "StringValue": "red"},
            "picture": {"DataType": "Binary", "BinaryValue": b"hi"},
        },
        "MessageGroupId": "g",
    }


def test_a_queue_gets_the_notification_of_a_topic() -> None:
    """That is what a topic sends to a queue that has subscribed to it."""
    found = letter_in(sent(NOTIFICATION))
    assert json.loads(as_message(found.event)["MessageBody"]) == NOTIFICATION


OWN_EVENTS: Final[dict[str, dict[str, Any]]] = {
    "a mail": {"messageId": "7", "body": "hello", "to": "x"},
    "another queue's": {"messageId": "7", "body": "hello", "eventSource": "mail"},
    "numbers": {"messageId": 1, "body": {"a": 1}, "eventSource": "aws:sqs"},
    "a place": {"topic": "x", "partition": 2, "offset": 3},
    "a place of numbers": {"topic": 1, "partition": 2, "offset": 3, "cluster": 5},
    "a table": {"dynamodb": "rides", "kinesis": None},
}


@pytest.mark.parametrize("event", OWN_EVENTS.values(), ids=OWN_EVENTS)
def test_an_event_with_the_names_of_a_record_is_the_functions_own(event: dict[str, Any]) -> None:
    """It is delivered as it was, and no batch of it."""
    found = letter_in(sent(event))
    assert found.unusable is None
    assert as_delivered(found.event) == event
    assert json.loads(as_message(found.event)["MessageBody"]) == event


OF_SQS: Final = {"messageId": "1", "body": "x", "eventSource": "aws:sqs"}
NO_MESSAGES: Final[dict[str, dict[str, Any]]] = {
    "an attribute without a type": OF_SQS | {"messageAttributes": {"a": {}}},
    "an attribute without a value": OF_SQS | {"messageAttributes": {"a": {"dataType": "Binary"}}},
    "no base64": OF_SQS
    | {"messageAttributes": {"a": {"dataType": "Binary", "binaryValue": "\u00e9"}}},
    "attributes in a text": OF_SQS | {"messageAttributes": "s"},
    "an empty body": OF_SQS | {"body": ""},
    "half a character": OF_SQS | {"body": "\ud800"},
}


@pytest.mark.parametrize("event", NO_MESSAGES.values(), ids=NO_MESSAGES)
def test_an_event_that_no_message_can_be_like_stays(event: dict[str, Any]) -> None:
    """That is known before anything is sent."""
    assert "is no message of a queue" in str(letter_in(sent(event)).unusable)


def nested(depth: int) -> Any:
    """Return the letter of a notification with so many levels."""
    text = json.dumps(NOTIFICATION).removesuffix("}")
    return letter_in(sent(f'{text}, "x": {"[" * depth}{"]" * depth}}}'))


def test_an_event_that_becomes_too_deep_in_its_batch_stays() -> None:
    """It can just be read, and not be written with the levels of its batch around it."""
    unread = bisect_left(range(50_000), True, key=lambda depth: nested(depth).event is None)
    while nested(unread).event is not None:  # without a caller in C it may be some levels more
        unread += 1
    assert unread > 100
    for depth in range(unread - 5, unread):
        found = nested(depth)
        if found.unusable is None:
            json.dumps(as_delivered(found.event))
            as_message(found.event)


SQS_MODEL: Final = get_session().get_service_model("sqs")
SENDING: Final[Any] = SQS_MODEL.operation_model("SendMessage").input_shape
SCALARS: Final = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
ANYTHING: Final = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
ATTRIBUTE: Final = st.fixed_dictionaries(
    {},
    optional={
        "dataType": st.sampled_from(["String", "Binary", "Binary.png", ""]) | ANYTHING,
        "stringValue": ANYTHING,
        "binaryValue": st.just("aGk=") | ANYTHING,
    },
)
HOSTILE: Final = st.fixed_dictionaries(
    {},
    optional={
        "messageId": st.just("1") | ANYTHING,
        "body": st.just("x") | ANYTHING,
        "eventSource": st.just("aws:sqs") | ANYTHING,
        "eventSourceARN": st.just(SOURCE) | ANYTHING,
        "messageAttributes": st.dictionaries(st.text(max_size=2), ATTRIBUTE | ANYTHING) | ANYTHING,
        "attributes": st.fixed_dictionaries({"MessageGroupId": ANYTHING}) | ANYTHING,
        "topic": ANYTHING,
        "partition": ANYTHING,
        "offset": ANYTHING,
        "cluster": ANYTHING,
        "Sns": st.just(NOTIFICATION) | ANYTHING,
        "kinesis": ANYTHING,
        "dynamodb": ANYTHING,
    },
)


@given(HOSTILE)
def test_whatever_a_producer_writes_a_letter_goes_or_stays(event: dict[str, Any]) -> None:
    """Sending one that goes raises no error: the letters behind it would wait for ever."""
    found = letter_in(sent(event))
    if found.unusable is not None:
        return
    json.dumps(as_delivered(found.event))
    message_sent = {"QueueUrl": "q.fifo", **as_message(found.event)}
    message_sent |= fifo_ids("q.fifo", found.event, found.id)
    problems = ParamValidator().validate(message_sent, SENDING)
    assert not problems.has_errors(), problems.generate_report()
    message_sent["MessageBody"].encode()
