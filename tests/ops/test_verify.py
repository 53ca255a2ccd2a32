"""`./carride verify`: what only a stack in production shows; tests/pipeline/test_verify.py has the rest."""

from typing import Any
from unittest.mock import create_autospec

import pytest

from ops.stack import StackRef
from ops.verify import Deployment, Verdict, verify
from ops.verify.checks import CHECKS


@pytest.mark.parametrize(
    ("stage", "protected", "verdict"),
    [("prod", False, Verdict.FAILED), ("prod", True, Verdict.PASSED), ("dev", False, Verdict.PASSED)],
)
def test_production_is_protected_from_deletion(stage: str, protected: bool, verdict: Verdict) -> None:
    """Only a stack of stage `prod` has to have termination protection."""
    described: dict[str, Any] = {
        "StackName": "carride",
        "StackStatus": "CREATE_COMPLETE",
        "EnableTerminationProtection": protected,
        "Parameters": [{"ParameterKey": "Stage", "ParameterValue": stage}],
    }
    stack = create_autospec(StackRef, instance=True)
    stack.name = "carride"
    stack.named.return_value = {}
    stack.describe.return_value = described
    stack.client.return_value.describe_stacks.return_value = {"Stacks": [described]}
    (result,) = verify(Deployment(stack), CHECKS[:1])
    assert result.verdict is verdict
