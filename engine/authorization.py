"""Permissions for batches of SQS, policies that demand TLS, boundaries, and roles' requests.

Stock MiniStack asks for ``sqs:SendMessageBatch``, an action that no policy can name, where AWS asks
for ``sqs:SendMessage``, and likewise for other batches. It counts loopback as insecure, so that a
TLS-only queue refuses every caller. It drops the permissions boundary of a role in a template.
"""

from contextvars import ContextVar
from typing import Any

from ministack import app
from ministack.core import iam_actions, iam_evaluator
from ministack.services import iam

from engine import control
from engine.cloudformation import Properties, extend

_BATCHES = {
    f"sqs:{name}Batch": f"sqs:{name}"
    for name in ("SendMessage", "DeleteMessage", "ChangeMessageVisibility")
}


def _bound(role: str, properties: Properties) -> None:
    iam._roles[role]["PermissionsBoundary"] = properties.get("PermissionsBoundary")


def apply(_settings: object) -> None:
    """Decide as AWS does, and keep the list, which ``GET /_engine/asked`` answers."""
    stock_action = iam_actions.extract_iam_action
    stock_evaluate = iam_evaluator.evaluate
    pin = iam_evaluator.pin_request_origin
    # Role, action and resource, and whether it was allowed.
    asked: dict[tuple[str, str, str], bool] = {}

    def extract_iam_action(*request: Any, **more: Any) -> str | None:
        found: str | None = stock_action(*request, **more)
        return _BATCHES.get(found, found) if found else None

    def recorded(context: Any, *policies: Any) -> Any:
        _, is_role, session = context.principal_arn.partition(":assumed-role/")
        role = session.partition("/")[0]
        result = stock_evaluate(context, *policies)
        if is_role:
            key = (role, context.action, context.resource_arn)
            # The resource's policy is evaluated too, and mostly neither allows nor denies.
            asked[key] = asked.get(key, False) or result.decision == "Allow"
        return result

    extend("AWS::IAM::Role", _bound)
    iam_actions.extract_iam_action = extract_iam_action
    iam_evaluator.evaluate = recorded
    iam_evaluator._request_origin = ContextVar("request_origin", default=("127.0.0.1", True))
    app.pin_request_origin = lambda address, _secure: pin(address, True)
    control.route("asked", lambda _body: [[*key, allowed] for key, allowed in asked.items()])
