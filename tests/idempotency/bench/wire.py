"""Measure a whole process of each side over HTTP: its cold start with the first event, further events, and duplicates.

`python wire.py powertools|shared|here` prints CPU time in ms and µs, and memory in MiB, as JSON. ``AWS_ENDPOINT_URL``
names the DynamoDB. ``powertools`` is Powertools as its documentation has it; ``shared`` gets the client that this
project would give it: without retries of its own, and without validation.
"""

import copy
import json
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any

EVENTS = 200
_EVENT = json.loads((Path(__file__).parents[3] / "events/ride_history_live.json").read_text(encoding="utf-8"))


class Context:
    """What Lambda gives to a handler."""

    function_name = "bench"
    aws_request_id = "request"

    def get_remaining_time_in_millis(self) -> int:
        """Return the time that is left."""
        return 30_000


def make(side: str) -> Any:
    """Import a side, and make its handler."""
    if side == "here":
        from idempotency import Consumer, DynamoDBStore, Policy  # noqa: PLC0415 - the import is measured

        policy = Policy(warm_cache=0)
        consumer = Consumer("bench", DynamoDBStore("Idempotency"), key="detail.idempotencyid", policy=policy)
        return consumer.event_handler(lambda event, operation: {"accepted": True})
    from aws_lambda_powertools.utilities import idempotency as theirs  # noqa: PLC0415 - as above

    client: Any = None
    if side == "shared":
        from botocore.config import Config  # noqa: PLC0415 - as above
        from botocore.session import get_session  # noqa: PLC0415 - as above

        config = Config(retries={"mode": "standard", "total_max_attempts": 1}, parameter_validation=False)
        client = get_session().create_client("dynamodb", config=config)
    layer = theirs.DynamoDBPersistenceLayer("Idempotency", key_attr="idempotencyKey", boto3_client=client)
    checked = theirs.IdempotencyConfig(
        event_key_jmespath="detail.idempotencyid", payload_validation_jmespath="detail.data"
    )
    return theirs.idempotent(persistence_store=layer, config=checked)(lambda event, context: {"accepted": True})


def events() -> list[dict[str, Any]]:
    """Return events with ids of their own."""
    made = [copy.deepcopy(_EVENT) for _ in range(EVENTS)]
    for each in made:
        each["detail"]["idempotencyid"] = str(uuid.uuid4())
    return made


def spent(work: Any) -> float:
    """Return the CPU time that work takes, in seconds."""
    before = time.process_time()
    work()
    return time.process_time() - before


if __name__ == "__main__":
    first, *others = events()
    made: list[Any] = []

    def start() -> None:
        """Make the handler, and handle the first event."""
        made.append(make(sys.argv[1]))
        made[0](first, Context())

    cold = spent(start)
    new, duplicate = (spent(lambda: [made[0](each, Context()) for each in others]) / len(others) for _ in range(2))
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    memory = pages * os.sysconf("SC_PAGESIZE") / 2**20
    print(json.dumps({"cold": cold * 1e3, "new": new * 1e6, "duplicate": duplicate * 1e6, "memory": memory}))
