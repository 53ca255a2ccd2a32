"""`./carride verify`: what only a stack in production shows; tests/pipeline/test_verify.py has the rest."""

from types import SimpleNamespace

import pytest

from ops.verify import Deployment, Verdict, verify
from ops.verify.checks import CHECKS
from tests.ops.world import stack as ref


@pytest.mark.parametrize(
    ("stage", "protected", "verdict"),
    [("prod", False, Verdict.FAILED), ("prod", True, Verdict.PASSED), ("dev", False, Verdict.PASSED)],
)
def test_production_is_protected_from_deletion(stage: str, protected: bool, verdict: Verdict) -> None:
    """Only a stack of stage `prod` has to have termination protection."""
    described = {"StackName": "carride", "StackStatus": "CREATE_COMPLETE", "EnableTerminationProtection": protected}
    described["Parameters"] = [{"ParameterKey": "Stage", "ParameterValue": stage}]
    answers = SimpleNamespace(describe_stacks=lambda **_: {"Stacks": [described]})
    (result,) = verify(Deployment(ref(lambda *_: answers)), CHECKS[:1])
    assert result.verdict is verdict
