"""Stacks in two regions, with the services that the operator's commands use."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

import boto3
import msgspec
from botocore.exceptions import EndpointConnectionError

from carride import history
from carride.bookings import OWNER_CUSTOMER
from carride_idempotency.record import Record
from carride_idempotency.record_items import UNSETTLED_SINCE, item_of
from ops.audit.evidence import CONSUMERS, HISTORY, MARKS, RECORD_TABLES
from ops.fence import Fence
from ops.policies import records_of
from ops.stack import ClientFactory, StackRef

HOME: Final = "us-west-2"
AWAY: Final = "us-east-1"
NOW: Final = datetime(2026, 11, 21, 12, tzinfo=UTC)
FENCE: Final = Fence(NOW, rules=("rule",), functions={"one": None, "other": 5})


@cache
def _session() -> Any:  # typed for literal names only
    """Return the session of every client: to make one takes longer than the client itself."""
    return boto3.session.Session()


def client_of(service: str, region: str) -> Any:
    """Return a new client, for use under moto."""
    return _session().client(service, region_name=region)


def create_table(client: Any, name: str, *keys: str, **indexes: str) -> None:
    """Create an empty table whose partition key, and sort key, are strings.

    And indexes by their partition keys.
    """

    def schema(*keys: str) -> list[dict[str, str]]:
        return [
            {"AttributeName": key, "KeyType": kind}
            for key, kind in zip(keys, ("HASH", "RANGE"), strict=False)
        ]

    made = [
        {"IndexName": index, "KeySchema": schema(key), "Projection": {"ProjectionType": "ALL"}}
        for index, key in indexes.items()
    ]
    client.create_table(
        TableName=name,
        KeySchema=schema(*keys),
        AttributeDefinitions=[
            {"AttributeName": key, "AttributeType": "S"} for key in (*keys, *indexes.values())
        ],
        BillingMode="PAY_PER_REQUEST",
        **({"GlobalSecondaryIndexes": made} if made else {}),
    )


def stack(
    clients: ClientFactory,
    region: str = AWAY,
    resources: Mapping[str, Any] | None = None,
    **outputs: str,
) -> StackRef:
    made = StackRef("carride", region, clients)
    vars(made).update(outputs=outputs, by_type=resources or {})
    return made


class Missing(Exception):  # noqa: N818 - stands for boto3's ParameterNotFound
    """There is no such parameter."""


class World:
    """Two regions: their stacks' roles, replays and fences, and which one can be reached."""

    def __init__(self) -> None:
        self.roles = {HOME: "primary", AWAY: "secondary"}
        self.replays: dict[str, list[dict[str, str]]] = {HOME: [], AWAY: []}
        self.fenced: set[str] = set()
        self.unreachable: set[str] = set()
        self.account = "123456789012"

    def client(self, service: str, region: str) -> Any:
        if region in self.unreachable:
            raise EndpointConnectionError(endpoint_url=f"https://{service}.{region}.amazonaws.com")
        if service == "sts":
            arn = f"arn:aws:iam::{self.account}:user/operator"
            identity = {"Account": self.account, "Arn": arn}
            return SimpleNamespace(get_caller_identity=lambda: identity)
        outputs = {
            "Role": self.roles[region],
            "PeerRegion": AWAY if region == HOME else HOME,
            "CarRideArchiveArn": f"archive:{region}",
            "RideHistoryDlqUrl": "https://queue",
        }

        def describe_stacks(**request: Any) -> Any:
            found = [{"OutputKey": key, "OutputValue": value} for key, value in outputs.items()]
            given = [{"ParameterKey": "Role", "ParameterValue": self.roles[region]}]
            return {
                "Stacks": [
                    {"StackStatus": "CREATE_COMPLETE", "Outputs": found, "Parameters": given}
                ]
            }

        def list_replays(**request: Any) -> Any:  # one a page
            begin = int(request.get("NextToken", 0))
            replays = self.replays[region]
            more = {"NextToken": str(begin + 1)} if begin + 1 < len(replays) else {}
            return {"Replays": replays[begin : begin + 1], **more}

        def describe_replay(**request: Any) -> Any:
            times = dict.fromkeys(("EventStartTime", "EventEndTime", "ReplayStartTime"), NOW)
            return {"EventSourceArn": f"archive:{region}", "State": "RUNNING", **times}

        def get_parameter(**request: Any) -> Any:
            assert request == {"Name": "/carride/fence"}
            if region not in self.fenced:
                raise Missing
            return {"Parameter": {"Value": msgspec.json.encode(FENCE).decode()}}

        fakes = {
            "cloudformation": SimpleNamespace(
                describe_stacks=describe_stacks,
                # No resources.
                get_paginator=lambda operation: SimpleNamespace(paginate=lambda **request: []),
            ),
            "events": SimpleNamespace(
                list_replays=list_replays,
                describe_replay=describe_replay,
                exceptions=SimpleNamespace(ResourceNotFoundException=Missing),
            ),
            "ssm": SimpleNamespace(
                get_parameter=get_parameter, exceptions=SimpleNamespace(ParameterNotFound=Missing)
            ),
        }
        if service in fakes:
            return fakes[service]
        return client_of(service, region)


