"""Permissions for batches of SQS, policies that demand TLS, and the list of roles' requests.

AWS: `SendMessageBatch` needs the permission ``sqs:SendMessage`` (likewise `DeleteMessageBatch` and
`ChangeMessageVisibilityBatch`). Calls arrive over TLS, so a TLS-only policy denies nothing.

Stock MiniStack: asks for ``sqs:SendMessageBatch``, an action that no policy can name; and counts loopback as
insecure, so that a TLS-only queue refuses every caller.

Plugs into `iam_actions.extract_iam_action`, `iam_evaluator._request_origin` and `app.pin_request_origin`. Every
decision passes `iam_evaluator.evaluate`, where the list is kept; ``GET /_engine/asked`` answers it.
"""

from contextvars import ContextVar
from typing import Any

from ministack import app
from ministack.core import iam_actions, iam_evaluator

from local.engine import control

_BATCHES = {f"sqs:{name}Batch": f"sqs:{name}" for name in ("SendMessage", "DeleteMessage", "ChangeMessageVisibility")}
_stock_action = iam_actions.extract_iam_action
_stock_pin = iam_evaluator.pin_request_origin
_stock_evaluate = iam_evaluator.evaluate

_asked: dict[tuple[str, str, str], bool] = {}
"""Whether a role's action on a resource was allowed."""


def _action(*request: Any, **more: Any) -> str | None:
    action: str | None = _stock_action(*request, **more)
    return _BATCHES.get(action, action) if action else None


def _pin_request_origin(address: str, _secure: bool) -> None:
    _stock_pin(address, True)


def _evaluate(context: Any, *policies: Any) -> Any:
    result = _stock_evaluate(context, *policies)
    _, is_role, role = context.principal_arn.partition(":assumed-role/")
    if is_role:
        asked = (role.partition("/")[0], context.action, context.resource_arn)
        # The resource's policy is evaluated too, and mostly neither allows nor denies.
        _asked[asked] = _asked.get(asked, False) or result.decision == "Allow"
    return result


def apply(_settings: object) -> None:
    """Decide as AWS does, and keep the list."""
    iam_evaluator.evaluate = _evaluate
    iam_actions.extract_iam_action = _action
    iam_evaluator._request_origin = ContextVar("request_origin", default=("127.0.0.1", True))
    app.pin_request_origin = _pin_request_origin
    control.route("asked", lambda _body: [[*asked, allowed] for asked, allowed in _asked.items()])
