"""The AWS clients of functions. Their timeouts are shorter than a function's; botocore's are 60 s.

The publisher's clients make one attempt a call: it repeats calls itself, because it knows the
deadline.
"""

from typing import TYPE_CHECKING, Final

import boto3
from botocore.config import Config

from carride.forks import renew_client, renew_in_children

if TYPE_CHECKING:
    from mypy_boto3_events import EventBridgeClient
    from mypy_boto3_lambda import LambdaClient
    from mypy_boto3_sqs import SQSClient

CONNECT_TIMEOUT_S: Final = 1
READ_TIMEOUT_S: Final = 3
LONGEST_CALL_MS: Final = (CONNECT_TIMEOUT_S + READ_TIMEOUT_S) * 1000

SINGLE_ATTEMPT: Final = Config(
    connect_timeout=CONNECT_TIMEOUT_S,
    read_timeout=READ_TIMEOUT_S,
    retries={"mode": "standard", "total_max_attempts": 1},
    tcp_keepalive=True,
)


def events_client() -> "EventBridgeClient":
    """Make a client for EventBridge."""
    return _renewed(boto3.client("events", config=SINGLE_ATTEMPT))


def sqs_client() -> "SQSClient":
    """Make a client for SQS."""
    return _renewed(boto3.client("sqs", config=SINGLE_ATTEMPT))


def lambda_client() -> "LambdaClient":
    """Make a client for Lambda, with up to two attempts a call."""
    config = SINGLE_ATTEMPT.merge(Config(retries={"mode": "standard", "total_max_attempts": 2}))
    return _renewed(boto3.client("lambda", config=config))


def _renewed[C](client: C) -> C:
    renew_in_children(client, renew_client)
    return client
