import json
from typing import Any, Final

import pytest

from engine.client import LocalCloud, Stack
from engine.tests.conftest import Deploy
from engine.tests.support import (
    QUEUE,
    Resource,
    attribute,
    function,
    messages,
    needed,
    records,
    until,
)

pytestmark = pytest.mark.integration

PRINTS: Final = 'print(json.dumps({"id": context.aws_request_id, "event": event}))'
FAILS: Final = f'{PRINTS}\nraise KeyError("no such ride")'
NO_ROLE: Final = {
    "Type": "AWS::IAM::Role",
    "Properties": {"AssumeRolePolicyDocument": {"Version": "2012-10-17", "Statement": []}},
}


def failing(retries: int, body: str = FAILS, **properties: object) -> dict[str, Resource]:
    """A function whose failed events go to the queue ``Queue``."""
    to_queue = {"OnFailure": {"Type": "SQS", "Destination": attribute("Queue")}}
    invoke = {"MaximumRetryAttempts": retries, "DestinationConfig": to_queue}
    return {
        "Role": NO_ROLE,
        "Queue": QUEUE,
        "Function": function(body, EventInvokeConfig=invoke, **properties),
    }


def invoke(cloud: LocalCloud, stack: Stack, *rides: int) -> None:
    for ride in rides:
        cloud.client("lambda").invoke(
            FunctionName=stack.resources["Function"],
            InvocationType="Event",
            Payload=json.dumps({"ride": ride}),
        )


@needed("async_invocation")
def test_every_attempt_has_the_same_request_id(engine: LocalCloud, deploy: Deploy) -> None:
    """Lambda's retries of an asynchronous event keep its request id; two events never share one."""
    stack = deploy(**failing(2))
    invoke(engine, stack, 1, 2)
    assert until(lambda: len(records(engine, stack)) == 6)
    ids = {(each["id"], each["event"]["ride"]) for each in records(engine, stack)}
    assert (len(ids), len({one for one, _ in ids})) == (2, 2)


@pytest.mark.parametrize(
    ("resources", "attempts", "invoke_counts"),
    [
        (failing(0), 3, [1, 1, 1]),
        (failing(0, Role=attribute("Role")), 3, []),
        (failing(2, ReservedConcurrentExecutions=0), 0, [0, 0, 0]),
        (failing(0, f"{PRINTS}\ntime.sleep(0.2)", ReservedConcurrentExecutions=1), 3, []),
    ],
    ids=["given up", "the role may not send", "switched off", "throttled"],
)
def test_an_event_ends_as_on_aws(
    engine: LocalCloud, deploy: Deploy, resources: Any, attempts: int, invoke_counts: list[int]
) -> None:
    """A failed event goes to its destination if the role may; a concurrency of 0 runs nothing.

    Events beyond a larger reserved concurrency wait for their turn; throttling costs none of their
    attempts.
    """
    stack = deploy(**resources)
    invoke(engine, stack, 0, 1, 2)
    engine.wait_until_quiet()
    assert len(records(engine, stack)) == attempts
    found = [
        message["body"]["requestContext"]["approximateInvokeCount"]
        for message in messages(engine, stack)
    ]
    assert found == invoke_counts
