"""`make invoke` as a newcomer runs it."""

import json
import subprocess

import pytest

from local.local_aws import ROOT

SECONDS = 120


@pytest.mark.parametrize(
    ("function", "event", "answer"),
    [
        ("PaymentFunction", "events/payment_live.json", {"outcome": "New"}),
        ("DispatchFunction", "events/dispatch_batch.json", {"batchItemFailures": []}),
        ("CarRideApiFunction", "events/carride_api/book.json", {"statusCode": 201}),
    ],
)
def test_a_function_answers_to_its_sample(function: str, event: str, answer: dict[str, object]) -> None:
    """A function has all that its samples need, the payment gateway included, without any setting."""
    python = str(ROOT / ".venv-dev" / "bin" / "python")
    done = subprocess.run(
        [python, "-m", "local.invoke", function, event],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answered = json.loads(done.stdout)
    assert {name: answered[name] for name in answer} == answer
