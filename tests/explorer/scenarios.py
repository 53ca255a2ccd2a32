"""The worlds that are explored: each is small, looks at one corner of the protocol, and is searched to its end."""

from dataclasses import replace
from typing import Any, Final

from idempotency.policy import DAY, Policy
from tests.explorer.process import POISONED, RAISES, RETURNS, Kind, Message
from tests.explorer.world import Scenario


def machine(name: str = "a machine", *, clock_ms: int = 0, timeout_ms: int | None = None, **policy: object) -> Kind:
    """Return a machine whose leases last 6 s, with two attempts for a key and no cache; ``policy`` says otherwise."""
    settings = {"window": 30 * DAY, "lease": 6, "max_attempts": 2, "warm_cache": 0} | policy
    return Kind(name, Policy(**settings), clock_ms=clock_ms, timeout_ms=timeout_ms)  # type: ignore[arg-type]


THREE: Final = (Message("D1"), Message("D2"), Message("D3"))
ACROSS_THE_WINDOW: Final = (0, 3_500, 7_000, 101_500, 105_000, 108_500)
"""With a window of 100 s: what is completed at each of the first three is over at each of the last three."""

SCENARIOS: Final = (
    Scenario(
        name="claims",
        about="claims, takeovers, failures and commits; requests and answers that are lost or late; crashes",
        kinds=(machine(),),
    ),
    Scenario(
        name="three-at-once",
        about="three deliveries run at the same time",
        kinds=(machine(),),
        messages=THREE,
        times_ms=(0, 7_500),
        tries=1,
        at_once=3,
        handler=(RETURNS,),
    ),
    Scenario(
        name="heartbeats",
        about="long work renews its lease; heartbeats are lost, late, or meet a takeover",
        kinds=(machine(),),
        times_ms=(0, 4_000, 8_000, 12_000),
        tries=1,
        beats=2,
        handler=(RETURNS,),
    ),
    Scenario(
        name="copies",
        about="a transport delivers one message twice at once, or takes a process for dead that runs on",
        kinds=(machine(),),
        times_ms=(0,),
        at_once=3,
        copies=True,
    ),
    Scenario(
        name="same-delivery",
        about="a delivery that comes again takes over its own live claim",
        kinds=(machine(same_delivery_takes_over=True, max_attempts=3),),
        messages=(Message("D1"),),
        copies=True,
        tries=3,
        beats=1,
    ),
    Scenario(
        name="deadlines",
        about="invocations are killed at their deadline, and leases follow it",
        kinds=(machine(timeout_ms=5_000),),
        times_ms=(0, 4_500, 7_500),
        tries=1,
    ),
    Scenario(
        name="skew",
        about="two machines whose clocks differ by as much as is allowed",
        kinds=(machine("a slow clock"), machine("a fast clock", clock_ms=1_000)),
        times_ms=(0, 7_000),
        handler=(RETURNS,),
    ),
    Scenario(
        name="skew-beyond-bound",
        about="clocks that differ by more than is allowed: runs may overlap, effects may not",
        kinds=(machine("a slow clock"), machine("a fast clock", clock_ms=5_000)),
        tries=1,
        handler=(RETURNS,),
        skew_is_bounded=False,
    ),
    Scenario(
        name="atomic",
        about="effects and completion in one transaction, without a claim",
        kinds=(machine(atomic=True),),
        times_ms=(0, 7_500),
    ),
    Scenario(
        name="mixed",
        about="claims and atomic commits on one key",
        kinds=(machine("claims"), machine("atomic", atomic=True)),
        tries=1,
    ),
    Scenario(
        name="conflicts",
        about="an effect's own condition refuses the commit, and the handler runs again in its claim",
        kinds=(machine("claims", conflict_reruns=1), machine("atomic", atomic=True, conflict_reruns=1)),
        tries=1,
        conflicts=True,
    ),
    Scenario(
        name="quarantine",
        about="poison: permanent errors, dead letters, marks, an operator's release and redrive",
        kinds=(machine(max_attempts=1),),
        times_ms=(0, 7_500),
        handler=(RETURNS, POISONED),
        releases=1,
    ),
    Scenario(
        name="quarantine-atomic",
        about="the same without a claim",
        kinds=(machine(atomic=True, max_attempts=1),),
        times_ms=(0, 7_500),
        releases=1,
    ),
    Scenario(
        name="payloads",
        about="two events with one key and different payloads",
        kinds=(machine(),),
        messages=(Message("D1"), Message("D2", fingerprint="1:b")),
        times_ms=(0, 7_500),
    ),
    Scenario(
        name="window",
        about="the window ends; DynamoDB deletes the record at once, late or never; the key is used again",
        kinds=(machine(window=100),),
        times_ms=ACROSS_THE_WINDOW,
        leap=3,
        tries=1,
        messages=THREE,
        faults=0,
    ),
    Scenario(
        name="window-mixed",
        about="the same for another payload, on machines with and without claims",
        kinds=(machine("claims", window=100), machine("atomic", atomic=True, window=100)),
        messages=(Message("D1"), Message("D2", fingerprint="1:b")),
        times_ms=ACROSS_THE_WINDOW,
        leap=3,
        tries=1,
        handler=(RETURNS,),
    ),
    Scenario(
        name="old-events",
        about="an event comes again when its record is about to be forgotten; it may take effect once, ever",
        kinds=(
            machine("a slow clock", window=100, timeout_ms=10_000),
            machine("a fast clock", window=100, timeout_ms=10_000, clock_ms=1_000),
        ),
        messages=(Message("D1", sent_ms=900), Message("D2", sent_ms=900)),
        times_ms=(900, 87_500, 91_000, 96_000, 98_000, 100_500, 102_000),
        leap=1,
        tries=1,
    ),
    Scenario(
        name="expiry",
        about="an event past its expiry is dropped, unless an attempt at it is half done",
        kinds=(machine(),),
        messages=(Message("D1", expires_ms=2_000), Message("D2", expires_ms=2_000)),
        tries=1,
    ),
    Scenario(
        name="waiting",
        about="deliveries wait for the result of the one that holds the key",
        kinds=(machine(busy="wait"),),
        tries=1,
    ),
    Scenario(
        name="back-off",
        about="a failed key is left alone for a while",
        kinds=(machine(backoff=lambda attempt: 5.0),),
        tries=1,
    ),
)

