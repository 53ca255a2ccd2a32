"""Replays that pause before each event until they are cancelled, for a second at most: a plug-in of the engine.

`--plug-in=tests.engine.slow_replays`. A test can then meet a replay that has not ended. Lies over
`eventbridge._dispatch_event`.
"""

import time
from typing import Any

from ministack.services import eventbridge

from local.engine.settings import Settings


def apply(_settings: Settings) -> None:
    """Slow down the delivery of replayed events."""
    dispatch = eventbridge._dispatch_event

    def dispatch_event(event: dict[str, Any], view: Any = None) -> None:
        if name := event.get("ReplayName"):
            until = time.monotonic() + 1.0
            while eventbridge._replays.get(name, {}).get("State") == "RUNNING" and time.monotonic() < until:
                time.sleep(0.02)
        dispatch(event, view)

    eventbridge._dispatch_event = dispatch_event
