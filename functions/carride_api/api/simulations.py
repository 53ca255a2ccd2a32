"""Simulations: what a request may ask for, and how one is started. Loaded by the first request for one."""

import json
import math
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Self

import msgspec
from msgspec import Meta, Struct

from api.problems import Kind, refused
from carride.clients import lambda_client
from carride.decoding import json_name
from carride.simulation import LONGEST_LIFE, Mode, Share, Spec, SpecError
from idempotency import Consumer, Policy
from idempotency.errors import PayloadMismatchError
from idempotency.stores import Store

_LONGEST_S: Final = 600
_MOST_TIME_S: Final = 800
"""For all events of a simulation. The simulator may run for 900 seconds, so that no simulation is cut off."""
_DEFAULT_RIDES: Final = 10
_LOCK_S: Final = 900
"""How long a simulation keeps others from starting: the longest time that the simulator can run."""
_MOST_EVENTS: Final = {"local": 31_000, "dev": 3_000, "prod": 0}
"""Of one simulation, by stage. With one every 15 minutes, that is 288,000 a day in ``dev``."""


class TooMuchError(SpecError):
    """Raised for a simulation that is too large or too slow; ``fits`` is a value of ``field`` that is accepted."""

    def __init__(self, field: str, problem: str, fits: float) -> None:
        super().__init__(field, f"{problem}; {field}={fits:g} would fit")
        self.fits = fits


class Simulate(Struct, frozen=True, kw_only=True, rename=json_name, forbid_unknown_fields=True):
    """Simulate rides; few enough for one call of the simulator."""

    mode: Annotated[Mode, Meta(description="Rides drawn by the seed, or predefined ones.")] = Mode.RANDOM
    rides: Annotated[int, Meta(ge=1, le=500, description="How many; 10 without a duration.")] | None = None
    duration: (
        Annotated[float, Meta(gt=0, le=_LONGEST_S, description="Seconds to fill at the rate; instead of rides.")] | None
    ) = None
    rate: Annotated[float, Meta(gt=0, le=50, description="Events a second; by default as fast as possible.")] | None = (
        None
    )
    seed: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    """The same seed gives the same rides; by default it is derived from the idempotency key."""
    duplicates: Share = 0.0
    out_of_order: Share = 0.0
    older: Share = 0.0

    def settled(self, seed: int, most_events: int) -> Self:
        """Return the simulation with its end and its seed filled in.

        Args:
            seed: the one to use if the request has none.
            most_events: how many events the stage allows in one simulation.

        Raises:
            TooMuchError: it has more events than that, or takes longer than the simulator can run.
            SpecError: it has two ends or none.
        """
        rides = _DEFAULT_RIDES if self.rides is None and self.duration is None else self.rides
        Spec(rides=rides, duration=self.duration, rate=self.rate).check_end()
        life = LONGEST_LIFE * (1 + self.duplicates)  # events of one ride at most: every ride is simulated to its end
        if self.duration is None or self.rate is None:
            events = (rides or 0) * life
            field, fits, slowest = "rides", most_events / life, events / _MOST_TIME_S
        else:
            events = self.duration * self.rate + life
            field, fits = "duration", (most_events - life) / self.rate
            slowest = life / (_MOST_TIME_S - self.duration)
        if events > most_events:
            raise TooMuchError(field, f"up to {events:.0f} events are more than {most_events}", math.floor(fits))
        if self.rate is not None and self.rate < slowest:
            slow = f"up to {events:.0f} events take {events / self.rate:.0f} seconds, not {_MOST_TIME_S}"
            raise TooMuchError("rate", slow, math.ceil(slowest * 1000) / 1000)
        return msgspec.structs.replace(self, rides=rides, seed=seed if self.seed is None else self.seed)


class Simulations:
    """Starts simulations: in the stages other than ``local``, one at a time.

    Args:
        stage: the stage, which limits the events of a simulation.
        function: the name of the simulator's function.
        store: where the lock is.
        start: starts the simulator without waiting for it; by default by an asynchronous invocation.
        now: the present, with a time zone.
    """

    def __init__(
        self,
        stage: str,
        function: str,
        store: Store,
        start: Callable[[Mapping[str, Any]], None] | None,
        now: Callable[[], datetime],
    ) -> None:
        self._most_events = _MOST_EVENTS[stage]
        self._function = function
        # The record of one key locks the simulator until its window ends. A retry of the request that holds the lock
        # has the same payload, so it passes.
        lock = Consumer[None]("carride-api-simulation-lock", store, policy=Policy(window=_LOCK_S, max_attempts=1_000))
        self._lock = None if stage == "local" else lock
        self._start = start or self._invoke
        self._now = now

    def start(self, command: Simulate, name: str) -> dict[str, Any]:
        """Start a simulation. Started twice under one name it publishes the same facts, which consumers recognise.

        Raises:
            HttpProblemError: it is too large or too slow, or another one is running.
        """
        try:
            settled = command.settled(int(name[:7], 16), self._most_events)
        except SpecError as error:
            fits = error.fits if isinstance(error, TooMuchError) else None
            raise refused(Kind.INVALID_FIELD, str(error), field=error.field, fits=fits) from error
        self._acquire_lock(name)
        spec = msgspec.to_builtins(settled) | {"time": self._now().isoformat()}
        self._start(spec)
        return {"statusCode": 202, "body": spec}

    def _acquire_lock(self, name: str) -> None:
        if self._lock is None:
            return
        try:
            with self._lock.operation("lock", name):
                pass
        except PayloadMismatchError as error:
            detail = f"a simulation was started less than {_LOCK_S // 60} minutes ago"
            raise refused(Kind.SIMULATION_RUNNING, detail) from error

    def _invoke(self, spec: Mapping[str, Any]) -> None:
        lambda_client().invoke(FunctionName=self._function, InvocationType="Event", Payload=json.dumps(spec).encode())
