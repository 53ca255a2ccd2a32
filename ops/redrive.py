"""Sends dead letters on to where they were going, and nowhere else.

An event is sent before its letter is deleted: interrupted, it is sent again, and recognised.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from botocore.exceptions import ClientError
from msgspec import Struct

from carride.decoding import FieldError, shaped
from carride.entry import BusEntry
from carride.events import ContractError
from carride.publisher import Outcome, Publisher
from idempotency import release as release_key
from idempotency.decision import is_corrupt
from idempotency.record import QUARANTINED
from ops import records
from ops.audit.evidence import CONSUMERS
from ops.audit.queues import UNREADABLE, opened, peek
from ops.site import OperatorError, Site

PRODUCERS: Final = "ProducerDlq"
_HIDDEN_SECONDS: Final = 600
_MANY: Final = 10
_NO_DEADLINE_MS: Final = 3_600_000.0
_RELEASED_FIRST: Final = frozenset({"QUARANTINED", "UNKNOWN", "CORRUPT_RECORD"})
"""Reasons that lie in a key's record: the event would be given up again until the key is released."""
_ENDS_HERE_AGAIN: Final = frozenset({"CONTRACT", "MISSING_KEY", "BEYOND_WINDOW", "PAYLOAD_MISMATCH"})
"""Reasons that no redrive changes."""

type Send = Callable[[Mapping[str, Any]], str | None]
"""Sends an event, and answers why it was not accepted."""


class _Envelope(Struct, rename={"detail_type": "detail-type"}):
    source: str
    detail_type: str
    time: datetime
    detail: Any
    resources: tuple[str, ...] = ()


def waiting(site: Site, queue: str) -> Counter[str]:
    """Return how many letters lie in a queue, by reason."""
    url = _url(site, queue)
    return Counter(opened(message)[0] for message in peek(site.client("sqs"), url))


def target_of(site: Site, queue: str) -> str:
    """Return where a queue's letters were going, as an ARN.

    Raises:
        OperatorError: they go nowhere that this command knows.
    """
    if queue == PRODUCERS:
        arn: str = site.client("events").describe_event_bus(Name=site.outputs["CarRideBusName"])["Arn"]
        return arn
    for consumer in CONSUMERS:
        if queue in {f"{consumer.resources}Dlq", f"{consumer.resources}RuleDlq"}:
            rule = site.named("AWS::Events::Rule")[f"{consumer.resources}Rule"]
            bus = site.outputs["CarRideBusName"]
            (target,) = site.client("events").list_targets_by_rule(Rule=rule, EventBusName=bus)["Targets"]
            return str(target["Arn"])
    known = [f"{consumer.resources}{kind}" for consumer in CONSUMERS for kind in ("Dlq", "RuleDlq")]
    raise OperatorError(
        f"{queue} cannot be redriven by this command: it knows {', '.join([*known, PRODUCERS])}; "
        "the page of each queue in docs/runbooks says what to do"
    )


def redrive(site: Site, queue: str, *, release: bool = False) -> Counter[str]:
    """Send the letters that lie in a queue now on to their target; those that would only come back stay.

    Args:
        site: the stack.
        queue: logical id of the queue.
        release: whether to release the keys that are quarantined.

    Returns:
        How many the target has accepted, as ``sent``, and how many have stayed in the queue, as old as they were, by
        reason.

    Raises:
        OperatorError: the queue is not one that can be redriven.
    """
    url, send = _url(site, queue), _sender(site, target_of(site, queue))
    sqs = site.client("sqs")
    done: Counter[str] = Counter()
    stayed: list[str] = []
    left = sum(waiting(site, queue).values())  # what comes back meanwhile is not sent again
    try:
        while left > 0 and (messages := _receive(sqs, url, min(left, _MANY))):
            left -= len(messages)
            stayed += [message["ReceiptHandle"] for message in messages]
            for message in messages:
                why = _why_it_stays(site, message, release=release) or send(opened(message)[1])
                if why is None:
                    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
                    stayed.remove(message["ReceiptHandle"])
                done[why or "sent"] += 1
    finally:
        for receipt in stayed:
            sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=0)
    return done


def _receive(sqs: Any, url: str, most: int) -> list[Any]:
    answer = sqs.receive_message(
        QueueUrl=url,
        MaxNumberOfMessages=most,
        VisibilityTimeout=_HIDDEN_SECONDS,
        WaitTimeSeconds=1,
        MessageAttributeNames=["All"],
    )
    found: list[Any] = answer.get("Messages", [])
    return found


def _why_it_stays(site: Site, message: Any, *, release: bool) -> str | None:
    """Return why a letter is not sent on, or None where it is."""
    reason, event = opened(message)
    if reason in _ENDS_HERE_AGAIN or reason == UNREADABLE:
        return reason
    if not isinstance(event, Mapping) or event.get("detail") is None or "detailBytes" in event:
        return "the event is not in it"
    if reason in _RELEASED_FIRST:
        key = str(json.loads(message["Body"]).get("key"))
        store = records.store_of(site)
        record = store.read(key)
        held = record is not None and (record.status == QUARANTINED or is_corrupt(record))
        if held and not (release and release_key(store, key)):
            return "its key is quarantined"  # it would be acknowledged, and the event be nowhere
    return None


def _sender(site: Site, arn: str) -> Send:
    service, name = arn.split(":")[2], arn.rsplit(":", 1)[-1]
    sqs = site.client("sqs")
    if service == "lambda":
        invoke = partial(site.client("lambda").invoke, FunctionName=arn, InvocationType="Event")
        return lambda event: _why_refused(lambda: invoke(Payload=_json(event)))
    if service == "sqs":
        send = partial(sqs.send_message, QueueUrl=sqs.get_queue_url(QueueName=name)["QueueUrl"])
        return lambda event: _why_refused(lambda: send(MessageBody=_json(event)))
    bus, dlq = site.outputs["CarRideBusName"], site.outputs[f"{PRODUCERS}Url"]
    publisher = Publisher(site.client("events"), sqs, bus, dlq)

    def publish(event: Mapping[str, Any]) -> str | None:
        try:
            entry = entry_in(event)
        except ContractError as error:
            return f"its {error.field} cannot be read"
        # Its letter is where it is: what the bus refuses needs no second one.
        (receipt,) = publisher.put([entry], lambda: _NO_DEADLINE_MS)
        return None if receipt.outcome is Outcome.PUBLISHED else f"refused: {receipt.code}"

    return publish


def _why_refused(send: Callable[[], object]) -> str | None:
    """Send, and return the code with which AWS refused, if it did."""
    try:
        send()
    except ClientError as error:
        return f"refused: {error.response['Error']['Code']}"
    return None


def entry_in(event: Mapping[str, Any]) -> BusEntry:
    """Return the entry that a letter of the publisher keeps.

    Raises:
        ContractError: a part of the envelope is not there, or has not its form.
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
    """Return JSON in UTF-8, as small as it came, without the two characters of Unicode that SQS refuses."""
    text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    return text.replace("\ufffe", r"\ufffe").replace("\uffff", r"\uffff")


def _url(site: Site, queue: str) -> str:
    try:
        return site.outputs[f"{queue}Url"]
    except KeyError:
        known = sorted(name.removesuffix("Url") for name in site.outputs if name.endswith("DlqUrl"))
        raise OperatorError(f"the stack has no queue {queue}: it has {', '.join(known)}") from None
