"""Take the idempotency off consumers, for `make chaos ARGS="--unprotected …"`: the audit has to notice it.

The engine runs this file in the process of every function, before the function's own code. The consumers that the
variable ``UNPROTECTED`` names take every delivery for a new operation: each gets a key that no other has.
"""

import functools
import os
import uuid
from typing import Any


def install(unprotected: list[str]) -> None:
    """Have the consumers of these names recognise nothing."""
    try:
        from idempotency import Consumer  # noqa: PLC0415 - found in the function's process only
    except ModuleNotFoundError:  # a function without consumers
        return
    protected: Any = Consumer.__init__

    @functools.wraps(protected)
    def initialise(consumer: Any, name: str, *args: Any, **options: Any) -> None:
        if name in unprotected:
            options["key"] = lambda _event: uuid.uuid4().hex
        protected(consumer, name, *args, **options)

    Consumer.__init__ = initialise  # type: ignore[method-assign,assignment] # on purpose, for this process


if __name__ == "__main__":
    install(os.environ["UNPROTECTED"].split(","))
