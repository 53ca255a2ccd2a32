import itertools

import pytest

from local.local_aws import Laptop
from tests.engine.conftest import Deploy
from tests.engine.support import attribute, function, messages, records

PRINTS_ITS_COUNT = """
[record] = event["Records"]
count = record["attributes"]["ApproximateReceiveCount"]
print(json.dumps({"received": int(count)}), flush=True)
"""
RETRY_DELAYS_AND_TWICE_AS_LONG = (0.05, 0.1, 0.2, 0.4, 0.8)
ENDINGS = {
    "reported as failed": 'return {"batchItemFailures": [{"itemIdentifier": record["messageId"]}]}',
    "raised": 'raise KeyError("no such ride")',
    "process died": "os._exit(1)",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_failed_message_comes_back_soon(engine: Laptop, deploy: Deploy, ending: str) -> None:
    """Though it should stay hidden for an hour, it is tried as often as the queue lets it, and then moved on."""
    event = {
        "Type": "SQS",
        "Properties": {"Queue": attribute("Source"), "FunctionResponseTypes": ["ReportBatchItemFailures"]},
    }
    redrive = {"deadLetterTargetArn": attribute("Queue"), "maxReceiveCount": 3}
    hidden = {"VisibilityTimeout": 3600, "RedrivePolicy": redrive}
    stack = deploy(
        engine,
        Queue={"Type": "AWS::SQS::Queue"},
        Source={"Type": "AWS::SQS::Queue", "Properties": hidden},
        Function=function(f"{PRINTS_ITS_COUNT}{ENDINGS[ending]}", Events={"Messages": event}),
    )
    engine.client("sqs").send_message(QueueUrl=stack.resources["Source"], MessageBody='{"ride": 1}')
    engine.wait_until_quiet(timeout=30)
    assert [each["received"] for each in records(engine, stack)] == [1, 2, 3]
    [message] = messages(engine, stack)
    assert message["body"] == {"ride": 1}


def test_a_message_that_goes_on_failing_comes_back_later_each_time(engine: Laptop, deploy: Deploy) -> None:
    """It does not use up what it may be received in the time for which the lease of a killed run still holds."""
    event = {"Type": "SQS", "Properties": {"Queue": attribute("Source")}}
    redrive = {"deadLetterTargetArn": attribute("Queue"), "maxReceiveCount": 6}
    source = {"Type": "AWS::SQS::Queue", "Properties": {"VisibilityTimeout": 3600, "RedrivePolicy": redrive}}
    consumer = function(
        'print(json.dumps({"time": time.time()}), flush=True)\nraise KeyError', Events={"Source": event}
    )
    stack = deploy(engine, Queue={"Type": "AWS::SQS::Queue"}, Source=source, Function=consumer)
    engine.client("sqs").send_message(QueueUrl=stack.resources["Source"], MessageBody="{}")
    engine.wait_until_quiet(timeout=30)
    times = [each["time"] for each in records(engine, stack)]
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert [pause >= least for pause, least in zip(pauses, RETRY_DELAYS_AND_TWICE_AS_LONG, strict=True)] == [True] * 5


def test_a_message_in_hand_stays_hidden(engine: Laptop, deploy: Deploy) -> None:
    """However long the function takes, nobody else is given the message meanwhile."""
    event = {"Type": "SQS", "Properties": {"Queue": attribute("Source")}}
    source = {"Type": "AWS::SQS::Queue", "Properties": {"VisibilityTimeout": 3600}}
    consumer = function(f"{PRINTS_ITS_COUNT}time.sleep(1)", Events={"Messages": event})
    stack = deploy(engine, Source=source, Function=consumer)
    engine.client("sqs").send_message(QueueUrl=stack.resources["Source"], MessageBody="{}")
    engine.wait_until_quiet(timeout=30)
    assert [each["received"] for each in records(engine, stack)] == [1]


def test_a_queue_starts_no_more_processes_than_a_function_may_have(engine: Laptop, deploy: Deploy) -> None:
    """Ten batches that are there at once are run by two processes."""
    event = {"Type": "SQS", "Properties": {"Queue": attribute("Source"), "BatchSize": 1}}
    source = {"Type": "AWS::SQS::Queue", "Properties": {"VisibilityTimeout": 3600}}
    consumer = function('print(json.dumps({"process": os.getpid()}))\ntime.sleep(0.1)', Events={"Messages": event})
    stack = deploy(engine, Source=source, Function=consumer)
    entries = [{"Id": str(number), "MessageBody": "{}"} for number in range(10)]
    engine.client("sqs").send_message_batch(QueueUrl=stack.resources["Source"], Entries=entries)
    engine.wait_until_quiet(timeout=30)
    processes = [each["process"] for each in records(engine, stack)]
    assert (len(processes), len(set(processes))) == (10, 2)
