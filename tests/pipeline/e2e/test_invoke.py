"""`make invoke` as a newcomer runs it."""

import os
import subprocess

import pytest

from local.local_aws import ROOT

pytestmark = pytest.mark.integration

SECONDS = 600


def invoke(function: str, *events: str) -> tuple[int, str]:
    """Run the command, and return its status and what it printed."""
    python = str(ROOT / ".venv-dev" / "bin" / "python")
    command = [
        python,
        "-m",
        "local.invoke",
        function,
        *(f"events/{event}.json" for event in events),
    ]
    alone = os.environ | {"CARRIDE_KEPT": os.devnull}  # whatever stack is kept on this machine
    done = subprocess.run(
        command, cwd=ROOT, env=alone, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("function", "events", "status", "counts"),
    [
        ("PaymentFunction", ["payment_live"], 0, {'"outcome": "New"': 1}),
        pytest.param(
            *("CarRideApiFunction", ["carride_api/book"], 0, {'"statusCode": 201': 1}),
            marks=pytest.mark.thorough,
        ),
        (
            "DispatchFunction",
            ["dispatch_live", "dispatch_batch"],
            0,
            {"batchItemFailures": 2, "dead-lettered, CONTRACT: ": 1},
        ),
        pytest.param(
            *("DispatchFunction", ["reconciler"], 1, {"DispatchFunction failed: ": 1}),
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_functions_answer_to_their_samples(
    function: str, events: list[str], status: int, counts: dict[str, int]
) -> None:
    """A function has all that its samples need, without any setting.

    An event of another function is a sentence.

    Of a batch, the message that breaks the contract is printed with its reason.
    """
    ended, printed = invoke(function, *events)
    assert ended == status
    assert {text: printed.count(text) for text in counts} == counts, printed
    assert "Traceback" not in printed
