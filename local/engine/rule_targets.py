"""Delivery of events to the targets of rules: permissions, retries, dead-letter queues, log groups, named rules.

AWS: a rule calls its target as ``events.amazonaws.com``, so the function's, queue's or log group's policy has to allow
it. If the target is missing or forbids the call, the event goes to the target's dead-letter queue at once. If the
target throttles, the event is retried as the target's `RetryPolicy` says and then goes there. Attributes of the message
name the rule, the target and the reason. A CloudWatch log group can be a target. A replay reaches the rules in its
`Destination.FilterArns`, or all rules if it has none.

Stock MiniStack: checks no policies of functions and queues, logs a missing target, ignores `RetryPolicy`,
`DeadLetterConfig` and `FilterArns`, and has no log groups as targets.

Plugs into `eventbridge._invoke_target` and `eventbridge._dispatch_to_lambda`, over the asynchronous invocation. A
target throttles when a function's asynchronous queue is full.
"""

import json
import logging
import sys
import time
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from ministack.core.iam_evaluator import EvalContext, evaluate_resource_policy
from ministack.services import cloudwatch_logs, eventbridge, lambda_svc, sqs

from local.engine import in_flight
from local.engine.queueing import DelayedQueue, QueueFullError
from local.engine.scope import Scope

_SERVICE = "events.amazonaws.com"
_RETRIES = 185
_MAX_AGE_SECONDS = 86_400
_RETRY_SECONDS = 0.1  # first wait for a throttled target; doubled each time
_LONGEST_RETRY_SECONDS = 5.0

_logger = logging.getLogger("local.engine")
_stock_invoke_target = eventbridge._invoke_target
_throttled: ContextVar[bool] = ContextVar("throttled")  # MiniStack swallows what its dispatch raises


