"""Ask the engine's authorizer: JSON in, a decision for each request out.

It runs on the engine's interpreter, which alone has the authorizer.
"""

import json
import sys

from ministack.core.iam_evaluator import (
    EvalContext,
    evaluate,
    parse_policy_document,
)


def main() -> None:
    """Print whether each request is allowed by its policies, and by its boundary if it has one."""
    answers = []
    for asked in json.load(sys.stdin):
        context = EvalContext(
            principal_arn="arn:aws:sts::123456789012:assumed-role/carride-role/session",
            principal_type="AssumedRole",
            principal_account="123456789012",
            action=asked["action"],
            resource_arn=asked["resource"],
            region="us-east-1",
            service_context={name.lower(): value for name, value in asked["context"].items()},
        )
        policies = [parse_policy_document(each) for each in asked["policies"]]
        limits = [[parse_policy_document(each)] for each in asked["limits"]]
        answers.append(evaluate(context, policies, *limits).decision == "Allow")
    json.dump(answers, sys.stdout)


main()
