"""AWS Lambda durable functions whose effects happen once.

One execution for each key, and steps that commit.

A durable function uses `effect_once`, and whatever starts it uses `start_once`. Only `effect_once`
imports the package `aws-durable-execution-sdk-python`, when it is called.
"""

import dataclasses
import json
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from carride_idempotency import errors
from carride_idempotency.invocation import lambda_deadline

if TYPE_CHECKING:
    from aws_durable_execution_sdk_python import DurableContext, StepContext
    from aws_durable_execution_sdk_python.config import StepConfig
    from aws_durable_execution_sdk_python.retries import RetryDecision

    from carride_idempotency.consumer import Consumer
    from carride_idempotency.operation import Operation

type Retry = Callable[[Exception, int], RetryDecision]
"""The SDK's retry strategy of a step: a function of the error and the number of attempts made."""


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
    """Run ``work(operation)`` in a durable step.

    Its DynamoDB effects are committed once, together with its result.

    A durable step runs again if its process dies before the checkpoint. This one then returns the
    committed result.

    Args:
        context: the durable context of the execution, or of one of its branches.
        consumer: with an atomic policy, the work must have no effects but those that it registers.
        name: the step's name.
        work: registers effects with ``operation.write``. Other systems get
            ``operation.downstream_key``.
        key: names an effect that happens once for all executions. Default: this step of this
            execution.
        payload: is fingerprinted.
        config: the step's. Its retry strategy decides about errors of ``work``. While another
            attempt holds the key, the execution is suspended. An error that no retry can help fails
            the step at once.

    Raises:
        StepError: (the SDK's) no attempt is left, or no retry can help.
    """
    from aws_durable_execution_sdk_python.config import StepConfig
    from aws_durable_execution_sdk_python.retries import RetryPresets

    @consumer.function(key="key", payload="payload", name=name)
    def once(key: object, payload: object, operation: Any = None) -> R:  # noqa: ARG001 - the decorator reads them
        return work(operation)

    def step(running: "StepContext") -> R:
        invocation = context.lambda_context
        own_key = (
            (context.execution_context.durable_execution_arn, _operation_id(running))
            if key is None
            else key
        )
        with nullcontext() if invocation is None else lambda_deadline(invocation, consumer.clock):
            return once(own_key, payload)

    config = config or StepConfig()
    patient = _patient(config.retry_strategy or RetryPresets.default())
    return context.step(step, name=name, config=dataclasses.replace(config, retry_strategy=patient))


def _operation_id(step: "StepContext") -> str:
    """Return the id of a running step, which is the same whenever it runs again.

    The SDK shows it in its logs alone.
    """
    logger: Any = step.logger
    try:
        operation_id: str = logger._default_extra["operationId"]  # noqa: SLF001 - as above
    except (AttributeError, KeyError):
        raise errors.ConfigurationError(
            "this version of the SDK hides the ids of steps: give each its key="
        ) from None
    return operation_id


def _patient(retry: Retry) -> Retry:
    """Return a strategy that waits for another attempt, and gives up where no retry can help."""
    from aws_durable_execution_sdk_python.config import Duration
    from aws_durable_execution_sdk_python.retries import RetryDecision

    def decide(error: Exception, attempts: int) -> RetryDecision:
        match error:
            case errors.BusyError(lease_left_ms=wait_ms) | errors.RetryLaterError(wait_ms=wait_ms):
                return RetryDecision.retry(Duration(seconds=wait_ms // 1000 + 1))
            case errors.RetryableError() | errors.EffectConflictError():
                return retry(error, attempts)
            case errors.IdempotencyError():
                return RetryDecision.no_retry()
        return retry(error, attempts)

    return decide


def start_once(
    operation: "Operation", client: Any, function: str, payload: object, *, step: str | None = None
) -> str | None:
    """Start one durable execution, named after the operation's downstream key.

    A redelivery finds it by its name.

    Call it in a handler whose policy is not atomic. If the process dies before the record is
    completed, the name stops a second execution. When AWS has forgotten the execution, the record
    still does.

    ``client`` is a Lambda client of boto3 or botocore, ``function`` has a version or an alias
    (``name:live``), and ``payload`` is at most 1 MB of JSON. ``step`` names each start, if the
    operation starts several executions. Return the execution's ARN; None if it was started before
    with another payload.
    """
    name = operation.downstream_key if step is None else operation.downstream_key_for(step)
    body = json.dumps(payload, sort_keys=True).encode()
    try:
        answer = client.invoke(
            FunctionName=function, InvocationType="Event", DurableExecutionName=name, Payload=body
        )
    except client.exceptions.DurableExecutionAlreadyStartedException:
        return None  # the record has compared the events: only what was made of them differs
    arn: str = answer["DurableExecutionArn"]
    return arn
