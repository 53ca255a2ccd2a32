"""`make invoke` as a newcomer runs it."""

import json
import os
import subprocess

import pytest

from local.local_aws import ROOT

SECONDS = 120


def invoke(function: str, *events: str) -> tuple[int, str]:
    """Run the command, and return its status and what it printed."""
    python = str(ROOT / ".venv-dev" / "bin" / "python")
    command = [python, "-m", "local.invoke", function, *(f"events/{event}.json" for event in events)]
    alone = os.environ | {"CARRIDE_KEPT": os.devnull}  # whatever stack is kept on this machine
    done = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True, timeout=SECONDS, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("function", "event", "answer"),
    [
        ("PaymentFunction", "payment_live", {"outcome": "New"}),
        ("CarRideApiFunction", "carride_api/book", {"statusCode": 201}),
    ],
)
def test_a_function_answers_to_its_sample(function: str, event: str, answer: dict[str, object]) -> None:
    """A function has all that its samples need, the payment gateway included, without any setting."""
    status, printed = invoke(function, event)
    assert status == 0
    assert answer.items() <= json.loads(printed).items()


def test_events_meet_the_tables_of_earlier_events_and_dead_letters_are_printed() -> None:
    """A copy is a duplicate; of a batch, the message that breaks the contract is printed with its reason."""
    status, printed = invoke("DispatchFunction", "dispatch_live", "dispatch_batch")
    assert status == 0
    assert printed.count("batchItemFailures") == 2
    assert printed.count("dead-lettered, CONTRACT: ") == 1


def test_an_event_of_another_function_is_a_sentence() -> None:
    """A wrong pairing fails, and prints the error without a traceback."""
    status, printed = invoke("DispatchFunction", "reconciler")
    assert status == 1
    assert "DispatchFunction failed: " in printed
    assert "Traceback" not in printed