TABLES: Final = dict.fromkeys(
    ("BookingTable", *(each.table for each in CONSUMERS if each.table)), "orderID"
) | {
    **dict.fromkeys(RECORD_TABLES, "idempotencyKey"),
    **dict.fromkeys((MARKS, "OutboxTable"), "id"),
}
"""The partition key of each table."""


FUNCTION: Final[Mapping[str, Any]] = {
    "Timeout": 30,
    "Environment": {"Variables": {"IDEMPOTENCY_WINDOW_DAYS": "30"}},
}
"""How each consumer's function is configured."""


def empty_stack() -> StackRef:
    """Return a stack without any events, whose services moto must stand for."""
    made: dict[str, Any] = {
        service: client_of(service, AWAY) for service in ("dynamodb", "sqs", "logs")
    }
    made["lambda"] = SimpleNamespace(get_function_configuration=lambda **_: FUNCTION)
    made["events"] = SimpleNamespace(list_replays=lambda **_: {"Replays": []})
    outputs: dict[str, Any] = {f"{each.resources}FunctionName": each.name for each in CONSUMERS}
    outputs["CarRideArchiveArn"] = "arn:aws:events:eu-west-1:123456789012:archive/carride"
    for table, key in TABLES.items():
        index = {"byUnsettledSince": UNSETTLED_SINCE} if table in RECORD_TABLES else {}
        if table == HISTORY:
            index[history.INDEX] = "orderID"
        if table == "BookingTable":
            index |= {"byCustomer": "customerID", "byOwner": OWNER_CUSTOMER}
        create_table(made["dynamodb"], table.removesuffix("Table"), key, **index)
        outputs[f"{table}Name"] = table.removesuffix("Table")
    create_table(made["dynamodb"], "Car", "zone", "carID")
    outputs["CarTableName"] = "Car"
    for name in ("CarRideEvents", *(each.resources for each in CONSUMERS)):
        made["logs"].create_log_group(logGroupName=name)
        made["logs"].create_log_stream(logGroupName=name, logStreamName=name)
        made["logs"].put_retention_policy(logGroupName=name, retentionInDays=14)
        outputs[f"{name}LogGroupName"] = name
    dlqs = [f"{each.resources}{kind}" for each in CONSUMERS for kind in ("Dlq", "RuleDlq")]
    for queue in ("ProducerDlq", "CarRideLogRuleDlq", *dlqs):
        outputs[f"{queue}Url"] = made["sqs"].create_queue(QueueName=queue)["QueueUrl"]
    return stack(lambda service, _: made[service], **outputs)


def put_record(ref: StackRef, record: Record) -> None:
    """Store a record in the table of its consumer."""
    table = ref.outputs[f"{records_of(record.key)}Name"]
    ref.client("dynamodb").put_item(TableName=table, Item=item_of(record))


def log(ref: StackRef, group: str, *lines: object, age_s: float = 0) -> None:
    at = int((datetime.now(UTC).timestamp() - age_s) * 1000)
    written = [{"timestamp": at, "message": json.dumps(line)} for line in lines]
    ref.client("logs").put_log_events(logGroupName=group, logStreamName=group, logEvents=written)
