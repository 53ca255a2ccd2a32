"""Two decisions in which MiniStack's access control differs from AWS's, and a list of what roles have asked for.

AWS: `SendMessageBatch` needs the permission ``sqs:SendMessage`` (likewise `DeleteMessageBatch` and
`ChangeMessageVisibilityBatch`). Calls arrive over TLS, so a policy that denies everything else denies nothing.

Stock MiniStack: asks for ``sqs:SendMessageBatch``, an action that no policy can name; and counts the laptop's loopback
connection as insecure, so that a TLS-only queue refuses everybody.

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
        # The policy of the resource is evaluated too, and mostly has nothing to say.
        _asked[asked] = _asked.get(asked, False) or result.decision == "Allow"
    return result


def report() -> list[list[str | bool]]:
    """What roles have asked for since the engine started: name of the role, action, resource, and whether it may."""
    return [[*asked, allowed] for asked, allowed in _asked.items()]


def apply() -> None:
    """Decide as AWS does, and remember what was decided on."""
    iam_evaluator.evaluate = _evaluate
    iam_actions.extract_iam_action = _action
    iam_evaluator._request_origin = ContextVar("request_origin", default=("127.0.0.1", True))
    app.pin_request_origin = _pin_request_origin
    control.route("asked", lambda _body: report())
