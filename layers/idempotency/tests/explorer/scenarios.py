"""The worlds that are explored.

Each is small, looks at one corner of the protocol, and is searched to its end.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from carride_idempotency.policy import DAY, Policy
from tests.explorer.process import Machine, Message
from tests.explorer.world import Scenario


def machine(
    name: str = "a machine", *, clock_ms: int = 0, timeout_ms: int | None = None, **policy: object
) -> Machine:
    """Return a machine whose leases last 6 s, with two attempts for a key; ``policy`` may differ.

    Its sandboxes have the default policy's cache.
    """
    settings = {"window": 30 * DAY, "lease": 6, "max_attempts": 2} | policy
    return Machine(name, Policy(**settings), clock_ms=clock_ms, timeout_ms=timeout_ms)  # type: ignore[arg-type] # mixed


_ALONE: Final = (machine(),)
_THREE: Final = (Message("D1"), Message("D2"), Message("D3"))
_ASKED_AGAIN: Final = (Message("D1"), Message("D2", origin="replay"))
"""An event, and its replay. Both come again, to sandboxes that may remember them."""
_REDRIVEN: Final = (Message("D1"), Message("D2", origin="redrive"))
_TWO_PAYLOADS: Final = (Message("D1"), Message("D2", fingerprint="1:b"))

SCENARIOS: Final[Mapping[str, Scenario]] = {
    "claims": Scenario(
        about="claims, takeovers, failures, commits and crashes; lost or late requests and answers",
        machines=_ALONE,
    ),
    "cancelled": Scenario(
        about="work in an event loop is cancelled, and so is what was to record it",
        machines=_ALONE,
        times_ms=(0, 7_500),
        handler=("returns", "is cancelled"),
    ),
    "cancelled-calls": Scenario(
        about="the same of work that makes an external call",
        machines=(replace(machine(), calls="with a probe"),),
        times_ms=(0, 7_500),
        tries=1,
        handler=("returns", "is cancelled"),
    ),
    "three-at-once": Scenario(
        about="three deliveries run at the same time",
        machines=_ALONE,
        messages=_THREE,
        times_ms=(0, 7_500),
        tries=1,
        at_once=3,
        handler=("returns",),
    ),
    "heartbeats": Scenario(
        about="long work renews its lease; heartbeats are lost, late, or meet a takeover",
        machines=_ALONE,
        times_ms=(0, 4_000, 8_000, 12_000),
        tries=1,
        beats=2,
        handler=("returns",),
    ),
    "copies": Scenario(
        about="a transport delivers a message twice at once, or takes a live process for dead",
        machines=(machine(max_attempts=3),),  # a holder on its last attempt stands for nothing
        times_ms=(0,),
        at_once=3,
        copies=True,
    ),
    "same-delivery": Scenario(
        about="a delivery that comes again takes over its own live claim",
        machines=(machine(same_delivery_takes_over=True, max_attempts=3),),
        messages=(Message("D1"),),
        copies=True,
        tries=3,
        beats=1,
    ),
    "deadlines": Scenario(
        about="invocations are killed at their deadline, and leases follow it",
        machines=(machine(timeout_ms=5_000),),
        times_ms=(0, 4_500, 7_500),
        tries=1,
    ),
    "skew": Scenario(
        about="two machines whose clocks differ by as much as is allowed",
        machines=(machine("a slow clock"), machine("a fast clock", clock_ms=1_000)),
        times_ms=(0, 5_500, 7_000),
        handler=("returns",),
    ),
    "skew-beyond-bound": Scenario(
        about="clocks that differ by more than is allowed: runs may overlap, effects may not",
        machines=(machine("a slow clock"), machine("a fast clock", clock_ms=5_000)),
        tries=1,
        handler=("returns",),
    ),
    "mixed": Scenario(
        about="claims and atomic commits on one key",
        machines=(machine("claims"), machine("atomic", atomic=True)),
        tries=1,
    ),
    "quarantine": Scenario(
        about="poison: permanent errors, dead letters, marks",
        machines=(
            machine("claims", max_attempts=1),
            machine("atomic", atomic=True, max_attempts=1),
        ),
        times_ms=(0, 7_500),
        tries=1,
        handler=("returns", "raises a permanent error"),
    ),
    "payloads": Scenario(
        about="two events with one key and different payloads",
        machines=_ALONE,
        messages=_TWO_PAYLOADS,
        times_ms=(0, 7_500),
    ),
    **{
        f"calls-{calls.replace(' ', '-')}": Scenario(
            about=f"an external call {calls}: crashes and losses before, during and after it",
            machines=(replace(machine(max_attempts=3), calls=calls),),
            times_ms=(0, 7_500),
            tries=1,
        )
        for calls in ("with a probe", "without a probe")
    },
    "calls-later": Scenario(
        about="an external call in any of three attempts, of which each may fail before it",
        machines=(replace(machine(max_attempts=3), calls="with a probe", may_fail_early=True),),
        messages=_THREE,
        times_ms=(0, 7_500),
        tries=1,
        at_once=1,
    ),
    "removed": Scenario(
        about="an operator removes the record; sandboxes remember it; deliveries and a replay come",
        machines=_ALONE,
        messages=_ASKED_AGAIN,
        times_ms=(0, 7_500),
        removals=1,
        handler=("returns",),
    ),
    "removed-atomic": Scenario(
        about="the same of a consumer that makes no claims",
        machines=(machine(atomic=True),),
        messages=_ASKED_AGAIN,
        times_ms=(0, 7_500),
        removals=1,
        handler=("returns",),
    ),
    "redriven": Scenario(
        about="a key is given up; an operator removes its record and redrives its letter",
        machines=(machine(max_attempts=1),),
        messages=_REDRIVEN,
        times_ms=(0, 7_500),
        removals=2,
    ),
    "remembered": Scenario(
        about="sandboxes remember an event whose window ends; it comes again, and is replayed",
        machines=(machine(window=100),),
        messages=_ASKED_AGAIN,
        times_ms=(0, 105_000),
        leap=1,
        removals=1,
        handler=("returns",),
    ),
    "window": Scenario(
        about="the window ends; the record is deleted at once, late or never; its key returns",
        machines=(machine("claims", window=100), machine("atomic", atomic=True, window=100)),
        messages=_TWO_PAYLOADS,
        # The windows of completions at the first three times are over at the last three.
        times_ms=(0, 3_500, 7_000, 101_500, 105_000, 108_500),
        leap=3,
        tries=1,
        handler=("returns",),
    ),
}
