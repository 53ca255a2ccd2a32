"""What the transformed template connects with what: the world has no other wiring."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from tools.transformed import TEMPLATE, Stack, named, stack

REGION: Final = "us-east-1"
PEER_REGION: Final = "us-west-2"
"""The secondary's, in stories of two regions."""
ACCOUNT: Final = "123456789012"
STACK: Final = "carride"
STAFF_GROUP: Final = "staff"
PARAMETERS: Final[Mapping[str, str]] = {
    "JwtAudience": "carride",
    "JwtIssuer": "https://issuer.example",
    "PaymentGatewayUrl": "https://gateway.example",
    "StaffGroup": STAFF_GROUP,
}
_PSEUDO: Final = {
    "AWS::AccountId": ACCOUNT,
    "AWS::Partition": "aws",
    "AWS::StackName": STACK,
    "AWS::URLSuffix": "amazonaws.com",
}
_PLACE: Final = re.compile(r"\$\{([\w:.]+)\}")
_RATE: Final = re.compile(r"rate\((\d+) minutes?\)")
_SERVICES: Final = {
    "AWS::DynamoDB::GlobalTable": "dynamodb",
    "AWS::Events::Archive": "events",
    "AWS::Events::EventBus": "events",
    "AWS::Lambda::Function": "lambda",
    "AWS::SNS::Topic": "sns",
    "AWS::SQS::Queue": "sqs",
}
_DAY_S: Final = 86_400
_LAMBDA_RETRIES: Final = 2
_LAMBDA_OLDEST_S: Final = 21_600


class Attempts(NamedTuple):
    """How long a delivery is tried, and where it goes then."""

    retries: int
    oldest_s: float
    dlq: str = ""
    """Logical id of a queue; empty: nowhere."""


class FunctionSpec(NamedTuple):
    """A Lambda function. Names here are logical ids."""

    name: str
    module: str
    environment: Mapping[str, str]
    timeout_s: float
    attempts: Attempts
    """Of asynchronous invocations."""


class Target(NamedTuple):
    to: str
    attempts: Attempts


class RuleSpec(NamedTuple):
    name: str
    pattern: Mapping[str, Any]
    enabled: bool
    targets: tuple[Target, ...]


class ArchiveSpec(NamedTuple):
    name: str
    pattern: Mapping[str, Any]
    days: int
    """How long an event is kept."""


class QueueSpec(NamedTuple):
    name: str
    visible_s: float
    receives: int
    """After how many a message is dead-lettered; 0: never."""
    dlq: str


class MappingSpec(NamedTuple):
    queue: str
    function: str
    batch: int
    reports: bool
    """Whether only failed messages return."""
    concurrency: int


class PipeSpec(NamedTuple):
    name: str
    table: str
    filters: tuple[Mapping[str, Any], ...]
    batch: int
    attempts: Attempts
    source: str
    detail_type: str
    time: str
    template: str


class ScheduleSpec(NamedTuple):
    name: str
    enabled: bool
    every_s: float
    function: str
    input: str
    attempts: Attempts


class TableSpec(NamedTuple):
    name: str
    """As requests name it."""
    keys: tuple[str, ...]
    indexes: Mapping[str, tuple[str, ...]]
    expires: str
    """The attribute with the time to live; empty: nothing expires."""


class Wiring(NamedTuple):
    """The stack, by logical ids."""

    functions: Mapping[str, FunctionSpec]
    rules: Mapping[str, RuleSpec]
    archives: Mapping[str, ArchiveSpec]
    queues: Mapping[str, QueueSpec]
    mappings: tuple[MappingSpec, ...]
    pipes: tuple[PipeSpec, ...]
    schedules: tuple[ScheduleSpec, ...]
    tables: Mapping[str, TableSpec]
    routes: tuple[str, ...]
    """Such as ``PUT /carrides/{id}``."""
    api_function: str
    outputs: Mapping[str, str]
    resources: Mapping[str, str]
    """The types of all resources."""
    region: str = REGION


@cache
def wiring(path: Path = TEMPLATE, **chosen: str) -> Wiring:
    """Read a template, deployed with `PARAMETERS` and these."""
    return _Reader(stack(path, **{**PARAMETERS, **chosen}), REGION).wiring()


@cache
def paired() -> tuple[Wiring, Wiring]:
    """Read the template as it is deployed in two regions: primary and secondary."""
    primary = stack(TEMPLATE, **PARAMETERS, Role="primary", PeerRegion=PEER_REGION)
    secondary = stack(TEMPLATE, **PARAMETERS, Role="secondary", PeerRegion=REGION)
    here = _Reader(primary, REGION).wiring()
    there = _Reader(secondary, PEER_REGION).wiring()
    return here, there._replace(tables=here.tables)  # its tables are the primary's replicas


