"""Global endpoints: PutEvents by `EndpointId`, its health check, and copies on the other bus.

Stock MiniStack ignores `EndpointId`, copies nothing, and has endpoints and health checks but not
the resources. On AWS an event that is put through an endpoint goes to the bus of the primary region
while the endpoint's health check is healthy, else to the secondary's. With replication, each event
that either bus ingests is put on the other one too, under an id of its own and with the `region`
that ingested it. A disabled health check counts as healthy, and as unhealthy if it is also
inverted.

This is a simulation: a health check is unhealthy while the region of its alarm is impaired
(`engine.scope`); copies are made at once, without a rule or a role; replays are not copied.
"""

import uuid
from typing import Any

from ministack.core.responses import error_response_json, new_uuid
from ministack.services import eventbridge, route53

from engine.cloudformation import Properties, Resource, call, physical_name, register
from engine.put_events import put_events
from engine.scope import Scope, impaired

_archive = eventbridge._archive_event

type _Endpoint = dict[str, Any]


def _endpoints() -> list[_Endpoint]:
    account = Scope.current().account
    return [
        endpoint
        for (owner, _, _), endpoint in eventbridge._endpoints.all_items()
        if owner == account
    ]


def _id_of(endpoint: _Endpoint) -> str:
    return f"{endpoint['Name'].lower()}.local"


def _buses(endpoint: _Endpoint) -> list[tuple[str, str]]:
    """Return the regions and names of the endpoint's buses, the primary's first."""
    arns = [bus["EventBusArn"] for bus in endpoint["EventBuses"]]
    return [(arn.split(":")[3], arn.rsplit("/", 1)[-1]) for arn in arns]


def _is_healthy(endpoint: _Endpoint) -> bool:
    arn = endpoint["RoutingConfig"]["FailoverConfig"]["Primary"]["HealthCheck"]
    check = route53._health_checks.get(arn.rsplit("/", 1)[-1])
    if check is None:
        return True
    config = check["config"]
    region_of_alarm = config.get("AlarmIdentifier", {}).get("Region", "")
    works = Scope(Scope.current().account, region_of_alarm) not in impaired
    healthy: bool = works or config.get("Disabled", False)
    return not healthy if config.get("Inverted", False) else healthy


def region_of(endpoint_id: str) -> str | None:
    """Return the region to which an endpoint hands events now.

    None if there is no such endpoint.
    """
    for endpoint in _endpoints():
        if _id_of(endpoint) == endpoint_id:
            (primary, _), (secondary, _) = _buses(endpoint)
            return primary if _is_healthy(endpoint) else secondary
    return None


def _put_events(data: dict[str, Any], allow_aws_source: bool = False) -> Any:
    endpoint_id = data.get("EndpointId")
    if not endpoint_id:
        return put_events(data, allow_aws_source)
    region = region_of(endpoint_id)
    if region is None:
        return error_response_json(
            "ResourceNotFoundException", f"Endpoint {endpoint_id} does not exist.", 400
        )
    entries = [
        entry | {"EventBusName": entry["EventBusName"].rsplit("/", 1)[-1]}
        for entry in data["Entries"]
    ]
    with Scope(Scope.current().account, region).entered():
        return put_events({**data, "Entries": entries}, allow_aws_source)


def _ingest(event: dict[str, Any], view: Any = None) -> None:
    """Archive an event that was ingested here, and put it on the other bus of each endpoint."""
    _archive(event, view)
    account, region = Scope.current()
    for endpoint in _endpoints():
        here = (region, event["EventBusName"])
        buses = _buses(endpoint)
        replicates = endpoint["ReplicationConfig"].get("State", "ENABLED") == "ENABLED"
        if here in buses and replicates:
            ((other, name),) = (bus for bus in buses if bus != here)
            copied = {**event, "EventId": new_uuid(), "EventBusName": name}
            with Scope(account, other).entered():
                eventbridge._dispatch_event(copied)
                _archive(copied)


def _create_endpoint(logical_id: str, properties: Properties, stack: str) -> Resource:
    name = properties.get("Name") or physical_name(stack, logical_id, 64)
    call(eventbridge._create_endpoint, {**properties, "Name": name})
    endpoint = eventbridge._endpoints[name]
    return name, {
        "Arn": endpoint["Arn"],
        "EndpointId": _id_of(endpoint),
        "State": endpoint["State"],
    }


def _create_health_check(_logical_id: str, properties: Properties, _stack: str) -> Resource:
    name = str(uuid.uuid4())
    check = {
        "id": name,
        "caller_reference": name,
        "config": dict(properties["HealthCheckConfig"]),
        "version": 1,
    }
    route53._health_checks[name] = check
    return name, {"HealthCheckId": name}


def _update_health_check(
    physical_id: str, _old: Properties, new: Properties, _stack: str
) -> Resource:
    route53._health_checks[physical_id]["config"] |= new["HealthCheckConfig"]
    return physical_id, {"HealthCheckId": physical_id}


def apply(_settings: object) -> None:
    """Let endpoints route and copy."""
    eventbridge._put_events = _put_events
    eventbridge._archive_event = _ingest  # which every ingested event passes
    register(
        "AWS::Events::Endpoint",
        _create_endpoint,
        lambda name, _: eventbridge._delete_endpoint({"Name": name}),
    )
    remove = route53._health_checks.pop
    register(
        "AWS::Route53::HealthCheck",
        _create_health_check,
        lambda name, _: remove(name, None),
        _update_health_check,
    )
