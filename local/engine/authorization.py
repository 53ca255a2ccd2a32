"""Two decisions in which MiniStack's access control differs from AWS's.

AWS: `SendMessageBatch` needs the permission ``sqs:SendMessage`` (likewise `DeleteMessageBatch` and
`ChangeMessageVisibilityBatch`). Calls arrive over TLS, so a policy that denies everything else denies nothing.

Stock MiniStack: asks for ``sqs:SendMessageBatch``, an action that no policy can name; and counts the laptop's loopback
connection as insecure, so that a TLS-only queue refuses everybody.

Plugs into `iam_actions.extract_iam_action`, `iam_evaluator._request_origin` and `app.pin_request_origin`.
"""

from contextvars import ContextVar
from typing import Any

from ministack import app
from ministack.core import iam_actions, iam_evaluator

_BATCHES = {f"sqs:{name}Batch": f"sqs:{name}" for name in ("SendMessage", "DeleteMessage", "ChangeMessageVisibility")}
_stock_action = iam_actions.extract_iam_action
_stock_pin = iam_evaluator.pin_request_origin


def _action(*request: Any, **more: Any) -> str | None:
    action: str | None = _stock_action(*request, **more)
    return _BATCHES.get(action, action) if action else None


def _pin_request_origin(address: str, _secure: bool) -> None:
    _stock_pin(address, True)


def apply() -> None:
    """Decide as AWS does."""
    iam_actions.extract_iam_action = _action
    iam_evaluator._request_origin = ContextVar("request_origin", default=("127.0.0.1", True))
    app.pin_request_origin = _pin_request_origin
