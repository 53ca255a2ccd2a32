import json
from typing import Any, Final

import pytest
from botocore.exceptions import ClientError

from local.local_aws import Laptop, Stack
from tests.engine.conftest import Deploy
from tests.engine.support import (
    QUEUE,
    Resource,
    attribute,
    bus,
    function,
    messages,
    needless,
    permission,
    put,
    records,
    rule,
    template,
    until,
)

PRINTS: Final = 'print(json.dumps({"id": context.aws_request_id, "event": event}))'
FAILS: Final = f'{PRINTS}\nraise KeyError("no such ride")'


def failing(retries: int, body: str = FAILS, **properties: object) -> dict[str, Resource]:
    """A function whose failed events go to the queue ``Queue``."""
    to_queue = {"OnFailure": {"Type": "SQS", "Destination": attribute("Queue")}}
    invoke = {"MaximumRetryAttempts": retries, "DestinationConfig": to_queue}
    return {"Queue": QUEUE, "Function": function(body, EventInvokeConfig=invoke, **properties)}


def invoke(laptop: Laptop, stack: Stack, *rides: int, qualifier: str | None = None) -> None:
    """Invoke the stack's function asynchronously, once for each ride."""
    request = {"Qualifier": qualifier} if qualifier else {}
    for ride in rides:
        laptop.client("lambda").invoke(
            FunctionName=stack.resources["Function"],
            InvocationType="Event",
            Payload=json.dumps({"ride": ride}),
            **request,
        )


def test_every_attempt_has_the_same_request_id(engine: Laptop, deploy: Deploy) -> None:
    """Lambda's retries of an asynchronous event keep its request id, and two events never share one."""
    stack = deploy(engine, **failing(2))
    invoke(engine, stack, 1, 2)
    engine.wait_until_quiet()
    printed = records(engine, stack)
    ids = [{each["id"] for each in printed if each["event"] == {"ride": ride}} for ride in (1, 2)]
    assert (len(printed), [len(each) for each in ids]) == (6, [1, 1])
    assert ids[0] != ids[1]


def test_a_failed_event_ends_at_the_destination(engine: Laptop, deploy: Deploy) -> None:
    """When the retries are used up, the destination gets AWS's record: the event, its id, the count and the error."""
    stack = deploy(engine, **failing(1))
    invoke(engine, stack, 1)
    engine.wait_until_quiet()
    [message] = messages(engine, stack)
    record = message["body"]
    assert record["requestContext"] == {
        "requestId": records(engine, stack)[1]["id"],
        "functionArn": f"arn:aws:lambda:us-east-1:000000000000:function:{stack.resources['Function']}:$LATEST",
        "condition": "RetriesExhausted",
        "approximateInvokeCount": 2,
    }
    assert record["requestPayload"] == {"ride": 1}
    assert record["responseContext"] == {
        "statusCode": 200,
        "executedVersion": "$LATEST",
        "functionError": "Unhandled",
    }
    assert record["responsePayload"]["errorType"] == "KeyError"


def test_the_settings_of_an_alias_hold_for_the_alias(engine: Laptop, deploy: Deploy) -> None:
    """An event for an alias is retried and sent on as the alias says, which is where SAM puts the settings."""
    stack = deploy(engine, **failing(0, AutoPublishAlias="live"))
    invoke(engine, stack, 1, qualifier="live")
    engine.wait_until_quiet()
    [message] = messages(engine, stack)
    context = message["body"]["requestContext"]
    assert (context["functionArn"].rpartition(":")[2], context["approximateInvokeCount"]) == ("live", 1)
    assert message["body"]["responseContext"]["executedVersion"] == "1"


def test_a_destination_needs_the_roles_permission(engine: Laptop, deploy: Deploy) -> None:
    """A function whose role may not send to its destination loses the event, as on AWS."""
    document = {"Version": "2012-10-17", "Statement": []}
    role = {"Type": "AWS::IAM::Role", "Properties": {"AssumeRolePolicyDocument": document}}
    stack = deploy(engine, Role=role, **failing(0, Role=attribute("Role")))
    invoke(engine, stack, 1)
    engine.wait_until_quiet()
    assert (len(records(engine, stack)), messages(engine, stack)) == (1, [])


def test_a_function_without_concurrency_sends_its_events_on(engine: Laptop, deploy: Deploy) -> None:
    """A reserved concurrency of 0 switches a function off: its events go to the destination without an attempt."""
    stack = deploy(engine, **failing(2, ReservedConcurrentExecutions=0))
    invoke(engine, stack, 1)
    engine.wait_until_quiet()
    [message] = messages(engine, stack)
    assert message["body"]["requestContext"]["approximateInvokeCount"] == 0
    assert records(engine, stack) == []


def test_a_throttled_event_waits(engine: Laptop, deploy: Deploy) -> None:
    """Events beyond the reserved concurrency wait for their turn; throttling costs none of their attempts."""
    stack = deploy(engine, **failing(0, f"{PRINTS}\ntime.sleep(0.2)", ReservedConcurrentExecutions=1))
    invoke(engine, stack, 0, 1, 2)
    engine.wait_until_quiet()
    assert sorted(each["event"]["ride"] for each in records(engine, stack)) == [0, 1, 2]
    assert messages(engine, stack) == []


def test_an_event_that_finds_no_room_is_refused() -> None:
    """When as many events wait as may, the next caller is told to try again; nothing that was accepted is lost."""
    with Laptop(queue_limit=1, workers=1) as laptop:
        stack = laptop.deploy_fast("small", template({"Function": function(f"{PRINTS}\ntime.sleep(0.2)")}))
        invoke(laptop, stack, 1)
        with pytest.raises(ClientError, match="TooManyRequestsException"):
            invoke(laptop, stack, 2)
        laptop.wait_until_quiet()
        assert [each["event"] for each in records(laptop, stack)] == [{"ride": 1}]


def test_a_burst_loses_no_event(engine: Laptop, deploy: Deploy) -> None:
    """Of 500 events put at once every one reaches the function, exactly once."""
    resources: dict[str, Any] = {
        "Bus": bus(),
        "Function": function('print(json.dumps(event["detail"]))'),
        "Rule": rule({"Arn": attribute("Function")}),
        "Permission": permission("Function"),
    }
    stack = deploy(engine, **resources)
    put(engine, stack, *({"ride": ride} for ride in range(500)))
    engine.wait_until_quiet()
    assert sorted(each["ride"] for each in records(engine, stack)) == list(range(500))


def test_stock_changes_the_request_id(stock: Laptop, deploy: Deploy) -> None:
    """Canary: the plug-in is needed while MiniStack's retries have new request ids."""
    stack = deploy(stock, **failing(1))
    invoke(stock, stack, 1)
    assert until(lambda: messages(stock, stack))
    if len({each["id"] for each in records(stock, stack)}) == 1:
        needless("one request id over the retries of an event", "async_invocation")
