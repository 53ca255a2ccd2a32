"""AWS Lambda durable functions with effects that happen once: one execution for each key, and steps that commit.

The functions that are decorated with the SDK's ``durable_execution`` use `effect_once`; what starts them uses
`start_once`. The package `aws-durable-execution-sdk-python` is imported by `effect_once` alone, when it is called.
"""

import dataclasses
import json
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from idempotency.errors import (
    BusyError,
    ConfigurationError,
    EffectConflictError,
    IdempotencyError,
    RetryableError,
    RetryLaterError,
)
from idempotency.invocation import lambda_deadline

if TYPE_CHECKING:
    from aws_durable_execution_sdk_python import DurableContext
    from aws_durable_execution_sdk_python.config import StepConfig
    from aws_durable_execution_sdk_python.retries import RetryDecision

    from idempotency.consumer import Consumer
    from idempotency.operation import Operation

type Retry = Callable[[Exception, int], RetryDecision]
"""The SDK's retry strategy of a step: a function of the error and of the number of attempts made."""

_NAMES: Final[WeakKeyDictionary[object, set[str]]] = WeakKeyDictionary()
"""The steps without a key of their own that each running invocation has met."""


def effect_once[R](
    context: "DurableContext",
    consumer: "Consumer[Any]",
    name: str,
    work: "Callable[[Operation], R]",
    *,
    key: object = None,
    payload: object = None,
    config: "StepConfig | None" = None,
) -> R:
    """Run ``work(operation)`` in a durable step whose DynamoDB effects commit once, together with its result.

    A durable step that is interrupted before its checkpoint runs again. This one then returns the result that was
    committed with the effects of ``operation.write``.

    Args:
        context: the durable context of the execution, or of one of its branches.
        consumer: holds the records. With ``Policy(atomic=True)`` a step costs one request and waits for no lease; its
            work must then have no effects but those that it registers.
        name: the step's name, unique within the execution.
        work: what is run. Other systems get ``operation.downstream_key``, which is the same for every attempt.
        key: the idempotency key, such as an order's id, if the effect must happen once for all executions. Default:
            this step of this execution.
        payload: is fingerprinted: the same key with another payload is refused.
        config: the step's. Its retry strategy decides about the errors of ``work``. While another attempt holds the
            key, the execution is suspended; what no retry can help fails the step at once.

    Raises:
        ConfigurationError: two steps of an execution have this name, and no key of their own.
        StepError: (the SDK's) the attempts are used up, or no retry can help.
    """
    from aws_durable_execution_sdk_python.config import StepConfig
    from aws_durable_execution_sdk_python.retries import RetryPresets

    if key is None:
        names = _NAMES.setdefault(context.state, set())
        if name in names:
            raise ConfigurationError(f"two steps are called {name}: give one another name, or both their key=")
        names.add(name)
        key = context.execution_context.durable_execution_arn

    @consumer.function(key="key", payload="payload", name=name)
    def once(key: object, payload: object, operation: Any = None) -> R:  # noqa: ARG001 - the decorator reads them
        return work(operation)

    def step(_: object) -> R:
        lambda_context = context.lambda_context
        with lambda_deadline(lambda_context, consumer.clock) if lambda_context is not None else nullcontext():
            return once(key, payload)

    config = config or StepConfig()
    patient = _patient(config.retry_strategy or RetryPresets.default())
    return context.step(step, name=name, config=dataclasses.replace(config, retry_strategy=patient))


def _patient(retry: Retry) -> Retry:
    """Return a strategy that waits for another attempt's lease, and repeats nothing that no retry can help."""
    from aws_durable_execution_sdk_python.config import Duration
    from aws_durable_execution_sdk_python.retries import RetryDecision

    def decide(error: Exception, attempts: int) -> RetryDecision:
        match error:
            case BusyError():
                wait_ms = error.lease_left_ms
            case RetryLaterError():
                wait_ms = error.wait_ms
            case IdempotencyError() if not isinstance(error, RetryableError | EffectConflictError):
                return RetryDecision.no_retry()
            case _:
                return retry(error, attempts)
        return RetryDecision.retry(Duration(seconds=wait_ms // 1000 + 1))

    return decide


def start_once(
    operation: "Operation", client: Any, function: str, payload: object, *, step: str | None = None
) -> str | None:
    """Start the one durable execution of the operation's key; a redelivery finds it by its name.

    Call it from a handler of events, a batch or HTTP requests whose policy is not atomic. The name outlasts a crash
    between the start and the commit of the record, and the record outlasts the retention of the execution.

    Args:
        operation: the running operation. Its downstream key is the execution's name.
        client: a Lambda client of boto3 or botocore.
        function: the durable function, with the version or alias that AWS demands (``name:live``).
        payload: the execution's input, as JSON can hold it: at most 1 MB.
        step: a name for each start, if the operation starts several executions.

    Returns:
        The execution's ARN; None if it was started before with another payload.
    """
    name = operation.downstream_key if step is None else operation.downstream_key_for(step)
    body = json.dumps(payload, sort_keys=True).encode()
    try:
        answer = client.invoke(FunctionName=function, InvocationType="Event", DurableExecutionName=name, Payload=body)
    except client.exceptions.DurableExecutionAlreadyStartedException:
        return None  # the record's fingerprint has compared the events: only what was made of them differs
    arn: str = answer["DurableExecutionArn"]
    return arn
