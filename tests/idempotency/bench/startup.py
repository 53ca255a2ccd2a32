"""Measure a consumer's cold start in a new process, beyond its AWS client.

`python startup.py powertools|here` prints milliseconds of CPU, KiB of memory and the number of modules as JSON.
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


def start(side: str) -> None:
    """Import and construct what a handler of this side needs."""
    if side == "powertools":
        from aws_lambda_powertools.utilities import idempotency as theirs  # noqa: PLC0415 - the import is measured

        layer = theirs.DynamoDBPersistenceLayer("Idempotency", boto3_client=CLIENT)
        config = theirs.IdempotencyConfig(event_key_jmespath="detail.idempotencyid")
        decorate: Any = theirs.idempotent(persistence_store=layer, config=config)
        decorate(lambda event, context: None)
    else:
        from idempotency import Consumer, DynamoDBStore  # noqa: PLC0415 - as above
        from idempotency.stores.transport import BotocoreTransport  # noqa: PLC0415 - as above

        store = DynamoDBStore("Idempotency", transport=BotocoreTransport(CLIENT, 1.5))
        Consumer("bench", store, key="detail.idempotencyid").event_handler(lambda event, operation: None)


if __name__ == "__main__":
    gc.collect()  # so that the collector's turns come at the same places
    memory_before, modules_before, before = memory_kib(), len(sys.modules), time.process_time()
    start(sys.argv[1])
    ms, kib, modules = (time.process_time() - before) * 1000, memory_kib() - memory_before, len(sys.modules)
    print(json.dumps({"ms": ms, "kib": kib, "modules": modules - modules_before}))
