"""`./carride verify`: what only a stack in production shows; tests/pipeline/test_verify.py has the rest."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from urllib3.exceptions import HTTPError

from ops.verify import Deployment, FailedError, Verdict, verify
from ops.verify.checks import CHECKS
from tests.ops.world import stack as ref


def test_an_api_that_does_not_answer_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check fails with it, and the checks after it are run."""
    monkeypatch.setattr("urllib3.request", Mock(side_effect=HTTPError("after 30 s")))
    deployment = Deployment(ref(Mock(), CarRideApiUrl="https://api"))
    deployment.parameters = {"Stage": "dev"}
    with pytest.raises(FailedError, match="does not answer: after 30 s"):
        deployment.request("GET", "/openapi.json", sign=False)


@pytest.mark.parametrize(
    ("stage", "protected", "verdict"),
    [
        ("prod", False, Verdict.FAILED),
        ("prod", True, Verdict.PASSED),
        ("dev", False, Verdict.PASSED),
    ],
)
def test_production_is_protected_from_deletion(
    stage: str, protected: bool, verdict: Verdict
) -> None:
    """Only a stack of stage `prod` has to have termination protection."""
    described = {
        "StackName": "carride",
        "StackStatus": "CREATE_COMPLETE",
        "EnableTerminationProtection": protected,
    }
    described["Parameters"] = [{"ParameterKey": "Stage", "ParameterValue": stage}]
    answers = SimpleNamespace(describe_stacks=lambda **_: {"Stacks": [described]})
    (result,) = verify(Deployment(ref(lambda *_: answers)), CHECKS[:1])
    assert result.verdict is verdict
