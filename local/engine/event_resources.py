"""Archives, bus policies and global endpoints in a template.

AWS: `AWS::Events::Archive`, `AWS::Events::EventBusPolicy` and `AWS::Events::Endpoint` are resources; a bus keeps its
`LogConfig`.

Stock MiniStack: has the operations but not the resources, and drops a template's `LogConfig`.

Plugs into CloudFormation's handlers. What an endpoint does is in `local.engine.global_endpoints`.
"""

import json

from ministack.services import eventbridge

from local.engine.cloudformation import Properties, Resource, call, handlers, physical_name, register
from local.engine.global_endpoints import id_of


def _archive_request(properties: Properties) -> Properties:
    request = {key: value for key, value in properties.items() if key not in {"SourceArn", "ArchiveName"}}
    if isinstance(request.get("EventPattern"), dict):
        request["EventPattern"] = json.dumps(request["EventPattern"])
    if "RetentionDays" in request:
        request["RetentionDays"] = int(request["RetentionDays"])
    return request


def _create_archive(logical_id: str, properties: Properties, stack: str) -> Resource:
    name = properties.get("ArchiveName") or physical_name(stack, logical_id, 48)
    request = {**_archive_request(properties), "ArchiveName": name, "EventSourceArn": properties["SourceArn"]}
    answer = call(eventbridge._create_archive, request)
    return name, {"Arn": answer["ArchiveArn"]}


def _update_archive(physical_id: str, _old: Properties, new: Properties, _stack: str) -> Resource:
    answer = call(eventbridge._update_archive, {**_archive_request(new), "ArchiveName": physical_id})
    return physical_id, {"Arn": answer["ArchiveArn"]}


def _delete_archive(physical_id: str, _properties: Properties) -> None:
    eventbridge._delete_archive({"ArchiveName": physical_id})


def _create_policy(_logical_id: str, properties: Properties, _stack: str) -> Resource:
    bus = properties.get("EventBusName", "default")
    statement = {**properties["Statement"], "Sid": properties["StatementId"]}
    policy = eventbridge._event_bus_policies.setdefault(bus, {"Version": "2012-10-17", "Statement": []})
    policy["Statement"].append(statement)
    return f"{bus}|{properties['StatementId']}", {}


def _delete_policy(_physical_id: str, properties: Properties) -> None:
    policy = eventbridge._event_bus_policies.get(properties.get("EventBusName", "default"), {"Statement": []})
    policy["Statement"] = [kept for kept in policy["Statement"] if kept["Sid"] != properties["StatementId"]]


def _create_endpoint(logical_id: str, properties: Properties, stack: str) -> Resource:
    name = properties.get("Name") or physical_name(stack, logical_id, 64)
    call(eventbridge._create_endpoint, {**properties, "Name": name})
    endpoint = eventbridge._endpoints[name]
    attributes = {"Arn": endpoint["Arn"], "EndpointId": id_of(endpoint), "EndpointUrl": endpoint["EndpointUrl"]}
    return name, {**attributes, "State": endpoint["State"]}


def _delete_endpoint(physical_id: str, _properties: Properties) -> None:
    eventbridge._delete_endpoint({"Name": physical_id})


def apply() -> None:
    """Add the types."""
    register("AWS::Events::Archive", _create_archive, _delete_archive, _update_archive)
    register("AWS::Events::EventBusPolicy", _create_policy, _delete_policy)
    register("AWS::Events::Endpoint", _create_endpoint, _delete_endpoint)

    bus = handlers("AWS::Events::EventBus")
    create = bus["create"]

    def create_bus(logical_id: str, properties: Properties, stack: str) -> Resource:
        name, attributes = create(logical_id, properties, stack)
        if "LogConfig" in properties:
            eventbridge._event_buses[name]["LogConfig"] = properties["LogConfig"]
        return name, attributes

    bus["create"] = create_bus
