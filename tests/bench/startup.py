"""Run in a process of its own: what a consumer's idempotency costs at a cold start, beyond its AWS client.

`python startup.py powertools|here|runtime` prints milliseconds of CPU, KiB of memory and the number of modules as JSON.
"""

import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from botocore.session import get_session

# The client that both sides use, and all that botocore imports for it, is there before the clock starts.
CLIENT: Any = get_session().create_client("dynamodb")


def memory_kib() -> int:
    """Return how much memory this process holds."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE") // 1024


def runtime() -> None:
    """Import what comes compiled with Lambda's own runtime."""
    import boto3.dynamodb.types  # noqa: PLC0415 - this is what is measured
    import boto3.session  # noqa: PLC0415, F401 - as above


def powertools() -> None:
    """Import and construct what a handler under Powertools needs."""
    from aws_lambda_powertools.utilities.idempotency import (  # noqa: PLC0415 - this is what is measured
        DynamoDBPersistenceLayer,
        IdempotencyConfig,
        idempotent,
    )

    @idempotent(  # type: ignore[type-var] # its contexts are typed, this one is not used
        persistence_store=DynamoDBPersistenceLayer("Idempotency", boto3_client=CLIENT),
        config=IdempotencyConfig(event_key_jmespath="detail.idempotencyid"),
    )
    def handler(event: dict[str, object], context: object) -> None: ...


def here() -> None:
    """Import and construct what a handler over this layer needs."""
    from idempotency import Consumer, DynamoDBStore  # noqa: PLC0415 - this is what is measured
    from idempotency.stores.transport import BotocoreTransport  # noqa: PLC0415 - as above

    store = DynamoDBStore("Idempotency", transport=BotocoreTransport(CLIENT, 1.5))
    consumer = Consumer("bench", store, key="detail.idempotencyid")

    @consumer.event_handler
    def handler(event: dict[str, object], operation: object) -> None: ...


if __name__ == "__main__":
    side = {"runtime": runtime, "powertools": powertools, "here": here}[sys.argv[1]]
    gc.collect()  # so that the collector's turns come at the same places
    memory_before, modules_before, before = memory_kib(), len(sys.modules), time.process_time()
    side()
    after = time.process_time()
    print(
        json.dumps(
            {
                "ms": (after - before) * 1000,
                "kib": memory_kib() - memory_before,
                "modules": len(sys.modules) - modules_before,
            }
        )
    )
