"""Measure a whole process of a function over HTTP.

Its cold start with the first event, further events, and duplicates.

`python wire.py here|powertools|shared|bare FUNCTION` reads deliveries and prints CPU time in ms,
wall time in ms, and memory in MiB, as JSON. ``AWS_ENDPOINT_URL`` names the DynamoDB. ``powertools``
is Powertools as its documentation has it; ``shared`` gets one client for everything, set as this
project would set it: without retries of its own, and without validation. ``bare`` is the function
without any protection.
"""

import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import awslambdaric.bootstrap  # type: ignore[import-untyped] # noqa: F401 - Lambda loads it before a function


class Context:
    function_name = "bench"
    aws_request_id = "request"
    invoked_function_arn = "arn:aws:lambda:us-east-1:123456789012:function:bench"

    def get_remaining_time_in_millis(self) -> int:
        return 30_000


def make(side: str, function: str) -> Any:
    """Import a function, on a side, and return its handler."""
    if side == "bare":
        from tests.bench import bare  # noqa: PLC0415 - the import is measured

        stand_in(bare)
    elif side != "here":
        from tests.bench import rival  # noqa: PLC0415 - the import is measured

        if side == "shared":
            from botocore.config import Config  # noqa: PLC0415 - as above
            from botocore.session import get_session  # noqa: PLC0415 - as above

            config = Config(
                retries={"mode": "standard", "total_max_attempts": 1}, parameter_validation=False
            )
            rival.shared = get_session().create_client("dynamodb", config=config)
        from carride_idempotency.stores import default_transport  # noqa: PLC0415 - as above
        from carride_idempotency.stores.transport import BotocoreTransport  # noqa: PLC0415 - as above

        default_transport.dynamodb_transport = lambda: BotocoreTransport(rival.client(), 1.5)
        stand_in(rival)
    return import_module(function).handler


def stand_in(wiring: Any) -> None:
    """Have functions use a wiring in place of this project's."""
    import carride_idempotency  # noqa: PLC0415 - as above

    sys.modules["carride.consumer"] = wiring
    carride_idempotency.Consumer = wiring.Consumer  # type: ignore[misc]
    carride_idempotency.open_store = wiring.Table.opened


def spent(work: Any) -> tuple[float, float]:
    """Return the CPU time and the wall time that work takes, in ms."""
    before = time.process_time(), time.perf_counter()
    work()
    return (time.process_time() - before[0]) * 1e3, (time.perf_counter() - before[1]) * 1e3


if __name__ == "__main__":
    side, function = sys.argv[1:]
    deliveries = json.load(sys.stdin)
    out, sys.stdout = sys.stdout, open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - for the logs
    made: list[Any] = []

    def start() -> None:
        made.append(make(side, function))
        answer = made[0](deliveries[0], Context())
        assert not (answer or {}).get("batchItemFailures"), answer
        assert (answer or {}).get("statusCode", 201) == 201, answer

    cold_ms, _ = spent(start)
    new_ms, wall_ms = spent(lambda: [made[0](each, Context()) for each in deliveries[1:]])
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    del sys.modules[function]
    # Duplicates come to another process, which has no outcome in its memory.
    again = make(side, function)
    again(deliveries[0], Context())
    duplicate_ms, _ = spent(lambda: [again(each, Context()) for each in deliveries[1:]])
    number = len(deliveries) - 1
    memory = pages * os.sysconf("SC_PAGESIZE") / 2**20
    measured = {
        "new": new_ms / number,
        "wall": wall_ms / number,
        "duplicate": duplicate_ms / number,
    }
    assert side not in {"here", "bare"} or "botocore.client" not in sys.modules, (
        "what goes well needs no botocore"
    )
    assert Path(sys.modules["carride_idempotency"].__cached__).exists(), "packages have byte code"
    print(json.dumps({"cold": cold_ms, "memory": memory} | measured), file=out)
