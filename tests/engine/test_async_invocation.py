import json
from typing import Final

from local.local_aws import LocalAws, Stack
from tests.engine.conftest import Deploy
from tests.engine.support import QUEUE, Resource, attribute, function, messages, needed, records, until

PRINTS: Final = 'print(json.dumps({"id": context.aws_request_id, "event": event}))'
FAILS: Final = f'{PRINTS}\nraise KeyError("no such ride")'


def failing(retries: int, body: str = FAILS, **properties: object) -> dict[str, Resource]:
    """A function whose failed events go to the queue ``Queue``."""
    to_queue = {"OnFailure": {"Type": "SQS", "Destination": attribute("Queue")}}
    invoke = {"MaximumRetryAttempts": retries, "DestinationConfig": to_queue}
    return {"Queue": QUEUE, "Function": function(body, EventInvokeConfig=invoke, **properties)}


def invoke(cloud: LocalAws, stack: Stack, *rides: int) -> None:
    """Invoke the stack's function asynchronously, once for each ride."""
    for ride in rides:
        cloud.client("lambda").invoke(
            FunctionName=stack.resources["Function"], InvocationType="Event", Payload=json.dumps({"ride": ride})
        )


@needed("async_invocation")
def test_every_attempt_has_the_same_request_id(engine: LocalAws, deploy: Deploy) -> None:
    """Lambda's retries of an asynchronous event keep its request id, and two events never share one."""
    stack = deploy(**failing(2))
    invoke(engine, stack, 1, 2)
    assert until(lambda: len(records(engine, stack)) == 6)
    printed = records(engine, stack)
    ids = [{each["id"] for each in printed if each["event"] == {"ride": ride}} for ride in (1, 2)]
    assert [len(each) for each in ids] == [1, 1]
    assert ids[0] != ids[1]


def test_a_destination_needs_the_roles_permission(engine: LocalAws, deploy: Deploy) -> None:
    """A function whose role may not send to its destination loses the event, as on AWS."""
    document = {"Version": "2012-10-17", "Statement": []}
    role = {"Type": "AWS::IAM::Role", "Properties": {"AssumeRolePolicyDocument": document}}
    stack = deploy(Role=role, **failing(0, Role=attribute("Role")))
    invoke(engine, stack, 1)
    engine.wait_until_quiet()
    assert (len(records(engine, stack)), messages(engine, stack)) == (1, [])


def test_a_function_without_concurrency_sends_its_events_on(engine: LocalAws, deploy: Deploy) -> None:
    """A reserved concurrency of 0 switches a function off: its events go to the destination without an attempt."""
    stack = deploy(**failing(2, ReservedConcurrentExecutions=0))
    invoke(engine, stack, 1)
    engine.wait_until_quiet()
    [message] = messages(engine, stack)
    assert message["body"]["requestContext"]["approximateInvokeCount"] == 0
    assert records(engine, stack) == []


def test_a_throttled_event_waits(engine: LocalAws, deploy: Deploy) -> None:
    """Events beyond the reserved concurrency wait for their turn; throttling costs none of their attempts."""
    stack = deploy(**failing(0, f"{PRINTS}\ntime.sleep(0.2)", ReservedConcurrentExecutions=1))
    invoke(engine, stack, 0, 1, 2)
    engine.wait_until_quiet()
    assert sorted(each["event"]["ride"] for each in records(engine, stack)) == [0, 1, 2]
    assert messages(engine, stack) == []
