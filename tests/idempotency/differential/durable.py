"""AWS's durable functions as documented, and with `idempotency.durable`, on their local runner."""

import dataclasses
import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Self

import pytest
from aws_durable_execution_sdk_python import DurableContext, __version__, durable_execution
from aws_durable_execution_sdk_python.lambda_service import OperationAction
from aws_durable_execution_sdk_python_testing import DurableFunctionTestResult, DurableFunctionTestRunner
from aws_durable_execution_sdk_python_testing.executor import Executor
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from moto.core.botocore_stubber import MockRawResponse

from idempotency import Consumer, DynamoDBStore, Operation, Policy, Update
from idempotency.durable import effect_once, start_once
from idempotency.stores.transport import botocore_transport
from infrastructure.costs import PRICES
from tests.idempotency.differential.world import POINTS, TABLE, World, world
from tests.idempotency.samples import Crash, event

COLUMNS: Final = ("ADVERSITY", f"DURABLE FUNCTIONS {__version__}", "WITH THIS LAYER")
FUNCTION: Final = "points:live"
POINT: Final[dict[str, Any]] = {
    "TableName": POINTS,
    "Key": {"id": {"S": "customer_a"}},
    "UpdateExpression": "ADD points :one",
    "ExpressionAttributeValues": {":one": {"N": "1"}},
}
OPERATION_DOLLARS: Final = 8.00
"""A million durable operations in us-east-1: each start of an execution, completed step and wait. Data is extra.

https://aws.amazon.com/lambda/pricing/, looked up on 2026-11-22.
"""


class Lambda:
    """Lambda for one durable function: its local runner, and a client whose ``invoke`` starts executions there.

    The runner does not compare the names of executions, so this does, as AWS documents it:
    https://docs.aws.amazon.com/lambda/latest/dg/durable-execution-idempotency.html
    """

    def __init__(self, place: World, handler: Callable[[Any, Any], Any]) -> None:
        self.client: Any = place.wire.session.create_client("lambda")
        self.client.meta.events.register("before-send.lambda.Invoke", self._invoke)
        self.results: list[DurableFunctionTestResult] = []
        """How the executions ended."""
        self.deaths_before_checkpoint = 0
        """How often the process dies when a step has run and its checkpoint has not been sent."""
        self.lost_answers = 0
        """How many answers to checkpoints get lost."""
        self._handler = handler
        self._started: dict[str, tuple[str, str]] = {}
        self._runner: Any = DurableFunctionTestRunner(self._process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()
        self._runner._scheduler._loop.close()  # noqa: SLF001 - the runner leaves its event loop open

    def now_ms(self) -> int:
        """Return the runner's time, which skips waits and retries' delays."""
        return int(self._runner._clock.now().timestamp() * 1000)  # noqa: SLF001 - the leases must run in the same time

    def checkpoint(self, *, updates: Any, **request: Any) -> Any:
        """Pass a checkpoint on to the runner."""
        if self.deaths_before_checkpoint and any(each.action is OperationAction.SUCCEED for each in updates):
            self.deaths_before_checkpoint -= 1
            raise RuntimeError("Runtime exited: signal: killed")
        if self.lost_answers:
            self.lost_answers -= 1
            self._service.checkpoint(updates=updates, **request)  # botocore sends it again
        return self._service.checkpoint(updates=updates, **request)

    def _process(self, given: Any, context: Any) -> Any:
        """Run one invocation in a process that may die."""
        self._service = given.service_client
        try:
            return self._handler(dataclasses.replace(given, service_client=self), context)
        except Crash:
            raise RuntimeError("Runtime exited: signal: killed") from None

    def _invoke(self, request: Any, **_: object) -> Any:
        name = request.headers.get("x-amz-durable-execution-name", b"").decode()
        body = request.body.decode()
        payload, arn = self._started.get(name, (body, ""))
        if payload != body:
            error = HTTPHeaders.from_dict({"x-amzn-errortype": "DurableExecutionAlreadyStartedException"})
            return AWSResponse(request.url, 409, error, MockRawResponse(b"{}"))
        if not arn:
            name = name or f"unnamed-{len(self.results)}"
            arn = self._runner.run_async(body, execution_name=name, function_name="points")
            self._started[name] = body, arn
            self.results.append(self._runner.wait_for_result(arn))
        headers = HTTPHeaders.from_dict({"x-amz-durable-execution-arn": arn})
        return AWSResponse(request.url, 202, headers, MockRawResponse(b""))


class Case:
    """A durable function that gives a customer a point in a step, for each event that is delivered.

    ``ours`` says whether this layer starts its executions and runs its step.
    """

    def __init__(self, place: World, *, ours: bool) -> None:
        self.world = place
        self.ours = ours
        self.runs = 0
        self.meet: Callable[[], object] = lambda: None
        """What the step meets just before its effect."""
        self.lambda_ = Lambda(place, durable_execution(self._handler))
        self._dynamodb: Any = place.wire.session.create_client("dynamodb")
        transport = botocore_transport(session=place.wire.session)
        store = DynamoDBStore(TABLE, transport=transport, clock=self.lambda_.now_ms, sleep=place.time.sleep)
        self.consumer = Consumer("points", store, key="detail.idempotencyid", clock=self.lambda_.now_ms)

    def deliver(self, *, name: str = "") -> None:
        """Deliver the event, as EventBridge does; ``name`` is given to the execution where this layer gives none."""
        client = self.lambda_.client
        if not self.ours:
            named = {"DurableExecutionName": name} if name else {}
            client.invoke(FunctionName=FUNCTION, InvocationType="Event", Payload=json.dumps(event()), **named)
            return

        @self.consumer.event_handler
        def starter(given: dict[str, Any], operation: Operation) -> None:
            start_once(operation, client, FUNCTION, given["detail"])

        starter(event(), self.world.invocation())

    @property
    def points(self) -> str:
        """How many points the customer has."""
        item = self._dynamodb.get_item(TableName=POINTS, Key=POINT["Key"]).get("Item")
        return _count(int(item["points"]["N"]) if item else 0, "point")

    @property
    def executions(self) -> str:
        """How many executions there were."""
        return _count(len(self.lambda_.results), "execution")

    def _handler(self, given: Any, context: DurableContext) -> None:
        if self.ours:
            effect_once(context, self.consumer, "point", self._register)
        else:
            context.step(self._write, name="point")

    def _write(self, _: object) -> None:
        self.runs += 1
        self.meet()
        self._dynamodb.update_item(**POINT)

    def _register(self, operation: Operation) -> None:
        self.runs += 1
        self.meet()
        operation.write(Update(POINTS, {"id": "customer_a"}, "ADD points :one", values={":one": 1}))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


class Adversity(NamedTuple):
    """One row of the table: what durable functions are seen to do, as documented and with this layer."""

    name: str
    documented: str
    here: str
    seen: Callable[[Case], str]

    def observe(self, *, ours: bool) -> str:
        """Put one side through the adversity; return what it was seen to do."""
        with durable(ours=ours) as case:
            return self.seen(case)


@contextmanager
def durable(*, ours: bool) -> Generator[Case]:
    """Make a durable function in a world of its own, whose failed invocations are repeated at once."""
    with world() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Executor, "RETRY_BACKOFF_SECONDS", 0)
        case = Case(place, ours=ours)
        with case.lambda_:
            yield case


