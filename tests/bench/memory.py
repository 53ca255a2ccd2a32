"""How much memory a record takes in Valkey: ``python -m tests.bench.memory``, where a server is installed."""

import sys
import uuid
from typing import Any, Final

from idempotency import Consumer
from idempotency.clock import epoch_ms
from idempotency.stores.valkey import ValkeyStore
from idempotency.testing import Invocation
from local import valkey_server

RECORDS: Final = 2_000


def bytes_a_record(installed: str) -> float:
    """Return what the completed record of an event without a result takes, on a server of its own.

    Args:
        installed: where the server is, as `valkey_server.program` has found it.
    """
    with valkey_server.running(installed) as port, valkey_server.client(port, timeout_s=5) as client:
        consumer: Consumer[dict[str, Any]] = Consumer(
            "ride-history", ValkeyStore(client), key=lambda event: event["id"], region="us-east-1"
        )
        handler = consumer.event_handler(lambda event, operation: None)
        empty = client.info("memory")["used_memory"]
        for _ in range(RECORDS):
            handler({"id": str(uuid.uuid4())}, Invocation(epoch_ms, request_id=str(uuid.uuid4())))
        used: int = client.info("memory")["used_memory"] - empty
        return used / RECORDS


if __name__ == "__main__":
    program = valkey_server.program()
    if program is None:
        sys.exit("error: install valkey-server or redis-server, and run this again")
    print(f"{bytes_a_record(program):.0f} bytes a record")
