"""Keeps the samples in ``events/`` current: their events, and the retries of the template.

An event is written as the types write it today.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from carride.events import ContractError, parse_event
from carride.facts import ALIASES
from tools.contract.layout import compact
from tools.transformed import source


def current(sample: Any) -> Any:
    """Return a sample, or a part of one, with its CloudEvents rewritten, also inside messages.

    Events in the older envelope, those of other producers, and those that break the contract stay
    as they are.
    """
    match sample:
        case {"detail": {"specversion": str()}}:
            return sample | {"detail": _rewritten(sample)}
        case {"functionArn": str(arn), "condition": "RetriesExhausted"}:
            return sample | {"approximateInvokeCount": _deliveries_to(arn)}
        case dict():
            part = {name: current(value) for name, value in sample.items()}
            for body, digest in (("body", "md5OfBody"), ("Body", "MD5OfBody")):
                if digest in part:
                    text = compact(current(json.loads(part[body])))
                    part[body] = text
                    part[digest] = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
            return part
        case list():
            return [current(each) for each in sample]
    return sample


def _rewritten(event: Mapping[str, Any]) -> dict[str, Any]:
    detail: dict[str, Any] = event["detail"]
    if detail["type"] in ALIASES:
        return detail
    try:
        return parse_event(event).to_detail()
    except ContractError:
        return detail


def _deliveries_to(arn: str) -> int:
    """Return how often Lambda delivers an event to a consumer, by an ARN of its function."""
    for name, resource in source()["Resources"].items():
        config = resource.get("Properties", {}).get("EventInvokeConfig")
        if config and f"-{name}" in arn:
            retries: int = config["MaximumRetryAttempts"]
            return 1 + retries
    raise LookupError(f"no consumer has the function {arn}: correct the sample's functionArn")
