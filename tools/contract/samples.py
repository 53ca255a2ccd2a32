"""Keeps the sample events in ``events/`` current.

Writes each event in them as the types write it today.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from carride.events import ContractError, parse_event
from tools.contract.layout import compact


def current(sample: Any) -> Any:
    """Return a sample, or a part of one, with its CloudEvents rewritten, also inside messages.

    Events in the older envelope, and those that break the contract, stay as they are.
    """
    match sample:
        case {"detail": {"specversion": str()}}:
            return sample | {"detail": _rewritten(sample)}
        case dict():
            part = {name: current(value) for name, value in sample.items()}
            for body, digest in (("body", "md5OfBody"), ("Body", "MD5OfBody")):
                if digest in part:
                    part[body] = compact(current(json.loads(part[body])))
                    part[digest] = hashlib.md5(
                        part[body].encode(), usedforsecurity=False
                    ).hexdigest()
            return part
        case list():
            return [current(each) for each in sample]
    return sample


def _rewritten(event: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return parse_event(event).to_detail()
    except ContractError:
        detail: dict[str, Any] = event["detail"]
        return detail
