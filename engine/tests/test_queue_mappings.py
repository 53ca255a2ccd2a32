import itertools
from typing import Any, Final

import pytest

from engine.client import LocalCloud, Stack
from engine.tests.conftest import Deploy
from engine.tests.support import QUEUE, attribute, function, messages, records

pytestmark = pytest.mark.integration

PRINTS: Final = """
[record] = event["Records"]
count = int(record["attributes"]["ApproximateReceiveCount"])
print(json.dumps({"received": count, "time": time.time(), "process": os.getpid()}), flush=True)
"""
RETRY_DELAYS_AND_TWICE_AS_LONG: Final = (0.05, 0.1, 0.2, 0.4, 0.8)


def processed(
    cloud: LocalCloud, deploy: Deploy, ending: str, *, sent: int = 1, receives: int = 1
) -> tuple[Stack, Any]:
    """Send messages to a queue whose function ends like this.

    Return the stack, and the function's prints.
    """
    redrive = {"deadLetterTargetArn": attribute("Queue"), "maxReceiveCount": receives}
    types = {"FunctionResponseTypes": ["ReportBatchItemFailures"], "BatchSize": 1}
    event = {"Type": "SQS", "Properties": {"Queue": attribute("Source"), **types}}
    stack = deploy(
        Queue=QUEUE,
        Source={
            "Type": "AWS::SQS::Queue",
            "Properties": {"VisibilityTimeout": 3600, "RedrivePolicy": redrive},
        },
        Function=function(f"{PRINTS}{ending}", Events={"Messages": event}),
    )
    entries = [{"Id": str(number), "MessageBody": '{"ride": 1}'} for number in range(sent)]
    cloud.client("sqs").send_message_batch(QueueUrl=stack.resources["Source"], Entries=entries)
    cloud.wait_until_quiet()
    return stack, records(cloud, stack)


@pytest.mark.parametrize(
    "ending",
    ['return {"batchItemFailures": [{"itemIdentifier": record["messageId"]}]}', "os._exit(1)"],
    ids=["reported as failed", "process died"],
)
def test_a_failed_message_comes_back_soon_and_later_each_time(
    engine: LocalCloud, deploy: Deploy, ending: str
) -> None:
    """A message comes back soon, despite a long visibility timeout, and is moved on at the end."""
    stack, runs = processed(engine, deploy, ending, receives=6)
    assert [run["received"] for run in runs] == [1, 2, 3, 4, 5, 6]
    pauses = [after["time"] - before["time"] for before, after in itertools.pairwise(runs)]
    assert all(
        pause >= least for pause, least in zip(pauses, RETRY_DELAYS_AND_TWICE_AS_LONG, strict=True)
    )
    assert [message["body"] for message in messages(engine, stack)] == [{"ride": 1}]


def test_messages_in_hand_stay_hidden_and_processes_are_few(
    engine: LocalCloud, deploy: Deploy
) -> None:
    """Ten messages are run once each by two processes, however long each takes."""
    _, runs = processed(engine, deploy, "time.sleep(0.2)", sent=10)
    assert [run["received"] for run in runs] == [1] * 10
    assert len({run["process"] for run in runs}) == 2