class _Reader:
    """Resolves references: a resource is called by its logical id."""

    def __init__(self, deployed: Stack, region: str) -> None:
        self._stack = deployed
        self._region = region
        self._pseudo = {
            **_PSEUDO,
            "AWS::Region": region,
            "AWS::StackId": f"arn:aws:cloudformation:{region}:{ACCOUNT}:stack/{STACK}/1",
        }
        self._types = {name: each["Type"] for name, each in deployed.resources.items()}

    def wiring(self) -> Wiring:
        of_type = self._stack.of_type
        return Wiring(
            functions={name: self._function(name, each) for name, each in self._functions()},
            rules={
                name: self._rule(name, each) for name, each in of_type("AWS::Events::Rule").items()
            },
            archives={
                name: self._archive(name, each)
                for name, each in of_type("AWS::Events::Archive").items()
            },
            queues={
                name: self._queue(name, each) for name, each in of_type("AWS::SQS::Queue").items()
            },
            mappings=tuple(map(self._mapping, of_type("AWS::Lambda::EventSourceMapping").values())),
            pipes=tuple(
                self._pipe(name, each) for name, each in of_type("AWS::Pipes::Pipe").items()
            ),
            schedules=tuple(
                self._schedule(name, each)
                for name, each in of_type("AWS::Scheduler::Schedule").items()
            ),
            tables={
                name: self._table(each)
                for name, each in of_type("AWS::DynamoDB::GlobalTable").items()
            },
            routes=tuple(self._routes()),
            api_function=self._api_function(),
            outputs={name: self.text(each["Value"]) for name, each in self._stack.outputs.items()},
            resources=self._types,
            region=self._region,
        )

    # ── References ────────────────────────────────────────────────────────────────────────────────

    def text(self, value: Any) -> str:
        """Return what a value is when it is deployed."""
        match value:
            case {"Ref": str(name)}:
                return self._ref(name)
            case {"Fn::GetAtt": [str(name), *_]}:
                return self._arn(name)
            case {"Fn::Sub": str(text)}:
                return _PLACE.sub(lambda place: self._place(place[1]), text)
            case {"Fn::Sub": [str(text), dict(given)]}:
                said = {name: self.text(each) for name, each in given.items()}
                return _PLACE.sub(lambda place: said.get(place[1]) or self._place(place[1]), text)
            case str() | int() | float():
                return str(value)
            case _:
                return json.dumps(value)

    def _place(self, name: str) -> str:
        resource, _, attribute = name.partition(".")
        return self._arn(resource) if attribute else self._ref(resource)

    def _ref(self, name: str) -> str:
        if name in self._pseudo:
            return self._pseudo[name]
        if name in self._stack.parameters:
            return self._stack.parameters[name]
        match self._types.get(name):
            case "AWS::SQS::Queue":
                return queue_url(name)
            case "AWS::SNS::Topic":
                return self._arn(name)
            case "AWS::Lambda::Alias":
                return named({"Ref": name})
            case _:
                return name

    def _arn(self, name: str) -> str:
        service = _SERVICES.get(self._types.get(name, ""), "unknown")
        if service == "events" and self._types[name].endswith("Archive"):
            name = f"archive/{name}"
        return f"arn:aws:{service}:{self._region}:{ACCOUNT}:{name}"

    # ── Resources ─────────────────────────────────────────────────────────────────────────────────

    def _functions(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        yield from self._stack.functions().items()

    def _function(self, name: str, given: Mapping[str, Any]) -> FunctionSpec:
        variables = given.get("Environment", {}).get("Variables", {})
        attempts = Attempts(_LAMBDA_RETRIES, _LAMBDA_OLDEST_S)
        for each in self._stack.of_type("AWS::Lambda::EventInvokeConfig").values():
            if named(each["FunctionName"]) == name:
                failed = each.get("DestinationConfig", {}).get("OnFailure", {})
                attempts = Attempts(
                    each.get("MaximumRetryAttempts", _LAMBDA_RETRIES),
                    each.get("MaximumEventAgeInSeconds", _LAMBDA_OLDEST_S),
                    named(failed.get("Destination")),
                )
        return FunctionSpec(
            name=name,
            module=given["Handler"].partition(".")[0],
            environment={key: self.text(each) for key, each in variables.items()}
            | {"AWS_REGION": self._region},
            timeout_s=given["Timeout"],
            attempts=attempts,
        )

    def _rule(self, name: str, given: Mapping[str, Any]) -> RuleSpec:
        targets = [
            Target(named(each["Arn"]), _attempts(each.get("RetryPolicy", {}), each))
            for each in given["Targets"]
        ]
        return RuleSpec(
            name=name,
            pattern=self._resolved(given["EventPattern"]),
            enabled=given.get("State", "ENABLED") == "ENABLED",
            targets=tuple(targets),
        )

    def _archive(self, name: str, given: Mapping[str, Any]) -> ArchiveSpec:
        days = int(self.text(given["RetentionDays"]))
        return ArchiveSpec(name, self._resolved(given["EventPattern"]), days)

    def _resolved(self, value: Any) -> Any:
        match value:
            case {"Ref": _} | {"Fn::Sub": _}:
                return self.text(value)
            case dict():
                return {key: self._resolved(each) for key, each in value.items()}
            case list():
                return [self._resolved(each) for each in value]
            case _:
                return value

    def _queue(self, name: str, given: Mapping[str, Any]) -> QueueSpec:
        redrive = given.get("RedrivePolicy", {})
        return QueueSpec(
            name=name,
            visible_s=given.get("VisibilityTimeout", 30),
            receives=redrive.get("maxReceiveCount", 0),
            dlq=named(redrive.get("deadLetterTargetArn")),
        )

    def _mapping(self, given: Mapping[str, Any]) -> MappingSpec:
        return MappingSpec(
            queue=named(given["EventSourceArn"]),
            function=named(given["FunctionName"]),
            batch=given.get("BatchSize", 10),
            reports="ReportBatchItemFailures" in given.get("FunctionResponseTypes", ()),
            concurrency=int(self.text(given["ScalingConfig"]["MaximumConcurrency"])),
        )

    def _pipe(self, name: str, given: Mapping[str, Any]) -> PipeSpec:
        source = given["SourceParameters"]["DynamoDBStreamParameters"]
        filters = given["SourceParameters"]["FilterCriteria"]["Filters"]
        target = given["TargetParameters"]["EventBridgeEventBusParameters"]
        return PipeSpec(
            name=name,
            table=named(given["Source"]),
            filters=tuple(json.loads(self.text(each["Pattern"])) for each in filters),
            batch=source["BatchSize"],
            attempts=Attempts(
                source["MaximumRetryAttempts"],
                source["MaximumRecordAgeInSeconds"],
                named(source["DeadLetterConfig"]["Arn"]),
            ),
            source=target["Source"],
            detail_type=target["DetailType"],
            time=target["Time"],
            template=given["TargetParameters"]["InputTemplate"],
        )

    def _schedule(self, name: str, given: Mapping[str, Any]) -> ScheduleSpec:
        target = given["Target"]
        minutes = _RATE.fullmatch(given["ScheduleExpression"])
        assert minutes is not None
        return ScheduleSpec(
            name=name,
            enabled=given.get("State", "ENABLED") == "ENABLED",
            every_s=60.0 * int(minutes[1]),
            function=named(target["Arn"]),
            input=target["Input"],
            attempts=_attempts(target["RetryPolicy"], target),
        )

    def _table(self, given: Mapping[str, Any]) -> TableSpec:
        return TableSpec(
            name=self.text(given["TableName"]),
            keys=_keys(given),
            indexes={
                each["IndexName"]: _keys(each) for each in given.get("GlobalSecondaryIndexes", ())
            },
            expires=given.get("TimeToLiveSpecification", {}).get("AttributeName", ""),
        )

    def _routes(self) -> Iterator[str]:
        (api,) = self._stack.of_type("AWS::ApiGatewayV2::Api").values()
        for path, operations in api["Body"]["paths"].items():
            for method in operations:
                yield f"{method.upper()} {path}"

    def _api_function(self) -> str:
        """Return the function that the API's integration invokes."""
        (api,) = self._stack.of_type("AWS::ApiGatewayV2::Api").values()
        integrations = api["Body"]["components"]["x-amazon-apigateway-integrations"]
        (integration,) = integrations.values()
        return named(integration["uri"])


def queue_url(name: str) -> str:
    return f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT}/{name}"


def _attempts(policy: Mapping[str, Any], target: Mapping[str, Any]) -> Attempts:
    return Attempts(
        policy.get("MaximumRetryAttempts", 185),
        policy.get("MaximumEventAgeInSeconds", _DAY_S),
        named(target.get("DeadLetterConfig", {}).get("Arn")),
    )


def _keys(given: Mapping[str, Any]) -> tuple[str, ...]:
    schema: Sequence[Mapping[str, str]] = given["KeySchema"]
    return tuple(each["AttributeName"] for each in schema)
