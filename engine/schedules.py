"""Targets of EventBridge Scheduler, which are called with the schedule's role.

Stock MiniStack asks nobody whether the role may call the target. Here schedules are looked at every
second. A target is a function or a queue; MiniStack calls any other without asking. `RetryPolicy`,
`FlexibleTimeWindow` and time zones have no effect.
"""

import logging
from functools import partial
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from ministack.services import eventbridge, scheduler, sqs

from engine import role_clients
from engine.settings import Settings

_SECONDS = 1

_logger = logging.getLogger("engine")

type _Dict = dict[str, Any]


def apply(settings: Settings) -> None:
    """Call the targets of schedules with their roles."""
    scheduler._SCHEDULE_TICK_INTERVAL = _SECONDS
    of_a_rule = eventbridge._invoke_target

    def invoke_target(target: _Dict, event: _Dict, source: _Dict, view: Any = None) -> None:
        service = target["Arn"].split(":")[2]
        if ":schedule/" in source["Arn"] and service in {"lambda", "sqs"}:
            _call(settings, target, source)
        else:
            of_a_rule(target, event, source, view)

    eventbridge._invoke_target = invoke_target


def _call(settings: Settings, target: _Dict, schedule: _Dict) -> None:
    """Hand the schedule's input to its target, or to its dead-letter queue."""
    arn: str = target["Arn"]
    text: str = target.get("Input") or "{}"
    client = partial(
        role_clients.client, settings, role=target["RoleArn"], user=schedule["Arn"].split("/")[-1]
    )
    try:
        if arn.split(":")[2] == "lambda":
            client("lambda").invoke(FunctionName=arn, InvocationType="Event", Payload=text)
        else:
            client("sqs").send_message(QueueUrl=_url(arn), MessageBody=text)
    except (BotoCoreError, ClientError) as error:
        _dead_letter(client, target, text, error)


def _dead_letter(client: Any, target: _Dict, text: str, error: Exception) -> None:
    queue: str = (target.get("DeadLetterConfig") or {}).get("Arn", "")
    if not queue:
        _logger.error("an input is lost: %s; the schedule has no dead-letter queue", error)
        return
    attributes = {"ERROR_MESSAGE": str(error), "TARGET_ARN": target["Arn"]}
    typed = {
        name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()
    }
    try:
        client("sqs").send_message(QueueUrl=_url(queue), MessageBody=text, MessageAttributes=typed)
    except (BotoCoreError, ClientError):
        _logger.exception("an input is lost: %s; %s does not take it", error, queue)


def _url(queue_arn: str) -> str:
    return str(sqs._queue_url(queue_arn.rsplit(":", 1)[-1]))
