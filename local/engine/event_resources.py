"""Archives and global endpoints in a template.

AWS: `AWS::Events::Archive` and `AWS::Events::Endpoint` are resources.

Stock MiniStack: has the operations but not the resources.

Plugs into CloudFormation's handlers. What an endpoint does is in `local.engine.global_endpoints`.
"""

import json

from ministack.services import eventbridge

from local.engine.cloudformation import Properties, Resource, call, physical_name, register
from local.engine.global_endpoints import id_of


def _archive_request(name: str, properties: Properties) -> Properties:
    request = {**properties, "ArchiveName": name, "EventSourceArn": properties["SourceArn"]}
    if isinstance(request.get("EventPattern"), dict):
        request["EventPattern"] = json.dumps(request["EventPattern"])
    return request | {"RetentionDays": int(request.get("RetentionDays", 0))}


def _create_archive(logical_id: str, properties: Properties, stack: str) -> Resource:
    name = properties.get("ArchiveName") or physical_name(stack, logical_id, 48)
    return name, {"Arn": call(eventbridge._create_archive, _archive_request(name, properties))["ArchiveArn"]}


def _update_archive(name: str, _old: Properties, new: Properties, _stack: str) -> Resource:
    return name, {"Arn": call(eventbridge._update_archive, _archive_request(name, new))["ArchiveArn"]}


def _delete_archive(name: str, _properties: Properties) -> None:
    eventbridge._delete_archive({"ArchiveName": name})


def _create_endpoint(logical_id: str, properties: Properties, stack: str) -> Resource:
    name = properties.get("Name") or physical_name(stack, logical_id, 64)
    call(eventbridge._create_endpoint, {**properties, "Name": name})
    endpoint = eventbridge._endpoints[name]
    return name, {"Arn": endpoint["Arn"], "EndpointId": id_of(endpoint), "State": endpoint["State"]}


def _delete_endpoint(name: str, _properties: Properties) -> None:
    eventbridge._delete_endpoint({"Name": name})


def apply() -> None:
    """Add the types."""
    register("AWS::Events::Archive", _create_archive, _delete_archive, _update_archive)
    register("AWS::Events::Endpoint", _create_endpoint, _delete_endpoint)
