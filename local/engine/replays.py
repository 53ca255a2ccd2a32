"""Replays that can be cancelled, and that show how far they are.

AWS: a cancelled replay delivers no further events. `DescribeReplay` answers the time of the last event that was
replayed.

Stock MiniStack: a cancelled replay goes on and ends as COMPLETED, and `EventLastReplayedTime` is missing.

Plugs into `eventbridge._dispatch_event`.
"""

from typing import Any

from ministack.services import eventbridge


def apply() -> None:
    """Replace the delivery of an event to the rules of its bus."""
    dispatch = eventbridge._dispatch_event

    def dispatch_event(event: dict[str, Any], view: Any = None) -> None:
        replay = eventbridge._replays.get(event.get("ReplayName"))
        if replay is not None:
            if replay["State"] == "CANCELLED":
                raise SystemExit  # ends the replay's thread
            replay["EventLastReplayedTime"] = event["Time"]
        dispatch(event, view)

    eventbridge._dispatch_event = dispatch_event
