"""Sends dead letters to the target that they were meant for, and releases quarantined keys first, if asked.

A message is deleted after its event was sent. If the command is interrupted in between, the event is sent again, and
consumers recognise it.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from botocore.exceptions import ClientError
from msgspec import Struct

from carride.decoding import FieldError, shaped
from carride.entry import BusEntry
from carride.events import ContractError
from carride.publisher import Outcome, Publisher
from idempotency import DynamoDBStore, Policy
from idempotency import release as release_record
from idempotency.decision import is_corrupt
from idempotency.record import IN_PROGRESS, QUARANTINED, Record
from idempotency.stores.transport import BotocoreTransport
from ops.audit.evidence import CONSUMERS
from ops.audit.queues import UNREADABLE, fact_of, opened, peek
from ops.stack import OperatorError, StackRef

PRODUCER_DLQ: Final = "ProducerDlq"
_ANSWER_SECONDS: Final = 20.0
_HIDDEN_SECONDS: Final = 600
_MANY: Final = 10
_NEEDS_RELEASE: Final = frozenset({"QUARANTINED", "UNKNOWN", "CORRUPT_RECORD"})
"""Reasons that are stored in a key's record: the consumer gives the event up again until the key is released."""
_CRASHED: Final = frozenset({"RetriesExhausted", "ReceivesExhausted"})
"""Reasons of the transport. If attempts under the key crashed, they may be used up, which its record shows."""
_PERMANENT: Final = frozenset({"CONTRACT", "MISSING_KEY", "BEYOND_WINDOW", "PAYLOAD_MISMATCH", UNREADABLE})
"""Reasons that no redrive changes."""


class _Envelope(Struct, rename={"detail_type": "detail-type"}):
    source: str
    detail_type: str
    time: datetime
    detail: Any
    resources: tuple[str, ...] = ()


def waiting(stack: StackRef, queue: str) -> Counter[str]:
    """Count the messages of a dead-letter queue by reason."""
    messages = peek(stack.client("sqs"), _url(stack, queue))
    return Counter(opened(message)[0] for message in messages)


def target_of(stack: StackRef, queue: str) -> str:
    """Return the ARN of the target that a queue's messages were meant for.

    Raises:
        OperatorError: this command does not know the target.
    """
    bus = stack.outputs["CarRideBusName"]
    if queue == PRODUCER_DLQ:
        return str(stack.client("events").describe_event_bus(Name=bus)["Arn"])
    consumers = {f"{each.resources}{kind}": each.resources for each in CONSUMERS for kind in ("Dlq", "RuleDlq")}
    if queue not in consumers:
        raise OperatorError(
            f"{queue} cannot be redriven by this command: it knows {', '.join([*consumers, PRODUCER_DLQ])}; "
            "the page of each queue in docs/runbooks says what to do"
        )
    rule = stack.named("AWS::Events::Rule")[f"{consumers[queue]}Rule"]
    (target,) = stack.client("events").list_targets_by_rule(Rule=rule, EventBusName=bus)["Targets"]
    return str(target["Arn"])


def redrive(stack: StackRef, queue: str, *, release: bool = False) -> Counter[str]:
    """Send the messages of a dead-letter queue to their target. Messages that would return stay in the queue.

    Returns the numbers of accepted messages, as ``sent``, and of those that stayed, by reason. These keep their age.
    With ``release``, quarantined keys are released first.

    Raises:
        OperatorError: the queue cannot be redriven.
    """
    url, target = _url(stack, queue), target_of(stack, queue)
    sqs = stack.client("sqs")
    done: Counter[str] = Counter()
    stayed: list[str] = []
    left = waiting(stack, queue).total()  # messages that return meanwhile are not sent again
    try:
        while left > 0 and (messages := _receive(sqs, url, min(left, _MANY))):
            left -= len(messages)
            stayed += [message["ReceiptHandle"] for message in messages]
            for message in messages:
                why = _why_it_stays(stack, queue, message, release=release) or _send(stack, target, opened(message)[1])
                if why is None:
                    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
                    stayed.remove(message["ReceiptHandle"])
                done[why or "sent"] += 1
    finally:
        for receipt in stayed:
            sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=0)
    return done


def _store(stack: StackRef) -> DynamoDBStore:
    transport = BotocoreTransport(stack.client("dynamodb"), _ANSWER_SECONDS)
    return DynamoDBStore(stack.outputs["IdempotencyTableName"], transport=transport)


