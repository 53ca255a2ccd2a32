"""Sends dead letters on to where they were going, and nowhere else.

An event is sent before its letter is deleted: interrupted, it is sent again, and recognised.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from carride.entry import Entry
from carride.publisher import Publisher
from idempotency import release as release_key
from idempotency.decision import is_corrupt
from idempotency.record import QUARANTINED
from ops import records
from ops.audit import CONSUMERS, opened, peek
from ops.site import OperatorError, Site

PRODUCERS: Final = "ProducerDlq"
_HIDDEN_SECONDS: Final = 600
_MANY: Final = 10
_NO_DEADLINE_MS: Final = 3_600_000.0
_RELEASED_FIRST: Final = frozenset({"QUARANTINED", "UNKNOWN", "CORRUPT_RECORD"})
"""Reasons that lie in a key's record: the event would be given up again until the key is released."""
_ENDS_HERE_AGAIN: Final = frozenset({"CONTRACT", "MISSING_KEY", "BEYOND_WINDOW", "PAYLOAD_MISMATCH"})
"""Reasons that no redrive changes."""

type Send = Callable[[Mapping[str, Any]], None]


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
        How many were sent, and how many have stayed, by reason.

    Raises:
        OperatorError: the queue is not one that can be redriven, or the keys cannot be released from here.
    """
    consumer = next((each.name for each in CONSUMERS if queue == f"{each.resources}Dlq"), None)
    if release and consumer is not None:
        records.store_of(site, consumer)  # refused before anything is sent
    url, send = _url(site, queue), _sender(site, target_of(site, queue))
    sqs = site.client("sqs")
    done: Counter[str] = Counter()
    stayed: list[str] = []
    left = sum(waiting(site, queue).values())  # what comes back meanwhile is not sent again
    while left > 0 and (messages := _receive(sqs, url, min(left, _MANY))):
        left -= len(messages)
        for message in messages:
            why = _why_it_stays(site, message, release=release)
            if why is None:
                send(opened(message)[1])
                sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            else:
                stayed.append(message["ReceiptHandle"])
            done["sent" if why is None else why] += 1
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
    if reason in _ENDS_HERE_AGAIN:
        return reason
    if not isinstance(event, Mapping) or "detail" not in event or "detailBytes" in event:
        return "the event is not in it"
    if reason in _RELEASED_FIRST:
        key = json.loads(message["Body"])["key"]
        consumer = key.partition("#")[0].partition("/")[0]
        if not records.are_in_reach(site, consumer):
            return "its key may be quarantined in Valkey"
        store = records.store_of(site, consumer)
        record = store.read(key)
        held = record is not None and (record.status == QUARANTINED or is_corrupt(record))
        if held and not (release and release_key(store, key)):
            return "its key is quarantined"  # it would be acknowledged, and the event be nowhere
    return None


def _sender(site: Site, arn: str) -> Send:
    service, name = arn.split(":")[2], arn.rsplit(":", 1)[-1]
    if service == "lambda":
        functions = site.client("lambda")
        return lambda event: functions.invoke(FunctionName=arn, InvocationType="Event", Payload=json.dumps(event))
    sqs = site.client("sqs")
    if service == "sqs":
        url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
        return lambda event: sqs.send_message(QueueUrl=url, MessageBody=json.dumps(event))
    bus, dlq = site.outputs["CarRideBusName"], site.outputs[f"{PRODUCERS}Url"]
    publisher = Publisher(site.client("events"), sqs, bus, dlq)

    def publish(event: Mapping[str, Any]) -> None:
        detail = event["detail"] if isinstance(event["detail"], str) else json.dumps(event["detail"])
        time = datetime.fromisoformat(event["time"])
        entry = Entry(source=event["source"], detail_type=event["detail-type"], detail=detail, time=time)
        publisher.publish([entry], lambda: _NO_DEADLINE_MS)

    return publish


def _url(site: Site, queue: str) -> str:
    try:
        return site.outputs[f"{queue}Url"]
    except KeyError:
        known = sorted(name.removesuffix("Url") for name in site.outputs if name.endswith("DlqUrl"))
        raise OperatorError(f"the stack has no queue {queue}: it has {', '.join(known)}") from None
