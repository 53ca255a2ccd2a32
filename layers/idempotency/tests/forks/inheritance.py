"""Prints what a forked child still shares with its parent, and has both go on.

`test_forks.py` starts it: ``inheritance.py URL``, with the URL of a server that is DynamoDB and SQS
and gives out credentials.
"""

import asyncio
import gc
import os
import signal
import socket
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from threading import Lock, RLock
from typing import Any, Final

from botocore.client import BaseClient

from carride_idempotency import (
    AsyncOperation,
    Consumer,
    DynamoDBStore,
    MemoryStore,
    Policy,
    SqsDeadLetters,
    Store,
    open_store,
)
from carride_idempotency.clock import epoch_ms
from carride_idempotency.stores.lean import Guarded, LeanTransport
from carride_idempotency.stores.signing import ContainerCredentials
from carride_idempotency.stores.transport import botocore_transport
from carride_idempotency.testing import eventbridge_event, lambda_context

PATIENCE_S: Final = 120
OF_ONE_PROCESS: Final = (type(Lock()), type(RLock()), Executor, socket.socket, asyncio.Runner)
PACKAGE: Final = "carride_idempotency"

type Belongings = list[tuple[str, object]]


def belongings() -> Belongings:
    """Return what belongs to one process, of all that the library holds, with its name."""
    found: Belongings = []
    for name, module in sys.modules.items():
        if name.startswith(PACKAGE):
            found += _of(name, vars(module))
    for each in gc.get_objects():
        if isinstance(each, BaseClient):
            found += _of_client(each)
        elif type(each).__module__.startswith(PACKAGE) and hasattr(each, "__dict__"):
            found += _of(type(each).__name__, vars(each))
    return found


def _of(holder: str, attributes: dict[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in attributes.items():
        for each in [*value] if isinstance(value, list | deque) else [value]:
            if isinstance(each, OF_ONE_PROCESS):
                yield f"{holder}.{name}", each


def _of_client(client: Any) -> Belongings:
    connections = client._endpoint.http_session._manager.pools  # noqa: SLF001 - nothing public has it
    lock = client._request_signer._credentials._refresh_lock  # noqa: SLF001 - as above
    return [("botocore's connections", connections), ("botocore's credentials", lock)]


def handlers(url: str) -> list[Callable[[str], object]]:
    """Return functions that use everything that a process can keep."""
    timeouts: dict[str, Any] = {"connect_timeout_s": PATIENCE_S, "read_timeout_s": PATIENCE_S}
    credentials = ContainerCredentials(f"{url}/credentials", {}, epoch_ms)
    lean = LeanTransport(url, "us-east-1", credentials, **timeouts)
    stores: list[Store] = [
        MemoryStore(),
        DynamoDBStore("Records", transport=Guarded(lean, botocore_transport)),
        DynamoDBStore("Records", transport=botocore_transport(**timeouts)),
    ]
    return [*map(handler_over, stores, ("memory", "lean", "botocore"), [f"{url}/queue"] * 3)]


def handler_over(store: Store, name: str, queue: str) -> Callable[[str], object]:
    """Return what delivers a key to a handler, to a function in a loop, and to a full queue."""
    policy = Policy(max_attempts=1)
    consumer: Consumer = Consumer(
        name, store, key="detail.id", policy=policy, dead_letters=SqsDeadLetters(queue)
    )

    @consumer.event_handler
    async def handler(event: Any, operation: AsyncOperation) -> None:
        # Another thread must be able to wake the loop up.
        await asyncio.get_running_loop().run_in_executor(None, str)
        if event["detail"]["id"].startswith("poison"):
            raise ValueError(operation.key)

    @consumer.function(key="key")
    async def function(key: str) -> str:
        return key

    def use(key: str) -> None:
        for each in (key, f"poison-{key}"):
            handler(eventbridge_event({"id": each}), lambda_context())
        assert asyncio.run(function(key)) == key

    return use


def main(url: str) -> None:
    """Use everything, fork, and use everything again in both processes."""
    warnings.simplefilter("ignore", DeprecationWarning)  # about forks of a process with threads
    signal.alarm(PATIENCE_S)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ.pop(name, None)
    os.environ["AWS_ENDPOINT_URL"] = url
    os.environ["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = f"{url}/credentials"
    ways = handlers(url)
    cluster = open_store("valkey://127.0.0.1:1?cluster=true")
    for use in ways:
        use("before the fork")
    of_the_parent = belongings()
    child = os.fork()
    if not child:
        signal.alarm(PATIENCE_S)
        mine = {id(each) for _, each in belongings()}
        for name, each in of_the_parent:
            if id(each) in mine:
                print(name, flush=True)
    for use in ways:
        use(f"by {child}")
    if child:
        _, status = os.waitpid(child, 0)
        for use in ways:
            use("after the child's end")
        print(f"{len(of_the_parent)} belongings; the child ended with {status}")
    del cluster


if __name__ == "__main__":
    main(*sys.argv[1:])