class _RefusedError(Exception):
    """The target cannot take the event; ``code`` is EventBridge's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(slots=True)
class _Delivery:
    target: dict[str, Any]
    event: dict[str, Any]
    rule: dict[str, Any]
    view: Any
    scope: Scope
    started: float
    retries: int = 0

    def attempt(self) -> float | None:
        """Try once; return the seconds until the next try, or ``None``."""
        self.scope.enter()
        try:
            self.deliver()
        except QueueFullError:
            return self._back_off()
        except _RefusedError as refusal:
            self._dead_letter({"ERROR_CODE": refusal.code, "ERROR_MESSAGE": str(refusal)})
        return None

    def deliver(self) -> None:
        """Hand the event over.

        Raises:
            QueueFullError: The target throttles.
            _RefusedError: The target is missing, or does not allow it.
        """
        arn = self.target["Arn"]
        service = arn.split(":")[2]
        if service == "lambda":
            exists = lambda_svc._get_func_record_for_ref(arn)[0] is not None
            self._require(lambda_svc.function_policy_for_arn(arn) if exists else None, "lambda:InvokeFunction")
        elif service == "sqs":
            self._require(sqs.queue_policy_for_arn(arn), "sqs:SendMessage")
        elif service == "logs":
            self._log(arn)
            return
        _throttled.set(False)
        _stock_invoke_target(self.target, self.event, self.rule, self.view)
        if _throttled.get():
            raise QueueFullError(arn)

    def _require(self, policy: Any, action: str) -> None:
        arn = self.target["Arn"]
        if policy is None:
            raise _RefusedError("NO_RESOURCE", f"The target does not exist: {arn}")
        if not self._allows(policy[0], action, arn):
            raise _RefusedError("NO_PERMISSIONS", f"{_SERVICE} may not {action} on {arn} for {self.rule['Arn']}")

    def _allows(self, policy: str | dict[str, Any] | None, action: str, resource: str) -> bool:
        """Return whether a resource's policy lets EventBridge act for the rule; no policy allows nothing."""
        account, region = self.scope
        context = EvalContext(
            principal_arn="",
            principal_type="Service",
            principal_account=account,
            action=action,
            resource_arn=resource,
            region=region,
            secure_transport=True,
            service_context={"aws:sourcearn": self.rule["Arn"], "aws:sourceaccount": account},
        )
        decision: str = evaluate_resource_policy(policy, context, _SERVICE).decision
        return decision == "Allow"

    def _log(self, arn: str) -> None:
        """Store the event as one line of the log group, in a stream named after the rule."""
        group = arn.split(":log-group:", 1)[-1].removesuffix(":*")
        if group not in cloudwatch_logs._log_groups:
            raise _RefusedError("NO_RESOURCE", f"The specified log group does not exist: {group}")
        stream = self.rule["Name"]
        resource = f"{arn.removesuffix(':*')}:log-stream:{stream}"
        documents = [policy["policyDocument"] for policy in cloudwatch_logs._resource_policies.values()]
        names = (resource, f"{arn.removesuffix(':*')}:*")
        if not any(self._allows(document, "logs:PutLogEvents", name) for document in documents for name in names):
            raise _RefusedError("NO_PERMISSIONS", f"no resource policy lets {_SERVICE} write to {group}")
        if stream not in cloudwatch_logs._log_groups[group]["streams"]:
            cloudwatch_logs._create_log_stream({"logGroupName": group, "logStreamName": stream})
        line = json.dumps(self.view.event_with_detail())
        entry = {"timestamp": int(time.time() * 1000), "message": line}
        cloudwatch_logs._put_log_events({"logGroupName": group, "logStreamName": stream, "logEvents": [entry]})

    def _back_off(self) -> float | None:
        policy = self.target.get("RetryPolicy") or {}
        delay: float = min(_RETRY_SECONDS * 2**self.retries, _LONGEST_RETRY_SECONDS)
        if self.retries >= int(policy.get("MaximumRetryAttempts", _RETRIES)):
            exhausted = "MaximumRetryAttempts"
        elif time.time() - self.started + delay > int(policy.get("MaximumEventAgeInSeconds", _MAX_AGE_SECONDS)):
            exhausted = "MaximumEventAgeInSeconds"
        else:
            self.retries += 1
            return delay
        self._dead_letter(
            {
                "ERROR_CODE": "THROTTLING",
                "ERROR_MESSAGE": "the function's asynchronous queue is full",
                "EXHAUSTED_RETRY_CONDITION": exhausted,
            }
        )
        return None

    def _dead_letter(self, why: dict[str, str]) -> None:
        arn: str = (self.target.get("DeadLetterConfig") or {}).get("Arn", "")
        queue: dict[str, Any] = sqs._queue_by_arn(arn) or {}
        if not (queue and self._allows(queue["attributes"].get("Policy"), "sqs:SendMessage", arn)):
            place = f"the dead-letter queue {arn} does not take it" if arn else "the target has no dead-letter queue"
            _logger.error("event %s is lost: %s; %s", self.event["EventId"], why["ERROR_MESSAGE"], place)
            return
        attributes = {
            "RULE_ARN": self.rule["Arn"],
            "TARGET_ARN": self.target["Arn"],
            "RETRY_ATTEMPTS": str(self.retries),
            **why,
        }
        sqs._act_send_message(
            {
                "MessageBody": json.dumps(self.view.event_with_detail()),
                "MessageAttributes": {
                    name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()
                },
            },
            queue["url"],
        )


def apply(_settings: object) -> None:
    """Replace the call of a target."""
    retries = DelayedQueue("rule-retries", _Delivery.attempt, workers=1, limit=sys.maxsize)

    def invoke_target(target: dict[str, Any], event: dict[str, Any], rule: dict[str, Any], view: Any = None) -> None:
        replay = eventbridge._replays.get(event.get("ReplayName")) or {}
        named = replay.get("Destination", {}).get("FilterArns")
        if named and rule["Arn"] not in named:
            return
        view = view or eventbridge._pattern_event_view(event)
        delivery = _Delivery(target, event, rule, view, Scope.current(), time.time())
        delay = delivery.attempt()
        if delay is not None:
            retries.put(delivery, delay)

    submit = eventbridge._dispatch_to_lambda

    def dispatch_to_lambda(arn: str, payload: str) -> None:
        try:
            submit(arn, payload)
        except QueueFullError:
            _throttled.set(True)

    eventbridge._invoke_target = invoke_target
    eventbridge._dispatch_to_lambda = dispatch_to_lambda
    in_flight.register("rule_retries", lambda: retries.pending)
