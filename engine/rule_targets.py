"""Delivery of events to the targets of rules, with permissions and dead-letter queues.

Stock MiniStack checks no policies of functions and queues, logs a missing target, ignores
`DeadLetterConfig` and the `FilterArns` of a replay, has no log groups as targets, and finds nothing
by an index or a wildcard in a path of `InputPath` or `InputTransformer`. On AWS a rule
calls its target as ``events.amazonaws.com``, which the target's policy has to allow. If the target
is missing or forbids the call, the event goes to the target's dead-letter queue at once, with
attributes that name the rule, the target and the reason.

Here no target throttles, so `RetryPolicy` has nothing to retry.
"""

import json
import logging
import time
from datetime import UTC, datetime
from typing import Any

from ministack.core.iam_evaluator import EvalContext, evaluate_resource_policy
from ministack.services import cloudwatch_logs, eventbridge, lambda_svc, sqs

from engine.json_paths import find
from engine.scope import Scope

_SERVICE = "events.amazonaws.com"

_logger = logging.getLogger("engine")
_stock_invoke_target = eventbridge._invoke_target

type _Dict = dict[str, Any]


class _RefusedError(Exception):
    """The target cannot take the event; ``code`` is EventBridge's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def _invoke_target(target: _Dict, event: _Dict, rule: _Dict, view: Any = None) -> None:
    replay = eventbridge._replays.get(event.get("ReplayName")) or {}
    named = replay.get("Destination", {}).get("FilterArns")
    if named and rule["Arn"] not in named:
        return
    view = view or eventbridge._pattern_event_view(event)
    target = _with_input(target, view)
    arn: str = target["Arn"]
    try:
        match arn.split(":")[2]:
            case "logs":
                _log(arn, rule, view)
                return
            case "lambda":
                exists = lambda_svc._get_func_record_for_ref(arn)[0] is not None
                _require(
                    lambda_svc.function_policy_for_arn(arn) if exists else None,
                    "lambda:InvokeFunction",
                    arn,
                    rule,
                )
            case "sqs":
                _require(sqs.queue_policy_for_arn(arn), "sqs:SendMessage", arn, rule)
        _stock_invoke_target(target, event, rule, view)
    except _RefusedError as refusal:
        _dead_letter(target, rule, view, refusal)


def _with_input(target: _Dict, view: Any) -> _Dict:
    """Return the target with what its ``InputPath`` finds as ``Input``."""
    if "InputPath" not in target:
        return target
    event = view.event_with_detail()
    return {**target, "Input": json.dumps(find(event, target["InputPath"], missing=event))}


def _transformed(transformer: _Dict, rule: _Dict, view: Any) -> str:
    """Return the template of a transformer with its variables replaced by their values."""
    event = view.event_with_detail()
    paths = transformer.get("InputPathsMap", {})
    variables = {name: find(event, path, missing="") for name, path in paths.items()}
    variables |= {
        "aws.events.rule-arn": rule["Arn"],
        "aws.events.rule-name": rule["Name"],
        "aws.events.event": view.envelope(),
        "aws.events.event.json": event,
        "aws.events.event.ingestion-time": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
    }
    rendered: str = eventbridge._render_input_template(transformer["InputTemplate"], variables)
    return rendered


def _require(policy: Any, action: str, arn: str, rule: _Dict) -> None:
    if policy is None:
        raise _RefusedError("NO_RESOURCE", f"The target does not exist: {arn}")
    if not _allows(policy[0], action, arn, rule):
        raise _RefusedError(
            "NO_PERMISSIONS", f"{_SERVICE} may not {action} on {arn} for {rule['Arn']}"
        )


def _allows(policy: str | _Dict | None, action: str, resource: str, rule: _Dict) -> bool:
    """Return whether a resource's policy lets EventBridge act for the rule.

    No policy allows nothing.
    """
    account, region = Scope.current()
    context = EvalContext(
        principal_arn="",
        principal_type="Service",
        principal_account=account,
        action=action,
        resource_arn=resource,
        region=region,
        secure_transport=True,
        service_context={"aws:sourcearn": rule["Arn"], "aws:sourceaccount": account},
    )
    decision: str = evaluate_resource_policy(policy, context, _SERVICE).decision
    return decision == "Allow"


def _log(arn: str, rule: _Dict, view: Any) -> None:
    """Store the event as one line of the log group, in a stream named after the rule."""
    arn = arn.removesuffix(":*")
    stream = rule["Name"]
    group = arn.split(":log-group:", 1)[-1]
    if group not in cloudwatch_logs._log_groups:
        raise _RefusedError("NO_RESOURCE", f"The specified log group does not exist: {group}")
    if not _may_write(arn, stream, rule):
        raise _RefusedError(
            "NO_PERMISSIONS", f"no resource policy lets {_SERVICE} write to {group}"
        )
    if stream not in cloudwatch_logs._log_groups[group]["streams"]:
        cloudwatch_logs._create_log_stream({"logGroupName": group, "logStreamName": stream})
    entry = {"timestamp": int(time.time() * 1000), "message": json.dumps(view.event_with_detail())}
    cloudwatch_logs._put_log_events(
        {"logGroupName": group, "logStreamName": stream, "logEvents": [entry]}
    )


def _may_write(group_arn: str, stream: str, rule: _Dict) -> bool:
    """Return whether a resource policy of the region lets EventBridge write to a stream."""
    resources = (f"{group_arn}:log-stream:{stream}", f"{group_arn}:*")
    for policy in cloudwatch_logs._resource_policies.values():
        document = policy["policyDocument"]
        if any(_allows(document, "logs:PutLogEvents", each, rule) for each in resources):
            return True
    return False


def _dead_letter(target: _Dict, rule: _Dict, view: Any, refusal: _RefusedError) -> None:
    arn: str = (target.get("DeadLetterConfig") or {}).get("Arn", "")
    queue: _Dict = sqs._queue_by_arn(arn) or {}
    if not (queue and _allows(queue["attributes"].get("Policy"), "sqs:SendMessage", arn, rule)):
        place = "the target has no dead-letter queue"
        if arn:
            place = f"the dead-letter queue {arn} does not take it"
        _logger.error("an event is lost: %s; %s", refusal, place)
        return
    attributes = {
        "RULE_ARN": rule["Arn"],
        "TARGET_ARN": target["Arn"],
        "RETRY_ATTEMPTS": "0",
        "ERROR_CODE": refusal.code,
        "ERROR_MESSAGE": str(refusal),
    }
    typed = {
        name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()
    }
    message = {"MessageBody": json.dumps(view.event_with_detail()), "MessageAttributes": typed}
    sqs._act_send_message(message, queue["url"])


def apply(_settings: object) -> None:
    """Replace the call of a target, and what its transformer makes of an event."""
    eventbridge._invoke_target = _invoke_target
    eventbridge._apply_input_transformer = _transformed
