"""Archives in a template, and replays that can be cancelled and that show how far they are.

Stock MiniStack has the operations of an archive but not the resource. A cancelled replay goes on
and ends as COMPLETED, and `DescribeReplay` lacks `EventLastReplayedTime`.
"""

import json
from typing import Any

from ministack.services import eventbridge

from engine.cloudformation import Properties, Resource, call, physical_name, register


def _archive_request(name: str, properties: Properties) -> Properties:
    request = {**properties, "ArchiveName": name, "EventSourceArn": properties["SourceArn"]}
    if isinstance(request.get("EventPattern"), dict):
        request["EventPattern"] = json.dumps(request["EventPattern"])
    return request | {"RetentionDays": int(request.get("RetentionDays", 0))}


def _create(logical_id: str, properties: Properties, stack: str) -> Resource:
    name = properties.get("ArchiveName") or physical_name(stack, logical_id, 48)
    return name, {
        "Arn": call(eventbridge._create_archive, _archive_request(name, properties))["ArchiveArn"]
    }


def _update(name: str, _old: Properties, new: Properties, _stack: str) -> Resource:
    return name, {
        "Arn": call(eventbridge._update_archive, _archive_request(name, new))["ArchiveArn"]
    }


def apply(_settings: object) -> None:
    """Add the type, and replace the delivery of an event to the rules of its bus."""
    delete = eventbridge._delete_archive
    register(
        "AWS::Events::Archive", _create, lambda name, _: delete({"ArchiveName": name}), _update
    )
    dispatch = eventbridge._dispatch_event

    def dispatch_event(event: dict[str, Any], view: Any = None) -> None:
        replay = eventbridge._replays.get(event.get("ReplayName"))
        if replay is not None:
            if replay["State"] == "CANCELLED":
                raise SystemExit  # ends the replay's thread
            replay["EventLastReplayedTime"] = event["Time"]
        dispatch(event, view)

    eventbridge._dispatch_event = dispatch_event