def _receive(sqs: Any, url: str, most: int) -> list[Any]:
    request = {"MaxNumberOfMessages": most, "VisibilityTimeout": _HIDDEN_SECONDS, "MessageAttributeNames": ["All"]}
    return list(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=1, **request).get("Messages", []))


def _why_it_stays(stack: StackRef, queue: str, message: Any, *, release: bool) -> str | None:
    """Return why a message must not be sent, or None."""
    reason, event = opened(message)
    if reason in _PERMANENT:
        return reason
    if not isinstance(event, Mapping) or event.get("detail") is None or "detailBytes" in event:
        return "the event is not in it"
    key = _key_to_look_at(queue, reason, message, event)
    if key is not None:
        store = _store(stack)
        record = store.read(key)
        if record is not None and _gives_up(record) and not (release and release_record(store, key)):
            quarantined = record.status == QUARANTINED or is_corrupt(record)
            # The consumer would not process the event.
            return "its key is quarantined" if quarantined else "its attempts are used up"
    return None


def _key_to_look_at(queue: str, reason: str, message: Any, event: Any) -> str | None:
    """Return the key whose record decides whether a message may be sent, or None."""
    if reason in _NEEDS_RELEASE:
        return str(json.loads(message["Body"]).get("key"))
    consumer = next((each.name for each in CONSUMERS if queue == f"{each.resources}Dlq"), None)
    fact = fact_of(event) if reason in _CRASHED else None
    return f"{consumer}#{fact}" if consumer and fact else None


def _gives_up(record: Record) -> bool:
    """Return whether the next delivery of a key is not run. Every consumer has the default number of attempts."""
    used_up = record.status == IN_PROGRESS and record.attempt >= Policy().max_attempts
    return used_up or record.status == QUARANTINED or is_corrupt(record)


def _send(stack: StackRef, arn: str, event: Mapping[str, Any]) -> str | None:
    """Send an event to a target, and return why it was refused, or None."""
    service, name = arn.split(":")[2], arn.rsplit(":", 1)[-1]
    sqs = stack.client("sqs")
    try:
        if service == "lambda":
            stack.client("lambda").invoke(FunctionName=arn, InvocationType="Event", Payload=_json(event))
        elif service == "sqs":
            sqs.send_message(QueueUrl=sqs.get_queue_url(QueueName=name)["QueueUrl"], MessageBody=_json(event))
        else:
            bus, dlq = stack.outputs["CarRideBusName"], stack.outputs[f"{PRODUCER_DLQ}Url"]
            publisher = Publisher(stack.client("events"), sqs, bus, dlq)
            (receipt,) = publisher.put([entry_in(event)], lambda: math.inf)  # `put` makes no second message
            return None if receipt.outcome is Outcome.PUBLISHED else f"refused: {receipt.code}"
    except ContractError as error:
        return f"its {error.field} cannot be read"
    except ClientError as error:
        return f"refused: {error.response['Error']['Code']}"
    return None


def entry_in(event: Mapping[str, Any]) -> BusEntry:
    """Return the entry in a dead letter of the publisher.

    Raises:
        ContractError: a part of the envelope is missing or has another form.
    """
    try:
        envelope = shaped(event, _Envelope)
        time = envelope.time.astimezone(UTC) if envelope.time.tzinfo else envelope.time.replace(tzinfo=UTC)
    except FieldError as error:
        raise ContractError(error.field, error.problem) from error
    except OverflowError as error:
        raise ContractError("time", "not in the calendar of UTC") from error
    return BusEntry(
        source=envelope.source,
        detail_type=envelope.detail_type,
        detail=envelope.detail if isinstance(envelope.detail, str) else _json(envelope.detail),
        time=time,
        resources=envelope.resources,
    )


def _json(event: object) -> str:
    """Return compact JSON in UTF-8, with the two characters that SQS refuses as escapes."""
    text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    return text.replace("\ufffe", r"\ufffe").replace("\uffff", r"\uffff")


def _url(stack: StackRef, queue: str) -> str:
    try:
        return stack.outputs[f"{queue}Url"]
    except KeyError:
        known = sorted(name.removesuffix("Url") for name in stack.outputs if name.endswith("DlqUrl"))
        raise OperatorError(f"the stack has no queue {queue}: it has {', '.join(known)}") from None
