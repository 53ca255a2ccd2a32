"""A replay that goes to the rules it names, and to no other.

AWS: `StartReplay` hands archived events to the rules in `Destination.FilterArns`, or to all rules where there is none.

Stock MiniStack: `FilterArns` are ignored, so that a replay for one consumer reaches all of them.

Plugs into `eventbridge._invoke_target`, in front of it.
"""

from typing import Any

from ministack.services import eventbridge


def apply() -> None:
    """Leave out the rules that a replay does not name."""
    invoke_target = eventbridge._invoke_target

    def invoke_named_target(target: Any, event: dict[str, Any], rule: dict[str, Any], view: Any = None) -> None:
        replay = eventbridge._replays.get(event.get("ReplayName")) or {}
        named = replay.get("Destination", {}).get("FilterArns")
        if not named or rule["Arn"] in named:
            invoke_target(target, event, rule, view)

    eventbridge._invoke_target = invoke_named_target