def _delivered_twice(case: Case, name: str = "") -> str:
    for _ in range(2):
        case.deliver(name=name)
    return f"{case.executions}, {case.points}"


def _death(case: Case) -> str:
    case.lambda_.deaths_before_checkpoint = 1
    case.deliver()
    return case.points


def _lost_checkpoint(case: Case) -> str:
    case.lambda_.lost_answers = 1
    case.deliver()
    return case.points


def _lost_write(case: Case) -> str:
    case.meet = case.world.wire.lose_answer
    case.deliver()
    return case.points


def _poison(error: BaseException) -> Callable[[Case], str]:
    def seen(case: Case) -> str:
        def fail() -> None:
            raise error

        case.meet = fail
        _delivered_twice(case)
        return f"{_count(case.runs, 'run')}, then {case.lambda_.results[-1].status.name}"

    return seen


ADVERSITIES: Final = (
    Adversity("an event is delivered twice", "2 executions, 2 points", "1 execution, 1 point", _delivered_twice),
    Adversity(
        "an event is delivered twice, by a caller that names the execution after it",
        *("1 execution, 1 point", "1 execution, 1 point"),
        lambda case: _delivered_twice(case, "order_01"),
    ),
    Adversity("the process dies between a step's effect and its checkpoint", "2 points", "1 point", _death),
    Adversity("the answer to a checkpoint is lost", "1 point", "1 point", _lost_checkpoint),
    Adversity("the answer to a step's write to DynamoDB is lost", "2 points", "1 point", _lost_write),
    Adversity(
        *("a step raises at every attempt, delivered twice", "12 runs, then FAILED", "3 runs, then FAILED"),
        _poison(ValueError()),
    ),
    Adversity(
        *("a step kills every process, delivered twice", "10 runs, then FAILED", "3 runs, then FAILED"),
        _poison(Crash()),
    ),
)


def dollars() -> dict[str, float]:
    """Return what a million events cost: durable operations, DynamoDB's writes and Lambda's invocations."""
    costs = {}
    for ours in (False, True):
        with durable(ours=ours) as case:
            before = case.world.wire.write_units
            case.deliver()
            writes = case.world.wire.write_units - before
            operations = 1 + len(case.lambda_.results[0].get_all_operations())
            costs[COLUMNS[1 + ours]] = _dollars(writes, invocations=1 + ours, operations=operations)
    with world() as place:
        store = DynamoDBStore(TABLE, transport=botocore_transport(session=place.wire.session))
        consumer = Consumer("points", store, key="detail.idempotencyid", policy=Policy(atomic=True))
        effect = Update(POINTS, {"id": "customer_a"}, "ADD points :one", values={":one": 1})
        before = place.wire.write_units
        consumer.event_handler(lambda given, operation: operation.write(effect))(event(), place.invocation())
        costs["AN ATOMIC CONSUMER ALONE"] = _dollars(place.wire.write_units - before)
    return costs


def _dollars(writes: int, *, invocations: int = 1, operations: int = 0) -> float:
    return sum(
        (
            operations * OPERATION_DOLLARS,
            writes * PRICES["write unit"].dollars,
            invocations * PRICES["invocation"].dollars,
        )
    )
