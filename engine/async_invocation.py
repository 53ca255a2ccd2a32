"""Asynchronous invocations: a queue, retries under one request id, then the failure's destination.

Stock MiniStack gives each attempt of an event a new request id, where **on AWS all have the same**,
ignores the settings of an alias, and records in the OnFailure destination neither the request id
nor the right count. It invokes an EventBridge target once, on a thread for each event, so that a
burst starts a process for each event and loses events. On AWS an event waits in the function's
queue, and throttling costs it no attempt.

Here delays are scaled down and no event becomes too old; destinations are SQS queues; a function's
own `DeadLetterConfig` is ignored.
"""

import json
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ministack.core.responses import new_uuid
from ministack.services import eventbridge, lambda_svc

from engine import control, role_clients
from engine.clock import later
from engine.scope import Scope
from engine.settings import Settings

_RETRIES = 2

_logger = logging.getLogger("engine")


@dataclass(slots=True)
class _Event:
    function: str
    qualifier: str | None
    scope: Scope
    payload: Any
    request_id: str = field(default_factory=new_uuid)
    attempts: int = 0

    @property
    def arn(self) -> str:
        account, region = self.scope
        qualifier = self.qualifier or "$LATEST"
        return f"arn:aws:lambda:{region}:{account}:function:{self.function}:{qualifier}"


class _Functions:
    """The events of every function, each on a bounded number of threads."""

    def __init__(self, settings: Settings) -> None:
        # Request ids of events that are queued, waiting for a retry or in hand.
        self.unfinished: set[str] = set()
        self._settings = settings
        self._threads: dict[tuple[Scope, str], ThreadPoolExecutor] = {}
        self._lock = threading.Lock()

    def reset(self) -> None:
        """Drop every event. One in hand is finished and does not come back."""
        with self._lock:
            for threads in self._threads.values():
                threads.shutdown(wait=False, cancel_futures=True)
            self._threads = {}
            self.unfinished = set()

    def submit(self, arn: str, payload: Any) -> None:
        function, qualifier = lambda_svc._lambda_function_name_and_qualifier_from_arn(arn)
        event = _Event(function, qualifier, Scope.current(), payload)
        self.unfinished.add(event.request_id)
        self._queue(event)

    def _queue(self, event: _Event) -> None:
        key = (event.scope, event.function)
        with self._lock:
            if event.request_id in self.unfinished:
                if key not in self._threads:
                    self._threads[key] = ThreadPoolExecutor(
                        self._settings.workers, f"async-{event.function}"
                    )
                self._threads[key].submit(self._work, event)

    def _work(self, event: _Event) -> None:
        event.scope.enter()
        delay = None
        try:
            delay = self._attempt(event)
        except Exception:  # the thread goes on to serve others
            _logger.exception("%s: event %s was given up", event.arn, event.request_id)
        if delay is None:
            self.unfinished.discard(event.request_id)
        else:
            later(delay, self._queue, event)

    def _attempt(self, event: _Event) -> float | None:
        """Run an event once; return the seconds until its next attempt, or ``None``."""
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
        else:
            event.attempts += 1
            try:
                result = _run(event, record, config)
            finally:
                lambda_svc._release_execution_slot(slot)
            if not result.get("error"):
                return None
            exhausted = event.attempts > rules.get("MaximumRetryAttempts", _RETRIES)
        if exhausted:
            self._give_up(event, config, rules, result)
            return None
        return self._settings.delay(max(1, event.attempts))

    def _give_up(
        self, event: _Event, config: dict[str, Any], rules: dict[str, Any], result: dict[str, Any]
    ) -> None:
        record: dict[str, Any] = {
            "requestContext": {
                "requestId": event.request_id,
                "functionArn": event.arn,
                "condition": "RetriesExhausted",
                "approximateInvokeCount": event.attempts,
            },
            "requestPayload": event.payload,
        }
        if result:
            record["responseContext"] = {
                "statusCode": 200,
                "executedVersion": config.get("Version", "$LATEST"),
                "functionError": "Unhandled",
            }
            record["responsePayload"] = result["body"]
        destination = rules.get("DestinationConfig", {}).get("OnFailure", {}).get("Destination")
        # As the function's role, so that a missing permission shows.
        role_clients.dead_letter(
            self._settings, destination, record, role=config["Role"], user=event.function
        )


def _invoke_config(function: dict[str, Any], qualifier: str | None) -> dict[str, Any]:
    """Return the settings of an alias, a version or the function.

    A template puts the last under ``$LATEST``.
    """
    found = lambda_svc._event_invoke_config(function, qualifier)
    if found is None and qualifier is None:
        found = lambda_svc._event_invoke_config(function, "$LATEST")
    return found or {}


def _run(event: _Event, record: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    arn = event.arn
    if not event.qualifier:
        arn = arn.removesuffix(":$LATEST")
    named = {**config, "FunctionArn": arn}
    running = lambda_svc._execution_record_for_config(record, named)
    began = time.time()
    result: dict[str, Any] = lambda_svc._execute_function_dispatch(
        running, running["config"], event.payload, event.request_id, began
    )
    return result


def apply(settings: Settings) -> None:
    """Replace the asynchronous invocation."""
    functions = _Functions(settings)
    stock_reset = lambda_svc.reset

    def invoke(function: dict[str, Any], event: Any) -> None:
        functions.submit((function.get("config") or function)["FunctionArn"], event)

    def reset() -> None:
        functions.reset()
        stock_reset()

    lambda_svc.invoke_async_with_retry = invoke
    eventbridge._dispatch_to_lambda = lambda arn, payload: functions.submit(
        arn, json.loads(payload)
    )
    lambda_svc.reset = reset
    control.count_work("async_events", lambda: len(functions.unfinished))
