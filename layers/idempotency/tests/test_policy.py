"""Each setting of a policy, at its limits."""

import inspect
from dataclasses import fields
from typing import Any

import pytest

from carride_idempotency import ConfigurationError, Operation, Policy
from carride_idempotency.protocol.operation import AnyOperation

LIMITS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"window": 2}, {"window": 1}),  # the clock skew is 1 second
    ({"window": 900}, {"window": 900.5}),
    ({"max_attempts": 1}, {"max_attempts": 0}),
    ({"on_crash": "quarantine"}, {"on_crash": "ignore"}),
    ({"atomic": True}, {"on_crash": "quarantine", "atomic": True}),
    ({"missing_key": "run"}, {"missing_key": "default"}),
    ({"lease": 3}, {"lease": 2.9}),
    ({"lease": 900}, {"lease": 901}),
    ({"margin": 0}, {"margin": -0.1}),
    ({"clock_skew": 0}, {"clock_skew": -0.1}),
    ({"reserve": 0}, {"reserve": -0.1}),
    ({"busy": "wait"}, {"busy": "fail"}),
    ({"wait_limit": 900}, {"wait_limit": 901}),
    ({"wait_limit": 0.1}, {"wait_limit": 0}),
    ({"conflict_reruns": 0}, {"conflict_reruns": -1}),
    ({"max_result_bytes": 0}, {"max_result_bytes": -1}),
    ({"max_result_bytes": 380_000}, {"max_result_bytes": 380_001}),
    ({"concurrency": 1}, {"concurrency": 0}),
    ({"warm_cache": 0}, {"warm_cache": -1}),
    ({"warm_seconds": 0}, {"warm_seconds": -1}),
    ({"warm_seconds": 300}, {"warm_seconds": 300.1}),
]


@pytest.mark.parametrize(("allowed", "refused"), LIMITS, ids=str)
def test_limit_is_allowed_and_what_is_beyond_it_is_not(
    allowed: dict[str, Any], refused: dict[str, Any]
) -> None:
    """Each setting is refused just beyond its limit, by an error that names it."""
    Policy(**allowed)
    name = next(iter(refused))
    with pytest.raises(ConfigurationError, match=name):
        Policy(**refused)


def test_help_explains_each_setting_and_attribute() -> None:
    """`help` shows a class's docstring, and no text below a field."""
    settings = [field.name for field in fields(Policy)]
    attributes = [name for name in AnyOperation.__annotations__ if not name.startswith("_")]
    for kind, names in ((Policy, settings), (Operation, attributes)):
        text = inspect.getdoc(kind) or ""
        assert [name for name in names if f"\n    {name}: " not in text] == []