_BOTH: Final = (RETURNS, RAISES)
_WIDER: Final[dict[str, dict[str, Any]]] = {
    "claims": {"faults": 2},
    "three-at-once": {"handler": _BOTH, "times_ms": (0, 3_500, 7_500)},
    "heartbeats": {"handler": _BOTH, "tries": 2},
    "copies": {"times_ms": (0, 3_500, 7_500)},
    "same-delivery": {"faults": 2},
    "deadlines": {"tries": 2},
    "skew": {"handler": _BOTH, "times_ms": (0, 3_500, 7_000)},
    "skew-beyond-bound": {"handler": _BOTH, "tries": 2},
    "atomic": {"faults": 2},
    "mixed": {"tries": 2},
    "conflicts": {"tries": 2},
    "quarantine": {"messages": THREE, "tries": 1, "times_ms": (0, 3_500, 7_500)},
    "quarantine-atomic": {"messages": THREE, "tries": 1, "times_ms": (0, 3_500, 7_500)},
    "payloads": {"faults": 2, "times_ms": (0, 3_500, 7_500)},
    "window": {"faults": 1},
    "window-mixed": {"handler": _BOTH, "tries": 2},
    "old-events": {"faults": 2},
    "expiry": {"tries": 2},
    "waiting": {"tries": 2},
    "back-off": {"faults": 2, "tries": 2},
}

LARGER: Final = tuple(replace(scenario, **_WIDER[scenario.name]) for scenario in SCENARIOS)
"""The same worlds within wider bounds: minutes instead of seconds."""
