"""Whether a resource's own policy lets an AWS service act on it."""

from typing import Any

from ministack.core.iam_evaluator import EvalContext, evaluate_resource_policy

from local.engine.scope import Scope


def allows(policy: str | dict[str, Any] | None, action: str, resource: str, *, service: str, source: str) -> bool:
    """Evaluate a resource policy as AWS does when one of its services calls on behalf of a resource.

    Args:
        policy: The policy of the resource; none allows nothing.
        action: What the service wants to do, as in ``sqs:SendMessage``.
        resource: ARN of the resource.
        service: The caller's principal, as in ``events.amazonaws.com``.
        source: ARN of the resource on whose behalf it calls (``aws:SourceArn``).
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
        service_context={"aws:sourcearn": source, "aws:sourceaccount": account},
    )
    decision: str = evaluate_resource_policy(policy, context, service).decision
    return decision == "Allow"
