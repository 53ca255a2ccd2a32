"""AWS's durable functions, as documented and with this layer in their steps."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Final, NamedTuple

import pytest
from aws_durable_execution_sdk_python import DurableContext, __version__, durable_execution
from aws_durable_execution_sdk_python.config import Duration, StepConfig
from aws_durable_execution_sdk_python.lambda_service import OperationAction
from aws_durable_execution_sdk_python.retries import RetryDecision, RetryPresets
from aws_durable_execution_sdk_python_testing import (
    DurableFunctionTestResult,
    DurableFunctionTestRunner,
)
from aws_durable_execution_sdk_python_testing.executor import Executor
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from moto.core.botocore_stubber import MockRawResponse

from carride_idempotency import BusyError, Consumer, DynamoDBStore, Operation, Policy, Update
from carride_idempotency.effects import action_of
from carride_idempotency.stores.transport import botocore_transport
from carride_idempotency.testing import Crash
from tests.idempotency.differential.adversities import raising
from tests.idempotency.differential.world import ACCOUNT, LOST, POINTS, TABLE, World, inside
from tests.idempotency.samples import event
from tools.costs.bill import PRICES, Price

DOCUMENTED: Final = f"DURABLE FUNCTIONS {__version__}"
WITH: Final = "WITH THIS LAYER"
ALONE: Final = "AN ATOMIC CONSUMER ALONE"
FUNCTION: Final = "points:live"
EFFECT: Final = Update(POINTS, {"id": "customer_a"}, "ADD points :one", values={":one": 1})
_UPDATE: Final[Any] = action_of(EFFECT)["Update"]
OPERATION: Final = Price(8.00, "million", "lambda")
"""Of durable operations: starts of executions, completed steps, waits. Looked up on 2026-11-22."""


def wait_for_lease(error: Exception, attempts: int) -> RetryDecision:
    """Wait until a dead attempt's lease has ended; then repeat the step as the SDK does."""
    if isinstance(error, BusyError):
        return RetryDecision.retry(Duration(seconds=error.lease_left_ms // 1000 + 1))
    return RetryPresets.default()(error, attempts)


WAIT_FOR_LEASE: Final = StepConfig(retry_strategy=wait_for_lease)


class Lambda:
    """Lambda for one durable function.

    Its local runner, and a client whose ``invoke`` starts executions there.

    The runner does not compare the names of executions, so this does, as AWS documents it:
    https://docs.aws.amazon.com/lambda/latest/dg/durable-execution-idempotency.html
    """

    def __init__(self, place: World, handler: Callable[[Any, Any], Any]) -> None:
        self.client: Any = place.wire.session.create_client("lambda")
        self.client.meta.events.register("before-send.lambda.Invoke", self._invoke)
        self.results: list[DurableFunctionTestResult] = []
        """How the executions ended."""
        self.fault = ""
        """What befalls the next checkpoint of a completed step: its process is ``killed``, or its
        answer ``lost``."""
        self._handler = handler
        self._started: dict[str, tuple[str, str]] = {}
        self._runner: Any = DurableFunctionTestRunner(self._process)

    def close(self) -> None:
        self._runner.close()
        self._runner._scheduler._loop.close()  # noqa: SLF001 - the runner leaves its event loop open

    def now_ms(self) -> int:
        """Return the runner's time, which skips waits and retries' delays."""
        return int(self._runner._clock.now().timestamp() * 1000)  # noqa: SLF001 - the leases must run in the same time

    def checkpoint(self, *, updates: Any, **request: Any) -> Any:
        """Pass a checkpoint on to the runner."""
        if self.fault and any(each.action is OperationAction.SUCCEED for each in updates):
            fault = self.fault
            self.fault = ""
            if fault == "killed":
                raise RuntimeError("Runtime exited: signal: killed")
            self._service.checkpoint(updates=updates, **request)  # and botocore sends it again
        return self._service.checkpoint(updates=updates, **request)

    def _process(self, given: Any, context: Any) -> Any:
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
            error = HTTPHeaders.from_dict(
                {"x-amzn-errortype": "DurableExecutionAlreadyStartedException"}
            )
            return AWSResponse(request.url, 409, error, MockRawResponse(b"{}"))
        if not arn:
            name = name or f"unnamed-{len(self.results)}"
            arn = self._runner.run_async(body, execution_name=name, function_name="points")
            self._started[name] = body, arn
            self.results.append(self._runner.wait_for_result(arn))
        headers = HTTPHeaders.from_dict({"x-amz-durable-execution-arn": arn})
        return AWSResponse(request.url, 202, headers, MockRawResponse(b""))


class Case:
    """A customer who gets a point for each event.

    In a step of a durable function, or by a consumer alone.
    """

    def __init__(self, place: World, side: str) -> None:
        self.world = place
        self.side = side
        self.runs = 0
        self.meet: Callable[[], object] = lambda: None
        """What happens in the step just before its effect."""
        self.lambda_ = Lambda(place, durable_execution(self._handler))
        self._dynamodb: Any = place.wire.session.create_client("dynamodb")
        transport = botocore_transport(session=place.wire.session)
        clock = self.lambda_.now_ms
        store = DynamoDBStore(TABLE, transport=transport, clock=clock, sleep=place.clock.sleep)
        policy = Policy(atomic=side is ALONE)
        self.consumer = Consumer(
            "points", store, key="detail.idempotencyid", policy=policy, clock=clock
        )

    def deliver(self, *, name: str = "") -> None:
        """Deliver the event as EventBridge does, or start an execution of this name."""
        if self.side is DOCUMENTED:
            named = {"DurableExecutionName": name} if name else {}
            payload = json.dumps(event())
            self.lambda_.client.invoke(
                FunctionName=FUNCTION, InvocationType="Event", Payload=payload, **named
            )
        else:
            self.consumer.event_handler(self._consume)(event(), self.world.invocation())

    def _consume(self, given: dict[str, Any], operation: Operation) -> None:
        if self.side is ALONE:
            operation.write(EFFECT)
        else:
            self.lambda_.client.invoke(
                FunctionName=FUNCTION,
                InvocationType="Event",
                DurableExecutionName=operation.downstream_key,
                Payload=json.dumps(given["detail"]),
            )

    @property
    def seen(self) -> str:
        item = self._dynamodb.get_item(TableName=POINTS, Key=_UPDATE["Key"]).get("Item")
        points = int(item["points"]["N"]) if item else 0
        counts = {"execution": len(self.lambda_.results), "run": self.runs, "point": points}
        return ", ".join(
            f"{count} {what}{'' if count == 1 else 's'}" for what, count in counts.items()
        )

    def _handler(self, _: object, context: DurableContext) -> None:
        if self.side is DOCUMENTED:
            context.step(self._documented_step, name="point")
            return

        @self.consumer.function(key="execution", name="point")
        def add_point(execution: str, operation: Any = None) -> None:
            self.runs += 1
            self.meet()
            operation.write(EFFECT)

        execution = context.execution_context.durable_execution_arn
        context.step(lambda _: add_point(execution), name="point", config=WAIT_FOR_LEASE)

    def _documented_step(self, _: object) -> None:
        self.runs += 1
        self.meet()
        self._dynamodb.update_item(**_UPDATE)


@contextmanager
def case(side: str) -> Generator[Case]:
    """Make a case in a world of its own, where Lambda repeats failed invocations at once."""
    with inside(World()) as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Executor, "RETRY_BACKOFF_SECONDS", 0)
        new = Case(place, side)
        with closing(new.lambda_):
            yield new


class Adversity(NamedTuple):
    """One row of the table: what durable functions do, as documented and with this layer."""

    name: str
    documented: str
    here: str
    fault: str = ""
    """What befalls the first checkpoint."""
    meet: Callable[[Case], object] = lambda case: None
    """What happens in the step just before its effect."""
    deliveries: int = 1
    execution: str = ""
    """A name for the execution."""

    def observe(self, side: str) -> str:
        with case(side) as new:
            new.lambda_.fault = self.fault
            new.meet = partial(self.meet, new)
            for _ in range(self.deliveries):
                new.deliver(name=self.execution)
            return new.seen


ONCE: Final = "1 execution, 1 run, 1 point"
IN_VAIN: Final = "1 execution, {} runs, 0 points"
ADVERSITIES: Final = (
    Adversity("an event is delivered twice", "2 executions, 2 runs, 2 points", ONCE, deliveries=2),
    Adversity(
        "the same, and the execution is named after the event",
        ONCE,
        ONCE,
        deliveries=2,
        execution="order_01",
    ),
    Adversity(
        *(
            "the process dies between a step's effect and its checkpoint",
            "1 execution, 2 runs, 2 points",
            ONCE,
        ),
        "killed",
    ),
    Adversity("the answer to a checkpoint is lost", ONCE, ONCE, "lost"),
    Adversity(
        *("the answer to a step's write to DynamoDB is lost", "1 execution, 1 run, 2 points", ONCE),
        meet=lambda case: case.world.wire.faults.append(LOST),
    ),
    Adversity(
        "a step raises each time",
        IN_VAIN.format(6),
        IN_VAIN.format(3),
        meet=lambda _: raising(ValueError()),
    ),
    Adversity(
        "a step kills its process each time",
        IN_VAIN.format(5),
        IN_VAIN.format(3),
        meet=lambda _: raising(Crash()),
    ),
)


def dollars(side: str) -> float:
    """Return what a million events cost: durable operations, DynamoDB's writes, invocations."""
    with case(side) as new:
        before = new.world.wire.write_units
        new.deliver()
        writes = new.world.wire.write_units - before
        executions = new.lambda_.results
        operations = sum(1 + len(each.get_all_operations()) for each in executions)
        invocations = len(executions) + (side is not DOCUMENTED)
        costs = (
            (operations, OPERATION),
            (writes, PRICES["write unit"]),
            (invocations, PRICES["invocation"]),
        )
        return sum(number * price.dollars for number, price in costs)


STARTS: Final = {
    DOCUMENTED: """
from aws_durable_execution_sdk_python import durable_execution
from aws_durable_execution_sdk_python.lambda_service import LambdaClient
LambdaClient.initialize_client()
durable_execution(lambda event, context: None)
""",
    ALONE: """
from carride_idempotency import Consumer, open_store
points = Consumer("points", open_store("dynamodb:Idempotency"), key="id")
points.event_handler(lambda event, operation: None)
""",
}
START: Final = """
import os, time
def measured():
    resident = open("/proc/self/statm").read().split()[1]
    return time.process_time() * 1e3, int(resident) / 2**20
before, page = measured(), os.sysconf("SC_PAGESIZE")
{}
print(measured()[0] - before[0], (measured()[1] - before[1]) * page)
"""


def cold_start(side: str) -> tuple[float, float]:
    """Return the CPU time in ms and the MiB that a new process takes for a handler and client."""
    command = [sys.executable, "-c", START.format(STARTS[side])]
    variables = ACCOUNT | {
        "PATH": os.environ["PATH"],
        "IDEMPOTENCY_TRANSPORT": "lean",
        "AWS_REGION": "us-east-1",
    }
    ms, mib = subprocess.run(
        command, env=variables, capture_output=True, text=True, check=True
    ).stdout.split()
    return float(ms), float(mib)
