"""Asynchronous invocations: a queue, retries under one request id, then the failure's destination.

AWS: an asynchronous event waits in the function's queue. A failed attempt is retried after 1 and then 2 minutes,
`MaximumRetryAttempts` times and at most `MaximumEventAgeInSeconds` long, by the settings of the invoked function,
version or alias; **every attempt has the same request id**. Then the event goes to the `OnFailure` destination in AWS's
record format. Throttling costs no attempt; a full queue refuses the next event.

Stock MiniStack: gives each attempt a new request id, ignores the settings of an alias, and records neither the request
id nor the right count. It invokes an EventBridge target once, on a thread for each event, so that a burst starts a
process for each event and loses events.

Plugs into `lambda_svc.invoke_async_with_retry`, `lambda_svc._invoke`, `eventbridge._dispatch_to_lambda` and
`lambda_svc.reset`. Delays are scaled down; destinations are SQS queues; a function's own `DeadLetterConfig` is ignored.
"""

import json
import logging
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from ministack.core.responses import error_response_json, new_uuid
from ministack.services import eventbridge, lambda_svc, sqs

from local.engine import in_flight, role_clients
from local.engine.queueing import DelayedQueue, QueueFullError
from local.engine.scope import Scope
from local.engine.settings import Settings

_RETRIES = 2
_MAX_AGE_SECONDS = 21_600

_logger = logging.getLogger("local.engine")


@dataclass(slots=True)
class _Event:
    function: str
    qualifier: str | None
    scope: Scope
    payload: Any
    request_id: str = field(default_factory=new_uuid)
    received: float = field(default_factory=time.time)
    attempts: int = 0

    @property
    def arn(self) -> str:
        """The ARN of the invoked function, with its qualifier or ``$LATEST``."""
        account, region = self.scope
        return f"arn:aws:lambda:{region}:{account}:function:{self.function}:{self.qualifier or '$LATEST'}"


class _Functions:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._queues: dict[tuple[Scope, str], DelayedQueue[_Event]] = {}

    def pending(self) -> int:
        return sum(waiting.pending for waiting in self._queues.values())

    def reset(self) -> None:
        queues, self._queues = self._queues, {}
        for waiting in queues.values():
            waiting.close()

    def submit(self, arn: str, payload: Any) -> None:
        """Queue an event for a function.

        Raises:
            QueueFullError: The function has too many events waiting.
        """
        function, qualifier = lambda_svc._lambda_function_name_and_qualifier_from_arn(arn)
        event = _Event(function, qualifier, Scope.current(), payload)
        key = (event.scope, function)
        if key not in self._queues:
            settings = self._settings
            self._queues[key] = DelayedQueue(
                f"async-{function}", self._attempt, workers=settings.workers, limit=settings.queue_limit
            )
        self._queues[key].put(event)

    def _attempt(self, event: _Event) -> float | None:
        """Run an event once; return the seconds until its next attempt, or ``None``."""
        event.scope.enter()
        function = lambda_svc._functions.get(event.function)
        record, config = lambda_svc._effective_func_record_for_qualifier(function, event.qualifier)
        if record is None:
            _logger.warning("%s was deleted; its event %s is dropped", event.arn, event.request_id)
            return None
        rules = _invoke_config(function, event.qualifier)
        slot, _ = lambda_svc._acquire_execution_slot(function, config)
        if slot is None:
            result: dict[str, Any] = {}
            # AWS does not wait for a function that was switched off by a concurrency of 0.
            exhausted = lambda_svc._reserved_concurrency(function, config) == 0
            delay = self._settings.delay(1)
        else:
            event.attempts += 1
            try:
                result = _run(event, record, config)
            finally:
                lambda_svc._release_execution_slot(slot)
            if not result.get("error"):
                return None
            exhausted = event.attempts > rules.get("MaximumRetryAttempts", _RETRIES)
            delay = self._settings.delay(event.attempts)
        too_old = time.time() - event.received + delay > rules.get("MaximumEventAgeInSeconds", _MAX_AGE_SECONDS)
        if exhausted or too_old:
            self._give_up(event, config, rules, "RetriesExhausted" if exhausted else "EventAgeExceeded", result)
            return None
        return delay

    def _give_up(
        self, event: _Event, config: dict[str, Any], rules: dict[str, Any], condition: str, result: dict[str, Any]
    ) -> None:
        destination = rules.get("DestinationConfig", {}).get("OnFailure", {}).get("Destination")
        if not destination:
            _logger.warning("%s has no destination for failures; event %s is dropped", event.arn, event.request_id)
            return
        record = {
            "version": "1.0",
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "requestContext": {
                "requestId": event.request_id,
                "functionArn": event.arn,
                "condition": condition,
                "approximateInvokeCount": event.attempts,
            },
            "requestPayload": event.payload,
        }
        if result:
            record["responseContext"] = {
                "statusCode": 200,
                "executedVersion": config.get("Version", "$LATEST"),
                "functionError": result.get("function_error", "Unhandled"),
            }
            record["responsePayload"] = result["body"]
        # As the function's role, so that a missing permission shows.
        client = role_clients.client(self._settings, "sqs", role=config["Role"], user=event.function)
        try:
            url = sqs._queue_url(destination.rsplit(":", 1)[-1])
            client.send_message(QueueUrl=url, MessageBody=json.dumps(record))
        except (BotoCoreError, ClientError):
            _logger.exception("%s: event %s could not be sent to %s", event.arn, event.request_id, destination)


def _invoke_config(function: dict[str, Any], qualifier: str | None) -> dict[str, Any]:
    """Return the settings of an alias, a version or the function; a template puts the last under ``$LATEST``."""
    found = lambda_svc._event_invoke_config(function, qualifier)
    if found is None and qualifier is None:
        found = lambda_svc._event_invoke_config(function, "$LATEST")
    return found or {}


def _run(event: _Event, record: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    arn = event.arn if event.qualifier else event.arn.removesuffix(":$LATEST")
    running = lambda_svc._execution_record_for_config(record, {**config, "FunctionArn": arn})
    result: dict[str, Any] = lambda_svc._execute_function_dispatch(
        running, running["config"], event.payload, event.request_id, time.time()
    )
    return result


def apply(settings: Settings) -> None:
    """Replace the asynchronous invocation."""
    functions = _Functions(settings)
    stock_answer, stock_reset = lambda_svc._invoke, lambda_svc.reset

    def invoke(function: dict[str, Any], event: Any) -> None:
        config = function.get("config") or function
        functions.submit(config["FunctionArn"], event)

    def dispatch(arn: str, payload: str) -> None:
        functions.submit(arn, json.loads(payload))

    async def answer(*request: Any, **more: Any) -> Any:
        try:
            return await stock_answer(*request, **more)
        except QueueFullError:
            return error_response_json("TooManyRequestsException", "Rate exceeded: too many events are waiting", 429)

    def reset() -> None:
        functions.reset()
        stock_reset()

    lambda_svc._invoke = answer
    lambda_svc.invoke_async_with_retry = invoke
    eventbridge._dispatch_to_lambda = dispatch
    lambda_svc.reset = reset
    in_flight.register("async_events", functions.pending)
