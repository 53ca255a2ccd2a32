"""The resource policies of queues and functions, as far as checks read them."""

import json
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from ops.verify import Deployment


def lets_in(it: Deployment, target: str, source: str) -> bool:
    """Return whether the policy of a queue or a function admits the ARN of a source."""
    for statement in statements(it, target):
        if statement["Effect"] != "Allow":
            continue
        if any(fnmatchcase(source, each) for each in _sources(statement)):
            return True
    return False


def _sources(statement: Mapping[str, Any]) -> Iterator[str]:
    """Yield the values of a statement's conditions."""
    for condition in statement.get("Condition", {}).values():
        for values in condition.values():
            if isinstance(values, list):
                yield from values
            else:
                yield values


def statements(it: Deployment, arn: str) -> list[dict[str, Any]]:
    """Return the statements of the policy of a queue or a function."""
    is_queue = ":sqs:" in arn
    policy = _policy_of_queue(it, arn) if is_queue else _policy_of_function(it, arn)
    if not policy:
        return []
    document = json.loads(policy)
    return list(document["Statement"])


def _policy_of_queue(it: Deployment, arn: str) -> str:
    sqs = it.client("sqs")
    _, _, name = arn.rpartition(":")
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])
    attributes = found.get("Attributes", {})
    return str(attributes.get("Policy", ""))


def _policy_of_function(it: Deployment, arn: str) -> str:
    functions = it.client("lambda")
    try:
        return str(functions.get_policy(FunctionName=arn)["Policy"])
    except functions.exceptions.ResourceNotFoundException:
        return ""
