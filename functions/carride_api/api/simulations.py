"""Starts simulations. Loaded by the first request for one."""

import json
import math
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
from botocore.exceptions import BotoCoreError, ClientError

from api.commands import Simulate
from api.policies import LOCK_S, SIMULATION_LOCK
from api.problems import Kind, refused
from carride.clients import lambda_client
from carride.decoding import FieldError
from carride.simulation_spec import LONGEST_LIFE, Spec
from carride.telemetry import logger
from carride_idempotency import Consumer, RetryableError
from carride_idempotency.errors import PayloadMismatchError
from carride_idempotency.stores import Store

_DEFAULT_RIDES: Final = 10
_LONGEST_S: Final = 800  # to publish all events; the simulator may run for 900 seconds
MOST_EVENTS: Final = {"local": 31_000, "dev": 750, "prod": 0}
"""The limit of one simulation, by stage.

In ``dev`` the outbox is provisioned with little capacity. What dispatch and payment tell of 150
rides fits into the burst that it takes at once.
"""


def start(
    command: Simulate,
    name: str,
    *,
    stage: str,
    store: Store,
    now: datetime,
    start_simulator: Callable[[Mapping[str, Any]], None],
) -> dict[str, Any]:
    """Start a simulation, and return the answer.

    In every stage but ``local``, one simulation runs at a time; ``store`` holds the lock. ``name``
    identifies the request: a simulation that starts twice under one name publishes copies of the
    same facts.

    Raises:
        HttpProblemError: the simulation is too large or too slow, or another one is running.
        RetryableError: the simulator was not invoked; the client sends the request again.
    """
    rides = command.rides
    if rides is None and command.duration is None:
        rides = _DEFAULT_RIDES
    seed = command.seed
    if seed is None:
        seed = int(name[:7], 16)
    settled = msgspec.structs.replace(command, rides=rides, seed=seed)
    try:
        _check(Spec(**msgspec.structs.asdict(settled)), MOST_EVENTS[stage])
    except FieldError as error:
        raise refused(Kind.INVALID_FIELD, str(error), field=error.field) from error
    if stage != "local":
        _acquire_lock(name, store)
    request = msgspec.to_builtins(settled) | {"time": now.isoformat()}
    try:
        start_simulator(request)
    except (BotoCoreError, ClientError) as error:
        logger.warning("the simulator was not invoked", exc_info=error)
        raise RetryableError("the simulator was not invoked") from error
    return {"statusCode": 202, "body": request}


def _check(spec: Spec, limit: int) -> None:
    spec.check_end()
    events = most_events(spec)
    if events > limit:
        field = "rides" if spec.duration is None else "duration"
        raise FieldError(field, f"there can be {events} events; at most {limit} are allowed")
    if spec.rate is None:
        return
    seconds = events / spec.rate
    if seconds > _LONGEST_S:
        raise FieldError(
            "rate",
            f"{events} events can take {seconds:.0f} seconds; at most {_LONGEST_S} are allowed",
        )


def most_events(spec: Spec) -> int:
    """Return how many events a simulation has if every ride has the longest life."""
    if spec.rides is not None:
        facts = spec.rides * LONGEST_LIFE
        return facts + round(spec.duplicates * facts)
    filled = (spec.duration or 0) * (spec.rate or 0)
    # The last ride begins before the time is over, and runs to its end.
    return math.ceil(filled) + LONGEST_LIFE + math.ceil(spec.duplicates * LONGEST_LIFE)


def _acquire_lock(name: str, store: Store) -> None:
    """Lock the simulator by the record of one key.

    A retry of the request that holds the lock has the same payload.
    """
    lock = Consumer[None]("carride-api-simulation-lock", store, policy=SIMULATION_LOCK)
    try:
        with lock.operation("lock", name):
            pass
    except PayloadMismatchError as error:
        detail = f"a simulation was started less than {LOCK_S // 60} minutes ago"
        raise refused(Kind.SIMULATION_RUNNING, detail) from error


def invoke(function: str, request: Mapping[str, Any]) -> None:
    """Invoke the simulator asynchronously."""
    lambda_client().invoke(
        FunctionName=function, InvocationType="Event", Payload=json.dumps(request).encode()
    )
