"""How long parts of Powertools take to import, which a cold start would pay for."""

import subprocess
import sys
from typing import Final

PARTS: Final = {
    "data classes": "aws_lambda_powertools.utilities.data_classes",
    "Parser": "aws_lambda_powertools.utilities.parser",
    "Batch": "aws_lambda_powertools.utilities.batch",
    "Idempotency": "aws_lambda_powertools.utilities.idempotency",
}
"""The parts whose import ADR 0020 weighs."""
_MEASURED: Final = """
import time, aws_lambda_powertools.logging
begun = time.process_time()
import {}
print((time.process_time() - begun) * 1e3)
"""


def line(repetitions: int) -> str:
    """Return the CPU time of each import after the Logger's: the best of the repetitions."""
    found = [f"{part} {_best(module, repetitions):.0f} ms" for part, module in PARTS.items()]
    return f"imports of Powertools, after its Logger: {', '.join(found)}"


def _best(module: str, repetitions: int) -> float:
    command = [sys.executable, "-c", _MEASURED.format(module)]
    times = [
        float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for _ in range(repetitions)
    ]
    return min(times)
