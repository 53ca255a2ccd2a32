"""Simulations: what a request may ask for, and how one is started. Loaded by the first request for one."""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta, Struct

from api.problems import Kind, refused
from carride.clients import lambda_client
from carride.decoding import FieldError, json_name
from carride.simulation import Mode, Share, Simulation, Spec
from idempotency import Consumer, Policy
from idempotency.errors import PayloadMismatchError
from idempotency.stores import Store

_DEFAULT_RIDES: Final = 10
_LONGEST_S: Final = 800  # to publish all events: the simulator may run for 900 seconds, so that none is cut off
_LOCK_S: Final = 900  # how long a simulation keeps others from starting: the longest time that one can run
_LOCK: Final = Policy(window=_LOCK_S, max_attempts=1_000)
_MOST_EVENTS: Final = {"local": 31_000, "dev": 3_000, "prod": 0}
"""Of one simulation, by stage. With one every 15 minutes, that is 288,000 a day in ``dev``."""


class Simulate(Struct, frozen=True, kw_only=True, rename=json_name, forbid_unknown_fields=True):
    """Simulate rides; few enough for one call of the simulator."""

    mode: Annotated[Mode, Meta(description="Rides drawn by the seed, or predefined ones.")] = Mode.RANDOM
    rides: Annotated[int, Meta(ge=1, le=500, description="How many; 10 without a duration.")] | None = None
    duration: Annotated[float, Meta(gt=0, le=600, description="Seconds at the rate; instead of rides.")] | None = None
    rate: Annotated[float, Meta(gt=0, le=50, description="Events a second; by default the fastest.")] | None = None
    seed: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    """The same seed gives the same rides; by default it is derived from the idempotency key."""
    duplicates: Share = 0.0
    out_of_order: Share = 0.0
    older: Share = 0.0


class Simulations(NamedTuple):
    """Starts simulations: in the stages other than ``local``, one at a time."""

    stage: str
    store: Store
    """Where the lock is."""
    function: str
    """The name of the simulator's function."""
    start_simulator: Callable[[str, Mapping[str, Any]], None]
    """See `invoke`."""
    now: datetime

    def start(self, command: Simulate, name: str) -> dict[str, Any]:
        """Start a simulation. Started twice under one name it publishes the same facts, which consumers recognise.

        Raises:
            HttpProblemError: it is too large or too slow, or another one is running.
        """
        rides = _DEFAULT_RIDES if command.rides is None and command.duration is None else command.rides
        seed = int(name[:7], 16) if command.seed is None else command.seed
        settled = msgspec.structs.replace(command, rides=rides, seed=seed)
        try:
            self._check(Spec(**msgspec.structs.asdict(settled)))
        except FieldError as error:
            raise refused(Kind.INVALID_FIELD, str(error), field=error.field) from error
        if self.stage != "local":
            self._acquire_lock(name)
        request = msgspec.to_builtins(settled) | {"time": self.now.isoformat()}
        self.start_simulator(self.function, request)
        return {"statusCode": 202, "body": request}

    def _check(self, spec: Spec) -> None:
        spec.check_end()
        most = _MOST_EVENTS[self.stage]
        events = (spec.duration or 0) * (spec.rate or 0)  # it has at least so many
        if events <= most:
            events = len(Simulation(spec, self.now))
        if events > most:
            field = "rides" if spec.duration is None else "duration"
            raise FieldError(field, f"{events:.0f} events are more than {most}")
        if spec.rate is not None and events / spec.rate > _LONGEST_S:
            raise FieldError("rate", f"{events} events take {events / spec.rate:.0f} seconds, not {_LONGEST_S}")

    def _acquire_lock(self, name: str) -> None:
        """Lock the simulator by the record of one key. Retries of the request that holds it have the same payload."""
        lock = Consumer[None]("carride-api-simulation-lock", self.store, policy=_LOCK)
        try:
            with lock.operation("lock", name):
                pass
        except PayloadMismatchError as error:
            detail = f"a simulation was started less than {_LOCK_S // 60} minutes ago"
            raise refused(Kind.SIMULATION_RUNNING, detail) from error


def invoke(function: str, request: Mapping[str, Any]) -> None:
    """Invoke the simulator asynchronously."""
    lambda_client().invoke(FunctionName=function, InvocationType="Event", Payload=json.dumps(request).encode())
