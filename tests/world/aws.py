"""Clients of AWS for the operator's code: what `ops` asks a stack, answered by the world."""

import io
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import format_datetime
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from ops.stack import StackRef
from tests.world.wiring import ACCOUNT, STACK, Wiring

if TYPE_CHECKING:
    from tests.world.run import World

_LOG_DAYS: Final = 14
_CONSUMERS: Final = {"RideHistory": "ride-history", "Dispatch": "dispatch", "Payment": "payment"}
"""The names in logs, by the prefix of a log group."""


def stack_of(world: "World") -> StackRef:
    """Return a reference to the world's stack."""
    regions = {each.cloud.wiring.region: each for each in world.regions}
    clients = {region: _clients_of(each) for region, each in regions.items()}
    here = world.cloud.wiring.region
    return StackRef(STACK, here, lambda service, region: clients[region][service])


def _clients_of(world: "World") -> dict[str, Any]:
    services = Services(world)
    return {
        "cloudformation": services.cloudformation(),
        "dynamodb": Tables(world.cloud.dynamodb),
        "events": services.events(),
        "lambda": Lambda(world),
        "logs": services.logs(),
        "sns": services.sns(),
        "sqs": world.queues,
        "ssm": world.parameters,
    }


class Services:
    """Makes clients, each with the operations that `ops` uses."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._wiring: Wiring = world.cloud.wiring

    def cloudformation(self) -> Any:
        outputs = self._wiring.outputs.items()
        described = {
            "StackStatus": "CREATE_COMPLETE",
            "Outputs": [{"OutputKey": key, "OutputValue": value} for key, value in outputs],
        }
        resources = [
            {"LogicalResourceId": name, "PhysicalResourceId": name, "ResourceType": kind}
            for name, kind in self._wiring.resources.items()
        ]
        return SimpleNamespace(
            describe_stacks=lambda **_: {"Stacks": [described]},
            get_paginator=_pages(lambda **_: {"StackResourceSummaries": resources}),
        )

    def sns(self) -> Any:
        return SimpleNamespace(get_paginator=_pages(lambda **_: {"Subscriptions": []}))

    def logs(self) -> Any:
        def groups(**request: Any) -> dict[str, Any]:
            name = request["logGroupNamePrefix"]
            date = format_datetime(datetime.now(UTC), usegmt=True)
            return {
                "logGroups": [{"logGroupName": name, "retentionInDays": _LOG_DAYS}],
                "ResponseMetadata": {"HTTPHeaders": {"date": date}},
            }

        def events(**request: Any) -> dict[str, Any]:
            prefix = request["logGroupName"].removesuffix("LogGroup")
            return {"events": list(self._lines(_CONSUMERS.get(prefix, prefix)))}

        return SimpleNamespace(describe_log_groups=groups, get_paginator=_pages(events))

    def _lines(self, group: str) -> Iterator[dict[str, Any]]:
        for number, (at_ms, line) in enumerate(self._world.cloud.logs.get(group, ())):
            yield {
                "message": json.dumps(line, default=str),
                "timestamp": at_ms,
                "eventId": f"{group}-{number}",
                "logStreamName": group,
            }

    def events(self) -> Any:
        rules = self._wiring.rules
        archive = self._world.archive

        def targets(**request: Any) -> dict[str, Any]:
            found = rules[request["Rule"]].targets
            return {"Targets": [{"Arn": self._arn(each.to)} for each in found]}

        bus = f"arn:aws:events:{self._wiring.region}:{ACCOUNT}:event-bus/CarRideBus"

        return SimpleNamespace(
            describe_rule=archive.describe_rule,
            list_targets_by_rule=targets,
            describe_archive=archive.describe_archive,
            put_events=archive.put_events,
            start_replay=archive.start_replay,
            describe_replay=archive.describe_replay,
            list_replays=archive.list_replays,
            get_paginator=archive.get_paginator,
            exceptions=archive.exceptions,
            describe_event_bus=lambda **_: {"Arn": bus},
        )

    def _arn(self, name: str) -> str:
        kind = self._wiring.resources[name]
        services = {"AWS::Lambda::Function": "lambda", "AWS::SQS::Queue": "sqs"}
        return f"arn:aws:{services.get(kind, 'other')}:{self._wiring.region}:{ACCOUNT}:{name}"


class Lambda:
    """A client of Lambda that invokes the world's functions asynchronously."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._sent = 0

    def get_function_configuration(self, *, FunctionName: str) -> dict[str, Any]:  # noqa: N803
        spec = self._world.cloud.wiring.functions[FunctionName.rpartition(":")[2]]
        return {"Timeout": spec.timeout_s, "Environment": {"Variables": dict(spec.environment)}}

    def invoke(
        self,
        *,
        FunctionName: str,  # noqa: N803 - boto3's names
        InvocationType: str,  # noqa: N803
        Payload: str,  # noqa: N803
    ) -> dict[str, Any]:
        assert InvocationType == "Event"
        self._sent += 1
        name = FunctionName.rpartition(":")[2]
        self._world.functions[name].send(json.loads(Payload), f"redriven {self._sent}")
        return {"StatusCode": 202, "Payload": io.BytesIO()}


class Tables:
    """A client of DynamoDB with its paginators."""

    def __init__(self, tables: Any) -> None:
        self._tables = tables

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tables, name)

    def get_paginator(self, operation: str) -> Any:
        ask = getattr(self._tables, operation)

        def pages(**request: Any) -> Iterator[Mapping[str, Any]]:
            while True:
                page = ask(**request)
                yield page
                if "LastEvaluatedKey" not in page:
                    return
                request["ExclusiveStartKey"] = page["LastEvaluatedKey"]

        return SimpleNamespace(paginate=pages)


def _pages(ask: Callable[..., Any]) -> Callable[[str], Any]:
    """Return what makes paginators with one page."""

    def paginate(**request: Any) -> list[Any]:
        return [ask(**request)]

    return lambda _: SimpleNamespace(paginate=partial(paginate))
