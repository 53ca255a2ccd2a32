"""Lambda's runtime in small: calls a module's handler with the event of each line.

The first line that it prints says that the handler is loaded; the others are answers or errors.
"""

import importlib
import json
import sys

from carride_idempotency.clock import epoch_ms
from carride_idempotency.testing import lambda_context

TIMEOUT_S = 2.0


def main(module: str) -> None:
    """Handle events until the input ends."""
    handler = importlib.import_module(module).handler
    print(json.dumps({"ready": module}), flush=True)
    for line in sys.stdin:
        context = lambda_context(timeout_s=TIMEOUT_S, clock=epoch_ms)
        try:
            said = {"answer": handler(json.loads(line), context)}
        except Exception as error:  # noqa: BLE001 - Lambda reports every error, too
            said = {"error": repr(error)}
        print(json.dumps(said), flush=True)


main(sys.argv[1])
